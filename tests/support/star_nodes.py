"""Binary Star nodes on the loopback interface, each with its loop in a thread of its own, and scripted peers.

A node is a BinaryStar as users have it, around a machine that rings a bell after everything it does, so
that tests wait for what happens and not for a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from bstar.errors import PairError
from bstar.net.reactor import Reactor
from bstar.pair.binary_star import BinaryStar
from bstar.pair.epoch_file import EpochFile
from bstar.star import Input, Output, Role, StarMachine, StarSettings, State
from bstar.wire.peer import TOPICS_HEARD
from bstar_testing import LoopbackHost
from support.waiting import LIMIT_S, Bell, Socket, receive, receive_until

# Long enough that a busy machine does not stall a node for it.
HEARTBEAT_S = 0.1
TIMEOUT_S = 1.0


class Places:
    """Where the two nodes of a pair are to be found; the ports stay ours while it is open."""

    def __init__(self) -> None:
        self._host = LoopbackHost()
        primary, backup, primary_clients, backup_clients = (
            f"tcp://127.0.0.1:{number}" for number in self._host.ports(4)
        )
        self.state = {Role.PRIMARY: primary, Role.BACKUP: backup}
        self.clients = {Role.PRIMARY: primary_clients, Role.BACKUP: backup_clients}

    def close(self) -> None:
        self._host.close()


class BellMachine(StarMachine):
    """A StarMachine that keeps its outputs and rings after each call."""

    def __init__(self, settings: StarSettings, *, node: str, epoch: int, now: float, bell: Bell) -> None:
        super().__init__(settings, node=node, epoch=epoch, now=now)
        self.bell = bell
        self.outputs: list[Output] = []

    def step(self, given: Input, now: float) -> list[Output]:
        with self.bell.ringing():
            outputs = super().step(given, now)
            self.outputs += outputs
        return outputs


def _echo(socket: Socket, frames: list[bytes]) -> None:
    socket.send_multipart(frames)


class RunningNode:
    """One node that echoes what it is asked. ``with`` it: its thread ends with the block."""

    def __init__(self, places: Places, role: Role, *, state_dir: Path | None = None, **settings: Any) -> None:
        self.bell = Bell()
        self.events: list[str] = []
        self.error: PairError | None = None
        self.is_ended = False
        fields: dict[str, Any] = {
            "pair": "test",
            "heartbeat_interval_s": HEARTBEAT_S,
            "failover_timeout_s": TIMEOUT_S,
        } | settings
        self.reactor = Reactor()
        self.machine = BellMachine(
            StarSettings(role=role, **fields),
            node=os.urandom(8).hex(),
            epoch=EpochFile(state_dir).load() if state_dir is not None else 0,
            now=self.reactor.now(),
            bell=self.bell,
        )
        self.star = BinaryStar(
            role,
            local=places.state[role],
            remote=places.state[role.peer],
            state_dir=state_dir,
            reactor=self.reactor,
            machine=self.machine,
            **{key: fields[key] for key in ("pair", "heartbeat_interval_s", "failover_timeout_s")},
        )
        self.star.voter(places.clients[role], zmq.ROUTER, _echo)
        self.star.on_active(lambda: self._note("active"))
        self.star.on_passive(lambda: self._note("passive"))
        self._thread = threading.Thread(target=self._run, name=f"node-{role.value}")

    def _note(self, event: str) -> None:
        with self.bell.ringing():
            self.events.append(event)

    def _run(self) -> None:
        try:
            self.star.start()
        except PairError as error:
            self.error = error
        finally:
            # In its own thread, as everything of its sockets.
            self.star.close()
            self.reactor.close()
            with self.bell.ringing():
                self.is_ended = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_until(self, question: Callable[[StarMachine], object]) -> None:
        self.bell.wait_until(lambda: question(self.machine))

    def wait_for(self, state: State) -> None:
        self.wait_until(lambda machine: machine.state is state)

    def wait_for_events(self, *events: str) -> None:
        """Until the server was told of exactly these changes."""
        self.bell.wait_until(lambda: self.events == list(events))

    def wait_for_words(self, count: int) -> None:
        """Until the node has read this many messages of its peer."""
        self.wait_until(lambda machine: machine.counters.peer_messages >= count)

    def wait_for_end(self) -> None:
        self.bell.wait_until(lambda: self.is_ended)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def kill(self) -> None:
        """End without a word to the peer."""
        if not self.is_ended:
            self.reactor.call_threadsafe(self.reactor.end)
        self.wait_for_end()

    def stop(self) -> None:
        """End in good order."""
        self.reactor.stop()
        self.wait_for_end()


class ScriptedPeer:
    """A published Binary Star server by hand: its PUB (an XPUB, to see who subscribes) and its SUB.

    It reads a state frame by frame, as the published servers do, and fails on a second frame.
    """

    def __init__(self, context: zmq.Context[Socket], *, binds: str, connects: str) -> None:
        self._publisher = context.socket(zmq.XPUB)
        self._subscriber = context.socket(zmq.SUB)
        for socket in (self._publisher, self._subscriber):
            socket.linger = 0
        self._publisher.bind(binds)
        self._subscriber.subscribe(b"")
        self._subscriber.connect(connects)

    @classmethod
    def at(cls, context: zmq.Context[Socket], places: Places, role: Role) -> Self:
        """In the place of the node of this role."""
        return cls(context, binds=places.state[role], connects=places.state[role.peer])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._publisher.close()
        self._subscriber.close()

    def wait_for_subscriber(self) -> None:
        for topic in sorted(TOPICS_HEARD):
            assert receive(self._publisher) == [b"\x01" + topic]

    def says(self, *frames: bytes) -> None:
        self._publisher.send_multipart(frames)

    def hears(self, code: bytes) -> None:
        """Wait until the node says this state code."""
        receive_until(self._subscriber, lambda frames: self._read(frames) == code)

    def next_codes(self, count: int) -> Iterator[bytes]:
        """What the node says in its next messages."""
        for _ in range(count):
            yield self._read(receive(self._subscriber))

    @staticmethod
    def _read(frames: list[bytes]) -> bytes:
        [code] = frames
        return code
