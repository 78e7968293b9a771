"""The scored file, as every looking command reads it: names through the metadata, rows in bounded batches."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ktae_cli.errors import InputError, MissingColumnError, UnknownNameError
from ktae_cli.inputs import TOKEN_TABLE_SUFFIX, expand_inputs
from ktae_cli.mapping import fits
from ktae_cli.readers.base import column_at, field_at, is_list, list_lengths, list_values, root_of
from ktae_cli.readers.parquet import ParquetRollouts, row_group_batches, under_schema
from ktae_cli.rollouts import was_truncated
from ktae_cli.schema import BY_NAME, METADATA_KEY, SCHEMA_VERSION, is_score_column

RIGHT, WRONG, UNKNOWN = 1, 0, -1

Columns = dict[str, pa.Array]


@dataclass(frozen=True)
class GroupIndex:
    """One line for each row of the file: its group, verdict, whether it is scored, and its mean |value|."""

    groups: list[str]
    group_of_row: np.ndarray
    verdict: np.ndarray
    is_scored: np.ndarray
    strength: np.ndarray
    n_tokens: np.ndarray

    def rows_of(self, group: int) -> np.ndarray:
        """Return the row numbers of one group, in file order."""
        return np.flatnonzero(self.group_of_row == group)

    def group_strength(self) -> np.ndarray:
        """Return the mean |value| over the tokens of each group."""
        total = np.bincount(self.group_of_row, self.strength * self.n_tokens, len(self.groups))
        tokens = np.bincount(self.group_of_row, self.n_tokens, len(self.groups))
        return total / np.maximum(tokens, 1)

    def is_mixed(self) -> np.ndarray:
        """Tell for each group whether it holds right and wrong scored rollouts."""
        right, wrong = (
            np.bincount(self.group_of_row[self.is_scored & (self.verdict == verdict)], minlength=len(self.groups))
            for verdict in (RIGHT, WRONG)
        )
        return (right > 0) & (wrong > 0)


class ScoredFile:
    """A scored Parquet file, with the rollouts that it was made from where it holds only the added columns."""

    def __init__(self, path: Path, rollouts: Path | None = None):
        self.path = path
        self.file = _open(path)
        self.metadata = _metadata_of(self.file, path)
        self.schemas, self.files = [self.file.schema_arrow], [[(path, self.file)]]
        self.rollouts_path = rollouts
        if rollouts is not None:
            self._add_rollouts(rollouts)

    def _add_rollouts(self, rollouts: Path) -> None:
        source = ParquetRollouts(expand_inputs([str(rollouts)]))
        if source.n_rows != self.n_rows:
            raise InputError(
                f"{rollouts.name} holds {source.n_rows} rows, {self.path.name} {self.n_rows}: "
                "give with --rollouts the input that was scored"
            )
        scored = [part.get("footer_sha256") for part in self.metadata.get("inputs") or []]
        if scored and scored != [part["footer_sha256"] for part in source.fingerprints()]:
            raise InputError(
                f"{rollouts.name} is not the input that {self.path.name} was made from (its footer differs): "
                "give that input with --rollouts, or score this one"
            )
        self.schemas.append(source.schema)
        self.files.append([(part, _open(part)) for part in source.paths])

    @property
    def n_rows(self) -> int:
        """Number of rollout rows."""
        return self.file.metadata.num_rows

    @property
    def estimators(self) -> list[dict[str, Any]]:
        """The estimators that ran: spec, slug, parameters and columns of each."""
        return self.metadata.get("estimators") or []

    def spec_of(self, column: str) -> str:
        """Return the spec that wrote a column, or "" for a column of the input."""
        return next((e["spec"] for e in self.estimators if column in e.get("columns", ())), "")

    def has(self, name: str) -> bool:
        """Tell whether a canonical or written column can be read."""
        return self._find(name) is not None

    def require(self, names: Sequence[str]) -> None:
        """Raise MissingColumnError that names the absent columns and the way out."""
        absent = [name for name in names if not self.has(name)]
        if not absent:
            return
        if self.rollouts_path is None:
            way = "if it was written with --columns added, give the file that was scored: --rollouts INPUT"
            raise MissingColumnError(f"{self.path.name} has no {', '.join(absent)}; {way}")
        both = f"neither {self.path.name} nor {self.rollouts_path.name} has {', '.join(absent)}"
        raise MissingColumnError(f"{both}; columns found: {', '.join(self.schemas[1].names)}")

    def value_columns(self) -> list[str]:
        """Return the names of all columns with one float for each token, those of `score` first."""
        names = [name for name in self.schemas[0].names if is_score_column(name)] + [*BY_NAME]
        names += [name for schema in self.schemas for name in schema.names]
        return [name for name in dict.fromkeys(names) if self._is_token_floats(name)]

    def batches(self, names: Sequence[str], rows: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Columns]]:
        """Stream (row numbers, columns by name); names that the file lacks are left out. `rows` must be sorted."""
        wanted: dict[int, dict[str, str]] = {}
        for name in dict.fromkeys(names):
            found = self._find(name)
            if found is not None:
                wanted.setdefault(found[0], {})[name] = found[1]
        streams = [_stream(self.files[at], self.schemas[at], paths, rows) for at, paths in wanted.items()]
        return _side_by_side(streams)

    def index(self, column: str | None = None) -> GroupIndex:
        """Read group, verdict and mean |column| of every row in one pass."""
        codes: dict[str, int] = {}
        parts: list[tuple[np.ndarray, ...]] = []
        needed = ["group_id", "reward", "correct", "finish_reason", "advantages", *filter(None, [column])]
        for _, columns in self.batches(needed):
            encoded = text_of(columns["group_id"]).dictionary_encode()
            names = ids_of(encoded.dictionary, self.path, "group_id")
            local = [codes.setdefault(name, len(codes)) for name in names]
            if encoded.null_count:
                raise InputError(f"{self.path.name}: group_id is null in {encoded.null_count} rows")
            group = np.asarray(local, np.int32)[np.asarray(encoded.indices)]
            scored = np.asarray(columns["advantages"].is_valid())
            size, total = _absolute_sums(columns[column]) if column else (np.zeros(len(group), np.int64),) * 2
            parts.append((group, verdicts(columns, self.metadata), scored, total / np.maximum(size, 1), size))
        if not parts:
            raise InputError(f"{self.path.name} holds no rows")
        return GroupIndex(list(codes), *(np.concatenate(part) for part in zip(*parts, strict=True)))

    def token_table(self) -> tuple[Path | None, str]:
        """Return the token table beside the file if it is the one written with it, else None and the reason."""
        named = self.metadata.get("token_table")
        if not named:
            return None, f"{self.path.name} was written without a token table; score again to have one"
        path = self.path.parent / Path(named["name"]).name
        if not path.is_file():
            return None, f"no file {path}; put the token table there, or score again"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != named["sha256"]:
            return (
                None,
                f"{path.name} is not the token table written with {self.path.name} (its hash differs); score again",
            )
        return path, ""

    def _find(self, name: str) -> tuple[int, str] | None:
        """Return (source, dotted path): source 0 is the scored file, 1 the rollouts beside it."""
        known = (self.metadata.get("columns") or {}).get(name)
        for path in (known, name if name not in BY_NAME else None):
            if path is not None and field_at(self.schemas[0], path) is not None:
                return 0, path
        if len(self.schemas) == 1:
            return None
        known = (self.metadata.get("input_columns") or {}).get(name)
        aliases = BY_NAME[name].aliases if name in BY_NAME else ()
        for path in (known, name, *aliases):
            field = field_at(self.schemas[1], path) if isinstance(path, str) else None
            if field is not None and (name not in BY_NAME or fits(field.type, BY_NAME[name].dtype)):
                return 1, path
        return None

    def _is_token_floats(self, name: str) -> bool:
        found = self._find(name)
        dtype = field_at(self.schemas[found[0]], found[1]).type if found else pa.null()
        return is_list(dtype) and pa.types.is_floating(dtype.value_type)


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise InputError(f"{path} is a directory; give one Parquet file" if path.is_dir() else f"no file {path}")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path.name} is not a readable Parquet file: {_first_line(error)}") from None


def _metadata_of(file: pq.ParquetFile, path: Path) -> dict[str, Any]:
    text = (file.metadata.metadata or {}).get(METADATA_KEY)
    try:
        metadata = json.loads(text) if text else None
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict) or "advantages" not in file.schema_arrow.names:
        if path.name.endswith(TOKEN_TABLE_SUFFIX):
            raise InputError(f"{path.name} is a token table; give the scored file that it belongs to")
        raise InputError(f"{path.name} is not a scored file; run: ktae score {path}")
    if int(metadata.get("schema_version", 0)) > SCHEMA_VERSION:
        found = metadata["schema_version"]
        raise InputError(
            f"{path.name} has schema version {found}, this ktae reads up to {SCHEMA_VERSION}; upgrade ktae"
        )
    return metadata


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stream(
    files: list[tuple[Path, pq.ParquetFile]], schema: pa.Schema, paths: dict[str, str], rows: np.ndarray | None
) -> Iterator[tuple[np.ndarray, Columns]]:
    """Stream the columns of files end to end; with `rows`, only these, and only the row groups that hold them."""
    first = 0
    roots = list(dict.fromkeys(root_of(schema, leaf) for leaf in paths.values()))
    for path, file in files:
        present = [name for name in roots if name in file.schema_arrow.names]
        for at in range(file.metadata.num_row_groups):
            n_rows = file.metadata.row_group(at).num_rows
            if rows is not None and np.searchsorted(rows, first) == np.searchsorted(rows, first + n_rows):
                first += n_rows
                continue
            for batch in row_group_batches(file, path, at, present):
                batch = under_schema(batch, pa.schema([schema.field(name) for name in roots]), path)
                numbers = np.arange(first, first + batch.num_rows)
                first += batch.num_rows
                if rows is not None:
                    numbers = rows[np.searchsorted(rows, numbers[0]) : np.searchsorted(rows, first)]
                    batch = batch.take(pa.array(numbers - (first - batch.num_rows))) if len(numbers) else batch
                if len(numbers):
                    yield numbers, {name: column_at(batch, leaf) for name, leaf in paths.items()}


def _side_by_side(streams: list[Iterator[tuple[np.ndarray, Columns]]]) -> Iterator[tuple[np.ndarray, Columns]]:
    """Join streams over the same rows, whatever their batch sizes."""
    if len(streams) == 1:
        yield from streams[0]
        return
    heads = [next(stream, None) for stream in streams]
    while heads and all(heads):
        count = min(len(numbers) for numbers, _ in heads)
        merged: Columns = {}
        for at, (numbers, columns) in enumerate(heads):
            merged |= {name: array.slice(0, count) for name, array in columns.items()}
            rest = {name: array.slice(count) for name, array in columns.items()}
            heads[at] = (numbers[count:], rest) if count < len(numbers) else None
            taken = numbers[:count]
        yield taken, merged
        heads = [head or next(stream, None) for head, stream in zip(heads, streams, strict=True)]


def verdicts(columns: Columns, metadata: dict[str, Any]) -> np.ndarray:
    """Return 1 right, 0 wrong, -1 unknown for each row, from `correct`, else from reward > threshold.

    Responses that were scored as wrong because they are truncated are wrong.
    """
    if "correct" in columns:
        values = floats_of(columns["correct"])
        found = np.where(np.isin(values, (0.0, 1.0)), values, UNKNOWN).astype(np.int8)
    elif "reward" in columns:
        values = floats_of(columns["reward"])
        right = values > float(metadata.get("correct_threshold") or 0.0)
        found = np.where(np.isnan(values), UNKNOWN, right).astype(np.int8)
    else:
        return np.full(len(next(iter(columns.values()))), UNKNOWN, np.int8)
    if metadata.get("truncated") == "zero" and "finish_reason" in columns:
        found[was_truncated(columns["finish_reason"], len(found))] = WRONG
    return found


def _absolute_sums(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    lengths, _ = list_lengths(array)
    ends = np.cumsum(lengths)
    running = np.concatenate(
        ([0.0], np.cumsum(np.abs(np.nan_to_num(floats_of(list_values(array)), posinf=0, neginf=0))))
    )
    return lengths, running[ends] - running[ends - lengths]


def floats_of(array: pa.Array) -> np.ndarray:
    """Return numbers, booleans or their text as float64; null and what cannot be read are NaN."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        return np.asarray([_float_of(text) for text in texts_of(array)], np.float64)
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _float_of(text: str | None) -> float:
    lowered = (text or "").strip().lower()
    try:
        return float(lowered == "true") if lowered in ("true", "false") else float(lowered.replace("_", "?"))
    except ValueError:
        return float("nan")


