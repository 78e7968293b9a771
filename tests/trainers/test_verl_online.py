"""KTAE in verl's registry: the values of `ktae score`, and those that its real trainers then hold."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ktae_cli.errors import InputError, KtaeError, PrerequisiteError
from tests.helpers import SHARED, draw_groups
from tests.rollout_files import ktae

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl")
protocol = pytest.importorskip("verl.protocol", reason="needs verl")

from ktae_cli.integrations.verl import record, register  # noqa: E402

GOLDEN = SHARED / "data" / "ktae_golden.parquet"
SPECS = {"ktae": "ktae", "ktae_bounded": "ktae(tf=bounded)", "ktae_loo": "ktae(loo=true)"}


@pytest.fixture(autouse=True, scope="module")
def registered():
    register()
    register("ktae_reference")


class Rows:
    """Rollouts as rows in a random order, and as verl's padded tensors; padding repeats an id that responses hold."""

    def __init__(self, seed: int):
        rows = [(f"u-{g}", row) for g, group in enumerate(draw_groups(seed)) for row in group]
        random = np.random.default_rng(seed)
        self.rows = [rows[i] for i in random.permutation(len(rows))]
        self.index = np.array([group for group, _ in self.rows], dtype=object)
        self.lengths = torch.tensor([len(row.ids) for _, row in self.rows])
        self.inside = torch.arange(int(self.lengths.max()) + 2) < self.lengths[:, None]
        self.responses = self.padded([row.ids for _, row in self.rows], 1)
        self.mask = self.padded([row.mask for _, row in self.rows], 0)
        self.scores = torch.zeros(self.inside.shape)
        for i, (_, row) in enumerate(self.rows):
            self.scores[i, max(len(row.ids) - 1, 0)] = row.reward
        self.correct = [None if row.correct < 0 else row.correct == 1 for _, row in self.rows]

    def padded(self, lists, fill) -> torch.Tensor:
        out = torch.full(self.inside.shape, fill)
        for i, values in enumerate(lists):
            out[i, : len(values)] = torch.tensor([int(value) for value in values])
        return out

    def write(self, path):
        table = {
            "group_id": self.index.tolist(),
            "rollout_id": [f"r{i}" for i in range(len(self.rows))],
            "response_ids": pa.array([row.ids for _, row in self.rows], pa.list_(pa.int32())),
            "response_mask": [list(row.mask) for _, row in self.rows],
            "reward": [float(np.float32(row.reward)) for _, row in self.rows],
            "correct": pa.array(self.correct, pa.bool_()),
        }
        pq.write_table(pa.table(table), path)
        return path

    def arguments(self) -> dict:
        return {"token_level_rewards": self.scores, "response_mask": self.mask, "index": self.index}


def scored(path, spec, tmp_path):
    assert ktae("score", path, "-o", tmp_path / "out.parquet", "--force", "-e", spec, "--no-tokens-out") == 0
    return pq.read_table(tmp_path / "out.parquet")["advantages"].to_pylist()


def assert_rows(found, expected, rows):
    assert found.dtype == torch.float32
    assert (found[~rows.inside] == 0).all()
    flat = [value for row in expected for value in row]
    assert np.count_nonzero(flat) > 20
    assert found[rows.inside].numpy() == pytest.approx(np.array(flat), abs=1e-6)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_registered_estimator_equals_score_on_the_same_rollouts(name, seed, tmp_path):
    rows = Rows(seed)
    expected = scored(rows.write(tmp_path / "rows.parquet"), SPECS[name], tmp_path)
    function = core_algos.get_adv_estimator_fn(name)
    # A direct call knows no padding mask: a response ends at its last unmasked token.
    found, returns = function(**rows.arguments(), config=None, responses=rows.responses, correct=rows.correct)
    assert_rows(found, expected, rows)
    assert torch.equal(found, returns)
    assert found.data_ptr() != returns.data_ptr()


