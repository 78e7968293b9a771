"""`ktae highlight`: what is chosen, what is drawn, and that model text cannot act on the terminal."""

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from ktae_cli.cli.highlight import highlight
from ktae_cli.errors import InputError, PrerequisiteError, UnknownNameError
from ktae_cli.readers.scored import ScoredFile
from ktae_cli.reports.terminal import console_for, print_view, split_breaks
from ktae_cli.reports.view import Choice, DrawnPiece, cut, shorten, smallest_p, view_group
from ktae_cli.token_text import byte_alphabet, choose_decoder
from tests.rollout_files import command
from tests.test_scored import ROWS, TYPES, broken_text, token_row, write_added, write_scored

app = typer.Typer()
app.command()(highlight)
SGR = re.compile(r"\x1b\[[0-9;]*m")
END = 256
HOSTILE = "[bold]x[/bold] [/INST] :smile: \x1b[31mred\x1b]0;title\x07 \u202eevil\u202c \x00\x9b2J\r 单\ud7ff"


@pytest.fixture(scope="session")
def bytes_tokenizer(tmp_path_factory) -> Path:
    """A tokenizer whose id n is byte n, and 256 is <|end|>."""
    vocabulary = dict(byte_alphabet())
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def run(*arguments, **kwargs):
    result = CliRunner().invoke(app, [str(part) for part in arguments], **kwargs)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def rollout(
    rollout_id: str, text: str, weights: dict[str, float], right: bool = True, group: str = "g", **more
) -> dict:
    """A rollout of byte tokens; weights of characters by their sign, every byte of the character alike."""
    data = text.encode()
    values = [weight for sign in text for weight in [weights.get(sign, 0.0)] * len(sign.encode())]
    row = {"prompt_id": group, "rollout_id": rollout_id, "prompt": "2+2?", "response_ids": list(data), "correct": right}
    row |= {"reward": float(right), "advantages": [1.0 if right else -1.0] * len(data), "key_weight": values}
    return row | more


def page(path: Path, tokenizer: Path | None = None, colored: bool = False, **choice) -> str:
    file = ScoredFile(path)
    decoder, note = choose_decoder(tokenizer, [path], file.has("response_tokens"))
    view = view_group(file, Choice(choice.pop("column", "key_weight"), **choice), decoder, note)
    stream = io.StringIO()
    options = {"force_terminal": True, "color_system": "truecolor", "no_color": False} if colored else {}
    console = Console(file=stream, width=100, markup=False, emoji=False, highlight=False, **options)
    print_view(view, console, str(path))
    return stream.getvalue()


@pytest.fixture
def small(tmp_path) -> Path:
    rows = [rollout("a", "ok 4\n", {"4": 0.8}), rollout("b", "no 5", {"5": -0.6}, right=False)]
    tokens = [token_row("g", ord("4"), 0.8), token_row("g", ord("5"), -0.6, p_value=0.31), token_row("g", 32, 0.0)]
    return write_scored(tmp_path / "x.scored.parquet", rows, TYPES, tokens=tokens)


def test_without_colour_weights_stand_in_brackets_after_the_tokens(small, bytes_tokenizer):
    text = page(small, bytes_tokenizer)
    assert "\x1b" not in text
    assert "\nok 4[+0.80]\n" in text
    assert "\nno 5[-0.60]\n" in text
    assert "|value| >= 0.2 " in text
    assert "1 right · 1 wrong" in text
    assert "2+2?" in text
    assert "✓ right  a   reward 1 · 5 tokens · mean |key_weight| 0.16" in text


def test_the_strongest_tokens_stand_with_counts_and_an_honest_line(small, bytes_tokenizer):
    text = page(small, bytes_tokenizer)
    assert re.search(r"\+0\.800 +6/8 +1/8 +\+0\.68 +0\.041 +52  4\n", text)
    assert re.search(r"-0\.600 +6/8 +1/8 +\+0\.68 +0\.31 +53  5\n", text)
    assert " 32  ·" not in text
    assert "not corrected for the 3 tokens tested." in text
    assert "With 8 right and 8 wrong rollouts no p can be below 0.00016.\n" in text


