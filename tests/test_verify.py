"""`ktae verify`: every row gets a verdict with its reason, whatever some rows try; the rest passes through."""

import json
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ktae_cli
from ktae_cli.errors import KtaeError, MachineError
from ktae_cli.grading import budget
from tests.grading.test_pool import JUDGE, assert_nothing_left, left_behind
from tests.rollout_files import command, four, ktae, refusal, write

OURS = ["correct", "verify_status", "answer_parsed", "gold_parsed", "verify_path"]


def answers(**columns) -> pa.Table:
    """Six rollouts of two prompts: right, wrong, no answer; right, an unreadable gold, a response that is missing."""
    base = {
        "group_id": ["a", "a", "a", "b", "b", "b"],
        "response": ["so \\boxed{4}", "\\boxed{5}", "who knows", "\\boxed{\\frac12}", "\\boxed{1}", None],
        "ground_truth": ["4", "4", "4", "0.5", "", "0.5"],
    }
    return pa.table({name: values for name, values in (base | columns).items() if values is not None})


def verified(directory, table: pa.Table, *options) -> pa.Table:
    path = write(directory / "in.parquet", table)
    assert ktae("verify", path, "-o", directory / "out.parquet", "--force", *options) == 0
    return pq.read_table(directory / "out.parquet")


def metadata_of(path) -> dict:
    return json.loads(pq.read_metadata(path).metadata[b"ktae"])


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "judge.py").write_text(JUDGE)
    monkeypatch.setenv("KTAE_TEST_MARK", str(tmp_path))
    return f"{tmp_path / 'judge.py'}:judge"


def test_every_row_gets_a_verdict_and_a_reason_beside_its_own_columns(tmp_path):
    table = answers(extra=[[1], [2], None, [], [5], [6]])
    out = verified(tmp_path, table)
    assert out.column_names == [*table.column_names, *OURS]
    assert out.select(table.column_names) == table
    assert out["correct"].to_pylist() == [True, False, False, True, None, None]
    assert out["verify_status"].to_pylist() == ["ok", "ok", "no_answer", "ok", "gold_unparsed", "no_answer"]
    assert out["answer_parsed"].to_pylist()[:3] == ["4", "5", None]
    assert out["gold_parsed"].to_pylist()[:2] == ["4", "4"]
    assert out["verify_path"].null_count == 0
    assert out["verify_path"].to_pylist()[5] == "no response"


