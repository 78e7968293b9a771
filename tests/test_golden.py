"""KTAE on real rollouts, against values computed apart from this project; skipped where the file is absent."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import estimate
from tests.helpers import SHARED

FILE = SHARED / "data" / "ktae_golden.parquet"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is absent")


@pytest.fixture(scope="module")
def golden():
    """The file's batch, and its columns of expected values, flat."""
    table = pq.read_table(FILE).combine_chunks()
    ids = table["response_ids"].combine_chunks()
    group_ids = table["group_id"].to_numpy()
    _, group_index = np.unique(group_ids, return_inverse=True)
    assert (np.diff(group_index) >= 0).all()
    reward = table["reward"].to_numpy()
    batch = GroupBatch(
        token_ids=torch.from_numpy(ids.flatten().to_numpy().copy()),
        offsets=torch.from_numpy(ids.offsets.to_numpy().astype(np.int64)),
        rewards=torch.from_numpy(reward.astype(np.float64)),
        correct=torch.from_numpy((reward > 0).astype(np.int8)),
        group_index=torch.from_numpy(group_index),
    )
    return batch, {
        name: table[name].combine_chunks().flatten().to_numpy() for name in ("expected_ktae", "released_code_float32")
    }


def test_the_golden_file_is_what_its_description_says(golden):
    batch, columns = golden
    assert batch.group_sizes.tolist() == [16] * 6
    n_correct = torch.bincount(batch.group_index, batch.correct.double())
    assert ((n_correct > 0) & (n_correct < 16)).all()
    assert all(len(values) == len(batch.token_ids) > 10_000 for values in columns.values())


def test_ktae_equals_the_formula_in_exact_arithmetic(golden):
    batch, columns = golden
    found = estimate("ktae", batch).advantages.numpy()
    np.testing.assert_allclose(found, columns["expected_ktae"], rtol=0, atol=1e-5)


def test_ktae_reference_equals_the_released_code(golden):
    # single float32 cells depend on the libm of the build that printed the expected values
    batch, columns = golden
    difference = np.abs(estimate("ktae_reference", batch).advantages.numpy() - columns["released_code_float32"])
    assert (difference <= 1e-4).mean() >= 0.999


def test_the_released_code_differs_from_its_formula(golden):
    batch, columns = golden
    difference = np.abs(estimate("ktae", batch).advantages.numpy() - columns["released_code_float32"])
    assert (difference > 0.01).mean() > 0.11


def test_weights_of_one_group_do_not_depend_on_the_others(golden):
    batch, _ = golden
    first = int(batch.offsets[16])
    alone = GroupBatch(
        token_ids=batch.token_ids[:first], offsets=batch.offsets[:17], rewards=batch.rewards[:16],
        correct=batch.correct[:16], group_index=batch.group_index[:16],
    )  # fmt: skip
    for spec in ("ktae", "ktae(loo=true)", "ktae(tf=bounded)"):
        assert torch.equal(estimate(spec, alone).advantages, estimate(spec, batch).advantages[:first])
