"""A few numbers of every row of the input, for rules that compare the rows of a group; tokens and texts stay out."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.checks._rows import Input, Rows
from ktae_cli.readers.base import decoded, is_list, list_lengths, list_values

FORMAT_MARKS = (r"\boxed{", "####", "<answer>", "</answer>", "</think>", "Answer:")
"""Texts by which answers are found."""

_LEAST_DIGITS, _LEAST_LETTERS = 2, 4


@dataclass(frozen=True)
class Table:
    """One entry a row, (n,) each. Hashes are 0 where the value is null; `input` and `keys` stand for all rows."""

    row: np.ndarray
    """Place of the row in the input."""
    group: np.ndarray
    """Group code by first appearance, -1 where the key is null."""
    reward: np.ndarray
    """NaN unknown."""
    correct: np.ndarray
    """1, 0, -1 unknown."""
    length: np.ndarray
    """Tokens of the policy, characters where the input has no ids."""
    truncated: np.ndarray
    step: np.ndarray
    """-1 unknown."""
    rollout: np.ndarray
    prompt: np.ndarray
    truth: np.ndarray
    response: np.ndarray
    """Hashes of rollout_id, of the prompt, of the ground truth, and of the response's ids, else of its text."""
    truth_in_prompt: np.ndarray
    """1, 0, -1 where the truth is null or too short to tell."""
    marks: np.ndarray
    """(n, len(FORMAT_MARKS)) bool: which of them the response holds."""
    input: Input
    keys: list[str]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: np.ndarray) -> "Table":
        """Return some of the rows, by index or bool."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return Table(**{n: v[rows] if isinstance(v, np.ndarray) else v for n, v in columns.items()})

    @cached_property
    def trajectories(self) -> "Table":
        """Return one row of each trajectory of a group, as `score` counts them: the first part with a reward."""
        alone = np.where(self.rollout == 0, np.arange(len(self)), 0)
        order = np.lexsort((np.arange(len(self)), np.isnan(self.reward), alone, self.rollout, self.group))
        keys = np.stack([self.group, self.rollout, alone])[:, order]
        first = np.concatenate(([True], (np.diff(keys, axis=1) != 0).any(0)))[: len(self)]
        return self.take(np.sort(order[first & (self.group[order] >= 0)]))

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.keys)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the rows of each group (n_groups,)."""
        return np.bincount(self.group, minlength=self.n_groups)

    def count(self, chosen: np.ndarray) -> np.ndarray:
        """Return the chosen rows of each group (n_groups,)."""
        return np.bincount(self.group[chosen], minlength=self.n_groups)

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """Tell for each group whether it has right and wrong rows with a known reward."""
        known = ~np.isnan(self.reward)
        return (self.count(known & (self.correct == 1)) > 0) & (self.count(known & (self.correct == 0)) > 0)

    @cached_property
    def judged(self) -> "Table":
        """Return the rows of mixed groups whose verdict and reward are known."""
        return self.take((self.correct >= 0) & ~np.isnan(self.reward) & self.is_mixed[self.group])

    def first_row(self, code: int) -> int:
        """Return the place of a group's first row in the input."""
        return int(self.row[self.group == code].min())

    def name(self, code: int) -> str:
        """Return a group's name for a message."""
        return repr(self.keys[code][:60])

    def differing(self, values: np.ndarray) -> np.ndarray:
        """Return the codes of the groups that hold two values other than 0."""
        known = values != 0
        pairs = np.unique(np.stack([self.group[known], values[known]]), axis=1)[0]
        return np.flatnonzero(np.bincount(pairs, minlength=self.n_groups) > 1)


