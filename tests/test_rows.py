"""Rows as dicts under canonical types: what is taken, what is mended, what is refused."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import InputError
from ktae_cli.readers._canonical_types import CANONICAL, DTYPES
from ktae_cli.readers._free_columns import widen, wider
from ktae_cli.readers._plain_columns import text_array
from ktae_cli.readers._rows import batch_of, canonical_batch, column_of
from ktae_cli.readers._values import as_text, conversion


def place(row: int) -> str:
    return f"f.jsonl, line {row + 1}"


def column(name, *values) -> pa.Array:
    return column_of(name, values, place)


def refusal(name, *values) -> str:
    with pytest.raises(InputError) as caught:
        column(name, *values)
    return str(caught.value)


def test_columns_stand_in_the_order_of_first_appearance_and_late_keys_are_kept():
    batch = batch_of([{"b": 1}, {"a": "x", "b": 2}, {"late": True}], place)
    assert batch.to_pydict() == {"b": [1, 2, None], "a": [None, "x", None], "late": [None, None, True]}


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("reward", [1, 0.5, True, "0.25", " TRUE ", None], [1.0, 0.5, 1.0, 0.25, 1.0, None]),
        ("correct", [True, 0, 1.0, "True", "1.0", "0", None, float("nan"), "none"],
         [True, False, True, True, True, False, None, None, None]),
        ("step", [3, 4.0, "5", None], [3, 4, 5, None]),
        ("group_id", ["a", 7, None, -(2**70)], ["a", "7", None, str(-(2**70))]),
        ("ground_truth", ["4", 4, 4.5, ["4", "four"], {"a": None}, None],
         ["4", "4", "4.5", '["4","four"]', '{"a":null}', None]),
        ("response_ids", [[1, 2], [], None, [3.0], (4,), np.array([5, 6])], [[1, 2], [], None, [3], [4], [5, 6]]),
        ("response_mask", [[True, False], [1, 0], [], None], [[True, False], [True, False], [], None]),
        ("rollout_log_probs", [[-0.5, 0], [], None, [-math.inf, None]], [[-0.5, 0.0], [], None, [-math.inf, None]]),
        ("response_tokens", [["a", "b"], [], None], [["a", "b"], [], None]),
        ("rewards", [{"a": 1, "b": None}, {}, None, {"c": "2"}],
         [[("a", 1.0), ("b", None)], [], None, [("c", 2.0)]]),
    ],
)  # fmt: skip
def test_canonical_values_are_taken_under_the_declared_type(name, given, taken):
    found = column(name, *given)
    assert found.type == CANONICAL[name]
    assert found.to_pylist() == taken


def test_nan_of_a_reward_stays_apart_from_null():
    found = column("reward", math.nan, None, "nan")
    assert [math.isnan(v) if v is not None else None for v in found.to_pylist()] == [True, None, True]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward", "good", "line 2: reward is 'good', expected a number"),
        ("reward", "1_000", "reward is '1_000'"),
        ("reward", [1.0], "reward is a list of 1, expected a number"),
        ("correct", 0.5, "correct is 0.5, expected true, false or null"),
        ("step", 1.5, "step is 1.5, expected a whole number"),
        ("step", 2**63, "expected a whole number"),
        ("group_id", 1.0, "group_id is 1.0, expected text or a whole number"),
        ("group_id", True, "group_id is True"),
        ("rollout_id", {"a": 1}, "rollout_id is an object of 1 keys"),
        ("response_ids", [1, 2.5], "response_ids is a list of 2, expected a list of token ids"),
        ("response_ids", [1, True], "response_ids is a list of 2"),
        ("response_ids", [1, "2"], "response_ids is a list of 2 that holds '2'"),
        ("response_ids", [2**31], "32 bits"),
        ("response_ids", "abc", "response_ids is 'abc'"),
        ("response_mask", [0, 2], "expected a list of true and false"),
        ("rollout_log_probs", ["a"], "expected a list of numbers"),
        ("rollout_log_probs", [True], "expected a list of numbers"),
        ("response_tokens", [1], "expected a list of text"),
        ("rewards", [1], "expected an object of numbers"),
    ],
)
def test_value_that_a_canonical_column_cannot_hold_is_refused_with_its_place(name, value, message):
    found = refusal(name, None, value)
    assert found.startswith(f"f.jsonl, line 2: {name} is ")
    assert message in found


@pytest.mark.parametrize(
    ("values", "dtype", "taken"),
    [
        ([None, None], pa.null(), [None, None]),
        ([True, None], pa.bool_(), [True, None]),
        ([1, None], pa.int64(), [1, None]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        (["a", None], pa.string(), ["a", None]),
        ([[1, None], [], None], pa.list_(pa.int64()), [[1, None], [], None]),
        ([[1], [2.5]], pa.list_(pa.float64()), [[1.0], [2.5]]),
        ([["a"], None], pa.list_(pa.string()), [["a"], None]),
        ([[], None], pa.list_(pa.null()), [[], None]),
        (["4", 4, True, None, [1]], pa.string(), ["4", "4", "true", None, "[1]"]),
        ([{"a": [1.5]}, None], pa.string(), ['{"a":[1.5]}', None]),
        ([{"a": math.nan, "b": None}], pa.string(), ['{"a":NaN,"b":null}']),
        ([[[1]], [2]], pa.string(), ["[[1]]", "[2]"]),
        ([2**60, 0.5], pa.string(), [str(2**60), "0.5"]),
        ([2**64], pa.string(), [str(2**64)]),
        ([-(2**63), 2**63 - 1], pa.int64(), [-(2**63), 2**63 - 1]),
        ([np.array([1.5]), None], pa.list_(pa.float64()), [[1.5], None]),
    ],
)
def test_other_columns_are_typed_by_their_values(values, dtype, taken):
    found = column("extra", *values)
    assert found.type == dtype
    assert found.to_pylist() == taken


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (pa.null(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.bool_(), pa.string()),
        (pa.int64(), pa.string(), pa.string()),
        (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.float64())),
        (pa.list_(pa.int64()), pa.list_(pa.string()), pa.string()),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.int64(), pa.string()),
    ],
)
def test_types_widen_alike_in_both_orders(a, b, both):
    assert wider(a, b) == wider(b, a) == both


def test_widened_values_are_those_that_a_mixed_column_has():
    for values in ([1, None, -3], [0.5, math.nan], [True, None], [[1], None], [[1.5, None]]):
        alone = widen(column("extra", *values), pa.string()).to_pylist()
        mixed = column("extra", *values, "text").to_pylist()
        assert alone == mixed[:-1]


def test_texts_become_the_array_that_arrow_makes_of_them():
    for values in (["a", "", "é\0≤", "\U0001f600"], [], ["x", None], [""]):
        assert text_array(values).equals(pa.array(values, pa.string()))
        text_array(values).validate(full=True)


NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**70), 2**70), st.floats(), st.booleans(),
    st.none(), st.sampled_from(["1", 2**53, 2**53 + 1, -(2**53) - 1, 2**63, np.int64(1), np.float32(0.5), [1]]),
)  # fmt: skip
FEW_KINDS = st.one_of(st.integers(0, 5), st.floats(width=32)) | st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["response_ids", "rollout_log_probs", "response_mask"]),
    st.lists(st.none() | st.lists(FEW_KINDS, max_size=4) | st.lists(NUMBERS, max_size=4), max_size=4),
)
def test_lists_of_numbers_are_those_that_each_value_alone_becomes(name, lists):
    convert, _ = conversion(name, DTYPES[name])
    try:
        wanted = [None if values is None else convert(values) for values in lists]
    except (TypeError, ValueError, OverflowError):
        assert "expected a list of" in refusal(name, *lists)
    else:
        with np.errstate(over="ignore"):
            plain = [v and [x if x is None else np.float32(x).item() for x in v] for v in wanted]
        found = column(name, *lists)
        found.validate(full=True)
        assert found.type == CANONICAL[name]
        assert repr(found.to_pylist()) == repr(plain if name == "rollout_log_probs" else wanted)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.lists(FEW_KINDS, max_size=4) | st.lists(NUMBERS, max_size=3), min_size=1, max_size=4))
def test_other_lists_of_numbers_keep_every_value(lists):
    found = column("extra", *lists)
    items = [item for values in lists for item in values or []]
    kinds = {type(item) for item in items if item is not None}
    exact = all(-(2**53) <= item <= 2**53 for item in items if type(item) is int)
    if kinds == {int} and all(-(2**63) <= item < 2**63 for item in items if item is not None):
        assert found.type == pa.list_(pa.int64())
        assert found.to_pylist() == lists
    elif kinds == {float} or (kinds == {int, float} and exact):
        assert found.type == pa.list_(pa.float64())
        assert repr(found.to_pylist()) == repr([v and [x if x is None else float(x) for x in v] for v in lists])
    elif (int in kinds or float in kinds) and kinds.isdisjoint({np.int64, np.float32}):
        assert found.to_pylist() == [None if values is None else as_text(values) for values in lists]


def test_batch_of_a_foreign_layout_gets_canonical_types_and_keeps_the_rest():
    batch = pa.RecordBatch.from_pydict(
        {
            "group_id": pa.array([1, 2]).dictionary_encode(),
            "response_ids": pa.array([[1, 2], None], pa.large_list(pa.int64())),
            "rollout_log_probs": pa.array([[-0.5, None], None], pa.list_(pa.float64())),
            "correct": pa.array(["True", None]),
            "reward": pa.array([1, 0], pa.int8()),
            "rewards": pa.array([{"a": 1.0}, None]),
            "when": pa.array([0, 1], pa.timestamp("s")),
        }
    )
    found = canonical_batch(batch, place)
    assert [found.schema.field(n).type for n in found.schema.names[:-1]] == [
        CANONICAL[n] for n in found.schema.names[:-1]
    ]
    assert found.column("when").equals(batch.column("when"))
    rows = found.drop_columns(["when"]).to_pylist()
    assert rows[0] == {
        "group_id": "1", "response_ids": [1, 2], "rollout_log_probs": [-0.5, None], "correct": True, "reward": 1.0,
        "rewards": [("a", 1.0)],
    }  # fmt: skip
    with pytest.raises(InputError, match="line 1: response_ids is a list of 1"):
        canonical_batch(pa.RecordBatch.from_pydict({"response_ids": [[1.5]]}), place)
