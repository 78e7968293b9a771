"""Checked access to the objects of foreign files: a wrong type is an error that names file, line and key."""

from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._values import number, shown, verdict
from ktae_cli.readers.base import Record

_IN_WORDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def place(record: Record) -> str:
    """Name a record for a message: file and line, or the file alone for a document."""
    return f"{record.file}, line {record.line}" if record.line else record.file


def kind_of(value: Any) -> str:
    """Return the JSON type of a value in words."""
    return _IN_WORDS.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def as_object(value: Any, what: str, record: Record) -> dict[str, Any]:
    """Return a value that has to be an object; null is an empty one."""
    return _expect(value, dict, what, record)


def as_list(value: Any, what: str, record: Record) -> list[Any]:
    """Return a value that has to be a list; null is an empty one."""
    return _expect(value, list, what, record)


def _expect(value: Any, kind: type, what: str, record: Record) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InputError(f"{place(record)}: {what} is {shown(value)}, expected {_IN_WORDS[kind]}")
    return value


def as_number(value: Any, what: str, record: Record) -> float | None:
    """Return a number, a boolean or the text of one as a float; null is None, NaN stays NaN."""
    try:
        return None if value is None else number(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{place(record)}: {what} is {shown(value)}, expected a number") from None


def as_verdict(value: Any, what: str, record: Record) -> bool | None:
    """Return true or false, also of 0, 1 and their text; null, NaN and empty text are None, unknown."""
    try:
        return None if value is None else verdict(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{place(record)}: {what} is {shown(value)}, expected true, false, 0 or 1") from None


def as_label(value: Any, what: str, record: Record) -> str:
    """Return the text or whole number that names a group, a task or a sample."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{place(record)}: {what} is {shown(value)}, expected the text or whole number of a name")
    return str(value)


def with_rest(row: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Return the canonical columns of a row, then what the dump has beside them; a name taken gets `input_` before."""
    return row | {f"input_{name}" if name in row else name: value for name, value in rest.items()}
