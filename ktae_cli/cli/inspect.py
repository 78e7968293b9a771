"""`ktae inspect`."""

import json as encoder
import tempfile
from typing import Any

from ktae_cli.cli import options
from ktae_cli.cli.console import parse_map, say, split_names

_BARS = " ▁▂▃▄▅▆▇█"


def inspect(
    inputs: options.Inputs,
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = 0.0,
    json: options.Json = False,
) -> None:
    """Show what a file holds: groups, pass rates, lengths, columns and their mapping, what each estimator needs.

    Reads keys, rewards and lengths once, and no text.
    """
    from ktae_cli.inputs import open_rollouts
    from ktae_cli.inspection import inspect_rollouts
    from ktae_cli.tokens import visible

    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source = open_rollouts(inputs, scratch)
        facts = inspect_rollouts(source, parse_map(map), list(split_names(group_by)), correct_threshold)
    if json:
        print(encoder.dumps(facts, allow_nan=False))  # ASCII: nothing in a name can act on a terminal
        return
    for line in _lines(facts):
        print(visible(line).replace("\n", "⏎"))
    for warning in facts.get("warnings", []):
        say(f"warning: {warning}")
    if facts["problem"]:
        say(f"cannot be scored as it is: {facts['problem']}")


def _lines(f: dict[str, Any]) -> list[str]:
    lines = [
        f"{f['rollouts']} rollouts" + (f", {f['tokens']:,} response tokens" if "tokens" in f else ", no token ids")
    ]
    if f["scored_with"]:
        lines.append(f"scored with {', '.join(f['scored_with'])}")
    if "groups" in f:
        lines.append(
            f"{f['groups']} groups by {' + '.join(f['group_key'])}: {f['groups_mixed']} mixed, "
            f"{f['groups_all_correct']} all right, {f['groups_all_wrong']} all wrong, "
            f"{f['groups_singleton']} singletons"
        )
        lines.append(
            f"group sizes: {_sizes(f['group_sizes'])}" + ("" if f["contiguous"] else "; rows of groups are apart")
        )
        lines.append(f"pass rate of groups, 0 to 1: |{_bars(f['pass_rate_histogram'])}|")
    if f["pass_rate"] is not None:
        lines.append(f"pass rate: {f['pass_rate']:.3f}, {f['verdict_unknown']} verdicts unknown")
    if f.get("reward_values"):
        lines.append("rewards: " + ", ".join(f"{value:g} ({count})" for value, count in f["reward_values"].items()))
    elif f.get("reward_range"):
        lines.append(f"rewards: {f['reward_range'][0]:g} to {f['reward_range'][1]:g}")
    if f.get("unscored"):
        lines.append(f"unscored rollouts (reward null): {f['unscored']}")
    if f["truncated"] is not None:
        lines.append(f"cut at the length limit: {f['truncated']}")
    for name, label in (("length", "all"), ("length_right", "right"), ("length_wrong", "wrong")):
        if f.get(name):
            q = f[name]
            lines.append(
                f"length, {label:5}: median {q['median']:.0f}, 5 % to 95 % {q['p5']:.0f} to {q['p95']:.0f}, "
                f"min {q['min']}, max {q['max']}"
            )
    if f["unreadable"]:
        lines.append(f"unreadable: {f['unreadable']}")
    lines += ["", "columns"]
    width = max([len(name) for name in f["columns"]] or [1])
    lines += [f"  {name:{width}} <- {path}" for name, path in f["columns"].items()]
    if f["passes_through"]:
        lines.append(f"  passed through: {', '.join(f['passes_through'])}")
    lines += ["", "estimators"]
    width = max(len(name) for name in f["estimators"])
    for name, missing in f["estimators"].items():
        lines.append(f"  {name:{width}} {'ready' if not missing else 'needs ' + ', '.join(missing)}")
    return lines


def _sizes(sizes: dict[int, int]) -> str:
    shown = [f"{size} ({count} groups)" for size, count in sorted(sizes.items(), key=lambda item: -item[1])[:6]]
    return ", ".join(shown) + (f" and {len(sizes) - 6} other sizes" if len(sizes) > 6 else "")


def _bars(counts: list[int]) -> str:
    top = max([*counts, 1])
    return "".join(_BARS[-(-8 * count // top)] for count in counts)
