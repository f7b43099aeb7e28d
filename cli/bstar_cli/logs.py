"""Logs of the long-running commands: one event a line on standard error, for people or as JSON."""

import logging
import sys
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Literal, TextIO

import structlog
import typer
from structlog.typing import EventDict, ExcInfo, Processor

from bstar.base.printable import printable
from bstar_cli.terminal import has_colours, lines

_VALUE_CHARS_MAX = 5_000


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What a long-running command logs, and how."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option("--log-level", help="The least important.")
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], typer.Option("--log-format", help="For people or for programs.")
    ] = "console"

    def configure(self) -> None:
        """Send the log to standard error from now on."""
        configure_logs(self.log_level, self.log_format)


def configure_logs(level: str, form: str, **always: str) -> None:
    """Send every log event from ``level`` on to standard error. ``form`` is ``console`` or ``json``;
    ``always`` is in each event.
    """
    shared: list[Processor] = [
        lambda logger, method, event: {**event, **always},
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form == "json"
        else [
            _escape,
            structlog.dev.ConsoleRenderer(
                colors=has_colours(sys.stderr), pad_event_to=0, exception_formatter=_write_traceback
            ),
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("bstar_client.endpoints").setLevel(logging.NOTSET)
    # The state machine's library tells each of its steps; the pair logs what they mean.
    logging.getLogger("transitions").setLevel(logging.WARNING)


def _escape(logger: object, method: str, event: EventDict) -> EventDict:
    """What came from the network must not be more than one line, nor move a terminal's cursor.

    JSON needs this not: its escapes are its own.
    """
    return {
        name: printable(value, _VALUE_CHARS_MAX) if type(value) is str else value
        for name, value in event.items()
    }


def _write_traceback(out: TextIO, trace: ExcInfo) -> None:
    """The traceback, without the frames' variables: they hold what clients sent. Its text may, too."""
    text = StringIO()
    structlog.dev.plain_traceback(text, trace)
    out.write(lines(text.getvalue()))
