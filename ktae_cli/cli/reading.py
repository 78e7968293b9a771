"""The options of reading, gathered for the function that opens inputs."""

from typing import TYPE_CHECKING

from ktae_cli.cli.console import speaker
from ktae_cli.cli.options import Mismatch

if TYPE_CHECKING:
    from ktae_cli.inputs import ReadInputs


def read_inputs(
    format: str,
    map: dict[str, str],
    on_mismatch: Mismatch = Mismatch.error,
    skip_bad_lines: bool = False,
    keep_duplicates: bool = False,
    unsafe_pickle: bool = False,
    strict: bool = False,
    quiet: bool = False,
) -> "ReadInputs":
    """Return the options of reading; messages go to stderr."""
    from ktae_cli.inputs import ReadInputs
    from ktae_cli.readers.base import ReaderOptions

    reader = ReaderOptions(
        unsafe_pickle, skip_bad_lines, on_mismatch.value, keep_duplicates, map.get("correct"),
        notice=speaker(quiet), warn=speaker(quiet, "warning: "),
    )  # fmt: skip
    return ReadInputs(format, reader, strict)
