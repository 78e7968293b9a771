"""How `score` fails: clear lines, the right exit status, and no file that looks finished and is not."""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.cli.app import is_out_of_memory
from tests.rollout_files import command, four, ktae, refusal, write

# --- wrong usage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-e", "ktea"], "'ktea' (nearest: ktae)"),
        (["-e", "ktae(alhpa=1)"], "'alhpa' (nearest: alpha)"),
        (["-e", "ktae("], "cannot read the spec"),
        (["-e", "ktae(tf=none)"], "tf takes code or bounded or off"),
        (["-e", "ktae(base=ktae)"], "a base gives one per rollout"),
        (["--device", "tpu"], "--device takes auto, cpu, cuda or cuda:N, found 'tpu'"),
        (["--truncated", "drop"], "--truncated"),
        (["-j", "-1"], "--jobs"),
        (["--correct-threshold", "nan"], "--correct-threshold takes a finite number"),
        (["--tokenizer", "nowhere.json"], "nowhere.json"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_option_exits_2(tmp_path, capsys, options, message):
    path = write(tmp_path / "in.parquet", four())
    assert message in refusal(capsys, tmp_path, "score", path, *options)


def test_no_input_exits_2(tmp_path, capsys):
    assert "INPUT" in refusal(capsys, tmp_path, "score")


def test_no_ids_and_no_tokenizer_says_what_was_found(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(response_ids=None, response=["a", "b", "c", "d"]))
    message = refusal(capsys, tmp_path, "score", path)
    assert "in.parquet: no column of response token ids" in message
    assert "found group_id, rollout_id, reward, response" in message and "--tokenizer PATH" in message


def test_no_reward_and_no_verdict_exits_2(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=None))
    assert "looked for reward, score, correct, acc, is_correct" in refusal(capsys, tmp_path, "score", path)


def test_no_group_column_exits_2(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(group_id=None))
    message = refusal(capsys, tmp_path, "score", path)
    assert "no group column" in message and "found rollout_id, reward, response_ids" in message


# --- files that are no rollouts -------------------------------------------------------------------------------------


def test_missing_file_exits_2(tmp_path, capsys):
    assert "none.parquet: no such file" in refusal(capsys, tmp_path, "score", tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b'{"prompt": "x"}\n', "no column of response token ids"),
        (b"no rollouts", "not a file of rollouts (it begins with b'no r'"),
        (b"PAR1", "truncated or damaged"),
        (b"PAR1PAR1PAR1", "truncated or damaged"),
        (b"PAR1" + b"\xff\xff\xff\x7fPAR1", "truncated or damaged"),
    ],
)
def test_file_that_is_no_parquet_exits_2(tmp_path, capsys, content, message):
    (tmp_path / "in.parquet").write_bytes(content)
    assert message in refusal(capsys, tmp_path, "score", tmp_path / "in.parquet")


def rollouts_bytes(path) -> bytes:
    n = 60
    table = pa.table(
        {
            "uid": [f"g{i // 4}" for i in range(n)], "rollout_id": [f"r{i}" for i in range(n)],
            "prompt": [f"prompt {i // 4}" for i in range(n)], "reward": [float(i % 2) for i in range(n)],
            "response_ids": pa.array([[i % 5, i % 7, 3] for i in range(n)], pa.list_(pa.int32())),
            "response_mask": [[True, False, True]] * n,
            "finish_reason": pa.array(["stop", "length"] * 30).dictionary_encode(),
        }
    )  # fmt: skip
    return write(path, table, row_group_size=20).read_bytes()


def test_file_cut_anywhere_exits_2(tmp_path, capsys):
    data = rollouts_bytes(tmp_path / "in.parquet")
    for cut in [*range(0, 16), *range(16, len(data), 97), *range(len(data) - 12, len(data))]:
        (tmp_path / "in.parquet").write_bytes(data[:cut])
        assert "in.parquet: " in refusal(capsys, tmp_path, "score", tmp_path / "in.parquet")


