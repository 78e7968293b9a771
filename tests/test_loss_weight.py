"""Loss weights: the vectors of the field, and one batch for all of a step however it is cut."""

import numpy as np
import pytest
import torch

from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import estimate
from tests.helpers import batch_of, cut, rewarded, rollout

B = [rewarded([1, 0, 0, 0], [2, 4, 3, 1]), rewarded([1, 1], [1, 2])]
LENGTHS = np.array([2, 4, 3, 1, 1, 2])


def weights(spec, groups=B):
    batch = batch_of(groups, [])
    return estimate(spec, batch).columns["loss_weight"]


def per_rollout(spec, groups=B):
    return [float(part[0]) for group in cut(weights(spec, groups), groups) for part in group]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", np.full(6, 1 / 13)),
        ("seq_mean_token_mean", 1 / (6 * LENGTHS)),
        ("seq_mean_token_sum", np.full(6, 1 / 6)),
        ("dr_grpo", np.full(6, 1 / (6 * 4))),
        ("dr_grpo,aggregation_length=10", np.full(6, 1 / 60)),
    ],
)
def test_weights_of_the_published_vector(aggregation, expected):
    assert per_rollout(f"grpo(aggregation={aggregation})") == pytest.approx(expected)


def test_a_filtered_group_leaves_the_batch():
    # groups aaaa kept, bb dropped: 10 tokens
    assert per_rollout("dapo(aggregation=token_mean)") == pytest.approx([0.1] * 4 + [0, 0])
    assert per_rollout("ktae(aggregation=token_mean,base=dapo)") == pytest.approx([0.1] * 4 + [0, 0])
    assert per_rollout("dapo(aggregation=token_mean,filter=false)") == pytest.approx([1 / 13] * 6)


def test_masked_tokens_and_empty_rollouts_are_outside_the_loss():
    groups = [[rollout([1, 2, 3], 1, mask=[True, False, True]), rollout([], 0), rollout([4], 0, mask=[False])]]
    assert weights("grpo(aggregation=token_mean)", groups).tolist() == [0.5, 0, 0.5, 0]
    assert weights("grpo(aggregation=seq_mean_token_mean)", groups).tolist() == [0.5, 0, 0.5, 0]
    assert weights("grpo(aggregation=seq_mean_token_sum)", groups).tolist() == [1, 0, 1, 0]
    # the longest response counts with its masked tokens: what a trainer pads to
    assert weights("grpo(aggregation=dr_grpo)", groups).tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0])


def test_the_weights_of_a_step_do_not_see_another_step():
    groups = [[rollout([1, 2], 1), rollout([3], 0)], [rollout([1], 1, step=1), rollout([3] * 4, 0, step=1)]]
    assert per_rollout("grpo(aggregation=token_mean)", groups) == pytest.approx([1 / 3, 1 / 3, 0.2, 0.2])


def test_weights_never_touch_the_advantages():
    batch = batch_of(B, [])
    plain = estimate("grpo", batch)
    assert torch.equal(estimate("grpo(aggregation=token_mean)", batch).advantages, plain.advantages)
    assert plain.columns == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("grpo(aggregation=mean)", "aggregation takes none or token_mean or"),
        ("grpo(aggregation_length=5)", "goes with aggregation=dr_grpo"),
        ("grpo(aggregation=dr_grpo,aggregation_length=-5)", "is a positive length"),
        ("ktae(base=grpo(aggregation=token_mean))", "give it to ktae, not to its base"),
    ],
)
def test_an_impossible_aggregation_is_refused(spec, message):
    with pytest.raises(KtaeError, match=message):
        estimate(spec, batch_of(B, []))
