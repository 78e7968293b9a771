"""The spec grammar: `name` or `name(key=value, …)`, the same text on the command line, in metadata and as repr.

A value is a number, `true` or `false`, a word, a `+`-joined list of these, or another spec. Blanks are ignored.
"""

import re
from dataclasses import dataclass
from typing import Any

from ktae_cli.errors import KtaeError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LONGEST_NUMBER = 400


@dataclass(frozen=True, repr=False, eq=False)
class Spec:
    """A name with its explicit arguments, sorted by key; the canonical text is its str, its repr and its equality."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}({','.join(f'{key}={print_value(value)}' for key, value in self.arguments)})"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def slug(self) -> str:
        """Column suffix: name, then `__key_value` for each argument with `-` as m, `.` as p, `+` as _."""
        parts = [self.name]
        for key, value in self.arguments:
            text = value.slug if isinstance(value, Spec) else print_value(value)
            parts.append(f"{key}_{text.replace('-', 'm').replace('.', 'p').replace('+', '_')}")
        return "__".join(parts)


def print_value(value: Any) -> str:
    """Return the canonical text of a parameter value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(print_value(item) for item in value)
    return repr(value).replace("e+", "e") if isinstance(value, float) else str(value)


def parse_spec(text: str) -> Spec:
    """Parse a spec; raise `KtaeError` that points at what cannot be read or at a repeated key."""
    parser = _Parser(text)
    spec = parser.spec()
    if parser.rest():
        parser.fail("expected the end; give several estimators with -e each")
    return spec


class _Parser:
    def __init__(self, text: str):
        self.text, self.compact, self.at = text, re.sub(r"\s+", "", text), 0

    def rest(self) -> str:
        return self.compact[self.at :]

    def fail(self, expected: str):
        found = repr(self.rest()[:12]) if self.rest() else "the end"
        raise KtaeError(f"cannot read the spec {self.text!r}: {expected}, found {found}")

    def take(self, pattern: re.Pattern) -> str | None:
        match = pattern.match(self.compact, self.at)
        if match:
            self.at = match.end()
        return match and match.group()

    def literal(self, character: str) -> bool:
        if self.compact.startswith(character, self.at):
            self.at += 1
            return True
        return False

    def spec(self) -> Spec:
        name = self.take(_WORD)
        if name is None:
            self.fail("expected a name")
        return Spec(name, self.arguments() if self.literal("(") else ())

    def arguments(self) -> tuple[tuple[str, Any], ...]:
        found: dict[str, Any] = {}
        while not self.literal(")"):
            key = self.take(_WORD)
            if key is None:
                self.fail("expected key=value or )")
            if not self.literal("="):
                self.fail(f"{key} needs a value, as in {key}=true")
            if key in found:
                raise KtaeError(f"{key!r} stands twice in the spec {self.text!r}; give it once")
            found[key] = self.value()
            if not self.literal(",") and not self.rest().startswith(")"):
                self.fail("expected , or )")
        return tuple(sorted(found.items()))

    def value(self) -> Any:
        items = [self.item()]
        while self.literal("+"):
            items.append(self.item())
        return items[0] if len(items) == 1 else tuple(items)

    def item(self) -> Any:
        number = self.take(_NUMBER)
        if number is not None:
            if len(number) > _LONGEST_NUMBER:
                raise KtaeError(f"the number {number[:12]}… in the spec {self.text[:40]!r}… is too long")
            return int(number) if re.fullmatch(r"[+-]?\d+", number) else float(number)
        word = self.take(_WORD)
        if word is None:
            self.fail("expected a value")
        if word in ("true", "false", "True", "False"):
            return word.lower() == "true"
        return Spec(word, self.arguments()) if self.literal("(") else word
