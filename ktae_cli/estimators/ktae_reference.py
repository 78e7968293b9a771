"""KTAE as the released float32 code computes it."""

from dataclasses import replace
from typing import Literal

import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Ids, resolve_spec
from ktae_cli.estimators._ktae_family import Settings, ktae_estimate
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.estimators.dapo import shaped_rewards
from ktae_cli.names import Spec
from ktae_cli.stats.released_float32 import float32_cells


@estimator(needs=("response_ids", "reward"), level="token", scope="group", columns=("key_weight",))
def ktae_reference(
    batch: GroupBatch,
    *,
    base: Spec = "grpo(singleton=raw)",
    alpha: float = 1.0,
    beta: float = 1.0,
    tf: Literal["code", "off"] = "code",
    top: float = 1.0,
    threshold: float = 0.0,
    zero_ids: Ids = 151643,
) -> Estimate:
    """Add to a rollout's advantage the key weight that the released code gives each token, its faults included.

    The formula of `ktae` with every intermediate value in float32: p-values that are 1 come out as 1.0000001, so that
    F jumps from 0 to exp(-2) for tokens without evidence, and tied tables are lost from the two-sided sum.
    Right is a reward above `threshold`, the reward that the base shapes (`dapo(max_length=…)`), never `correct`.
    zero_ids defaults to 151643, the end-of-text id of Qwen2, which the released code names literally.

    Source: github.com/xiaolizh1/KTAE, commit 45f3e77, verl/workers/actor/compute_key_tokens.py (arXiv 2505.16826).
    The tables are always built on the CPU; another libm may round single cells differently.
    Returns advantages and key_weight (n_tokens,) float32, |K| <= top.
    Degenerate: as `ktae`, but a group of one keeps its raw reward. Not kept: the index errors of the released code
    for vocabularies below 151643 and for groups of one. Label swap does not negate K exactly.
    """
    spec = resolve_spec(base)
    shaped = shaped_rewards(batch, **dict(spec.arguments)) if spec.name == "dapo" else batch.rewards
    verdicts = (shaped > threshold).to(torch.int8)
    batch = replace(batch, correct=verdicts, memo={"verdicts": verdicts})
    settings = Settings(
        base, "two_sided", alpha, beta, 1.0, tf, top, 2.0, 0.5, 1e-5, zero_ids, False, 1.0, 1.0,
        cells=float32_cells, dtype=torch.float32,
    )  # fmt: skip
    return ktae_estimate(batch, settings)
