"""Which rows are parts of one sampled trajectory."""

import numpy as np
import pyarrow as pa


def first_rows(group: np.ndarray, rollout_ids: pa.ChunkedArray) -> np.ndarray:
    """Number the rollouts (n_rows,) by first row: rows that share group and rollout_id are parts of one."""
    codes = rollout_ids.combine_chunks().dictionary_encode().indices
    alone = np.asarray(codes.is_null())
    codes = np.asarray(codes.fill_null(0)).astype(np.int64)
    key = np.where(alone, -1 - np.arange(len(codes)), group * (codes.max(initial=0) + 1) + codes)
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return first[place]
