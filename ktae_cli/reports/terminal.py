"""A group in the terminal: tokens on the diverging scale, or with their weights in brackets where there is no colour.

Model text is never markup and never reaches the terminal raw: `visible` spells out what could act on it.
"""

import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from ktae_cli.reports.view import DrawnPiece, GroupView, KeyToken, RolloutView
from ktae_cli.scale import DARK_TEXT, FADED_TEXT, NEUTRAL, STEPS, color, color_at, foreground, step_color
from ktae_cli.token_text import visible

PAPER = Style(color=DARK_TEXT, bgcolor=NEUTRAL)
FADED = Style(color=FADED_TEXT, bgcolor=NEUTRAL, italic=True)
BOLD, DIM = Style(bold=True), Style(dim=True)
MARKS = {"right": "✓", "wrong": "✗", "unknown": "?", "unscored": "–"}
PLAIN_WIDTH = 100


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the command line, which ends quietly with status 0."""
        raise


def console_for(file) -> Console:
    """Return a console that prints text as it is: no markup, no emoji codes, no highlighting."""
    console = _Console(file=file, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def print_view(view: GroupView, console: Console, command: str) -> None:
    """Print the whole report; `command` is what shows another group when `--group ID` follows it."""
    colored = console.is_terminal and console.color_system is not None and not console.no_color
    for name, value in _header(view, colored):
        for line in value.wrap(console, max(20, console.width - 8), overflow="fold"):
            line.rstrip()
            console.print(Text().append(f"{name:<8}", DIM).append(line), soft_wrap=True)
            name = ""
    for rollout in view.rollouts:
        console.print()
        console.print(_rollout_heading(rollout, view.column), overflow="fold")
        for block in _rollout_blocks(rollout, view, colored):
            console.print(Padding(block, (0, 1), style=PAPER) if colored else block, overflow="fold")
    if view.rollouts_left_out:
        console.print(
            f"\n{_count(view.rollouts_left_out, 'more rollout')} in this group: --rollouts-shown N, or --full"
        )
    if view.key_tokens:
        console.print()
        for line in _key_token_lines(view, colored):
            console.print(line, overflow="fold")
    if view.other_groups:
        console.print("\nOther groups with strong values:")
        for group in view.other_groups:
            console.print(visible(f"  {command} --group {shlex.quote(group)}"), soft_wrap=True)


def _header(view: GroupView, colored: bool) -> Iterator[tuple[str, Text]]:
    counts = " · ".join(f"{n} {name}" for name, n in view.counts.items() if n or name in ("right", "wrong"))
    of = f" of {view.spec}" if view.spec else ""
    yield "file", Text(visible(view.file))
    yield "group", Text().append(visible(view.group_id), BOLD).append(f"   {counts}")
    if view.prompt:
        yield "prompt", Text(visible(view.prompt))
    yield "values", Text(f"{visible(view.column)}{of}: {_meaning(view.column)}")
    if view.chance:
        yield "chance", Text(visible(view.chance))
    yield "scale", _legend(view, colored)
    yield "decoder", Text(visible(view.decoder))


def _meaning(column: str) -> str:
    if column.startswith("key_weight"):
        return "how much a token points to the right (+) or the wrong (-) rollouts of this prompt"
    if column == "advantages" or column.startswith("adv_"):
        return "what a trainer multiplies each token's gradient by: + makes it likelier, - rarer"
    return "one value for each token"


def _legend(view: GroupView, colored: bool) -> Text:
    low, high = ("wrong ", " right") if view.column.startswith("key_weight") else ("", "")
    if not colored:
        sense = f" ({low.strip()} - … + {high.strip()})" if low else ""
        return Text(f"a value in brackets follows each token with |value| >= {view.threshold:.3g}{sense}")
    line = Text(f"{low}{-view.limit:+.3g} ")
    for step in range(-STEPS, STEPS + 1):
        line.append("  " if step else " 0 ", _on(color_at(step / STEPS)))
    return line.append(f" {view.limit:+.3g}{high}")


def _on(background: str, **more) -> Style:
    return Style(color=foreground(background), bgcolor=background, **more)


def _rollout_heading(rollout: RolloutView, column: str) -> Text:
    facts = [f"part {rollout.part}"] if rollout.part else []
    facts += [] if rollout.reward is None else [f"reward {rollout.reward:g}"]
    facts += [_count(rollout.n_tokens, "token"), f"mean |{visible(column)}| {rollout.mean_size:.3g}"]
    heading = Text().append(f"{MARKS[rollout.verdict]} {rollout.verdict}  ", BOLD).append(visible(rollout.rollout_id))
    return heading.append(f"   {' · '.join(facts)}", DIM)


def _rollout_blocks(rollout: RolloutView, view: GroupView, colored: bool) -> Iterator[Text]:
    """Yield the shown segments, each followed or preceded by a line that counts the tokens left out."""
    at = 0
    draw = _colored_pieces if colored else _plain_pieces
    for segment in rollout.segments:
        if segment.start > at:
            yield _gap(segment.start - at, colored)
        yield draw(segment.pieces, view)
        at = segment.stop
    if rollout.n_tokens > at:
        yield _gap(rollout.n_tokens - at, colored)
    if not rollout.n_tokens:
        yield Text("(empty response)", style=FADED if colored else "")


def _gap(count: int, colored: bool) -> Text:
    return Text(f"… {_count(count, 'token')} …", style=FADED if colored else "")


def _colored_pieces(pieces: list[DrawnPiece], view: GroupView) -> Text:
    text, run, run_style = Text(), "", PAPER
    for piece in pieces:
        style = _style_of(piece, view)
        if style != run_style:
            text.append(run, run_style)
            run, run_style = "", style
        shown, breaks = split_breaks(piece.text, marked=not piece.masked and abs(piece.value) >= view.threshold)
        run += (f" {shown} " if piece.kind == "special" else shown) + breaks
    return text.append(run, run_style)


def _style_of(piece: DrawnPiece, view: GroupView) -> Style:
    if piece.masked:
        return FADED
    background = step_color(piece.value, view.limit)
    if piece.kind == "special":
        return _on("#dddddd" if background == NEUTRAL else background, bold=True)
    if background == NEUTRAL:
        return PAPER
    return _on(background)


def _plain_pieces(pieces: list[DrawnPiece], view: GroupView) -> Text:
    parts, in_tool = [], False
    for piece in pieces:
        if piece.masked != in_tool:
            parts.append("⟪tool: " if piece.masked else "⟫")
            in_tool = piece.masked
        marked = not piece.masked and abs(piece.value) >= view.threshold
        shown, breaks = split_breaks(piece.text, marked)
        parts.append(f"{shown}[{piece.value:+.2f}]{breaks}" if marked else shown + breaks)
    return Text("".join(parts) + ("⟫" if in_tool else ""))


def split_breaks(text: str, marked: bool) -> tuple[str, str]:
    """Return (text to draw, real line breaks after it): in marked tokens blanks that would not be seen become signs.

    A token of blanks alone is drawn as ·, every line end as ⏎ and every tab as →.
    """
    text = visible(text)
    if not marked:
        return text.replace("\t", "    "), ""
    if not text.strip(" \n\t"):
        text = text.replace(" ", "·") or "∅"
    body = text.rstrip("\n")
    breaks = len(text) - len(body)
    return body.replace("\t", "→   ").replace("\n", "⏎\n") + "⏎" * breaks, "\n" * breaks


def _key_token_lines(view: GroupView, colored: bool) -> Iterator[Text]:
    yield Text(f"Strongest tokens of this group ({view.key_spec})", style=BOLD)
    p = "P(table)" if view.p_is_point else "p"
    yield Text(f"key weight  in right  in wrong  effect {p:>8}  token id  token", style=DIM)
    limit = view.limit if view.column.startswith("key_weight") else max(abs(t.key_weight) for t in view.key_tokens)
    for token in view.key_tokens:
        yield _key_token_line(token, limit, colored)
    yield from map(Text, evidence_lines(view))


def _key_token_line(token: KeyToken, limit: float, colored: bool) -> Text:
    background = color(token.key_weight, limit)
    style = _on(background) if colored else Style.null()
    right = f"{token.correct_with}/{token.n_correct}"
    wrong = f"{token.incorrect_with}/{token.n_incorrect}"
    line = Text().append(f"{token.key_weight:+10.3f}", style)
    line.append(f"  {right:>8}  {wrong:>8}  {token.effect:+6.2f}  {token.p_value:>7.2g}  {token.token_id:>8}  ")
    return line.append(token.text or "(no text)", style)


def evidence_lines(view: GroupView) -> list[str]:
    """Say what the p-values of one group can and cannot show."""
    first, tested = view.key_tokens[0], _count(view.tokens_tested, "token")
    lines = ["A large weight is no evidence by itself: look at the counts and at p."]
    if view.leaves_out_itself:
        lines = ["The table weighs with the whole group, the text of a rollout with the others alone.", *lines]
    p = "P(table) is the probability of the counts by chance, smaller than a p-value," if view.p_is_point else "p is"
    lines.append(f"{p} for one token in this one group, not corrected for the {tested} tested.")
    if view.smallest_p is None:
        return lines
    sides = (
        f"With {first.n_correct} right and {first.n_incorrect} wrong rollouts no p can be below {view.smallest_p:.2g}"
    )
    if view.smallest_p * view.tokens_tested > 0.05:
        return [*lines, f"{sides}, so none can survive that correction."]
    return [*lines, f"{sides}.", "One group alone can rarely show evidence."]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