class TableBuilder:
    """Gathers the numbers batch by batch."""

    def __init__(self, input: Input):
        self.input, self.parts = input, []
        self.in_prompt: dict[tuple[int, int], int] = {}

    def add(self, rows: Rows) -> None:
        """Add the rows of a batch."""
        n = len(rows.numbers)
        reward, correct, _ = rows.rewards
        has_ids = rows.has("response_ids")
        prompt = "prompt" if rows.has("prompt") else "prompt_ids"
        prompts, truths = _hashes(rows, prompt), _hashes(rows, "ground_truth")
        self.parts.append(
            (
                rows.numbers, rows.group, reward, correct,
                rows.policy_lengths if has_ids else _characters(rows),
                rows.truncated, _steps(rows), _hashes(rows, "rollout_id"), prompts, truths,
                _hashes(rows, "response_ids" if has_ids else "response"),
                self._truth_in_prompt(rows, prompts, truths), _format_marks(rows, n),
            )
        )  # fmt: skip

    def table(self, keys: list[str]) -> Table:
        """Return the table of all rows."""
        return Table(*(np.concatenate(part) for part in zip(*self.parts, strict=True)), self.input, keys)

    def _truth_in_prompt(self, rows: Rows, prompts: np.ndarray, truths: np.ndarray) -> np.ndarray:
        found = np.full(len(rows.numbers), -1, np.int8)
        if not (rows.has("prompt") and rows.has("ground_truth")):
            return found
        text_of: dict[str, list] = {}

        def text(name: str, row: int) -> str:
            if name not in text_of:
                text_of[name] = rows.texts(name)
            return text_of[name][row]

        for row in np.flatnonzero((prompts != 0) & (truths != 0)).tolist():
            key = int(prompts[row]), int(truths[row])
            if key not in self.in_prompt:
                self.in_prompt[key] = _stands_in(text("ground_truth", row).strip(), text("prompt", row))
            found[row] = self.in_prompt[key]
        return found


def _stands_in(truth: str, text: str) -> int:
    """Return 1 where the truth is a word, number or phrase of the text, 0 where not, -1 where it is too short."""
    if len(truth) < (_LEAST_DIGITS if any(c.isdigit() for c in truth) else _LEAST_LETTERS):
        return -1
    at = text.find(truth)
    while at >= 0:
        before, after = text[max(at - 1, 0) : at], text[at + len(truth) : at + len(truth) + 2]
        opens = not (before.isalnum() or before in ("_", "."))
        closes = not (after[:1].isalnum() or after[:1] == "_" or (after[:1] == "." and after[1:].isdigit()))
        if opens and closes:
            return 1
        at = text.find(truth, at + 1)
    return 0


def _characters(rows: Rows) -> np.ndarray:
    if not rows.has("response"):
        return np.zeros(len(rows.numbers), np.int64)
    return np.asarray(pc.utf8_length(rows.text("response")).cast(pa.int64()).fill_null(0))


def _steps(rows: Rows) -> np.ndarray:
    if not rows.has("step"):
        return np.full(len(rows.numbers), -1, np.int64)
    return np.asarray(rows.column("step").cast(pa.int64(), safe=False).fill_null(-1))


def _hashes(rows: Rows, name: str) -> np.ndarray:
    """Return a hash of each row's text or list of ids (n,) int64, 0 for null and without the column."""
    if not rows.has(name):
        return np.zeros(len(rows.numbers), np.int64)
    array = rows.column(name)
    if is_list(array.type):
        lengths, valid = list_lengths(array)
        flat, ends = np.asarray(list_values(array).cast(pa.int64(), safe=False).fill_null(-1)), np.cumsum(lengths)
        cut = zip((ends - lengths).tolist(), ends.tolist(), valid.tolist(), strict=True)
        return np.array([hash(flat[a:b].tobytes()) or 1 if v else 0 for a, b, v in cut], np.int64)
    encoded = array.cast(pa.large_string()).dictionary_encode()
    distinct = [hash(text) or 1 for text in decoded(encoded.dictionary, name, rows.place(0))]
    codes = np.asarray(encoded.indices.fill_null(len(distinct)))
    return np.array([*distinct, 0], np.int64)[codes]


def _format_marks(rows: Rows, n: int) -> np.ndarray:
    if not rows.has("response"):
        return np.zeros((n, len(FORMAT_MARKS)), bool)
    texts = rows.text("response")
    return np.stack([np.asarray(pc.match_substring(texts, mark).fill_null(False)) for mark in FORMAT_MARKS], 1)
