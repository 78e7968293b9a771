"""Errors that a user can act on; the command line prints them as one line and exits with their status."""


class KtaeError(Exception):
    """Wrong usage or unusable input: one clear line, exit status 2."""

    exit_status = 2


class InputError(KtaeError):
    """The input holds something that cannot be scored; the message names file, row or column, and the way out."""


class MissingColumnError(KtaeError):
    """A column that the command needs is absent; the message names it and what supplies it."""


class UnknownNameError(KtaeError):
    """A name that nothing answers to; the message offers the nearest known names."""


class PrerequisiteError(KtaeError):
    """Something outside the input is missing: a tokenizer, an extra, a device."""


class MachineError(KtaeError):
    """The machine failed (disk full, killed worker); the previous output is intact, exit status 3."""

    exit_status = 3
