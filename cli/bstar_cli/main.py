"""The ``bstar`` command: one function for each verb, and the one place where errors become exit codes.

Data goes to standard output and talk to standard error. An error that the user can correct is one sentence
without a traceback; a traceback is a defect of ours.
"""

import contextlib
import gc
import logging
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import bstar
from bstar.base.printable import lines, printable
from bstar.errors import BstarError, ConfigurationError, PairError, PipelineError
from bstar_cli import exits
from bstar_cli.coercion import coerce_quickly
from bstar_cli.options import collect_garbage, grouped
from bstar_cli.streams import OutputLostError, guarded

_OWN_ERRORS = (ConfigurationError, PairError, PipelineError)
_TEXT_CHARS_MAX = 5_000

# Each command and the module with its function, in the order of the help page. Orders to a node follow.
_MODULES = {
    "serve": "serve",
    "arbiter": "arbiter",
    "worker": "worker",
    "run": "run",
    "call": "call",
    "durable": "durable",
    "http": "http_front.command",
    "load": "load",
    "bench": "bench",
    "status": "status",
    "top": "top",
    "services": "services",
    "history": "history",
    "epoch": "epoch",
    "store": "store",
    "check-config": "configuration",
    "sample-config": "configuration",
    "systemd-unit": "systemd",
    "demo": "demo",
    "durable-demo": "durable_demo",
    "version": "main",
    "emq-jobmanager": "emq",
    "emq-admin": "emq",
    "keys": "keys",
    "pipeline": "pipeline",
}


class _Commands(Mapping[str, Any]):
    """The commands by name. A command's module is imported when the command is looked up."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"bstar_cli.{_MODULES.get(name, 'orders')}")
        found = getattr(module, name.replace("-", "_")) if name in _MODULES else module.commands()[name]
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(name)(grouped(function))
        return typer.main.get_command(found)

    def __iter__(self) -> Iterator[str]:
        return iter((*_MODULES, *import_module("bstar_cli.orders").commands()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Bstar(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # no caller adds to them


app = typer.Typer(
    name="bstar",
    cls=_Bstar,
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
    # By now the module of the command is there, too.
    if not gc.isenabled():
        collect_garbage()


def version() -> None:
    """Print the version."""
    _print_version(is_wanted=True)


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
    # Who names one node to a command means that one. Commands that stay switch this warning on again.
    logging.getLogger("bstar_client.endpoints").setLevel(logging.ERROR)
    coerce_quickly()
    try:
        app(arguments, prog_name="bstar")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BstarError as error:
        wrong = (
            "wrong usage or configuration" if isinstance(error, ConfigurationError) else type(error).__name__
        )
        from bstar_cli.terminal import data_of  # noqa: PLC0415 - it takes rich along

        # Our own sentences may have several lines; what a node or a handler says is on one.
        text = lines(str(error)) if isinstance(error, _OWN_ERRORS) else printable(str(error), _TEXT_CHARS_MAX)
        _tell(f"bstar: {wrong}: {text}{data_of(error)}")
        return exits.code_of(error)
    return exits.OK


def _tell(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{sentence}\n")
