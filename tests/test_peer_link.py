"""When the peer's process counts as gone, on real sockets: refusals, and everything that is none."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
import zmq

from bstar import Reactor
from bstar.base.endpoints import parse_endpoint
from bstar.pair.peer_link import PeerLink
from bstar.pair.refusal import RefusalProbe
from bstar.wire.peer import TOPIC
from support.waiting import LIMIT_S, Socket, receive_until

pytestmark = pytest.mark.loopback

LOCAL = "127.0.0.1"
# The last one that a link sends.
SUBSCRIPTION = b"\x01" + TOPIC


def turn_until(reactor: Reactor, question: Callable[[], object]) -> None:
    until = reactor.now() + LIMIT_S
    while not question():
        assert reactor.now() < until, f"not within {LIMIT_S:g} s"
        reactor.turn()


class Asking:
    """A probe, and what became of it. ``end`` comes when a later timer of the same loop has fired."""

    def __init__(self, endpoint: str) -> None:
        self.reactor = Reactor()
        self.verdicts = 0
        self.probe = RefusalProbe(self.reactor, parse_endpoint(endpoint, bind=False), self._on_refused)

    def _on_refused(self, now: float) -> None:
        self.verdicts += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.probe.cancel()
        self.reactor.close()

    def ask(self) -> int:
        """The number of verdicts when the probe is over."""
        over: list[float] = []
        now = self.reactor.now()
        self.probe.start(now)
        self.reactor.call_at(now + 0.25, over.append)
        turn_until(self.reactor, lambda: over)
        return self.verdicts


@contextmanager
def bound(
    family: int = socket.AF_INET, address: tuple[str, int] | str = (LOCAL, 0)
) -> Iterator[socket.socket]:
    """A socket that has an address and does not listen."""
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.bind(address)
        yield holder


def endpoint_of(holder: socket.socket, host: str = LOCAL) -> str:
    return f"tcp://{host}:{holder.getsockname()[1]}"


def test_a_port_on_which_nobody_listens_refuses() -> None:
    with bound() as holder, Asking(endpoint_of(holder)) as asking:
        assert asking.ask() == 1


def test_every_start_asks_anew() -> None:
    with bound() as holder, Asking(endpoint_of(holder)) as asking:
        assert [asking.ask(), asking.ask()] == [1, 2]


def test_who_listens_does_not_refuse() -> None:
    with bound() as holder, Asking(endpoint_of(holder)) as asking:
        holder.listen()
        assert asking.ask() == 0


def test_who_listens_and_greets_does_not_refuse() -> None:
    """A ZeroMQ socket speaks first."""
    with bound() as holder, Asking(endpoint_of(holder)) as asking, zmq.Context() as context:
        del holder
        with context.socket(zmq.PUB) as publisher:
            port = publisher.bind_to_random_port(f"tcp://{LOCAL}")
            with Asking(f"tcp://{LOCAL}:{port}") as other:
                assert other.ask() == 0
        assert asking.verdicts == 0


def test_who_lets_nobody_in_does_not_refuse() -> None:
    """A full backlog: the kernel drops what comes, as a cut network would."""
    with bound() as holder, ExitStack() as stack, Asking(endpoint_of(holder)) as asking:
        holder.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(holder.getsockname())
        assert asking.ask() == 0


def test_who_dies_while_it_is_asked_refuses() -> None:
    """The first attempt is let in by a process that is about to close its socket."""
    with bound() as holder, Asking(endpoint_of(holder)) as asking:
        holder.listen()
        closed_at = asking.reactor.now() + 0.01
        # Closed by the loop itself, between two attempts.
        asking.reactor.call_at(closed_at, lambda now: holder.close())
        assert asking.ask() == 1


def test_a_cancelled_probe_says_nothing() -> None:
    with bound() as holder, Asking(endpoint_of(holder)) as asking:
        holder.listen()
        asking.probe.start(asking.reactor.now())
        asking.probe.cancel()
        holder.close()
        over: list[float] = []
        asking.reactor.call_at(asking.reactor.now() + 0.25, over.append)
        turn_until(asking.reactor, lambda: over)
        assert asking.verdicts == 0


def test_a_path_that_its_process_left_behind_refuses(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    with bound(socket.AF_UNIX, path) as holder, Asking(f"ipc://{path}") as asking:
        holder.listen()
        assert asking.ask() == 0
        holder.close()
        assert asking.ask() == 1


def test_a_path_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    """Somebody may have tidied up below a process that lives."""
    with Asking(f"ipc://{tmp_path}/state") as asking:
        assert asking.ask() == 0


# --- names ------------------------------------------------------------------------------------------------


def resolver(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> threading.Event:
    """The look-up of any name gives these addresses, once the event is set."""
    may_answer = threading.Event()

    def look_up(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        assert host == "peer.example"
        assert may_answer.wait(LIMIT_S)
        if not addresses:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return may_answer


def test_a_name_is_looked_up_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer = resolver(monkeypatch, [LOCAL])
    with bound() as holder, Asking(endpoint_of(holder, "peer.example")) as asking:
        asking.probe.prepare()
        assert asking.ask() == 0, "the loop turned although the name server did not answer"
        may_answer.set()
        turn_until(asking.reactor, lambda: asking.probe._targets)
        assert asking.ask() == 1


def test_of_a_name_with_several_addresses_all_must_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer listens on one of them only; that the others refuse is nothing new."""
    resolver(monkeypatch, [LOCAL, "127.0.0.2"]).set()
    with bound() as holder, Asking(endpoint_of(holder, "peer.example")) as asking:
        holder.listen()
        asking.probe.prepare()
        turn_until(asking.reactor, lambda: asking.probe._targets)
        assert asking.ask() == 0
        holder.close()
        assert asking.ask() == 1


