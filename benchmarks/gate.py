"""What the evidence-aware forms of `ktae` shift: planted units, no units at all, and real rollouts.

    OMP_NUM_THREADS=1 python benchmarks/gate.py [--quick] [--markdown] [--repeats N]

Planted: 256 prompts with a group of 8 each, 400 units of which 20 stand in 60 % of the rollouts of one verdict and 40 %
of those of the other, wrong rollouts some 15 % longer. `shifted` is the share of (fold, planted unit) that pass a gate
of 5 % beyond length, `false` the number of other units that pass in a fold. `AUC` is that of a rollout's mean shift for
its verdict within its group, with a 95 % interval over resampled prompts. With `size=pooled` the shift comes from other
folds alone; the other forms take the group's own verdicts too and are shown beside it. Null: the same rollouts, labels
shuffled in each group; `covers` counts the repeats whose interval holds 1/2. Prompts of different folds judge each
other, so that without a gate the intervals are somewhat too narrow. Targets are those of the gate with `size=pooled`.
Real: rollouts of ../shared/data, where there are some. Null share is the mean |K| over the tokens of mixed groups with
labels shuffled, by that with their own, the evidence on the other prompts held fixed: on shuffled labels a gate would
find nothing, and its share would be 0 whatever it is worth. It is 1 for `size=pooled`, which never looks at a group's
own labels. Exit status 1 where a target is missed.
"""

import argparse
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from _labelled_text import real_text
from _report import exit_status, format_table, say

from ktae_cli.association import compare_within_groups
from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import resolve_spec
from ktae_cli.estimators._presence_pool import PresencePool
from ktae_cli.estimators.base import estimate, evidence_of

N_PROMPTS, SIZE, N_UNITS, N_PLANTED = 256, 8, 400, 20
FORMS = (
    "ktae(gate=0.05)",
    "ktae(gate=0.05,size=pooled)",
    "ktae(size=pooled)",
    "ktae(shrink=eb)",
    "ktae(loo=true,shrink=eb)",
)
JUDGED = "ktae(gate=0.05,size=pooled)"
REAL = (
    "ktae", "ktae(tf=off)", "ktae(gate=0.05)", "ktae(gate=0.05,length=off)", "ktae(gate=0.05,length=off,size=pooled)",
    "ktae(size=pooled)", "ktae(shrink=eb)", "ktae(loo=true,shrink=eb)",
)  # fmt: skip
FILES = {"rg_llama3b": "rg_llama3b_amc_aime_50x", "gsm8k": "gsm8k_openai_4x"}
RESAMPLES = 2000


def draw(random: np.random.Generator) -> GroupBatch:
    """Draw the planted rollouts: each holds some of the units, and a filler as often as its length asks."""
    n = N_PROMPTS * SIZE
    n_right = np.repeat(random.integers(1, SIZE, N_PROMPTS), SIZE)
    right = np.tile(np.arange(SIZE), N_PROMPTS) < n_right
    share = random.uniform(0.1, 0.9, N_UNITS)
    share[:N_PLANTED] = 0.5
    lift = np.zeros(N_UNITS)
    lift[:N_PLANTED] = np.where(np.arange(N_PLANTED) % 2, -0.1, 0.1)
    held = random.random((n, N_UNITS)) < share + np.where(right[:, None], lift, -lift)
    filler = random.poisson(np.where(right, 200, 260) * random.lognormal(0, 0.3, n)) + 1
    lengths = held.sum(1) + filler
    ids = [np.concatenate([np.flatnonzero(row), np.full(k, N_UNITS)]) for row, k in zip(held, filler, strict=True)]
    prompt = np.repeat(random.integers(0, 1 << 62, N_PROMPTS), SIZE)
    return _batch(np.concatenate(ids), lengths, right, np.repeat(np.arange(N_PROMPTS), SIZE), prompt)


def _batch(ids, lengths, right, group, prompt) -> GroupBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    arrays = (ids.astype(np.int32), offsets, right.astype(np.float64), right.astype(np.int8), group)
    return GroupBatch(*map(torch.from_numpy, arrays), prompt=torch.from_numpy(prompt))


def shuffle(batch: GroupBatch, random: np.random.Generator) -> GroupBatch:
    """Exchange the labels inside each group."""
    order = torch.from_numpy(np.lexsort((random.random(batch.n_rollouts), batch.group_index.numpy())))
    return replace(batch, rewards=batch.rewards[order], correct=batch.correct[order], memo={})


def with_evidence(batch: GroupBatch) -> GroupBatch:
    """Return the batch with what its own prompts say of each other, gathered once for all forms."""
    return replace(batch, pooled={"ktae": PresencePool(batch)}, memo={})


