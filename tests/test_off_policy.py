"""How far two policies lie apart: the formulas, the sums over an input, and the columns written of it."""

import json
import math
import statistics
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli import off_policy
from ktae_cli.errors import KtaeError
from ktae_cli.library import inspect
from ktae_cli.off_policy_facts import Bounds, Tally
from ktae_cli.off_policy_rows import find_pairs
from tests.rollout_files import write

# Probabilities 0.5 0.25 0.8 0.1 become 0.6 0.2 0.8 0.3: ratios 1.2 0.8 1 3, their product 2.88, their squares 12.08.
OLD = np.log([0.5, 0.25, 0.8, 0.1])
NEW = np.log([0.6, 0.2, 0.8, 0.3])
RATIOS = [1.2, 0.8, 1.0, 3.0]
LOG_RATIO = off_policy.log_ratios(OLD, NEW)
FOUR = np.array([4])


def rollouts(old, new, **columns) -> pa.Table:
    """Return rollouts of one group; columns given replace or add."""
    base = {
        "group_id": ["g"] * len(old),
        "reward": [1.0, 0.0] * (len(old) // 2) + [0.0] * (len(old) % 2),
        "response_ids": [[] if row is None else list(range(10, 10 + len(row))) for row in old],
        "old_log_probs": pa.array(old, pa.list_(pa.float64())),
        "log_probs": pa.array(new, pa.list_(pa.float64())),
    }
    return pa.table(base | columns)


def old_new(table: pa.Table, **options) -> dict:
    return inspect(table, **options)["off_policy"]["pairs"]["old_new"]


def test_formulas_at_four_tokens():
    assert off_policy.ratios(LOG_RATIO) == pytest.approx(RATIOS)
    assert off_policy.k1(LOG_RATIO) == pytest.approx([-0.18232156, 0.22314355, 0, -1.09861229])
    assert off_policy.k3(LOG_RATIO) == pytest.approx([0.01767844, 0.02314355, 0, 0.90138771])
    assert off_policy.chi_square(LOG_RATIO) == pytest.approx([0.44, -0.36, 0, 8])
    assert off_policy.truncated_weights(LOG_RATIO, 2) == pytest.approx([1.2, 0.8, 1, 2])
    assert off_policy.masked_weights(LOG_RATIO, 0.9, 2) == pytest.approx([1.2, 0, 1, 0])
    assert off_policy.log_sequence_weights(LOG_RATIO, FOUR) == pytest.approx([math.log(2.88)])
    assert off_policy.geometric_mean_ratios(LOG_RATIO, FOUR) == pytest.approx([1.302711])
    assert off_policy.token_effective_sample_sizes(LOG_RATIO, FOUR) == pytest.approx([36 / 48.32])
    weights = off_policy.log_sequence_weights(LOG_RATIO, np.array([2, 2]))  # 0.96 and 3
    assert off_policy.effective_sample_size(weights) == pytest.approx(3.96**2 / (2 * (0.96**2 + 9)))


def test_rollout_without_tokens_has_weight_1_and_no_sample_size():
    lengths = np.array([0, 4, 0])
    assert off_policy.log_sequence_weights(LOG_RATIO, lengths).tolist()[::2] == [0, 0]
    assert off_policy.geometric_mean_ratios(LOG_RATIO, lengths) == pytest.approx([1, 1.302711, 1])
    assert np.isnan(off_policy.token_effective_sample_sizes(LOG_RATIO, lengths)).tolist() == [True, False, True]
    assert math.isnan(off_policy.effective_sample_size(np.zeros(0)))


def test_equal_policies_have_no_distance_and_full_sample_size():
    same = off_policy.log_ratios(OLD, OLD)
    assert not np.signbit(off_policy.k1(same)).any()
    assert not off_policy.k3(same).any() and not off_policy.chi_square(same).any()
    assert off_policy.effective_sample_size(np.full(7, -3.0)) == 1
    assert off_policy.token_effective_sample_sizes(same, FOUR) == 1


def test_k3_and_chi_square_keep_their_digits_near_1():
    tiny = np.array([1e-6, -1e-6])
    assert off_policy.k3(tiny) == pytest.approx([5e-13, 5e-13], rel=1e-4)
    assert off_policy.chi_square(tiny) == pytest.approx([2e-6, -2e-6], rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_ratios_are_held_within_20(dtype):
    top = np.finfo(dtype).max
    found = off_policy.log_ratios(np.array([-top, 0, -30], dtype), np.array([top, -top, -11], dtype))
    assert found.dtype == np.float64 and found.tolist() == [20, -20, 19]


def test_sample_size_of_enormous_weights_does_not_overflow():
    assert off_policy.effective_sample_size(np.array([1e6, 1e6])) == 1
    assert off_policy.effective_sample_size(np.array([-1e6, 1e6])) == 0.5


@given(st.lists(st.lists(st.floats(-400, 400), max_size=5), min_size=1, max_size=5))
def test_sample_size_of_parts_is_that_of_the_whole(parts):
    merged = off_policy.WeightSums()
    for part in parts:
        merged = merged.merge(off_policy.WeightSums.of(np.array(part)))
    weights = [w for part in parts for w in part]
    assert merged.n == len(weights)
    if weights:
        scaled = [math.exp(w - max(weights)) for w in weights]
        slow = sum(scaled) ** 2 / (len(scaled) * sum(w**2 for w in scaled))
        assert merged.effective_sample_size() == pytest.approx(slow, rel=1e-12)


def test_positions_fall_into_tenths():
    found = off_policy.position_deciles(np.array([3, 0, 10, 1, 20]))
    assert found.tolist() == [0, 3, 6, *range(10), 0, *[i // 2 for i in range(20)]]


@given(st.lists(st.floats(-20, 20) | st.floats(-1e-5, 1e-5), min_size=1, max_size=60))
def test_quantiles_are_the_sorted_values_within_a_thousandth(values):
    tally = Tally()
    for part in np.array_split(np.array(values), 3):
        tally.add(part, Bounds())
    found = tally.facts()["ratio"]
    assert found["min"] == math.exp(min(values)) and found["max"] == math.exp(max(values))
    for name, share in (("p1", 0.01), ("p5", 0.05), ("median", 0.5), ("p95", 0.95), ("p99", 0.99)):
        exact = np.quantile(values, share, method="inverted_cdf")
        assert math.log(found[name]) == pytest.approx(exact, rel=0.00101, abs=1.1e-6)


def test_pairs_follow_the_columns():
    def names(*columns):
        return [(pair.name, pair.old, pair.new) for pair in find_pairs(columns)]

    engine, old, new = "rollout_log_probs", "old_log_probs", "log_probs"
    assert names(engine, old, new) == [("engine_trainer", engine, old), ("old_new", old, new)]
    assert names(engine, new) == [("old_new", engine, new)]
    assert names(engine, old) == [("engine_trainer", engine, old)]
    assert names(old) == names(new) == names(engine) == names() == []


def test_facts_of_two_rollouts_by_hand():
    table = rollouts([OLD[:2].tolist(), OLD[2:].tolist()], [NEW[:2].tolist(), NEW[2:].tolist()])
    found = old_new(table, clip=(0.9, 1.28))
    assert (found["tokens"], found["rollouts"], found["skipped"], found["without_tokens"]) == (4, 2, 0, 0)
    assert found["k1"] == pytest.approx(-math.log(2.88) / 4) and found["k3"] == pytest.approx(0.5 - math.log(2.88) / 4)
    assert found["chi_square"] == pytest.approx(12.08 / 4 - 1)
    assert (found["share_below_clip"], found["share_above_clip"]) == (0.25, 0.25)
    assert (found["truncated_weight"], found["share_truncated"]) == (pytest.approx(1.25), 0.25)
    assert (found["masked_weight"], found["share_masked"]) == (pytest.approx(0.75), 0.25)
    assert found["effective_sample_size"] == pytest.approx(3.96**2 / (2 * (0.96**2 + 9)))
    sizes = [4 / (2 * 2.08), 16 / 20]
    assert found["token_effective_sample_size_median"] == pytest.approx(sum(sizes) / 2)
    assert found["token_effective_sample_size_min"] == pytest.approx(0.8)
    tenths = found["k3_by_position"]
    assert (tenths[0], tenths[5]) == (pytest.approx((0.2 - math.log(1.2)) / 2), pytest.approx(0.46226563))
    assert [tenths[i] for i in (1, 2, 3, 4, 6, 7, 8, 9)] == [None] * 8
    largest = [(t["row"], t["position"], t["token_id"], round(t["ratio"], 6)) for t in found["largest"]]
    assert largest == [(1, 1, 11, 3.0), (0, 1, 11, 0.8), (0, 0, 10, 1.2)]


def test_mask_takes_tokens_out_and_keeps_positions():
    table = rollouts([[-1.0] * 10], [[-1.0, float("nan")] + [-0.5] * 8], response_mask=[[1, 0] * 5])
    found = old_new(table)
    assert (found["tokens"], found["skipped"]) == (5, 0)
    assert found["k1"] == pytest.approx(-0.4)
    assert [i for i, value in enumerate(found["k3_by_position"]) if value is not None] == [0, 2, 4, 6, 8]
    assert [t["position"] for t in found["largest"]] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("old", "new", "columns", "reason"),
    [
        (None, [-1.0], {}, "old_log_probs is null"),
        ([-1.0], None, {}, "log_probs is null"),
        ([-1.0, -1.0], [-1.0], {}, "log_probs has 1 values for 2 old_log_probs"),
        ([-1.0], [-1.0], {"response_ids": [[1], [1, 2]]}, "response_ids has 2 values for 1 old_log_probs"),
        ([-1.0], [-1.0], {"response_mask": [[1], []]}, "response_mask has 0 values for 1 old_log_probs"),
        ([-1.0], [-1.0], {"response_mask": [[1], [2]]}, "response_mask holds a value other than 0 and 1"),
        ([float("nan")], [-1.0], {}, "old_log_probs holds no finite number"),
        ([-1.0], [float("-inf")], {}, "log_probs holds no finite number"),
        ([None], [-1.0], {}, "old_log_probs holds no finite number"),
    ],
)
def test_row_that_cannot_be_compared_is_counted_and_named(old, new, columns, reason):
    found = old_new(rollouts([[-1.0], old], [[-0.5], new], **columns))
    assert (found["skipped"], found["first_skipped"]) == (1, f"row 1: {reason}")
    assert (found["tokens"], found["rollouts"]) == (1, 1) and found["k1"] == pytest.approx(-0.5)


def test_first_row_that_cannot_be_compared_is_named_over_batches(tmp_path):
    old = [[-1.0], [float("inf")], [-1.0], None]
    table = rollouts(old, [[-1.0]] * 4, response_ids=[[1]] * 4)
    for size in (1, 4):
        path = write(tmp_path / "in.parquet", table, row_group_size=size)
        found = old_new(path)
        assert found["skipped"] == 2
        assert found["first_skipped"] == f"{path}, row 1: old_log_probs holds no finite number"


def test_no_comparable_token_gives_null_and_valid_json():
    table = rollouts([[], [-1.0], None], [[], [-1.0], [-1.0]], response_mask=[[], [False], None])
    facts = inspect(table)
    found = facts["off_policy"]["pairs"]["old_new"]
    assert (found["tokens"], found["rollouts"], found["without_tokens"], found["skipped"]) == (0, 0, 2, 1)
    assert found["k1"] is found["ratio"] is found["effective_sample_size"] is None
    assert found["k3_by_position"] == [None] * 10 and found["largest"] == []
    assert json.loads(json.dumps(facts, allow_nan=False))["off_policy"]["clip"] == [0.8, 1.28]


def test_far_policies_stay_finite_and_are_counted():
    found = old_new(rollouts([[-1e300, -1.0], [-3e38, 0.0]], [[-1.0, -1e300], [1e300, 0.0]]))
    assert found["tokens_at_bound"] == 3 and found["chi_square"] == pytest.approx(math.exp(40) / 2)
    assert json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "dtype",
    [
        pa.large_list(pa.float16()), pa.list_(pa.float32(), 2), pa.list_view(pa.float64()),
        pa.list_(pa.decimal128(9, 3)), pa.list_(pa.int8()),
    ],
    ids=str,
)  # fmt: skip
def test_any_list_of_numbers_is_read(dtype):
    convert = Decimal if pa.types.is_decimal(dtype.value_type) else int if dtype.value_type == pa.int8() else float
    old = pa.array([[convert(-1), convert(-3)], None, [convert(-2), convert(-4)]], dtype)
    new = [[-0.5, -3.0], [-1.0], [-2.0, -4.0]]
    table = rollouts([[0.0] * 2, [0.0], [0.0] * 2], new, old_log_probs=old)
    found = old_new(table.slice(0, 3))
    assert (found["tokens"], found["skipped"]) == (4, 1) and found["k1"] == pytest.approx(-0.125)
    assert old_new(table.slice(1))["k1"] == 0


def test_categorical_values_are_read():
    flat = pa.array([-1.0, -0.5, -0.5], pa.float32()).dictionary_encode()
    old = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), flat)
    found = old_new(rollouts([[0.0], [0.0] * 2], [[-1.0], [-0.25, -0.5]], old_log_probs=old))
    assert (found["tokens"], found["skipped"]) == (3, 0) and found["k1"] == pytest.approx(-0.25 / 3)


