"""`.pt` files and pickles without torch, and without running what they name: builtins, numpy arrays for tensors."""

import io
import math
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.errors import InputError

MAX_ITEMS = 1 << 31
_STORAGES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?", "BFloat16Storage": "bfloat16",
    "UntypedStorage": "u1",
}  # fmt: skip
_DTYPES = {
    "float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
    "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "?", "bfloat16": "bfloat16",
}  # fmt: skip
_BUILTINS = {"set": set, "frozenset": frozenset, "complex": complex}
_NUMPY_CODE = re.compile(r"[<>|=]?(\?|O8?|[biufSU]\d{1,6})")
_BROKEN = (
    pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, KeyError, IndexError, ImportError,
    OverflowError, RecursionError, NotImplementedError, AssertionError, UnicodeError, MemoryError,
)  # fmt: skip


class Unknown:
    """An object of a class that is not loaded, as the pickle has it.

    `module` and `name` of the class, `args` that it was made from, its `state`, and the `items` put into it.
    """

    module = name = ""

    def __new__(cls, *args: Any, **named: Any) -> "Unknown":
        """Keep the arguments."""
        made = super().__new__(cls)
        made.args, made.state, made.items = args, None, []
        return made

    def __init__(self, *args: Any, **named: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Keep an item of a list."""
        self.items.append(item)

    def extend(self, items: list[Any]) -> None:
        """Keep items of a list."""
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}>"


def load_torch(file: Path | BinaryIO, unknown: bool = False, name: str = "") -> Any:
    """Return what `torch.save` wrote into a file: builtins, tensors as numpy arrays (bfloat16 as float32).

    unknown: return objects of other classes as `Unknown`; else they are an `InputError`, as is a damaged file.
    """
    where = name or str(file)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.namelist() if entry.endswith("/data.pkl") or entry == "data.pkl"]
            if len(entries) != 1:
                raise InputError(f"{where}: not a file of torch.save (it holds no data.pkl)")
            root = entries[0].removesuffix("data.pkl")
            storages = _Storages(archive, root)
            return _unpickle(io.BytesIO(archive.read(entries[0])), where, unknown, storages.load)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except PermissionError:
        raise InputError(f"{where}: no permission to read it") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{where}: the file of torch.save is damaged or of the format before torch 1.6 ({error}); write it again"
        ) from None


def load_pickle(path: Path) -> Any:
    """Return what a pickle holds: builtins, numpy arrays, and `Unknown` for objects of other classes."""
    try:
        with open(path, "rb") as file:
            return _unpickle(file, str(path), True, None)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None


def _unpickle(file: BinaryIO, where: str, unknown: bool, load: Callable[[Any], Any] | None) -> Any:
    try:
        return _finished(_Unpickler(file, unknown, load).load(), {})
    except _Refused as error:
        raise InputError(f"{where}: holds {error}, which is not read from such files") from None
    except InputError:
        raise
    except _BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{where}: the pickle cannot be read ({reason}); the file is damaged") from None


class _Refused(Exception):
    """A class or function that is not on the list."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, unknown: bool, load: Callable[[Any], Any] | None):
        super().__init__(file)
        self.unknown, self.load_storage = unknown, load

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; nothing is imported, nothing of the file's choice is called."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module in ("builtins", "__builtin__") and name in _BUILTINS:
            return _BUILTINS[name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if self.unknown:
            return type("Unknown", (Unknown,), {"module": module, "name": name})
        raise _Refused(f"an object of {module}.{name}"[:120])

    def persistent_load(self, saved: Any) -> Any:
        """Return the storage of a tensor."""
        if self.load_storage is None:
            raise _Refused("a tensor outside the pickle")
        return self.load_storage(saved)


class _Storages:
    """The storages of a file of torch.save: flat arrays, read once each."""

    def __init__(self, archive: zipfile.ZipFile, root: str):
        self.archive, self.root, self.cache = archive, root, {}
        order = f"{root}byteorder"
        self.order = ">" if order in archive.namelist() and archive.read(order).strip() == b"big" else "<"

    def load(self, saved: Any) -> np.ndarray:
        """Return the storage that a persistent id names."""
        kind, code, key, _, count = saved
        if kind != "storage" or not isinstance(code, str) or not isinstance(key, str):
            raise ValueError("an odd reference to a tensor")
        if (key, code) not in self.cache:
            entry = self.archive.getinfo(f"{self.root}data/{key}")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError("a compressed tensor")
            self.cache[key, code] = _from_bytes(self.archive.read(entry), code, self.order)
        found = self.cache[key, code]
        if len(found) < count:
            raise ValueError(f"a tensor of {count} values, of which the file holds {len(found)}")
        return found[:count]


def _from_bytes(raw: bytes, code: str, order: str) -> np.ndarray:
    if code == "bfloat16":
        halves = np.frombuffer(raw, np.dtype("u2").newbyteorder(order)).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32)
    dtype = np.dtype(code).newbyteorder(order)
    return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="), copy=False)


def _tensor(storage: np.ndarray, offset: int, size: Any, stride: Any, *rest: Any) -> np.ndarray:
    """Return a tensor as an array of its own; shape and strides must lie inside the storage."""
    size, stride = tuple(map(int, size)), tuple(map(int, stride))
    if not isinstance(storage, np.ndarray) or len(size) != len(stride) or min((offset, *size, *stride), default=0) < 0:
        raise ValueError("a tensor of an odd shape")
    count = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if count else -1
    if last >= len(storage) or count > MAX_ITEMS:
        raise ValueError("a tensor larger than its storage")
    strides = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, strides, writeable=False).copy()