def test_with_colour_tokens_carry_the_background_of_the_scale(small, bytes_tokenizer):
    text = page(small, bytes_tokenizer, colored=True)
    assert "\x1b[38;2;255;255;255;48;2;165;74;0m4\x1b[0m" in text
    assert "48;2;74;148;200m5\x1b[0m" in text
    assert "[+0.80]" not in text
    assert "wrong -0.8 " in text and "+0.8 right" in text


def test_the_mixed_group_with_the_largest_mean_weight_is_shown_and_two_others_named(tmp_path):
    rows = []
    for group, weight in {"weak": 0.1, "strong": 0.9, "second": 0.5, "third": 0.3}.items():
        rows += [rollout(f"{group}-r", "x", {"x": weight}, group=group)]
        rows += [rollout(f"{group}-w", "y", {"y": -weight}, right=False, group=group)]
    rows += [rollout("all-right", "x", {"x": 99.0}, group="all right")] * 2
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES)
    result = run(path, "--json")
    view = json.loads(result.stdout)
    assert (view["group_id"], view["other_groups"]) == ("strong", ["second", "third"])
    assert f"ktae highlight {path} --group second" in run(path).stdout
    assert f"ktae highlight {path} --by advantages --group " in run(path, "--by", "advantages").stdout
    assert json.loads(run(path, "--group", "all right", "--json").stdout)["other_groups"] == []


def test_right_and_wrong_rollouts_with_the_strongest_values_are_shown(tmp_path):
    rows = [rollout(f"r{at}", "x", {"x": at / 10}) for at in range(5)]
    rows += [rollout(f"w{at}", "x", {"x": -at / 10}, right=False) for at in range(5)]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES)

    def shown(*options):
        return [r["rollout_id"] for r in json.loads(run(path, "--json", *options).stdout)["rollouts"]]

    assert shown() == ["r4", "r3", "w4", "w3"]
    assert shown("--rollouts-shown", 1) == ["r4", "w4"]
    assert len(shown("--full")) == 10
    assert shown("--rollout", "w1") == ["w1"]
    assert "6 more rollouts in this group" in run(path).stdout


def test_unscored_and_unknown_rollouts_are_counted_and_kept_apart(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)
    view = json.loads(run(path, "--json").stdout)
    assert view["counts"] == {"right": 1, "wrong": 1, "unknown": 1, "unscored": 1}
    assert [r["verdict"] for r in view["rollouts"]] == ["right", "wrong"]
    full = json.loads(run(path, "--json", "--full").stdout)
    assert [r["verdict"] for r in full["rollouts"]] == ["right", "wrong", "unknown", "unscored"]
    assert full["rollouts"][3]["reward"] is None
    assert "1 right · 1 wrong · 1 unknown · 1 unscored" in run(path).stdout


def test_parts_of_one_trajectory_count_once_and_are_shown_together(tmp_path):
    rows = [rollout("a", "x", {"x": 0.5}), rollout("b", "y", {"y": -0.1}, right=False), rollout("a", "z", {})]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES)
    view = json.loads(run(path, "--json").stdout)
    assert view["counts"]["right"] == 1
    assert [(r["rollout_id"], r["part"]) for r in view["rollouts"]] == [("a", "1 of 2"), ("a", "2 of 2"), ("b", "")]
    assert view["rollouts_left_out"] == 0


def test_verdict_of_a_trajectory_is_the_first_that_is_known(tmp_path):
    rows = [rollout("a", "x", {"x": 0.5}), rollout("b", "y", {"y": -0.1}, right=False), rollout("a", "z", {})]
    rows[0] |= {"reward": None, "correct": None}
    view = json.loads(run(write_scored(tmp_path / "x.scored.parquet", rows, TYPES), "--json").stdout)
    assert view["counts"] == {"right": 1, "wrong": 1, "unknown": 0, "unscored": 0}
    shown = [(r["rollout_id"], r["part"], r["verdict"], r["reward"]) for r in view["rollouts"]]
    assert shown == [("a", "1 of 2", "right", None), ("a", "2 of 2", "right", 1.0), ("b", "", "wrong", 0.0)]


def test_rows_without_a_rollout_id_stand_for_themselves(tmp_path):
    rows = [rollout(None, "x", {"x": 0.5}), rollout("None", "y", {"y": -0.1}, right=False), rollout(None, "z", {})]
    view = json.loads(run(write_scored(tmp_path / "x.scored.parquet", rows, TYPES), "--json").stdout)
    assert view["counts"] == {"right": 2, "wrong": 1, "unknown": 0, "unscored": 0}
    shown = [(r["rollout_id"], r["part"], r["verdict"]) for r in view["rollouts"]]
    assert shown == [("row 0", "", "right"), ("row 2", "", "right"), ("None", "", "wrong")]


