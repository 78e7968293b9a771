"""For every rule of `ktae check` rollouts that it objects to, and rollouts that come near and that it accepts."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tests.helpers import ROOT

TOKENIZER = ROOT / "sample_data" / "tokenizer.json"
EOS, PAD = 0, 588
PHRASES = ("We add the small ones first", "Step 1: count both boxes", "Maybe it doubles twice", "Half of them is left")
_encode = Tokenizer.from_file(str(TOKENIZER)).encode

Columns = dict[str, list | None]


@dataclass(frozen=True)
class Case:
    """`bad` and `near` change the columns of `clean()`; `says` stands in the message, `at` is the row found."""

    bad: Callable[[Columns], Any]
    near: Callable[[Columns], Any]
    says: str
    at: int | None = None
    groups: int = 3
    set: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Columns that neither of the two has."""


def clean(groups: int = 3, size: int = 4) -> Columns:
    """Rollouts without a fault: in every group the first half right; lengths and texts say nothing of the verdict."""
    rows: Columns = {}

    def put(**values: Any) -> None:
        for name, value in values.items():
            rows.setdefault(name, []).append(value)

    for group in range(groups):
        for at in range(size):
            right, long = at < size // 2, at % 2
            text = f"{PHRASES[(group + at) % 4]}{' and so on' * long}. Answer: {100 + group + (0 if right else at)}"
            ids = [*_encode(text).ids, EOS]
            put(
                group_id=f"g{group}", rollout_id=f"g{group}/{at}", step=1, prompt=f"Problem {group}?",
                ground_truth=str(100 + group), response=text, response_ids=ids, response_mask=[True] * len(ids),
                reward=float(right), correct=right, finish_reason="stop",
                rollout_log_probs=[-0.5] * len(ids), old_log_probs=[-0.5] * len(ids),
                advantages=[float(t % 3) for t in range(len(ids))],
            )  # fmt: skip
    return rows


def table(columns: Columns) -> pa.Table:
    """Return the columns as an Arrow table; None leaves one out."""
    return pa.table({name: values for name, values in columns.items() if values is not None})


def write(path: Path, made: Columns | pa.Table | str) -> Path:
    """Write what a case gives, columns as Parquet and text as JSON lines, and return the path."""
    if isinstance(made, str):
        path = path.with_suffix(".jsonl")
        path.write_text(made)
        return path
    pq.write_table(made if isinstance(made, pa.Table) else table(made), path)
    return path


def put(**columns: Any) -> Callable[[Columns], Columns]:
    """Return a change: a list replaces a column, a dict some of its rows, None takes it out."""

    def change(rows: Columns) -> Columns:
        for name, values in columns.items():
            old = rows.get(name) or [None] * len(rows["group_id"])
            rows[name] = [values.get(i, v) for i, v in enumerate(old)] if isinstance(values, dict) else values
        return rows

    return change


def respond(**rows_of: list[int]) -> Callable[[Columns], Columns]:
    """Return a change of the ids of rows `r0`, `r1`, …; mask, log-probs and advantages become as long."""

    def change(rows: Columns) -> Columns:
        for key, ids in rows_of.items():
            at = int(key[1:])
            rows["response_ids"][at] = ids
            rows["response_mask"][at] = [True] * len(ids)
            for name in ("rollout_log_probs", "old_log_probs", "advantages"):
                rows[name][at] = [-0.5] * len(ids)
            rows["response"][at] = None
        return rows

    return change


def each(name: str, value: Callable[[int, Columns], Any]) -> Callable[[Columns], Columns]:
    """Return a change of every row of a column to value(row, columns)."""

    def change(rows: Columns) -> Columns:
        rows[name] = [value(i, rows) for i in range(len(rows["group_id"]))]
        return rows

    return change


def same(rows: Columns) -> Columns:
    """Change nothing."""
    return rows


def _lines(bad: bool) -> Callable[[Columns], str]:
    """Return eight JSON lines, with the last one torn off or not."""

    def change(rows: Columns) -> str:
        names = ("group_id", "prompt", "response", "response_ids", "reward")
        lines = [json.dumps({name: rows[name][i] for name in names}) for i in range(8)]
        return "\n".join(lines) + ("\n" + lines[0][:20] if bad else "\n")

    return change


def _longer(rows: Columns) -> Columns:
    """Make the wrong responses longer than the right ones, by a word that both have."""
    for i, right in enumerate(rows["correct"]):
        if not right:
            respond(**{f"r{i}": [5] * 40 + [EOS]})(rows)
    return rows


def _mismatch(at_credit: bool) -> Callable[[Columns], Columns]:
    """Part engine and trainer at the token with the largest |advantage| of each rollout, or at another."""

    def change(rows: Columns) -> Columns:
        for i, ids in enumerate(rows["response_ids"]):
            rows["advantages"][i] = [-3.0 if t == 2 else 0.1 * (t % 2) for t in range(len(ids))]
            off = 2 if at_credit else 3
            rows["old_log_probs"][i] = [-0.1 if t == off else -0.5 for t in range(len(ids))]
        return rows

    return change