def test_key_tokens_stand_against_the_rest():
    old, new = [[-1.0] * 4, [-1.0] * 2, [-1.0]], [[-0.5, -1.0, -1.25, -1.0], [-9.0, -9.0], [-0.9]]
    weights = pa.array([[0.5, 0.4, -0.75, 0.0], None, [float("nan")]], pa.list_(pa.float32()))
    found = old_new(rollouts(old, new, key_weight=weights))
    assert (found["tokens"], found["key"]["tokens"], found["rest"]["tokens"]) == (7, 2, 2)
    assert found["key"]["k1"] == pytest.approx((-0.5 + 0.25) / 2) and found["rest"]["k1"] == 0
    found = old_new(rollouts(old, new, key_weight=weights), key_threshold=0.6)
    assert (found["key"]["k1"], found["rest"]["tokens"]) == (pytest.approx(0.25), 3)
    assert "key" not in old_new(rollouts(old, new, key_weight=["a"] * 3))


def test_largest_tokens_are_the_first_of_equal_ones_in_any_batching(tmp_path):
    new = [[-1.0 - 0.25 * ((i + t) % 4) for t in range(5)] for i in range(8)]
    expected = [(i, t) for i in range(8) for t in range(5) if (i + t) % 4 == 3][:5]
    for size in (1, 3, 8):
        path = write(tmp_path / "in.parquet", rollouts([[-1.0] * 5] * 8, new), row_group_size=size)
        assert [(t["row"], t["position"]) for t in old_new(path)["largest"]] == expected


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"clip": (1.2, 0.8)}, "clip 1.2:0.8"), ({"clip": (0.8, math.inf)}, "clip 0.8:inf"),
        ({"mask": (-1.0, 2.0)}, "mask -1:2"), ({"cap": 0.0}, "cap 0"), ({"cap": math.nan}, "cap nan"),
        ({"key_threshold": -0.5}, "key threshold -0.5"),
    ],
)  # fmt: skip
def test_bounds_that_bound_nothing_are_refused(options, found):
    with pytest.raises(KtaeError, match=f"^{found}: expected"):
        Bounds(**options)


