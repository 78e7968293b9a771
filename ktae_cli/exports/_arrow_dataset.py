"""A folder that `datasets.load_from_disk` opens, written with pyarrow: one Arrow stream and two small JSON files.

Layout: huggingface/datasets `arrow_dataset.py` (`Dataset.save_to_disk`, `load_from_disk`). The features are left to be
inferred from the Arrow schema, which every version does. The fingerprint, by which `datasets` names its caches, is the
hash of the data.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

_DATA = "data-00000-of-00001.arrow"


def write_dataset(target: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the batches of one schema into an empty folder."""
    path = target / _DATA
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    with path.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    state = {"_data_files": [{"filename": _DATA}], "_fingerprint": fingerprint, "_split": None}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    (target / "state.json").write_text(json.dumps(state, indent=2), encoding="utf-8")
    (target / "dataset_info.json").write_text("{}", encoding="utf-8")
