"""Export to preference pairs: a right and a wrong response to the same prompt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export, split
from ktae_cli.readers.scored import RIGHT, WRONG, texts_of

_CHUNK_TOKENS = 1 << 22


@export(
    suffix=".jsonl",
    alignment="pairs of whole responses; no value for a token",
    sidecar=True,
    stdout=True,
    column="key_weight",
    reads=("prompt", "response"),
    refuses=("normalize", "clip"),
)
def dpo(rows: ExportRows, target: Path | BinaryIO, *, pairs_per_group: int = 1) -> int:
    """Pairs of a right and a wrong response to one prompt, the most contrasting of each group first.

    Right rollouts are ranked by their mean key weight (or the column of `--advantages`) over the policy's tokens,
    highest first, wrong ones lowest first; the k-th of one makes a pair with the k-th of the other, so that no rollout
    is used twice. contrast is the difference of the two means. Texts (prompt, chosen, rejected) and ids (prompt_ids,
    chosen_ids, rejected_ids) are written where the file has them. rollout_id is the chosen one's, rejected_rollout_id
    the other's. Groups without both verdicts give no pair. pairs_per_group: at most so many; 0 is all.
    """
    return write_lines(_lines(rows, pairs_per_group), target)


def _lines(rows: ExportRows, limit: int) -> Iterator[dict[str, Any]]:
    chosen, rejected = _pairs(rows, limit)
    lengths = rows.facts.response + rows.facts.prompt
    begins = np.cumsum(lengths[chosen] + lengths[rejected]) // _CHUNK_TOKENS
    for part in np.split(np.arange(len(chosen)), np.flatnonzero(np.diff(begins)) + 1):
        own = np.unique(np.concatenate((chosen[part], rejected[part])))
        found = _responses(rows, own)
        for good, bad in zip(chosen[part].tolist(), rejected[part].tolist(), strict=True):
            yield _pair(found[good], found[bad], rows.facts.mean[good] - rows.facts.mean[bad])


def _pairs(rows: ExportRows, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of both sides, group by group."""
    facts = rows.facts
    order = rows.rows[np.argsort(facts.group[rows.rows], kind="stable")]
    order = order[facts.policy_tokens[order] > 0]
    sides: tuple[list[int], list[int]] = ([], [])
    for own in np.split(order, np.flatnonzero(np.diff(facts.group[order])) + 1):
        right, wrong = (own[facts.verdict[own] == verdict] for verdict in (RIGHT, WRONG))
        right = right[np.argsort(-facts.mean[right], kind="stable")]
        wrong = wrong[np.argsort(facts.mean[wrong], kind="stable")]
        count = min(len(right), len(wrong), limit or len(own))
        sides[0].extend(right[:count].tolist())
        sides[1].extend(wrong[:count].tolist())
    return np.asarray(sides[0], np.int64), np.asarray(sides[1], np.int64)


def _responses(rows: ExportRows, numbers: np.ndarray) -> dict[int, dict[str, Any]]:
    found = {}
    for batch in rows.take(numbers):
        texts = {name: texts_of(array) for name, array in batch.columns.items()}
        prompts, responses = split(batch.prompt_ids, batch.prompt), split(batch.response_ids, batch.response)
        for at, number in enumerate(batch.numbers.tolist()):
            found[number] = {name: values[at] for name, values in texts.items()}
            found[number] |= {"rollout_id": batch.rollout_ids[at], "group_id": batch.group_ids[at]}
            found[number] |= {"response_ids": responses[at]}
            found[number] |= {"prompt_ids": prompts[at]} if batch.has_prompt[at] else {}
    return found


def _pair(chosen: dict, rejected: dict, contrast: float) -> dict[str, Any]:
    line = {"rollout_id": chosen["rollout_id"], "rejected_rollout_id": rejected["rollout_id"]}
    line |= {"group_id": chosen["group_id"], "contrast": contrast}
    line |= {"prompt": chosen["prompt"]} if "prompt" in chosen else {}
    if "response" in chosen:
        line |= {"chosen": chosen["response"], "rejected": rejected["response"]}
    line |= {"prompt_ids": chosen["prompt_ids"]} if "prompt_ids" in chosen else {}
    return line | {"chosen_ids": chosen["response_ids"], "rejected_ids": rejected["response_ids"]}
