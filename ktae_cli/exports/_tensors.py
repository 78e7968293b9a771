"""What the targets made of padded tensors share: ids and alignment in the metadata, fields of one chunk at a time."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ktae_cli.exports._safetensors import write_tensors
from ktae_cli.exports.base import ExportRows

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def save_tensors(
    rows: ExportRows,
    target: Path,
    widths: Mapping[str, tuple[str, int | None]],
    chunks: Iterable[dict[str, np.ndarray]],
) -> None:
    """Write fields of (dtype, width), or of one value a rollout where the width is None, row by row.

    `__metadata__` holds the keys of the `ktae` metadata, `rollout_ids` and `group_ids`: JSON lists in the rows' order.
    """
    facts = rows.facts
    width = max((width for _, width in widths.values() if width is not None), default=0)
    cells, tokens = len(rows) * width, int((facts.prompt + facts.response)[rows.rows].sum())
    if cells > 4 * tokens:
        share = 100 * (1 - tokens / cells)
        rows.say(
            f"{share:.0f} % of the tensors is padding to {width} places: --max-length or --shards make them smaller"
        )
    ids = {"rollout_ids": [facts.rollout_ids[row] for row in rows.rows]}
    ids["group_ids"] = [facts.groups[group] for group in facts.group[rows.rows]]
    shapes: Shapes = {
        name: (dtype, (len(rows),) if width is None else (len(rows), width)) for name, (dtype, width) in widths.items()
    }
    write_tensors(target, shapes, chunks, rows.metadata | ids)