def test_a_name_that_is_gone_keeps_the_address_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [LOCAL]
    resolver(monkeypatch, addresses).set()
    with bound() as holder, Asking(endpoint_of(holder, "peer.example")) as asking:
        asking.probe.prepare()
        turn_until(asking.reactor, lambda: asking.probe._targets)
        addresses.clear()
        asking.probe.prepare()
        turn_until(asking.reactor, lambda: not asking.probe._is_looking_up)
        assert asking.ask() == 1


# --- the link ---------------------------------------------------------------------------------------------


class Listening:
    """A PeerLink in its loop, and what it told, in order."""

    def __init__(self, context: zmq.Context[Socket], remote: str, *, expire_on_refused: bool = True) -> None:
        self.reactor = Reactor()
        self.told: list[str] = []
        self.link = PeerLink(
            context,
            self.reactor,
            remote,
            heartbeat_ms=20,
            timeout_ms=60_000,
            expire_on_refused=expire_on_refused,
            on_messages=self._on_messages,
            on_lost=lambda now: self.told.append("lost"),
            on_refused=lambda now: self.told.append("refused"),
        )

    def _on_messages(self, messages: Iterator[list[bytes]], now: float) -> None:
        self.told += [frames[1].decode() for frames in messages]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self.reactor.close()

    def wait_for(self, *told: str) -> None:
        turn_until(self.reactor, lambda: self.told == list(told))

    def turn_for(self, seconds: float) -> None:
        over: list[float] = []
        self.reactor.call_at(self.reactor.now() + seconds, over.append)
        turn_until(self.reactor, lambda: over)


@contextmanager
def publisher(context: zmq.Context[Socket], endpoint: str) -> Iterator[Socket]:
    with context.socket(zmq.XPUB) as socket_:
        socket_.linger = 0
        socket_.bind(endpoint)
        yield socket_


