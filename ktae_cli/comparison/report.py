"""The comparison itself: rollouts come in batches, each estimator's values side by side, one report comes out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.comparison.agreement import CoMoments, SignCounts, slope_within, spearman
from ktae_cli.comparison.aligned import AlignedRows, RowFacts, facts_of, join_rollouts
from ktae_cli.comparison.token_sample import SAMPLE_TOKENS, TokenSample
from ktae_cli.trajectories import first_rows

N_FLIPS = 20
"""Tokens, and rollouts, of opposite sign that a report names for each pair with the first."""
VERDICTS = {"right": 1, "wrong": 0}


class SideBySide:
    """Sums over all tokens, some numbers a rollout, and the values of the tokens that are ranked."""

    def __init__(self, names: list[str], groups: list[str], limit: int = SAMPLE_TOKENS):
        k = len(names)
        self.names, self.groups = names, groups
        self.moments, self.signs = CoMoments(k), SignCounts(k)
        self.largest = np.zeros((k, k))
        self.largest_at: dict[str, Any] | None = None
        self.sample = TokenSample(k, groups, limit)
        self.flips: list[list[dict[str, Any]]] = [[] for _ in names[1:]]
        self.rows: list[RowFacts] = []
        self.rollout_ids: list[pa.Array] = []

    def add(self, rows: AlignedRows) -> RowFacts:
        """Add rows and return their facts."""
        tokens = rows.policy_tokens()
        values, row, _ = tokens
        facts = facts_of(rows, tokens)
        if values.shape[1]:
            self.moments.add(values)
            self.signs.add(values)
            self._add_differences(rows, tokens)
            self._add_flips(rows, tokens)
            self.sample.add(values, rows.group, np.bincount(row, minlength=len(rows)))
        self.rows.append(replace(facts, flips=[]))  # these grow with the tokens
        self.rollout_ids.append(rows.rollout_ids)
        return facts

    def _add_differences(self, rows: AlignedRows, tokens: tuple[np.ndarray, ...]) -> None:
        values, row, position = tokens
        for i in range(len(values)):
            for j in range(i + 1, len(values)):
                size = np.abs(values[j].astype(np.float64) - values[i])
                at = int(size.argmax())
                if i == 0 and size[at] > self.largest[0].max():
                    self.largest_at = self._token(rows, row[at], position[at], values[:, at], j)
                self.largest[i, j] = self.largest[j, i] = max(self.largest[i, j], size[at])

    def _add_flips(self, rows: AlignedRows, tokens: tuple[np.ndarray, ...]) -> None:
        """Keep the clearest tokens of opposite sign: largest min(|A|, |A'|), one for each group and token id."""
        values, row, position = tokens
        for other in range(1, len(values)):
            at = np.flatnonzero(np.sign(values[other]) * np.sign(values[0]) < 0)
            size = np.minimum(np.abs(values[0, at]), np.abs(values[other, at]))
            at = at[np.argsort(-size, kind="stable")]
            ids = _ids_at(rows, row[at], position[at])
            kind = rows.group[row[at]] * (ids.max(initial=0) + 2) + ids + 1
            first = np.sort(np.unique(kind, return_index=True)[1])[:N_FLIPS]
            found = [self._token(rows, row[t], position[t], values[:, t], other) for t in at[first].tolist()]
            self.flips[other - 1] = _clearest(self.flips[other - 1] + found)

    def _token(self, rows: AlignedRows, row: int, position: int, values: np.ndarray, other: int) -> dict[str, Any]:
        token_id = int(_ids_at(rows, np.array([row]), np.array([position]))[0])
        return {
            "other": self.names[other],
            "group_id": self.groups[rows.group[row]],
            "rollout_id": rows.rollout_ids[int(row)].as_py(),
            "position": int(position),
            "token_id": token_id if token_id >= 0 else None,
            "token": rows.text_of(int(row), int(position)),
            "first_advantage": float(values[0]),
            "other_advantage": float(values[other]),
        }

    def report(self) -> dict[str, Any]:
        """Return the report; what cannot be told, such as the correlation with a constant, is None."""
        ids = pa.chunked_array(self.rollout_ids, pa.string())
        group = np.concatenate([rows.group for rows in self.rows])
        first, rollouts = join_rollouts(self.rows, first_rows(group, ids))
        mixed = mixed_groups(rollouts.group, rollouts.verdict, len(self.groups))
        ranked = self.sample.measure()
        report = {
            "rollouts": len(first),
            "tokens": self.signs.n,
            "groups": len(np.unique(group)),
            "groups_mixed": int(mixed.sum()),
            "ranked_tokens": self.sample.held,
            "ranked_groups": len(self.sample.kept_groups()),
            "estimators": self._estimators(rollouts, ranked),
            "pairs": self._pairs(rollouts, ranked),
            "flips": self._flips(rollouts, first, ids),
            "largest_difference": float(self.largest[0].max()),
            "largest_difference_at": self.largest_at,
        }
        return _without_nan(report)

    def _estimators(self, rollouts: RowFacts, ranked: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        active = _active(rollouts, len(self.groups))
        zero = 1 - self.signs.nonzero / max(self.signs.n, 1)
        return [
            {
                "name": name,
                "zero_tokens": float(zero[i]),
                "top_share": float(ranked["top_share"][i]),
                **_sizes(rollouts, i),
                "length": _length_slopes(rollouts, i, active),
            }
            for i, name in enumerate(self.names)
        ]

    def _pairs(self, rollouts: RowFacts, ranked: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        some = rollouts.n_tokens > 0
        means = rollouts.sums[:, some] / rollouts.n_tokens[some]
        moments, signs = CoMoments(len(means)), SignCounts(len(means))
        if means.shape[1]:
            moments.add(means)
            signs.add(means)
        tokens = max(self.signs.n, 1)
        measures = {
            "rollout_pearson": moments.correlations(),
            "rollout_spearman": spearman(means),
            "token_pearson": self.moments.correlations(),
            "token_spearman": ranked["spearman"],
            "sign_flips": self.signs.opposite / tokens,
            "zero_in_one": self.signs.one_sided / tokens,
            "rollout_sign_flips": signs.opposite,
            "top_jaccard": ranked["jaccard"],
            "largest_difference": self.largest,
        }
        return [
            {"first": a, "second": b, **{name: matrix[i, j].item() for name, matrix in measures.items()}}
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names)
            if i < j
        ]

    def _flips(self, rollouts: RowFacts, first: np.ndarray, ids: pa.ChunkedArray) -> list[dict[str, Any]]:
        """Return for each pair with the first the clearest tokens and rollouts of opposite sign."""
        found = []
        means = rollouts.sums / np.maximum(rollouts.n_tokens, 1)
        for i, name in enumerate(self.names[1:], 1):
            at = np.flatnonzero(np.sign(means[0]) * np.sign(means[i]) < 0)
            size = np.minimum(np.abs(means[0, at]), np.abs(means[i, at]))
            at = at[np.argsort(-size, kind="stable")][:N_FLIPS]
            named = [
                {
                    "group_id": self.groups[rollouts.group[r]],
                    "rollout_id": ids[int(first[r])].as_py(),
                    "first_mean": float(means[0, r]),
                    "other_mean": float(means[i, r]),
                }
                for r in at.tolist()
            ]
            found.append({"first": self.names[0], "second": name, "tokens": self.flips[i - 1], "rollouts": named})
        return found


def mixed_groups(group: np.ndarray, verdict: np.ndarray, n_groups: int) -> np.ndarray:
    """Tell which groups (n_groups,) hold right and wrong rollouts."""
    right, wrong = (np.bincount(group[verdict == v], minlength=n_groups) > 0 for v in VERDICTS.values())
    return right & wrong


def _ids_at(rows: AlignedRows, row: np.ndarray, position: np.ndarray) -> np.ndarray:
    if rows.token_ids is None:
        return np.full(len(row), -1)
    return rows.token_ids[(np.cumsum(rows.lengths) - rows.lengths)[row] + position]


def _clearest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most N_FLIPS tokens, the clearest first, one for each group and token id."""
    found = sorted(found, key=lambda t: -min(abs(t["first_advantage"]), abs(t["other_advantage"])))
    distinct: dict[tuple, dict[str, Any]] = {}
    for token in found:
        distinct.setdefault((token["group_id"], token["token_id"]), token)
    return list(distinct.values())[:N_FLIPS]


def _sizes(rollouts: RowFacts, i: int) -> dict[str, dict[str, float]]:
    """Return the mean over rollouts of sum |A|, of mean |A| and of mean A, for all and by verdict."""
    some = rollouts.n_tokens > 0
    found: dict[str, dict[str, float]] = {"sum_abs": {}, "mean_abs": {}, "mean": {}}
    for label, chosen in _by_verdict(rollouts, some).items():
        n = np.maximum(rollouts.n_tokens[chosen], 1)
        absolute = rollouts.absolute_sums[i, chosen]
        found["sum_abs"][label] = _mean(absolute)
        found["mean_abs"][label] = _mean(absolute / n)
        found["mean"][label] = _mean(rollouts.sums[i, chosen] / n)
    return found


def _active(rollouts: RowFacts, n_groups: int) -> np.ndarray:
    """Tell which rollouts have tokens and stand in a group in which some of the compared gives a nonzero advantage."""
    paid = np.bincount(rollouts.group, rollouts.absolute_sums.max(0), n_groups) > 0
    return paid[rollouts.group] & (rollouts.n_tokens > 0)


def _length_slopes(rollouts: RowFacts, i: int, active: np.ndarray) -> dict[str, Any]:
    """Return how pay goes with length, inside groups and within a verdict inside the verdicts of groups.

    per_token: slope of a rollout's sum |A| on its tokens; elasticity: that over sum |A| / tokens of the same rollouts,
    1 where every token gets the same; mean_per_doubling: slope of its mean A on log2 of its tokens.
    """
    found: dict[str, Any] = {"rollouts": int(active.sum()), "per_token": {}, "elasticity": {}, "mean_per_doubling": {}}
    for label, chosen in _by_verdict(rollouts, active).items():
        n = rollouts.n_tokens[chosen].astype(np.float64)
        absolute, group = rollouts.absolute_sums[i, chosen], rollouts.group[chosen]
        slope, total = slope_within(n, absolute, group), absolute.sum()
        found["per_token"][label] = slope
        found["elasticity"][label] = slope * n.sum() / total if total > 0 else math.nan
        found["mean_per_doubling"][label] = slope_within(np.log2(n), rollouts.sums[i, chosen] / n, group)
    return found


def _by_verdict(rollouts: RowFacts, chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {"all": chosen} | {label: chosen & (rollouts.verdict == verdict) for label, verdict in VERDICTS.items()}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _without_nan(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_nan(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_without_nan(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
