"""Groups and slices: keys, warnings about them, and results that no order, split or size of slice can change."""

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ktae_cli import partition
from ktae_cli.partition import Chunker, Spill
from ktae_cli.readers import parquet as parquet_reader
from ktae_cli.rollouts import Rollouts
from ktae_cli.runners import local
from tests.rollout_files import four, ktae, refusal, score, tokens_of, write

# --- the text of the key --------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def prompts(**columns) -> pa.Table:
    """Eight rows: two prompts, each in two steps of two rollouts."""
    base = {
        "prompt": ["p", "p", "q", "q"] * 2, "step": [1] * 4 + [2] * 4, "reward": [1.0, 0.0] * 4,
        "response_ids": [[1], [2]] * 4,
    }  # fmt: skip
    return pa.table({name: values for name, values in (base | columns).items() if values is not None})


def test_prompt_text_and_step_make_the_key(tmp_path, capsys):
    scored = score(tmp_path, prompts())
    p, q = digest(b"p"), digest(b"q")
    assert scored["group_id"].to_pylist() == [f"1/{p}"] * 2 + [f"1/{q}"] * 2 + [f"2/{p}"] * 2 + [f"2/{q}"] * 2
    assert "no group column: 4 groups of 2 rollouts by step + prompt" in capsys.readouterr().err


def test_prompt_text_alone_makes_the_key_and_sizes_are_printed(tmp_path, capsys):
    scored = score(tmp_path, prompts(step=None, prompt=["p"] * 6 + ["q"] * 2))
    assert scored["group_id"].to_pylist() == [digest(b"p")] * 6 + [digest(b"q")] * 2
    assert "2 groups of 2 to 6 rollouts by prompt" in capsys.readouterr().err


def test_prompt_ids_make_the_key_by_their_bytes(tmp_path):
    ids = [[1, 2]] * 2 + [[1], [1]] + [[], []] + [[2, 1]] * 2
    scored = score(tmp_path, prompts(step=None, prompt_ids=pa.array(ids, pa.large_list(pa.int64()))))
    expected = [digest(np.array(row, "<i4").tobytes()) for row in ids]
    assert scored["group_id"].to_pylist() == expected and len(set(expected)) == 4


@pytest.mark.parametrize("step", [[1.0] * 4 + [2.0] * 4, ["a"] * 4 + ["b"] * 4], ids=["float", "text"])
def test_step_of_another_type_keeps_steps_apart(tmp_path, step):
    assert len(set(score(tmp_path, prompts(step=step))["group_id"].to_pylist())) == 4


def test_prompt_like_id_goes_with_the_step(tmp_path):
    scored = score(tmp_path, prompts(problem_id=[7, 7, 8, 8] * 2))
    assert scored["group_id"].to_pylist() == ["1/7"] * 2 + ["1/8"] * 2 + ["2/7"] * 2 + ["2/8"] * 2
    assert scored["problem_id"].to_pylist() == [7, 7, 8, 8] * 2


def test_same_prompt_under_two_uids_is_two_groups(tmp_path):
    table = prompts(uid=["1", "1", "2", "2", "3", "3", "4", "4"], prompt=["same"] * 8, reward=[1.0, 0.0, 1.0, 1.0] * 2)
    got = score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist()
    assert [row[0] for row in got] == [0.5, -0.5, 0.0, 0.0] * 2


def test_group_by_ignores_uid_and_step(tmp_path):
    table = prompts(uid=[str(i) for i in range(8)], k=["a"] * 7 + ["b"], group_id=["old"] * 8)
    scored = score(tmp_path, table, "-e", "dr_grpo", "--group-by", "k")
    assert scored["advantages"][0].as_py() == pytest.approx([1 - 4 / 7])
    assert scored["group_id"].to_pylist() == ["old"] * 8


def test_group_by_several_columns_keeps_the_old_group_id_aside(tmp_path):
    table = prompts(k=["a"] * 8, group_id=["old"] * 8)
    scored = score(tmp_path, table, "--group-by", "k,step")
    assert scored["group_id"].to_pylist() == ["a/1"] * 4 + ["a/2"] * 4
    assert scored["input_group_id"].to_pylist() == ["old"] * 8