def hears(link: Listening, peer: Socket, word: str) -> None:
    """The link connects and hears this from its peer."""
    before = list(link.told)

    def is_subscribed() -> bool:
        while peer.poll(0):
            if peer.recv_multipart() == [SUBSCRIPTION]:
                return True
        return False

    # A connection that broke is subscribed anew by the socket's own thread, which has to turn for it.
    looks = link.reactor.add_timer(0.01, lambda now: None)
    turn_until(link.reactor, is_subscribed)
    looks.cancel()
    peer.send_multipart([TOPIC, word.encode()])
    link.wait_for(*before, word)


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture(params=["tcp", "ipc"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the peer publishes: an endpoint that is ours for the length of the test."""
    if request.param == "ipc":
        yield f"ipc://{tmp_path}/state"
    else:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOCAL, 0))
            yield endpoint_of(holder)


_PUBLISH = """
import sys, zmq
with zmq.Context() as context, context.socket(zmq.PUB) as socket:
    socket.bind(sys.argv[1])
    while True:
        socket.send_multipart([b"BSTP", b"alive"])
        socket.poll(10)
"""


@contextmanager
def other_process(endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that publishes one word over and over."""
    with subprocess.Popen((sys.executable, "-c", _PUBLISH, endpoint)) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_peer_is_lost_and_refuses(context: zmq.Context[Socket], place: str) -> None:
    with other_process(place) as peer, Listening(context, place) as link:
        turn_until(link.reactor, lambda: link.told)
        peer.kill()
        turn_until(link.reactor, lambda: "refused" in link.told)
        assert [word for word in link.told if word != "alive"] == ["lost", "refused"]


def test_without_the_option_nobody_asks(context: zmq.Context[Socket], place: str) -> None:
    with other_process(place) as peer, Listening(context, place, expire_on_refused=False) as link:
        turn_until(link.reactor, lambda: link.told)
        peer.kill()
        link.turn_for(0.3)
        assert set(link.told) == {"alive"}


def test_a_peer_that_never_was_there_is_not_missed(context: zmq.Context[Socket], place: str) -> None:
    with Listening(context, place) as link:
        link.turn_for(0.3)
        assert link.told == []


def test_a_connection_on_which_nothing_was_heard_is_not_missed(
    context: zmq.Context[Socket], place: str
) -> None:
    with Listening(context, place) as link:
        with publisher(context, place) as peer:
            receive_until(peer, lambda frames: frames == [SUBSCRIPTION])
        link.turn_for(0.3)
        assert link.told == []


class Forwarder:
    """A proxy between the link and its peer: forwards, until it is told what else to do."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server((LOCAL, 0))
        self.endpoint = endpoint_of(self._listener)
        self._sockets: list[socket.socket] = []
        self._is_forwarding = True
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_forwarding = False
        with socket.create_connection(self._listener.getsockname()):
            self._thread.join(LIMIT_S)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self._sockets.append(connection)
            if not self._is_forwarding:
                return
            ahead = socket.create_connection((LOCAL, self._to_port))
            self._sockets.append(ahead)
            for source, sink in ((connection, ahead), (ahead, connection)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while octets := source.recv(4096):
                if self._is_forwarding:
                    sink.sendall(octets)
        except OSError:
            return  # the connection was cut

    def swallow(self) -> None:
        """Take everything, pass nothing on, and connect nobody any more."""
        self._is_forwarding = False

    def cut(self) -> None:
        """Break every connection; the listener goes on letting people in."""
        while self._sockets:
            connection = self._sockets.pop()
            with suppress(OSError):  # broken by the other side already
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def test_a_proxy_that_swallows_everything_does_not_refuse(context: zmq.Context[Socket]) -> None:
    with context.socket(zmq.XPUB) as peer:
        port = peer.bind_to_random_port(f"tcp://{LOCAL}")
        with Forwarder(port) as proxy, Listening(context, proxy.endpoint) as link:
            hears(link, peer, "hello")
            proxy.swallow()
            link.turn_for(0.3)
            assert link.told == ["hello"]
            proxy.cut()
            link.wait_for("hello", "lost")
            link.turn_for(0.3)
            assert link.told == ["hello", "lost"]


def test_a_peer_that_hangs_up_and_lives_is_lost_but_not_gone(context: zmq.Context[Socket]) -> None:
    with context.socket(zmq.XPUB) as peer:
        port = peer.bind_to_random_port(f"tcp://{LOCAL}")
        with Forwarder(port) as proxy, Listening(context, proxy.endpoint) as link:
            hears(link, peer, "hello")
            proxy.cut()
            link.wait_for("hello", "lost")
            hears(link, peer, "again")
            link.turn_for(0.3)
            assert link.told == ["hello", "lost", "again"]


def test_a_refusal_that_is_older_than_the_connection_proves_nothing(context: zmq.Context[Socket]) -> None:
    """The peer is back before the verdict on its predecessor is: only the connection's own news tells."""
    with context.socket(zmq.XPUB) as peer:
        port = peer.bind_to_random_port(f"tcp://{LOCAL}")
        with Forwarder(port) as proxy, Listening(context, proxy.endpoint) as link:
            hears(link, peer, "hello")
            proxy.cut()
            # The loop stands still meanwhile.
            news: list[list[bytes]] = []
            ends_at = time.monotonic() + LIMIT_S
            while [SUBSCRIPTION] not in news and time.monotonic() < ends_at:
                link.link._socket.get(zmq.EVENTS)  # the socket subscribes anew in its own thread
                if peer.poll(10):
                    news.append(peer.recv_multipart())
            assert [SUBSCRIPTION] in news
            link.link._on_verdict(link.reactor.now())
            assert link.told == ["hello", "lost"]
