"""What every export shares: the declaration of a target, its options, and the rollouts to write, batch by batch.

A target is one file of this folder with one function of the file's name:

    @export(suffix=".jsonl", alignment="full sequence; value t belongs to token t; 0 on the prompt")
    def jsonl(rows: ExportRows, target: Path, *, keyword: int = 0) -> int | None:
        '''One sentence.'''
        for batch in rows:              # Batch: flat arrays of consecutive rollouts, options applied
            ...                         # write what the trainer reads to `target`
        return n                        # rows written, or None where every rollout is one

- The registry is the folder. The decorator's arguments are literals: `ktae list` and `ktae explain` read them, the
  docstring and the keyword arguments from the source without importing anything. Keyword arguments (float, int, bool or
  a Literal of words) are set on the command line as `--to 'jsonl(keyword=3)'` and are checked before the call.
- `target` is a temporary path beside the final one, an empty directory if the target declares `directory=True`. The
  caller renames it when the function returns and removes it when it raises: write, and let errors pass.
- `rows` was read once before: every length, mask, id and value is checked, and `rows.facts` has one line for each row
  of the scored file. Iterating reads the rows again, in bounded batches, in the order of the file.
- `rows.metadata` is what the file says of itself: put it into the format's own place for metadata. A target without one
  declares `sidecar=True` and the caller writes `OUT.meta` (the suffix replaced) beside it.
- `rows.count(what, n)` and `rows.say(text)` add a line to the summary that the user sees, for what a target leaves out
  or changes.

Shared pieces: `_padding` (ragged to rectangular), `_tensors` (padded tensors with ids, as safetensors), `_lines` (JSON
lines), `_arrow_dataset` (a folder that `datasets.load_from_disk` opens), `_full_sequence` (Arrow rows of the neutral
layout), `_shifted` (layouts of length T - 1).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ktae_cli.errors import InputError, KtaeError, MissingColumnError
from ktae_cli.exports._batch import LOG_PROBS, Batch, read_batches, split
from ktae_cli.exports._scale import no_scale, row_scales
from ktae_cli.exports._survey import ExportOptions, Facts, survey
from ktae_cli.readers.scored import ScoredFile, floats_of, unknown_id
from ktae_cli.schema import SCHEMA_VERSION

__all__ = [
    "LOG_PROBS",
    "Batch",
    "ExportOptions",
    "ExportRows",
    "Facts",
    "export",
    "open_rows",
    "refuse_retokenized",
    "split",
]


_CELLS = 1 << 22


def export(
    *,
    alignment: str,
    suffix: str = "",
    directory: bool = False,
    sidecar: bool = False,
    stdout: bool = False,
    column: str = "advantages",
    reads: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    refuses: tuple[str, ...] = (),
) -> Callable:
    """Declare a target; all arguments are literals.

    alignment: in words, where the value of a token stands; it goes into the metadata.
    suffix: of the output's name. directory: the output is a folder. sidecar: the metadata go into `OUT.meta`.
    stdout: `-o -` is possible, and `target` may be a binary stream.
    column: the per-token column that is exported unless `--advantages` names one.
    reads: further columns that `Batch.columns` or `Batch.log_probs` hold where the file has them; needs: those without
    which the export is refused. refuses: the fields of ExportOptions that have no meaning for the target.
    """

    def declared(function: Callable) -> Callable:
        return function

    return declared


@dataclass
class ExportRows:
    """The rollouts to export: iterate for batches in the order of the file."""

    scored: ScoredFile
    column: str
    options: ExportOptions
    facts: Facts
    metadata: dict[str, Any]
    names: tuple[str, ...]
    shift: np.ndarray
    scale: np.ndarray
    rows: np.ndarray
    """Numbers of the rows to export, in the order of the file."""
    counts: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        return self.take(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def narrow(self, width: int) -> Iterator[Batch]:
        """Iterate in batches that hold at most about 4 million cells when their rows are padded to `width`."""
        count = max(1, _CELLS // max(width, 1))
        for batch in self:
            for start in range(0, len(batch), count):
                yield batch.slice(start, min(start + count, len(batch)))

    def take(self, rows: np.ndarray) -> Iterator[Batch]:
        """Read some rows, numbers in the order of the file, with the options applied."""
        for batch in read_batches(self.scored, self.column, self.names, self.options.mask_truncated, rows):
            yield self._finished(batch)

    def part(self, rows: np.ndarray) -> "ExportRows":
        """Return the same export of fewer rows; what it counts is counted here."""
        return replace(self, rows=rows)

    def count(self, what: str, n: int) -> None:
        """Add to a number of the summary; `what` follows it in words."""
        if n:
            self.counts[what] = self.counts.get(what, 0) + int(n)

    def say(self, text: str) -> None:
        """Add a line to the summary, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def log_probs(self, fields: dict[str, tuple[str, ...]]) -> dict[str, str]:
        """Return for each field of a target the first of its columns that every exported row has, and say what is not.

        fields: names in the target -> columns of ours, the right one first, then those that may stand in for it.
        """
        found = {}
        for name, columns in fields.items():
            there = self.facts.log_probs  # judged over all exported rows, so that shards hold the same fields
            usable = [name for name in columns if name in there and there[name][self.facts.kept].all()]
            if not usable:
                self.say(f"no {name}: not every rollout has {' or '.join(columns)}; the trainer computes them")
                continue
            found[name] = usable[0]
            if usable[0] != columns[0]:
                self.say(f"{name} are {usable[0]}: not every rollout has {columns[0]}")
        return found

    def widest(self, lengths: np.ndarray) -> int:
        """Return the largest of some lengths of all rows among those to export; 0 without rows."""
        return int(lengths[self.rows].max(initial=0))

    def _finished(self, batch: Batch) -> Batch:
        values = batch.values
        if self.options.normalize != "none":
            shift, scale = (np.repeat(part[batch.numbers], batch.response) for part in (self.shift, self.scale))
            scored = batch.mask & np.repeat(~batch.unscored, batch.response)
            values = np.where(scored, (values.astype(np.float64) - shift) * scale, 0.0).astype(np.float32)
        if self.options.clip is not None:
            limit = np.float32(self.options.clip)
            self.count("advantages clipped", int((np.abs(values) > limit).sum()))
            values = np.clip(values, -limit, limit)
        return replace(batch, values=values)


