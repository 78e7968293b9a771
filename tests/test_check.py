"""`ktae check` on the command line: reports, exit status, choosing rules, every format, hostile input."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ktae_cli
from ktae_cli.catalogue import declaration, rule_names
from ktae_cli.checking import Located
from ktae_cli.cli.check import github_line, text_line
from tests.checks.cases import clean, put, write
from tests.helpers import ROOT
from tests.rollout_files import ktae, refusal

SAMPLE = ROOT / "sample_data" / "rollouts.parquet"
DUMPS = sorted(p for p in (ROOT / "sample_data" / "dumps").iterdir() if p.is_dir())
LINES = [
    {"group_id": g, "prompt": g, "response_ids": [1, 2 + i], "reward": i % 2, "old_log_probs": [-0.5, -0.5]}
    for g in ("a", "b")
    for i in range(4)
]


def lines(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def report(capsys, *arguments) -> tuple[int, dict]:
    capsys.readouterr()
    status = ktae("check", *arguments, "--report", "json", "-q")
    return status, json.loads(capsys.readouterr().out)


def test_the_sample_has_no_fault(capsys):
    assert ktae("check", SAMPLE) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "1,152 rollouts, 72 groups, 41 rules: 0 errors, 0 warnings, 0 notes" in err


def test_a_finding_is_one_line_with_file_and_line(tmp_path, capsys):
    path = lines(tmp_path / "x.jsonl", [*LINES, LINES[0] | {"group_id": "alone", "prompt": "c"}])
    assert ktae("check", path, "-q") == 1
    assert capsys.readouterr().out == (
        f"{path}, line 9: KT101 warning: 1 of 3 groups hold one rollout: its advantage is 0; their siblings are "
        "missing\n"
    )


def test_github_annotations_have_file_and_line(tmp_path, capsys):
    path = lines(tmp_path / "a,b:c%.jsonl", [*LINES, LINES[0] | {"group_id": "alone", "prompt": "c"}])
    assert ktae("check", path, "-q", "--report", "github") == 1
    escaped = path.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    assert capsys.readouterr().out == (
        f"::warning file={escaped},line=9,title=KT101 singleton_groups::KT101 1 of 3 groups hold one rollout: its "
        "advantage is 0; their siblings are missing\n"
    )


def found(message: str, place: str = "x.parquet, row 3") -> Located:
    return Located("KT101", "singleton_groups", "note", message, "x.parquet", None, 3, place, 1, 2)


def test_github_messages_are_escaped_and_say_the_row_where_there_is_no_line():
    assert github_line(found("5 % of\na::b")) == (
        "::notice file=x.parquet,title=KT101 singleton_groups::KT101 5 %25 of%0Aa::b (row 3)"
    )


def test_text_cannot_act_on_a_terminal():
    assert text_line(found("a\x1b[2Jb\nc", "x\r.parquet, row 3")) == "x␍.parquet, row 3: KT101 note: a␛[2Jb⏎c"


def test_json_has_every_finding_and_what_was_not_checked(tmp_path, capsys):
    path = write(tmp_path / "x.parquet", put(old_log_probs={2: [0.5]}, advantages=None)(clean()))
    status, found = report(capsys, path, "--select", "KT3,KT4")
    assert status == found["status"] == 1
    assert [(one["id"], one["severity"], one["row"], one["line"]) for one in found["findings"]] == [
        ("KT301", "error", 2, None)
    ]
    assert found["findings"][0]["file"] == str(path)
    assert found["findings"][0]["place"] == f"{path}, row 2"
    assert (found["errors"], found["warnings"], found["notes"]) == (1, 0, 0)
    assert (found["rollouts"], found["groups"], found["reader"]) == (12, 3, "parquet")
    assert found["not_checked"]["KT405"] == ["advantages"]
    assert "KT301" in found["checked"]
    assert set(found["checked"]) | set(found["not_checked"]) == {i for i in rule_names() if i[2] in "34"}


def test_notes_alone_exit_0_and_under_strict_1(tmp_path, capsys):
    rows = put(reward=dict.fromkeys(range(8), 0.0), correct=dict.fromkeys(range(8), False))(clean())
    path = write(tmp_path / "x.parquet", rows)
    assert report(capsys, path, "--select", "KT202")[0] == 0
    status, found = report(capsys, path, "--select", "KT202", "--strict")
    assert (status, found["notes"]) == (1, 1)


def test_select_ignore_and_set_choose_rules(tmp_path, capsys):
    path = write(tmp_path / "x.parquet", clean())
    assert report(capsys, path, "--select", "KT1,unknown_rewards", "--ignore", "KT10,KT203")[1]["checked"] == []
    assert report(capsys, path, "--select", "kt203", "--select", "KT108")[1]["checked"] == ["KT108", "KT203"]
    rows = put(finish_reason={1: "length", 2: "length", 5: "length"})(clean())
    path = write(tmp_path / "y.parquet", rows)
    assert report(capsys, path, "--select", "KT306")[0] == 1
    assert report(capsys, path, "--select", "KT306", "--set", "KT306.share=0.25")[0] == 0
    assert report(capsys, path, "--select", "KT306", "--set", "many_truncated.share=0.24")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--select", "KT999"], "unknown rule 'KT999'"),
        (["--ignore", "singleton_group"], "nearest: singleton_groups"),
        (["--set", "KT306.shar=1"], "unknown parameter of KT306: 'shar' (nearest: share)"),
        (["--set", "KT306.share=many"], "share takes a number"),
        (["--set", "KT306"], "expected RULE.parameter=value"),
        (["--set", "KT102.share=1"], "unknown parameter of KT102"),
        (["--correct-threshold", "nan"], "finite number"),
        (["--tokenizer", "nowhere"], "no tokenizer at nowhere"),
        (["--report", "xml"], "xml"),
    ],
)
def test_wrong_usage_is_refused(tmp_path, capsys, arguments, says):
    path = write(tmp_path / "x.parquet", clean())
    assert says in refusal(capsys, tmp_path, "check", path, *arguments)


def test_an_input_without_rows_is_refused(tmp_path, capsys):
    path = write(tmp_path / "x.parquet", pa.table({"group_id": pa.array([], pa.string())}))
    assert "no rollouts (0 rows)" in refusal(capsys, tmp_path, "check", path)


def test_lines_that_score_refuses_are_left_out_and_reported(tmp_path, capsys):
    bad = json.dumps(LINES[1] | {"old_log_probs": [-0.5]})
    texts = [*map(json.dumps, LINES[:3]), bad, "{", *map(json.dumps, LINES[3:])]
    (tmp_path / "x.jsonl").write_text("\n".join(texts))
    status, found = report(capsys, tmp_path / "x.jsonl", "--select", "KT0,KT3")
    assert status == 1
    assert [(one["id"], one["line"]) for one in found["findings"]] == [("KT006", None), ("KT301", 4)]
    assert "1 bad lines left out" in found["findings"][0]["message"]
    assert f"the first: {tmp_path / 'x.jsonl'}, line 5: not JSON" in found["findings"][0]["message"]
    assert found["rollouts"] == 9


def test_rows_that_a_reader_refuses_are_left_out_and_reported(tmp_path, capsys):
    shutil.copytree(ROOT / "sample_data" / "dumps" / "nemo_rl", tmp_path / "x")
    path = next((tmp_path / "x").rglob("*.jsonl"))
    row = json.loads(path.read_text().splitlines()[0])
    row["generation_logprobs"] = [values[:-1] for values in row["generation_logprobs"]]
    path.write_text("\n".join([json.dumps(row), *path.read_text().splitlines()[1:]]))
    assert ktae("inspect", path) == 2
    status, found = report(capsys, path, "--select", "KT006")
    assert status == 1
    assert "unequal length" in found["findings"][0]["message"]
    assert f"the first: {path}, line 1" in found["findings"][0]["message"]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.name)
def test_every_format_can_be_checked(dump, capsys):
    readable = ktae("inspect", dump, "--unsafe-pickle") == 0
    if not readable:
        assert ktae("check", dump, "--unsafe-pickle") == 2
        return
    status, found = report(capsys, dump, "--unsafe-pickle")
    assert status in (0, 1)
    assert found["rollouts"] > 0
    for one in found["findings"]:
        assert one["file"].startswith(str(dump))


def test_findings_do_not_depend_on_the_order_of_the_rows(tmp_path, capsys):
    rows = put(ground_truth={6: "7"}, prompt={9: "Else?"}, reward={1: None})(clean(12))
    order = np.random.default_rng(0).permutation(48).tolist()
    shuffled = {name: [values[i] for i in order] for name, values in rows.items()}
    texts = []
    for name, columns in (("a", rows), ("b", shuffled)):
        _, found = report(capsys, write(tmp_path / f"{name}.parquet", columns))
        texts.append([(one["id"], one["count"], one["of"]) for one in found["findings"]])
    assert texts[0] == texts[1]
    assert [id for id, _, _ in texts[0]] == ["KT102", "KT104", "KT203"]


def test_limit_looks_at_the_first_groups_only(tmp_path, capsys):
    rows = put(ground_truth={6: "7"})(clean(3))
    path = write(tmp_path / "x.parquet", rows)
    assert report(capsys, path, "--select", "KT102", "-n", "1")[1]["findings"] == []
    assert report(capsys, path, "--select", "KT102", "-n", "2")[1]["findings"][0]["of"] == 2


def test_parts_of_a_trajectory_count_once(tmp_path, capsys):
    rows = put(rollout_id=["a", "a", "b", "b"] + [None] * 8, reward=dict.fromkeys(range(4), 1.0))(clean())
    _, found = report(capsys, write(tmp_path / "x.parquet", rows), "--select", "KT202", "--set", "KT202.share=0")
    assert (found["findings"][0]["count"], found["findings"][0]["of"]) == (1, 3)
    _, found = report(capsys, write(tmp_path / "x.parquet", rows), "--select", "KT103")
    assert found["findings"] == []  # 2 of 3 groups have 4 rollouts, the first has 2: no usual size


def test_the_library_gives_the_same_report(tmp_path, capsys):
    path = write(tmp_path / "x.parquet", put(ground_truth={6: "7"})(clean()))
    _, printed = report(capsys, path)
    assert ktae_cli.check(path) == printed
    frame = ktae_cli.check(pa.table({"group_id": ["a"], "reward": [1.0], "response_ids": [[1]]}), select="KT101")
    assert [(one["id"], one["place"], one["row"]) for one in frame["findings"]] == [("KT101", "row 0", 0)]


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_values_never_end_in_a_traceback(tmp_path, capsys, data):
    odd = st.one_of(
        st.none(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=3), st.booleans(),
        st.lists(st.one_of(st.none(), st.integers(-2, 700), st.floats()), max_size=4),
        st.dictionaries(st.text(), st.none()),
    )  # fmt: skip
    rows = [dict(row) for row in LINES]
    names = [*LINES[0], "response", "correct", "response_mask", "finish_reason", "ground_truth", "step", "advantages"]
    for _ in range(data.draw(st.integers(1, 4))):
        rows[data.draw(st.integers(0, 7))][data.draw(st.sampled_from(names))] = data.draw(odd)
    path = lines(tmp_path / "x.jsonl", rows)
    assert ktae("check", path, "--eos-id", "1", "--pad-id", "2") in (0, 1, 2)


def test_text_that_is_not_utf8_is_refused(tmp_path, capsys):
    rows = pa.table({"group_id": ["a", "a"], "reward": [0, 1], "response_ids": [[1], [2]]})
    damaged = pa.array([b"a", b"\xff"]).view(pa.string())
    path = write(tmp_path / "x.parquet", rows.append_column("response", damaged))
    assert "is not UTF-8" in refusal(capsys, tmp_path, "check", path)


def test_check_loads_nothing_heavy():
    code = "import sys; from ktae_cli.cli.app import run; run(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "check", SAMPLE], capture_output=True, text=True, cwd=ROOT)
    assert "ktae_cli.checks.verdict_by_format" in done.stdout
    assert not {"torch", "matplotlib", "scipy", "ray"} & {name.partition(".")[0] for name in done.stdout.split()}


def test_list_and_explain_know_the_rules(capsys):
    assert ktae("list", "rules") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in listed] == list(rule_names())
    for name in ("KT203", "kt203", "unknown_rewards"):
        assert ktae("explain", name) == 0
        text = capsys.readouterr().out
        assert text.startswith("KT203 unknown_rewards (rule)")
        assert "severity: warning" in text
        assert "share=0.0" in text


def test_the_page_lists_every_rule_as_declared():
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| KT")]
    assert rows == [table_row(name) for name in rule_names().values()]


def table_row(name: str) -> str:
    """Return the row of a rule in docs/checks.md."""
    rule = declaration("checks", name)
    parameters = ", ".join(f"`{p.name}={p.default}`" for p in rule.parameters.values())
    return f"| {rule.id} | `{name}` | {rule.severity} | {rule.summary.replace('|', chr(92) + '|')} | {parameters} |"