def test_a_gate_from_a_table_lets_only_its_ids_shift(tmp_path):
    rows = Rows(3)
    ids = sorted({i for _, row in rows.rows for i in row.ids})
    passing = ids[: len(ids) // 2]
    table = {
        "token_id": pa.array(ids, pa.int32()),
        "q_value": [0.5] * len(ids),
        "q_given_length": [0.01 if i in passing else 0.5 for i in ids],
        "odds_ratio": [2.0] * len(ids),
        "ci_low": [1.0] * len(ids),
        "ci_high": [4.0] * len(ids),
        "heterogeneity": [0.0] * len(ids),
    }
    pq.write_table(pa.table(table), tmp_path / "tokens.parquet")
    register("ktae(gate=0.05)", name="gated", evidence=tmp_path / "tokens.parquet")
    call = {"responses": rows.responses, "correct": rows.correct, **rows.arguments()}
    gated, _ = core_algos.get_adv_estimator_fn("gated")(**call)
    free, _ = core_algos.get_adv_estimator_fn("ktae")(**call)
    base = scored(rows.write(tmp_path / "in.parquet"), "grpo", tmp_path)
    base = torch.tensor([value for row in base for value in row])
    shift, whole = gated[rows.inside] - base, free[rows.inside] - base
    passes = torch.isin(rows.responses[rows.inside], torch.tensor(passing))
    # an id that passes keeps the group's own weight where that is positive, as the table's odds ratio is
    torch.testing.assert_close(shift, torch.where(passes & (whole > 0), whole, 0.0), atol=1e-6, rtol=0)
    assert int((shift != 0).sum()) > 5
    with pytest.raises(KtaeError, match="takes no evidence"):
        register("ktae", name="no_gate", evidence=tmp_path / "tokens.parquet")


def test_values_one_token_later_are_not_those_of_score(tmp_path):
    rows = Rows(0)
    expected = scored(rows.write(tmp_path / "rows.parquet"), "ktae", tmp_path)
    later = torch.roll(rows.responses, 1, 1)
    found, _ = core_algos.get_adv_estimator_fn("ktae")(**rows.arguments(), responses=later, correct=rows.correct)
    with pytest.raises(AssertionError):
        assert_rows(found, expected, rows)


def test_without_verdicts_right_is_a_score_above_the_threshold():
    rows = Rows(1)
    positive = [row.reward > 0.5 for _, row in rows.rows]
    register("ktae", name="ktae_above_half", threshold=0.5)
    found, _ = core_algos.get_adv_estimator_fn("ktae_above_half")(**rows.arguments(), responses=rows.responses)
    named, _ = core_algos.get_adv_estimator_fn("ktae")(**rows.arguments(), responses=rows.responses, correct=positive)
    plain, _ = core_algos.get_adv_estimator_fn("ktae")(**rows.arguments(), responses=rows.responses)
    assert torch.equal(found, named)
    assert not torch.equal(found, plain)


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is absent")
def test_ktae_and_ktae_reference_equal_the_printed_values_of_the_golden_file():
    table = pq.read_table(GOLDEN)
    ids = table["response_ids"].to_pylist()
    lengths = torch.tensor([len(row) for row in ids])
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    responses = torch.zeros(inside.shape, dtype=torch.int64)
    responses[inside] = torch.tensor([i for row in ids for i in row])
    scores = torch.zeros(inside.shape)
    scores[torch.arange(len(ids)), lengths - 1] = torch.tensor(table["reward"].to_pylist()).float()
    arguments = {"token_level_rewards": scores, "response_mask": inside.long(), "index": np.array(table["group_id"])}

    def values(name):
        return core_algos.get_adv_estimator_fn(name)(**arguments, responses=responses)[0][inside].numpy()

    expected = {name: np.concatenate(table[name].to_pylist()) for name in ("expected_ktae", "released_code_float32")}
    np.testing.assert_allclose(values("ktae"), expected["expected_ktae"], rtol=0, atol=1e-5)
    # single float32 cells depend on the libm of the build that printed the values
    difference = np.abs(values("ktae_reference") - expected["released_code_float32"])
    assert (difference <= 1e-4).mean() >= 0.999


# --- the real trainers hand their batch over --------------------------------------------------------------------------


def data_proto(rows):
    """Return the batch of the v0 trainer before `compute_advantage`, prompts of three tokens, `acc` by rollout."""
    n = len(rows.rows)
    objects = {"uid": rows.index, "acc": np.array([float("nan") if c is None else c for c in rows.correct], object)}
    return protocol.DataProto.from_dict(
        tensors={
            "prompts": torch.ones(n, 3, dtype=torch.int64),
            "responses": rows.responses,
            "attention_mask": torch.cat([torch.ones(n, 3, dtype=torch.bool), rows.inside], 1).long(),
            "response_mask": rows.mask,
            "token_level_scores": rows.scores,
            "token_level_rewards": rows.scores - 0.25 * rows.mask,  # less a KL penalty: no verdict changes
        },
        non_tensors=objects,
    )


@pytest.fixture
def v0():
    found = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="needs what verl's trainer imports")
    register()
    return found


