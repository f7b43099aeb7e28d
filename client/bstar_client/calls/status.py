"""Asks every node of a pair for what it knows (``mmi.state``, ``mmi.descriptions``), active or not.

Such a request is never a vote, so it changes nothing.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import zmq

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import RemoteProtocolError
from bstar.fleet import Fleet
from bstar.security import Security
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar.wire.mmi import OK, Service
from bstar_client.arguments.checks import to_seconds
from bstar_client.arguments.settings import LinkSettings
from bstar_client.core.nodes import UNTRUSTED
from bstar_client.links.links import Links

# No slow connection is given up before the caller's own timeout.
_SPARE_MS = 1_000
_UNCONNECTED = "no connection in time"
# A node is silent to a key that its list lacks, for libzmq's clients stop for good at a refusal.
_NO_HANDSHAKE = (
    "connected, but no handshake in time: the node may not list this key, or is not running (stopped, busy)"
)


class NodeReport(msgspec.Struct, frozen=True):
    """One node's answer: ``state`` is its JSON object. If it is None, ``error`` says why."""

    endpoint: str
    state: dict[str, object] | None
    error: str | None
    is_denied: bool = False
    """Something answers there, and does not let this key in, or has another key than those that we trust."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """The body of one node's answer. If it is None, ``error`` says why."""

    endpoint: str
    body: list[bytes] | None
    error: str | None = None
    is_denied: bool = False
    may_have_run: bool = False
    """It was asked, and what it made of that is not known."""


def node_states(
    endpoints: str | Sequence[str], timeout: float = 2.0, security: Security | None = None
) -> list[NodeReport]:
    """Ask every node for its state; one report per endpoint, in their order, within ``timeout`` seconds.

    It returns as soon as every node has answered or refused the connection. A slow node has the whole time.
    Where none answers, it looks what is there, for half a second more at most.
    The key of ``security`` has to be an operator's.
    """
    return [_state_of(answer) for answer in ask_nodes(endpoints, Service.STATE.value, timeout, security)]


def ask_nodes(
    endpoints: str | Sequence[str],
    service: bytes,
    timeout: float,
    security: Security | None = None,
    *,
    body: bytes = b"",
    is_enough: Callable[[list[bytes]], bool] = lambda body: False,
) -> list[NodeAnswer]:
    """The same for any question that a node answers in every state; after one ``is_enough`` no other is
    waited for.
    """
    timeout = to_seconds(timeout, "timeout")
    listed = Fleet.of(endpoints).endpoints
    identity = native.identity(os.urandom(16), 1)
    question = native.encode_request(identity, service, [body])
    patience_ms = int(timeout * 1000) + _SPARE_MS
    settings = LinkSettings(handshake_ms=patience_ms, connect_timeout_ms=patience_ms, security=security)
    links = Links(listed, settings, None, warns=False)
    try:
        return _ask(
            links, listed, question, time.monotonic() + timeout, is_enough, has_keys=security is not None
        )
    finally:
        links.end()


def _ask(
    links: Links,
    endpoints: Sequence[str],
    question: list[bytes],
    until: float,
    is_enough: Callable[[list[bytes]], bool],
    *,
    has_keys: bool,
) -> list[NodeAnswer]:
    identity = native.decode(question).identity
    answers: dict[int, NodeAnswer] = {}
    errors = [_UNCONNECTED] * len(endpoints)
    for index, endpoint in enumerate(endpoints):
        try:
            links.open(index)
        except zmq.ZMQError as error:
            answers[index] = NodeAnswer(endpoint, None, f"cannot connect: {error}")
    # A refused connection is an answer: the node is down.
    down: set[int] = set()
    asked: set[int] = set()
    while len(down | answers.keys()) < len(endpoints) and (remaining_s := until - time.monotonic()) > 0:
        for index, frames in links.poll(int(remaining_s * 1000) + 1):
            answer = _read(endpoints[index], frames, identity)
            if answer is not None:
                answers.setdefault(index, answer)
                if answer.body is not None and is_enough(answer.body):
                    return [answer]
        for index, is_up in links.changes():
            if is_up:
                links[index].send(question)
                asked.add(index)
                down.discard(index)
                errors[index] = "connected, but no answer in time"
            elif links[index].is_untrusted:
                down.add(index)
                errors[index] = UNTRUSTED
            elif links[index].is_refused:
                down.add(index)
                errors[index] = "connection refused"
            else:
                errors[index] = "the connection broke before there was an answer"
    errors = [
        _NO_HANDSHAKE if error == _UNCONNECTED and links[index].is_reached else error
        for index, error in enumerate(errors)
    ]
    lacks = {index: error for index, error in enumerate(errors) if index not in answers}
    for index, answer in _explained(endpoints, lacks, has_keys=has_keys):
        answers[index] = msgspec.structs.replace(answer, may_have_run=index in asked)
    return [answers[index] for index in range(len(endpoints))]


def _explained(
    endpoints: Sequence[str], lacks: dict[int, str], *, has_keys: bool
) -> Iterator[tuple[int, NodeAnswer]]:
    """The errors of the nodes that did not answer: what is at their endpoints, if that is known."""
    if lacks:
        from bstar_client.links.endpoint_probe import look  # noqa: PLC0415 - only where something is wrong

        found = look([endpoints[index] for index in lacks], has_keys=has_keys)
        for index, lack in lacks.items():
            endpoint = endpoints[index]
            yield index, NodeAnswer(endpoint, None, found[endpoint] or lack, is_denied=lack == UNTRUSTED)


def _read(endpoint: str, frames: list[bytes], identity: bytes) -> NodeAnswer | None:
    try:
        message = native.decode(frames)
    except RemoteProtocolError as error:
        return NodeAnswer(endpoint, None, f"not a bstar node: {error.text}")
    if message.identity != identity:
        return None
    if message.command in (native.ERROR, native.BUSY):
        code = message.value if message.command == native.ERROR else None
        return NodeAnswer(
            endpoint,
            None,
            message.body[0].decode("utf-8", "replace"),
            is_denied=code == ErrorCode.NOT_ALLOWED,
            may_have_run=code == ErrorCode.WORKER_LOST,
        )
    return NodeAnswer(endpoint, message.body if message.command == native.FINAL else [])


def _state_of(answer: NodeAnswer) -> NodeReport:
    endpoint, body = answer.endpoint, answer.body
    if body is None:
        return NodeReport(endpoint, None, answer.error, is_denied=answer.is_denied)
    if len(body) < 2 or body[0] != OK:
        return NodeReport(endpoint, None, "the node does not answer mmi.state")
    try:
        return NodeReport(endpoint, msgspec.json.decode(body[1], type=dict[str, object]), None)
    except UNDECODABLE as error:
        return NodeReport(endpoint, None, f"the answer to mmi.state cannot be read: {error}")