def _typed_tensor(
    storage: np.ndarray, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, code: str, *rest: Any
) -> np.ndarray:
    return _tensor(_from_bytes(storage.tobytes(), code, "<"), offset, size, stride)


class _Dtype:
    """A numpy dtype as a pickle has it."""

    def __init__(self, code: str, *rest: Any):
        if not isinstance(code, str) or not _NUMPY_CODE.fullmatch(code):
            raise _Refused(f"a numpy array of dtype {str(code)[:40]}")
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "="

    def dtype(self) -> np.dtype:
        found = np.dtype(self.code)
        return found if found.kind == "O" else found.newbyteorder(self.order)


class _Array:
    """A numpy array as a pickle has it, before it is one."""

    def __init__(self, *rest: Any):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def finished(self, seen: dict[int, Any]) -> np.ndarray:
        _, shape, dtype, fortran, raw = self.state
        if dtype.code.lstrip("<>|=").startswith("O"):
            made = np.empty(len(raw), object)
            made[:] = [_finished(item, seen) for item in raw]
            return made.reshape(shape, order="F" if fortran else "C")
        return _shaped(raw, dtype, shape, "F" if fortran else "C")


def _shaped(raw: Any, dtype: _Dtype, shape: Any, order: str) -> np.ndarray:
    if isinstance(raw, str):  # Python 2 wrote bytes as text
        raw = raw.encode("latin-1")
    return np.frombuffer(raw, dtype.dtype()).reshape(shape, order=order)


def _scalar(dtype: _Dtype, raw: Any) -> Any:
    return _shaped(raw, dtype, (1,), "C")[0].item()


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError("an odd encoding")
    return text.encode("latin-1")


def _finished(value: Any, seen: dict[int, Any]) -> Any:
    """Return the value with arrays in place of what stands for them."""
    kind = type(value)
    if kind in (int, float, str, bool, bytes, type(None)):
        return value
    if id(value) in seen:
        return seen[id(value)][1]
    if kind is list:
        seen[id(value)] = value, value
        if not (value and all(type(item) in (int, float, str) for item in value)):
            value[:] = [_finished(item, seen) for item in value]
    elif kind is dict:
        seen[id(value)] = value, value
        for key in value:
            value[key] = _finished(value[key], seen)
    elif kind is tuple:
        made = tuple(_finished(item, seen) for item in value)
        seen[id(value)] = value, made
        return made
    elif kind is _Array:
        made = value.finished(seen)
        seen[id(value)] = value, made
        return made
    elif isinstance(value, Unknown):
        seen[id(value)] = value, value
        value.args, value.state = _finished(value.args, seen), _finished(value.state, seen)
        value.items = _finished(value.items, seen)
    return value


def _reduced(shape: Any, *rest: Any) -> _Array:
    return _Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): dict,
    ("collections", "defaultdict"): lambda *factory: {},
    ("_codecs", "encode"): _encoded,
    ("torch", "Size"): lambda items=(): tuple(items),
    ("torch", "device"): lambda *names: ":".join(map(str, names)),
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _typed_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}
for _module in ("numpy.core", "numpy._core"):
    _KNOWN |= {
        (f"{_module}.multiarray", "_reconstruct"): _reduced,
        (f"{_module}.multiarray", "scalar"): _scalar,
        (f"{_module}.numeric", "_frombuffer"): _shaped,
    }