def test_an_earlier_verdict_moves_aside_and_our_own_is_replaced(tmp_path, capsys):
    out = verified(tmp_path, answers(correct=[False] * 6, verify_note=["n"] * 6))
    assert out["input_correct"].to_pylist() == [False] * 6
    assert out["input_verify_note"].to_pylist() == ["n"] * 6
    assert "input column 'correct' is kept as 'input_correct'" in capsys.readouterr().err
    assert ktae("verify", tmp_path / "out.parquet", "-o", tmp_path / "again.parquet") == 0
    assert pq.read_table(tmp_path / "again.parquet") == out
    assert "kept as" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"ground_truth": None, "gold": ["4"] * 6}, []),
        ({"ground_truth": None, "answer": [4] * 6}, []),
        ({"ground_truth": ["9"] * 6, "key": ["4"] * 6}, ["--gold", "key"]),
        ({"ground_truth": ["9"] * 6, "key": [{"a": "4"}] * 6}, ["--gold", "key.a"]),
        ({"ground_truth": None, "reward_model": [{"ground_truth": "4"}] * 6}, []),
        ({"ground_truth": None, "key": ["4"] * 6}, ["--map", "ground_truth=key"]),
        ({"ground_truth": ["4"] * 6, "response": None, "completion": ["\\boxed{4}"] * 6}, []),
        ({"ground_truth": ["4"] * 6, "response": ["9"] * 6, "text": ["\\boxed{4}"] * 6}, ["--map", "response=text"]),
        ({"ground_truth": pa.array(["4"] * 6).dictionary_encode()}, []),
    ],
)
def test_columns_are_found_by_name_alias_and_option(tmp_path, columns, options):
    out = verified(tmp_path, answers(**columns), *options)
    assert out["correct"].to_pylist()[0] is True


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (
            {"ground_truth": None},
            [],
            "no gold answers: looked for ground_truth, gold, gts, answer, reward_model.ground",
        ),
        ({"response": None}, [], "no response text: looked for response, completion, output; found group_id, ground"),
        ({"response": [1] * 6}, [], "column 'response' is int64, expected text"),
        ({}, ["--gold", "ground_trut"], "column in --gold ground_trut"),
        ({}, ["--map", "response=x"], "column in --map response=x"),
        ({}, ["--map", "respons=response"], "canonical column in --map"),
        ({}, ["--verifier", "mth"], "mth"),
        ({}, ["--verifier", "nowhere.py:f"], "nowhere.py: no such file"),
        ({}, ["--timeout", "0"], "--timeout takes seconds, more than 0, found 0"),
        ({}, ["--tolerance", "-1"], "--tolerance takes a number from 0 to below 1, found -1"),
        ({}, ["--min-accuracy", "50"], "--min-accuracy takes a share from 0 to 1, found 50"),
        ({}, ["--compare"], "--compare needs an earlier verdict"),
        ({}, ["--strict"], "--strict, nothing is written: 1 row(s) have a gold answer that cannot be read"),
        ({"ground_truth": [""] * 6}, [], "column 'ground_truth': no gold answer can be read in 5 rows; name another"),
        ({"response": pa.nulls(6, pa.string())}, [], "column 'response' is null in all 6 rows"),
        ({}, ["--verifier", "regex", "--argument", "("], "the pattern '(' does not compile"),
        ({}, ["--answer-format", "(x"], "--answer-format: the pattern '(x' does not compile"),
        ({}, ["--answer-format", "boxd"], "boxed"),
        ({}, ["-o", "-"], "-o -: verify writes a Parquet file"),
    ],
)
def test_what_cannot_be_graded_is_refused_in_a_line(tmp_path, capsys, columns, options, said):
    path = write(tmp_path / "in.parquet", answers(**columns))
    assert said in refusal(capsys, tmp_path, "verify", path, *options)


def test_an_empty_file_and_an_existing_output_are_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", answers())
    assert "0 rows" in refusal(capsys, tmp_path, "verify", write(tmp_path / "empty.parquet", answers().slice(0, 0)))
    write(tmp_path / "in.verified.parquet", answers())
    assert "exists already" in refusal(capsys, tmp_path, "verify", path)
    assert "is also an input" in refusal(capsys, tmp_path, "verify", path, "-o", path, "--force")


def test_the_default_output_stands_beside_the_input(tmp_path):
    assert ktae("verify", write(tmp_path / "in.parquet", answers())) == 0
    assert (tmp_path / "in.verified.parquet").exists()


def test_compare_prints_the_table_and_the_rows_that_differ(tmp_path, capsys):
    #       ours: True   False  False False? of the six rows below
    table = answers(correct=[True, True, False, False, True, None])
    verified(tmp_path, table, "--compare")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "correct against verify: agreement 0.5000, 3 of 6 rows differ"
    assert lines[1] == "right wrong unknown"
    assert lines[2:5] == ["correct right 1 1 1", "correct wrong 1 1 0", "correct unknown 0 0 1"]
    rows = [line for line in lines if ", row " in line]
    assert [line.partition(", row ")[2].split(",")[0] for line in rows] == [
        "1: right -> wrong", "3: wrong -> right", "4: right -> unknown",
    ]  # fmt: skip
    assert "answer 5, gold 4 (ok, " in rows[0]


