"""Which column of the input plays which canonical part: names, aliases, `--map` and the group key."""

from dataclasses import dataclass, field

import pyarrow as pa

from ktae_cli.catalogue import unknown_name
from ktae_cli.errors import InputError, KtaeError, MissingColumnError
from ktae_cli.readers.base import field_at, has_path, is_list
from ktae_cli.schema import BY_NAME, COLUMNS, UID_COLUMNS

_ESSENTIAL = ("response_ids", "response_mask", "reward", "correct")


@dataclass(frozen=True)
class Mapping:
    """The resolved columns: canonical name -> path in the input, and the paths that make the group key."""

    columns: dict[str, str]
    group_key: tuple[str, ...]
    hashed: bool = False
    """The last part of the key is text or ids of a prompt: its digest stands in the key."""
    notices: tuple[str, ...] = field(default=())

    def path(self, name: str) -> str | None:
        """Return the input path of a canonical column, or None."""
        return self.columns.get(name)

    @property
    def derives_group_id(self) -> bool:
        """Tell whether the group id is made of more than one column, or of a digest."""
        return self.hashed or len(self.group_key) > 1


def resolve_mapping(
    schema: pa.Schema, overrides: dict[str, str] | None = None, group_by: list[str] | None = None
) -> Mapping:
    """Match an input's columns to the canonical table; raise naming what is missing and what was found.

    The canonical name wins, then the first alias of a fitting type; overrides (`--map`) come before both and may be
    dotted paths. Without `group_by` the key is a uid-like column alone, else a prompt-like column with `step`
    where there is one, else (step, prompt_ids), else (step, prompt).
    """
    columns, notices = {}, []
    for name, path in (overrides or {}).items():
        columns[name] = _override(schema, name, path)
    for column in COLUMNS:
        if column.name in columns:
            continue
        for path in (column.name, *column.aliases):
            if not has_path(schema, path):
                continue
            if fits(field_at(schema, path).type, column.dtype):
                columns[column.name] = path
                if path != column.name and column.name != "group_id":
                    notices.append(f"{column.name} <- {path}")
                break
            if path == column.name and (path in _ESSENTIAL or (path == "group_id" and not group_by)):
                _refuse(schema, column.name, column.dtype)
    key, hashed = _group_key(schema, columns, group_by, "group_id" in (overrides or {}))
    if group_by:
        columns.pop("group_id", None)  # passes through: the groups have other names
    if hashed or len(key) > 1 or key[0] != "group_id":
        shown = f"{' + '.join(key[:-1])} + hash of {key[-1]}" if hashed and len(key) > 1 else " + ".join(key)
        notices.insert(0, f"group_id <- {'hash of ' + shown if hashed and len(key) == 1 else shown}")
    return Mapping(columns, key, hashed, tuple(notices))


def _refuse(schema: pa.Schema, name: str, wanted: str) -> None:
    dtype = field_at(schema, name).type
    if name == "group_id" and pa.types.is_null(dtype):
        return  # holds nothing: the group key is made of other columns
    remedy = f", or take it as it is with --group-by {name}" if name == "group_id" else ""
    raise InputError(
        f"column {name!r} is {dtype}, expected {wanted}; name another column with --map {name}=COLUMN{remedy}"
    )


def _override(schema: pa.Schema, name: str, path: str) -> str:
    if name not in BY_NAME and path in BY_NAME and has_path(schema, name):
        raise KtaeError(f"--map {name}={path}: the order is canonical=column, as in --map {path}={name}")
    if name not in BY_NAME:
        raise unknown_name("canonical column in --map:", [name], BY_NAME)
    if not has_path(schema, path):
        raise unknown_name(f"column in --map {name}={path}:", [path], schema.names)
    dtype = field_at(schema, path).type
    if not fits(dtype, BY_NAME[name].dtype):
        raise InputError(f"--map {name}={path}: the column is {dtype}, expected {BY_NAME[name].dtype}")
    return path


def _group_key(
    schema, columns: dict[str, str], group_by: list[str] | None, mapped: bool
) -> tuple[tuple[str, ...], bool]:
    if group_by:
        missing = [path for path in group_by if not has_path(schema, path)]
        if missing:
            raise unknown_name("column in --group-by:", missing, schema.names)
        return tuple(group_by), False
    step = _step(schema, columns)
    if "group_id" in columns:
        path = columns["group_id"]
        return ((path,) if mapped or path in UID_COLUMNS else (*step, path)), False
    for name in ("prompt_ids", "prompt"):
        if name in columns:
            return (*step, columns[name]), True
    unfit = [n for n in ("group_id", "prompt") if n in schema.names]
    if unfit:
        raise MissingColumnError(
            f"no group column: {unfit[0]!r} is {field_at(schema, unfit[0]).type}, and groups are named by text, "
            "numbers or token ids; name another column with --group-by COLUMN"
        )
    raise MissingColumnError(
        f"no group column: looked for {', '.join(('group_id', *BY_NAME['group_id'].aliases, 'prompt_ids', 'prompt'))}; "
        f"found {', '.join(schema.names)}; name one with --group-by COLUMN"
    )


def _step(schema: pa.Schema, columns: dict[str, str]) -> list[str]:
    """Return the step's part of the key; a step of fractions or text (pandas with gaps) tells steps apart as well."""
    field = field_at(schema, "step")
    usable = field is not None and not (pa.types.is_nested(field.type) or pa.types.is_null(field.type))
    return [columns["step"]] if "step" in columns else ["step"] if usable else []


def fits(dtype: pa.DataType, wanted: str) -> bool:
    """Tell whether an Arrow type can hold a canonical dtype's values: any width, any list layout, dictionaries."""
    t = pa.types
    if t.is_dictionary(dtype):
        dtype = dtype.value_type
    if wanted.startswith("list<"):
        if t.is_null(dtype):
            return True
        return is_list(dtype) and (t.is_null(dtype.value_type) or _item_fits(dtype.value_type, wanted[5:-1]))
    if wanted.startswith("map<"):
        return t.is_map(dtype) or t.is_struct(dtype)
    if wanted == "string":
        return _is_text(dtype) or t.is_integer(dtype)
    if wanted in ("float64", "bool"):
        return t.is_null(dtype) or _is_number(dtype) or t.is_boolean(dtype) or _is_text(dtype)
    return t.is_integer(dtype)


def _item_fits(dtype: pa.DataType, wanted: str) -> bool:
    t = pa.types
    if t.is_dictionary(dtype):
        dtype = dtype.value_type
    if wanted.startswith("int"):
        return t.is_integer(dtype)
    if wanted == "bool":
        return t.is_boolean(dtype) or t.is_integer(dtype) or t.is_floating(dtype)
    return _is_text(dtype) if wanted == "string" else _is_number(dtype)


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_floating(dtype) or pa.types.is_integer(dtype) or pa.types.is_decimal(dtype)
