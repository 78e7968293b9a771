"""Token-level advantages from saved RL rollouts; the library mirrors the commands. Nothing heavy is imported here."""

from ktae_cli.version import __version__

__all__ = ["__version__"]
