"""Layouts of length T - 1: place t holds what belongs to token t + 1, so a response needs a token before it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.exports.base import Batch, ExportRows
from ktae_cli.token_text import visible


def with_first_token(rows: ExportRows, bos: int, width: int = 0) -> Iterator[Batch]:
    """Yield the batches, narrow ones where a width is given, `bos` put before responses that have no prompt.

    Raises `InputError` at once where there is such a response and bos is negative: its first token has no place.
    """
    facts = rows.facts
    bare = rows.rows[(facts.prompt[rows.rows] == 0) & (facts.response[rows.rows] > 0)]
    if len(bare) and bos < 0:
        raise InputError(
            f"{rows.scored.path.name}, row {bare[0]} (rollout {visible(facts.rollout_ids[bare[0]])}): no prompt_ids, "
            "and where values are shifted by one the first token of the response has no place; give the id of the "
            "token that begins a sequence: bos=ID in the parentheses of --to"
        )
    batches = rows.narrow(width) if width else iter(rows)
    return (_put_before(batch, bos) for batch in batches) if bos >= 0 else batches


def _put_before(batch: Batch, bos: int) -> Batch:
    bare = batch.prompt == 0
    prompt = np.where(bare, 1, batch.prompt)
    ids = np.full(int(prompt.sum()), bos, np.int32)
    ids[np.repeat(~bare, prompt)] = batch.prompt_ids
    return replace(batch, prompt=prompt, prompt_ids=ids)


def without_first(flat: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return flat values without the first one of each row that has any."""
    inside = np.ones(len(flat), bool)
    inside[(np.cumsum(lengths) - lengths)[lengths > 0]] = False
    return flat[inside]
