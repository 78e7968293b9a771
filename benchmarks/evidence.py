"""Draw labels on text where the truth is known, and count what the pooled tests find.

    OMP_NUM_THREADS=1 python benchmarks/evidence.py [--quick] [--markdown]

Text is that of ../shared/data where it is present, real rollouts with 50 answers a prompt; else synthetic and bursty,
which the output says. Every repeat draws groups and labels by its own seed. Families are units that vary in at least
five groups; a unit is found where its Benjamini-Hochberg q on the exact p is at most 5 %.

`at all` tests with labels exchangeable in a group, `exposure` models presence by a Poisson rate, `beyond length` models
the verdicts by length. Labels are drawn by length alone, so what any of them finds is false, save the planted unit.
Exit status 1 where a target is missed.
"""

import argparse
import sys
import time
from functools import partial

import numpy as np
import torch
from _labelled_text import (
    Text,
    bursty_text,
    draw_by_length,
    draw_compositions,
    median_ratio,
    mixed_groups,
    plant,
    real_text,
    sample_groups,
    slope_for_ratio,
)
from _report import exit_status, format_table, say

from ktae_cli.stats.adjust import benjamini_hochberg
from ktae_cli.stats.conditional import Strata, draw_verdicts
from ktae_cli.stats.counts import count_tokens
from ktae_cli.stats.exposure import exposure_p_values
from ktae_cli.stats.length_fit import LengthFit, exchangeable, fit_length, length_basis
from ktae_cli.stats.pooled_score import cells_of
from ktae_cli.stats.pooled_tests import PooledTests, holders, pooled_tests, smallest_p

LEVEL, MIN_GROUPS = 0.05, 5
RATIOS = (1.0, 1.25, 1.45)
LIMIT = 600  # tokens: labels of the row `limit` change there
CHUNK_TOKENS = 1 << 17
FILES = {"rg_llama3b": "rg_llama3b_amc_aime_50x", "gsm8k": "gsm8k_openai_4x"}
FORMAT = {
    "units": "{:.0f}", "ratio": "{:.2f}", "overlap": "{:.2f}", "at all": "{:.1f}", "exposure": "{:.1f}",
    "beyond": "{:.2f}", "mid < .05": "{:.4f}", "mid < .001": "{:.5f}", "exact < .05": "{:.4f}",
    "exact < .001": "{:.5f}",
}  # fmt: skip
COLUMNS = tuple(FORMAT)
BOUNDS = {"beyond": (0, 1), "mid < .05": (0.04, 0.06), "mid < .001": (0, 0.002), "exact < .05": (0, 0.055),
          "exact < .001": (0, 0.002)}  # fmt: skip


def survivors(p: np.ndarray) -> int:
    """Count the tests whose q is at most the level."""
    return int((benjamini_hochberg(p) <= LEVEL).sum())


def fits_of(text: Text, right: np.ndarray, strata: Strata) -> tuple[LengthFit, LengthFit]:
    """Return the laws free and given-length."""
    basis = length_basis(text.length, np.zeros(len(text.length)), strata)
    return exchangeable(strata), fit_length(right, basis, strata)


def false_units(text: Text, right: np.ndarray, strata: Strata) -> list[float]:
    """Test once; return the values of COLUMNS."""
    free, given = fits_of(text, right, strata)
    cells = cells_of(text.unit, text.rollout, right, strata)
    family = np.bincount(cells.unit, minlength=text.n_units) >= MIN_GROUPS
    plain, beyond = (pooled_tests(cells, fit, strata, text.n_units) for fit in (free, given))
    exposure = exposure_p_values(cells, right, text.length, strata, text.n_units)
    mid, exact = beyond.p_mid[family], beyond.p[family & beyond.exact]
    return [
        family.sum(), median_ratio(right, text.length, strata), given.overlap, survivors(plain.p[family]),
        survivors(exposure[family]), survivors(beyond.p[family]), (mid < 0.05).mean(), (mid < 0.001).mean(),
        *((exact < level).mean() if len(exact) else np.nan for level in (0.05, 0.001)),
    ]  # fmt: skip


def labels_by_length(text: Text, size: int, ratio: float, repeats: int) -> np.ndarray:
    """Draw labels by log length on unchanged text, one group a prompt; return the mean row."""
    slope = slope_for_ratio(text, size, ratio)
    rows = []
    for seed in range(repeats):
        random = np.random.default_rng([seed, size, int(100 * ratio)])
        sampled = sample_groups(text, size, 1, random)
        strata = draw_compositions(sampled.sizes, random)
        rows.append(false_units(sampled, draw_by_length(np.log(sampled.length), slope, strata, random)[:, 0], strata))
    return np.mean(rows, 0)


