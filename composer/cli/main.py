"""The command line: the application and its exit status.

Imports nothing heavy before a command needs it: `--help`, `blocks` and a typo in a recipe answer
without torch.
"""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from composer.cli import inspection, recipes, runs, serving, sharing, sweeps
from composer.cli.options import DONE, FAILED, INTERRUPTED, REFUSED, echo, examples
from composer.errors import ComposerError, Fault, RunFailed, os_error_hint, os_error_reason
from composer.formatting import UnfailingStream
from composer.processes.endings import end_process, is_one_of_several
from composer.processes.python import secure_this_process
from composer.processes.signals import terminate
from composer.processes.streams import replace_closed_streams

ClickError: Any = typer.BadParameter.__mro__[2]
"""What click raises; some versions of typer have a click of their own, under a private name."""
app = typer.Typer(
    name="seqcomposer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for module in (recipes, runs, serving, sharing, sweeps, inspection):
    app.add_typer(module.commands)


def _print_version(requested: bool) -> None:
    if not requested:
        return
    from importlib.metadata import version

    echo(f"seqcomposer {version('seqcomposer')}")
    raise typer.Exit


@app.callback(
    epilog=examples(
        "seqcomposer new --source train.en --target train.de     # a recipe for your own text,"
        " en-de.yaml",
        "seqcomposer check en-de.yaml",
        "seqcomposer train en-de.yaml                            # writes runs/en-de",
        "echo 'a man sleeps' | seqcomposer translate runs/en-de",
        "seqcomposer report runs/en-de                           # one HTML page",
    )
)
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train sequence models described by YAML recipes as stacks of blocks.

    Exit status: 0 success, 1 failure, 2 invalid input, 130 interrupted, 143 terminated.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    signal.signal(signal.SIGTERM, terminate)
    secure_this_process()
    replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the terminal's encoding lacks
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has exited
        status = FAILED
    except OSError as error:
        status = FAILED
        message = f"the system says: {os_error_reason(error)}"
        _report(RunFailed.of(message, os_error_hint(error), str(error.filename or "<stdout>")))
    except Exception as error:  # a bug; `echo` removes control characters that it quotes
        status = FAILED
        with suppress(OSError):
            echo("".join(traceback.format_exception(error)), err=True, nl=False)
    for stream in (sys.stdout, sys.stderr):
        UnfailingStream(stream).flush()  # or the interpreter tries again at exit, and fails
    if is_one_of_several():
        end_process(status)
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int | str | None:
    """Run a command and return its status. Raises OSError if its output cannot be written."""
    try:
        status = _command()(args=arguments, prog_name="seqcomposer", standalone_mode=False)
    except ClickError as error:
        _report_usage(error)
        return REFUSED
    except ComposerError as error:
        UnfailingStream(sys.stdout).flush()
        _report(error)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code
    return status if isinstance(status, int) else DONE  # that of `typer.Exit`


@cache
def _command() -> Any:
    """Return the application, built from the signatures of all commands."""
    return get_command(app)


def _report(error: ComposerError) -> None:
    with suppress(OSError):
        echo(error.render(), err=True)


def _report_usage(error: Any) -> None:
    """Print an error in the words of a command, with a fix; where there are no words, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    context = getattr(error, "ctx", None)  # click leaves it out of some
    command = context.command_path if context else "seqcomposer COMMAND"
    if context:
        with suppress(OSError):
            echo(f"{context.get_usage()}\n", err=True)
    listed = "the commands" if command == "seqcomposer" else "arguments and options"
    hint = f"`{command} --help` lists {listed}"
    text = error.format_message().rstrip(".").replace("Value error, ", "")  # typer's checker
    _report(ComposerError([Fault("", 0, 0, "usage", "", text[:1].lower() + text[1:], hint)]))


if __name__ == "__main__":
    main()
