"""Keep the process as small as what it holds: allocators keep freed memory unless told otherwise."""

import ctypes

import pyarrow as pa


def use_frugal_allocator() -> None:
    """Let Arrow allocate through jemalloc where it is built in: told to return freed memory soon."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.jemalloc_set_decay_ms(50)
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def release_freed_memory() -> None:
    """Give freed memory back to the system: Arrow's, and on glibc that of every thread."""
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return
