"""From an input to the pairs of unit and rollout: one pass over the tokens of the groups that tell something."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ktae_cli.evidence.incidence import Incidence, Informative, Pairs, only_rollouts
from ktae_cli.pipeline import column_plan
from ktae_cli.plan import Plan, pick_device
from ktae_cli.readers._relabelled import ChosenColumns
from ktae_cli.readers.base import column_at, list_lengths, list_values, root_of
from ktae_cli.rollouts import Rollouts, read_rollouts, roots_to_read
from ktae_cli.runners.local import Job, ResultRows, run
from ktae_cli.stats.conditional import runs
from ktae_cli.token_text import Decoder
from ktae_cli.units.base import TokenBatch, UnitReader
from ktae_cli.units.outcome import before_positions

View = Callable[[TokenBatch, np.ndarray], TokenBatch]
"""(rows, the rollout of each) -> the same rows with fewer counted tokens, or with places."""

_TEXT = ("response_tokens", "response", "turn_ids")


def gather(
    plan: Plan, rollouts: Informative, units: UnitReader, views: list[View], *, device: str = "auto", jobs: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None, warn: Callable[[str], None] = lambda text: None,
) -> list[Incidence]:  # fmt: skip
    """Read the tokens of the rollouts once and return the incidence of their units under each view.

    The first of plan.specs gives the key weight of each occurrence, that of its first token. Rollouts of which no row
    can be read, which on_error="skip" leaves out, are in no incidence.
    """
    found = [Pairs(rollouts) for _ in views]
    was_read = np.zeros(len(rollouts), bool)
    index = plan.index.only(rollouts.group_code)
    numbers = np.flatnonzero(index.codes >= 0)
    text = [plan.mapping.columns[name] for name in _TEXT if name in plan.mapping.columns]
    schema = plan.source.schema
    roots = dict.fromkeys([*roots_to_read(plan.mapping, plan.read, schema), *(root_of(schema, path) for path in text)])
    weight_column = column_plan(plan.specs)
    name = next(column for column, (_, result) in weight_column.items() if result == "key_weight")
    row = 0

    def on_rows(batch: pa.RecordBatch, results: ResultRows) -> None:
        nonlocal row
        at = numbers[row : row + len(batch)]
        row += len(batch)
        rows = _read(batch, plan, index.codes[at], at)
        tokens = _with_text(batch, plan, rows)
        rollout = np.where(_readable(rows), rollouts.of_row[at], -1)
        was_read[rollout[rollout >= 0]] = True
        weight = np.zeros(len(tokens.token_ids), np.float32)
        weight[np.repeat(results.scored, tokens.lengths)] = results.columns[name]
        tokens = tokens.only(np.repeat(rollout >= 0, tokens.lengths))
        for pairs, view in zip(found, views, strict=True):
            seen = view(tokens, rollout)
            occurred = units.read(seen)
            first = seen.starts[occurred.rollout] + occurred.position
            pairs.add(occurred.unit, rollout[occurred.rollout], weight[first])
            pairs.add_lengths(rollout, _counted(seen))

    source = ChosenColumns(plan.source, [n for n in schema.names if n in roots])
    job = Job(
        source, plan.mapping, index, plan.specs, plan.read, pick_device(device), jobs, plan.eos_ids, False,
        _counter(len(numbers), progress),
    )  # fmt: skip
    totals = run(job, on_rows, lambda tokens: None)
    if totals.counts.get("skipped"):
        warn(f"{totals.counts['skipped']} row(s) of these groups left out, the first: {totals.first_error}")
    incidences = [pairs.incidence() for pairs in found]
    return incidences if was_read.all() else [only_rollouts(incidence, was_read) for incidence in incidences]


def _counter(total: int, progress: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    return count


def _read(batch: pa.RecordBatch, plan: Plan, group: np.ndarray, numbers: np.ndarray) -> Rollouts:
    """Return the ids and masks of rows that scoring has checked; those that cannot be read have none."""
    read = replace(
        plan.read, token_columns=(), reward_parts=False, text_marks=False, before_outcome=None, on_error="skip"
    )
    return read_rollouts(batch, plan.mapping, group, read, lambda i: plan.source.place(int(numbers[i])))


def _readable(rows: Rollouts) -> np.ndarray:
    """Tell which rows can be read (n_rows,) bool; rows of unknown reward can."""
    return rows.scored | np.isnan(rows.reward)


def _with_text(batch: pa.RecordBatch, plan: Plan, rows: Rollouts) -> TokenBatch:
    """Return the tokens of rows with whatever text of them there is."""
    columns = plan.mapping.columns

    def aligned(name: str) -> pa.Array | None:
        """Return the values of a list column, token by token; null in rows that have another number of them."""
        if name not in columns:
            return None
        array = column_at(batch, columns[name])
        lengths, values = list_lengths(array)[0], list_values(array)
        if np.array_equal(lengths, rows.lengths):
            return values
        starts = np.cumsum(lengths) - lengths
        return values.take(pa.array(runs(starts, rows.lengths), mask=~np.repeat(lengths == rows.lengths, rows.lengths)))

    texts = column_at(batch, columns["response"]).to_pylist() if "response" in columns else None
    turns = aligned("turn_ids")
    return TokenBatch(
        rows.token_ids, rows.lengths, rows.mask, aligned("response_tokens"), texts,
        None if turns is None else turns.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False),
    )  # fmt: skip


def _counted(rows: Rollouts | TokenBatch) -> np.ndarray:
    """Return the counted tokens of each row (n_rows,)."""
    if rows.mask is None:
        return rows.lengths
    ends = np.cumsum(rows.lengths)
    running = np.concatenate([[0], np.cumsum(rows.mask)])
    return running[ends] - running[ends - rows.lengths]


def shortest_in_group(plan: Plan, rollouts: Informative) -> np.ndarray:
    """Return the counted tokens of the shortest rollout of each group (n_groups,); reads ids and masks once more."""
    length, was_read = np.zeros(len(rollouts), np.int64), np.zeros(len(rollouts), bool)
    roots = roots_to_read(plan.mapping, plan.read, plan.source.schema)
    row = 0
    for batch in plan.source.batches(roots):
        at = np.arange(row, row + len(batch))
        row += len(batch)
        rows = _read(batch, plan, at, at)
        rollout = np.where(_readable(rows), rollouts.of_row[at], -1)
        np.add.at(length, rollout[rollout >= 0], _counted(rows)[rollout >= 0])
        was_read[rollout[rollout >= 0]] = True
    longest = length.max(initial=0)
    return np.minimum.reduceat(np.where(was_read, length, longest), rollouts.strata.starts)


def cut_at(shortest: np.ndarray, rollouts: Informative) -> View:
    """Return the view in which a rollout is cut at the length of the shortest of its group (n_groups,).

    The parts of a trajectory are cut one by one.
    """
    limit = shortest[rollouts.strata.group]

    def view(tokens: TokenBatch, rollout: np.ndarray) -> TokenBatch:
        counted = np.ones(len(tokens.token_ids), bool) if tokens.mask is None else tokens.mask
        before = np.cumsum(counted)
        starts = tokens.starts
        before -= np.repeat(np.concatenate([[0], before])[starts[:-1]], tokens.lengths)
        most = np.where(rollout >= 0, limit[rollout.clip(min=0)] if len(limit) else 0, 0)
        return tokens.only(before <= np.repeat(most, tokens.lengths))

    return view


def written_before(before: str, decoder: Decoder) -> View:
    """Return the view of what a response writes before it settles its outcome, or before a decile."""

    def view(tokens: TokenBatch, rollout: np.ndarray) -> TokenBatch:
        position = np.arange(len(tokens.token_ids)) - np.repeat(tokens.starts[:-1], tokens.lengths)
        return tokens.only(position < np.repeat(before_positions(tokens, before, decoder), tokens.lengths))

    return view