def labels_by_limit(text: Text, repeats: int) -> np.ndarray:
    """Draw labels by whether a rollout has more than LIMIT tokens, a step that no column says; six groups a prompt."""
    rows = []
    for seed in range(repeats):
        random = np.random.default_rng([seed, LIMIT])
        sampled = sample_groups(text, 8, 6, random)
        strata = draw_compositions(sampled.sizes, random)
        rows.append(false_units(sampled, draw_by_length(sampled.length > LIMIT, 3.0, strata, random)[:, 0], strata))
    return np.mean(rows, 0)


def labels_on_bursty_text(size: int, repeats: int) -> np.ndarray:
    """Make wrong rollouts twice as long as right ones, and text that follows their length alone."""
    rows = []
    for seed in range(repeats):
        random = np.random.default_rng([seed, size, 2])
        strata = draw_compositions(np.full(140, size), random)
        right = draw_verdicts(exchangeable(strata).p, strata, 1, random)[:, 0]
        length = np.exp(random.normal(np.log(500), 0.5, len(right)) + np.log(2) * (right == 0)).astype(np.int64) + 1
        rows.append(false_units(bursty_text(length, strata.sizes, random), right, strata))
    return np.mean(rows, 0)


def share_planted(text: Text, ratio: float, repeats: int) -> tuple[float, float, float]:
    """Return the shares of repeats in which a planted unit is found at all and beyond length, and the others found."""
    slope, found = slope_for_ratio(text, 8, ratio), []
    for seed in range(repeats):
        random = np.random.default_rng([seed, 60])
        sampled = sample_groups(text, 8, 1, random)
        strata = draw_compositions(sampled.sizes, random)
        right = draw_by_length(np.log(sampled.length), slope, strata, random)[:, 0]
        planted = plant(sampled, right, random)
        cells = cells_of(planted.unit, planted.rollout, right, strata)
        family = np.bincount(cells.unit, minlength=planted.n_units) >= MIN_GROUPS
        row = []
        for fit in fits_of(sampled, right, strata):
            q = benjamini_hochberg(pooled_tests(cells, fit, strata, planted.n_units).p[family])
            row += [q[-1] <= LEVEL, (q[:-1] <= LEVEL).sum()]
        found.append([row[0], row[2], row[3]])
    return tuple(np.mean(found, 0))


def tested_mixed(text: Text) -> tuple[Text, Strata, PooledTests, np.ndarray]:
    """Test the text's own verdicts at all; return its mixed groups, the tests, and which units are in the family."""
    strata, mixed = mixed_groups(text)
    cells = cells_of(mixed.unit, mixed.rollout, mixed.right, strata)
    tests = pooled_tests(cells, exchangeable(strata), strata, mixed.n_units)
    return mixed, strata, tests, np.bincount(cells.unit, minlength=mixed.n_units) >= MIN_GROUPS


def shuffles_with_survivors(text: Text, repeats: int) -> int:
    """Shuffle the verdicts inside each group; count the repeats in which any unit is found."""
    _, strata, tests, family = tested_mixed(text)
    labels = draw_verdicts(tests.fit.p, strata, repeats, np.random.default_rng(0)).astype(np.float32)
    counts = holders(tests.cells, strata, len(tests.count)) @ labels
    p = tests.p_of(counts.astype(np.float64), np.zeros((0, repeats)))
    return sum(survivors(column) > 0 for column in p[family].T)


