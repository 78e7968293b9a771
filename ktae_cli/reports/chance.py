"""What `--null` measured, in lines: how much of the key weights is chance."""

from collections.abc import Iterator
from typing import Any


def chance_lines(null: dict[str, Any]) -> Iterator[str]:
    """Yield a line that says on what the figures rest, and one for each estimator."""
    yield f"key weights against chance, {chance_heading(null)}"
    for spec, figures in null["estimators"].items():
        yield f"  {spec}: {chance_line(figures)}"


def chance_heading(null: dict[str, Any]) -> str:
    """Say on what the figures rest."""
    shuffles = f"{null['shuffles']} shuffle{'' if null['shuffles'] == 1 else 's'} a null, seed {null['seed']}"
    text = (
        f"{shuffles}: {null['groups']:,} mixed groups of {null['prompts']:,} prompts, "
        f"{null['groups_split']:,} split in halves"
    )
    overlap = null["overlap"]
    return f"{text}." if overlap is None else f"{text}; overlap of the lengths {overlap:.2f}."


def chance_line(figures: dict[str, Any] | None) -> str:
    """Return the figures of one estimator with their intervals."""
    if figures is None:
        return "no group holds right and wrong rollouts"
    shares = ", ".join(f"{null} {share(found)}" for null, found in figures["shuffle_share"].items())
    reliability, own = share(figures["reliability"]), share(figures["self_share"])
    return f"shuffle share {shares}; reliability {reliability}, self share {own}"


def share(found: dict[str, float | None], digits: int = 2) -> str:
    """Return a figure and its interval, `-` where it cannot be told."""
    if found["value"] is None:
        return "-"
    return f"{found['value'] + 0.0:.{digits}f}" + ("" if found["low"] is None else f" ({interval(found, digits)})")


def interval(found: dict[str, float | None], digits: int = 2) -> str:
    """Return the interval of a figure, "" where it has none."""
    return "" if found["low"] is None else f"{found['low'] + 0.0:.{digits}f} to {found['high'] + 0.0:.{digits}f}"


def chance_of(metadata: dict[str, Any], spec: str) -> str:
    """Return the line of one estimator from the metadata of a scored file, "" where it holds none."""
    null = metadata.get("null")
    figures = null["estimators"].get(spec) if null else None
    return f"{chance_line(figures)} (--null {null['shuffles']}, seed {null['seed']})" if figures else ""
