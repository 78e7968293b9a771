"""What of a KTAE estimator's advantages is its shift, against shuffled labels, and how much of it is self-agreement."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ktae_cli.catalogue import columns, declaration, resolve_spec, spell_out
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import check_parameters
from ktae_cli.names import Spec
from ktae_cli.pipeline import column_plan
from ktae_cli.readers._relabelled import RelabelledRollouts, exchange_labels
from ktae_cli.runners.local import Job, run


def with_key_weight(specs: list[Spec]) -> list[Spec]:
    """Return the specs that shift a base by key weights."""
    return [spec for spec in specs if "key_weight" in columns(spec)]


def left_out_twin(spec: Spec, eos_ids: tuple[int, ...] = ()) -> Spec | None:
    """Return the spec with loo=true, or None where it has no such form."""
    if "loo" not in declaration("estimators", spec.name).parameters:
        return None
    try:
        twin = resolve_spec(Spec(spec.name, tuple(sorted((dict(spec.arguments) | {"loo": True}).items()))))
        check_parameters(twin, eos_ids)
    except KtaeError:
        return None
    return twin


class ShiftSums:
    """Sums by group over the tokens of scored rows: |base|, |shift|, key weight x verdict, and tokens with a verdict.

    base = advantages - shift, shift = shift_scale * key_weight; a verdict is +1 or -1, tokens of unknown ones add 0.
    """

    def __init__(self, specs: list[Spec], all_specs: list[Spec], n_groups: int):
        plan = column_plan(all_specs)
        at = {owner: name for name, owner in plan.items()}
        self.columns = {s: (at[s, "advantages"], at[s, "key_weight"]) for s in specs}
        self.scale = {s: spell_out(s).get("shift_scale", 1.0) for s in specs}
        self.sums = {s: np.zeros((4, n_groups)) for s in specs}

    def add(self, group: np.ndarray, verdict: np.ndarray, lengths: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Add rows (n_rows,) with the results of their tokens, which are 0 off the mask."""
        self.add_tokens(np.repeat(group, lengths), np.repeat(verdict, lengths), found)

    def add_tokens(self, group: np.ndarray, verdict: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Add the results of tokens (n_tokens,) with their group and verdict; off the mask the verdict must be -1."""
        sign = np.array([-1.0, 1.0, 0.0])[verdict]
        for spec, sums in self.sums.items():
            advantages, weight = (found[name].astype(np.float64) for name in self.columns[spec])
            shift = self.scale[spec] * weight
            base = advantages - shift
            for row, values in zip(sums, (np.abs(base), np.abs(shift), weight * sign, np.abs(sign)), strict=True):
                row += np.bincount(group, values, len(row))

    def share(self, spec: Spec, mixed: np.ndarray) -> float | None:
        """Return sum |shift| / (sum |base| + sum |shift|) over the tokens of mixed groups."""
        base, shift, _, _ = self.sums[spec][:, mixed].sum(1)
        return float(shift / (base + shift)) if base + shift > 0 else None

    def agreement(self, spec: Spec, mixed: np.ndarray) -> float | None:
        """Return the mean of key weight x verdict over the tokens of mixed groups."""
        _, _, total, tokens = self.sums[spec][:, mixed].sum(1)
        return float(total / tokens) if tokens else None


def shuffled_shares(
    job: Job, specs: list[Spec], mixed: np.ndarray, labels: tuple[np.ndarray, ...], times: int, seed: int
) -> dict[Spec, list[float]]:
    """Return each spec's shares of the shift with labels shuffled inside groups, one for each time.

    labels: trajectory and whether a label is known, of every row of the input. Each time reads the input once more.
    """
    found: dict[Spec, list[float]] = {spec: [] for spec in specs}
    for time in range(times if specs else 0):
        giver = exchange_labels(job.index.codes, *labels, np.random.default_rng([seed, time]))
        source = RelabelledRollouts(job.source, job.mapping, giver, job.read.truncated)
        sums = ShiftSums(specs, specs, len(mixed))
        shuffled = replace(job, source=source, mapping=source.mapping, specs=specs)
        run(shuffled, _adder(sums, job.index.codes[job.index.codes >= 0]), lambda tokens: None)
        for spec in specs:
            share = sums.share(spec, mixed)
            found[spec] += [] if share is None else [share]
    return found


def _adder(sums: ShiftSums, codes: np.ndarray) -> Callable:
    first = 0

    def add(batch, results) -> None:
        nonlocal first
        group = codes[first : first + len(batch)]
        first += len(batch)
        sums.add(group, np.full(len(group), -1), results.lengths, results.columns)

    return add


def key_weight_facts(
    spec: Spec, twin: Spec | None, sums: ShiftSums, mixed: np.ndarray, shuffled: list[float]
) -> dict[str, Any]:
    """Return what a report says of a KTAE estimator; None where it cannot be told.

    self_share = 1 - agreement leaving the rollout out / agreement, not given where that is not above 0.
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