@pytest.mark.parametrize(("left", "right"), [("/", "/"), ("\\", "\\")])
def test_joined_keys_never_collide(tmp_path, left, right):
    table = pa.table(
        {
            "a": [f"x{left}y"] * 2 + ["x"] * 2, "b": ["z"] * 2 + [f"y{right}z"] * 2, "reward": [1.0, 1.0, 0.0, 0.0],
            "response_ids": [[1]] * 4,
        }
    )  # fmt: skip
    scored = score(tmp_path, table, "--group-by", "a,b")
    assert len(set(scored["group_id"].to_pylist())) == 2
    assert scored["advantages"].to_pylist() == [[0.0]] * 4


def test_numbers_name_groups_like_their_text(tmp_path):
    paths = [
        write(tmp_path / "a.parquet", four(group_id=pa.array([7] * 4, pa.int8()))),
        write(tmp_path / "b.parquet", four(group_id=pa.array([7] * 4, pa.int64()))),
    ]
    score(tmp_path, paths)
    assert set(tokens_of(tmp_path)["group_id"].to_pylist()) == {"7"}
    assert set(tokens_of(tmp_path)["n_incorrect"].to_pylist()) == {3}


@pytest.mark.parametrize(
    ("columns", "options", "name"),
    [
        ({"group_id": ["g", "g", None, "g"]}, [], "group_id"),
        ({"group_id": None, "prompt": ["g", "g", None, "g"]}, [], "prompt"),
        ({"k": [1, 2, None, 4]}, ["--group-by", "k"], "k"),
        ({"group_id": None, "problem_id": [1] * 4, "step": [1, 1, None, 1]}, [], "step"),
    ],
)
def test_null_key_names_file_row_and_column(tmp_path, capsys, columns, options, name):
    path = write(tmp_path / "in.parquet", four(**columns), row_group_size=1)
    assert f"in.parquet, row 2: {name} is null" in refusal(capsys, tmp_path, "score", path, *options)


# --- warnings -------------------------------------------------------------------------------------------------------


def test_every_row_alone_while_prompts_repeat_is_loud(tmp_path, capsys):
    table = prompts(uid=[str(i) for i in range(8)])
    got = score(tmp_path, table, "-e", "grpo")["advantages"].to_pylist()
    err = capsys.readouterr().err
    assert got == [[0.0]] * 8
    assert "warning: every row is a group of its own" in err and "only 2 of 8 prompts differ" in err
    assert "--group-by prompt" in err


def test_every_row_alone_with_prompts_of_their_own_is_quiet(tmp_path, capsys):
    score(tmp_path, prompts(uid=[str(i) for i in range(8)], prompt=[str(i) for i in range(8)]))
    assert "every row is a group" not in capsys.readouterr().err


def test_null_prompts_do_not_repeat(tmp_path, capsys):
    score(tmp_path, prompts(uid=[str(i) for i in range(8)], prompt=["p", None, None, "q", None, None, None, None]))
    assert "every row is a group" not in capsys.readouterr().err
    score(tmp_path, prompts(uid=[str(i) for i in range(8)], prompt=["p", None, None, "p", None, None, None, None]))
    assert "only 1 of 2 prompts differ" in capsys.readouterr().err


def test_one_prompt_with_two_ground_truths_is_warned_of(tmp_path, capsys):
    score(tmp_path, prompts(step=None, gold=["1", None, "3", "3", "2", "1", "3", "3"]))
    assert "1 group(s) hold several values of gold" in capsys.readouterr().err
    score(tmp_path, prompts(gold=["1", None, "3", "3", "2", "2", "3", "3"]))
    assert "hold several" not in capsys.readouterr().err


def test_text_that_is_not_utf8_in_a_key_is_refused(tmp_path, capsys):
    broken = pa.Array.from_buffers(pa.string(), 4, pa.array([b"\xff"] * 4, pa.binary()).buffers())
    path = write(tmp_path / "in.parquet", four(group_id=broken))
    assert "the group key is not UTF-8 text" in refusal(capsys, tmp_path, "score", path)