def test_text_that_is_not_utf_8_is_shown_with_replacement_characters(tmp_path):
    rows = [rollout("a", "xy", {"x": 0.5}), rollout("b", "yx", {"y": -0.1}, right=False)]
    rows = [row | {"response_tokens": ["x", "y"]} for row in rows]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES | {"response_tokens": pa.list_(pa.string())})
    broken_text(path, "prompt", [b"2+\xff2", b"2+\xff2"])
    broken_text(path, "response_tokens", [[b"k\xff", b"y"], [b"y", b"x"]])
    text = run(path).stdout
    assert "prompt  2+�2\n" in text and "\nk�[+0.50]y\n" in text


def test_model_text_never_reaches_the_terminal_raw(tmp_path, bytes_tokenizer):
    rows = [rollout("a\x1b[2J", HOSTILE, {"[": 0.9, "\x1b": 0.5}, prompt=HOSTILE)]
    rows += [rollout("b", "\\" + HOSTILE, {}, right=False, prompt=HOSTILE)]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES, tokens=[token_row("g", 27, 0.9, token="\x1b")])
    for tokenizer in (bytes_tokenizer, None):
        plain, colored = page(path, tokenizer), SGR.sub("", page(path, tokenizer, colored=True))
        for text in (plain, colored):
            assert not set(text) & set("\x1b\x07\x00\x9b\r\u202e\u202c")
            assert "a␛[2J" in text
            assert "[bold]x[/bold] [/INST] :smile: ␛[31mred␛]0;title␇ \\u202eevil\\u202c ␀\\x9b2J" in text
    colored = SGR.sub("", page(path, bytes_tokenizer, colored=True))
    assert "\\[bold]x[/bold] [/INST] :smile: ␛[31mred" in colored
    assert "x[+0.90][/bold" not in colored


def test_hostile_stored_text_is_neutralised_too(tmp_path):
    types = TYPES | {"response_tokens": pa.list_(pa.string())}
    hostile = ["[/INST]", "\x1b[31m", "\u202e", "a\x00"]
    rows = [
        rollout("a", "abcd", {"b": 1.0}, response_tokens=hostile),
        rollout("b", "a", {}, False, response_tokens=["x"]),
    ]
    path = write_scored(tmp_path / "x.scored.parquet", rows, types)
    text = page(path)
    assert "[/INST]␛[31m[+1.00]\\u202ea␀" in text
    assert "\x1b" not in text


def test_output_to_a_pipe_has_no_escape_codes_and_no_trailing_blanks(small, bytes_tokenizer):
    result = run(small, "--tokenizer", bytes_tokenizer)
    assert "\x1b" not in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith("file") and line.endswith(" ")]