def text_of(array: pa.Array) -> pa.Array:
    """Return ids and texts as strings."""
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def texts_of(array: pa.Array) -> list[str | None]:
    """Return texts; bytes that are not UTF-8 become replacement characters."""
    array = text_of(array)
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        return [None if data is None else data.decode(errors="replace") for data in array.cast(pa.binary()).to_pylist()]


def ids_of(array: pa.Array, path: Path, name: str = "rollout_id") -> list[str | None]:
    """Return ids as text; raise `InputError` where one is not UTF-8: replaced characters could make two ids one."""
    try:
        return text_of(array).to_pylist()
    except (UnicodeDecodeError, pa.ArrowInvalid):
        raise InputError(f"{path.name}: {name} is not UTF-8 text; the file is damaged") from None


def token_rows(path: Path, group_id: str, spec: str, count: int) -> tuple[list[dict[str, Any]], int]:
    """Return the `count` rows with the largest |key_weight| of one group and spec, and how many the group has.

    Weights that agree in three decimals (many reach 1) are in the order of p, then of |effect|.
    """
    try:
        table = pq.read_table(path, filters=[("group_id", "=", group_id)])
        specs = table["spec"].unique().to_pylist()
        if len(specs) > 1:
            table = table.filter(pc.equal(table["spec"].cast(pa.string()), spec if spec in specs else specs[0]))
        sizes = np.abs(table["key_weight"].to_numpy()).round(3)
        effects = np.abs(table["effect"].to_numpy())
        order = np.lexsort((-effects, table["p_value"].to_numpy(), -sizes))[:count]
        return table.take(pa.array(order)).to_pylist(), table.num_rows
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read: {_first_line(error)}") from None


def unknown_id(what: str, name: str, known: Sequence[str]) -> UnknownNameError:
    """Build the error for an id that the file does not hold; it names the nearest ones."""
    near = [other for other in known if name and other.startswith(name)][:3]
    near = near or get_close_matches(name, [other for other in known[:20000] if other], 3, 0.5)
    near = near or [other for other in known if name and name in other][:3]
    hint = f"nearest: {', '.join(near)}" if near else f"the first of {len(known)}: {', '.join(known[:3])}"
    return UnknownNameError(f"no {what} {name!r}; {hint}")
