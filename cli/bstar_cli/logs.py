"""Logs of the long-running commands: one event a line on standard error, for people or as JSON."""

import logging
import sys

import structlog
from structlog.typing import Processor

__all__ = ["configure_logs"]


def configure_logs(level: str, form: str) -> None:
    """Send every log event from ``level`` on to standard error. ``form`` is ``console`` or ``json``."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                # Without the frames' variables: they hold what clients sent.
                exception_formatter=structlog.dev.plain_traceback,
            )
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
    # The state machine's library tells each of its steps; the pair logs what they mean.
    logging.getLogger("transitions").setLevel(logging.WARNING)
