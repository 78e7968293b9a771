"""Every unit with its counts, its tests at all and beyond length, and how steady they are."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.evidence.incidence import Incidence, Informative
from ktae_cli.stats.adjust import benjamini_hochberg, can_reject, smallest_p_values
from ktae_cli.stats.common_odds import fit_common_odds, law_moments
from ktae_cli.stats.conditional import Strata, subset_laws
from ktae_cli.stats.exposure import exposure_p_values
from ktae_cli.stats.heterogeneity import heterogeneity, homogeneity_p_values
from ktae_cli.stats.length_fit import LengthFit, exchangeable, fit_length, length_basis
from ktae_cli.stats.mantel_haenszel import mantel_haenszel
from ktae_cli.stats.outcome_tests import OutcomeTests, outcome_tests, smallest_outcome_p
from ktae_cli.stats.pooled_score import Cells, cells_of, only_cells
from ktae_cli.stats.pooled_tests import PooledTests, family_wise_p, pooled_tests, smallest_p
from ktae_cli.stats.resampling import prompt_stability

HETEROGENEITY_DRAWS = 200


@dataclass(frozen=True)
class TestOptions:
    """How units are tested, under the names of the command line."""

    length_control: str = "verdict"
    min_groups: int = 5
    tarone: bool = False
    level: float = 0.05
    permutations: int = 1000
    resamples: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class TestedUnits:
    """Columns (n_units,) by name, NaN where a figure does not exist.

    family (n_units,) bool: the units that are tested, which vary in at least min_groups mixed groups; tests: of the
    family, under the law of the headline; fit: what length says about the verdicts.
    """

    columns: dict[str, np.ndarray]
    family: np.ndarray
    tests: PooledTests | OutcomeTests
    fit: LengthFit
    length_control: str

    @property
    def headline_p(self) -> str:
        """Return the column of the headline's p."""
        return "p_value" if self.length_control == "off" else "p_given_length"

    @property
    def headline_q(self) -> str:
        """Return the column of the headline's q."""
        return "q_value" if self.length_control == "off" else "q_given_length"

    def survivors(self, q: str, level: float) -> np.ndarray:
        """Return the units whose column q is at most the level, the smallest p first."""
        values = self.columns[q]
        found = np.flatnonzero(np.nan_to_num(values, nan=2.0) <= level)
        return found[np.argsort(self.columns["p_" + q.removeprefix("q_")][found], kind="stable")]


def test_units(incidence: Incidence, options: TestOptions, shortened: Incidence | None = None) -> TestedUnits:
    """Test the units of an incidence, against the verdict or, where `by_outcome` of its rollouts, against the outcome.

    shortened: the pairs of rollouts cut at the shortest length of their group, for length_control="prefix".
    """
    rollouts, n_units = incidence.rollouts, incidence.n_units
    strata = rollouts.strata
    cells = cells_of(incidence.unit, incidence.rollout, rollouts.right, strata)
    n_groups = np.bincount(cells.unit, minlength=n_units)
    family = n_groups >= options.min_groups
    basis = length_basis(incidence.length, rollouts.truncated, strata)
    random = np.random.default_rng(options.seed)
    inside = only_cells(cells, family)
    if rollouts.by_outcome:
        fit, found, tests = exchangeable(strata), *_against_outcome(incidence, inside, basis, options, random)
        odds = {name: np.full(n_units, np.nan) for name in ("odds_ratio", "ci_low", "ci_high")}
    else:
        fit = fit_length(rollouts.right, basis, strata)
        found, tests = _against_verdict(incidence, inside, family, fit, options, shortened, random)
        odds = _odds(cells, strata, n_units)
    columns = _counts(incidence, cells) | odds | {"n_groups": n_groups}
    for name, values in found.items():
        columns[name] = np.full(n_units, np.nan)
        columns[name][family] = values
    return TestedUnits(columns, family, tests, fit, options.length_control)


def _against_verdict(
    incidence: Incidence, cells: Cells, family: np.ndarray, fit: LengthFit, options: TestOptions,
    shortened: Incidence | None, random: np.random.Generator,
) -> tuple[dict[str, np.ndarray], PooledTests]:  # fmt: skip
    """Return the columns of the family (n_tested,), and its tests under the law of the headline."""
    strata, n_tested = incidence.rollouts.strata, int(family.sum())
    free = pooled_tests(cells, exchangeable(strata), strata, n_tested)
    headline = pooled_tests(cells, fit, strata, n_tested) if options.length_control == "verdict" else free
    if options.length_control == "verdict":
        given = headline.p, headline.p_mid
    elif options.length_control == "exposure":
        p = exposure_p_values(cells, incidence.rollouts.right, incidence.length, strata, n_tested)
        given = p, p
    elif options.length_control == "prefix":
        given = _prefix_p(shortened, incidence.code[family])
    else:
        given = np.full((2, n_tested), np.nan)
    tested = _reachable(headline, options) if options.tarone else np.ones(n_tested, bool)
    smallest = smallest_p(headline, strata, tested, options.permutations, random)
    return {
        "p_value": free.p, "p_mid": free.p_mid, "q_value": _q(free.p, tested),
        "p_given_length": given[0], "p_mid_given_length": given[1], "q_given_length": _q(given[0], tested),
        "p_fwer": family_wise_p(headline.p, smallest),
        **_spread(headline, incidence.rollouts, options, random), **_steadiness(headline, incidence, options, random),
    }, headline  # fmt: skip


