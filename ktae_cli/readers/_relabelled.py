"""The rollouts of a source with their labels exchanged: rewards and verdicts change hands inside each group."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ktae_cli.mapping import Mapping
from ktae_cli.readers.base import Source, column_at, root_of

_LABELS = ("reward", "correct", "rewards")


class ChosenColumns:
    """A source of which whole rows are read with these top-level columns only."""

    def __init__(self, source: Source, columns: list[str]):
        self.source, self.columns = source, columns
        self.reader, self.n_rows = source.reader, source.n_rows
        self.schema = pa.schema([source.schema.field(name) for name in columns])

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order."""
        return self.source.batches(self.columns if columns is None else columns)

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes columns take in memory."""
        return self.source.bytes_of(columns)

    def place(self, row: int) -> str:
        """Name a row for a message."""
        return self.source.place(row)

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return a stable name of each row."""
        return self.source.row_names(rows)

    def own_metadata(self) -> dict | None:
        """Return what `ktae` wrote about the rows, or None."""
        return self.source.own_metadata()

    def fingerprints(self) -> list[dict[str, str]]:
        """Return the base name and a hash of each file."""
        return self.source.fingerprints()


class RelabelledRollouts(ChosenColumns):
    """The same rows with the labels of others: row i has those of row giver[i] (n_rows,), none where that is -1.

    Labels are reward, verdict and named parts of the reward, and with truncated="zero" the finish reason, which
    decides about them.
    """

    def __init__(self, source: Source, mapping: Mapping, giver: np.ndarray, truncated: str = "keep"):
        names = [*_LABELS, *(["finish_reason"] if truncated == "zero" else [])]
        paths = {name: mapping.columns[name] for name in names if name in mapping.columns}
        super().__init__(source, source.schema.names)
        roots = list(dict.fromkeys(root_of(source.schema, path) for path in paths.values()))
        parts = [{name: column_at(batch, path) for name, path in paths.items()} for batch in source.batches(roots)]
        self.labels = {
            _hidden(name): pa.chunked_array([part[name] for part in parts]).take(pa.array(giver, mask=giver < 0))
            for name in paths
        }
        self.mapping = replace(mapping, columns=mapping.columns | {name: _hidden(name) for name in paths})
        self.schema = pa.schema([*source.schema, *(pa.field(name, v.type) for name, v in self.labels.items())])

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order."""
        wanted = self.schema.names if columns is None else columns
        first = 0
        for batch in self.source.batches([name for name in wanted if name not in self.labels]):
            for name in wanted:
                if name in self.labels:
                    part = self.labels[name].slice(first, len(batch)).combine_chunks()
                    batch = batch.append_column(pa.field(name, part.type), part)
            first += len(batch)
            yield batch

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes columns take in memory."""
        return self.source.bytes_of([name for name in columns if name not in self.labels])


def _hidden(name: str) -> str:
    return f"ktae relabelled {name}"


def exchange_labels(
    group: np.ndarray,
    trajectory: np.ndarray,
    labelled: np.ndarray,
    random: np.random.Generator,
    verdict: np.ndarray | None = None,
    drawn: np.ndarray | None = None,
) -> np.ndarray:
    """Return for each row (n_rows,) the row whose labels it gets: a random permutation inside each group.

    With verdict and drawn (n_rows,) a row that is drawn right gets the labels of a row of its group that is right, a
    row that is drawn wrong those of a wrong one, at random among these; in each group as many are drawn right as are.
    Rows of one trajectory get the same; rows of trajectories without a label, and of group -1, keep their own.
    group, trajectory (n_rows,) int64, labelled (n_rows,) bool.
    """
    giver = np.arange(len(group))
    rows = np.flatnonzero(labelled & (group >= 0))
    units, first = np.unique(trajectory[rows], return_index=True)
    holder = rows[first]
    kind = np.zeros(len(group), np.int8)
    taker_kind, giver_kind = (kind if given is None else given for given in (drawn, verdict))
    before = np.lexsort((np.arange(len(units)), taker_kind[holder], group[holder]))
    after = np.lexsort((random.random(len(units)), giver_kind[holder], group[holder]))
    taken = np.empty(len(units), np.int64)
    taken[before] = holder[after]
    place = np.searchsorted(units, trajectory).clip(max=max(len(units) - 1, 0))
    if len(units):
        belongs = (units[place] == trajectory) & (group >= 0)
        giver[belongs] = taken[place[belongs]]
    return giver
