"""The `ktae` command: lists the subcommands, runs one, and turns errors into a line and an exit status."""

import errno
import os
import sys
from typing import Annotated

import typer

from ktae_cli.cli.console import say
from ktae_cli.cli.explain import explain
from ktae_cli.cli.export import export
from ktae_cli.cli.highlight import highlight
from ktae_cli.cli.inspect import inspect
from ktae_cli.cli.list import list_plugins
from ktae_cli.cli.score import score
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
app.command("highlight")(highlight)
app.command("export")(export)
app.command("inspect")(inspect)
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
    """Run the command line; exit 0 done, 1 answer no, 2 usage or input, 3 machine, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


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
        # typer turns a closed pipe into SystemExit(1). Python would complain once more when it flushes at exit.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            return error.code if isinstance(error.code, int) else 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        say("error: out of memory; score fewer groups at once with --limit, or use a larger machine")
        return 3
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(f"error: {'the disk is full' if full else error}; the previous output, if any, is intact")
        return 3