def test_data_with_flipped_bytes_never_shows_a_traceback(tmp_path, capsys):
    # Pages alone: a damaged footer can end the process inside Arrow itself, before Python could say anything.
    data = rollouts_bytes(tmp_path / "in.parquet")
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    dice, found = random.Random(7), set()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(dice.choice([1, 2, 8])):
            damaged[dice.randrange(4, end)] = dice.randrange(256)
        (tmp_path / "in.parquet").write_bytes(damaged)
        found.add(ktae("score", tmp_path / "in.parquet", "-o", tmp_path / "out.parquet", "--force", "-q"))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and captured.out == ""
    assert found == {0, 2}
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_footer_that_promises_too_many_rows_ends(tmp_path, capsys):
    # Thrift writes the count 1000 of a row group as the zigzag varint d0 0f; e0 5d is 6000.
    path = write(tmp_path / "in.parquet", pa.table({"uid": np.zeros(1000, np.int64)}), store_schema=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    damaged = data[:footer] + data[footer:].replace(b"\x16\xd0\x0f", b"\x16\xe0\x5d")
    assert damaged != data
    path.write_bytes(damaged)
    capsys.readouterr()
    assert ktae("inspect", path) == 2
    assert "in.parquet: row group 0" in capsys.readouterr().err


def test_column_names_that_are_not_utf8_exit_2(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(nöte=["x"] * 4), store_schema=False)
    path.write_bytes(path.read_bytes().replace("nöte".encode(), b"n\xff\xffte"))
    assert "damaged" in refusal(capsys, tmp_path, "score", path)


def test_metadata_of_ours_that_is_no_json_exits_2(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four().replace_schema_metadata({b"ktae": b"{broken"}))
    assert "'ktae' is not JSON" in refusal(capsys, tmp_path, "score", path)


# --- outputs that cannot be -----------------------------------------------------------------------------------------


def test_existing_output_is_kept_without_force(tmp_path, capsys):
    path, out = write(tmp_path / "in.parquet", four()), tmp_path / "out.parquet"
    out.write_text("mine")
    assert "out.parquet: exists already; use --force" in refusal(capsys, tmp_path, "score", path, "-o", out)
    assert out.read_text() == "mine"
    assert ktae("score", path, "-o", out, "--force") == 0
    assert pq.read_metadata(out).num_rows == 4


def test_existing_token_table_is_kept_without_force(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    (tmp_path / "out.tokens.parquet").write_text("mine")
    message = refusal(capsys, tmp_path, "score", path, "-o", tmp_path / "out.parquet")
    assert "out.tokens.parquet: exists already" in message


@pytest.mark.parametrize("option", ["-o", "--tokens-out"])
@pytest.mark.parametrize("kind", ["itself", "link", "hard link"])
def test_input_is_never_written_over(tmp_path, capsys, option, kind):
    path, name = write(tmp_path / "in.parquet", four()), tmp_path / "name.parquet"
    if kind == "itself":
        name = path
    elif kind == "link":
        name.symlink_to(path)
    else:
        name.hardlink_to(path)
    content = path.read_bytes()
    message = refusal(capsys, tmp_path, "score", path, option, name, "--force")
    assert "is also an input" in message
    assert path.read_bytes() == content


def test_token_table_is_not_the_scored_file(tmp_path, capsys):
    path, out = write(tmp_path / "in.parquet", four()), tmp_path / "out.parquet"
    message = refusal(capsys, tmp_path, "score", path, "-o", out, "--tokens-out", tmp_path / "." / "out.parquet")
    assert "is also the scored file" in message


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (".", "is a directory"),
        ("nowhere/out.parquet", "no such directory"),
        ("in.parquet/out.parquet", "no such directory"),
        ("pipe", "is no regular file"),
        ("\udcff.parquet", "not UTF-8"),
    ],
)
def test_output_that_cannot_be_written_exits_2(tmp_path, capsys, out, message):
    path = write(tmp_path / "in.parquet", four())
    os.mkfifo(tmp_path / "pipe")
    assert message in refusal(capsys, tmp_path, "score", path, "-o", tmp_path / out, "--force")


