"""The rows of parquet and jsonl, their alignment, and files that appear whole or not at all."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ktae_cli import catalogue
from ktae_cli.cli.export import export
from ktae_cli.errors import InputError, KtaeError, MissingColumnError, UnknownNameError
from ktae_cli.exporting import default_output
from ktae_cli.exports._batch import read_batches
from ktae_cli.exports.base import ExportOptions, open_rows
from ktae_cli.exports.jsonl import jsonl
from ktae_cli.readers import parquet as parquet_module
from ktae_cli.readers.scored import ScoredFile
from tests.helpers import ROOT
from tests.rollout_files import ktae, refusal
from tests.test_scored import FLOATS, INTS, ROWS, TYPES, broken_text, write_added, write_scored

app = typer.Typer()
app.command()(export)

FULL_ROWS = [
    {"group_id": "g", "rollout_id": "a", "prompt_ids": [90, 91], "response_ids": [1, 2, 3], "reward": 1.0, "step": 7,
     "response_mask": [True, False, True], "advantages": [0.5, 9.0, -0.25], "old_log_probs": [-1.0, float("nan"), -2.0],
     "ref_log_probs": None},
    {"group_id": "g", "rollout_id": "b", "prompt_ids": [], "response_ids": [4], "reward": None, "step": 7,
     "response_mask": None, "advantages": None, "old_log_probs": [-3.0], "ref_log_probs": [-3.5]},
    {"group_id": "h", "rollout_id": "c", "prompt_ids": [92], "response_ids": [], "reward": 0.0, "step": None,
     "response_mask": [], "advantages": [], "old_log_probs": [], "ref_log_probs": []},
    {"group_id": "h", "rollout_id": "d", "prompt_ids": None, "response_ids": [5, 6], "reward": 0.5, "step": 8,
     "response_mask": [True, True], "advantages": [1.0, 2.0], "old_log_probs": [-0.5, 0.0],
     "ref_log_probs": [-1.0, -1.5]},
]  # fmt: skip
FULL_TYPES = {
    "group_id": pa.string(), "rollout_id": pa.string(), "prompt_ids": INTS, "response_ids": INTS,
    "reward": pa.float64(),
    "step": pa.int64(), "response_mask": pa.list_(pa.bool_()), "advantages": FLOATS, "old_log_probs": FLOATS,
    "ref_log_probs": FLOATS,
}  # fmt: skip

EXPECTED = [
    {"group_id": "g", "rollout_id": "a", "input_ids": [90, 91, 1, 2, 3], "loss_mask": [0, 0, 1, 0, 1],
     "advantages": [0.0, 0.0, 0.5, 0.0, -0.25], "old_log_probs": [0.0, 0.0, -1.0, 0.0, -2.0], "ref_log_probs": None,
     "reward": 1.0, "step": 7},
    {"group_id": "h", "rollout_id": "c", "input_ids": [92], "loss_mask": [0], "advantages": [0.0],
     "old_log_probs": [0.0], "ref_log_probs": [0.0], "reward": 0.0, "step": None},
    {"group_id": "h", "rollout_id": "d", "input_ids": [5, 6], "loss_mask": [1, 1], "advantages": [1.0, 2.0],
     "old_log_probs": [-0.5, 0.0], "ref_log_probs": [-1.0, -1.5], "reward": 0.5, "step": 8},
]  # fmt: skip
ZEROED = {
    "group_id": "g", "rollout_id": "b", "input_ids": [4], "loss_mask": [1], "advantages": [0.0],
    "old_log_probs": [-3.0], "ref_log_probs": [-3.5], "reward": None, "step": 7,
}  # fmt: skip


def run(*arguments):
    result = CliRunner().invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in path.read_text().splitlines()]


@pytest.fixture
def full(tmp_path) -> Path:
    return write_scored(tmp_path / "x.scored.parquet", FULL_ROWS, FULL_TYPES)


@pytest.mark.parametrize("target", ["parquet", "jsonl"])
def test_rows_are_full_sequences_aligned_to_input_ids(full, target):
    result = run(full, "--to", target)
    assert read(full.parent / f"x.export.{target}") == EXPECTED
    assert result.stderr.splitlines() == [
        "1 rollouts have no prompt_ids: their response alone",
        "1 unscored rollouts left out (--null-advantages zero keeps them)",
        f"3 rollouts, 8 prompt and response tokens -> {full.parent / f'x.export.{target}'}",
    ]


@pytest.mark.parametrize("target", ["parquet", "jsonl"])
def test_unscored_rows_can_be_kept_with_zeros(full, target):
    result = run(full, "--to", target, "--null-advantages", "zero")
    assert read(full.parent / f"x.export.{target}") == [EXPECTED[0], ZEROED, *EXPECTED[1:]]
    assert "1 unscored rollouts written with advantages 0" in result.stderr


@pytest.mark.parametrize(
    ("dtype", "rewards", "expected"),
    [
        (pa.string(), ["true", None, " 1.0 ", "0.25"], [1.0, 1.0, 0.25]),
        (pa.int64(), [2**53 + 1, None, 0, -3], [2.0**53, 0.0, -3.0]),
        (pa.bool_(), [True, None, False, True], [1.0, 0.0, 1.0]),
    ],
)
def test_rewards_of_every_readable_type_are_numbers(tmp_path, dtype, rewards, expected):
    rows = [row | {"reward": reward} for row, reward in zip(FULL_ROWS, rewards, strict=True)]
    path = write_scored(tmp_path / "x.scored.parquet", rows, FULL_TYPES | {"reward": dtype})
    run(path, "--to", "parquet")
    assert pq.read_table(tmp_path / "x.export.parquet")["reward"].to_pylist() == expected


@pytest.mark.parametrize(
    ("dtype", "steps", "expected"),
    [
        (pa.int64(), [2**53 + 1, 0, None, 7], [2**53 + 1, None, 7]),
        (pa.float64(), [1.0, 0.0, None, 7.0], [1, None, 7]),
        (pa.string(), [" 1 ", "0", None, "7.0"], [1, None, 7]),
    ],
)
def test_steps_stay_whole_numbers(tmp_path, dtype, steps, expected):
    rows = [row | {"step": step} for row, step in zip(FULL_ROWS, steps, strict=True)]
    run(write_scored(tmp_path / "x.scored.parquet", rows, FULL_TYPES | {"step": dtype}), "--to", "parquet")
    assert pq.read_table(tmp_path / "x.export.parquet")["step"].to_pylist() == expected


@pytest.mark.parametrize(("dtype", "step"), [(pa.float64(), 7.5), (pa.uint64(), 2**63)])
def test_step_that_is_no_whole_number_is_refused(tmp_path, dtype, step):
    rows = [row | {"step": step} for row in FULL_ROWS]
    path = write_scored(tmp_path / "x.scored.parquet", rows, FULL_TYPES | {"step": dtype})
    with pytest.raises(InputError, match=r"row 0 \(rollout a\): step is "):
        open_rows(ScoredFile(path), "full", ExportOptions())


def test_ids_that_are_not_text_are_refused(full):
    path = broken_text(full, "rollout_id", [b"a", b"b", b"\xff", b"d"])
    with pytest.raises(InputError, match="rollout_id is not UTF-8 text; the file is damaged"):
        open_rows(ScoredFile(path), "full", ExportOptions())


@pytest.mark.parametrize(("truncated", "masks"), [("mask", [[0] * 5, [0], [0, 1, 1]]), ("keep", None)])
def test_responses_masked_for_their_length_are_off_the_loss(tmp_path, truncated, masks):
    reasons = ["length", "length", "stop", None]
    rows = [row | {"finish_reason": reason} for row, reason in zip(FULL_ROWS, reasons, strict=True)]
    rows[3]["prompt_ids"] = [9]
    types = FULL_TYPES | {"finish_reason": pa.string()}
    path = write_scored(tmp_path / "x.scored.parquet", rows, types, truncated=truncated)
    run(path, "--to", "parquet")
    found = pq.read_table(tmp_path / "x.export.parquet")["loss_mask"].to_pylist()
    assert found == (masks or [[0, 0, 1, 0, 1], [0], [0, 1, 1]])


@pytest.mark.parametrize("batch_bytes", [1, 150])
def test_the_rows_do_not_depend_on_the_batches(full, monkeypatch, batch_bytes):
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", batch_bytes)
    run(full, "--to", "parquet", "-q")
    assert read(full.parent / "x.export.parquet") == EXPECTED


def test_parquet_types_metadata_and_codec(full):
    run(full, "--to", "parquet")
    file = pq.ParquetFile(full.parent / "x.export.parquet")
    types = {field.name: str(field.type).replace("element: ", "") for field in file.schema_arrow}
    assert types == {
        "group_id": "string", "rollout_id": "string", "input_ids": "list<int32>", "loss_mask": "list<int8>",
        "advantages": "list<float>", "old_log_probs": "list<float>", "ref_log_probs": "list<float>",
        "reward": "double", "step": "int64",
    }  # fmt: skip
    metadata = json.loads(file.metadata.metadata[b"ktae"])
    assert metadata == {
        "alignment": "full sequence; value t belongs to token t; 0 on the prompt", "source": "x.scored.parquet",
        "advantages": "advantages", "spec": "ktae", "options": {}, "schema_version": 1, "target": "parquet",
    }  # fmt: skip
    assert file.metadata.row_group(0).column(2).compression == "ZSTD"


def test_the_response_alone_is_said_once_without_prompt_ids(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)
    result = run(path, "--to", "jsonl")
    rows = read(tmp_path / "x.export.jsonl")
    assert [row["input_ids"] for row in rows] == [[1, 2, 3], [1, 4], [5, 5], [2], []]
    assert [row["rollout_id"] for row in rows] == ["a", "b", "c", "e", "f"]
    assert rows[1]["advantages"] == [-1.0, -1.75]
    assert result.stderr.count("no prompt_ids") == 1


def test_another_column_can_be_the_advantages(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)
    run(path, "--to", "jsonl", "--advantages", "key_weight")
    assert read(tmp_path / "x.export.jsonl")[0]["advantages"] == [0.0, 0.5, 0.0]


def test_added_columns_are_joined_with_the_rollouts(tmp_path):
    path, original = write_added(tmp_path)
    with pytest.raises(MissingColumnError, match=r"has no response_ids; .*--rollouts INPUT"):
        run(path, "--to", "jsonl")
    run(path, "--to", "jsonl", "--rollouts", original)
    assert [row["input_ids"] for row in read(tmp_path / "x.export.jsonl")] == [[1, 2, 3], [1, 4], [5, 5], [2], []]


def test_jsonl_goes_to_stdout(full):
    result = run(full, "--to", "jsonl", "-o", "-")
    assert [json.loads(line) for line in result.stdout.splitlines()] == EXPECTED
    assert "3 rollouts, 8 prompt and response tokens -> -" in result.stderr
    assert sorted(path.name for path in full.parent.iterdir()) == ["x.scored.parquet"]
    with pytest.raises(KtaeError, match="parquet needs a file, not -o -"):
        run(full, "--to", "parquet", "-o", "-")


def test_summary_as_json(full):
    result = run(full, "--to", "jsonl", "--json", "-q", "-o", full.parent / "out.jsonl")
    assert json.loads(result.stdout) == {
        "rollouts": 3, "written": 3, "tokens": 8, "dropped": 1, "zeroed": 0, "too_long": 0, "dead_groups": 0,
        "dead_rollouts": 0, "masked_truncated": 0, "without_prompt_ids": 1, "advantages": "advantages", "notes": [],
        "output": str(full.parent / "out.jsonl"),
    }  # fmt: skip
    assert result.stderr == ""


@pytest.mark.parametrize("target", ["parquet", "jsonl"])
def test_an_existing_file_is_overwritten_only_with_force(full, target):
    out = full.parent / f"x.export.{target}"
    out.write_text("mine")
    with pytest.raises(KtaeError, match="--force"):
        run(full, "--to", target)
    assert out.read_text() == "mine"
    run(full, "--to", target, "--force")
    assert read(out) == EXPECTED


def test_the_file_that_is_read_is_never_overwritten(full):
    before = full.read_bytes()
    for name in (full, full.parent / "." / full.name):
        with pytest.raises(KtaeError, match="is the file that is read"):
            run(full, "--to", "parquet", "--force", "-o", name)
    assert full.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantages": [1.0]}, r"row 1 \(rollout b\): response_ids holds 2 tokens, advantages 1 values"),
        ({"response_mask": [True]}, r"row 1 \(rollout b\): response_ids holds 2 tokens, response_mask 1 values"),
        ({"old_log_probs": [-1.0] * 3}, r"row 1 \(rollout b\): response_ids holds 2 tokens, old_log_probs 3 values"),
        (
            {"old_log_probs": [-1.0, float("-inf")]},
            r"row 1 \(rollout b\): old_log_probs holds a value that is not finite",
        ),
        ({"advantages": [None, 1.0]}, r"row 1 \(rollout b\): advantages holds a value that is not finite"),
        ({"response_ids": None}, r"row 1 \(rollout b\): response_ids is null"),
        ({"response_ids": [1, None]}, r"row 1 \(rollout b\): a token id is null"),
    ],
)
@pytest.mark.parametrize("target", ["parquet", "jsonl"])
def test_a_bad_row_is_named_and_leaves_no_file(tmp_path, change, message, target):
    good = {"group_id": "g", "prompt_ids": [9], "response_ids": [1, 2], "reward": 1.0, "response_mask": [True, True]}
    good |= {"advantages": [1.0, 1.0], "old_log_probs": [-1.0, -1.0], "step": 1, "ref_log_probs": [-1.0, -1.0]}
    rows = [good | {"rollout_id": "a"}, good | {"rollout_id": "b"} | change]
    path = write_scored(tmp_path / "x.scored.parquet", rows, FULL_TYPES)
    with pytest.raises(InputError, match=message):
        run(path, "--to", target)
    assert [file.name for file in tmp_path.iterdir()] == ["x.scored.parquet"]


def test_ids_beyond_int32_are_refused(tmp_path):
    rows = [{"group_id": "g", "rollout_id": "a", "response_ids": [2**40], "advantages": [1.0]}]
    types = {
        "group_id": pa.string(),
        "rollout_id": pa.string(),
        "response_ids": pa.list_(pa.int64()),
        "advantages": FLOATS,
    }
    path = write_scored(tmp_path / "x.scored.parquet", rows, types)
    with pytest.raises(InputError, match="do not fit in int32"):
        run(path, "--to", "jsonl")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("target", ["parquet", "jsonl"])
def test_an_interrupted_export_leaves_the_old_file(full, monkeypatch, failure, target):
    out = full.parent / f"x.export.{target}"
    out.write_text("old")
    rows_of = ScoredFile.batches

    def interrupted(self, names, rows=None):
        yield from rows_of(self, names, rows)
        raise failure

    monkeypatch.setattr(ScoredFile, "batches", interrupted)
    result = CliRunner().invoke(app, [str(full), "--to", target, "--force"])
    if isinstance(failure, OSError):
        assert result.exception is failure
    assert result.exit_code != 0
    assert out.read_text() == "old"
    assert sorted(file.name for file in full.parent.iterdir()) == [out.name, "x.scored.parquet"]


def test_gradient_weights_and_unknown_columns_are_refused(tmp_path):
    types = TYPES | {"grad_weight_gspo": FLOATS}
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, types)
    with pytest.raises(KtaeError, match="ratio and clip included"):
        run(path, "--to", "jsonl", "--advantages", "grad_weight_gspo")
    with pytest.raises(UnknownNameError, match="no per-token column 'advantagse'; nearest: advantages"):
        run(path, "--to", "jsonl", "--advantages", "advantagse")
    with pytest.raises(UnknownNameError, match=r"unknown export 'jsnl' \(nearest: jsonl\)"):
        run(path, "--to", "jsnl")


def test_the_folder_is_the_registry():
    folder = ROOT / "ktae_cli" / "exports"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert set(catalogue.names("exports")) == files - {"base"}
    declared = catalogue.declaration("exports", "parquet")
    assert "Full-sequence rows as Parquet" in declared.summary
    assert (declared.suffix, declared.sidecar, declared.column) == (".parquet", False, "advantages")


def test_default_output_is_never_an_input_name():
    def name(scored, target):
        return str(default_output(Path(scored), catalogue.declaration("exports", target)))

    assert name("d/x.scored.parquet", "parquet") == "d/x.export.parquet"
    assert name("x.parquet", "jsonl") == "x.export.jsonl"
    assert name("x.scored.parquet", "tinker") == "x.export.tinker.jsonl"
    assert name("x.scored.parquet", "datasets") == "x.export.datasets"


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=8))
def test_full_sequences_equal_the_slow_join(tmp_path_factory, rows):
    table = [
        {"group_id": "g", "rollout_id": str(at), "prompt_ids": [100 + at] * prompt, "response_ids": [*range(response)],
         "advantages": [float(at + 1)] * response}
        for at, (prompt, response) in enumerate(rows)
    ]  # fmt: skip
    types = {name: FULL_TYPES[name] for name in table[0]}
    path = write_scored(tmp_path_factory.mktemp("join") / "x.scored.parquet", table, types)
    [batch] = read_batches(ScoredFile(path), "advantages")
    expected = [row["prompt_ids"] + row["response_ids"] for row in table]
    assert [ids.tolist() for ids in np.split(batch.full_ids(), batch.starts[1:-1])] == expected
    values = np.split(batch.full(batch.values), batch.starts[1:-1])
    assert [v.tolist() for v in values] == [[0.0] * len(r["prompt_ids"]) + r["advantages"] for r in table]


def test_jsonl_numbers_are_the_shortest_of_float32(tmp_path):
    rows = [{**ROWS[1], "advantages": [0.1, 1e-8]}]
    file = ScoredFile(write_scored(tmp_path / "x.scored.parquet", rows, TYPES))
    stream = io.BytesIO()
    jsonl(open_rows(file, "full", ExportOptions()), stream)
    assert b'"advantages":[0.1,1e-8]' in stream.getvalue()


def test_export_leaves_heavy_libraries_alone():
    import subprocess

    code = (
        "import sys, ktae_cli.cli.export, ktae_cli.cli.highlight, ktae_cli.exports.parquet, ktae_cli.reports.terminal;"
    )
    code += "print(sorted({'torch', 'scipy', 'matplotlib', 'ray', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_ids_made_from_text_are_exported_on_demand_only(tmp_path, capsys):
    text = pa.table({"group_id": ["g", "g"], "response": ["3 + 4 = 7", "3 + 4 = 8"], "reward": [1.0, 0.0]})
    pq.write_table(text, tmp_path / "text.parquet")
    scored, out = tmp_path / "text.scored.parquet", tmp_path / "out.jsonl"
    tokenizer = ROOT / "sample_data" / "tokenizer.json"
    assert ktae("score", tmp_path / "text.parquet", "--tokenizer", tokenizer) == 0
    message = refusal(capsys, tmp_path, "export", scored, "--to", "jsonl", "-o", out)
    assert "row 0: the token ids come from encoding the text again" in message and "--allow-retokenized" in message
    assert ktae("export", scored, "--to", "jsonl", "-o", out, "--allow-retokenized") == 0
    assert len(out.read_text().splitlines()) == 2
