"""Watches what nodes do for the owner of each key, and lets rule (j) judge it (bstar_testing.rules)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bstar.wire import decode, mmi
from bstar.wire.batches import bodies_of
from bstar.wire.messages import Request, Requests
from bstar_broker.core import Dispatch, Send
from bstar_testing.rules import RightsHistory, Violation
from sim.dialects import read_body
from sim.network import Connection, Frames
from sim.node import SimNode

# A body of a client's call begins so; a reply has it, too.
_TOKEN = re.compile(rb"(client\d+)\.\d+")
# What an outsider makes begins so.
FORGED = re.compile(rb"forged by (\S+)")


def name_of(user_id: str) -> str:
    """The name in a user id."""
    return user_id.partition(" ")[0]


def is_outsider(user_id: str) -> bool:
    """True if it is an attacker's key, which is listed for another service."""
    return "outsider" in user_id


class Guard:
    """Of one pair. ``silent_successors`` counts messages to who claimed a routing id and was silent."""

    def __init__(self) -> None:
        self._history = RightsHistory()
        self._before = (0, False)
        self.silent_successors = 0

    # --- nodes --------------------------------------------------------------------------------------------

    def handles(self, node: SimNode, frames: Frames, user_id: str) -> None:
        """A node is about to handle a message of this key."""
        assert node.view is not None
        self._before = (node.node.machine.epochs.seen, node.node.is_active)
        message = decode(frames)
        if not isinstance(message, Request | Requests) or message.service.startswith(mmi.PREFIX):
            return
        bodies = bodies_of(message.blob, message.lengths) if isinstance(message, Requests) else message.body
        may_call = node.view.may_call(user_id, message.service)
        for body in bodies:
            self._history.asked(read_body(body)[0], may_call=may_call)

    def handled(self, node: SimNode, user_id: str) -> Iterator[Violation]:
        """It has handled it."""
        assert node.view is not None
        epoch, was_active = self._before
        may_claim = node.view.is_listed(user_id) and not is_outsider(user_id)
        machine = node.node.machine
        if machine.epochs.seen != epoch:
            what = f"took note of epoch {machine.epochs.seen}"
            yield from self._history.believed(what, by=node.name, of=name_of(user_id), may_claim=may_claim)
        if node.node.is_active and not was_active:
            yield from self._history.believed(
                "became active", by=node.name, of=name_of(user_id), may_claim=may_claim
            )

    def sent(self, node: SimNode, connection: Connection, message: Send) -> Iterator[Violation]:
        """A node puts a message into the pipe of a connection.

        A node learns whose a routing id is from the first message. So whoever claims the id of a connection
        that has just ended, and is silent, gets what is for the former owner (docs/security.md).
        """
        assert node.view is not None
        to = name_of(connection.user_id)
        if type(message) is Dispatch:
            worker = node.node.broker.ledger.workers.get(message.frames[0])
            # It may be lost by now: with the same list a node must not have given it anything.
            what = "a request"
            may_have = worker is not None and node.view.may_offer(connection.user_id, worker.service.name)
        else:
            owners = {found.decode() for frame in message.frames[1:] for found in _TOKEN.findall(frame)}
            what, may_have = "a reply", owners <= {to}
        if not may_have and connection.is_claimed and not connection.is_heard:
            self.silent_successors += 1
        else:
            yield from self._history.given(what, by=node.name, to=to, may_have=may_have)

    # --- workers and clients ------------------------------------------------------------------------------

    def begun(self, call: str, worker: str) -> Iterator[Violation]:
        """A worker begins to execute a call."""
        return self._history.begun(call, worker=worker)

    def answered(self, call: str, frames: tuple[bytes, ...]) -> Iterator[Violation]:
        """A client is handed this."""
        for frame in frames:
            for maker in FORGED.findall(frame):
                yield from self._history.answered(call, maker=maker.decode(), may_answer=False)
