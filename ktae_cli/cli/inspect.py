"""`ktae inspect`."""

import json as encoder
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import parse_map, say, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.errors import KtaeError

_BARS = " ▁▂▃▄▅▆▇█"


def inspect(
    inputs: options.Inputs,
    format: options.Format = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    clip: Annotated[
        str, typer.Option("--clip", metavar="LOW:HIGH", help="Count the tokens whose ratio lies outside.")
    ] = "0.8:1.28",
    cap: Annotated[float, typer.Option("--cap", help="Truncated importance weights are at most this.")] = 2.0,
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask",
            metavar="LOW:HIGH",
            help="Masked importance weights are 0 outside; default: 1/CAP:CAP.",
            show_default=False,
        ),
    ] = None,
    key_threshold: Annotated[
        float, typer.Option("--key-threshold", help="Key tokens of a scored file: |key_weight| at least this.")
    ] = 0.5,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the off-policy facts of every token there.", show_default=False),
    ] = None,
    on_mismatch: options.OnMismatch = options.Mismatch.error,
    skip_bad_lines: options.SkipBadLines = False,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Show what a file holds: groups, pass rates, lengths, columns, what estimators need, how far its policies differ.

    Reads keys, rewards and lengths once, and no text. Where log-probabilities of two policies stand side by side
    (engine and trainer, old and new), they are read once with token ids, masks and key weights, and the ratios, k1, k3,
    chi-square, effective sample sizes and importance weights shown; memory grows by some bytes a row. Of a scored file
    also what `score --null` measured.
    """
    from ktae_cli.inputs import open_rollouts, remaining_map, threshold_of
    from ktae_cli.inspection import inspect_rollouts
    from ktae_cli.off_policy_facts import Bounds
    from ktae_cli.token_text import visible

    if str(output) == "-":
        raise KtaeError("-o -: inspect writes a Parquet file; name one with -o")
    bounds = Bounds(_range("--clip", clip), cap, None if mask is None else _range("--mask", mask), key_threshold)
    mapped, keys = parse_map(map), list(split_names(group_by))
    read = read_inputs(format, mapped, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle)
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source = open_rollouts(inputs, scratch, read)
        mapped, threshold = remaining_map(source, mapped), threshold_of(source, correct_threshold)
        facts = inspect_rollouts(source, mapped, keys, threshold, bounds, output, force)
    if json:
        print(encoder.dumps(facts, allow_nan=False))  # ASCII: nothing in a name can act on a terminal
        return
    for line in _lines(facts):
        print(visible(line).replace("\n", "⏎"))
    for warning in facts.get("warnings", []):
        say(f"warning: {warning}")
    if facts["problem"]:
        say(f"cannot be scored as it is: {facts['problem']}")
    if output:
        say(f"off-policy facts of every token -> {output}")


def _range(option: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise KtaeError(f"{option} {text}: expected LOW:HIGH, as in {option} 0.8:1.28") from None


def _lines(f: dict[str, Any]) -> list[str]:
    lines = [
        f"{f['rollouts']} rollouts" + (f", {f['tokens']:,} response tokens" if "tokens" in f else ", no token ids")
    ]
    if f["scored_with"]:
        lines.append(f"scored with {', '.join(f['scored_with'])}")
    if f["null"]:
        from ktae_cli.reports.chance import chance_lines

        lines += chance_lines(f["null"])
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
    return [*lines, "", *_off_policy_lines(f["off_policy"])]


def _off_policy_lines(found: dict[str, Any] | None) -> list[str]:
    from ktae_cli.off_policy_rows import NEEDED

    if not found:
        return [f"off-policy facts: none; they need {NEEDED}"]
    lines = []
    for pair in found["pairs"].values():
        note = f" ({pair['note']})" if pair["note"] else ""
        lines += [f"{pair['label']}: r = exp({pair['new']} - {pair['old']}){note}", *_pair_lines(pair, found)]
    return lines


def _pair_lines(p: dict[str, Any], bounds: dict[str, Any]) -> list[str]:
    lines = [f"  {p['tokens']:,} tokens of {p['rollouts']} rollouts"]
    if p["without_tokens"]:
        lines.append(f"  rollouts without a token of the policy: {p['without_tokens']}")
    if p["skipped"]:
        lines.append(f"  rollouts that cannot be compared: {p['skipped']}, the first: {p['first_skipped']}")
    if not p["tokens"]:
        return lines
    if p["tokens_at_bound"]:
        lines.append(f"  tokens with log r beyond +-20, held there: {p['tokens_at_bound']}")
    lines += [f"  {line}" for line in _tally_lines(p, bounds)]
    lines.append(
        f"  effective sample size: {p['effective_sample_size']:.3g} of the rollouts (whole-rollout weights); of the "
        f"tokens of a rollout median {p['token_effective_sample_size_median']:.3g}, "
        f"min {p['token_effective_sample_size_min']:.3g}"
    )
    tenths = " ".join("-" if value is None else f"{value:.2g}" for value in p["k3_by_position"])
    lines.append(f"  mean k3 by tenth of the response: {tenths}")
    lines += ["  largest |log r|"] if p["largest"] else []
    for token in p["largest"]:
        what = "" if token["token_id"] is None else f", token {token['token_id']}"
        lines.append(f"    {token['place']}, position {token['position']}{what}: ratio {token['ratio']:.3g}")
    for name, label in (("key", f"key tokens, |key_weight| >= {bounds['key_threshold'] or 0:g}"), ("rest", "the rest")):
        if name in p:
            lines.append(f"  {label}: {p[name]['tokens']:,} tokens")
            lines += [f"    {line}" for line in _tally_lines(p[name], bounds)] if p[name]["tokens"] else []
    return lines


def _tally_lines(t: dict[str, Any], bounds: dict[str, Any]) -> list[str]:
    q, (low, high), (kept_low, kept_high) = t["ratio"], bounds["clip"], bounds["mask"]
    return [
        f"mean k1 {t['k1']:.3g}, mean k3 {t['k3']:.3g}, chi-square {t['chi_square']:.3g}",
        f"ratio: median {q['median']:.3g}, 5 % to 95 % {q['p5']:.3g} to {q['p95']:.3g}, "
        f"1 % to 99 % {q['p1']:.3g} to {q['p99']:.3g}, min {q['min']:.3g}, max {q['max']:.3g}",
        f"outside the clip {low:g} to {high:g}: {_percent(t['share_below_clip'])} below, "
        f"{_percent(t['share_above_clip'])} above",
        f"weights truncated at {bounds['cap']:g}: mean {t['truncated_weight']:.4g}, "
        f"{_percent(t['share_truncated'])} cut; "
        f"masked outside {kept_low:g} to {kept_high:g}: mean {t['masked_weight']:.4g}, "
        f"{_percent(t['share_masked'])} zero",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share == 0 or share >= 5e-5 else "<0.01 %"


def _sizes(sizes: dict[int, int]) -> str:
    shown = [f"{size} ({count} groups)" for size, count in sorted(sizes.items(), key=lambda item: -item[1])[:6]]
    return ", ".join(shown) + (f" and {len(sizes) - 6} other sizes" if len(sizes) > 6 else "")


def _bars(counts: list[int]) -> str:
    top = max([*counts, 1])
    return "".join(_BARS[-(-8 * count // top)] for count in counts)
