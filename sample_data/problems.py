"""Arithmetic word problems with worked answers of differing quality, and the verdict on an answer."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

NAMES = ("Mia", "Tom", "Ana", "Ben", "Ivy", "Leo", "Zoe", "Max")
ITEMS = ("pens", "apples", "coins", "shells", "cards", "beads", "stamps", "eggs")
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
INVERSE = {"+": "-", "-": "+", "*": "/", "/": "*"}
Line = tuple[int, str, int, int]  # left, operator, right, result
ANSWER = re.compile(r"Answer: (-?\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """Refers to the result of an earlier step."""

    index: int


@dataclass(frozen=True)
class Step:
    """One equation; an operand is a number or the result of an earlier step."""

    left: int | Result
    op: str
    right: int | Result


@dataclass(frozen=True)
class Problem:
    """A question, the steps that solve it and the right answer."""

    kind: str
    text: str
    steps: tuple[Step, ...]
    noun: str

    @property
    def answer(self) -> int:
        """The right final result."""
        return evaluate(self.steps)[-1][3]

    @property
    def prompt(self) -> str:
        """The text that the policy sees."""
        return f"Question: {self.text}\nSolution:\n"


Style = Callable[[random.Random, Problem], list[str]]


def evaluate(steps: tuple[Step, ...], slips: dict[int, int] | None = None) -> list[Line]:
    """Work the steps in order; `slips` adds an error to the result of a step, which later steps then use."""
    lines: list[Line] = []
    for index, step in enumerate(steps):
        left = lines[step.left.index][3] if isinstance(step.left, Result) else step.left
        right = lines[step.right.index][3] if isinstance(step.right, Result) else step.right
        value = {"+": left + right, "-": left - right, "*": left * right}.get(step.op)
        if value is None:
            value = left // right
        lines.append((left, step.op, right, value + (slips or {}).get(index, 0)))
    return lines


def _boxes(rng: random.Random) -> Problem:
    boxes, each, who, other, item = rng.randint(2, 6), rng.randint(3, 9), *rng.sample(NAMES, 2), rng.choice(ITEMS)
    given = rng.randint(2, boxes * each - 1)
    text = f"{who} buys {boxes} boxes of {each} {item} and gives {given} {item} to {other}. How many {item} are left?"
    return Problem("boxes", text, (Step(boxes, "*", each), Step(Result(0), "-", given)), item)


def _saving(rng: random.Random) -> Problem:
    start, each, days, spent = rng.randint(5, 15), rng.randint(2, 6), rng.randint(2, 5), rng.randint(2, 8)
    who, item = rng.choice(NAMES), rng.choice(ITEMS)
    text = f"{who} has {start} {item}, gets {each} a day for {days} days and then loses {spent}. How many {item} now?"
    steps = (Step(days, "*", each), Step(start, "+", Result(0)), Step(Result(1), "-", spent))
    return Problem("saving", text, steps, item)


def _times(rng: random.Random) -> Problem:
    count, factor, (who, other), item = rng.randint(3, 9), rng.randint(2, 5), rng.sample(NAMES, 2), rng.choice(ITEMS)
    text = f"{who} has {count} {item}. {other} has {factor} times as many. How many {item} do they have together?"
    return Problem("times", text, (Step(factor, "*", count), Step(Result(0), "+", count)), item)


def _bus(rng: random.Random) -> Problem:
    start, off, on = rng.randint(12, 25), rng.randint(2, 9), rng.randint(3, 9)
    last = rng.randint(2, min(9, start - off + on - 1))
    text = f"A bus has {start} riders. At one stop {off} get off and {on} get on. Then {last} get off. How many riders?"
    steps = (Step(start, "-", off), Step(Result(0), "+", on), Step(Result(1), "-", last))
    return Problem("bus", text, steps, "riders")


def _bags(rng: random.Random) -> Problem:
    bags, each, lost = rng.randint(2, 5), rng.randint(2, 8), rng.randint(1, 5)
    total = bags * each + lost
    red = rng.randint(1, total - 1)
    who, item = rng.choice(NAMES), rng.choice(ITEMS)
    text = (
        f"{who} has {red} red and {total - red} blue {item}, loses {lost} and puts the rest into {bags} bags. "
        f"How many {item} per bag?"
    )
    steps = (Step(red, "+", total - red), Step(Result(0), "-", lost), Step(Result(1), "/", bags))
    return Problem("bags", text, steps, item)


def _prices(rng: random.Random) -> Problem:
    cakes, cake, teas, tea = (rng.randint(2, 5) for _ in range(4))
    money = cakes * cake + teas * tea + rng.randint(1, 9)
    text = (
        f"{rng.choice(NAMES)} buys {cakes} cakes for {cake} dollars each and {teas} teas for {tea} dollars each, "
        f"and pays with {money} dollars. How many dollars come back?"
    )
    steps = (
        Step(cakes, "*", cake),
        Step(teas, "*", tea),
        Step(Result(0), "+", Result(1)),
        Step(money, "-", Result(2)),
    )
    return Problem("prices", text, steps, "dollars")


def _book(rng: random.Random) -> Problem:
    first, factor, who, (day, next_day) = rng.randint(3, 9), rng.randint(2, 3), rng.choice(NAMES), rng.sample(DAYS, 2)
    pages = first * (factor + 1) + rng.randint(2, 15)
    text = (
        f"A book has {pages} pages. {who} reads {first} pages on {day} and {factor} times as many on {next_day}. "
        "How many pages are left?"
    )
    steps = (Step(factor, "*", first), Step(first, "+", Result(0)), Step(pages, "-", Result(1)))
    return Problem("book", text, steps, "pages")


def _garden(rng: random.Random) -> Problem:
    rows, each, die, new = rng.randint(2, 6), rng.randint(3, 8), rng.randint(2, 5), rng.randint(2, 9)
    text = f"A garden has {rows} rows of {each} trees. Then {die} trees die and {new} are planted. How many trees now?"
    steps = (Step(rows, "*", each), Step(Result(0), "-", die), Step(Result(1), "+", new))
    return Problem("garden", text, steps, "trees")


TEMPLATES = (_boxes, _saving, _times, _bus, _bags, _prices, _book, _garden)


def make_problem(rng: random.Random, kind: int | None = None) -> Problem:
    """Draw one problem, of template number `kind` or of any."""
    return (TEMPLATES[kind % len(TEMPLATES)] if kind is not None else rng.choice(TEMPLATES))(rng)


def make_distinct(rng: random.Random, count: int) -> list[Problem]:
    """Draw `count` problems with different texts, the templates in turn."""
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = make_problem(rng, len(problems))
        problems.setdefault(problem.text, problem)
    return list(problems.values())


def _slip(rng: random.Random) -> int:
    return rng.choice((-10, -3, -2, -1, 1, 2, 3, 10))


def _with_slip(rng: random.Random, problem: Problem) -> tuple[list[Line], int]:
    """Work the problem with one slip, at a step where the numbers after it stay positive whole; the step comes back."""
    steps = problem.steps
    for _ in range(8):
        at = rng.randrange(len(steps))
        lines = evaluate(steps, {at: _slip(rng)})
        exact = all(left % right == 0 for left, op, right, _ in lines if op == "/" and right)
        if exact and all(value > 0 for *_, value in lines):
            return lines, at
    return evaluate(steps, {len(steps) - 1: 1}), len(steps) - 1


def _equation(line: Line) -> str:
    left, op, right, value = line
    return f"{left} {op} {right} = {value}"


def _check(line: Line) -> str:
    """The last equation turned round."""
    left, op, right, value = line
    return f"Check: {value} {INVERSE[op]} {right} = {left}"


def write_careful(rng: random.Random, problem: Problem) -> list[str]:
    """Numbered steps and a self-check of the last one; a slip in it is found and put right."""
    lines = evaluate(problem.steps)
    texts = [f"Step {number}: {_equation(line)}" for number, line in enumerate(lines, 1)]
    left, op, right, value = lines[-1]
    if op in "+-" and rng.random() < 0.2:
        wrong = max(0, value + rng.choice((-2, -1, 1, 2)))
        texts[-1] = f"Step {len(lines)}: {left} {op} {right} = {wrong}"
        if wrong != value:
            back = wrong - right if op == "+" else wrong + right
            texts.append(f"Check: {wrong} {INVERSE[op]} {right} = {back}")
            texts.append(f"That fails. Again: {_equation(lines[-1])}")
            return texts
    return [*texts, _check(lines[-1])]


def write_plain(rng: random.Random, problem: Problem) -> list[str]:
    """Every step with a connective; seldom wrong."""
    lines = evaluate(problem.steps) if rng.random() > 0.08 else _with_slip(rng, problem)[0]
    words = ["First", *(rng.choice(("Then", "Next", "Now")) for _ in lines[1:])]
    texts = [f"{word}, {_equation(line)}" for word, line in zip(words, lines, strict=True)]
    return texts if rng.random() < 0.6 else [*texts, f"So there are {lines[-1][3]} {problem.noun}"]


def write_wait(rng: random.Random, problem: Problem) -> list[str]:
    """A slip, noticed with a Wait; three times in four it is mended, else a new slip takes its place."""
    wrong, at = _with_slip(rng, problem)
    final = evaluate(problem.steps) if rng.random() < 0.75 else evaluate(problem.steps, {at: _slip(rng)})
    if any(value <= 0 for *_, value in final):
        final = evaluate(problem.steps)
    words = ["First", *(rng.choice(("Then", "Next", "Now")) for _ in final[1:])]
    texts = [f"{word}, {_equation(line)}" for word, line in zip(words, final, strict=True)]
    texts[at : at + 1] = [f"{words[at]}, {_equation(wrong[at])}", f"Wait, {_equation(final[at])}"]
    return texts


def write_hedged(rng: random.Random, problem: Problem) -> list[str]:
    """Hedging words; wrong more often than not."""
    lines = evaluate(problem.steps) if rng.random() < 0.45 else _with_slip(rng, problem)[0]
    return [f"{rng.choice(('I think', 'Maybe', 'Perhaps'))} {_equation(line)}" for line in lines]


def write_sloppy(rng: random.Random, problem: Problem) -> list[str]:
    """Only the last steps are shown; half of the time the number carried over is wrong."""
    lines = evaluate(problem.steps) if rng.random() < 0.5 else _with_slip(rng, problem)[0]
    shown = lines[-1:] if len(lines) == 2 else lines[rng.choice((-1, -2)) :]
    texts = [f"{rng.choice(('Quickly', 'Roughly'))}, {_equation(shown[0])}"]
    return texts + [f"So {_equation(line)}" for line in shown[1:]]


STYLES = ((write_careful, 30), (write_plain, 32), (write_wait, 12), (write_hedged, 11), (write_sloppy, 15))


def write_solution(rng: random.Random, problem: Problem, writer: Style | None = None) -> str:
    """A worked answer in the style `writer`, or in any; its answer is whatever its own last equation says."""
    writer = writer or rng.choices([style for style, _ in STYLES], [weight for _, weight in STYLES])[0]
    texts = writer(rng, problem)
    equations = [text for text in texts if " = " in text and not text.startswith("Check")]
    return "\n".join([*texts, f"Answer: {equations[-1].rsplit(' = ', 1)[1]}"])


def is_right(response: str, ground_truth: str) -> bool:
    """The verdict: does the last `Answer:` line of the response state the ground truth?"""
    found = ANSWER.findall(response)
    return bool(found) and found[-1] == ground_truth
