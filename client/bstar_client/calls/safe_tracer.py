"""A tracer whose errors end no call: the program's span processors run in the threads of the client."""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from bstar.errors import BstarError
from bstar_client.core.calls import Call, CallTracer, Reply

_log = logging.getLogger("bstar_client")

T = TypeVar("T")


class SafeTracer:
    """A ``CallTracer`` that passes each report on to ``tracer`` and logs what that raises."""

    def __init__(self, tracer: CallTracer) -> None:
        self._tracer = tracer

    def begin(self, call: Call, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Without a trace the request carries the caller's own headers."""
        return _safely(lambda: self._tracer.begin(call, headers), headers)

    def carried(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """As ``begin``."""
        return _safely(lambda: self._tracer.carried(headers), headers)

    def replied(self, call: Call, reply: Reply) -> None:
        """The call was answered."""
        _safely(lambda: self._tracer.replied(call, reply), None)

    def failed(self, call: Call, error: BstarError) -> None:
        """The call ended with an error."""
        _safely(lambda: self._tracer.failed(call, error), None)

    def abandoned(self, call: Call) -> None:
        """The caller has gone."""
        _safely(lambda: self._tracer.abandoned(call), None)


def _safely(report: Callable[[], T], otherwise: T) -> T:
    try:
        return report()
    except Exception:  # noqa: BLE001 - whatever it is, it is the tracer's
        _log.exception("a tracer failed")
        return otherwise
