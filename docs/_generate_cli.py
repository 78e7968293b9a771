"""Write docs/cli.md from the --help of every command; `--check` exits 1 when the page is stale."""

import contextlib
import importlib.metadata
import io
import os
import re
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 80
HEAD = """# Command line

`python docs/_generate_cli.py` writes this page from the `--help` of every command ({made_with}).

Exit status: 0 done; 1 done, and the answer is no (`check` with findings, `compare --fail-over`,
`verify --min-accuracy`); 2 wrong usage or unusable input (one or two lines on stderr, no traceback, no output); 3 the
machine failed (disk full, out of memory; an earlier output is intact); 130 on Ctrl-C, 143 on SIGTERM.
Data goes to stdout or to the output file, everything else to stderr.
"""


def help_text(*command: str) -> str:
    """Return what `ktae COMMAND --help` prints on a terminal of fixed width without colour."""
    from ktae_cli.cli.app import run

    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = run([*command, "--help"])
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    if status:
        raise SystemExit(f"ktae {' '.join(command)} --help: exit status {status}")
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def command_names() -> list[str]:
    """List the commands in the order of `ktae --help`."""
    from ktae_cli.cli.app import app

    return [str(command.name) for command in app.registered_commands if not command.hidden]


def made_with() -> str:
    """Return the version of the library that lays out the help; another one may lay it out in another way."""
    return f"typer {importlib.metadata.version('typer')}"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD.format(made_with=made_with()), f"```text\n{help_text()}\n```\n"]
    parts += [f"## ktae {name}\n\n```text\n{help_text(name)}\n```\n" for name in command_names()]
    return "\n".join(parts)


def is_fresh(found: str) -> bool:
    """Tell whether the page says what the commands say.

    Made with the installed typer it has the same bytes; with another one, the same commands and options.
    """
    expected = page()
    return found == expected or (made_with() not in found and _options(found) == _options(expected))


def _options(text: str) -> list[tuple[str, list[str]]]:
    sections = re.split(r"^## ktae ", text, flags=re.MULTILINE)[1:]
    return [(part.split()[0], sorted(set(re.findall(r"--[a-z][a-z-]+", part)))) for part in sections]


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it."""
    if arguments not in ([], ["--check"]):
        print("usage: python docs/_generate_cli.py [--check]", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.is_file() and is_fresh(PAGE.read_text(encoding="utf-8")):
        return 0
    print(f"{PAGE.name} is stale; run: python docs/_generate_cli.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
