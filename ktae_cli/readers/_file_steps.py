"""The training step in the name of a file or of a folder above it."""

import re
from pathlib import PurePath


def step_in(file: str, pattern: str) -> int | None:
    """Return the number that a pattern's one group finds in the path, the part nearest to the file's name first.

    pattern is matched against each part of the path as a whole; None where none matches.
    """
    for part in reversed(PurePath(file).parts):
        found = re.fullmatch(pattern, part)
        if found:
            return int(found[1])
    return None
