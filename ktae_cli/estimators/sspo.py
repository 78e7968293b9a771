"""SSPO: one importance ratio for each span of a response, such as a sentence."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Ids
from ktae_cli.errors import KtaeError, PrerequisiteError
from ktae_cli.estimators._ratios import (
    Terms,
    check_bounds,
    is_open,
    mean_ratios,
    ratio_terms,
    repeat,
    token_estimate,
)
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec
from ktae_cli.spans import (
    BLANK_AT,
    CLAUSE,
    CLOSES_AT,
    LINE,
    PARAGRAPH,
    SENTENCE,
    STARTS_AT,
    STARTS_BLANK,
    STARTS_LINE,
)

LEVELS = {"paragraph": PARAGRAPH, "line": LINE, "sentence": SENTENCE, "clause": CLAUSE}


@estimator(
    needs=("old_log_probs", "log_probs"),
    level="token",
    scope="group",
    columns=("ratio", "mask", "grad_weight"),
    needs_when={
        "delimiters=sentence": ("response_tokens",),
        "delimiters=clause": ("response_tokens",),
        "delimiters=line": ("response_tokens",),
        "delimiters=paragraph": ("response_tokens",),
        "bounds=entropy": ("old_entropy",),
    },
)
def sspo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    delimiters: Literal["sentence", "clause", "line", "paragraph", "token", "none"] = "sentence",
    ids: Ids = "none",
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    bounds: Literal["fixed", "entropy"] = "fixed",
    widest: float = 2.0,
) -> Estimate:
    """Clip the geometric mean of the token ratios of each span of a response, and weigh the span's tokens with it.

    s_ij = exp(mean of log pi - log pi_old over the unmasked tokens of span j of rollout i); the term of each of these
    tokens is min(s_ij A_i, clip(s_ij, 1 - g_j eps_low, 1 + g_j eps_high) A_i).
    A span ends with the token that ends a `sentence`, `clause` (, ; : too), `line` or `paragraph` in the decoded text,
    or with each `token`; a coarser end ends finer spans too, `ids` end one as well, and white space after an end
    belongs to the span that ends. `none`: only `ids` end spans. Masked tokens end spans and count in none.
    g_j = 1; with `bounds=entropy` the mean old entropy of the span over that of the rollout, within
    [1 / widest, widest]: uncertain spans may move further.
    grad_weight = s_ij A_i where open, else 0: the derivative of the sum of the span's terms.

    Source: arXiv 2511.04256; no code was published. Confirmed by the abstract: a ratio for each sub-sentence, between
    GRPO's and GSPO's, and clip bounds that its entropy widens or narrows. Our reading: where a sub-sentence ends, the
    geometric mean inside it, the law of g_j, the entropy of the policy that sampled, and the bounds (DAPO's).
    Returns advantages (the base), ratio (s_ij, unclipped), mask and grad_weight, (n_tokens,).
    Degenerate: equal policies give ratio 1 and grad_weight = base. One span a rollout (`delimiters=none`) is `gspo` at
    equal bounds, one token a span the token ratio of PPO. g_j = 1 where the rollout's mean entropy is 0; A_i = 0
    gives 0; 0 off the mask. log s_ij is held below 10, as verl holds GSPO's, and passes no gradient beyond.
    """
    check_bounds("sspo", eps_low, eps_high)
    if widest < 1:
        raise KtaeError(f"sspo: widest, the largest factor of the bounds, is at least 1; found {widest:g}")
    terms = ratio_terms(base, batch)
    starts = span_starts(batch, delimiters, ids)
    span = torch.cumsum(starts, 0) - 1
    lengths = torch.bincount(span)
    ratio, within = mean_ratios(terms.means(lengths))
    advantage = terms.advantage[starts]
    width = _widths(batch, terms, starts, lengths, widest) if bounds == "entropy" else 1.0
    flows = within & is_open(ratio, advantage, 1 - eps_low * width, 1 + eps_high * width)
    ratio, flows, weight = (v.index_select(0, span) for v in (ratio, flows, advantage * ratio))
    return token_estimate(batch, terms, ratio, flows, weight)


def span_starts(batch: GroupBatch, delimiters: str, ids: Ids) -> Tensor:
    """Tell which tokens begin a span (n_tokens,) bool: the first of a rollout, and the first after an end."""
    first = torch.zeros(len(batch.token_ids), dtype=torch.bool, device=batch.offsets.device)
    first[batch.offsets[:-1][batch.lengths > 0]] = True
    if delimiters == "token":
        return torch.ones_like(first)
    ends, word = torch.zeros_like(first), torch.ones_like(first)
    if ids != "none":
        ends = torch.isin(batch.token_ids, torch.tensor(_listed(batch, ids), device=first.device))
    if delimiters != "none":
        marks = batch.text_marks
        ends |= _ends(marks, LEVELS[delimiters])
        word = (marks >> BLANK_AT == 0) | first
    number = torch.cumsum(word, 0)
    closed = torch.zeros(len(number) + 1, dtype=torch.bool, device=first.device)
    closed[number[ends]] = True  # the end of a word, or of white space behind it
    return first | (word & closed[(number - 1).clamp(min=0)])


def _ends(marks: Tensor, level: int) -> Tensor:
    """Tell which tokens end a span of a level (n_tokens,): by what they hold, or close in before the next token."""
    inside, closes = marks & 7, marks >> CLOSES_AT & 3
    following = torch.cat([marks[1:] >> STARTS_AT & 3, marks[:1] * 0])
    mark = (closes >= level) & (following >= STARTS_BLANK)
    empty_line = (closes == LINE) & (following == STARTS_LINE)
    return (inside >= level) | mark | empty_line


def _listed(batch: GroupBatch, ids: Ids) -> tuple[int, ...]:
    if ids == "eos":
        if not batch.eos_ids:
            raise PrerequisiteError("ids=eos needs the end-of-text id: give --eos-id ID, or a tokenizer that has one")
        return batch.eos_ids
    return ids if isinstance(ids, tuple) else (ids,)


def _widths(batch: GroupBatch, terms: Terms, starts: Tensor, lengths: Tensor, widest: float) -> Tensor:
    """Return the factor of each span's clip bounds (n_spans,)."""
    whole = repeat(terms.means(batch.lengths, batch.old_entropy), batch.lengths)[starts]
    own = terms.means(lengths, batch.old_entropy)
    return torch.where(whole > 0, own / whole, 1.0).clamp(1 / widest, widest)
