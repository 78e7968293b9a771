"""The reports of `ktae tokens` in the terminal: the verdict's words, hostile text, narrow windows, light help."""

import io
import json
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.console import Console

from ktae_cli.reports.tokens import cut_unit, p_text, ratio_text, verdict
from tests.evidence.rollouts import planted, table
from tests.rollout_files import ktae, write
from tests.test_lazy_imports import run_command

FEW = ("--permutations", 20, "--resamples", 20)
HOSTILE = [
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "‮abc", "a\x00b", "line\nbreak\r", "\t", "[bold]x[/]", "é" * 100,
    "👩‍👩‍👧" * 20, ":smile:", "\x9b2J", "﻿",
]  # fmt: skip


def hostile() -> pa.Table:
    """Return groups whose right rollouts hold the first text and whose wrong ones the second."""
    random = np.random.default_rng(0)
    groups, texts = [], []
    for _ in range(12):
        group = []
        for right in (1, 1, 1, 0, 0, 0):
            ids = [int(not right), *random.integers(2, len(HOSTILE), 5).tolist()]
            group.append((ids, float(right)))
            texts.append([HOSTILE[i] for i in ids])
        groups.append(group)
    return table(groups, response_tokens=texts)


@pytest.mark.parametrize("unit", ["token", "word", "ngram:2", "regex:(?s)."])
@pytest.mark.parametrize("two", [False, True])
def test_text_of_tokens_cannot_act_on_the_terminal(tmp_path, capsys, unit, two):
    path = write(tmp_path / "a.parquet", hostile())
    inputs = [path, write(tmp_path / "b.parquet", hostile())] if two else [path]
    assert ktae("tokens", *inputs, "--unit", unit, "--min-groups", 1, *FEW) == 0
    out = capsys.readouterr().out
    assert not [c for c in out if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\u200d"]
    assert max(map(cell_len, out.splitlines())) <= 100


NONE = "None of 1,254 tokens survives at 5 %, beyond length."


def report_of(options: dict) -> dict:
    """Return a report with the fields that the verdict looks at."""
    needed = {"prompts": 400, "curve": [{"prompts": 60, "any": 0.1, "mean": 0.1}, {"prompts": 2560}], "effects": 0.2}
    base = {
        "unit": "token", "headline": "beyond length", "survive_at_all": 4, "survive_beyond_length": 0, "tested": 1254,
        "level": 0.05, "length_separates": False, "overlap": 0.04, "min_groups": 5, "groups_mixed": 1, "prompts": 40,
        "needed": needed | options.pop("needed", {}),
    }  # fmt: skip
    return base | options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"survive_beyond_length": 7}, "7 of 1,254 tokens survive at 5 %, beyond length."),
        ({"survive_beyond_length": 1, "unit": "word"}, "1 of 1,254 words survives at 5 %, beyond length."),
        ({"headline": "at all", "level": 0.001}, "4 of 1,254 tokens survive at 0.1 %, at all."),
        ({}, f"{NONE} About 400 prompts of this kind would be needed (40 are there)."),
        ({"needed": {"prompts": None}}, f"{NONE} More than 2,560 prompts of this kind would be needed."),
        ({"needed": {"effects": 0}}, f"{NONE} The effects are no larger than chance makes them: no number of "
                                     "prompts can be named."),
        ({"needed": {"curve": []}}, f"{NONE} It takes two prompts to say how many would be needed."),
        ({"length_separates": True}, "Length separates the classes; nothing can be said beyond it (4.0 % is left)."),
        ({"length_separates": True, "tested": 0},
         "No unit varies in 5 or more mixed groups (there is 1): nothing is tested."),
    ],
)  # fmt: skip
def test_the_verdict_in_words(options, said):
    assert verdict(report_of(options)) == said


def test_numbers_are_short_and_units_have_a_bounded_width():
    assert [ratio_text(x) for x in (0.004, 12.345, 52000.0, None)] == ["0.00", "12.35", "5e+04", "-"]
    assert ratio_text(None, infinite=True) == "inf"
    assert [p_text(p) for p in (1.0, 0.0421, 0.00042, None)] == ["1.000", "0.042", "4e-04", "-"]
    assert cut_unit("x" * 24) == "x" * 24
    assert cell_len(cut_unit("語" * 40)) <= 24 and cut_unit("語" * 40).endswith("…")
    assert cut_unit("a\nb\t") == "a⏎b→"


def test_an_infinite_odds_ratio_is_said_and_is_null_in_json(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", table([[([1, 3], 1.0), ([2, 3], 0.0)]] * 10))
    assert ktae("tokens", path, *FEW) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("⟨1⟩"))
    assert row.split()[1:6] == ["100.0", "%", "0.0", "%", "inf"]
    assert ktae("tokens", path, "--json", *FEW) == 0
    strongest = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["strongest"]
    assert {row["token_id"]: row["odds_ratio"] for row in strongest} == {1: None, 2: 0.0, 3: None}


@pytest.mark.parametrize("two", [False, True])
def test_a_narrow_terminal_gets_narrow_lines_and_no_colour_where_it_is_not_wanted(tmp_path, monkeypatch, two):
    from ktae_cli import reports

    path = write(tmp_path / "a.parquet", planted(20, 1))
    paths = [path, write(tmp_path / "b.parquet", planted(20, 2))] if two else [path]
    monkeypatch.setattr(reports.terminal, "console_for", lambda file: narrow)
    for no_color in (False, True):
        written = io.StringIO()
        narrow = Console(file=written, width=60, force_terminal=True, markup=False, emoji=False, no_color=no_color)
        assert ktae("tokens", *paths, *FEW) == 0
        plain = written.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
        assert "\x1b" not in plain
        assert max(map(cell_len, plain.splitlines())) <= 60


def test_quiet_leaves_stderr_empty_and_a_frame_stays_a_frame(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", planted(12, 1))
    assert ktae("tokens", path, "-q", *FEW) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith(("None of ", "1 of "))


def test_help_loads_nothing_heavy():
    done = run_command("tokens", "--help")
    assert "--length-control" in done.stdout and "--verdict-noise" in done.stdout
    assert done.heavy == set()


def test_leading_form_is_pointed_out(tmp_path, capsys):
    # a tag stands in right answers alone: the verifier asks for it
    vocabulary = ["</answer>", " so", " we", " add", " then", "#"]
    random = np.random.default_rng(1)
    groups, texts = [], []
    for _ in range(15):
        group = []
        for right in (1, 1, 0, 0):
            ids = [*random.integers(1, 5, 4).tolist(), *([0] if right else [1])]
            group.append((ids, float(right)))
            texts.append([vocabulary[i] for i in ids])
        groups.append(group)
    path = write(tmp_path / "in.parquet", table(groups, response_tokens=texts))
    assert ktae("tokens", path, "--length-control", "off", *FEW) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("2 of 5 tokens survive at 5 %, at all. The strongest are mostly format or special tokens")
