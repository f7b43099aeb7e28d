"""The ``bstar`` command: one function for each verb, and the one place where errors become exit codes.

Data goes to standard output and talk to standard error. What the user can mend is told in a sentence without
a traceback; a traceback is a defect of ours.
"""

import contextlib
import sys
from typing import Annotated

import typer

import bstar
from bstar.errors import BstarError, ConfigurationError, PairError, PipelineError
from bstar.printable import printable
from bstar_cli import exits
from bstar_cli.arbiter import arbiter
from bstar_cli.bench import bench
from bstar_cli.call import call
from bstar_cli.configuration import check_config, sample_config
from bstar_cli.demo import demo
from bstar_cli.load import load
from bstar_cli.options import grouped
from bstar_cli.pipeline import pipeline
from bstar_cli.promote import promote
from bstar_cli.serve import serve
from bstar_cli.status import status
from bstar_cli.streams import OutputLostError, guarded
from bstar_cli.terminal import lines
from bstar_cli.worker import worker

_OWN_ERRORS = (ConfigurationError, PairError, PipelineError)
_TEXT_CHARS_MAX = 5_000

app = typer.Typer(
    name="bstar",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"bstar {bstar.__version__}")
        raise typer.Exit


@app.callback()
def _bstar(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Two Majordomo brokers that stand in for each other, and their clients and workers.

    Try it: bstar demo
    """


def version() -> None:
    """Print the version."""
    _print_version(is_wanted=True)


for _command in (
    serve,
    arbiter,
    worker,
    call,
    load,
    bench,
    status,
    promote,
    check_config,
    sample_config,
    demo,
    version,
):
    app.command()(grouped(_command))
app.add_typer(pipeline)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code. ``arguments`` are those of the process unless given."""
    try:
        with guarded():
            return _run(arguments)
    except OutputLostError as lost:
        if not lost.is_reader_gone:
            _tell(f"bstar: {lost}")
        return lost.code
    except KeyboardInterrupt:
        return exits.INTERRUPTED


def _run(arguments: list[str] | None) -> int:
    try:
        app(arguments, prog_name="bstar")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BstarError as error:
        wrong = (
            "wrong usage or configuration" if isinstance(error, ConfigurationError) else type(error).__name__
        )
        # Our own sentences may have several lines; what a node or a handler says is on one.
        text = lines(str(error)) if isinstance(error, _OWN_ERRORS) else printable(str(error), _TEXT_CHARS_MAX)
        _tell(f"bstar: {wrong}: {text}")
        return exits.code_of(error)
    return exits.OK


def _tell(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{sentence}\n")