def _against_outcome(
    incidence: Incidence, cells: Cells, basis: np.ndarray, options: TestOptions, random: np.random.Generator
) -> tuple[dict[str, np.ndarray], OutcomeTests]:
    """Return the same where the outcome is a number; length_control is verdict, that is by its residuals, or off."""
    rollouts = incidence.rollouts
    n_tested = int(cells.unit.max(initial=-1)) + 1
    free = outcome_tests(cells, rollouts.outcome, basis[:, :0], rollouts.strata, n_tested)
    given = outcome_tests(cells, rollouts.outcome, basis, rollouts.strata, n_tested)
    headline = free if options.length_control == "off" else given
    every = np.ones(n_tested, bool)
    smallest = smallest_outcome_p(headline, rollouts.strata, every, options.permutations, random)
    p = np.full(n_tested, np.nan) if options.length_control == "off" else given.p
    absent = np.full(n_tested, np.nan)
    return {
        "p_value": free.p, "p_mid": free.p, "q_value": _q(free.p, every),
        "p_given_length": p, "p_mid_given_length": p, "q_given_length": _q(p, every),
        "p_fwer": family_wise_p(headline.p, smallest), "heterogeneity": absent, "heterogeneity_p": absent,
        **_steadiness(headline, incidence, options, random),
    }, headline  # fmt: skip


def _prefix_p(shortened: Incidence, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p and mid-p of the units (codes) in the shortened rollouts, 1 where a unit varies in none."""
    strata = shortened.rollouts.strata
    cells = cells_of(shortened.unit, shortened.rollout, shortened.rollouts.right, strata)
    tests = pooled_tests(cells, exchangeable(strata), strata, shortened.n_units)
    at = np.searchsorted(shortened.code, codes).clip(max=max(shortened.n_units - 1, 0))
    known = shortened.code[at] == codes if shortened.n_units else np.zeros(len(codes), bool)
    p, mid = np.ones((2, len(codes)))
    p[known], mid[known] = tests.p[at[known]], tests.p_mid[at[known]]
    return p, mid


def _q(p: np.ndarray, tested: np.ndarray) -> np.ndarray:
    return benjamini_hochberg(np.where(tested, p, np.nan))


def _reachable(tests: PooledTests, options: TestOptions) -> np.ndarray:
    """Tell which units can be rejected at all; those that are tested by the normal law always can."""
    smallest = np.zeros(len(tests.count))
    smallest[tests.exact] = smallest_p_values(tests.table[0], tests.table[2])
    return can_reject(smallest, options.level)


def _counts(incidence: Incidence, cells: Cells) -> dict[str, np.ndarray]:
    rollouts, n_units = incidence.rollouts, incidence.n_units
    right = rollouts.right[incidence.rollout]
    pairs = np.unique(np.stack([cells.unit, rollouts.prompt[cells.group]]), axis=1)
    total = int(rollouts.right.sum())
    return {
        "n_prompts": np.bincount(pairs[0], minlength=n_units),
        "correct_with": np.bincount(incidence.unit, right, n_units).astype(np.int64),
        "incorrect_with": np.bincount(incidence.unit, 1 - right.astype(np.int64), n_units).astype(np.int64),
        "n_correct": np.full(n_units, total),
        "n_incorrect": np.full(n_units, len(rollouts) - total),
        "mean_key_weight": incidence.key_weight,
    }


def _odds(cells: Cells, strata: Strata, n_units: int) -> dict[str, np.ndarray]:
    n_right, size = strata.n_right[cells.group], strata.sizes[cells.group]
    odds = mantel_haenszel(cells.right, cells.size - cells.right, n_right, size - n_right, cells.unit, n_units)
    return {"odds_ratio": odds.odds_ratio, "ci_low": odds.low, "ci_high": odds.high}


def _spread(
    tests: PooledTests, rollouts: Informative, options: TestOptions, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return how far a unit's log odds differ between prompts: tau-squared, and the p of a parametric bootstrap."""
    cells, strata, n_units = tests.cells, rollouts.strata, len(tests.count)
    prompt = np.unique(rollouts.prompt, return_inverse=True)[1][cells.group]
    laws, starts = subset_laws(tests.fit.p, strata, cells.group, cells.size, cells.place)
    common = fit_common_odds(cells.right, laws, starts, cells.unit, n_units)
    mean, variance = law_moments(common.laws, starts)
    spread = heterogeneity(cells.right - mean, variance, cells.unit, prompt, n_units)
    draws = min(options.permutations, HETEROGENEITY_DRAWS)
    p = homogeneity_p_values(cells.right, laws, common, starts, cells.unit, prompt, random, draws)
    return {"heterogeneity": spread.tau_squared, "heterogeneity_p": p}


def _steadiness(
    tests: PooledTests | OutcomeTests, incidence: Incidence, options: TestOptions, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return how a unit's sign and rank vary when prompts are resampled."""
    cells, n_units = tests.cells, len(tests.variance)
    prompts, prompt = np.unique(incidence.rollouts.prompt, return_inverse=True)
    variance = np.maximum(tests.cell_variance, 0)  # where length decides all, rounding can take it below
    found = prompt_stability(
        tests.cell_score, variance, cells.unit, prompt[cells.group], n_units, len(prompts), random,
        options.resamples,
    )  # fmt: skip
    return {"sign_stability": found.sign, "rank_low": found.rank_low, "rank_high": found.rank_high}