def test_no_color_is_honoured_on_a_terminal(small, bytes_tokenizer, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    file = ScoredFile(small)
    view = view_group(file, Choice("key_weight"), *choose_decoder(bytes_tokenizer))
    print_view(view, Console(file=stream, force_terminal=True, width=100), "x")
    assert "4[+0.80]" in stream.getvalue()
    assert "48;2" not in stream.getvalue()


def test_blanks_with_weight_become_signs_and_line_ends_stay():
    assert split_breaks(" ", marked=True) == ("·", "")
    assert split_breaks("\n\n", marked=True) == ("⏎⏎", "\n\n")
    assert split_breaks(".\n", marked=True) == (".⏎", "\n")
    assert split_breaks("\t", marked=True) == ("→   ", "")
    assert split_breaks(" the", marked=True) == (" the", "")
    assert split_breaks("a\n b", marked=True) == ("a⏎\n b", "")
    assert split_breaks("", marked=True) == ("∅", "")
    assert split_breaks(" \n", marked=False) == (" \n", "")


def test_tool_tokens_are_dimmed_and_special_tokens_are_badges(tmp_path, bytes_tokenizer):
    types = TYPES | {"response_mask": pa.list_(pa.bool_())}
    row = rollout("a", "abtool", {"b": 0.9, "t": 0.9}, response_mask=[True, True, False, False, False, False, True])
    row = {**row, "response_ids": [*row["response_ids"], END], "key_weight": [*row["key_weight"], 0.0]}
    rows = [row, rollout("b", "c", {}, right=False)]
    path = write_scored(tmp_path / "x.scored.parquet", rows, types)
    assert "ab[+0.90]⟪tool: tool⟫<|end|>" in page(path, bytes_tokenizer)
    colored = page(path, bytes_tokenizer, colored=True)
    assert "\x1b[3;38;2;118;118;118;48;2;247;247;245mtool\x1b[0m" in colored
    assert "\x1b[1;38;2;0;0;0;48;2;221;221;221m <|end|> \x1b[0m" in colored


def test_a_split_character_takes_its_strongest_value(tmp_path, bytes_tokenizer):
    row = rollout("a", "单", {}) | {"key_weight": [0.1, -0.9, 0.2]}
    path = write_scored(tmp_path / "x.scored.parquet", [row, rollout("b", "x", {}, False)], TYPES)
    pieces = json.loads(run(path, "--json", "--tokenizer", bytes_tokenizer).stdout)["rollouts"][0]["segments"][0][
        "pieces"
    ]
    assert pieces == [{"text": "单", "kind": "text", "start": 0, "stop": 3, "value": -0.9, "masked": False}]


def test_a_long_response_is_cut_around_its_strongest_tokens(tmp_path, bytes_tokenizer):
    text = "".join(chr(97 + at % 7) for at in range(1000)) + "!" + "." * 2000
    path = write_scored(
        tmp_path / "x.scored.parquet", [rollout("a", text, {"!": 0.9}), rollout("b", "x", {}, right=False)], TYPES
    )
    first = json.loads(run(path, "--json", "--tokenizer", bytes_tokenizer).stdout)["rollouts"][0]
    shown = sum(segment["stop"] - segment["start"] for segment in first["segments"])
    assert shown <= 160 and first["n_tokens"] == 3001
    assert any(piece["text"] == "!" for segment in first["segments"] for piece in segment["pieces"])
    assert first["segments"][-1]["stop"] == 3001
    output = run(path, "--tokenizer", bytes_tokenizer).stdout
    assert re.search(r"\n… [\d,]+ tokens …\n", output)
    assert "…" not in run(path, "--tokenizer", bytes_tokenizer, "--full").stdout.split("mean |key_weight|")[1]


def pieces_with(values: list[float]) -> list[DrawnPiece]:
    return [DrawnPiece(f"w{at}", "text", at, at + 1, value) for at, value in enumerate(values)]


def test_cut_keeps_short_responses_whole_and_joins_close_runs():
    values = np.zeros(400)
    assert [(s.start, s.stop) for s in cut(pieces_with([0.0] * 50), 50, 160, 0.1)] == [(0, 50)]
    assert cut([], 0, 160, 0.1) == []
    values[[100, 121]] = 1.0
    runs = [(s.start, s.stop) for s in cut(pieces_with(values.tolist()), 400, 44, 0.1)]
    assert runs == [(92, 130), (392, 400)]


def test_cut_prefers_different_texts_to_repeats():
    pieces = [DrawnPiece("same", "text", at, at + 1, 0.9) for at in range(0, 300)]
    pieces += [
        DrawnPiece("rare", "text", 300, 301, 0.5),
        *(DrawnPiece("x", "text", at, at + 1, 0) for at in range(301, 600)),
    ]
    kept = [piece.text for segment in cut(pieces, 600, 60, 0.1) for piece in segment.pieces]
    assert "rare" in kept


@pytest.mark.parametrize(
    ("right", "wrong", "point", "expected"),
    [(8, 8, False, 2 / 12870), (8, 8, True, 1 / 12870), (1, 3, False, 0.25), (2, 2, False, 1 / 3), (0, 4, False, None)],
)
def test_smallest_p_is_that_of_the_extreme_table(right, wrong, point, expected):
    assert smallest_p(right, wrong, point) == expected


def test_by_draws_any_float_column_and_names_the_nearest(small, bytes_tokenizer):
    assert "advantages of ktae" in run(small, "--by", "advantages").stdout
    with pytest.raises(UnknownNameError, match="no per-token column 'advantage'; nearest: advantages"):
        run(small, "--by", "advantage")


def test_unknown_groups_and_rollouts_name_the_nearest(small):
    with pytest.raises(UnknownNameError, match="no group 'gg'; nearest: g"):
        run(small, "--group", "gg")
    with pytest.raises(UnknownNameError, match="no rollout 'zz'; the first of 2: a, b"):
        run(small, "--rollout", "zz")


def test_added_columns_are_drawn_with_the_rollouts_file(tmp_path):
    path, original = write_added(tmp_path)
    text = run(path, "--rollouts", original).stdout
    assert "t1t2[+0.50]t3" in text
    assert "t1t4[-0.75]" in text
    assert "stored in response_tokens" in text


def test_a_missing_token_table_is_one_notice_and_the_rest_is_drawn(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)
    result = run(path)
    assert result.stderr == (
        "the strongest tokens of the group are left out: x.scored.parquet was written without a token table; "
        "score again to have one\n"
    )
    assert "⟨2⟩[+0.50]" in result.stdout
    assert run(path, "-q").stderr == ""


def test_a_lost_token_table_is_named_with_its_place_and_the_remedy(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES, tokens=[token_row("p1", 2, 0.5)])
    (tmp_path / "x.scored.tokens.parquet").unlink()
    assert run(path).stderr == (
        f"the strongest tokens of the group are left out: no file {tmp_path / 'x.scored.tokens.parquet'}; "
        "put the token table there, or score again\n"
    )


def test_a_file_without_mixed_groups_says_so(tmp_path):
    path = write_scored(tmp_path / "x.scored.parquet", [rollout("a", "x", {}), rollout("b", "y", {})], TYPES)
    result = run(path)
    assert "no group holds right and wrong rollouts" in result.stderr
    assert "2 right · 0 wrong" in result.stdout
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)
    assert "this group does not hold right and wrong rollouts" in run(path, "--group", "p2").stderr
    assert "this group does not" not in run(path, "--group", "p1").stderr


