"""Which column plays which part: canonical names, aliases, `--map` and the group key."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import InputError, MissingColumnError, UnknownNameError
from ktae_cli.mapping import fits, resolve_mapping
from ktae_cli.schema import BY_NAME
from tests.rollout_files import four, ktae, refusal, score, write

TEXT, IDS = pa.string(), pa.list_(pa.int32())


def mapped(schema: dict, **options):
    return resolve_mapping(pa.schema(list({"response_ids": IDS, "reward": pa.float64(), **schema}.items())), **options)


# --- aliases --------------------------------------------------------------------------------------------------------

ALIASES = [(name, alias) for name, column in BY_NAME.items() for alias in column.aliases]
KINDS = {"string": pa.string(), "float64": pa.float64(), "bool": pa.bool_(), "list<int32>": IDS}


@pytest.mark.parametrize(("name", "alias"), ALIASES)
def test_alias_stands_for_its_canonical_column(name, alias):
    base = {"group_id": TEXT, "response_ids": IDS, "reward": pa.float64()}
    base.pop(name, None)
    mapping = resolve_mapping(pa.schema([*base.items(), (alias, KINDS[BY_NAME[name].dtype])]))
    assert mapping.columns[name] == alias
    assert any(alias in notice for notice in mapping.notices)


def test_canonical_name_wins_over_its_aliases():
    assert mapped({"uid": TEXT, "group_id": TEXT, "score": pa.float64()}).columns["reward"] == "reward"
    assert mapped({"uid": TEXT, "group_id": TEXT}).group_key == ("group_id",)


def test_first_alias_of_a_fitting_type_wins():
    schema = pa.schema(
        [("uid", TEXT), ("reward", pa.float64()), ("completion_ids", TEXT), ("output_ids", IDS), ("output_tokens", IDS)]
    )
    assert resolve_mapping(schema).columns["response_ids"] == "output_ids"


def test_response_tokens_of_text_are_no_ids():
    schema = {"uid": TEXT, "response_tokens": pa.list_(TEXT)}
    mapping = resolve_mapping(pa.schema([("reward", pa.float64()), *schema.items()]))
    assert mapping.columns["response_tokens"] == "response_tokens" and "response_ids" not in mapping.columns
    integers = resolve_mapping(pa.schema([("reward", pa.float64()), ("uid", TEXT), ("response_tokens", IDS)]))
    assert integers.columns["response_ids"] == "response_tokens"


@pytest.mark.parametrize(
    ("dtype", "wanted", "expected"),
    [
        (pa.dictionary(pa.int8(), pa.string()), "string", True),
        (pa.int64(), "string", True),
        (pa.float64(), "string", False),
        (pa.list_(pa.string()), "string", False),
        (pa.decimal128(4, 2), "float64", True),
        (pa.null(), "float64", True),
        (pa.list_(pa.float64()), "float64", False),
        (pa.list_(pa.float64()), "list<int32>", False),
        (pa.list_(pa.null()), "list<int32>", True),
        (pa.null(), "list<int32>", True),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), "list<string>", True),
        (pa.list_(pa.list_(pa.int32())), "list<int32>", False),
        (pa.list_(pa.int8()), "list<bool>", True),
        (pa.list_(pa.string()), "list<bool>", False),
        (pa.list_(pa.float16()), "list<float32>", True),
        (pa.map_(pa.string(), pa.float64()), "map<string, float64>", True),
        (pa.struct([("f", pa.float64())]), "map<string, float64>", True),
        (pa.bool_(), "int64", False),
    ],
    ids=str,
)
def test_type_fits_or_not(dtype, wanted, expected):
    assert fits(dtype, wanted) is expected


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("reward", pa.list_(pa.float64())),
        ("response_ids", pa.list_(pa.float64())),
        ("response_mask", TEXT),
        ("correct", IDS),
    ],
)
def test_essential_column_of_a_wrong_type_is_refused(name, dtype):
    with pytest.raises(InputError, match=rf"column '{name}' is .*--map {name}=COLUMN"):
        mapped({"uid": TEXT, name: dtype})


def test_group_id_of_a_wrong_type_is_refused_or_taken_literally():
    with pytest.raises(InputError, match=r"column 'group_id' is double, expected string.*--group-by group_id"):
        mapped({"group_id": pa.float64(), "prompt": TEXT})
    assert mapped({"group_id": pa.float64(), "prompt": TEXT}, group_by=["group_id"]).group_key == ("group_id",)


def test_group_id_without_values_gives_way_to_the_prompt():
    assert mapped({"group_id": pa.null(), "prompt": TEXT}).group_key == ("prompt",)


# --- the group key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", ["group_id", "uid"])
def test_uid_stands_alone(uid):
    mapping = mapped({uid: TEXT, "step": pa.int64(), "prompt": TEXT})
    assert (mapping.group_key, mapping.hashed, mapping.derives_group_id) == ((uid,), False, False)


@pytest.mark.parametrize("name", ["prompt_id", "problem_id", "example_id", "doc_id", "question_id"])
def test_prompt_like_column_goes_with_the_step(name):
    assert mapped({name: pa.int64(), "step": pa.int64(), "prompt": TEXT}).group_key == ("step", name)
    assert mapped({name: pa.int64(), "prompt": TEXT}).group_key == (name,)


def test_prompt_ids_come_before_the_prompt():
    mapping = mapped({"prompt_ids": IDS, "prompt": TEXT, "step": pa.int32()})
    assert (mapping.group_key, mapping.hashed) == (("step", "prompt_ids"), True)
    assert mapped({"prompt_ids": IDS, "prompt": TEXT}).group_key == ("prompt_ids",)
    assert mapped({"prompt": TEXT, "step": pa.int32()}).group_key == ("step", "prompt")


@pytest.mark.parametrize(
    "dtype", [pa.float64(), pa.string(), pa.uint8(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_step_of_any_scalar_type_tells_steps_apart(dtype):
    assert mapped({"prompt": TEXT, "step": dtype}).group_key == ("step", "prompt")


def test_group_by_is_taken_literally():
    assert mapped({"uid": TEXT, "step": pa.int64(), "k": TEXT}, group_by=["k"]).group_key == ("k",)
    assert mapped({"uid": TEXT, "s": pa.struct([("k", TEXT)])}, group_by=["uid", "s.k"]).group_key == ("uid", "s.k")


def test_mapped_group_id_stands_alone():
    assert mapped({"prompt_id": TEXT, "step": pa.int64()}, overrides={"group_id": "prompt_id"}).group_key == (
        "prompt_id",
    )


def test_no_group_column_lists_what_was_looked_for_and_found():
    with pytest.raises(
        MissingColumnError, match=r"looked for group_id, uid, .*, prompt; found response_ids, reward, x;"
    ):
        mapped({"x": TEXT})


# --- --map ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"rewrad": "reward"}, UnknownNameError, r"'rewrad' \(nearest: reward\)"),
        ({"reward": "rewardd"}, UnknownNameError, r"'rewardd' \(nearest: reward\)"),
        ({"reward": "s.y"}, UnknownNameError, "'s.y'"),
        ({"response_ids": "uid"}, InputError, "the column is string, expected list<int32>"),
    ],
)
def test_map_that_does_not_fit_is_refused(overrides, error, message):
    with pytest.raises(error, match=message):
        mapped({"uid": TEXT, "s": pa.struct([("x", pa.float64())])}, overrides=overrides)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--map", "reward"], "expected canonical=column"),
        (["--map", "=x"], "expected canonical=column"),
        (["--map", "reward="], "expected canonical=column"),
        (["--map", "reward=reward", "--map", "reward=score"], "given twice"),
        (["--map", "gain=reward"], "unknown canonical column"),
        (["--group-by", "gruop_id"], "'gruop_id' (nearest: group_id)"),
        (["--group-by", "nope,nada"], "'nope', 'nada'"),
        (["--group-by", "response_ids"], "cannot name groups"),
    ],
)
def test_bad_mapping_options_exit_2(tmp_path, capsys, options, message):
    path = write(tmp_path / "in.parquet", four())
    assert message in refusal(capsys, tmp_path, "score", path, *options)


def test_mapping_stands_in_the_metadata_and_columns_keep_their_names(tmp_path):
    table = four().rename_columns(["prompt_id", "rollout_id", "score", "completion_ids"])
    scored = score(tmp_path, table)
    assert scored.column_names[:4] == table.column_names
    metadata = json.loads(pq.read_metadata(tmp_path / "out.parquet").metadata[b"ktae"])
    assert metadata["columns"] == {
        "group_id": "prompt_id", "rollout_id": "rollout_id", "reward": "score", "response_ids": "completion_ids",
    }  # fmt: skip


def test_notices_name_every_alias(tmp_path, capsys):
    table = four().rename_columns(["prompt_id", "rollout_id", "score", "completion_ids"])
    assert ktae("score", write(tmp_path / "in.parquet", table)) == 0
    err = capsys.readouterr().err
    for notice in ("group_id <- prompt_id", "reward <- score", "response_ids <- completion_ids"):
        assert notice in err


def test_mapped_path_of_a_moved_column_is_found_again(tmp_path):
    table = four(reward=None, kl_info=[{"r": 1.0}, {"r": 0.0}, {"r": 0.0}, {"r": 0.0}])
    scored = score(tmp_path, table, "--map", "reward=kl_info.r")
    metadata = json.loads(pq.read_metadata(tmp_path / "out.parquet").metadata[b"ktae"])
    assert metadata["columns"]["reward"] == "input_kl_info.r"
    assert scored["input_kl_info"].to_pylist() == table["kl_info"].to_pylist()
