"""Which columns of an input hold the responses, the gold answers and an earlier verdict."""

from dataclasses import dataclass

import pyarrow as pa

from ktae_cli.catalogue import unknown_name
from ktae_cli.errors import InputError, MissingColumnError
from ktae_cli.mapping import fits
from ktae_cli.readers.base import field_at, has_path
from ktae_cli.schema import BY_NAME

GOLD_PATHS = ("ground_truth", *BY_NAME["ground_truth"].aliases, "reward_model.ground_truth")
"""Where a gold answer is looked for, first match wins; the last is verl's data set."""


@dataclass(frozen=True)
class Gradable:
    """Paths in the input: of the text, of the gold answer (None: the verifier does without), of an earlier verdict."""

    response: str
    gold: str | None
    correct: str | None
    reward: str | None
    notices: tuple[str, ...]

    @property
    def earlier(self) -> str | None:
        """Return the column that an earlier verdict is taken from: `correct`, else the reward."""
        return self.correct or self.reward


def find_gradable(schema: pa.Schema, overrides: dict[str, str], gold: str | None, needs_gold: bool) -> Gradable:
    """Find the columns by name, alias, `--map` and `--gold`; raise with what is missing and what was found."""
    known = {name: overrides.get(name) for name in ("response", "ground_truth", "correct", "reward")}
    unknown = [name for name in overrides if name not in BY_NAME]
    if unknown:
        raise unknown_name("canonical column in --map:", unknown, BY_NAME)
    if gold and known["ground_truth"] not in (None, gold):
        raise InputError(f"--gold {gold} and --map ground_truth={known['ground_truth']}: name the gold answers once")
    known["ground_truth"] = gold or known["ground_truth"]
    for name, path in known.items():
        if path is not None and not has_path(schema, path):
            option = "--gold" if name == "ground_truth" and gold else f"--map {name}="
            raise unknown_name(f"column in {option}{' ' if option == '--gold' else ''}{path}:", [path], schema.names)
    found = {name: known[name] or _by_name(schema, name) for name in ("response", "correct", "reward")}
    found["ground_truth"] = known["ground_truth"] or next((p for p in GOLD_PATHS if has_path(schema, p)), None)
    _check(schema, found, needs_gold)
    notices = tuple(f"column {name} <- {found[name]}" for name in ("response", "ground_truth") if found[name] != name)
    return Gradable(
        found["response"], found["ground_truth"], found["correct"], found["reward"],
        tuple(text for text in notices if not text.endswith("<- None")),
    )  # fmt: skip


def _by_name(schema: pa.Schema, name: str) -> str | None:
    column = BY_NAME[name]
    paths = [path for path in (name, *column.aliases) if has_path(schema, path)]
    return next((path for path in paths if fits(field_at(schema, path).type, column.dtype)), None)


def _check(schema: pa.Schema, found: dict[str, str | None], needs_gold: bool) -> None:
    for name, wanted in (("response", "no response text"), ("ground_truth", "no gold answers")):
        if found[name] is None and (name == "response" or needs_gold):
            looked = GOLD_PATHS if name == "ground_truth" else (name, *BY_NAME[name].aliases)
            way = "--gold COLUMN" if name == "ground_truth" else f"--map {name}=COLUMN"
            raise MissingColumnError(
                f"{wanted}: looked for {', '.join(looked)}; found {', '.join(schema.names)}; name them with {way}"
            )
    dtype = field_at(schema, found["response"]).type
    if not fits(dtype, "string") or pa.types.is_integer(dtype):
        raise InputError(
            f"column {found['response']!r} is {dtype}, expected text; name another with --map response=COLUMN"
        )
    for name in ("correct", "reward"):
        if found[name] and not fits(field_at(schema, found[name]).type, BY_NAME[name].dtype):
            raise InputError(
                f"--map {name}={found[name]}: the column is {field_at(schema, found[name]).type}, "
                f"expected {BY_NAME[name].dtype}"
            )
