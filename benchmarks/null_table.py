"""Measure how much of the key weights is chance: shuffle share, reliability, self share and agreement by group size.

    python benchmarks/null_table.py ROLLOUTS.parquet [--sizes 8 16 50] [--null 3] [--seed 0] [--markdown] [-e SPEC]...

The rollouts of every group of the input are dealt at random (--seed) into as many groups of each size as they fill:
50 rollouts into 6 groups of 8, 3 of 16 or 1 of 50; what is left over is not used. The figures are those of
`ktae score --null`, with 95 % intervals over prompts. No targets: the exit status is 0.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _report import format_table, say

import ktae_cli as ktae
from ktae_cli.reports.chance import share

SPECS = [
    "ktae", "ktae(tf=bounded)", "ktae(tf=off)", "ktae(loo=true)", "ktae(gate=0.05)", "ktae(gate=0.05,length=off)",
    "ktae(size=pooled)", "ktae(shrink=eb)",
]  # fmt: skip
HEAD = [
    "estimator", "group size", "shuffle share, free", "given-length", "reliability", "self share", "agreement",
    "left out",
]  # fmt: skip
FIGURES = (("reliability", 2), ("self_share", 2), ("agreement", 4), ("agreement_left_out", 4))
"""With the digits that are shown."""


def deal(rollouts: pa.Table, key: str, size: int, seed: int) -> pa.Table:
    """Return the rollouts dealt into groups of one size, `group_id` named after the group that they come from."""
    groups = rollouts[key].combine_chunks().dictionary_encode()
    group = np.asarray(groups.indices)
    random = np.random.default_rng([seed, size])
    order = np.lexsort((random.random(len(group)), group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(group)))
    place = np.arange(len(group)) - np.repeat(starts, lengths)
    part, kept = place // size, place < np.repeat(lengths // size * size, lengths)
    names = [f"{groups.dictionary[int(g)].as_py()}#{p}" for g, p in zip(group[order][kept], part[kept], strict=True)]
    dealt = rollouts.take(pa.array(order[kept]))
    dealt = dealt.drop_columns([name for name in ("group_id",) if name in dealt.column_names])
    return dealt.append_column("group_id", pa.array(names))


def measure(rollouts: pa.Table, options: argparse.Namespace, size: int, directory: Path) -> list[list[str]]:
    """Return the rows of one group size."""
    path = directory / f"groups_of_{size}.parquet"
    pq.write_table(deal(rollouts, options.key, size, options.seed), path)
    summary = ktae.score(
        path, options.estimator, output=directory / f"scored_{size}.parquet", null=options.null, seed=options.seed,
        columns="added", write_tokens=False,
    )  # fmt: skip
    null = summary["null"]
    say(
        f"groups of {size}: {null['groups']} mixed of {null['prompts']} prompts, {null['groups_split']} split, "
        f"overlap {null['overlap']:.3f}, {summary['seconds']} s"
    )
    return [
        [spec, str(size), *map(share, f["shuffle_share"].values()), *(share(f[name], n) for name, n in FIGURES)]
        for spec, f in null["estimators"].items()
        if f
    ]


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rollouts", type=Path)
    parser.add_argument("-e", "--estimator", action="append", help="a spec; repeatable")
    parser.add_argument("--key", default="prompt_id", help="the column that names groups")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 50])
    parser.add_argument("--null", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    options.estimator = options.estimator or SPECS
    rollouts = pq.read_table(options.rollouts)
    with tempfile.TemporaryDirectory() as directory:
        rows = [row for size in options.sizes for row in measure(rollouts, options, size, Path(directory))]
    rows.sort(key=lambda row: options.estimator.index(row[0]) if row[0] in options.estimator else 0)
    print(format_table(HEAD, rows, options.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
