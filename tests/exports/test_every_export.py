"""One contract for every target: what is exported is recovered at the same tokens, by code that shares none with ours.

A target NAME has a module tests/exports/test_NAME.py with `recover(path) -> {rollout_id: (ids, values)}`, the layout
undone as the trainer's own code reads it. Further names of the module: SPEC, the target with parameters; BOS, the id
that stands for an absent prompt; COLUMN, the exported column; PER_TOKEN = False, no value a token; PROMPT_TEXT = True,
needs the prompt's text; `expected(rollouts)`, what is recovered where that is not every value of the column.
"""

import importlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli import catalogue
from ktae_cli.exporting import default_output, write_export
from tests.exports.cases import ROWS, rollouts_of, write_case
from tests.helpers import ROOT, SHARED
from tests.rollout_files import ktae

NAMES = catalogue.names("exports")
CASES = {
    "everything": (ROWS, ()),
    "no prompt_ids": (ROWS, ("prompt_ids",)),
    "no log-probs": (ROWS, ("old_log_probs", "rollout_log_probs")),
    "no masks": (ROWS[:6], ("response_mask", "finish_reason", "step", "correct")),
    "some prompt_ids null": ([ROWS[0], ROWS[1] | {"prompt_ids": None}, *ROWS[2:]], ()),
    "one rollout": (ROWS[:1], ()),
}


def module_of(name):
    return importlib.import_module(f"tests.exports.test_{name}")


def export(name, path, **options):
    module = module_of(name)
    spec = getattr(module, "SPEC", name)
    output = str(default_output(path, catalogue.declaration("exports", name)))
    write_export(path, spec, output, force=True, **options)
    return module.recover(path.parent / output)


def truth(name, path):
    module = module_of(name)
    column = getattr(module, "COLUMN", "advantages")
    rollouts = rollouts_of(path, column, getattr(module, "BOS", None))
    if hasattr(module, "expected"):
        return module.expected(rollouts)
    return {key: (rollout.ids, rollout.values) for key, rollout in rollouts.items()}


def difference(found, expected):
    """Name the first rollout that differs, or nothing; rollouts without a value may be left out."""
    for name, (ids, values) in expected.items():
        if name not in found:
            if len(values) > 1 and any(values):
                return f"{name} is missing"
        elif list(found[name][0]) != list(ids):
            return f"the ids of {name}"
        elif not equal(found[name][1], values):
            return f"the values of {name}"
    return "a rollout too many" if set(found) - set(expected) else ""