# --- --limit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 1, 5, 2, 6, 3, 7]], ids=["contiguous", "apart"])
def test_limit_keeps_the_first_groups_whole(tmp_path, capsys, order):
    table = pa.concat_tables([four(group_id=["a"] * 4), four(group_id=["b"] * 4)]).take(order)
    scored = score(tmp_path, table, "-n", 1, "-e", "dr_grpo")
    assert scored["group_id"].to_pylist() == ["a"] * 4
    assert scored["advantages"].to_pylist() == [[0.75, 0.75], [-0.25, -0.25], [-0.25], [-0.25]]
    assert "4 rollouts, 6 tokens, 1 groups" in capsys.readouterr().err


def test_limit_above_the_number_of_groups_is_everything(tmp_path):
    assert score(tmp_path, four(), "-n", 99).num_rows == 4


def test_dry_run_tells_the_passes_of_a_limited_run(tmp_path, capsys):
    table = pa.concat_tables([four(group_id=[name] * 4) for name in "abc"])
    path = write(tmp_path / "in.parquet", table)
    assert ktae("score", path, "--dry-run", "-n", 2) == 0
    assert "8 rollouts in 2 groups, one pass" in capsys.readouterr().err


# --- the result does not depend on how the data lie -----------------------------------------------------------------


@st.composite
def tables(draw) -> pa.Table:
    """Rollouts of a few groups in random order, with unknown rewards and verdicts, holes and parts."""
    rows = []
    for group in range(draw(st.integers(1, 5))):
        for member in range(draw(st.integers(1, 6))):
            ids = draw(st.lists(st.integers(0, 9), max_size=6))
            reward = draw(st.sampled_from([0.0, 1.0, 1.0, 0.7, -0.1, 1e-3, None]))
            for part in range(draw(st.sampled_from([1, 1, 1, 2]))):
                masks = st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))
                rows.append(
                    {
                        "key": f"{group}.{member}.{part}", "uid": f"g{group}", "rollout_id": f"{group}.{member}",
                        "reward": reward, "correct": None if reward in (None, 0.7) else reward > 0.5,
                        "response_ids": ids, "step": group % 2,
                        "response_mask": draw(st.none() | masks),
                    }
                )  # fmt: skip
    kinds = {
        "key": pa.string(), "uid": pa.string(), "rollout_id": pa.string(), "reward": pa.float64(),
        "correct": pa.bool_(),
        "response_ids": pa.list_(pa.int32()), "step": pa.int64(), "response_mask": pa.list_(pa.bool_()),
    }  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema(kinds))


SPECS = ("ktae", "ktae(loo=true,base=rloo)", "ktae_reference", "ktae_paper", "grpo(ddof=0)", "dapo")
OURS = ("advantages", "key_weight", "adv_", "key_weight_")


def results(directory: Path, parts: list[pa.Table], jobs: int, row_group_size: int) -> tuple[dict, set, pa.Table]:
    """Score tables as files; return our columns by row key as bytes, the token table as a set, and the scored table."""
    paths = [write(directory / f"{i}.parquet", part, row_group_size=row_group_size) for i, part in enumerate(parts)]
    options = [word for spec in SPECS for word in ("-e", spec)]
    scored = score(directory, paths, *options, "-j", jobs, "-q")
    names = [name for name in scored.column_names if name.startswith(OURS)]
    columns = {
        name: [None if row is None else np.array(row, np.float32).tobytes() for row in scored[name].to_pylist()]
        for name in names
    }
    by_key = {key: tuple(columns[name][i] for name in names) for i, key in enumerate(scored["key"].to_pylist())}
    lines = {tuple(map(repr, row.values())) for row in tokens_of(directory).to_pylist()}
    return by_key, lines, scored


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.randoms(use_true_random=False), st.integers(1, 7), st.integers(1, 3), st.booleans())
def test_order_split_jobs_and_slices_change_no_bit(table, random, group_size, n_files, tiny):
    order = list(range(len(table)))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plain, plain_tokens, _ = results(directory, [table], 1, 1 << 20)
        random.shuffle(order)
        shuffled = table.take(order)
        cuts = sorted(random.randrange(len(table) + 1) for _ in range(n_files - 1))
        parts = [shuffled.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)]
        with pytest.MonkeyPatch.context() as patch:
            if tiny:
                patch.setattr(partition, "BUCKET_BYTES", 64)
                patch.setattr(parquet_reader, "BATCH_BYTES", 64)
                patch.setattr(local, "CHUNK_TOKENS", dict.fromkeys(local.CHUNK_TOKENS, 3))
            moved, moved_tokens, scored = results(directory, parts, 2, group_size)
    assert moved == plain
    assert moved_tokens == plain_tokens
    for column in table.column_names:
        assert scored[column].combine_chunks().equals(shuffled[column].combine_chunks()), column