def test_masked_weights_are_kept_between_1_over_cap_and_cap():
    assert Bounds(cap=4.0).kept == (0.25, 4.0) and Bounds(cap=0.5).kept == (0.5, 2.0)
    assert Bounds(mask=(0.5, 5.0)).kept == (0.5, 5.0)


VALUES = st.floats(-25, 0, width=32)
TOKEN = st.tuples(VALUES, VALUES, st.booleans(), st.floats(-1, 1, width=32))
ROW = st.tuples(st.lists(TOKEN, max_size=12), st.sampled_from(["fine"] * 4 + ["null", "short", "nan"]))


def table_of(rows) -> pa.Table:
    """Return the rows as a table; a row that is not fine has its new log-probs spoilt."""
    new = []
    for tokens, kind in rows:
        values = [token[1] for token in tokens]
        spoilt = {"null": None, "short": [*values, -1.0], "nan": values[:-1] + [float("nan")] * bool(values)}
        new.append(spoilt.get(kind, values))
    columns = {
        name: pa.array([[token[i] for token in tokens] for tokens, _ in rows], pa.list_(dtype))
        for name, i, dtype in (("response_mask", 2, pa.bool_()), ("key_weight", 3, pa.float32()))
    }
    return rollouts([[token[0] for token in tokens] for tokens, _ in rows], new, **columns)


