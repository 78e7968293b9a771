"""TRL: the completions that GRPOTrainer writes at each logging step, one Parquet file a step."""

import re
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError
from ktae_cli.readers._needed_columns import check_columns
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record, decode_dictionary, decoded, reader

_LIKE_A_VERDICT = re.compile("acc|correct", re.IGNORECASE)
_KNOWN = ("step", "prompt", "completion", "advantage")


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=("step", "prompt", "completion", "advantage"),
    supplies=("prompt", "response", "reward", "correct", "rewards", "step"),
    threshold=0.0,
)
def trl(records: Iterator[Record], options: ReaderOptions) -> Iterator[pa.RecordBatch]:
    """Read the files that TRL's `GRPOTrainer` writes to `completions/` when `log_completions` is on.

    Source: TRL `grpo_trainer.py` (`log`). The file has a column of floats for each reward function, named after it,
    NaN where the function does not apply. reward is their sum without NaN, unknown where all are NaN; the parts are
    kept in `rewards`. `reward_weights` are not in the file. A column of floats that `log_extra` adds looks like a
    reward function: the notice says which columns were summed.
    correct is the column that begins with accuracy, acc or correct, right above 0. Where none or several do, it raises
    `InputError` that names the candidates for `--map correct=COLUMN`.

    The trainer does not empty its buffers after it logs, so the same rollouts stand in the files of several steps. Rows
    equal in prompt, completion, rewards and advantage are one rollout and keep the first step; equal rows of one step
    are siblings that wrote the same, and stay. `--keep-duplicates` keeps all.
    """
    repeats, said = Repeats(), set()
    for record in records:
        check_columns(_KNOWN, "trl", record)
        parts = reward_parts(record.value.schema)
        verdict = verdict_column(record.value.schema, parts, options, record)
        if (summed := f"reward is the sum of {', '.join(parts)}; correct is {verdict} > 0") not in said:
            said.add(summed)
            options.notice(summed)
        keep = np.ones(len(record.value), bool)
        if not options.keep_duplicates:
            keep = ~repeats.found(record.value, parts, f"{record.file}, row {record.line}")
            if not keep.all():
                options.count("duplicate rows dropped", int((~keep).sum()))
        yield _canonical(record.value, parts, verdict).filter(pa.array(keep))


def _fits(schema: pa.Schema) -> bool:
    texts = [schema.field(name).type for name in ("prompt", "completion")]
    return all(pa.types.is_string(t) or pa.types.is_large_string(t) for t in texts) and bool(reward_parts(schema))


trl.fits = _fits


def reward_parts(schema: pa.Schema) -> list[str]:
    """Return the columns of the reward functions: floats, or null throughout."""
    return [
        field.name
        for field in schema
        if field.name not in _KNOWN and (pa.types.is_floating(field.type) or pa.types.is_null(field.type))
    ]


def verdict_column(schema: pa.Schema, parts: list[str], options: ReaderOptions, record: Record) -> str:
    """Return the column that says right or wrong, that of `--map correct=COLUMN` or the only one of a fitting name."""
    chosen = options.take_correct(schema.names)
    if chosen is not None:
        return chosen
    numbers = [f.name for f in schema if f.name not in _KNOWN and (f.name in parts or _is_number(f.type))]
    named = [name for name in numbers if _LIKE_A_VERDICT.match(name)]
    if len(named) == 1:
        return named[0]
    found = "several columns" if named else "no column"
    raise InputError(
        f"{record.file}: {found} named accuracy*, acc* or correct* to take the verdict from; "
        f"name one with --map correct=COLUMN (candidates: {', '.join(named or numbers)})"
    )


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_boolean(dtype) or pa.types.is_integer(dtype)


class Repeats:
    """Finds rows that an earlier step holds already; keeps a digest of each distinct row, not the row."""

    def __init__(self):
        self.kept: dict[bytes, int] = {}  # digest -> rollouts kept
        self.here: dict[bytes, tuple[int | None, int]] = {}  # digest -> (step, rows of that step so far)

    def found(self, batch: pa.RecordBatch, parts: list[str], place: str) -> np.ndarray:
        """Return (n_rows,) bool: the k-th such row of its step, where an earlier step has k of them."""
        names = ["prompt", "completion", *parts, "advantage"]
        columns = [decoded(decode_dictionary(batch.column(name)), name, place) for name in names]
        steps = batch.column("step").to_pylist()
        repeated = np.zeros(len(batch), bool)
        for row, (step, *values) in enumerate(zip(steps, *columns, strict=True)):
            digest = blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            before = self.here.get(digest, (step, 0))
            nth = before[1] + 1 if before[0] == step else 1
            self.here[digest] = (step, nth)
            repeated[row] = nth <= self.kept.get(digest, 0)
            self.kept[digest] = max(nth, self.kept.get(digest, 0))
        return repeated


def _canonical(batch: pa.RecordBatch, parts: list[str], verdict: str) -> pa.RecordBatch:
    """Return the batch under canonical names, the columns of the reward functions and the rest after them."""
    values = np.stack([_floats(batch.column(name)) for name in parts], 1)
    scored = ~np.isnan(values).all(1)
    reward = pa.array(np.nansum(values, 1), mask=~scored)
    offsets = pa.array(np.arange(len(batch) + 1, dtype=np.int32) * len(parts))
    names = pa.array(parts * len(batch), pa.string())
    rewards = pa.MapArray.from_arrays(offsets, names, pa.array(values.ravel(), mask=np.isnan(values.ravel())))
    says = _floats(batch.column(verdict))
    columns = {
        "prompt": batch.column("prompt"),
        "response": batch.column("completion"),
        "reward": reward,
        "correct": pa.array(says > 0, mask=np.isnan(says)),
        "rewards": rewards,
        "step": batch.column("step"),
    }
    taken = {*columns, "completion"}
    columns |= {name: batch.column(name) for name in batch.schema.names if name not in taken}
    columns |= {
        f"input_{name}": batch.column(name) for name in ("response", "reward", "rewards") if name in batch.schema.names
    }
    columns[SOURCE_ROW] = pa.array(np.arange(len(batch)))
    return pa.RecordBatch.from_pydict(columns)


def _floats(array: pa.Array) -> np.ndarray:
    """Return numbers or booleans as float64, null as NaN."""
    array = decode_dictionary(array)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return np.asarray(pc.fill_null(array.cast(pa.float64(), safe=False), np.nan)).astype(np.float64)