def time_draws(text: Text, draws: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of one draw of labels with all its tests, and of one counting pass, taken in turns."""
    mixed, strata, tests, family = tested_mixed(text)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        smallest_p(tests, strata, family, draws, np.random.default_rng(0))
        middle = time.perf_counter()
        count_all(mixed, strata)
        times.append(((middle - start) / draws, time.perf_counter() - middle))
    return tuple(np.median(times, 0))


def count_all(text: Text, strata: Strata) -> None:
    """Count the tokens of all groups with the kernel, some 128k tokens in a call."""
    offsets = np.concatenate([[0], np.cumsum(text.length)])
    ends = np.cumsum(strata.sizes)
    chunk = offsets[ends] // CHUNK_TOKENS
    for number in np.unique(chunk):
        groups = np.flatnonzero(chunk == number)
        rollouts = slice(strata.starts[groups[0]], ends[groups[-1]])
        own = offsets[rollouts.start : rollouts.stop + 1]
        count_tokens(
            torch.from_numpy(text.ids[own[0] : own[-1]]),
            torch.from_numpy(own - own[0]),
            torch.from_numpy(strata.group[rollouts] - groups[0]),
            torch.from_numpy(text.right[rollouts].astype(np.int8)),
        )


def synthetic() -> Text:
    """Make bursty text of 140 prompts with 50 rollouts, for where there are no real rollouts."""
    random = np.random.default_rng(0)
    length = np.exp(random.normal(6, 0.45, 7000)).astype(np.int64) + 1
    text = bursty_text(length, np.full(140, 50), random)
    right = (random.random(7000) < np.repeat(random.beta(0.3, 2, 140), 50)).astype(np.uint8)
    ids = random.integers(0, 3000, length.sum()).astype(np.int32)  # for the counting pass alone
    return Text(text.sizes, length, right, text.unit, text.rollout, text.n_units, ids)


def show_false(text: Text, name: str, repeats: int, options: argparse.Namespace) -> list[str]:
    """Print what is found where labels follow length alone; return the targets missed."""
    sizes, ratios = ((8,), (1.45,)) if options.quick else ((8, 16), RATIOS)
    draws = {(f"{name}, {n}", r): partial(labels_by_length, text, n, r, repeats) for n in sizes for r in ratios}
    draws |= {(f"bursty, {n}", 2.0): partial(labels_on_bursty_text, n, repeats) for n in sizes}
    if not options.quick:
        draws[f"{name}, 8, limit at {LIMIT}", None] = partial(labels_by_limit, text, max(1, repeats // 4))
    rows, missed = [], []
    for (row, ratio), draw in draws.items():
        say(f"{row}, ratio {ratio}" if ratio else row)
        found = dict(zip(COLUMNS, draw(), strict=True))
        rows.append([row, *("" if np.isnan(value) else FORMAT[c].format(value) for c, value in found.items())])
        for column, (low, high) in BOUNDS.items():
            if found[column] < low or found[column] > high:  # not a number where no unit is sparse
                missed.append(f"{column} of {row} at ratio {ratio} is {found[column]:.4f}, wanted {low} to {high}")
    target = ["target", *("" if c not in BOUNDS else "{}-{}".format(*BOUNDS[c]) for c in COLUMNS)]
    print(f"Labels drawn by length; units found are false. Mean of {repeats} repeats.")
    print(format_table(["text, group size", *COLUMNS], [*rows, target], options.markdown), end="\n\n")
    return missed


def show_true(text: Text, name: str, repeats: int, options: argparse.Namespace) -> list[str]:
    """Print how often a planted unit is found; return the targets missed."""
    rows, missed = [], []
    for ratio in (1.25,) if options.quick else RATIOS[:2]:
        say(f"planted unit, ratio {ratio}")
        at_all, beyond, others = share_planted(text, ratio, repeats)
        rows.append([f"{name}, 8, ratio {ratio}", f"{at_all:.2f}", f"{beyond:.2f}", f"{others:.2f}", ">= 0.90"])
        if beyond < 0.9:
            missed.append(f"planted unit at ratio {ratio} found in {beyond:.0%} of the repeats, wanted 90%")
    head = [f"planted unit, {repeats} repeats", "found at all", "found beyond", "others beyond", "target, beyond"]
    print(format_table(head, rows, options.markdown), end="\n\n")
    return missed


def show_shuffled(texts: dict[str, Text], options: argparse.Namespace) -> list[str]:
    """Print how often shuffled labels have a survivor; return the targets missed."""
    from scipy.stats import binom

    repeats = 20 if options.quick else 1000
    most = int(binom.ppf(0.975, repeats, LEVEL))
    rows, missed = [], []
    for name, text in texts.items():
        say(f"shuffled labels, {name}")
        _, _, tests, family = tested_mixed(text)
        count = shuffles_with_survivors(text, repeats)
        rows.append([name, f"{family.sum()}", f"{survivors(tests.p[family])}", f"{count}", f"<= {most}"])
        if count > most:
            missed.append(f"{count} of {repeats} shuffles of {name} have a survivor, wanted at most {most}")
    head = [f"{repeats} shuffles of", "units", "found as labelled", "shuffles with any", "target"]
    print(format_table(head, rows, options.markdown), end="\n\n")
    return missed


def show_speed(text: Text, name: str, options: argparse.Namespace) -> list[str]:
    """Print what a draw of labels costs; return the targets missed."""
    say("speed")
    draw, count = time_draws(text, 50 if options.quick else 1000, 1 if options.quick else 5)
    row = [name, f"{draw * 1e3:.2f}", f"{count * 1e3:.1f}", f"{draw / count:.3f}", "<= 0.3"]
    print(format_table(["ms", "a draw, all tests", "counting pass", "x pass", "target"], [row], options.markdown))
    return [] if draw <= 0.3 * count else [f"a draw costs {draw / count:.2f} of a counting pass, wanted 0.3"]


def main() -> int:
    """Print the tables and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one repeat of a few rows, no targets")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: text for name in ("rg_llama3b", "gsm8k") if (text := real_text(FILES[name]))}
    if "rg_llama3b" not in found:
        print("no real rollouts in ../shared/data: text is synthetic\n")
    texts = found if "rg_llama3b" in found else {"synthetic": synthetic()}
    name, text = next(iter(texts.items()))
    repeats = 1 if options.quick else options.repeats
    missed = [
        *show_false(text, name, repeats, options),
        *show_true(text, name, repeats, options),
        *show_shuffled(texts, options),
        *show_speed(text, name, options),
    ]
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