def slow_rows(rows):
    """Return for each row the (position, log ratio, key weight) of its policy tokens, None if it cannot be compared."""
    out = []
    for tokens, kind in rows:
        spoilt = kind in ("null", "short") or (kind == "nan" and tokens and tokens[-1][2])
        kept = [
            (t, min(20.0, max(-20.0, float(new) - float(old))), weight)
            for t, (old, new, mask, weight) in enumerate(tokens) if mask
        ]  # fmt: skip
        out.append(None if spoilt else kept)
    return out


def slow_means(values: list[float], cap: float, low: float, high: float) -> dict:
    ratios = [math.exp(v) for v in values]
    terms = {
        "k1": [-v for v in values], "k3": [r - 1 - v for r, v in zip(ratios, values, strict=True)],
        "chi_square": [r * r - 1 for r in ratios], "truncated_weight": [min(r, cap) for r in ratios],
        "masked_weight": [r if low <= r <= high else 0 for r in ratios],
        "share_below_clip": [r < 0.8 for r in ratios], "share_above_clip": [r > 1.28 for r in ratios],
        "share_truncated": [r > cap for r in ratios], "share_masked": [not low <= r <= high for r in ratios],
    }  # fmt: skip
    return {name: statistics.fmean(terms[name]) if values else None for name in terms}


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=9), st.integers(1, 4))
def test_facts_agree_with_a_slow_version(rows, size):
    table = table_of(rows)
    parts = pa.concat_tables([table.slice(i, size) for i in range(0, len(table), size)])
    found = old_new(parts, cap=1.5, mask=(0.5, 5.0))
    kept = slow_rows(rows)
    there = [row for row in kept if row]
    values = [value for row in there for _, value, _ in row]
    assert found["skipped"] == kept.count(None) and found["without_tokens"] == kept.count([])
    assert (found["tokens"], found["rollouts"]) == (len(values), len(there))
    key = [value for row in there for _, value, weight in row if abs(weight) >= 0.5]
    rest = [value for row in there for _, value, weight in row if abs(weight) < 0.5]
    for facts, tokens in ((found, values), (found["key"], key), (found["rest"], rest)):
        for name, mean in slow_means(tokens, 1.5, 0.5, 5.0).items():
            assert facts[name] == (None if mean is None else pytest.approx(mean, rel=1e-9, abs=1e-12))
    if not values:
        return
    sums = [sum(value for _, value, _ in row) for row in there]
    weights = [math.exp(value - max(sums)) for value in sums]
    slow = sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
    assert found["effective_sample_size"] == pytest.approx(slow)
    sizes = []
    for row in there:
        ratios = [math.exp(value) for _, value, _ in row]
        sizes.append(sum(ratios) ** 2 / len(ratios) / sum(r * r for r in ratios))
    assert found["token_effective_sample_size_median"] == pytest.approx(statistics.median(sizes))
    assert found["token_effective_sample_size_min"] == pytest.approx(min(sizes))
    tenths = [[] for _ in range(10)]
    for (tokens, _), row in zip(rows, kept, strict=True):
        for t, value, _ in row or []:
            tenths[10 * t // len(tokens)].append(math.exp(value) - 1 - value)
    for mean, terms in zip(found["k3_by_position"], tenths, strict=True):
        assert mean == (pytest.approx(statistics.fmean(terms), rel=1e-9, abs=1e-12) if terms else None)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=7))
