"""Time `ktae --help` against the same option of a bare typer application: a program of one command that does nothing.

    python benchmarks/startup.py [--quick] [--markdown]

Each is a process of its own, started by the same interpreter's environment, one after the other in every repeat; a
ratio is the median over the repeats of the ratios within a repeat. Exit status 1 where the target is missed; --quick
takes three repeats and checks that the commands run.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import exit_status, find_ktae, format_table

TARGET = 2.5
BARE = """import typer

app = typer.Typer({options})


@app.command()
def main(name: str = typer.Option("world", help="Whom to greet.")) -> None:
    print(name)


app()
"""


def time_command(command: list[str]) -> float:
    """Run a command and return its wall time in seconds."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
    assert done.stdout or command[-1] == "pass", f"{' '.join(command)} printed nothing"
    return seconds


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="three repeats, no target")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    repeats = 3 if options.quick else options.repeats
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as directory:
        bare, plain = Path(directory) / "bare.py", Path(directory) / "plain.py"
        bare.write_text(BARE.format(options=""))
        plain.write_text(BARE.format(options="rich_markup_mode=None"))
        commands = {
            "ktae --help": [find_ktae(), "--help"],
            "bare typer --help": [sys.executable, str(bare), "--help"],
            "bare typer --help, no rich": [sys.executable, str(plain), "--help"],
            "ktae list estimators": [find_ktae(), "list", "estimators"],
            "python -c pass": [sys.executable, "-c", "pass"],
        }
        for command in commands.values():  # fills the caches of bytecode and of the disk
            time_command(command)
        times = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(time_command(command))
    first, base = times["ktae --help"], times["bare typer --help"]
    ratio = statistics.median(a / b for a, b in zip(first, base, strict=True))
    rows = []
    for name, seconds in times.items():
        share = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        target = f"<= {TARGET}" if seconds is first else ""
        rows.append([name, f"{statistics.median(seconds) * 1e3:.0f}", f"{share:.2f}", target])
    print(format_table([f"median of {repeats}", "ms", "x bare typer", "target"], rows, options.markdown))
    missed = [f"ktae --help is {ratio:.2f}x, wanted {TARGET}x"] if ratio > TARGET else []
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
