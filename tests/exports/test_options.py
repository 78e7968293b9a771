"""Options of `ktae export`: what leaves, what is masked, how values are scaled, shards, and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import KtaeError, MissingColumnError, UnknownNameError
from ktae_cli.exporting import cut_evenly, write_export
from ktae_cli.exports._scale import row_scales
from ktae_cli.exports.base import ExportOptions, open_rows
from ktae_cli.library import export
from ktae_cli.readers import parquet as parquet_module
from ktae_cli.readers.scored import ScoredFile
from tests.exports.cases import ROWS, read_lines, rollouts_of, write_case
from tests.rollout_files import ktae, refusal

NAMES = [row["rollout_id"] for row in ROWS]


@pytest.fixture
def case(tmp_path):
    return write_case(tmp_path / "x.scored.parquet")


def exported(path, **options):
    write_export(path, "jsonl", str(path.parent / "out.jsonl"), force=True, **options)
    return {row["rollout_id"]: row for row in read_lines(path.parent / "out.jsonl")}


def test_long_rollouts_are_left_out_whole_and_counted(case, capsys):
    assert ktae("export", case, "--to", "jsonl", "--max-length", "5") == 0
    names = [row["rollout_id"] for row in read_lines(case.parent / "x.export.jsonl")]
    assert names == ["wrong", "no verdict", "empty", "masked", "one token", "zeros"]
    assert "3 rollouts longer than --max-length left out" in capsys.readouterr().err


def test_dead_groups_have_no_value_but_zero(case, capsys):
    assert ktae("export", case, "--to", "jsonl", "--drop-dead-groups") == 0
    names = [row["rollout_id"] for row in read_lines(case.parent / "x.export.jsonl")]
    assert names == ["hole", "tool first", "truncated", "wrong", "no verdict", "empty", "masked"]
    assert "1 dead groups left out, 2 rollouts" in capsys.readouterr().err.splitlines()


def test_a_group_is_judged_by_what_is_left_of_it(case):
    """Without its longer rollout, group h has only an empty and a masked response: nothing to learn from."""
    found = exported(case, max_length=3, drop_dead_groups=True)
    assert found == {}


def test_truncated_responses_leave_the_loss(case):
    found = exported(case, mask_truncated=True)
    assert found["truncated"]["loss_mask"] == [0] * 7
    assert found["truncated"]["advantages"] == [0.0] * 7
    assert found["hole"]["loss_mask"] == [0, 0, 0, 1, 0, 0, 1, 1]


def test_masking_needs_the_reason(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", without=("finish_reason",))
    with pytest.raises(MissingColumnError, match="has no finish_reason"):
        write_export(path, "jsonl", mask_truncated=True)


def masked_whiten(values, mask, shift):
    """`masked_whiten` of verl 0.9 (`utils/torch_functional.py`) in float64."""
    inside = values[mask]
    variance = inside.var(ddof=1) if len(inside) > 1 else 0.0
    return np.where(mask, (values - (inside.mean() if shift else 0.0)) / np.sqrt(variance + 1e-8), 0.0)


@pytest.mark.parametrize("normalize", ["batch", "token"])
@pytest.mark.parametrize("steps", [None, [7] * 10, [7, 8, 7, 8, 7, 7, 8, 7, 8, None]])
def test_values_are_normalised_over_the_policy_tokens_of_a_step(tmp_path, normalize, steps):
    rows = [row | {"step": step} for row, step in zip(ROWS, steps or [None] * 10, strict=True)]
    path = write_case(tmp_path / "x.scored.parquet", rows, without=() if steps else ("step",))
    found = exported(path, normalize=normalize)
    truth = rollouts_of(path)
    for step in set(steps or [None]):
        names = [row["rollout_id"] for row in rows if row["step"] == step and row["advantages"] is not None]
        values, mask = (np.concatenate([getattr(truth[name], what) for name in names]) for what in ("values", "mask"))
        expected = masked_whiten(values, mask.astype(bool), normalize == "batch")
        assert np.concatenate([found[name]["advantages"] for name in names]) == pytest.approx(expected, rel=1e-6)


def test_token_normalisation_keeps_signs_and_zeros(case):
    found, truth = exported(case, normalize="token"), rollouts_of(case)
    for name, row in found.items():
        assert np.sign(row["advantages"]).tolist() == np.sign(truth[name].values).tolist()


def test_unscored_rollouts_stay_zero_and_out_of_the_statistics(case):
    kept = exported(case, normalize="batch", null_advantages="zero")
    dropped = exported(case, normalize="batch")
    assert kept.pop("unscored")["advantages"] == [0.0] * 3
    assert kept == dropped


def test_dead_groups_that_left_are_in_no_statistic(case):
    found = exported(case, normalize="batch", drop_dead_groups=True)
    values = np.concatenate(
        [np.asarray(row["advantages"])[np.asarray(row["loss_mask"]) == 1] for row in found.values()]
    )
    assert values.mean() == pytest.approx(0, abs=1e-7) and values.std(ddof=1) == pytest.approx(1)


def test_values_are_clipped_after_they_are_normalised(case, capsys):
    found = exported(case, clip=0.5)
    assert found["truncated"]["advantages"] == [0, 0, 0, -0.5, -0.5, -0.5, -0.5]
    assert found["hole"]["advantages"] == [0, 0, 0, 0.5, 0, 0, -0.25, 0.5]
    both = exported(case, clip=0.5, normalize="batch")
    assert max(abs(value) for row in both.values() for value in row["advantages"]) == 0.5
    assert ktae("export", case, "--to", "parquet", "--clip", "0.5") == 0
    assert "8 advantages clipped" in capsys.readouterr().err.splitlines()


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=5), min_size=1, max_size=6),
    shift=st.sampled_from([0.0, 1e4]),
)
def test_statistics_are_those_of_all_tokens_at_once(tmp_path_factory, values, shift):
    rows = [
        {"group_id": "g", "rollout_id": str(at), "response_ids": [1] * len(part),
         "advantages": np.float32(np.asarray(part) + shift).tolist()}
        for at, part in enumerate(values)
    ]  # fmt: skip
    path = write_case(tmp_path_factory.mktemp("scale") / "x.scored.parquet", rows)
    opened = open_rows(ScoredFile(path), "full", ExportOptions(normalize="batch"))
    flat = np.float64([value for row in rows for value in row["advantages"]])
    mean = math.fsum(flat) / max(len(flat), 1)
    variance = math.fsum((flat - mean) ** 2) / (len(flat) - 1) if len(flat) > 1 else 0.0
    assert opened.shift[0] == pytest.approx(mean, rel=1e-12, abs=1e-12)
    assert opened.scale[0] == pytest.approx(1 / math.sqrt(variance + 1e-8), rel=1e-4)
    backwards = row_scales(opened.facts, opened.rows[::-1], "batch")
    assert np.array_equal(backwards, (opened.shift, opened.scale))


@pytest.mark.parametrize("batch_bytes", [1, 200])
@pytest.mark.parametrize("to", ["parquet", "tinker", "nemo_rl", "dpo", "prompts"])
def test_files_do_not_depend_on_the_batches(case, monkeypatch, to, batch_bytes):
    options = {} if to in ("dpo", "prompts") else {"normalize": "batch"}
    write_export(case, to, str(case.parent / "whole"), **options)
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", batch_bytes)
    write_export(case, to, str(case.parent / "pieces"), **options)
    if to == "parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(case.parent / "whole").equals(pq.read_table(case.parent / "pieces"))
    else:
        assert (case.parent / "whole").read_bytes() == (case.parent / "pieces").read_bytes()


def test_options_stand_in_the_metadata(case):
    write_export(case, "jsonl", clip=2.0, normalize="token", shards=2)
    described = [json.loads((case.parent / f"x.export-0000{at}-of-00002.meta").read_text()) for at in range(2)]
    assert [one["options"] for one in described] == [{"normalize": "token", "clip": 2.0}] * 2
    assert [(one["shard"], one["shards"]) for one in described] == [(0, 2), (1, 2)]


def test_gradient_weights_go_only_to_a_plain_loss(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_case(tmp_path / "x.scored.parquet")
    table = pq.read_table(path)
    pq.write_table(table.append_column("grad_weight_gspo", table["advantages"]), path)
    assert pa.types.is_list(pq.read_schema(path).field("grad_weight_gspo").type)
    with pytest.raises(KtaeError, match=r"ratio and clip included.*--loss plain_pg"):
        write_export(path, "jsonl", advantages="grad_weight_gspo")
    found = exported(path, advantages="grad_weight_gspo", loss="plain_pg")
    assert found["hole"]["advantages"] == [0, 0, 0, 0.5, 0, 0, -0.25, 1.5]
    described = json.loads((tmp_path / "out.meta").read_text())
    assert (described["options"], described["advantages"]) == ({"loss": "plain_pg"}, "grad_weight_gspo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", "4"], "--shards 4: only 3 groups are left, and a shard holds whole groups"),
        (["--shards", "0"], "--shards is 1 or more, found 0"),
        (["--shards", "2", "-o", "-"], "--shards writes several files; name them with -o"),
        (["--max-length", "0"], "--max-length is 1 or more, found 0"),
        (["--clip", "0"], "--clip is a number above 0, found 0.0"),
        (["--clip", "nan"], "--clip is a number above 0, found nan"),
        (["--advantages", "advantage"], "no per-token column 'advantage'; nearest: advantages"),
    ],
)
def test_wrong_options_are_one_line(case, capsys, arguments, message):
    assert message in refusal(capsys, case.parent, "export", case, "--to", "jsonl", *arguments)


@pytest.mark.parametrize("to", ["tinkr", "tinker(bos=x)", "tinker(bos=1", "sft(ids=labels)"])
def test_wrong_targets_are_one_line(case, capsys, to):
    message = refusal(capsys, case.parent, "export", case, "--to", to)
    assert {
        "tinkr": "unknown export 'tinkr' (nearest: tinker)",
        "tinker(bos=x)": "tinker: bos takes a whole number of at most 32 bits, found x",
        "tinker(bos=1": "cannot read the spec 'tinker(bos=1'",
        "sft(ids=labels)": "sft: ids takes input_ids or tokens, found labels",
    }[to] in message


def test_the_library_takes_the_same_options(case):
    found = export(case, "tinker", case.parent / "out", mask_truncated=True, clip=1, shards=2)
    assert (found["rollouts"], found["masked_truncated"]) == (9, 1)
    with pytest.raises(UnknownNameError, match=r"unknown option of export: 'clipp' \(nearest: clip\)"):
        export(case, "tinker", clipp=1)
    with pytest.raises(KtaeError, match="normalize is none or batch or token, found 'group'"):
        export(case, "jsonl", normalize="group")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_shards_are_even_and_none_is_empty(sizes, parts):
    parts = min(parts, len(sizes))
    found = cut_evenly(np.asarray(sizes), parts)
    assert sorted(found.tolist()) == found.tolist()
    assert set(found.tolist()) == set(range(parts))
    totals = np.bincount(found, sizes, parts)
    assert totals.max() <= sum(sizes) / parts + 2 * max(sizes)


def test_shards_hold_the_same_fields(tmp_path):
    from tests.exports.cases import read_tensors

    rows = [row | ({"rollout_log_probs": None} if row["group_id"] == "dead" else {}) for row in ROWS]
    path = write_case(tmp_path / "x.scored.parquet", rows)
    write_export(path, "openrlhf", str(tmp_path / "out.safetensors"), shards=3)
    found = [set(read_tensors(tmp_path / f"out-0000{at}-of-00003.safetensors")[0]) for at in range(3)]
    assert found[0] == found[1] == found[2]
    assert "rollout_log_probs" not in found[0] and "action_log_probs" in found[0]


def test_much_padding_is_said(tmp_path, capsys):
    rows = [ROWS[8] | {"rollout_id": str(at)} for at in range(30)]
    long = {name: rows[0][name] * 100 for name in ("response_ids", "response_mask", "advantages", "old_log_probs")}
    path = write_case(
        tmp_path / "x.scored.parquet", [rows[0] | long, *rows[1:]], without=("rollout_log_probs", "key_weight")
    )
    assert ktae("export", path, "--to", "nemo_rl") == 0
    line = "95 % of the tensors is padding to 101 places: --max-length or --shards make them smaller"
    assert line in capsys.readouterr().err.splitlines()
    assert ktae("export", path, "--to", "nemo_rl", "--force", "--max-length", "50") == 0
    assert "of the tensors is padding" not in capsys.readouterr().err


@pytest.mark.parametrize("to", ["nemo_rl", "skyrl", "openrlhf", "verl"])
def test_tensors_do_not_depend_on_how_many_rows_are_padded_at_once(case, monkeypatch, to):
    found = []
    for cells in (1, 20, 1 << 22):
        monkeypatch.setattr("ktae_cli.exports.base._CELLS", cells)
        write_export(case, to, str(case.parent / "out"), force=True)
        found.append((case.parent / "out").read_bytes())
    assert found[0] == found[1] == found[2]


def test_a_long_rollout_among_many_short_ones_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Padded all at once the rows would take 60 cells each; a chunk holds 3 rows."""
    from ktae_cli.exports import nemo_rl

    rows = [ROWS[8] | {"rollout_id": str(at)} for at in range(20)]
    path = write_case(tmp_path / "x.scored.parquet", rows)
    opened = open_rows(ScoredFile(path), "full", ExportOptions(), reads=("old_log_probs",))
    monkeypatch.setattr("ktae_cli.exports.base._CELLS", 200)
    chunks = list(nemo_rl._chunks(opened, 60, {"prev_logprobs": "old_log_probs"}, 0))
    assert [chunk["input_ids"].shape for chunk in chunks] == [(3, 60)] * 6 + [(2, 60)]
