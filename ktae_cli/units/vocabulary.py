"""Codes of units that are their text."""

import numpy as np

from ktae_cli.token_text import visible_token
from ktae_cli.units.text import BROKEN


class TextVocabulary:
    """Units that are their text, numbered as they appear."""

    def __init__(self):
        self.codes: dict[str, int] = {}
        self.texts: dict[int, str] = {}
        self.next = 0

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the codes of texts (n,) int64, new ones for texts not seen."""
        for text in texts:
            if text not in self.codes:
                self.codes[text], self.texts[self.next] = self.next, text
                self.next += 1
        return np.array([self.codes[text] for text in texts], np.int64)

    def text(self, code: int) -> str:
        """Return the unit as it stands in responses; a byte of no character as �."""
        return self.texts[int(code)].replace(chr(BROKEN), "�")

    def name(self, code: int) -> str:
        """Return the unit in visible form."""
        return visible_token(self.text(code))

    def token_id(self, code: int) -> None:
        """Return None: the unit is no token."""

    def is_special(self, code: int) -> bool:
        """Return False: the unit is no token."""
        return False

    def prune(self, keep: np.ndarray) -> None:
        """Forget every unit whose code is not in keep."""
        kept = set(keep.tolist())
        self.texts = {code: text for code, text in self.texts.items() if code in kept}
        self.codes = {text: code for code, text in self.texts.items()}