LOOP = [3, 4, 5] * 40

CASES: dict[str, Case] = {
    "KT001": Case(put(group_id=None, prompt=None), put(group_id=None), "no group column"),
    "KT002": Case(put(reward=None, correct=None), put(reward=None), "no reward and no verdict"),
    "KT003": Case(put(response_ids=None), same, "`score` needs --tokenizer"),
    "KT004": Case(
        each("old_log_probs", lambda i, rows: str(rows["old_log_probs"][i])), same, "column old_log_probs is string"
    ),
    "KT005": Case(put(finish_reason=[None] * 12), put(finish_reason={0: None}), "finish_reason is null in all 12 rows"),
    "KT006": Case(_lines(True), _lines(False), "1 torn last lines left out"),
    "KT007": Case(
        each("correct", lambda i, rows: 2 if i == 5 else 1), put(correct={5: None}), "1 of 12 rows hold a value that "
        "cannot be used, here correct is 2", 5
    ),
    "KT101": Case(put(group_id={7: "alone"}), same, "1 of 4 groups hold one rollout", 7),
    "KT102": Case(put(ground_truth={6: "7"}), put(ground_truth={6: None}), "1 of 3 groups hold several", 4),
    "KT103": Case(
        put(group_id=dict.fromkeys((6, 7, 8), "g1") | {i: f"g{2 + (i - 9) // 4}" for i in range(9, 40)}),
        put(group_id=[f"g{i // 8 * 2 + (i % 8 > 2)}" for i in range(48)]),
        "hold 3 to 5 rollouts, the others 4", 4, groups=12,
    ),
    "KT104": Case(put(prompt={6: "Another?"}), put(prompt={6: None}), "1 of 3 groups hold several prompts", 4),
    "KT105": Case(
        put(prompt=["Same?"] * 12), put(prompt=["Same?"] * 12, step=[1] * 4 + [2] * 4 + [3] * 4),
        "1 of 1 prompts stand in several groups of one step", 0,
    ),
    "KT106": Case(put(rollout_id={9: "g0/0"}), put(rollout_id={1: "g0/0"}, reward={1: 1.0}), "1 of 11 rollout ids", 0),
    "KT107": Case(
        put(rollout_id={2: "g0/0"}), put(rollout_id={1: "g0/0"}), "1 of 12 rows contradict the reward", 2
    ),
    "KT108": Case(
        each("response_ids", lambda i, rows: rows["response_ids"][i // 2 * 2]),
        each("response_ids", lambda i, rows: rows["response_ids"][i // 2 * 2 if i < 4 else i]),
        "6 of 12 rollouts repeat another", 1,
    ),
    "KT201": Case(
        each("reward", lambda i, rows: (1.1, 0.1, 0.0)[i % 3]), each("reward", lambda i, rows: (-1.0, 1.0)[i % 2]),
        "rewards are 0, 0.1, 1.1: 8 of 12 count as right", 1, without=("correct",),
    ),
    "KT202": Case(
        put(reward=dict.fromkeys(range(4), 0.0), correct=dict.fromkeys(range(4), False)), same,
        "1 of 3 groups have one reward throughout (0 all right, 1 all wrong)", 0,
    ),
    "KT203": Case(put(reward={3: float("nan"), 4: None}), same, "2 of 12 rollouts have no known reward", 3),
    "KT204": Case(put(reward={3: 1.5}), put(reward={3: 1.0}), "1 of 6 wrong rollouts have a higher reward", 3),
    "KT205": Case(
        put(correct=[True] * 12), put(correct=[True] * 11 + [False]),
        "no group has both right and wrong rollouts (12 of"
    ),
    "KT301": Case(
        put(old_log_probs={2: [-0.5]}), put(old_log_probs={2: None}), "1 of 12 rollouts have lists of unequal length, "
        "here old_log_probs has 1 values", 2
    ),
    "KT302": Case(respond(r4=[3, PAD, 4, EOS]), respond(r4=[3, 4, PAD, PAD]), "1 of 12 responses hold padding", 4),
    "KT303": Case(
        respond(r1=[3, 5, 590, 590, 590], r2=[4, 590, 590, 590]), respond(r1=[3, 5, 590, 590, 590], r2=[4, 590, 6]),
        "2 of 12 responses end in a run of id 590", 1,
    ),
    "KT304": Case(respond(r2=[3, 4, EOS, EOS]), same, "end in several end-of-text ids: padding, here id 0 2 times", 2),
    "KT305": Case(
        respond(r1=[3, 4], r2=[3, 5], r8=[4, 5]),
        lambda rows: put(finish_reason={8: "length"})(respond(r8=[3, 4], r9=[3, EOS, PAD])(rows)),
        "3 of 12 finished responses lack an end-of-text id at their end, here the last id is 4", 1,
    ),
    "KT306": Case(
        put(finish_reason={1: "length", 2: "length", 5: "length"}), put(finish_reason={1: "length", 2: "length"}),
        "3 of 12 responses were cut at the length limit", 1,
    ),
    "KT307": Case(
        put(response={5: "Maybe it doubled twice and so on. Answer: 101"}),
        lambda rows: put(response={5: rows["response"][5] + "<|endoftext|>\n"})(rows),
        "here from character 15 on 'd twice", 5,
    ),
    "KT308": Case(
        each("response_ids", lambda i, rows: [i for c in "Answer" for i in _encode(c).ids]), same,
        "all 12 responses become other ids", 0,
    ),
    "KT309": Case(respond(r3=LOOP), respond(r3=[*range(3, 120)]), "1 of 12 responses end in a loop, here of 3", 3),
    "KT310": Case(
        each("response_ids", lambda i, rows: [7, 8, 9, 10 + i]),
        each("response_ids", lambda i, rows: [7, 8, 20 + i, 10 + i]),
        "75 % of the 48 positions", set=("KT310.share=0.5",),
    ),
    "KT311": Case(
        lambda rows: put(response_mask={3: [False] * len(rows["response_ids"][3])})(rows),
        lambda rows: put(response_mask={3: [True] + [False] * (len(rows["response_ids"][3]) - 1)})(rows),
        "1 of 12 rollouts have no token of the policy", 3,
    ),
    "KT312": Case(respond(r6=[3, 600]), respond(r6=[3, 591]), "here 600, the last one is 591", 6),
    "KT313": Case(
        put(response={2: "Answer: 3<|im_end|>\n"}), put(response={2: "<|im_end|> is a token"}),
        "1 of 12 responses end in", 2,
    ),
    "KT401": Case(
        put(old_log_probs={8: None}), put(old_log_probs=[None] * 12), "1 of 12 rollouts lack old_log_probs", 8
    ),
    "KT402": Case(
        lambda rows: put(old_log_probs={2: [0.25] * len(rows["response_ids"][2])})(rows),
        lambda rows: put(old_log_probs={2: [0.0005] * len(rows["response_ids"][2])})(rows),
        "1 of 12 rollouts hold old_log_probs above 0, here 0.25", 2,
    ),
    "KT403": Case(
        lambda rows: put(old_log_probs={2: [-1.5] * len(rows["response_ids"][2])})(rows),
        lambda rows: put(old_log_probs={2: [-1.1] * len(rows["response_ids"][2])})(rows),
        "engine to trainer: the ratio of", 2,
    ),
    "KT404": Case(
        lambda rows: put(old_log_probs={2: [-0.1] * len(rows["response_ids"][2])})(rows),
        lambda rows: put(old_log_probs={2: [-0.4] * len(rows["response_ids"][2])})(rows),
        "a few rollouts carry all the weight", groups=6, set=("KT404.least=0.5",),
    ),
    "KT405": Case(
        _mismatch(True), _mismatch(False), "disagree most where |advantage| is largest: |log r| 0.4 there, 0 elsewhere"
    ),
    "KT406": Case(
        lambda rows: put(old_log_probs={4: [0.0] * len(rows["response_ids"][4])})(rows),
        lambda rows: put(old_log_probs={4: [0.0] * (len(rows["response_ids"][4]) - 1) + [-0.1]})(rows),
        "1 of 12 rollouts have old_log_probs 0 at every token", 4,
    ),
    "KT501": Case(_longer, same, "the right response is the shorter one in 100 % of 48 pairs", groups=12),
    "KT502": Case(
        each("finish_reason", lambda i, rows: "stop" if rows["correct"][i] else "length"),
        each("finish_reason", lambda i, rows: "stop" if i % 2 else "length"),
        "100 % of the wrong responses of mixed groups were cut off, 0 % of the right", 2, groups=12,
    ),
    "KT503": Case(
        each("response", lambda i, rows: r"\boxed{3}" if rows["correct"][i] else "3"),
        each("response", lambda i, rows: r"\boxed{3}" if i % 2 else "3"),
        "100 % of the right responses of mixed groups hold '\\\\boxed{', 0 % of the wrong", 2, groups=12,
    ),
    "KT504": Case(
        put(prompt=["Is it 100?"] * 4 + ["Is it 101?"] * 4 + ["Is it 7?"] * 4),
        put(prompt=["Is it 1000?"] * 4 + ["Is it 101.5?"] * 4 + ["Is it 7?"] * 4),
        "2 of 3 groups have the ground truth in the prompt: it can be copied (pass rate 50 %, of the others 50 %)", 0,
    ),
}  # fmt: skip
