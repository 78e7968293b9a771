"""Which positions count at all: those before the outcome is settled, or before a tenth of the response."""

from dataclasses import replace

import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import MissingColumnError


def written_before(batch: GroupBatch, before: str) -> GroupBatch:
    """Return the batch with a mask of the positions that count, found once for all estimators of the call.

    before: `none`, all unmasked tokens; `outcome`, those before the response settles its outcome; D from 1 to 9, the
    first D tenths of the unmasked tokens of each rollout, rounded up.
    """
    if before == "none":
        return batch
    key = ("written before", before)
    if key not in batch.memo:
        kept = _before_outcome(batch) if before == "outcome" else _first_tenths(batch, int(before))
        kept = kept if batch.response_mask is None else kept & batch.response_mask
        batch.memo[key] = replace(batch, response_mask=kept, memo={})
    return batch.memo[key]


def _before_outcome(batch: GroupBatch) -> torch.Tensor:
    if batch.before_outcome is None:
        raise MissingColumnError("before=outcome needs the text of the responses: give --tokenizer PATH")
    return batch.before_outcome


def _first_tenths(batch: GroupBatch, tenths: int) -> torch.Tensor:
    mask = torch.ones_like(batch.token_ids, dtype=torch.bool) if batch.response_mask is None else batch.response_mask
    running = torch.cumsum(mask, 0)
    seen = torch.cat([running.new_zeros(1), running])[batch.offsets[:-1]]
    n_tokens = len(batch.token_ids)
    seen, total = (
        torch.repeat_interleave(column, batch.lengths, output_size=n_tokens) for column in (seen, batch.counted_lengths)
    )
    return 10 * (running - 1 - seen) < tenths * total
