"""Key weights against chance: what a report says of the estimators that have some."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.key_weight.figures import FREE, GIVEN_LENGTH, NULLS, chance_figures
from ktae_cli.key_weight.specs import left_out_twins
from ktae_cli.key_weight.sums import SQUARE, ShiftSums
from ktae_cli.key_weight_passes import MixedGroups, halves_moments, mixed_groups_of, shuffled_sums
from ktae_cli.names import Spec
from ktae_cli.plan import Plan
from ktae_cli.rollouts import ReadOptions, Rollouts, read_rollouts
from ktae_cli.runners.local import Job, ResultRows, run
from ktae_cli.stats.length_fit import LengthFit
from ktae_cli.stats.pooled import Pool

_HALVES, _BOOTSTRAP = 2, 3
"""What tells the random numbers of one seed apart, beside the place of a null in NULLS."""


class Observed:
    """What a run over the whole input leaves: of each row whether it is scored, and its tokens on the mask; sums.

    pooled: the statistics of the whole input that the estimators ask for.
    """

    def __init__(self, plan: Plan, specs: list[Spec], all_specs: list[Spec]):
        self.pooled: dict[str, Pool] = {}
        self.scored = np.zeros(plan.source.n_rows, bool)
        self.counted = np.zeros(plan.source.n_rows, np.int64)
        self.sums = ShiftSums(specs, all_specs, len(plan.index.keys))

    def add(self, numbers: np.ndarray, rows: Rollouts, results: ResultRows) -> None:
        """Add rows with their numbers in the input and their results."""
        kept = results.scored
        mask = np.ones(len(rows.token_ids), bool) if rows.mask is None else rows.mask
        row_of = np.repeat(np.arange(len(rows)), rows.lengths)
        self.scored[numbers] = kept
        self.counted[numbers] = np.bincount(row_of[mask], minlength=len(rows))
        verdict = np.where(mask, rows.correct[row_of], -1)[kept[row_of]]
        self.sums.add_tokens(np.repeat(rows.group[kept], rows.lengths[kept]), verdict, results.columns)


def observe(plan: Plan, job: Job, specs: list[Spec]) -> Observed:
    """Score the input with the specs and their loo=true forms, for the figures alone."""
    everything = [*specs, *left_out_twins(specs, plan.eos_ids)[1]]
    observed = Observed(plan, everything, everything)
    numbers, read = np.flatnonzero(plan.index.codes >= 0), lean(plan.read)
    first = 0

    def on_rows(batch: pa.RecordBatch, results: ResultRows) -> None:
        nonlocal first
        at = numbers[first : first + len(batch)]
        first += len(batch)
        rows = read_rollouts(batch, plan.mapping, plan.index.codes[at], read, lambda i: plan.source.place(at[i]))
        observed.add(at, rows, results)

    observed.pooled = run(replace(job, specs=everything, want_tokens=False), on_rows, lambda tokens: None).pooled
    return observed


def lean(read: ReadOptions) -> ReadOptions:
    """Return how to look again at rows that scoring has read and checked: only at ids, masks and verdicts."""
    return replace(
        read, token_columns=(), reward_parts=False, text_marks=False, prompts=False, before_outcome=None,
        on_error="skip",
    )  # fmt: skip


def measure_chance(
    plan: Plan, job: Job, observed: Observed, specs: list[Spec], times: int, seed: int
) -> tuple[dict[str, Any], dict[Spec, list[float]]]:
    """Return what `--null` says of specs, and the share of each one's shift in each free shuffle.

    Two nulls: `free`, the labels of a group exchangeable, and `given-length`, the law of its verdicts given the length
    of its rollouts and the number right (stats/length_fit.py). Each time scores the mixed groups under both, and in
    both halves of a random split. Statistics of the whole input, such as a gate, stay those of the real labels: one
    gathered from shuffled labels would find nothing, and show nothing. Without a mixed group the figures of every spec
    are None.
    """
    mixed = mixed_groups_of(plan, replace(job, pooled=observed.pooled), observed.scored, observed.counted)
    prompt, group = mixed.rollouts.prompt, mixed.rollouts.group_code
    law = mixed.model_length() if len(group) else None
    found = _repeated(mixed, specs, {FREE: None, GIVEN_LENGTH: law}, times if len(group) else 0, seed)
    twins, _ = left_out_twins(specs, plan.eos_ids)
    figures: dict[str, Any] = {str(spec): None for spec in specs}
    for spec in specs if len(group) else ():
        own, left_out = (form and observed.sums.sums[form][:, group] for form in (spec, twins[spec]))
        shuffled = {null: found.squares[null][spec] / times for null in NULLS}
        random = np.random.default_rng([seed, 0, _BOOTSTRAP])
        figures[str(spec)] = chance_figures(own, left_out, shuffled, found.halves[spec], prompt, random)
    report = {
        "shuffles": times, "seed": seed, "groups": len(group), "prompts": len(np.unique(prompt)),
        "groups_split": int(found.split.sum()), "overlap": law and round(law.overlap, 6), "estimators": figures,
    }  # fmt: skip
    return report, found.shares


@dataclass
class _Repeated:
    """Sums over the times: of squared key weights (n_groups,) by null, moments of halves (6, n_groups), by spec.

    split (n_groups,) bool: split at least once; shares: of the shift in each free shuffle.
    """

    squares: dict[str, dict[Spec, np.ndarray]]
    halves: dict[Spec, np.ndarray]
    split: np.ndarray
    shares: dict[Spec, list[float]]


def _repeated(
    mixed: MixedGroups, specs: list[Spec], laws: dict[str, LengthFit | None], times: int, seed: int
) -> _Repeated:
    n_groups = len(mixed.place)
    found = _Repeated(
        {null: {spec: np.zeros(n_groups) for spec in specs} for null in laws},
        {spec: np.zeros((6, n_groups)) for spec in specs}, np.zeros(n_groups, bool), {spec: [] for spec in specs},
    )  # fmt: skip
    for time in range(times):
        for number, (null, law) in enumerate(laws.items()):
            sums = shuffled_sums(mixed, specs, law, np.random.default_rng([seed, time, number]))
            for spec in specs:
                found.squares[null][spec] += sums.sums[spec][SQUARE][mixed.place]
                share = sums.share(spec, np.ones(n_groups, bool)) if null == FREE else None
                found.shares[spec] += [] if share is None else [share]
        moments, split = halves_moments(mixed, specs, np.random.default_rng([seed, time, _HALVES]))
        found.split |= split
        for spec in specs:
            found.halves[spec] += moments[spec]
    return found


def key_weight_facts(
    spec: Spec, twin: Spec | None, sums: ShiftSums, mixed: np.ndarray, shuffled: list[float]
) -> dict[str, Any]:
    """Return what a comparison says of a KTAE estimator; None where it cannot be told.

    shuffled: the share of the shift in each free shuffle. self_share = 1 - agreement leaving the rollout out /
    agreement, not given where that is not above 0.
    """
    agreement = sums.agreement(spec, mixed)
    left_out = sums.agreement(twin, mixed) if twin else None
    can_tell = left_out is not None and agreement is not None and agreement > 0
    return {
        "shift_share": sums.share(spec, mixed),
        "shift_share_shuffled": {
            "mean": float(np.mean(shuffled)), "low": min(shuffled), "high": max(shuffled), "shuffles": len(shuffled),
        } if shuffled else None,
        "agreement": agreement,
        "agreement_left_out": left_out,
        "self_share": 1 - left_out / agreement if can_tell else None,
    }  # fmt: skip