def test_lengths_that_disagree_name_the_row(tmp_path):
    rows = [ROWS[0], {**ROWS[1], "key_weight": [0.5] * 7}]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES)
    with pytest.raises(InputError, match=r"x.scored.parquet, row 1: response_ids holds 2 tokens, key_weight 7 values"):
        run(path)


def test_a_missing_tokenizer_is_an_error(small, tmp_path):
    with pytest.raises(PrerequisiteError, match="no tokenizer at"):
        run(small, "--tokenizer", tmp_path / "none.json")


def test_json_is_strict_and_says_on_stderr_where_text_comes_from(tmp_path):
    rows = [{**ROWS[0], "key_weight": [float("nan"), 0.5, 0.0]}, ROWS[1]]
    path = write_scored(
        tmp_path / "x.scored.parquet", rows, TYPES, tokens=[token_row("p1", 2, 0.5, p_value=float("nan"))]
    )
    result = run(path, "--json")
    view = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert view["key_tokens"][0]["p_value"] is None
    assert view["rollouts"][0]["segments"][0]["pieces"][0]["value"] == 0.0
    assert "token ids only" in result.stderr


def test_a_chat_prompt_is_shown_as_text(tmp_path):
    message = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    rows = [{**row, "prompt": [{"role": "user", "content": "what is 2+2"}]} for row in ROWS]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES | {"prompt": message})
    assert "user: what is 2+2" in run(path).stdout


def test_shorten_leaves_out_the_middle():
    assert shorten("a\n b\t c") == "a b c"
    assert shorten("x" * 150 + "y" * 150, 30) == "x" * 20 + " … " + "y" * 10


def test_a_closed_pipe_is_left_to_the_command_line():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        console_for(Closed()).print("x")


def test_console_for_a_pipe_writes_plain_lines():
    stream = io.StringIO()
    console_for(stream).print("[bold]:smile: 1.5")
    assert stream.getvalue() == "[bold]:smile: 1.5\n"


def test_stdout_that_cannot_encode_a_sign_gets_an_escape(small, bytes_tokenizer):
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    process = command("highlight", small, "--tokenizer", bytes_tokenizer, env=ascii_only)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "\\u2713 right" in out


def test_a_file_without_prompts_has_no_prompt_line(tmp_path):
    types = {name: dtype for name, dtype in TYPES.items() if name != "prompt"}
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, types)
    assert not [line for line in run(path).stdout.splitlines() if line.startswith("prompt")]