def equal(found, expected):
    """Compare numbers as float32, which every target holds; anything else as it is."""
    try:
        return np.array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    except (TypeError, ValueError):
        return list(found) == list(expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_recovered_at_the_same_tokens(name, case, tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", *CASES[case])
    assert difference(export(name, path), truth(name, path)) == ""


@pytest.fixture(scope="session")
def scored(tmp_path_factory):
    """Score a file once for all targets."""
    done = {}

    def score(source):
        if source not in done:
            done[source] = tmp_path_factory.mktemp("scored") / "x.scored.parquet"
            assert ktae("score", source, "-o", done[source], "-q") == 0
        return done[source]

    return score


@pytest.mark.parametrize(
    "source",
    [
        ROOT / "sample_data" / "rollouts.parquet",
        pytest.param(
            SHARED / "data" / "gsm8k_openai_4x.parquet",
            marks=pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared"),
        ),
    ],
    ids=["sample_data", "gsm8k"],
)
@pytest.mark.parametrize("name", NAMES)
def test_values_of_real_rollouts_are_recovered(name, source, scored):
    path = scored(source)
    assert difference(export(name, path), truth(name, path)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_by_one_is_seen(name, tmp_path):
    if not getattr(module_of(name), "PER_TOKEN", True):
        pytest.skip(f"{name} holds no value for a token")
    path = write_case(tmp_path / "x.scored.parquet")
    expected = truth(name, path)
    assert difference(export(name, path), expected) == ""
    for by in (1, -1):
        rolled = {key: (ids, np.roll(values, by).tolist()) for key, (ids, values) in export(name, path).items()}
        assert difference(rolled, expected) != ""
        column = getattr(module_of(name), "COLUMN", "advantages")
        rows = [row | {column: row[column] and np.roll(row[column], by).tolist()} for row in ROWS]
        shifted = write_case(tmp_path / "y.scored.parquet", rows)
        assert difference(export(name, shifted), expected) != ""


@pytest.mark.parametrize("name", NAMES)
def test_shards_hold_whole_groups_and_every_rollout(name, tmp_path):
    module = module_of(name)
    rows = [row | {"group_id": f"{row['group_id']}{k}", "rollout_id": f"{row['rollout_id']}{k}"}
            for row in ROWS for k in range(3)]  # fmt: skip
    path = write_case(tmp_path / "x.scored.parquet", rows)
    whole = export(name, path)
    summary = write_export(path, getattr(module, "SPEC", name), str(tmp_path / f"out.{name}"), shards=3)
    assert summary["output"] == [str(tmp_path / f"out-0000{at}-of-00003.{name}") for at in range(3)]
    parts = [module.recover(tmp_path / f"out-0000{at}-of-00003.{name}") for at in range(3)]
    merged = {key: value for part in parts for key, value in part.items()}
    assert difference(merged, whole) == difference(whole, merged) == ""
    assert sum(map(len, parts)) == len(merged)
    groups = {row["rollout_id"]: row["group_id"] for row in rows}
    seen = [{groups[key] for key in part} for part in parts]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])


@pytest.mark.parametrize("name", NAMES)
def test_file_of_no_exported_rollout_is_whole(name, tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[4]])
    assert export(name, path) == {}


@pytest.mark.parametrize("name", NAMES)
def test_alignment_stands_in_the_metadata(name, tmp_path):
    import json

    path = write_case(tmp_path / "x.scored.parquet")
    spec = getattr(module_of(name), "SPEC", name)
    declared = catalogue.declaration("exports", name)
    out = tmp_path / "out.bin"
    write_export(path, spec, str(out))
    if declared.directory:
        found = json.loads((out / "ktae.json").read_text())
    elif declared.sidecar:
        found = json.loads((tmp_path / "out.meta").read_text())
    elif declared.suffix == ".parquet":
        found = json.loads(pq.read_metadata(out).metadata[b"ktae"])
    else:
        size = int.from_bytes(out.read_bytes()[:8], "little")
        found = json.loads(out.read_bytes()[8 : 8 + size])["__metadata__"]
    assert len(declared.alignment) > 20
    assert found["alignment"] == declared.alignment
    assert found["advantages"] == getattr(module_of(name), "COLUMN", "advantages")
    assert (found["target"], found["source"]) == (spec, "x.scored.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_bad_row_leaves_nothing(name, tmp_path):
    from ktae_cli.errors import InputError

    column = getattr(module_of(name), "COLUMN", "advantages")
    path = write_case(tmp_path / "x.scored.parquet", [*ROWS, ROWS[0] | {"rollout_id": "bad", column: [1.0]}])
    with pytest.raises(InputError, match=rf"row 10 \(rollout bad\): response_ids holds 5 tokens, {column} 1 values"):
        export(name, path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.scored.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_bytes(name, tmp_path):
    path = write_case(tmp_path / "x.scored.parquet")
    spec, out = getattr(module_of(name), "SPEC", name), tmp_path / f"out.{name}"
    contents = []
    for _ in range(2):
        write_export(path, spec, str(out), force=True)
        files = sorted(out.iterdir()) if out.is_dir() else [out]
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]


def test_schema_of_the_cases_is_that_of_score(scored):
    found = pq.read_schema(scored(ROOT / "sample_data" / "rollouts.parquet"))
    assert found.field("advantages").type == pa.list_(pa.field("element", pa.float32()))
