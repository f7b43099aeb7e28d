"""An admin's questions to an EventMQ router: STATUS and its like, each with one JSON object as the answer."""

import time
from typing import Any

import zmq

from bstar.errors import CallTimeoutError, RemoteProtocolError
from bstar.security import Security
from bstar.wire import emq
from bstar.wire.emq_jobs import decode_report
from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.emq.sockets import Dealer, checked_endpoints, new_id

QUESTIONS: dict[str, type[emq.Status | emq.ShowWorkers | emq.ShowSchedulers]] = {
    "status": emq.Status,
    "workers": emq.ShowWorkers,
    "schedulers": emq.ShowSchedulers,
}


def ask_router(
    question: str, endpoint: str, *, timeout_s: float = 5.0, security: Security | None = None
) -> dict[str, Any]:
    """The answer of the router whose admin socket is at ``endpoint``; ``question`` is a key of QUESTIONS.

    PROTOCOLS.md 12.3 has the keys of the answer. CallTimeoutError without one; ConfigurationError.
    """
    (endpoint,) = checked_endpoints([endpoint], "endpoint")
    until = time.monotonic() + timeout_s
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with Dealer(
            context, endpoint, new_id(), security=security, message_bytes_max=MESSAGE_BYTES_MAX
        ) as dealer:
            dealer.send(emq.encode(emq.Hello(new_id())))
            dealer.send(emq.encode(QUESTIONS[question](new_id())))
            while (left_s := until - time.monotonic()) > 0:
                if dealer.socket.poll(int(left_s * 1_000) + 1) and (report := _report(dealer)) is not None:
                    return report
    finally:
        context.term()
    text = f"no answer from {endpoint} within {timeout_s:g} s: is it the admin socket of an EventMQ router?"
    raise CallTimeoutError(text, may_have_executed=False)


def _report(dealer: Dealer) -> dict[str, Any] | None:
    """The report in the next message, None if it has none."""
    try:
        message = emq.decode(dealer.receive() or [])
        return decode_report(message.about) if isinstance(message, emq.Reply) else None
    except RemoteProtocolError:
        return None
