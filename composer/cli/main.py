"""The command line: the application and its exit status.

Nothing heavy is imported before a command needs it: `--help`, `blocks` and a typo in a recipe answer without torch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from composer.cli import inspection, recipes, runs, sweeps
from composer.cli.options import DONE, FAILED, INTERRUPTED, TERMINATED, examples
from composer.errors import ComposerError
from composer.training import EARLY_SIGNALS

app = typer.Typer(
    name="seqcomposer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for module in (recipes, runs, sweeps, inspection):
    app.add_typer(module.commands)


def _print_version(requested: bool) -> None:
    if not requested:
        return
    from importlib.metadata import version

    typer.echo(f"seqcomposer {version('seqcomposer')}")
    raise typer.Exit


@app.callback(
    epilog=examples(
        "seqcomposer new --source train.en --target train.de     # a recipe for your own text, en-de.yaml",
        "seqcomposer check en-de.yaml",
        "seqcomposer train en-de.yaml                            # writes runs/en-de",
        "echo 'a man sleeps' | seqcomposer translate runs/en-de",
        "seqcomposer report runs/en-de                           # one HTML page",
    )
)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train sequence models that are described by YAML recipes as stacks of blocks.

    Exit status: 0 done, 1 failed, 2 refused (an error in the input), 130 interrupted, 143 terminated.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=arguments, prog_name="seqcomposer")
    except ComposerError as error:
        sys.stdout.flush()
        typer.echo(error.render(), err=True)
        sys.exit(error.status)
    except BrokenPipeError:
        # the reader of our output has gone; the interpreter must not try to flush into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(DONE)


def _terminate(number: int, _: Any) -> NoReturn:
    EARLY_SIGNALS.append(number)
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the cleaning up after the first
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
