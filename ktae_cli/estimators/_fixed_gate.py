"""A gate from a table that `ktae tokens` wrote: evidence of earlier rollouts, for use while a policy trains."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import resolve_spec, takes_pool
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators.base import Estimate, estimate, own_request, pool_requests, pooled_of
from ktae_cli.names import Spec
from ktae_cli.stats.cross_fitted import UnitEvidence, between_units

_COLUMNS = ("token_id", "q_value", "q_given_length", "odds_ratio", "ci_low", "ci_high", "heterogeneity")
_NORMAL_975 = 1.959963984540054


class GatedIds(NamedTuple):
    """Token ids (n,) int64 in ascending order, their sign (n,) int64, 1 or -1, and shrunken log odds ratio (n,)."""

    token_id: np.ndarray
    sign: np.ndarray
    log_odds: np.ndarray


class FixedGate:
    """What a table says of each token id, the same for every group.

    It is not cross-fitted: on the rollouts that the table was made from, ids would be judged by the verdicts that they
    then shift. Take a table of earlier or other rollouts of the same tokenizer.
    """

    def __init__(self, columns: dict[str, np.ndarray]):
        """columns: those of `_COLUMNS`, numbers with NaN where the table has none, one row for each token id."""
        order = np.argsort(columns["token_id"])
        self.columns = {name: values[order] for name, values in columns.items()}

    def evidence(self, given_length: bool) -> UnitEvidence:
        """Return the evidence as one fold.

        V = (2 * 1.96 / log(ci_high / ci_low))^2, U = V log(odds_ratio): Mantel and Haenszel's, which is not corrected
        for length. An odds ratio of 0 or infinity tells the sign alone: V is 0 and U nearly. `within` is the mean of
        the table's heterogeneity.
        """
        q = self.columns["q_given_length" if given_length else "q_value"]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_odds = np.log(self.columns["odds_ratio"])
            width = np.log(self.columns["ci_high"]) - np.log(self.columns["ci_low"])
            variance = (2 * _NORMAL_975 / width) ** 2
        known = np.isfinite(log_odds) & np.isfinite(variance)
        variance = np.where(known, variance, 0.0)
        sign = np.sign(np.nan_to_num(log_odds, nan=0.0))
        score = np.where(known, variance * np.where(known, log_odds, 0.0), sign * np.finfo(np.float64).tiny)
        tested = ~np.isnan(q)
        spread = self.columns["heterogeneity"][tested]
        return UnitEvidence(
            np.zeros(len(q), np.int64), self.columns["token_id"].astype(np.int64), np.where(tested, q, np.inf), score,
            variance, np.array([between_units(score[tested], variance[tested])]),
            np.array([np.nan_to_num(spread).mean() if len(spread) else 0.0]),
        )  # fmt: skip

    def folds(self, batch: GroupBatch) -> Tensor:
        """Return the fold of each group: there is one."""
        return torch.zeros(batch.n_groups, dtype=torch.int64, device=batch.offsets.device)

    def ids(self, gate: float = 0.05, given_length: bool = True) -> GatedIds:
        """Return the ids that pass, with their sign and size."""
        found = self.evidence(given_length)
        passes = (found.q < gate) & (found.score != 0)
        sign = np.sign(found.score).astype(np.int64)
        return GatedIds(found.unit[passes], sign[passes], np.where(found.variance > 0, found.log_odds, 0.0)[passes])


def read_gate(path: str | Path) -> FixedGate:
    """Read the gate of a file that `ktae tokens` wrote with tokens as units.

    Raises `InputError` where a column is missing, no unit is a token, or a token id stands twice.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())[:120]})") from None
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}; a gate is read from what `ktae tokens` writes")
    table = table.filter(table["token_id"].is_valid())
    if not len(table):
        raise InputError(f"{path}: no unit is a token; make the table with `ktae tokens --unit token`")
    columns = {name: _numbers(table[name]) for name in _COLUMNS}
    if len(np.unique(columns["token_id"])) < len(table):
        raise InputError(f"{path}: a token id stands in several rows; make the table without --within")
    return FixedGate(columns)


def gate_for(spec: str | Spec, path: str | Path) -> FixedGate:
    """Read the gate for a spec; raise `KtaeError` for one that takes no evidence."""
    _refuse_without_evidence(resolve_spec(spec))
    return read_gate(path)


def _refuse_without_evidence(spec: Spec) -> None:
    if spec.name != "ktae" or not takes_pool(spec):
        raise KtaeError(f"{spec} takes no evidence, so a gate changes nothing; give one such as ktae(gate=0.05)")


def _numbers(column: Any) -> np.ndarray:
    import pyarrow as pa

    return column.cast(pa.float64()).fill_null(np.nan).to_numpy()


def gated_estimate(spec: str | Spec, batch: GroupBatch, gate: FixedGate) -> Estimate:
    """Run a spec such as `ktae(gate=0.05)` on a batch with a fixed gate instead of evidence from the batch itself.

    Other statistics that the spec pools, such as those of its base, are those of the batch. Raises `KtaeError` for a
    spec that takes no evidence.
    """
    spec = resolve_spec(spec)
    _refuse_without_evidence(spec)
    own = own_request(spec).key
    others = [request for request in pool_requests([spec]).values() if request.key != own]
    pooled = {request.key: pooled_of(request, batch) for request in others}
    return estimate(spec, replace(batch, pooled=pooled | {own: gate}, memo={}))
