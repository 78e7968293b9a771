"""S-GRPO: the base advantage on the first tokens and on a random part of the others."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._policy_tokens import PolicyTokens, policy_tokens
from ktae_cli.estimators.base import Estimate, estimator, rollout_advantages
from ktae_cli.names import Spec

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_BITS = 53


@estimator(needs=("response_ids", "reward"), level="token", scope="group")
def s_grpo(
    batch: GroupBatch, *, base: Spec = "grpo", alpha: int = 50, p: float = 0.4, cutoff: int = 0, seed: int = 0
) -> Estimate:
    """Keep the base advantage on the first tokens of a response and on a random part of the later ones.

    A_it = m_it base_i; m_it = 1 for the first `alpha` tokens, then 1 with probability `p` up to token `cutoff` (0: to
    the end), 0 behind it. Tokens are counted without masked ones.

    Source: Lee & Tong, arXiv 2504.20834; neither its text nor code was found. Unconfirmed: the form of the mask and
    every default; all that is known is that 30 to 50 % of the tokens are in the loss. So is the loss's denominator: an
    aggregation here counts all tokens, not the kept ones.
    A token's draw depends on the seed, the ids of its whole response and its position alone, by SplitMix64: neither
    the order of the rows nor how the input is cut changes it. Responses of the same ids share one mask, in whichever
    group or step they stand.
    Returns advantages (n_tokens,) float32 in units of the base.
    Degenerate: those of the base.
    """
    if alpha < 0 or cutoff < 0 or not 0 <= p <= 1:
        raise KtaeError(f"alpha and cutoff must not be negative, and p lies in 0..1; found {alpha}, {cutoff} and {p:g}")
    tokens = policy_tokens(batch)
    position = tokens.positions()
    kept = _draws(batch, tokens, position, seed) < p
    if cutoff:
        kept &= position < cutoff
    kept |= position < alpha
    return Estimate(batch.spread(rollout_advantages(base, batch)).mul_(tokens.put(kept, len(batch.token_ids))))


def _draws(batch: GroupBatch, tokens: PolicyTokens, position: Tensor, seed: int) -> Tensor:
    """Draw a number in [0, 1) for each unmasked token (n_unmasked,) float64."""
    places = torch.arange(1, len(batch.token_ids) + 1, device=batch.offsets.device)
    places -= torch.repeat_interleave(batch.offsets[:-1], batch.lengths, output_size=len(places))
    hashes = _mix(places.mul_(_GOLDEN).add_(batch.token_ids)).cumsum(0)  # sums wrap at 64 bits
    running = torch.cat([hashes.new_zeros(1), hashes])[batch.offsets]
    content = _mix(running[1:] - running[:-1] + (seed + 1) * 0x632BE59B)
    mixed = _mix((position + 1).mul_(_GOLDEN).add_(content.index_select(0, tokens.rollout)))
    return _shifted(mixed, 64 - _BITS).to(torch.float64).mul_(2.0**-_BITS)


def _mix(x: Tensor) -> Tensor:
    """Return the finalizer of SplitMix64 of each number (n,) int64, in place."""
    x ^= _shifted(x, 30)
    x *= _FIRST
    x ^= _shifted(x, 27)
    x *= _SECOND
    x ^= _shifted(x, 31)
    return x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right as unsigned numbers."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)
