"""A comparison in the terminal: what each gives, how each pair agrees, where signs differ; a line says what is what."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from ktae_cli.reports.chance import chance_heading, interval
from ktae_cli.token_text import visible

BOLD, DIM = Style(bold=True), Style(dim=True)
NAME_WIDTH = 26
SHOWN_FLIPS = 3
_GAP = "  "

SIZES_HEADING = [
    ["", "sum |A|", "", "mean |A|", "", "zero", "length pay", "", "A per"],
    ["", "right", "wrong", "right", "wrong", "tokens", "right", "wrong", "doubling"],
]
SIZES_LEGEND = (
    "sum |A|, mean |A|: over the policy's tokens of a rollout, averaged over the right and over the wrong rollouts. "
    "zero tokens: share with A = 0. length pay: 1 = a longer answer gets the same |A| for every token, 0 = the same "
    "sum whatever its length. A per doubling: what a rollout's mean A gains where it is twice as long. Both are "
    "least-squares slopes inside groups (length pay: among the right, the wrong of a group), groups without any "
    "advantage left out."
)
PAIRS_HEADING = [
    ["", "rollouts", "", "", "tokens", "", "", "0 in", "top", "max"],
    ["", "r", "rho", "flips", "r", "rho", "flips", "one", "1 %", "diff"],
]
PAIRS_LEGEND = (
    "r: Pearson, rho: Spearman, of the mean A of rollouts and of the A of tokens. flips: rollouts, and share of "
    "tokens, nonzero with opposite signs. 0 in one: tokens with A = 0 in one of the two alone. top 1 %: common part "
    "(Jaccard) of the tokens with the largest |A|, ties with the last of them included, zeros never. max diff: largest "
    "difference of a token's A."
)
KEY_WEIGHT_HEADING = [["", "shift", "shuffled", "agreement", "left out", "self share"]]
KEY_WEIGHT_LEGEND = (
    "Over the tokens of mixed groups. shift: sum |shift| / (sum |base| + sum |shift|). shuffled: the same with labels "
    "exchanged inside groups, mean (range). agreement: mean of key weight x verdict (+1 right, -1 wrong). left out: "
    "the same with loo=true, where a rollout's own verdict has no say. self share: 1 - left out / agreement."
)


CHANCE_HEADING = [["", "shuffle share", "", "", ""], ["", "free", "given-length", "reliability", "self share"]]
CHANCE_LEGEND = (
    "shuffle share: sum of squared key weights with shuffled labels / with the real ones; free: labels of a group "
    "exchangeable, given-length: drawn from their law given the lengths. reliability: correlation of key weights "
    "between halves of a group's rollouts, stepped up to the group. Below each its 95 % interval over prompts. "
)


def print_comparison(report: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    for line in comparison_lines(report):
        console.print(line, overflow="fold")


def comparison_lines(report: dict[str, Any]) -> Iterator[Text]:
    """Yield the lines of a report."""
    names = report["names"]
    yield Text(_header(report))
    for number, name in enumerate(names, 1):
        yield Text(f"{number:>3}  {visible(name)}")
    yield from _table("Size and length", SIZES_HEADING, _size_rows(report), SIZES_LEGEND)
    title = f"Agreement with 1 {_cut(names[0])}"
    yield from _table(title, PAIRS_HEADING, _pair_rows(report), PAIRS_LEGEND + _ranked(report))
    if any(entry.get("key_weight") for entry in report["estimators"]):
        legend = KEY_WEIGHT_LEGEND + _seed(report)
        yield from _table("Key weights", KEY_WEIGHT_HEADING, _key_weight_rows(report), legend)
    if report.get("null") and report["null"]["groups"]:
        legend = CHANCE_LEGEND + chance_heading(report["null"])
        yield from _table("Key weights against chance", CHANCE_HEADING, _chance_rows(report), legend)
    yield from _flip_lines(report)
    yield Text()
    yield Text(_largest(report))


def _header(report: dict[str, Any]) -> str:
    what = f"{report['column']} of two files" if report["compared"] == "files" else f"{len(report['names'])} estimators"
    return (
        f"{visible(what)} on {report['rollouts']:,} rollouts, {report['tokens']:,} tokens of the policy, "
        f"{report['groups']:,} groups, {report['groups_mixed']:,} of them mixed"
    )


def _table(title: str, heading: list[list[str]], rows: list[list[str]], legend: str) -> Iterator[Text]:
    """Yield a title, heading lines, aligned rows and a legend; the first column is left-aligned."""
    yield Text()
    yield Text(title, BOLD)
    widths = [max(len(row[at]) for row in heading + rows) for at in range(len(rows[0]))]
    for number, row in enumerate(heading + rows):
        cells = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text(_GAP.join(cells).rstrip(), DIM if number < len(heading) else "")
    yield Text(legend, DIM)


def _size_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for label, entry in _labelled(report):
        pay, doubling = entry["length"]["elasticity"], entry["length"]["mean_per_doubling"]["all"]
        sizes = [_number(entry[name][v]) for name in ("sum_abs", "mean_abs") for v in ("right", "wrong")]
        pays = [_fixed(pay[v]) for v in ("right", "wrong")]
        rows.append([label, *sizes, _percent(entry["zero_tokens"]), *pays, _signed(doubling)])
    return rows


def _pair_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    first = report["names"][0]
    pairs = {pair["second"]: pair for pair in report["pairs"] if pair["first"] == first}
    for label, entry in _labelled(report):
        pair = pairs.get(entry["name"])
        if pair is None:
            continue
        rows.append(
            [
                label,
                *(_fixed(pair[name], 3) for name in ("rollout_pearson", "rollout_spearman")),
                f"{pair['rollout_sign_flips']:,}",
                *(_fixed(pair[name], 3) for name in ("token_pearson", "token_spearman")),
                _percent(pair["sign_flips"]),
                _percent(pair["zero_in_one"]),
                _fixed(pair["top_jaccard"]),
                _number(pair["largest_difference"]),
            ]
        )
    return rows


def _key_weight_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for label, entry in _labelled(report):
        found = entry.get("key_weight")
        if found:
            shuffled = found["shift_share_shuffled"]
            shown = "-"
            if shuffled:
                shown = f"{shuffled['mean']:.3f} ({shuffled['low']:.3f} to {shuffled['high']:.3f})"
            rows.append(
                [
                    label,
                    _fixed(found["shift_share"], 3),
                    shown,
                    _fixed(found["agreement"], 3),
                    _fixed(found["agreement_left_out"], 3),
                    _fixed(found["self_share"]),
                ]
            )
    return rows


def _chance_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for label, entry in _labelled(report):
        figures = report["null"]["estimators"].get(entry["name"])
        if figures:
            shown = [*figures["shuffle_share"].values(), figures["reliability"], figures["self_share"]]
            rows += [[label, *(_fixed(found["value"]) for found in shown)], ["", *map(interval, shown)]]
    return rows


def _flip_lines(report: dict[str, Any]) -> Iterator[Text]:
    pairs = {pair["second"]: pair for pair in report["pairs"] if pair["first"] == report["names"][0]}
    if not any(found["tokens"] or found["rollouts"] for found in report["flips"]):
        return
    yield Text()
    yield Text("Clearest changes of sign (largest of the smaller |A|)", BOLD)
    for number, found in enumerate(report["flips"], 2):
        pair = pairs[found["second"]]
        if not pair["sign_flips"] and not pair["rollout_sign_flips"]:
            continue
        yield Text(f"1 against {number}, {_cut(found['second'])}")
        for token in found["tokens"][:SHOWN_FLIPS]:
            change, what = _change(token, "advantage"), _what(token)
            yield Text(f"  token    {change:<20}{what:<14}  {_place(token)}, position {token['position']}")
        for rollout in found["rollouts"][:SHOWN_FLIPS]:
            yield Text(f"  rollout  {_change(rollout, 'mean'):<36}{_place(rollout)}")


def _change(found: dict[str, Any], name: str) -> str:
    return f"{found[f'first_{name}']:+.3g} -> {found[f'other_{name}']:+.3g}"


def _what(token: dict[str, Any]) -> str:
    if token["token"] is not None:
        return visible(token["token"])
    return "" if token["token_id"] is None else f"id {token['token_id']}"


def _place(found: dict[str, Any]) -> str:
    group, rollout = found["group_id"], found["rollout_id"]
    where = group if rollout is None else rollout if rollout.startswith(group) else f"{group}, {rollout}"
    return visible(where).replace("\n", "⏎").replace("\t", "→")


def _largest(report: dict[str, Any]) -> str:
    text = f"largest difference of a token's value from 1: {report['largest_difference']:.6g}"
    at = report["largest_difference_at"]
    if at is None:
        return text
    number = report["names"].index(at["other"]) + 1
    return f"{text} ({number}, {_place(at)}, position {at['position']}: {_change(at, 'advantage')})"


def _ranked(report: dict[str, Any]) -> str:
    if report["ranked_tokens"] == report["tokens"]:
        return ""
    return (
        f" Token rho and top 1 % are of {report['ranked_tokens']:,} tokens, whole groups "
        f"({report['ranked_groups']:,} of {report['groups']:,}) chosen by a hash of their names."
    )


def _seed(report: dict[str, Any]) -> str:
    counts = [e["key_weight"]["shift_share_shuffled"] for e in report["estimators"] if e.get("key_weight")]
    shuffles = next((count["shuffles"] for count in counts if count), 0)
    plural = "s" if shuffles > 1 else ""
    return f" {shuffles} shuffle{plural}, seed {report['seed']}." if shuffles else ""


def _labelled(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, entry in enumerate(report["estimators"], 1):
        yield f"{number} {_cut(entry['name'])}", entry


def _cut(name: str) -> str:
    name = visible(name).replace("\n", "⏎")
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"


def _number(value: float | None) -> str:
    """Return a number in three digits."""
    return "-" if value is None else f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value + 0.0:.{digits}f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