def test_device_file_is_not_replaced(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    assert "/dev/null: is no regular file" in refusal(capsys, tmp_path, "score", path, "-o", "/dev/null", "--force")


def test_error_in_the_middle_leaves_the_previous_output(tmp_path, capsys):
    bad = pa.concat_tables(
        [four(group_id=[str(i)] * 4) for i in range(500)] + [four(response_ids=[[1], [-1], [1], [1]])]
    )
    path, out = write(tmp_path / "in.parquet", bad), tmp_path / "out.parquet"
    out.write_text("previous")
    (tmp_path / "out.tokens.parquet").write_text("previous too")
    assert "row 2001" in refusal(capsys, tmp_path, "score", path, "-o", out, "--force")
    assert (out.read_text(), (tmp_path / "out.tokens.parquet").read_text()) == ("previous", "previous too")


def test_control_characters_of_names_are_shown_escaped(tmp_path, capsys):
    message = refusal(capsys, tmp_path, "score", tmp_path / "a\x1b[31m.parquet")
    assert "a\\x1b[31m.parquet" in message and "\x1b" not in message


# --- the machine fails ----------------------------------------------------------------------------------------------


def big(path, n_groups: int, apart: bool = False):
    """Rollouts enough to be in the middle of."""
    n, length = n_groups * 8, 100
    dice = np.random.default_rng(0)
    ids = pa.ListArray.from_arrays(
        np.arange(0, n * length + 1, length, dtype=np.int32), pa.array(dice.integers(0, 30_000, n * length, np.int32))
    )
    uid = np.arange(n) % n_groups if apart else np.arange(n) // 8
    return write(path, pa.table({"uid": uid, "reward": dice.integers(0, 2, n), "response_ids": ids}))


def files(directory) -> dict:
    return {p.name: p.read_bytes() for p in directory.iterdir() if not p.name.startswith(".")}


@pytest.mark.parametrize("apart", [False, True], ids=["contiguous", "apart"])
def test_full_disk_exits_3_and_keeps_the_previous_output(tmp_path, apart):
    path = big(tmp_path / "in.parquet", 200, apart)
    (tmp_path / "out.parquet").write_text("previous")
    before = files(tmp_path)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = command("score", path, "-o", tmp_path / "out.parquet", "--force", "-j1", preexec_fn=limit)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "the previous output, if any, is intact" in err and "Traceback" not in err and out == ""
    assert files(tmp_path) == before
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_file_system_exits_3(tmp_path):
    path, disk = big(tmp_path / "in.parquet", 400), tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        process = command("score", path, "-o", disk / "out.parquet", "-j1")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3, err
        assert "the disk is full" in err and "Traceback" not in err
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def in_the_middle(directory, path) -> subprocess.Popen:
    """Start scoring and return when the output has begun to grow."""
    environment = os.environ | {"TMPDIR": str(path.parent)}
    process = command("score", path, "-o", directory / "out.parquet", "--force", "-j1", "-q", env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if any(p.stat().st_size > 4 for p in directory.glob(".out.parquet.*")):
            break
        time.sleep(0.005)
    assert process.poll() is None, "the run was over before it could be stopped"
    return process


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return big(tmp_path_factory.mktemp("large") / "in.parquet", 20_000)


def test_interrupt_exits_130_and_leaves_nothing(tmp_path, large):
    (tmp_path / "out.parquet").write_text("previous")
    process = in_the_middle(tmp_path, large)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]
    assert (tmp_path / "out.parquet").read_text() == "previous"


def test_terminate_exits_143_and_leaves_nothing(tmp_path, large):
    process = in_the_middle(tmp_path, large)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "interrupted" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory", True),
        ("shape '[2]' is invalid for input of size 3", False),
    ],
)
def test_out_of_memory_of_torch_is_told_by_its_text(message, expected):
    assert is_out_of_memory(RuntimeError(message)) is expected


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_cannot_be_written_do_not_stop_the_work(tmp_path, redirect):
    path = write(tmp_path / "in.parquet", four())
    code = "from ktae_cli.cli.app import main; main()"
    shell = ["sh", "-c", f'"$@" {redirect}', "sh", sys.executable, "-c", code]
    for status in (0, 2):  # the second time the output exists
        found = subprocess.run([*shell, "score", path, "-o", tmp_path / "out.parquet"], capture_output=True, text=True)
        assert (found.returncode, "Traceback" in found.stderr) == (status, False), found.stderr
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 4


def test_encoding_that_lacks_a_character_gets_backslashes(tmp_path):
    path = write(tmp_path / "in.parquet", four(**{"naïve": [1] * 4}))
    process = command("inspect", path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "passed through: na\\xefve" in out and "\\u2588" in out


def test_standard_output_is_refused_by_score(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    for option in ("-o", "--tokens-out"):
        message = refusal(capsys, tmp_path, "score", path, option, "-")
        assert message == f"error: {option} -: score writes files; name one with {option}"


@pytest.mark.parametrize(
    "arguments",
    [["score", ""], ["inspect", ""], ["highlight", "x", "--rollouts", ""],
     ["export", "x", "--to", "jsonl", "--rollouts", ""]],
)  # fmt: skip
def test_empty_input_exits_2(tmp_path, capsys, arguments):
    assert refusal(capsys, tmp_path, *arguments).startswith("error: the name of an input is empty")


def test_kill_leaves_the_previous_output_and_no_half_file(tmp_path, large):
    (tmp_path / "out.parquet").write_text("previous")
    process = in_the_middle(tmp_path, large)
    process.kill()
    process.communicate(timeout=60)
    assert files(tmp_path) == {"out.parquet": b"previous"}
    # What is left is hidden, and in nobody's way.
    assert ktae("score", large, "-n", 1, "-o", tmp_path / "out.parquet", "--force", "-q") == 0
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 8


def test_a_missing_column_is_named_with_the_readers_that_can_supply_it(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    message = refusal(capsys, tmp_path, "score", path, "-e", "gspo")
    assert "gspo needs old_log_probs, log_probs, which the input does not have" in message
    assert "--map old_log_probs=COLUMN" in message
    assert re.search(r"readers that can supply it: .*\bparquet\b", message)
