"""Logs of the long-running commands: one event a line on standard error, for people or as JSON."""

import json
import logging
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TextIO

import typer

from bstar.base.printable import lines, printable

_VALUE_CHARS_MAX = 5_000

# The attribute of a record that holds an event's fields: their own names could be attributes already.
_FIELDS = "fields"
# What else a record has of its own; the rest is what a caller put there by ``extra``.
_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", _FIELDS})

_PLAIN, _BOLD, _DIM, _BLUE, _CYAN = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[34m", "\x1b[36m"
_LEVELS = {"info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


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


class EventLog:
    """A logger of the standard library whose events have fields: ``log.info("ready", pid=1)``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, /, **fields: object) -> None:
        """What happened as it should."""
        self._logger.info(event, extra={_FIELDS: fields})

    def warning(self, event: str, /, **fields: object) -> None:
        """What somebody should look at."""
        self._logger.warning(event, extra={_FIELDS: fields})

    def critical(self, event: str, /, **fields: object) -> None:
        """What ends the process."""
        self._logger.critical(event, extra={_FIELDS: fields})


def configure_logs(level: str, form: str, **always: str) -> None:
    """Send every log event from ``level`` on to standard error. ``form`` is ``console`` or ``json``;
    ``always`` is in each event.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(always) if form == "json" else _Console(always, has_colours(sys.stderr)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("bstar_client.endpoints").setLevel(logging.NOTSET)
    # The state machine's library tells each of its steps; the pair logs what they mean.
    logging.getLogger("transitions").setLevel(logging.WARNING)


def has_colours(stream: TextIO) -> bool:
    """True if colours may be written. To a terminal that has them, unless NO_COLOR (no-color.org) says no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Json(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, always: dict[str, str]) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "timestamp": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **self._always,
            **_fields(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=repr)


class _Console(logging.Formatter):
    """One line an event, for people; a traceback follows it.

    What came from the network is one line and moves no terminal's cursor. A traceback has no variables of
    its frames: they hold what clients sent.
    """

    def __init__(self, always: dict[str, str], colours: bool) -> None:
        super().__init__()
        self._always, self._colours = always, colours

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        fields = self._always | _fields(record)
        parts = [
            self._paint(_DIM, _timestamp(record)),
            f"[{self._paint(_LEVELS.get(level, _DIM), f'{level:9}')}]",
            self._paint(_BOLD, printable(record.getMessage(), _VALUE_CHARS_MAX)),
            f"[{self._paint(_BLUE, record.name)}]",
            *(f"{self._paint(_CYAN, name)}={_value(fields[name])}" for name in sorted(fields)),
        ]
        line = " ".join(parts)
        return f"{line}\n{lines(self.formatException(record.exc_info))}" if record.exc_info else line

    def _paint(self, style: str, text: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._colours else text


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra = {name: value for name, value in vars(record).items() if name not in _OWN}
    return extra | getattr(record, _FIELDS, {})


def _timestamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def _value(value: object) -> str:
    """A field for people: a text with spaces or the like is quoted."""
    if not isinstance(value, str):
        return printable(repr(value), _VALUE_CHARS_MAX)
    text = printable(value, _VALUE_CHARS_MAX)
    return repr(text) if any(char in text for char in " ='\"") else text