def open_rows(
    scored: ScoredFile,
    alignment: str,
    options: ExportOptions,
    column: str = "advantages",
    reads: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> ExportRows:
    """Read and check a scored file once, decide which rows are exported and how their values are scaled.

    Rows leave in this order: without advantages, longer than `max_length`, of a dead group. A group is dead when every
    advantage of its remaining rows is 0 at every token of the policy. Then the values are normalised (`row_scales`) and
    clipped to [-clip, clip].
    """
    column = _column(scored, options, column)
    scored.require(["group_id", "rollout_id", "response_ids", *needs])
    if options.mask_truncated:
        scored.require(["finish_reason"])
    names = tuple(dict.fromkeys((*reads, *needs)))
    facts = survey(scored, column, names, options)
    rows = np.flatnonzero(facts.kept)
    scaled = no_scale(scored.n_rows) if options.normalize == "none" else row_scales(facts, rows, options.normalize)
    metadata: dict[str, Any] = {"alignment": alignment, "source": scored.path.name, "advantages": column}
    metadata |= {"spec": scored.spec_of(column), "options": _said(options), "schema_version": SCHEMA_VERSION}
    return ExportRows(scored, column, options, facts, metadata, names, *scaled, rows)


def _column(scored: ScoredFile, options: ExportOptions, default: str) -> str:
    column = options.advantages or default
    if column.startswith("grad_weight_") and options.loss != "plain_pg":
        raise KtaeError(
            f"{column} is a coefficient of the gradient, ratio and clip included: a trainer that multiplies it by its "
            "own ratio counts the ratio twice; choose advantages or adv_…, or, for a trainer whose loss is the "
            "log-probability times this column and nothing else, --loss plain_pg"
        )
    known = scored.value_columns()
    if column not in known and options.advantages is None:
        raise MissingColumnError(
            f"{scored.path.name} has no {column}; score with a ktae estimator, or name another column with "
            f"--advantages: {', '.join(known)}"
        )
    if column not in known:
        raise unknown_id("per-token column", column, [name for name in known if not name.startswith("grad_weight_")])
    return column


def _said(options: ExportOptions) -> dict[str, Any]:
    """Return the options that are not the default, for the metadata."""
    default = ExportOptions()
    return {
        name: value
        for name, value in vars(options).items()
        if name not in ("advantages", "allow_retokenized") and value != getattr(default, name)
    }


def refuse_retokenized(scored: ScoredFile) -> None:
    """Raise where token ids were made by encoding a text again: a trainer would credit tokens nobody sampled."""
    if not scored.has("retokenized"):
        return
    for numbers, columns in scored.batches(["group_id", "retokenized"]):
        marked = floats_of(columns["retokenized"]) == 1
        if marked.any():
            raise InputError(
                f"{scored.path.name}, row {numbers[int(np.argmax(marked))]}: the token ids come from encoding the text "
                "again and may not be the sampled ones; record the ids in the run (docs/recording.md), or give "
                "--allow-retokenized"
            )
