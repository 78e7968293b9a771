"""The scored file as rows and metadata: a batch of the input beside its results."""

from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import needs, scope, sources, spell_out
from ktae_cli.names import Spec
from ktae_cli.pipeline import column_plan
from ktae_cli.plan import Plan, ScoreOptions
from ktae_cli.readers.base import column_at, root_of
from ktae_cli.schema import METADATA_KEY, SCHEMA_VERSION, STAND_INS, holds_flags
from ktae_cli.version import __version__
from ktae_cli.writers.scored import list_column


class ScoredTable:
    """Turns batches and their results into output rows under one schema."""

    def __init__(self, plan: Plan, options: ScoreOptions):
        self.plan, self.row = plan, 0
        self.ours = list(column_plan(plan.specs))
        schema = plan.source.schema
        derived = {
            "group_id": plan.mapping.derives_group_id,
            "rollout_id": "rollout_id" not in plan.mapping.columns,
        }
        self.made = [name for name, is_derived in derived.items() if is_derived or options.columns == "added"]
        self.kept = [
            name for name, written in plan.columns.items() if options.columns == "all" and written not in self.made
        ]
        fields = [schema.field(name).with_name(plan.columns[name]) for name in self.kept]
        self.keys = pa.array(plan.index.keys, pa.string())
        self.codes = plan.index.codes[plan.index.codes >= 0]
        ids = [pa.field(name, pa.string()) for name in self.made]
        results = [
            pa.field(name, pa.list_(pa.bool_() if holds_flags(result) else pa.float32()))
            for name, (_, result) in column_plan(plan.specs).items()
        ]
        metadata = {k: v for k, v in (schema.metadata or {}).items() if k not in (METADATA_KEY, b"pandas")}
        self.schema = pa.schema(fields + ids + results, metadata=metadata or None)
        self.numbers = np.flatnonzero(plan.index.codes >= 0)

    def rows(self, batch: pa.RecordBatch, results) -> pa.RecordBatch:
        """Return the output rows of a batch of the input."""
        columns = [batch.column(name) for name in self.kept]
        span = slice(self.row, self.row + len(batch))
        self.row += len(batch)
        if "group_id" in self.made:
            columns.append(self.keys.take(pa.array(self.codes[span])))
        if "rollout_id" in self.made:
            columns.append(self._rollout_ids(batch, span))
        columns += [list_column(results.columns[name], results.lengths, results.scored) for name in self.ours]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _rollout_ids(self, batch: pa.RecordBatch, span: slice) -> pa.Array:
        path = self.plan.mapping.columns.get("rollout_id")
        if path:
            return column_at(batch, path).cast(pa.string())
        return pa.array(self.plan.source.row_names(self.numbers[span]), pa.string())


def _written_path(plan: Plan, path: str) -> str:
    """Return where an input path stands in the output: its top-level column may have moved aside."""
    root = root_of(plan.source.schema, path)
    return plan.columns.get(root, root) + path[len(root) :]


def metadata_of(
    plan: Plan, options: ScoreOptions, table: ScoredTable, counts: dict, tokens: dict | None, null: dict | None = None
) -> dict[str, Any]:
    """Return what the scored file says about itself; no times and no absolute paths."""
    columns = {name: _written_path(plan, path) for name, path in plan.mapping.columns.items()}
    if options.columns == "added":
        columns = {}
    if len(plan.mapping.group_key) == 1 and not plan.mapping.hashed:
        columns["group_id"] = _written_path(plan, plan.mapping.group_key[0])
    columns |= {name: name for name in table.made}
    written = column_plan(plan.specs)
    return {
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "reader": plan.source.reader,
        "estimators": [
            {
                "spec": str(spec),
                "slug": spec.slug,
                "parameters": spell_out(spec),
                "scope": scope(spec),
                "columns": [name for name, (owner, _) in written.items() if owner == spec],
                **_origin(plan, spec),
            }
            for spec in plan.specs
        ],
        "columns": columns,
        "input_columns": {**plan.mapping.columns, "group_id": list(plan.mapping.group_key)},
        "correct_threshold": plan.read.correct_threshold,
        "reward_from": options.reward_from if "reward" in plan.mapping.columns else "correct",
        "truncated": options.truncated,
        "counts": counts,
        "inputs": plan.source.fingerprints(),
        "token_table": tokens,
        **({"null": null} if null else {}),
        **_verified(plan),
    }


def _verified(plan: Plan) -> dict[str, Any]:
    """Return how the verdicts came about where `verify` gave them."""
    described = (plan.source.own_metadata() or {}).get("verify")
    return {"verify": described} if described else {}


def _origin(plan: Plan, spec: Spec) -> dict[str, Any]:
    """Return what stood in for absent columns, and where an estimator comes from that is not part of the project."""
    used = {name: STAND_INS[name] for name in needs(spec) if name in STAND_INS and name not in plan.mapping.columns}
    elsewhere = sources(spec)
    return ({"stand_ins": used} if used else {}) | ({"sources": elsewhere} if elsewhere else {})