def many(n_groups: int = 60, size: int = 8) -> pa.Table:
    """Groups of random rollouts, one after the other."""
    random = np.random.default_rng(5)
    n = n_groups * size
    lengths = random.integers(0, 40, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table(
        {
            "uid": np.repeat(np.arange(n_groups), size), "key": np.arange(n),
            "reward": random.integers(0, 2, n).astype(float),
            "response_ids": pa.ListArray.from_arrays(offsets, pa.array(random.integers(0, 300, offsets[-1], np.int32))),
        }
    )  # fmt: skip


def by_key(scored: pa.Table) -> list:
    return scored.sort_by("key").select(["key", "advantages", "key_weight"]).to_pylist()


@pytest.mark.parametrize("bucket", [1, 1 << 10, 1 << 20])
def test_spill_of_any_bucket_size_gives_the_contiguous_result(tmp_path, monkeypatch, bucket):
    table = many()
    plain = score(tmp_path, table)
    tokens = tokens_of(tmp_path).to_pylist()
    shuffled = table.take(np.random.default_rng(1).permutation(len(table)))
    monkeypatch.setattr(partition, "BUCKET_BYTES", bucket)
    apart = score(tmp_path, shuffled, "-j", 2)
    assert by_key(apart) == by_key(plain)
    assert apart["key"].to_pylist() == shuffled["key"].to_pylist()
    assert sorted(tokens_of(tmp_path).to_pylist(), key=repr) == sorted(tokens, key=repr)


@pytest.mark.parametrize("chunk", [1, 100, 1000])
def test_chunks_of_any_size_give_the_same_bytes_of_results(tmp_path, monkeypatch, chunk):
    plain, tokens = score(tmp_path, many()), tokens_of(tmp_path)
    monkeypatch.setattr(local, "CHUNK_TOKENS", {"cpu": chunk, "cuda": chunk})
    assert score(tmp_path, many(), "-j", 2).equals(plain)
    assert tokens_of(tmp_path).equals(tokens)


def test_uneven_shuffled_groups_keep_their_baselines(tmp_path):
    groups = list("abcbacabaab")
    reward = [5.0 if group == "b" else i % 2 for i, group in enumerate(groups)]
    table = pa.table(
        {"uid": groups, "reward": pa.array(reward, pa.float64()), "response_ids": [[i] for i in range(11)]}
    )
    scored = score(tmp_path, table, "-e", "dr_grpo")
    got = [row[0] for row in scored["advantages"].to_pylist()]
    means = {g: np.mean([r for r, h in zip(reward, groups, strict=True) if h == g]) for g in "abc"}
    assert got == pytest.approx([r - means[g] for r, g in zip(reward, groups, strict=True)])
    assert {value for value, group in zip(got, groups, strict=True) if group == "b"} == {0.0}
    assert scored["uid"].to_pylist() == groups


@pytest.mark.parametrize("order", ["contiguous", "apart"])
def test_same_input_gives_the_same_bytes_whatever_the_jobs(tmp_path, order, monkeypatch):
    monkeypatch.setattr(local, "CHUNK_TOKENS", {"cpu": 500, "cuda": 500})
    table = many() if order == "contiguous" else many().take(np.random.default_rng(2).permutation(480))
    files = []
    for jobs in (1, 1, 2, 3):
        score(tmp_path, table, "-j", jobs)
        files.append([(tmp_path / name).read_bytes() for name in ("out.parquet", "out.tokens.parquet")])
    assert files[1] == files[0] and files[2] == files[0] and files[3] == files[0]


# --- the cutters themselves -----------------------------------------------------------------------------------------


def rows_of(groups: list[int], lengths: list[int]) -> Rollouts:
    n = len(groups)
    return Rollouts(
        np.array(groups, np.int64), np.zeros(n), np.zeros(n, np.int8), np.ones(n, bool), np.array(lengths, np.int64),
        np.arange(sum(lengths), dtype=np.int32),
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 12), st.integers(1, 6),
)  # fmt: skip
def test_chunker_yields_whole_groups_and_every_row_once(groups, tokens, batch):
    codes = [code for code, lengths in enumerate(groups) for _ in lengths]
    rows = rows_of(codes, [length for lengths in groups for length in lengths])
    chunker = Chunker(np.array([len(lengths) for lengths in groups]), tokens)
    chunks = []
    for start in range(0, len(rows), batch):
        chunks += chunker.push(rows.slice(start, min(start + batch, len(rows))))
    chunks += chunker.rest()
    assert np.concatenate([chunk.group for chunk in chunks]).tolist() == codes
    assert np.concatenate([chunk.token_ids for chunk in chunks]).tolist() == rows.token_ids.tolist()
    owners = [set(chunk.group.tolist()) for chunk in chunks]
    assert sum(map(len, owners)) == len(groups), "a group is cut"
    # A chunk closes as soon as it holds enough: without its last group it would not.
    for chunk in chunks:
        last = chunk.group == chunk.group[-1]
        assert chunk.lengths[~last].sum() < tokens


