"""A folder appears under its final name complete or not at all, and nobody else's folder is ever replaced."""

import os

import pytest

from ktae_cli.errors import InputError
from ktae_cli.writers.atomic_directory import MARKER, atomic_directory
from tests.exports.cases import ROWS, write_case
from tests.rollout_files import ktae, refusal


def fill(target, text, force=False):
    with atomic_directory(target, force) as temporary:
        (temporary / MARKER).write_text("{}")
        (temporary / "data").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_folder_is_renamed_when_it_is_complete(tmp_path):
    with atomic_directory(tmp_path / "out") as temporary:
        (temporary / "data").write_text("x")
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["data", "out"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_failure_leaves_the_old_folder(tmp_path, failure):
    fill(tmp_path / "out", "old")
    with pytest.raises((KeyboardInterrupt, OSError)), atomic_directory(tmp_path / "out", True) as temporary:
        (temporary / "data").write_text("half")
        raise failure
    assert names(tmp_path) == ["data", MARKER, "out"]
    assert (tmp_path / "out" / "data").read_text() == "old"


def test_our_folder_is_replaced_with_force_alone(tmp_path):
    fill(tmp_path / "out", "old")
    (tmp_path / "out" / "left over").write_text("")
    with pytest.raises(InputError, match="exists already; use --force"):
        fill(tmp_path / "out", "new")
    fill(tmp_path / "out", "new", force=True)
    assert names(tmp_path) == ["data", MARKER, "out"]
    assert (tmp_path / "out" / "data").read_text() == "new"


def test_a_folder_of_someone_else_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("home", "file"):
        with pytest.raises(InputError, match="no directory that an export wrote"):
            fill(tmp_path / target, "new", force=True)
    assert (tmp_path / "home" / "thesis").read_text() == "mine"


def test_a_link_stays_and_its_folder_is_replaced(tmp_path):
    fill(tmp_path / "real", "old")
    os.symlink("real", tmp_path / "link")
    fill(tmp_path / "link", "new", force=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "data").read_text() == "new"


def test_a_folder_made_meanwhile_is_kept(tmp_path):
    with pytest.raises(InputError, match="exists already"), atomic_directory(tmp_path / "out"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "data").write_text("theirs")
    assert names(tmp_path) == ["data", "out"]


def test_what_a_killed_run_left_is_no_obstacle(tmp_path):
    left = tmp_path / f".out.{os.getpid()}.tmp"
    left.mkdir()
    (left / "half").write_text("")
    fill(tmp_path / "out", "new")
    assert names(tmp_path) == ["data", MARKER, "out"]


def test_export_refuses_a_place_that_cannot_be_written(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", ROWS)
    message = refusal(capsys, tmp_path, "export", path, "--to", "datasets", "-o", tmp_path / "no" / "out")
    assert "no such directory" in message
    message = refusal(capsys, tmp_path, "export", path, "--to", "datasets", "-o", tmp_path, "--force")
    assert "no directory that an export wrote" in message
    message = refusal(capsys, tmp_path, "export", path, "--to", "datasets", "-o", "-")
    assert "datasets needs a directory, not -o -" in message


def test_an_interrupted_export_of_shards_leaves_nothing(tmp_path, monkeypatch):
    from ktae_cli.exports import _arrow_dataset

    path = write_case(tmp_path / "x.scored.parquet", ROWS)
    written = []

    def fail_at_the_second(target, schema, batches, once=_arrow_dataset.write_dataset):
        once(target, schema, batches)
        written.append(target)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("ktae_cli.exports.datasets.write_dataset", fail_at_the_second)
    assert ktae("export", path, "--to", "datasets", "--shards", "3", "-q") == 130
    assert names(tmp_path) == ["x.scored.parquet"]


def test_metadata_beside_the_lines_are_never_overwritten_unasked(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", ROWS)
    (tmp_path / "x.export.meta").write_text("mine")
    assert "exists already" in refusal(capsys, tmp_path, "export", path, "--to", "jsonl")
    assert ktae("export", path, "--to", "jsonl", "-q", "--force") == 0
    assert "alignment" in (tmp_path / "x.export.meta").read_text()
