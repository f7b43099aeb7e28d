"""Asks every node of a pair for its state (``mmi.state``), active or not.

Such a request is never a vote, so it changes nothing.
"""

import os
import time
from collections.abc import Iterator, Sequence

import msgspec
import zmq

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


def node_states(
    endpoints: str | Sequence[str], timeout: float = 2.0, security: Security | None = None
) -> list[NodeReport]:
    """Ask every node for its state; one report per endpoint, in their order, within ``timeout`` seconds.

    It returns as soon as every node has answered or refused the connection. A slow node has the whole time.
    Where none answers, it looks what is there, for half a second more at most.
    The key of ``security`` has to be an operator's.
    """
    timeout = to_seconds(timeout, "timeout")
    listed = Fleet.of(endpoints).endpoints
    patience_ms = int(timeout * 1000) + _SPARE_MS
    settings = LinkSettings(handshake_ms=patience_ms, connect_timeout_ms=patience_ms, security=security)
    links = Links(listed, settings, None)
    try:
        return _ask(links, listed, time.monotonic() + timeout, has_keys=security is not None)
    finally:
        links.end()


def _ask(links: Links, endpoints: Sequence[str], until: float, *, has_keys: bool) -> list[NodeReport]:
    identity = native.identity(os.urandom(16), 1)
    question = native.encode_request(identity, Service.STATE.value, [b""])
    reports: dict[int, NodeReport] = {}
    errors = [_UNCONNECTED] * len(endpoints)
    for index, endpoint in enumerate(endpoints):
        try:
            links.open(index)
        except zmq.ZMQError as error:
            reports[index] = NodeReport(endpoint, None, f"cannot connect: {error}")
    # A refused connection is an answer: the node is down.
    down: set[int] = set()
    while len(down | reports.keys()) < len(endpoints) and (remaining_s := until - time.monotonic()) > 0:
        for index, frames in links.poll(int(remaining_s * 1000) + 1):
            report = _read(endpoints[index], frames, identity)
            if report is not None:
                reports.setdefault(index, report)
        for index, is_up in links.changes():
            if is_up:
                links[index].send(question)
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
    for index in range(len(endpoints)):
        if errors[index] == _UNCONNECTED and links[index].is_reached:
            errors[index] = _NO_HANDSHAKE
    lacks = {index: error for index, error in enumerate(errors) if index not in reports}
    reports.update(_explained(endpoints, lacks, has_keys=has_keys))
    return [reports[index] for index in range(len(endpoints))]


def _explained(
    endpoints: Sequence[str], lacks: dict[int, str], *, has_keys: bool
) -> Iterator[tuple[int, NodeReport]]:
    """The reports of the nodes that did not answer: what is at their endpoints, if that is known."""
    if lacks:
        from bstar_client.links.endpoint_probe import look  # noqa: PLC0415 - only where something is wrong

        found = look([endpoints[index] for index in lacks], has_keys=has_keys)
        for index, lack in lacks.items():
            endpoint = endpoints[index]
            yield index, NodeReport(endpoint, None, found[endpoint] or lack, is_denied=lack == UNTRUSTED)


def _read(endpoint: str, frames: list[bytes], identity: bytes) -> NodeReport | None:
    try:
        message = native.decode(frames)
    except RemoteProtocolError as error:
        return NodeReport(endpoint, None, f"not a bstar node: {error.text}")
    if message.identity != identity:
        return None
    if message.command == native.ERROR and message.value == ErrorCode.NOT_ALLOWED:
        return NodeReport(endpoint, None, message.body[0].decode("utf-8", "replace"), is_denied=True)
    if message.command != native.FINAL or message.body[0] != OK or len(message.body) < 2:
        return NodeReport(endpoint, None, "the node does not answer mmi.state")
    try:
        return NodeReport(endpoint, msgspec.json.decode(message.body[1], type=dict[str, object]), None)
    except msgspec.DecodeError as error:
        return NodeReport(endpoint, None, f"the answer to mmi.state cannot be read: {error}")
