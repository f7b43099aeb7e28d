"""The conversation of an EventMQ client with its routers. Pure: time is an input.

The client is connected to one router at a time, and sends nothing before it is connected: what no router got
was not executed. It goes to the next router when a connection cannot be made, breaks, or the router says
KBYE, as the passive node of a pair does.

What was sent and has no result then:

    the router said KBYE, and did not tell of a worker       sent to the next router
    ``guarantee`` in its headers                             sent to the next router, with the same msgid
    anything else                                            lost: it may have been executed

The REPLY that tells of a worker is no condition of success: the published router sends none for a request
that had to wait (EMQ-R-08).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq
from bstar_client.core.emq_manager import Close, Open, Send

# A request without a wish for its result is remembered so long, in case the router says KBYE.
_SETTLE_S: Final = 5.0


class CallSettings(msgspec.Struct, frozen=True):
    """``routers`` take turns. ``connect_s``: so long one attempt to connect may take. ``pause_s``: before
    the next one.
    """

    routers: tuple[str, ...]
    connect_s: float = 2.0
    pause_s: float = 0.1


class Pending(msgspec.Struct):
    """A message that is to reach a router by ``deadline``. ``wants_result``: it ends with its result."""

    msgid: bytes
    frames: list[bytes]
    deadline: float
    wants_result: bool = False
    is_guaranteed: bool = False
    sent_at: float | None = None
    is_dispatched: bool = False


class Sent(msgspec.Struct, frozen=True):
    """The message went to a connected router; nobody waits for its result."""

    msgid: bytes


class Result(msgspec.Struct, frozen=True):
    """The request's result, JSON."""

    msgid: bytes
    value: bytes


class Failed(msgspec.Struct, frozen=True):
    """There will be no result. ``was_sent``: it may have been executed. ``is_late``: its deadline passed."""

    msgid: bytes
    was_sent: bool
    is_late: bool


CallOutput = Open | Close | Send | Sent | Result | Failed


class EmqCalls:
    """All messages of one client. ``new_id`` makes identities: ASCII, no two alike (EMQ-R-01)."""

    def __init__(self, settings: CallSettings, new_id: Callable[[], bytes]) -> None:
        self.invalid = 0
        self.connections = 0
        self._settings = settings
        self._new_id = new_id
        self._pending: dict[bytes, Pending] = {}
        self._is_open = False
        self._is_connected = False
        # When an attempt to connect has failed, or when to make the next one.
        self._next_at: float | None = None

    @property
    def is_quiet(self) -> bool:
        """True if no message may have to go to another router, but for those that wait for results."""
        return all(each.wants_result for each in self._pending.values())

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` is due."""
        due = [self._ends_at(each) for each in self._pending.values()]
        if self._next_at is not None:
            due.append(self._next_at)
        return min(due, default=None)

    def start(self, now: float) -> list[CallOutput]:
        """Connect to the next router."""
        router = self._settings.routers[self.connections % len(self._settings.routers)]
        self.connections += 1
        self._is_open = True
        self._next_at = now + self._settings.connect_s
        return [Open(router, self._new_id())]

    def connected(self, now: float) -> list[CallOutput]:
        """The connection is there: send what waits for it."""
        if not self._is_open or self._is_connected:
            return []
        self._is_connected = True
        self._next_at = None
        unsent = [each for each in self._pending.values() if each.sent_at is None]
        return [output for each in unsent for output in self._send(each, now)]

    def submit(self, pending: Pending, now: float) -> list[CallOutput]:
        """Send it, now or when there is a connection."""
        self._pending[pending.msgid] = pending
        return self._send(pending, now) if self._is_connected else []

    def forget(self, msgid: bytes) -> None:
        """Nobody waits for it any more; if it was not sent, it will not be."""
        self._pending.pop(msgid, None)

    def lost(self, reason: str, now: float, *, is_farewell: bool = False) -> list[CallOutput]:
        """The connection is of no use any more: go to the next router."""
        if not self._is_open:
            return []
        self._is_open = self._is_connected = False
        self._next_at = now + self._settings.pause_s
        outputs: list[CallOutput] = [Close(reason)]
        for pending in list(self._pending.values()):
            if pending.sent_at is None:
                continue
            if pending.is_guaranteed or (is_farewell and not pending.is_dispatched):
                pending.sent_at = None
                pending.is_dispatched = False
            else:
                outputs += self._fail(pending, is_late=False)
        return outputs

    def receive(self, frames: Sequence[bytes], now: float) -> list[CallOutput]:
        """A message of the router. What cannot be read is counted, and nothing else happens."""
        try:
            message = emq.decode(frames)
        except RemoteProtocolError:
            self.invalid += 1
            return []
        match message:
            case emq.Goodbye():
                return self.lost("the router said KBYE", now, is_farewell=True)
            case emq.Reply(about=about, value=value):
                return self._answer(about, value)
            case emq.Heartbeat() | emq.Ack():
                pass
            case _:
                self.invalid += 1
        return []

    def handle_timer(self, now: float) -> list[CallOutput]:
        """Connect, give an attempt to connect up, or end what is late."""
        outputs: list[CallOutput] = []
        if self._next_at is not None and now >= self._next_at:
            outputs += self.lost("no connection in time", now) if self._is_open else self.start(now)
        for pending in list(self._pending.values()):
            if now >= self._ends_at(pending):
                outputs += self._fail(pending, is_late=True)
        return outputs

    # --- what the inputs share ----------------------------------------------------------------------------

    @staticmethod
    def _ends_at(pending: Pending) -> float:
        if pending.wants_result or pending.sent_at is None:
            return pending.deadline
        return pending.sent_at + _SETTLE_S

    def _send(self, pending: Pending, now: float) -> list[CallOutput]:
        pending.sent_at = now
        sent = Send(pending.frames)
        return [sent] if pending.wants_result else [sent, Sent(pending.msgid)]

    def _answer(self, about: bytes, value: bytes | None) -> list[CallOutput]:
        pending = self._pending.get(about)
        if pending is None:
            return []
        if value is not None:
            del self._pending[about]
            return [Result(about, value)]
        pending.is_dispatched = True
        if not pending.wants_result:
            del self._pending[about]
        return []

    def _fail(self, pending: Pending, *, is_late: bool) -> list[CallOutput]:
        del self._pending[pending.msgid]
        if pending.sent_at is not None and not pending.wants_result:
            return []
        return [Failed(pending.msgid, pending.sent_at is not None, is_late)]
