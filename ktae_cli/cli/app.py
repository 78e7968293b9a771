"""The `ktae` command: lists the subcommands, runs one, and turns errors into a line and an exit status."""

import errno
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Annotated

import typer

from ktae_cli.cli.check import check
from ktae_cli.cli.compare import compare
from ktae_cli.cli.console import say
from ktae_cli.cli.convert import convert
from ktae_cli.cli.explain import explain
from ktae_cli.cli.export import export
from ktae_cli.cli.highlight import highlight
from ktae_cli.cli.inspect import inspect
from ktae_cli.cli.list import list_plugins
from ktae_cli.cli.score import score
from ktae_cli.cli.tokens import tokens
from ktae_cli.cli.verify import verify
from ktae_cli.errors import KtaeError
from ktae_cli.version import __version__

# typer carries its own copy of click or uses the installed one, by version: take the classes from what it exports.
UsageError, ClickException = typer.BadParameter.__mro__[1:3]

app = typer.Typer(
    name="ktae",
    help="Which tokens made a rollout right or wrong: token-level advantages from saved RL rollouts.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("score")(score)
app.command("verify")(verify)
app.command("highlight")(highlight)
app.command("export")(export)
app.command("inspect")(inspect)
app.command("compare")(compare)
app.command("tokens")(tokens)
app.command("convert")(convert)
app.command("check")(check)
app.command("list")(list_plugins)
app.command("explain")(explain)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ktae {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit 0 done, 1 answer no, 2 usage or input, 3 machine, 130 interrupted, 143 terminated."""
    _mend_streams()
    terminated = _catch_sigterm()
    status = run(sys.argv[1:] if arguments is None else arguments)
    sys.exit(143 if status == 130 and terminated.is_set() else status)


def _mend_streams() -> None:
    """Give closed standard streams (`>&-`) somewhere to go, and write what the encoding lacks with backslashes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _catch_sigterm() -> threading.Event:
    """Let SIGTERM end the run as Ctrl-C does, so that temporary files go; the event tells the two apart."""
    terminated = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not terminated.is_set():  # `timeout` sends the signal twice: cleaning up goes on
            terminated.set()
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
    return terminated


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error of torch, on the processor or the GPU, is a lack of memory."""
    text = str(error).lower()
    return "out of memory" in text or "defaultcpuallocator" in text


def _discard(stream) -> None:
    """Send what a stream still holds to nowhere: Python would complain once more when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _out_of_memory() -> int:
    say("error: out of memory; score fewer groups at once with --limit, or use a larger machine")
    return 3


def _one_line(message: str) -> str:
    return " ".join(message.replace("Value error, ", "").split())


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit status."""
    try:
        status = app(args=arguments, prog_name="ktae", standalone_mode=False)
        if status == 130:  # typer turns Ctrl-C into a status without a word
            raise KeyboardInterrupt
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except UsageError as error:
        where = error.ctx.command_path if error.ctx else "ktae"
        say(f"error: {_one_line(error.format_message())}")
        say(f"try '{where} --help'")
        return 2
    except ClickException as error:
        say(f"error: {_one_line(error.format_message())}")
        return 2
    except KtaeError as error:
        say(f"error: {error}")
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted; nothing was written under the final name")
        return 130
    except (BrokenPipeError, SystemExit) as error:
        # typer turns a closed pipe into SystemExit(1).
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            return error.code if isinstance(error.code, int) else 1
        _discard(sys.stdout)
        return 0
    except MemoryError:  # pyarrow.ArrowMemoryError is one
        return _out_of_memory()
    except RuntimeError as error:  # torch has no MemoryError
        if not is_out_of_memory(error):
            raise
        return _out_of_memory()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(f"error: {'the disk is full' if full else error}; the previous output, if any, is intact")
        return 3