def test_compare_takes_the_reward_where_there_is_no_verdict(tmp_path, capsys):
    table = answers(reward=[0.9, 0.2, 0.2, 0.9, None, 0.2])
    verified(tmp_path, table, "--compare", "--correct-threshold", "0.5", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["earlier"] == "reward"
    assert found["compare"]["agreement"] == 1.0
    assert [row["row"] for row in found["compare"]["rows"]] == [5]
    assert found["compare"]["table"]["false"] == {"true": 0, "false": 2, "null": 1}


def test_the_summary_counts_statuses_and_never_unknown_rows_as_wrong(tmp_path, capsys):
    verified(tmp_path, answers(), "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["rollouts"], found["correct"], found["wrong"], found["unknown"]) == (6, 2, 2, 2)
    assert found["accuracy"] == 0.5
    assert {name: count for name, count in found["statuses"].items() if count} == {
        "ok": 3, "no_answer": 2, "gold_unparsed": 1,
    }  # fmt: skip
    assert sum(found["paths"].values()) == 6


@pytest.mark.parametrize(("least", "status"), [("0.5", 0), ("0.51", 1), ("0", 0), ("1", 1)])
def test_min_accuracy_decides_the_exit_status(tmp_path, capsys, least, status):
    path = write(tmp_path / "in.parquet", answers())
    assert ktae("verify", path, "--min-accuracy", least) == status
    assert ("below --min-accuracy" in capsys.readouterr().err) == bool(status)
    assert (tmp_path / "in.verified.parquet").exists()


def test_a_file_without_any_answer_is_warned_of(tmp_path, capsys):
    verified(tmp_path, answers().slice(0, 2), "--answer-format", "answer_tag")
    assert (
        "no response states an answer, so all count as wrong: is --answer-format answer_tag" in capsys.readouterr().err
    )


def test_the_metadata_says_how_the_verdicts_came_about(tmp_path):
    verified(tmp_path, answers(gold=["4"] * 6), "--gold", "gold", "--units", "ignore", "--tolerance", "0.01")
    metadata = metadata_of(tmp_path / "out.parquet")
    found = metadata["verify"]
    assert found["verifier"] == "math"
    assert found["options"]["units"] == "ignore"
    assert found["options"]["tolerance"] == 0.01
    assert found["columns"] == OURS
    assert {"math-verify", "sympy"} <= set(found["libraries"])
    assert metadata["columns"] == {"response": "response", "ground_truth": "gold", "correct": "correct"}
    assert metadata["inputs"][0]["name"] == "in.parquet"
    assert str(tmp_path) not in json.dumps(metadata)


def test_workers_change_no_byte(tmp_path):
    table = answers(response=[f"\\boxed{{(x+{i})^2}}" for i in range(6)], ground_truth=["x^2+2x+1"] * 6)
    verified(tmp_path, table, "-j", "1")
    first = (tmp_path / "out.parquet").read_bytes()
    out = verified(tmp_path, table, "-j", "3")
    assert (tmp_path / "out.parquet").read_bytes() == first
    assert out["correct"].to_pylist() == [False, True, False, False, False, False]


def test_limit_keeps_the_rows_of_the_first_groups(tmp_path):
    table = answers(group_id=["a", "b", "a", "c", "b", "a"], n=list(range(6)))
    out = verified(tmp_path, table, "-n", "2")
    assert out["n"].to_pylist() == [0, 1, 2, 4, 5]
    assert out["correct"].to_pylist() == [True, False, False, None, None]


def test_rows_keep_their_order_over_files_and_row_groups(tmp_path):
    n = 3000
    table = pa.table({"response": [f"\\boxed{{{i % 11}}}" for i in range(n)], "gold": ["3"] * n, "n": range(n)})
    write(tmp_path / "a.parquet", table.slice(0, 1700), row_group_size=130)
    write(tmp_path / "b.parquet", table.slice(1700))
    assert ktae("verify", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "out.parquet") == 0
    out = pq.read_table(tmp_path / "out.parquet")
    assert out["n"].to_pylist() == list(range(n))
    assert out["correct"].to_pylist() == [i % 11 == 3 for i in range(n)]


def judged(tmp_path, judge, responses) -> pa.Table:
    return pa.table({"response": responses, "ground_truth": ["x"] * len(responses)})


@pytest.mark.parametrize(
    ("responses", "said"),
    [
        (["raise"] * 3, "row 0: error, ZeroDivisionError"),
        (["sleep", "spin"], "row 0: timeout, deadline"),
        (["exit", "raise"], "row 0: error, worker ended with status 3"),
    ],
)
def test_a_run_of_failures_alone_is_no_accuracy_of_0(tmp_path, judge, capsys, responses, said):
    path = write(tmp_path / "in.parquet", judged(tmp_path, judge, responses))
    status = ktae("verify", path, "--verifier", judge, "--timeout", "0.3", "--min-accuracy", "0.1")
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 3
    assert len(lines) == 1 and "every row ended in a time-out or an error, nothing is written" in lines[0]
    assert said in lines[0]
    assert "accuracy" not in out + err
    assert not (tmp_path / "in.verified.parquet").exists()
    assert_nothing_left(tmp_path)


def test_a_verifier_of_ones_own_is_named_with_its_digest(tmp_path, judge):
    out = verified(tmp_path, judged(tmp_path, judge, ["x", "y", "raise"]), "--verifier", judge)
    assert out["correct"].to_pylist() == [True, False, None]
    verifier = metadata_of(tmp_path / "out.parquet")["verify"]["verifier"]
    assert verifier.startswith("judge.py:judge, sha256 ") and len(verifier.rpartition(" ")[2]) == 12


def test_texts_that_are_long_or_broken_are_stored_as_text(tmp_path):
    (tmp_path / "odd.py").write_text(
        "from ktae_cli.grading.verdict import Verdict\n"
        "def odd(response, gold, options):\n"
        "    return Verdict(True, 'ok', 'x' * 100_000, 'a\\udc80b', '')\n"
    )
    out = verified(tmp_path, answers(), "--verifier", f"{tmp_path / 'odd.py'}:odd")
    assert out["answer_parsed"][0].as_py() == "x" * 1999 + "…"
    assert out["gold_parsed"][0].as_py() == "a?b"


HOSTILE = {
    "9^{9^{9^{9}}}": ("too_complex",),
    "(10^{8})!": ("too_complex",),
    "e^{e^{e^{79}}}": ("timeout", "too_complex"),
    "(" * 10_000 + "1" + ")" * 10_000: ("too_complex", "no_answer"),
    "1" * (1 << 20): ("too_complex", "no_answer"),
    "x+" * (1 << 19) + "x": ("too_complex", "no_answer"),
    "1\0+2": ("ok",),
    "\\frac{0}{0}": ("ok", "error"),
    "12:00": ("ok", "error"),
    "\\lim_{x\\to": ("ok", "error", "no_answer"),
    "\\sqrt[10^{9}]{3^{10^9}}": ("too_complex",),
    "\\begin{pmatrix}1\\end{pmatrix}^{10^9}": ("ok", "too_complex", "error", "timeout"),
    "__import__('os')._exit(1)": ("ok", "too_complex"),
}


def test_a_hostile_file_spoils_no_other_row(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KTAE_TEST_MARK", str(tmp_path))
    normal = [
        (f"\\boxed{{{i}}}", str(i if i % 3 else i + 1)) if i % 5 else (f"\\boxed{{(x+{i})^2}}", f"x^2+{2 * i}x+{i * i}")
        for i in range(1, 401)
    ]
    right = [i % 5 == 0 or i % 3 > 0 for i in range(1, 401)]
    rows, expected = list(normal), list(right)
    gold = "\\frac{7}{3}+\\sqrt{2}"
    for place, text in enumerate(HOSTILE):
        rows.insert(30 * place, (f"Thus \\boxed{{{text}}}.", gold))
        expected.insert(30 * place, text)
    table = pa.table({"response": [r for r, _ in rows], "gold": [g for _, g in rows]})
    started = time.monotonic()
    out = verified(tmp_path, table, "--timeout", "1").select(["correct", "verify_status"]).to_pylist()
    assert time.monotonic() - started < 120
    assert [row["correct"] for row, e in zip(out, expected, strict=True) if isinstance(e, bool)] == right
    for row, text in zip(out, expected, strict=True):
        if isinstance(text, str):
            assert row["verify_status"] in HOSTILE[text], text[:40]
            assert not row["correct"], text[:40]
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_leaves_no_file_and_no_process(tmp_path, judge, number, status):
    path = write(tmp_path / "in.parquet", judged(tmp_path, judge, ["x", "deaf", "sleep"]))
    process = command("verify", path, "--verifier", judge, "--timeout", "100", "-j", "2")
    until = time.monotonic() + 60
    while len(left_behind(tmp_path)) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert "interrupted" in err and "Traceback" not in err
    assert_nothing_left(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "judge.py"]


def test_the_library_grades_frames_and_files(tmp_path, judge):
    import polars as pl

    out = ktae_cli.verify(pl.from_arrow(answers()), units="ignore", warn=print)
    assert out["correct"].to_list() == [True, False, False, True, None, None]
    with pytest.warns(UserWarning, match="1 row.s. have a gold answer"):
        summary = ktae_cli.verify(write(tmp_path / "in.parquet", answers()), output=tmp_path / "o.parquet")
    assert summary["accuracy"] == 0.5
    assert pq.read_table(tmp_path / "o.parquet")["correct"].to_pylist() == out["correct"].to_list()
    with pytest.raises(KtaeError, match="unit"):
        ktae_cli.verify(answers(), unit="ignore")
    with pytest.raises(KtaeError, match="a frame comes back"):
        ktae_cli.verify(answers(), output="x.parquet")
    with pytest.raises(MachineError, match="every row"):
        ktae_cli.verify(judged(tmp_path, judge, ["raise"]), verifier=judge)


def test_score_takes_its_verdicts_from_verify(tmp_path):
    table = four(response=["\\boxed{4}", "\\boxed{4}", "\\boxed{5}", "none"], gold=["4"] * 4, correct=[False] * 4)
    path = write(tmp_path / "in.parquet", table)
    assert ktae("score", path, "-o", tmp_path / "at-once.parquet", "--verify", "-e", "ktae") == 0
    at_once = pq.read_table(tmp_path / "at-once.parquet")
    assert at_once["correct"].to_pylist() == [True, True, False, False]
    assert at_once["input_correct"].to_pylist() == [False] * 4
    assert ktae("verify", path, "-o", tmp_path / "v.parquet") == 0
    assert ktae("score", tmp_path / "v.parquet", "-o", tmp_path / "after.parquet", "-e", "ktae") == 0
    assert at_once == pq.read_table(tmp_path / "after.parquet")
    found = [metadata_of(tmp_path / name)["verify"] for name in ("at-once.parquet", "after.parquet", "v.parquet")]
    assert found[0] == found[1] == found[2]
    assert ktae("verify", tmp_path / "after.parquet", "-o", tmp_path / "last.parquet", "--force") == 0
    assert "input_input_correct" not in pq.read_table(tmp_path / "last.parquet").column_names


def test_a_scored_input_is_warned_of(tmp_path, capsys):
    table = four(response=["\\boxed{4}"] * 4, gold=["4", "4", "5", "5"])
    path = write(tmp_path / "in.parquet", table)
    assert ktae("score", path, "-o", tmp_path / "s.parquet", "-e", "ktae") == 0
    assert ktae("verify", tmp_path / "s.parquet", "-o", tmp_path / "v.parquet") == 0
    assert "its advantages come from the earlier verdicts" in capsys.readouterr().err
    assert ktae("highlight", tmp_path / "v.parquet", "--json") == 0


def test_the_options_on_the_command_line_have_the_defaults_of_the_library():
    from ktae_cli.verifying import VerifyOptions

    assert VerifyOptions().timeout == budget.SECONDS