def test_spill_gives_back_rows_by_group_with_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "BUCKET_BYTES", 1)
    spill = Spill(str(tmp_path), 3, 3)
    spill.add(rows_of([2, 0, -1, 2], [1, 2, 1, 0]))
    spill.add(rows_of([1, 0], [1, 1]))
    spill.close()
    found = [(rows.group.tolist(), rows.token_ids.tolist(), numbers.tolist()) for rows, numbers in spill.buckets()]
    assert found == [([0, 0], [1, 2, 1], [1, 5]), ([1], [0], [4]), ([2, 2], [0], [0, 3])]
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    score(tmp_path, many().take(np.random.default_rng(3).permutation(480)))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_output_keeps_row_count_and_order_of_many_files(tmp_path):
    table = many()
    for i in range(7):
        write(tmp_path / f"{i}.parquet", table.slice(i * 70, 70), row_group_size=9)
    paths = [tmp_path / f"{i}.parquet" for i in (3, 1, 0, 6, 2, 5, 4)]
    scored = score(tmp_path, paths)
    expected = pa.concat_tables([pq.read_table(path) for path in paths])
    assert scored.select(table.column_names).equals(expected)


def test_long_texts_beside_few_tokens_do_not_wait_for_a_full_chunk(tmp_path, monkeypatch):
    sizes = []
    scored_rows = local.score_rows

    def score_and_note(rows, **given):
        sizes.append(len(rows))
        return scored_rows(rows, **given)

    monkeypatch.setattr(local, "score_rows", score_and_note)
    monkeypatch.setattr("ktae_cli.readers.parquet.BATCH_BYTES", 1 << 12)
    table = pa.table(
        {
            "group_id": [f"g{i // 4}" for i in range(400)], "reward": [float(i % 2) for i in range(400)],
            "response_ids": [[i % 5, 7] for i in range(400)], "response": [f"{i:04d}" * 250 for i in range(400)],
        }
    )  # fmt: skip
    whole = score(tmp_path, table)
    assert sizes == [400]
    monkeypatch.setattr(local, "PENDING_BYTES", 1 << 14)
    assert score(tmp_path, table).equals(whole)
    assert max(sizes[1:]) <= 40 and sum(sizes[1:]) == 400