@pytest.mark.parametrize("name", SPECS)
def test_compute_advantage_of_the_v0_trainer_finds_tokens_and_verdicts(v0, name):
    rows = Rows(2)
    data = v0.compute_advantage(data_proto(rows), adv_estimator=name)
    expected, _ = core_algos.get_adv_estimator_fn(name)(
        data.batch["token_level_rewards"], rows.mask, rows.index, responses=rows.responses, correct=rows.correct
    )
    assert torch.equal(data.batch["advantages"], expected)
    assert torch.equal(data.batch["returns"], expected)
    assert expected.count_nonzero() > 20


def test_verdicts_of_the_v0_trainer_come_from_the_scores_before_a_kl_penalty(v0):
    rows = Rows(2)
    data = data_proto(rows)
    data.batch["token_level_rewards"] = rows.scores - 9.0 * rows.mask
    del data.non_tensor_batch["acc"]
    found = v0.compute_advantage(data, adv_estimator="ktae").batch["advantages"]
    right = [row.reward > 0 for _, row in rows.rows]
    expected, _ = core_algos.get_adv_estimator_fn("ktae")(
        data.batch["token_level_rewards"], rows.mask, rows.index, responses=rows.responses, correct=right
    )
    assert torch.equal(found, expected)


def test_other_estimators_of_the_v0_trainer_are_untouched(v0):
    rows = Rows(2)
    expected, _ = core_algos.compute_rloo_outcome_advantage(rows.scores - 0.25 * rows.mask, rows.mask, rows.index)
    assert torch.equal(v0.compute_advantage(data_proto(rows), adv_estimator="rloo").batch["advantages"], expected)


def test_columns_that_a_spec_needs_are_those_of_the_batch(v0):
    register("optimal_token_baseline(zero_tail=false)", name="our_baseline")
    rows = Rows(3)
    data = data_proto(rows)
    random = torch.Generator().manual_seed(0)
    data.batch["old_log_probs"] = -torch.rand(rows.inside.shape, generator=random)
    data.batch["sum_pi_squared"] = torch.rand(rows.inside.shape, generator=random)
    columns = {name: data.batch[name] for name in ("old_log_probs", "sum_pi_squared")}
    found = v0.compute_advantage(data, adv_estimator="our_baseline").batch["advantages"]
    assert found.count_nonzero() > 20
    expected, _ = core_algos.get_adv_estimator_fn("our_baseline")(
        data.batch["token_level_rewards"], rows.mask, rows.index, responses=rows.responses, **columns
    )
    assert torch.equal(found, expected)


