"""The scored columns and the token table as Arrow: results of the pipeline -> what the files hold."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ktae_cli.names import Spec

TOKEN_SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("token_id", pa.int32()),
        ("token", pa.string()),
        ("spec", pa.string()),
        ("key_weight", pa.float32()),
        ("effect", pa.float64()),
        ("p_value", pa.float64()),
        ("information_gain", pa.float64()),
        ("correct_with", pa.int32()),
        ("incorrect_with", pa.int32()),
        ("n_correct", pa.int32()),
        ("n_incorrect", pa.int32()),
        ("tf_correct", pa.float64()),
        ("tf_incorrect", pa.float64()),
    ]
)
ENCODED_TOKEN_SCHEMA = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.type == pa.string() else field
        for field in TOKEN_SCHEMA
    ]
)
TOKEN_BATCH_ROWS = 1 << 16
PLAIN = ("token_id", "key_weight", "tf_correct", "tf_incorrect")
MEASURED = [name for name in TOKEN_SCHEMA.names if name not in ("group_id", "token_id", "token", "spec")]

_DTYPES = {name: TOKEN_SCHEMA.field(name).type.to_pandas_dtype() for name in (*MEASURED, "token_id")}
_DTYPES |= {"group": np.int32, "spec": np.int32}


def list_column(flat: np.ndarray, lengths: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Return list<float32> (or list<bool>) rows from flat values; rows that are not valid are null."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(flat)
    mask = None if valid.all() else pa.array(~valid)
    if offsets[-1] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=mask)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


class TokenTable:
    """Collects the pipeline's token results and hands them on as large batches of the token table's rows."""

    def __init__(
        self, keys: list[str], text_of: Callable[[int], str | None] | None, write: Callable[[pa.RecordBatch], None]
    ):
        """Write goes a batch at a time to `write`; text_of is asked once for each token id, None knows none."""
        self.keys = pa.array(keys, pa.string())
        self.text_of, self.write, self.texts = text_of, write, []
        self.place = np.zeros(0, np.int32)  # by token id: 1 + its place in texts, 0 not asked for, -1 has no text
        self.parts: list[dict[str, np.ndarray]] = []
        self.held = 0
        self.specs: list[str] = []

    def add(self, results: list[tuple[Spec, dict[str, np.ndarray]]]) -> None:
        """Add one chunk; its rows stand group by group, within a group spec by spec, within a spec by token id."""
        if not results:
            return
        self.specs = [str(spec) for spec, _ in results]
        number = np.repeat(np.arange(len(results), dtype=np.int32), [len(part["group"]) for _, part in results])
        columns = results[0][1] | {"spec": number}
        if len(results) > 1:
            columns = {name: np.concatenate([part[name] for _, part in results]) for name in results[0][1]}
            order = np.argsort(columns["group"], kind="stable")
            columns = {name: values[order] for name, values in (columns | {"spec": number}).items()}
        self.parts.append({name: values.astype(_DTYPES[name], copy=False) for name, values in columns.items()})
        self.held += len(number)
        if self.held >= TOKEN_BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what is held."""
        if self.held:
            self.write(
                self._batch({name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]})
            )
        self.parts, self.held = [], 0

    def _batch(self, columns: dict[str, np.ndarray]) -> pa.RecordBatch:
        data = {
            "group_id": pa.DictionaryArray.from_arrays(columns["group"], self.keys),
            "token_id": columns["token_id"],
            "token": self._texts(columns["token_id"]),
            "spec": pa.DictionaryArray.from_arrays(columns["spec"], pa.array(self.specs)),
        }
        data |= {name: columns[name] for name in MEASURED}
        return pa.RecordBatch.from_pydict(data, schema=ENCODED_TOKEN_SCHEMA)

    def _texts(self, ids: np.ndarray) -> pa.Array:
        if self.text_of is None:
            return pa.DictionaryArray.from_arrays(pa.nulls(len(ids), pa.int32()), pa.array([], pa.string()))
        top = int(ids.max())
        if top >= 1 << 24:  # ids of no vocabulary: no table of them
            return pa.array([self.text_of(int(i)) for i in ids], pa.string()).dictionary_encode()
        if top >= len(self.place):
            self.place = np.concatenate([self.place, np.zeros(top + 1 - len(self.place), np.int32)])
        for new in np.unique(ids[self.place[ids] == 0]).tolist():
            text = self.text_of(new)
            self.place[new] = -1 if text is None else len(self.texts) + 1
            self.texts += [] if text is None else [text]
        place = self.place[ids]
        return pa.DictionaryArray.from_arrays(pa.array(place - 1, mask=place < 0), pa.array(self.texts, pa.string()))
