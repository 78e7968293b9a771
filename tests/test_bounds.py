"""What must not grow out of proportion: dictionaries, tables of tests, buckets; and numbers beyond float32."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ktae_cli as ktae
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.inputs import open_rollouts
from ktae_cli.stats import tables
from ktae_cli.stats.released_float32 import float32_cells
from ktae_cli.stats.tables import exact_cells, look_up
from ktae_cli.writers.parquet import ParquetOutput
from tests.rollout_files import write


def rollouts(n_groups=2, size=4, **columns):
    n = n_groups * size
    base = {
        "uid": [f"g{i // size}" for i in range(n)],
        "response_ids": [[i % 3, 5] for i in range(n)],
        "reward": [float(i % 2) for i in range(n)],
    }
    return pa.table(base | columns)


def test_large_dictionary_is_written_once_with_the_entries_in_use(tmp_path):
    texts = pa.array([f"{i:07d}" * 300 for i in range(10_000)])  # 21 MB, more than a row group holds
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(20, dtype=np.int32)), texts)
    batch = pa.RecordBatch.from_pydict({"prompt": column})
    output = ParquetOutput(tmp_path / "out.parquet", batch.schema)
    output.write(batch)
    output.close()
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert file.metadata.num_row_groups == 1
    assert file.metadata.row_group(0).column(0).total_uncompressed_size < 60_000
    assert file.read()["prompt"].to_pylist() == texts.to_pylist()[:20]


def test_null_and_ordered_dictionary_values_survive(tmp_path):
    texts = pa.array([str(i) for i in range(50)])
    indices = pa.array([7, None, 49, 7], pa.int8())
    batch = pa.RecordBatch.from_pydict({"c": pa.DictionaryArray.from_arrays(indices, texts, ordered=True)})
    output = ParquetOutput(tmp_path / "out.parquet", batch.schema)
    output.write(batch)
    output.close()
    assert pq.read_table(tmp_path / "out.parquet")["c"].to_pylist() == ["7", None, "49", "7"]


def test_large_groups_are_looked_up_by_the_tables_that_occur():
    # 400 right and 400 wrong rollouts: 160,801 tables, of which two occur
    n = torch.tensor([400])
    found = look_up(exact_cells, torch.tensor([0, 0]), torch.tensor([300, 1]), torch.tensor([250, 0]), n, n)
    assert found.measures.shape[1] < 100
    direct = exact_cells(np.array([300, 1]), np.array([250, 0]), 400, 400)
    np.testing.assert_allclose(found.measures[:, found.table].numpy(), direct, rtol=1e-9)


def test_float32_tables_of_large_groups_are_made_in_parts(monkeypatch):
    from ktae_cli.stats import released_float32

    a, b = np.arange(60), np.arange(60)[::-1].copy()
    whole = float32_cells(a, b, 60, 60)
    monkeypatch.setattr(released_float32, "_FISHER_CELLS", 200)
    np.testing.assert_allclose(float32_cells(a, b, 60, 60), whole, rtol=1e-5)


def test_caches_of_tables_are_bounded():
    assert tables._grid.cache_info().maxsize * tables.GRID_LIMIT * 4 * 8 <= 1 << 28
    assert tables._small_grids.cache_info().maxsize * (1 << 14) * 4 * 8 <= 1 << 26


def test_bytes_of_columns_come_from_the_footers(tmp_path):
    short = write(tmp_path / "a.parquet", rollouts())
    long = write(tmp_path / "b.parquet", rollouts(response_ids=[[1] * 1000] * 8))
    source = open_rollouts([str(short), str(long)], str(tmp_path))
    assert 4 * 8016 <= source.bytes_of(["response_ids"]) < 2 * 4 * 8016
    assert source.bytes_of(["reward"]) < 1000


def test_scored_file_of_any_name_is_not_read_beside_its_input(tmp_path):
    path = write(tmp_path / "a.parquet", rollouts())
    ktae.score(path, output=tmp_path / "all.parquet")
    with pytest.raises(InputError, match=r"all\.parquet: was scored from .*a\.parquet, which is an input too"):
        ktae.score(tmp_path, output=tmp_path / "again.parquet")


@pytest.mark.parametrize("reward", [1e31, -1e39])
def test_rewards_beyond_float32_are_refused(reward):
    with pytest.raises(InputError, match=r"row 0: reward is -?1e\+3\d, beyond what float32 advantages hold"):
        ktae.score(rollouts(reward=[reward, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]))


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(KtaeError, match="shift_scale takes a number up to 1e30"):
        ktae.score(rollouts(), "ktae(shift_scale=1e300)")
    with pytest.raises(InputError, match="gives values that are not finite"):
        ktae.score(rollouts(reward=[1e29, 0.0] * 4), "ktae(base=dr_grpo,base_scale=1e30)")


def test_frame_with_two_columns_of_one_name_is_refused():
    table = rollouts()
    with pytest.raises(InputError, match="two columns named 'reward'"):
        ktae.score(table.append_column("reward", table["reward"]))


def test_end_of_text_id_beyond_the_vocabulary_is_refused():
    with pytest.raises(InputError, match="--eos-id takes a token id between 0 and 2147483647"):
        ktae.score(rollouts(), "ktae(zero_ids=eos)", eos_ids=(2**40,))


def test_strict_names_the_warning_that_stops_it(tmp_path):
    path = write(tmp_path / "a.parquet", rollouts(reward=[None, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]))
    with pytest.raises(InputError, match=r"--strict, nothing is written: 1 row\(s\) have no reward"):
        ktae.score(path, output=tmp_path / "out.parquet", strict=True, warn=lambda text: None)


def test_strict_stops_a_frame_at_the_warnings_of_its_groups():
    table = rollouts(prompt=["a", "b"] * 4)
    with pytest.raises(InputError, match=r"--strict, nothing is written: 2 of 2 groups hold several prompts"):
        ktae.score(table, strict=True, warn=lambda text: None)


@pytest.mark.parametrize(
    "spec",
    ["dapo(max_length=100,buffer_length=200)", "ktae(alpha=0,beta=0)", "ktae(base=dapo(max_length=1,buffer_length=2))"],
)
def test_parameters_that_cannot_be_are_refused_by_a_dry_run(tmp_path, capsys, spec):
    from ktae_cli.cli.app import run

    path = write(tmp_path / "a.parquet", rollouts())
    assert run(["score", str(path), "--dry-run", "-e", spec]) == 2
    assert "error: " in capsys.readouterr().err