def test_compute_advantage_of_the_v1_trainer_equals_score_of_what_it_recorded(transfer_queue, tmp_path):
    v1 = pytest.importorskip("verl.trainer.ppo.v1", reason="needs what verl's trainer imports")
    from omegaconf import OmegaConf
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    register()
    random = np.random.default_rng(0)
    keys, fields, tags = [], [], []
    # Two prompts of four sessions; a session of two outputs is one rollout with one verdict.
    for uid, session, index in [(u, s, i) for u in "ab" for s in range(4) for i in range(1 + (s == 2))]:
        n = int(random.integers(2, 6))
        mask = torch.tensor(random.random(n) < 0.8)
        right = session % 2 == 0
        keys.append(f"{uid}_{session}_{index}")
        fields.append({
            "prompts": torch.tensor([1, 2]), "responses": torch.tensor(random.integers(3, 9, n)), "uid": uid,
            "response_mask": mask.long(), "rm_scores": torch.tensor([0.0] * (n - 1) + [0.5 + right]),
            "rollout_log_probs": -torch.rand(n), "old_log_probs": -torch.rand(n),
            "extra_fields": {"reward_extra_info": {"acc": right}},
        })  # fmt: skip
        tags.append({"prompt_len": 2, "response_len": n, "seq_len": n + 2})
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    batch = transfer_queue.KVBatchMeta(partition_id="train", keys=keys, tags=tags)
    trainer = v1.PPOTrainerSync.__new__(v1.PPOTrainerSync)
    trainer.config = OmegaConf.create({
        "algorithm": {"adv_estimator": "ktae", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
        "actor_rollout_ref": {"rollout": {"n": 4}},
    })  # fmt: skip
    trainer._compute_advantage(batch, {})
    data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages"])
    found = [row.tolist() for row in data["advantages"].unbind()]
    expected = scored(record(batch, tmp_path / "run", 1), "ktae", tmp_path)
    assert [len(row) for row in found] == [len(row) for row in expected]
    assert np.concatenate(found) == pytest.approx(np.concatenate(expected), abs=1e-6)
    assert np.count_nonzero(np.concatenate(found)) > 10


# --- registering ------------------------------------------------------------------------------------------------------


def test_registering_again_changes_nothing_and_names_are_by_default_the_slug():
    before = core_algos.get_adv_estimator_fn("ktae")
    register()
    register("ktae(alpha=0.5)")
    assert core_algos.get_adv_estimator_fn("ktae") is before
    assert core_algos.get_adv_estimator_fn("ktae__alpha_0p5") is not before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ktae", "ktae_loo"), "verl has another estimator 'ktae_loo'"),
        (("rloo", "rloo"), "verl has another estimator 'rloo'"),
        (("gdpo(parts=a+b)",), "gdpo"),
        (("ktea",), "ktae"),
    ],
)
def test_a_name_or_a_spec_that_cannot_be_is_refused(arguments, said):
    with pytest.raises(KtaeError, match=said):
        register(*arguments)


def test_an_estimator_that_no_trainer_of_verl_calls_says_what_it_lacks():
    rows = Rows(0)
    with pytest.raises(PrerequisiteError, match="hands an estimator no response ids"):
        core_algos.get_adv_estimator_fn("ktae")(**rows.arguments())
    with pytest.raises(InputError, match="the batch has no uid"):
        core_algos.get_adv_estimator_fn("ktae")(rows.scores, rows.mask, responses=rows.responses)
    with pytest.raises(InputError, match="they must be equal"):
        core_algos.get_adv_estimator_fn("ktae")(**rows.arguments(), responses=rows.responses[:, 1:])


def test_importing_the_module_inside_verl_registers():
    code = (
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as known\n"
        "from verl.utils.import_utils import import_external_libs\n"
        "assert 'ktae' not in known\n"
        "import_external_libs('ktae_cli.integrations.verl')\n"  # what `model.external_lib` does
        "print(*sorted(name for name in known if name.startswith('ktae')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["ktae", "ktae_bounded", "ktae_loo"], done.stderr
