"""Token-level advantages from saved RL rollouts; the library mirrors the commands. Nothing heavy is imported here."""

from typing import Any

from ktae_cli.version import __version__

__all__ = [
    "__version__", "check", "compare", "convert", "export", "inspect", "load_estimator", "read", "score",
    "tokens", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ktae_cli import library

        return getattr(library, name)
    raise AttributeError(f"module 'ktae_cli' has no attribute {name!r}")