def test_columns_agree_with_a_slow_version(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("columns")
    path = write(folder / "in.parquet", table_of(rows), row_group_size=2)
    inspect(path, output=folder / "out.parquet", cap=1.5, mask=(0.5, 5.0))
    out = pq.read_table(folder / "out.parquet").to_pylist()
    assert [row["rollout_id"] for row in out] == [f"in.parquet:{i}" for i in range(len(rows))]
    for (tokens, _), kept, row in zip(rows, slow_rows(rows), out, strict=True):
        written = {name: value for name, value in row.items() if name.endswith("_old_new")}
        if kept is None:
            assert set(written.values()) == {None}
            continue
        ratios = {t: math.exp(value) for t, value, _ in kept}
        columns = {
            "ratio": ratios, "k1": {t: -v for t, v, _ in kept}, "k3": {t: ratios[t] - 1 - v for t, v, _ in kept},
            "truncated_weight": {t: min(r, 1.5) for t, r in ratios.items()},
            "masked_weight": {t: r if 0.5 <= r <= 5.0 else 0 for t, r in ratios.items()},
        }  # fmt: skip
        for name, values in columns.items():
            expected = [values.get(t, 0) for t in range(len(tokens))]
            assert written[f"{name}_old_new"] == pytest.approx(expected, rel=1e-6, abs=1e-9)
        mean = statistics.fmean(v for _, v, _ in kept) if kept else 0
        assert written["sequence_ratio_old_new"] == pytest.approx(math.exp(mean))
        assert (written["ess_old_new"] is None) == (not kept)
