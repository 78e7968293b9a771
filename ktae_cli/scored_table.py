"""The scored file as rows and metadata: a batch of the input beside its results."""

from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import declaration, spell_out
from ktae_cli.pipeline import column_plan
from ktae_cli.plan import Plan, ScoreOptions
from ktae_cli.readers.base import column_at, root_of
from ktae_cli.schema import METADATA_KEY, SCHEMA_VERSION
from ktae_cli.version import __version__
from ktae_cli.writers.scored import list_column


class ScoredTable:
    """Turns batches and their results into output rows under one schema."""

    def __init__(self, plan: Plan, options: ScoreOptions):
        self.plan, self.row = plan, 0
        self.ours = list(column_plan(plan.specs))
        schema = plan.source.schema
        self.kept = [name for name in plan.columns if options.columns == "all"]
        fields = [schema.field(name).with_name(plan.columns[name]) for name in self.kept]
        self.keys = pa.array(plan.index.keys, pa.string())
        self.codes = plan.index.codes[plan.index.codes >= 0]
        self.writes_group = options.columns == "added" or plan.mapping.derives_group_id
        self.writes_rollout = options.columns == "added" or "rollout_id" not in plan.mapping.columns
        if self.writes_group:
            fields = [f for f in fields if f.name != "group_id"]
            self.kept = [name for name in self.kept if plan.columns[name] != "group_id"]
        if self.writes_rollout:
            fields = [f for f in fields if f.name != "rollout_id"]
            self.kept = [name for name in self.kept if plan.columns[name] != "rollout_id"]
        ids = [
            pa.field(n, pa.string())
            for n, w in (("group_id", self.writes_group), ("rollout_id", self.writes_rollout))
            if w
        ]
        results = [pa.field(name, pa.list_(pa.float32())) for name in self.ours]
        metadata = {k: v for k, v in (schema.metadata or {}).items() if k not in (METADATA_KEY, b"pandas")}
        self.schema = pa.schema(fields + ids + results, metadata=metadata or None)
        self.numbers = np.flatnonzero(plan.index.codes >= 0)

    def rows(self, batch: pa.RecordBatch, results) -> pa.RecordBatch:
        """Return the output rows of a batch of the input."""
        columns = [batch.column(name) for name in self.kept]
        span = slice(self.row, self.row + len(batch))
        self.row += len(batch)
        if self.writes_group:
            columns.append(self.keys.take(pa.array(self.codes[span])))
        if self.writes_rollout:
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
    plan: Plan, options: ScoreOptions, table: ScoredTable, counts: dict, tokens: dict | None
) -> dict[str, Any]:
    """Return what the scored file says about itself; no times and no absolute paths."""
    columns = {name: _written_path(plan, path) for name, path in plan.mapping.columns.items()}
    if options.columns == "added":
        columns = {}
    if len(plan.mapping.group_key) == 1 and not plan.mapping.hashed:
        columns["group_id"] = _written_path(plan, plan.mapping.group_key[0])
    if table.writes_group:
        columns["group_id"] = "group_id"
    if table.writes_rollout:
        columns["rollout_id"] = "rollout_id"
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
                "scope": declaration("estimators", spec.name).scope,
                "columns": [name for name, (owner, _) in written.items() if owner == spec],
            }
            for spec in plan.specs
        ],
        "columns": columns,
        "input_columns": {**plan.mapping.columns, "group_id": list(plan.mapping.group_key)},
        "correct_threshold": options.correct_threshold,
        "reward_from": options.reward_from if "reward" in plan.mapping.columns else "correct",
        "truncated": options.truncated,
        "counts": counts,
        "inputs": plan.source.fingerprints(),
        "token_table": tokens,
    }
