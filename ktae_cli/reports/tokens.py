"""Pooled key tokens in the terminal: the verdict first, then how it came about, then the strongest units."""

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ktae_cli.token_text import visible

BOLD, DIM = Style(bold=True), Style(dim=True)
UNIT_WIDTH = 24
SHOWN_UNITS = 20
SHOWN_WITHOUT_SURVIVOR = 5
_GAP = "  "

HEADING = ["unit", "right", "wrong", "odds", "95 % interval", "q at all", "q beyond", "p fwer", "sign", "class"]
LEGEND = (
    "tested: units that vary in --min-groups mixed groups. right, wrong: share of the right and of the wrong rollouts "
    "of mixed groups that hold the unit. odds: Mantel-Haenszel odds ratio over the groups, above 1 with right answers. "
    "q: Benjamini-Hochberg over the tested units, at all and beyond length. p fwer: chance of any unit as strong under "
    "the headline's law. sign: share of the resampled prompts that give the effect the same sign. None of this says "
    "that a unit causes the outcome."
)


def print_findings(report: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    for line in finding_lines(report):
        console.print(line, overflow="fold")


def finding_lines(report: dict[str, Any]) -> Iterator[Text]:
    """Yield the lines of a report of `ktae tokens`."""
    yield Text(verdict(report), BOLD)
    yield from (Text(line) for line in _caveats(report))
    yield Text()
    for lines in (_basis, _held_out, _noise):
        yield from (Text(line) for line in lines(report))
    rows = _shown(report)
    if rows:
        yield Text()
        cells = [_cells(row, report["outcome_is_number"]) for row in rows]
        yield from aligned([HEADING, *cells], left=(0, len(HEADING) - 1))
        yield Text(LEGEND, DIM)


def verdict(report: dict[str, Any]) -> str:
    """Return the verdict as one sentence or two."""
    unit = noun_of(report["unit"])
    found = report["survive_at_all" if report["headline"] == "at all" else "survive_beyond_length"]
    if not report["tested"]:
        there = f"{'is' if report['groups_mixed'] == 1 else 'are'} {report['groups_mixed']:,}"
        return f"No unit varies in {report['min_groups']:,} or more mixed groups (there {there}): nothing is tested."
    if report["length_separates"]:
        return f"Length separates the classes; nothing can be said beyond it ({share_text(report['overlap'])} is left)."
    if found:
        verb = "survives" if found == 1 else "survive"
        return f"{found:,} of {report['tested']:,} {unit} {verb} at {level_of(report)}, {report['headline']}."
    none = f"None of {report['tested']:,} {unit} survives at {level_of(report)}, {report['headline']}."
    return f"{none} {_needed(report)}"


def level_of(report: dict[str, Any]) -> str:
    """Return the level of a report in percent."""
    return f"{100 * report['level']:g} %"


def _needed(report: dict[str, Any]) -> str:
    needed = report["needed"]
    if not needed["curve"]:
        return "It takes two prompts to say how many would be needed."
    if needed["effects"] == 0:
        return "The effects are no larger than chance makes them: no number of prompts can be named."
    if needed["prompts"] is None:
        return f"More than {needed['curve'][-1]['prompts']:,} prompts of this kind would be needed."
    return f"About {needed['prompts']:,} prompts of this kind would be needed ({report['prompts']:,} are there)."


def _caveats(report: dict[str, Any]) -> Iterator[str]:
    if report["form_leads"]:
        yield (
            "The strongest are mostly format or special tokens: the verifier is speaking, not the reasoning. "
            "--before outcome counts only what is written before the answer."
        )
    vanished = report.get("vanished")
    if vanished and vanished["survive_whole"]:
        place = "the outcome" if report["before"] == "outcome" else f"decile {report['before']}"
        yield (
            f"Counted over whole responses {vanished['survive_whole']:,} survive; {vanished['vanish']:,} of them "
            f"vanish where only what is written before {place} counts: symptoms of an outcome that is settled, or too "
            "rare there."
        )


def _noise(report: dict[str, Any]) -> Iterator[str]:
    if report.get("verdict_noise") == []:
        yield "verdict noise  no verdict is in doubt"
    for found in report.get("verdict_noise") or []:
        kept = "all of ours" if found["robust"] else f"{found['kept']:,} of ours"
        what = f"{found['doubt']} ({found['verdicts']:,} verdicts)"
        yield f"verdict noise  {what}: {found['survive']:,} survive, {kept} among them"


def _held_out(report: dict[str, Any]) -> Iterator[str]:
    found = report["held_out"] and report["held_out"]["within"]
    if found:
        yield f"held out       AUC in a group, fitted on other prompts: units {_auc(found['units'])}"
        yield f"               length {_auc(found['length'])}, length and units beyond it {_auc(found['both'])}"
        auc = {name: f"{values['auc']:.2f}" for name, values in report["held_out"]["overall"].items()}
        yield (
            f"               AUC over all prompts: units {auc['units']}, length {auc['length']}, both {auc['both']}, "
            f"the group's pass rate {auc['pass_rate']}"
        )


def _auc(found: dict[str, float]) -> str:
    return f"{found['auc']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _basis(report: dict[str, Any]) -> Iterator[str]:
    place = f" within {report['within']}" if report["within"] else ""
    yield (
        f"{counted(report['rollouts'], 'rollout')} of {counted(report['groups_mixed'], 'mixed group')}, "
        f"{counted(report['prompts'], 'prompt')}; {report['tested']:,} of {report['units']:,} "
        f"{noun_of(report['unit'])}{place} tested"
    )
    yield f"at all         {report['survive_at_all']:>6,}  labels exchangeable inside a group (law: free)"
    beyond = report["survive_beyond_length"]
    if beyond is not None:
        yield f"beyond length  {beyond:>6,}  {_control(report)}"
    if report["median_length_right"] is not None and report["median_length_wrong"] is not None:
        yield (
            f"length         median {report['median_length_right']:,.0f} tokens in right, "
            f"{report['median_length_wrong']:,.0f} in wrong rollouts"
        )
    if report["survive_at_all" if report["headline"] == "at all" else "survive_beyond_length"]:
        return
    curve = report["needed"]["curve"]
    if curve and report["needed"]["effects"] > 0:
        points = [f"{p['prompts']:,}: {p['mean']:.1f}" for p in curve if p["mean"] >= 0.05][:6]
        if points:
            yield f"more prompts   expected survivors, simulated: {', '.join(points)}"


def _control(report: dict[str, Any]) -> str:
    if report["length_control"] == "exposure":
        return "presence as a Poisson rate of length: too liberal where text comes in bursts"
    if report["length_control"] == "prefix":
        return "every rollout cut at the shortest of its group"
    return f"given response length (law: given-length); {share_text(report['overlap'])} of the labels' freedom left"


def _shown(report: dict[str, Any]) -> list[dict[str, Any]]:
    column = "q_value" if report["headline"] == "at all" else "q_given_length"
    tested = [row for row in report["strongest"] if row["p_value"] is not None]
    survivors = [row for row in tested if row[column] is not None and row[column] <= report["level"]]
    return (survivors or tested[:SHOWN_WITHOUT_SURVIVOR])[:SHOWN_UNITS]


def aligned(rows: list[list[str]], left: tuple[int, ...]) -> Iterator[Text]:
    """Yield rows of cells in columns, the first row a dim heading; the columns `left` are aligned to the left."""
    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        padded = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - cell_len(cell))
            padded.append(cell + blank if at in left else blank + cell)
        yield Text(_GAP.join(padded).rstrip(), DIM if not number else "")


