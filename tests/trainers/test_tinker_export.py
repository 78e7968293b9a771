"""`ktae export --to tinker` in tinker's own types; runs where tinker is installed."""

import json

import numpy as np
import pytest

from tests.exports.cases import ROWS, rollouts_of, write_case
from tests.helpers import ROOT
from tests.rollout_files import ktae
from tests.test_docs import blocks

tinker = pytest.importorskip("tinker", reason="needs tinker")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Datum objects of the cases, made by the lines of docs/exports.md."""

    def load(source):
        monkeypatch.chdir(tmp_path)
        assert ktae("export", source, "--to", "tinker(bos=1)", "-q", "-o", "rollouts.export.tinker.jsonl") == 0
        [code] = [block.text for block in blocks("exports") if "import tinker" in block.text]
        names = {}
        exec(code, names)
        return names["data"]

    return load


def test_lines_become_datum_objects_with_the_types_of_the_losses(tmp_path, data):
    path = write_case(tmp_path / "x.scored.parquet", ROWS)
    found, truth = data(path), rollouts_of(path)
    assert len(found) == len(truth)
    for datum, rollout in zip(found, truth.values(), strict=True):
        assert isinstance(datum, tinker.Datum)
        inputs = datum.loss_fn_inputs
        assert {name: value.dtype for name, value in inputs.items()} == {
            "target_tokens": "int64", "logprobs": "float32", "advantages": "float32",
        }  # fmt: skip
        assert datum.model_input.to_ints() == rollout.ids[:-1]
        assert inputs["target_tokens"].tolist() == rollout.ids[1:]
        assert np.array_equal(inputs["advantages"].to_numpy(), np.float32(rollout.values[1:]))
        assert all(value.shape == [datum.model_input.length] for value in inputs.values())


def test_the_wire_form_is_the_one_of_the_service(tmp_path, data):
    """The pydantic types, which make the request, accept a line as it stands."""
    from tinker.types._pydantic_types.datum import Datum

    path = write_case(tmp_path / "x.scored.parquet", ROWS)
    data(path)
    for line in (tmp_path / "rollouts.export.tinker.jsonl").read_text().splitlines():
        datum = json.loads(line)["datum"]
        checked = Datum.model_validate(datum).model_dump(exclude_none=True)
        assert checked["model_input"] == datum["model_input"]


def test_sample_data_keeps_every_advantage(tmp_path, data):
    scored = tmp_path / "rollouts.scored.parquet"
    assert ktae("score", ROOT / "sample_data" / "rollouts.parquet", "-o", scored, "-q") == 0
    truth = rollouts_of(scored)
    totals = [float(datum.loss_fn_inputs["advantages"].to_numpy().sum(dtype=np.float64)) for datum in data(scored)]
    assert totals == pytest.approx([float(np.float32(r.values).sum(dtype=np.float64)) for r in truth.values()])
