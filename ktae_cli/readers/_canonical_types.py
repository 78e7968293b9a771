"""The Arrow types of the canonical columns."""

import pyarrow as pa

from ktae_cli.schema import COLUMNS

ARROW_TYPES = {
    "string": pa.string(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "list<int32>": pa.list_(pa.int32()),
    "list<float32>": pa.list_(pa.float32()),
    "list<bool>": pa.list_(pa.bool_()),
    "list<string>": pa.list_(pa.string()),
    "map<string, float64>": pa.map_(pa.string(), pa.float64()),
}
DTYPES = {column.name: column.dtype for column in COLUMNS}
CANONICAL = {name: ARROW_TYPES[dtype] for name, dtype in DTYPES.items()}