def _cells(row: dict[str, Any], outcome_is_number: bool) -> list[str]:
    low, high = row["ci_low"], row["ci_high"]
    return [
        cut_unit(row["unit"]),
        share_text(row["correct_with"] / row["n_correct"] if row["n_correct"] else None),
        share_text(row["incorrect_with"] / row["n_incorrect"] if row["n_incorrect"] else None),
        ratio_text(row["odds_ratio"], infinite=not outcome_is_number),
        "-" if low is None or high is None else f"{ratio_text(low)} to {ratio_text(high)}",
        p_text(row["q_value"]),
        p_text(row["q_given_length"]),
        p_text(row["p_fwer"]),
        share_text(row["sign_stability"], 0),
        row["class"],
    ]


def counted(number: int, noun: str) -> str:
    """Return a number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def noun_of(unit: str) -> str:
    """Return what units of a kind are called."""
    kind = unit.partition(":")[0]
    return {"token": "tokens", "word": "words", "ngram": "n-grams", "regex": "matches"}.get(kind, "units")


def cut_unit(unit: str) -> str:
    """Return a unit on one line, safe on a terminal and of bounded width."""
    text = visible(unit).replace("\n", "⏎").replace("\t", "→")
    while cell_len(text) > UNIT_WIDTH:
        text = text[: max(len(text) - 2, 1)] + "…" if len(text) > 2 else text[:1]
    return text


def ratio_text(value: float | None, infinite: bool = False) -> str:
    """Return an odds ratio; None is an infinite one, which JSON does not have, or none at all."""
    if value is None:
        return "inf" if infinite else "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.0e}"


def p_text(value: float | None) -> str:
    """Return a p or q."""
    return "-" if value is None else f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def share_text(share: float | None, digits: int = 1) -> str:
    """Return a share in percent."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
