"""JSON lines as writers leave them: torn, compressed, with NaN, half characters and separators inside strings."""

import gzip
import json
import math
import tempfile
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import InputError, KtaeError
from ktae_cli.readers import _lines
from ktae_cli.readers._lines import Lines
from ktae_cli.readers.base import ReaderOptions


class Heard(list):
    """Options that keep what they warn of."""

    def options(self, **chosen) -> ReaderOptions:
        return ReaderOptions(warn=self.append, **chosen)


def read(content: bytes, directory: Path, **chosen) -> tuple[list, list[str], dict[str, int]]:
    path, heard = directory / "rows.jsonl", Heard()
    path.write_bytes(content)
    options = heard.options(**chosen)
    return [record.value for record in Lines(path, options)], list(heard), options.counts


def refusal(content: bytes, directory: Path, **chosen) -> str:
    with pytest.raises(InputError) as caught:
        read(content, directory, **chosen)
    return str(caught.value)


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


GOOD = b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def test_records_name_their_file_and_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":2}')
    assert [(r.value["a"], r.file, r.line) for r in Lines(path, ReaderOptions())] == [
        (1, str(path), 1),
        (2, str(path), 3),
    ]


def test_separators_inside_strings_do_not_end_a_line(tmp_path):
    text = "a\u2028b\u0085c\u2029d\x0be"
    content = json.dumps({"t": text}, ensure_ascii=False).encode() + b"\n" + json.dumps({"t": text}).encode() + b"\r\n"
    assert read(content, tmp_path)[0] == [{"t": text}, {"t": text}]


def test_nan_and_infinities_are_numbers(tmp_path):
    (row,), _, _ = read(b'{"score": NaN, "logs": [-0.1, -Infinity, Infinity]}\n', tmp_path)
    assert math.isnan(row["score"])
    assert row["logs"] == [-0.1, -math.inf, math.inf]


def test_lone_surrogates_are_replaced_and_counted_and_pairs_are_kept(tmp_path):
    content = rb'{"\ud83d": "x\ud83d", "whole": "\ud83d\ude00", "in": [{"deep": "\udc00"}]}' + b"\n"
    rows, _, counts = read(content, tmp_path)
    assert rows == [{"\ufffd": "x\ufffd", "whole": "\U0001f600", "in": [{"deep": "\ufffd"}]}]
    assert counts == {"lone surrogates replaced by U+FFFD": 3}


@pytest.mark.parametrize(
    "tail", [b'{"a": 4, "b": "to', b'{"a": "\xc3', b"{", b'{"a": 4}}', b'{"a": 4', b'{"a": nul\n', b"\0\0\0\0"]
)
def test_torn_last_line_is_left_out_with_a_warning(tmp_path, tail):
    rows, heard, counts = read(GOOD + tail, tmp_path)
    assert [row["a"] for row in rows] == [1, 2, 3]
    assert len(heard) == 1
    assert f"{tmp_path / 'rows.jsonl'}, line 4: the last line is torn" in heard[0]
    assert counts == {"torn last lines left out": 1}


def test_blank_lines_at_the_end_are_no_torn_lines(tmp_path):
    assert read(GOOD + b"\n  \n\n", tmp_path) == ([{"a": 1}, {"a": 2}, {"a": 3}], [], {})


def test_bad_line_in_the_middle_is_an_error_with_file_and_line(tmp_path):
    message = refusal(b'{"a": 1}\n{"a": 2, "b\n{"a": 3}\n', tmp_path)
    assert f"{tmp_path / 'rows.jsonl'}, line 2: not JSON" in message
    assert "--skip-bad-lines" in message


def test_bad_lines_are_skipped_and_counted_on_demand(tmp_path):
    content = b'{"a": 1}\n{"a": 2, "b\n[1, 2]\n"x"\n{"a": 3}\n{"a"'
    rows, heard, counts = read(content, tmp_path, skip_bad_lines=True)
    assert [row["a"] for row in rows] == [1, 3]
    assert counts == {"bad lines left out": 3, "torn last lines left out": 1}
    assert len(heard) == 1


@pytest.mark.parametrize(("line", "kind"), [(b"[1]", "array"), (b"3", "number"), (b'"x"', "string"), (b"null", "null")])
def test_line_that_is_no_object_is_refused(tmp_path, line, kind):
    assert f"line 1: a JSON {kind}, expected an object" in refusal(line + b"\n" + GOOD, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b'{"a', b"\xff\xfe\xfd", b"\xef\xbb\xbf"])
def test_file_of_which_nothing_can_be_read_is_an_error(tmp_path, content):
    assert "no JSON object can be read" in refusal(content, tmp_path)


def test_byte_order_mark_is_taken_off(tmp_path):
    assert read(b"\xef\xbb\xbf" + GOOD, tmp_path)[0][0] == {"a": 1}


@pytest.mark.parametrize("packed", [gzip.compress, zstd, lambda c: gzip.compress(c[:9]) + gzip.compress(c[9:])])
def test_compressed_lines_are_recognised_by_their_first_bytes(tmp_path, packed):
    assert [row["a"] for row in read(packed(GOOD), tmp_path)[0]] == [1, 2, 3]


def test_zstd_of_two_frames_is_read_to_its_end(tmp_path):
    assert [row["a"] for row in read(zstd(GOOD[:9]) + zstd(GOOD[9:]), tmp_path)[0]] == [1, 2, 3]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_truncated_compressed_file_gives_what_it_holds_or_one_error(tmp_path, pack):
    lines = b"".join(orjson.dumps({"a": i, "t": f"{i * 7919 % 10007}"}) + b"\n" for i in range(3000))
    packed = pack(lines)
    for cut in (len(packed) - 3, len(packed) // 2, 20, 5):
        try:
            rows, heard, _ = read(packed[:cut], tmp_path)
        except InputError as error:
            assert "rows.jsonl" in str(error)
        else:
            assert [row["a"] for row in rows] == list(range(len(rows)))
            assert heard


def test_lines_of_tens_of_megabytes_are_read(tmp_path):
    text = "é" * (12 << 20)
    rows, _, _ = read(orjson.dumps({"t": text}) + b"\n" + GOOD, tmp_path)
    assert rows[0]["t"] == text
    assert len(rows) == 4


def test_line_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 1 << 20)
    assert "a line is longer than 1 MiB" in refusal(b'{"t": "' + b"x" * (1 << 20) + b'"}\n', tmp_path)


def test_nesting_beyond_the_parsers_is_a_bad_line(tmp_path):
    assert "line 1: not JSON: nested too deeply" in refusal(b'{"a":' + b"[" * 200_000 + b"\n" + GOOD, tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b'{"a": 1}\n', gzip.compress(GOOD)[:30], zstd(GOOD)[:12]]))
def test_random_bytes_give_rows_or_one_clear_error(content, head):
    with tempfile.TemporaryDirectory() as directory:
        try:
            rows, _, _ = read(head + content, Path(directory))
        except KtaeError as error:
            assert "\n" not in str(error)
        else:
            assert all(type(row) is dict for row in rows)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        ), max_size=4), min_size=1, max_size=6,
    ), st.booleans(),
)  # fmt: skip
def test_what_python_writes_is_read_as_it_was(rows, ascii_only):
    content = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode(errors="surrogatepass")
    with tempfile.TemporaryDirectory() as directory:
        found, _, _ = read(content, Path(directory))
    assert repr(found) == repr(rows)
