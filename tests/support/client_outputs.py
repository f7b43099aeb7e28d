"""What a client's session has put out, sorted: for tests in virtual time."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pytest

from bstar.errors import BstarError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Event
from bstar_client.core.outputs import Announce, Deliver, DeliverAll, Fail, Output, Reset, Send


class _Waiting(Protocol):
    def next_deadline(self) -> float | None: ...


def timers(machine: _Waiting, now: float, until: float, count_max: int) -> Iterator[float]:
    """The moment of each timer up to ``until``, for a caller that carries it out."""
    for _ in range(count_max):
        due = machine.next_deadline()
        if due is None or due > until:
            return
        now = max(now, due)
        yield now
    pytest.fail("timers without end")


class _Timed(_Waiting, Protocol):
    def handle_timer(self, now: float) -> list[Output]: ...


class _Session(_Timed, Protocol):
    def connected(self, node: int, now: float) -> list[Output]: ...

    def disconnected(self, node: int, now: float) -> list[Output]: ...

    def receive(self, node: int, frames: list[bytes], now: float) -> list[Output]: ...


class Clock:
    """Lets a session's time pass."""

    session: _Timed
    now: float
    errors: list[tuple[Call, BstarError]]

    def take(self, outputs: list[Output]) -> None:
        """Sort these."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Let time pass, carrying out every timer at its moment."""
        until = self.now + seconds
        for now in timers(self.session, self.now, until, 10_000):
            self.now = now
            self.take(self.session.handle_timer(now))
        self.now = until

    def error_of(self, call: Call) -> BstarError:
        """Why the call failed, once."""
        [error] = [error for failed, error in self.errors if failed is call]
        return error


class ClientOutputs:
    """Every output so far, each kind in its order."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.resets: list[int] = []
        self.replies: list[tuple[Call, Reply]] = []
        self.errors: list[tuple[Call, BstarError]] = []
        self.events: list[Event] = []

    def take(self, outputs: Sequence[Output]) -> None:
        """Sort these."""
        for output in outputs:
            if isinstance(output, Send):
                self.sent.append((output.node, output.frames))
            elif isinstance(output, Reset):
                self.resets.append(output.node)
            elif isinstance(output, Deliver):
                self.replies.append((output.call, output.reply))
            elif isinstance(output, DeliverAll):
                self.replies += output.outcomes
            elif isinstance(output, Fail):
                self.errors.append((output.call, output.error))
            elif isinstance(output, Announce):
                self.events.append(output.event)


class SessionDesk(ClientOutputs, Clock):
    """With the outputs, what makes them: connections, messages and time."""

    session: _Session

    def connect(self, *nodes: int) -> None:
        for node in nodes:
            self.take(self.session.connected(node, self.now))

    def disconnect(self, *nodes: int) -> None:
        for node in nodes:
            self.take(self.session.disconnected(node, self.now))

    def hear(self, node: int, *frames: bytes) -> None:
        self.take(self.session.receive(node, list(frames), self.now))
