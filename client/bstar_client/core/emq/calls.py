"""The conversation of an EventMQ client with its routers. Pure: time is an input.

The client is connected to one router at a time, and sends nothing before it is connected: what no router got
was not executed. It goes to the next router when a connection cannot be made, breaks, or the router says
KBYE, as the passive node of a pair does. After the first KBYE it sends nothing more there, and listens for
``settle_s`` to what the router says of the rest: results, REPLYs, a KBYE for each message that it refuses.

What was sent and has no result then:

    a KBYE has its msgid                                     sent to the next router: it was not executed
    it may be executed twice (``is_repeatable``)             sent to the next router, with the same msgid
    anything else                                            unknown: it may have been executed

The REPLY that tells of a worker is no condition of success: the published router sends none for a request
that had to wait (EMQ-R-08).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import emq
from bstar_client.core.emq.manager import Close, Open, Send

# A request without a wish for its result is remembered so long, in case the router says KBYE.
_SETTLE_S: Final = 5.0


class CallSettings(msgspec.Struct, frozen=True):
    """``routers`` take turns. ``connect_s``: so long one attempt to connect may take. ``pause_s``: before
    the next one. ``settle_s``: so long it listens to a router that said KBYE.
    """

    routers: tuple[str, ...]
    connect_s: float = 2.0
    pause_s: float = 0.1
    settle_s: float = 1.0
    wire: emq.Wire = emq.Wire.PUBLISHED


class Pending(msgspec.Struct):
    """A message that is to reach a router by ``deadline``. ``wants_result``: it ends with its result.

    ``is_repeatable``: a second execution does no harm, or the router prevents it.
    """

    msgid: bytes
    frames: list[bytes]
    deadline: float
    wants_result: bool = False
    is_repeatable: bool = False
    sent_at: float | None = None


class Sent(msgspec.Struct, frozen=True):
    """The message went to a connected router; no caller waits for its result."""

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
        # The router has said KBYE.
        self._is_leaving = False
        # When an attempt to connect has failed, when to make the next one, or when to leave.
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

    @property
    def _may_send(self) -> bool:
        return self._is_connected and not self._is_leaving

    def submit(self, pending: Pending, now: float) -> list[CallOutput]:
        """Send it, now or when there is a connection."""
        self._pending[pending.msgid] = pending
        return self._send(pending, now) if self._may_send else []

    def forget(self, msgid: bytes) -> None:
        """No caller waits for it any more; if it was not sent, it will not be."""
        self._pending.pop(msgid, None)

    def lost(self, reason: str, now: float) -> list[CallOutput]:
        """The connection is of no use any more: go to the next router."""
        if not self._is_open:
            return []
        self._is_open = self._is_connected = self._is_leaving = False
        self._next_at = now + self._settings.pause_s
        outputs: list[CallOutput] = [Close(reason)]
        for pending in list(self._pending.values()):
            if pending.sent_at is None:
                continue
            if pending.is_repeatable:
                pending.sent_at = None
            else:
                outputs += self._fail(pending, is_late=False)
        return outputs

    def receive(self, frames: Sequence[bytes], now: float) -> list[CallOutput]:
        """A message of the router. What cannot be read is counted, and nothing else happens."""
        try:
            message = emq.decode(frames, wire=self._settings.wire)
        except RemoteProtocolError:
            self.invalid += 1
            return []
        match message:
            case emq.Goodbye(refused):
                return self._dismissed(refused, now)
            case emq.Disconnect():
                farewell = emq.encode(emq.Goodbye(self._new_id()), wire=self._settings.wire)
                return [Send(farewell), *self._dismissed(b"", now)]
            case emq.Reply(about=about, value=value):
                outputs = self._answer(about, value)
                return outputs + self._leave_if_settled(now)
            case emq.Heartbeat() | emq.Ack():
                pass
            case _:
                self.invalid += 1
        return []

    def handle_timer(self, now: float) -> list[CallOutput]:
        """Connect, give an attempt to connect up, or end what is late."""
        outputs: list[CallOutput] = []
        if self._next_at is not None and now >= self._next_at:
            reason = "the router said KBYE" if self._is_leaving else "no connection in time"
            outputs += self.lost(reason, now) if self._is_open else self.start(now)
        for pending in list(self._pending.values()):
            if now >= self._ends_at(pending):
                outputs += self._fail(pending, is_late=True)
        return outputs

    # --- what the inputs share ----------------------------------------------------------------------------

    def _dismissed(self, refused: bytes, now: float) -> list[CallOutput]:
        """KBYE: the router takes nothing more, and the message ``refused`` was not executed."""
        if not self._is_connected:
            return []
        pending = self._pending.get(refused)
        if pending is not None:
            pending.sent_at = None
        if not self._is_leaving:
            self._is_leaving = True
            self._next_at = now + self._settings.settle_s
        return self._leave_if_settled(now)

    def _leave_if_settled(self, now: float) -> list[CallOutput]:
        is_settled = all(each.sent_at is None for each in self._pending.values())
        return self.lost("the router said KBYE", now) if self._is_leaving and is_settled else []

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
        if self._settings.wire is emq.Wire.SPECIFICATION and value in self._pending:
            # Its one argument names the request: it is at a worker.
            about, value = value, None
        pending = self._pending.get(about)
        if pending is None:
            return []
        if value is not None:
            del self._pending[about]
            return [Result(about, value)]
        if not pending.wants_result:
            del self._pending[about]
        return []

    def _fail(self, pending: Pending, *, is_late: bool) -> list[CallOutput]:
        del self._pending[pending.msgid]
        if pending.sent_at is not None and not pending.wants_result:
            return []
        return [Failed(pending.msgid, pending.sent_at is not None, is_late)]
