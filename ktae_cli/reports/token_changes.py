"""What changed between two inputs, in the terminal: pass rates, then what is written, then what it is worth."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from ktae_cli.reports.tokens import (
    BOLD,
    DIM,
    aligned,
    counted,
    cut_unit,
    level_of,
    noun_of,
    p_text,
    ratio_text,
    share_text,
)
from ktae_cli.token_text import visible

SHOWN = 10
WITHOUT_CHANGE = 3
USAGE_HEADING = ["unit", "in A", "in B", "odds B:A", "q", "q beyond", "state"]
VALUE_HEADING = ["unit", "odds A", "odds B", "q", "q beyond"]
USAGE_LEGEND = (
    "in A, in B: share of the rollouts that hold the unit. odds B:A: of a rollout of B to hold it, within prompts. "
    "q: Benjamini-Hochberg over the tested units; beyond: given how long responses are."
)
VALUE_LEGEND = (
    "odds: of a right answer where the unit is written, Mantel-Haenszel over groups of prompts that are mixed in both. "
    "q: that they are the same in A and B. A change of value is not a cause."
)


def print_changes(report: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    for line in change_lines(report):
        console.print(line, overflow="fold")


def change_lines(report: dict[str, Any]) -> Iterator[Text]:
    """Yield the lines of a report of `ktae tokens A B`."""
    yield Text(_verdict(report), BOLD)
    for letter, name, rollouts, length in zip(
        "AB", report["names"], report["rollouts"], report["median_length"], strict=True
    ):
        yield Text(f"{letter}  {_line(name)}: {counted(rollouts, 'rollout')}, median length {length:,.0f} tokens")
    yield from (Text(line) for line in _migration(report))
    rows = [row for row in report["strongest_usage"] if row["p_usage"] is not None]
    yield from _section("Usage", USAGE_HEADING, _chosen(rows, report, "q_usage"), _usage_cells, USAGE_LEGEND)
    rows = [row for row in report["strongest_value"] if row["p_value_change"] is not None]
    yield from _section("Value", VALUE_HEADING, _chosen(rows, report, "q_value_change"), _value_cells, VALUE_LEGEND)


def _verdict(report: dict[str, Any]) -> str:
    beyond = "" if report["length_control"] == "off" else ", beyond length"
    verb = "is" if report["usage_changed"] == 1 else "are"
    usage = (
        f"{report['usage_changed']:,} of {report['usage_tested']:,} {noun_of(report['unit'])} {verb} written more or "
        "less often"
    )
    if not report["usage_tested"]:
        usage = f"no unit varies in {report['min_groups']:,} or more prompts: no usage is tested"
    elif report["length_separates"]:
        left = share_text(report["overlap"])
        usage = f"length tells A from B, so nothing can be said of usage beyond it ({left} is left)"
    if not report["value_tested"]:
        value = "of their value nothing can be said: too few common prompts are mixed in both"
    else:
        value = f"{report['value_changed']:,} of {report['value_tested']:,} changed in value"
    prompts = counted(report["prompts"], "common prompt")
    return f"{usage[0].upper()}{usage[1:]}; {value} (at {level_of(report)}{beyond}, {prompts})."


def _migration(report: dict[str, Any]) -> Iterator[str]:
    found = report["migration"]
    rates = " to ".join(share_text(rate) for rate in found["pass_rate"])
    yield (
        f"pass rate {rates} (change {100 * found['change']:+.1f} points, {100 * found['low']:+.1f} to "
        f"{100 * found['high']:+.1f}); at least half right: {counted(found['gained'], 'prompt')} gained, "
        f"{found['lost']:,} lost (McNemar p {p_text(found['p'])})"
    )
    table, kinds = found["table"], found["kinds"]
    yield f"{'A, B:':<12}" + "".join(f"{kind:>11}" for kind in kinds)
    for kind, row in zip(kinds, table, strict=True):
        yield f"{kind:<12}" + "".join(f"{count:>11,}" for count in row)
    yield f"{report['units']:,} {noun_of(report['unit'])}: {report['born']:,} in B only, {report['dead']:,} in A only"


def _chosen(rows: list[dict[str, Any]], report: dict[str, Any], column: str) -> list[dict[str, Any]]:
    name = column if report["length_control"] == "off" else f"{column}_given_length"
    changed = [row for row in rows if row[name] is not None and row[name] <= report["level"]]
    return changed[:SHOWN] or rows[:WITHOUT_CHANGE]


def _section(title: str, heading: list[str], rows: list[dict[str, Any]], cells, legend: str) -> Iterator[Text]:
    if rows:
        yield Text()
        yield Text(title, BOLD)
        yield from aligned([heading, *map(cells, rows)], left=(0,))
        yield Text(legend, DIM)


def _usage_cells(row: dict[str, Any]) -> list[str]:
    return [
        cut_unit(row["unit"]), share_text(row["with_a"] / row["n_a"]), share_text(row["with_b"] / row["n_b"]),
        ratio_text(row["usage_odds_ratio"], infinite=True), p_text(row["q_usage"]),
        p_text(row["q_usage_given_length"]), row["state"],
    ]  # fmt: skip


def _value_cells(row: dict[str, Any]) -> list[str]:
    return [
        cut_unit(row["unit"]), ratio_text(row["odds_ratio_a"], infinite=True),
        ratio_text(row["odds_ratio_b"], infinite=True),
        p_text(row["q_value_change"]), p_text(row["q_value_change_given_length"]),
    ]  # fmt: skip


def _line(name: str) -> str:
    return visible(name).replace("\n", "⏎").replace("\t", "→")