def held_out_auc(batch: GroupBatch, spec: str, random: np.random.Generator) -> tuple[float, float, float]:
    """Return the AUC of the mean shift of a rollout for its verdict, and the interval."""
    found = estimate(spec, batch).columns["key_weight"].double()
    rollout = torch.repeat_interleave(torch.arange(batch.n_rollouts), batch.lengths)
    mean = torch.zeros(batch.n_rollouts, dtype=torch.float64).index_add_(0, rollout, found) / batch.lengths
    scores, right = mean.numpy().reshape(-1, SIZE), batch.correct.numpy().reshape(-1, SIZE) == 1
    zeros = np.zeros(SIZE, np.int64)
    sums = np.array([compare_within_groups(s, r, zeros)[:2] for s, r in zip(scores, right, strict=True)])
    drawn = sums[random.integers(0, len(sums), (RESAMPLES, len(sums)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high)


def planted(repeats: int) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the planted data and the missed targets."""
    passes, false, above, below, nulls = [], [], {f: [] for f in FORMS}, {f: [] for f in FORMS}, {f: [] for f in FORMS}
    for repeat in range(repeats):
        random = np.random.default_rng([7, repeat])
        batch = with_evidence(draw(random))
        evidence = batch.pooled["ktae"].evidence(True)
        is_planted, passed = evidence.unit < N_PLANTED, evidence.q < 0.05
        passes.append(passed[is_planted].mean())
        false.append(passed[~is_planted].sum() / evidence.n_folds)
        null = with_evidence(shuffle(batch, random))
        for form in FORMS:
            auc, low, _ = held_out_auc(batch, form, random)
            above[form].append(low > 0.5)
            below[form].append(auc)
            _, low, high = held_out_auc(null, form, random)
            nulls[form].append(low <= 0.5 <= high)
        say(f"planted, repeat {repeat + 1} of {repeats}")
    rows = [
        [form, f"{np.mean(passes):.3f}", f"{np.mean(false):.2f}", f"{np.mean(below[form]):.3f}",
         f"{sum(above[form])}/{repeats}", f"{sum(nulls[form])}/{repeats}"]
        for form in FORMS
    ]  # fmt: skip
    missed = [] if np.mean(passes) >= 0.8 else [f"{np.mean(passes):.2f} of the planted units pass, target 0.80"]
    if sum(above[JUDGED]) < repeats:
        missed.append(f"{JUDGED}: the interval of the AUC is above 1/2 in {sum(above[JUDGED])} of {repeats} repeats")
    if sum(nulls[JUDGED]) < 0.9 * repeats:
        missed.append(f"{JUDGED}: under the null the interval holds 1/2 in {sum(nulls[JUDGED])} of {repeats} repeats")
    return rows, missed


def real(name: str, shuffles: int) -> list[list[str]]:
    """Return the rows of a file of real rollouts."""
    text = real_text(FILES[name])
    if text is None:
        return []
    group = np.repeat(np.arange(len(text.sizes)), text.sizes)
    prompt = np.random.default_rng(0).integers(0, 1 << 62, len(text.sizes))
    batch = _batch(text.ids, text.length, text.right, group, prompt[group])
    specs = [resolve_spec(form) for form in REAL]
    held = {"ktae": PresencePool(batch)}
    started = time.perf_counter()
    for given_length in (True, False):
        held["ktae"].evidence(given_length)
    say(f"{name}: evidence under both laws in {time.perf_counter() - started:.1f} s")
    held = evidence_of(specs, held)
    mean = {}
    for labels in range(1 + shuffles):
        taken = replace(shuffle(batch, np.random.default_rng([8, labels])) if labels else batch, pooled=held, memo={})
        for spec in specs:
            found = estimate(spec, taken)
            weights = found.columns["key_weight"]
            mean.setdefault(str(spec), []).append((float(weights.abs().sum()), int(weights.count_nonzero())))
    n_mixed = int(text.length[_mixed(text)].sum())
    return [
        [name, spec, f"{own[0] / n_mixed:.4f}", f"{own[1] / n_mixed:.4f}",
         f"{np.mean([size for size, _ in rest]) / own[0]:.3f}" if own[0] else "-"]
        for spec, (own, *rest) in mean.items()
    ]  # fmt: skip


def _mixed(text) -> np.ndarray:
    starts = np.cumsum(text.sizes) - text.sizes
    n_right = np.add.reduceat(text.right.astype(np.int64), starts)
    return np.repeat((n_right > 0) & (n_right < text.sizes), text.sizes)


def main() -> int:
    """Print the tables and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one repeat, no target")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, missed = planted(1 if options.quick else options.repeats)
    head = ["planted", "shifted", "false", "AUC", "interval above 1/2", "null covers 1/2"]
    print(format_table(head, rows, options.markdown))
    rows = [row for name in FILES for row in real(name, 1 if options.quick else 5)]
    if rows:
        head = ["real", "estimator", "mean |K|", "tokens shifted", "null share, evidence fixed"]
        print("\n" + format_table(head, rows, options.markdown))
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
