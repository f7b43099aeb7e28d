"""A server without a broker: which frames it reads as which model, what it answers, and how it ends."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import ClosedError, ConfigurationError, NoActiveNodeError, RemoteProtocolError
from bstar.security import Security, ServerSecurity, new_key
from bstar.wire.brokerless import read_request
from bstar_client import Freelance, FreelanceServer, LazyPirateClient, Request, StarClient
from bstar_testing import LoopbackHost
from bstar_testing.processes import wait_until
from support.rawpeers import ZmtpPeer
from support.talking import Program
from support.waiting import LIMIT_S, receive

requirement = pytest.mark.requirement
loopback = pytest.mark.loopback

Socket = zmq.Socket[bytes]
MODELS: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)


def upper(request: Request) -> list[bytes]:
    return [frame.upper() for frame in request.frames]


@pytest.fixture
def place() -> Iterator[str]:
    with LoopbackHost() as host:
        yield f"tcp://127.0.0.1:{host.ports(1)[0]}"


@pytest.fixture
def server(place: str) -> Iterator[FreelanceServer]:
    with FreelanceServer(upper, place) as server:
        yield server


class Peers:
    """Sockets of one test."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self._endpoint = endpoint
        self._sockets: list[Socket] = []

    def new(self, kind: int, *, rcvhwm: int = 1_000) -> Socket:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = rcvhwm
        socket.connect(self._endpoint)
        self._sockets.append(socket)
        return socket

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(0)
        self.context.term()


@pytest.fixture
def peers(server: FreelanceServer) -> Iterator[Peers]:
    peers = Peers(server.endpoint)
    yield peers
    peers.close()


# --- frames -------------------------------------------------------------------------------------------------

FRAMES = [
    # the frames of a request, the models, what stands before the reply, the body
    ([b"PING"], (1, 2, 3), [b"PONG"], []),
    ([b"PING", b"x"], (1, 2, 3), [b"PING"], [b"x"]),
    ([b"", b"x"], (1, 2, 3), [b""], [b"x"]),
    ([b"", b"PING"], (1, 2, 3), [b""], [b"PING"]),
    ([b"", b"7", b"x"], (1, 2, 3), [b"", b"7"], [b"x"]),
    ([b"", b"7", b"x", b""], (2,), [b"", b"7"], [b"x", b""]),
    ([b"", b"7", b"x"], (1, 3), [b""], [b"7", b"x"]),
    ([b"", b"7", b"x"], (1,), [b""], [b"7", b"x"]),
    ([b"", b"7", b"x"], (3,), [b""], [b"7", b"x"]),
    ([b"7", b"x"], (1, 2, 3), [b"7"], [b"x"]),
    ([b"7", b"", b"x"], (3,), [b"7"], [b"", b"x"]),
]


@requirement("FLP-R-01")
@pytest.mark.parametrize(("frames", "models", "lead", "body"), FRAMES)
def test_the_models_are_told_apart_by_their_frames(
    frames: list[bytes], models: tuple[int, ...], lead: list[bytes], body: list[bytes]
) -> None:
    """FLP-R-01: PING is a ping only where it stands alone."""
    assert read_request(frames, models) == (lead, body)


@pytest.mark.parametrize(
    ("frames", "models"),
    [
        ([], (1, 2, 3)),
        ([b"x"], (1, 2, 3)),
        ([b""], (1, 2, 3)),
        ([b"PONG"], (1, 2, 3)),
        ([b"PING"], (1, 2)),
        ([b"7", b"x"], (1, 2)),
        ([b"", b"x"], (2,)),
        ([b"x"] * 70_000, (3,)),
    ],
)
def test_what_is_no_request_is_a_remote_error(frames: list[bytes], models: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        read_request(frames, models)


@given(
    frames=st.lists(st.sampled_from([b"", b"PING", b"PONG", b"1"]) | st.binary(max_size=9), max_size=6),
    models=st.sets(st.sampled_from([1, 2, 3]), min_size=1),
)
def test_what_is_read_loses_no_frame_and_raises_nothing_else(frames: list[bytes], models: set[int]) -> None:
    try:
        lead, body = read_request(frames, models)
    except RemoteProtocolError:
        return
    assert [*lead, *body] == (frames if body else [b"PONG"])


# --- a server -----------------------------------------------------------------------------------------------


@loopback
@requirement("FL2-S-01")
@requirement("FL2-R-01")
@requirement("FLP-S-02")
@requirement("FLP-S-03")
@pytest.mark.parametrize("control", [b"", b"x", bytes(range(256)) + b"PING" * 11])
def test_control_frames_and_sequences_come_back_octet_for_octet(
    server: FreelanceServer, peers: Peers, control: bytes
) -> None:
    """FLP-S-02, FLP-S-03 (control frames of 0, 1 and 300 bytes), FL2-S-01, FL2-R-01."""
    raw = peers.new(zmq.DEALER)
    raw.send_multipart([control, b"body"])
    assert receive(raw) == [control, b"BODY"]
    raw.send(b"PING")
    assert receive(raw) == [b"PONG"]
    raw.send_multipart([b"", control, b"a", b"b"])
    assert receive(raw) == [b"", control, b"A", b"B"]
    if control:
        raw.send_multipart([control, b"a", b"", b"b"])
        assert receive(raw) == [control, b"A", b"", b"B"]


@loopback
@requirement("FLP-G-01")
@requirement("FLP-S-01")
@requirement("FLP-S-04")
def test_the_server_is_a_router_whose_identity_is_its_endpoint_and_it_never_speaks_first(
    server: FreelanceServer, place: str
) -> None:
    """FLP-G-01, FLP-S-01, FLP-S-04: the client writes every byte itself."""
    peer = ZmtpPeer("127.0.0.1", int(place.rsplit(":", 1)[1]))
    try:
        peer.handshake()
        assert peer.properties[b"Socket-Type"] == b"ROUTER"
        assert peer.properties[b"Identity"] == place.encode()
        peer.send(b"PING")
        assert peer.recv() == [b"PONG"]  # the first word on this connection is the answer
    finally:
        peer.close()
    assert server.counters.pings == 1


def is_sent(router: Socket, frames: list[bytes]) -> bool:
    """A mandatory ROUTER refuses a message until it knows the other side."""
    try:
        router.send_multipart(frames)
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


@loopback
def test_req_dealer_and_router_clients_are_served_side_by_side(server: FreelanceServer, peers: Peers) -> None:
    req, router = peers.new(zmq.REQ), peers.new(zmq.ROUTER)
    router.router_mandatory = True
    req.send(b"req")
    assert receive(req) == [b"REQ"]
    wait_until(lambda: is_sent(router, [server.endpoint.encode(), b"9", b"router"]), "the handshake")
    assert receive(router) == [server.endpoint.encode(), b"9", b"ROUTER"]


@loopback
@requirement("LPP-S-01")
@requirement("FLP-R-02")
def test_a_request_that_comes_again_is_answered_again(server: FreelanceServer, peers: Peers) -> None:
    """LPP-S-01, FLP-R-02."""
    raw = peers.new(zmq.DEALER)
    for _ in range(3):
        raw.send_multipart([b"7", b"same"])
    for _ in range(3):
        assert receive(raw) == [b"7", b"SAME"]


@loopback
def test_our_clients_of_every_kind_are_served(server: FreelanceServer, place: str) -> None:
    clients: list[LazyPirateClient | StarClient | Freelance] = [
        LazyPirateClient(place, timeout=LIMIT_S),
        StarClient([place], timeout=LIMIT_S),
        Freelance([place], model=1, timeout=LIMIT_S),
        Freelance([place], model=2, timeout=LIMIT_S),
        Freelance([place], model=3, timeout=LIMIT_S),
    ]
    for client in clients:
        with client:
            assert [reply.body for reply in client.map([b"a", b"b", b"c"])] == [b"A", b"B", b"C"]


@loopback
@requirement("FLP-S-02")
def test_a_slow_handler_keeps_no_ping_waiting(place: str) -> None:
    """FLP-S-02."""
    is_over = threading.Event()

    def slow(request: Request) -> bytes:
        is_over.wait(LIMIT_S)
        return b"done"

    with FreelanceServer(slow, place) as server:
        peers = Peers(server.endpoint)
        raw = peers.new(zmq.DEALER)
        raw.send_multipart([b"1", b"x"])
        raw.send(b"PING")
        assert receive(raw) == [b"PONG"]
        is_over.set()
        assert receive(raw) == [b"1", b"done"]
        peers.close()


@loopback
def test_a_handler_that_fails_is_answered_with_500_and_its_text(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Request) -> bytes:
        if request.body == b"exit":
            sys.exit("no more")
        if request.body == b"wrong":
            return "text"  # type: ignore[return-value]  # what a handler may do
        raise LookupError("no such thing")

    with FreelanceServer(fail, place) as server, Freelance([place], timeout=LIMIT_S) as client:
        assert client.request(b"x").frames == (b"500", b"LookupError: no such thing")
        assert client.request(b"exit").frames == (b"500", b"SystemExit: no more")
        assert client.request(b"wrong").frames[0] == b"500"
        assert server.counters.failures == 3
    assert "no such thing" in caplog.text


@loopback
def test_a_hundred_thousand_fuzzed_messages_do_not_end_it_and_are_counted_by_reason(place: str) -> None:
    dice = random.Random(20_260_722)
    words = [b"", b"PING", b"PONG", b"1", b"\x00" * 5, b"\xff" * 300, b"REQUEST"]
    with FreelanceServer(upper, place, threads=2) as server:
        peers = Peers(server.endpoint)
        # No answer is dropped at the client, so the last one arrives.
        raws = [peers.new(zmq.DEALER, rcvhwm=0) for _ in range(4)]
        for _ in range(100_000):
            raw = dice.choice(raws)
            raw.send_multipart(dice.choices(words, k=dice.randrange(1, 5)))
            while raw.poll(0):
                raw.recv_multipart()
        with Freelance([place], timeout=LIMIT_S) as client:
            assert client.request(b"alive").body == b"ALIVE"
        counters = server.counters
        assert set(counters.invalid) == {"no-body"}
        # When the last message of a connection is answered, all of them were read.
        for raw in raws:
            raw.send_multipart([b"last", b"word"])
            while receive(raw) != [b"last", b"WORD"]:
                pass
        seen = counters.requests + counters.pings + counters.dropped + counters.invalid.total()
        assert seen >= 100_000
        peers.close()


# --- its life -----------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from bstar_client import FreelanceServer

def handle(request):
    print("asked", flush=True)
    sys.stdin.readline()
    return request.body.upper()

server = FreelanceServer(handle, sys.argv[1])
print("ready", flush=True)
server.run()
print("ended", flush=True)
"""


@loopback
def test_sigterm_lets_it_finish_what_it_has_begun(place: str, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(PROGRAM.replace("sys.stdin.readline()", "import time; time.sleep(0.3)"))
    with (
        Program(str(script), place) as program,
        ThreadPoolExecutor(1) as pool,
        Freelance([place], timeout=10.0) as client,
    ):
        waiting = pool.submit(client.request, b"x")
        program.wait_for(lambda line: line == "asked")
        assert program.terminate() == 0
        program.wait_for(lambda line: line == "ended")
        assert waiting.result(LIMIT_S).body == b"X"


@loopback
def test_closing_is_idempotent_and_a_server_runs_once(place: str) -> None:
    server = FreelanceServer(upper, place)
    server.close()
    server.close()
    with pytest.raises(ClosedError):
        server.run()
    again = FreelanceServer(upper, place).start()
    again.close()
    again.close()
    with pytest.raises(ClosedError):
        again.start()


@loopback
@pytest.mark.parametrize("ending", ["", ".start()", ".start(); del server"])
def test_a_server_that_nobody_closed_is_closed_with_a_warning(place: str, ending: str) -> None:
    text = f"from bstar_client import FreelanceServer; server = FreelanceServer(len, {place!r}){ending}"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert f"FreelanceServer({place}) was not closed: use it in 'with', or call close()" in done.stderr


@loopback
def test_a_shared_context_is_left_alone(place: str) -> None:
    context: zmq.Context[Socket] = zmq.Context()
    with FreelanceServer(upper, place, context=context), Freelance([place], timeout=LIMIT_S) as client:
        assert client.request(b"x").body == b"X"
    assert not context.closed
    context.term()


@loopback
def test_with_keys_only_those_in_the_list_are_served(place: str) -> None:
    own, friend, stranger = new_key("server"), new_key("friend"), new_key("stranger")
    security = ServerSecurity(own, clients=[friend.public])
    with FreelanceServer(upper, place, security=security) as server:
        for model in MODELS:
            with Freelance(
                [place], model=model, timeout=LIMIT_S, security=Security(friend, servers=[own.public])
            ) as client:
                assert client.request(b"x").body == b"X"
        for refused in (
            Security(stranger, servers=[own.public]),
            Security(friend, servers=[stranger.public]),
            None,
        ):
            with Freelance([place], timeout=0.3, security=refused) as client:
                with pytest.raises(NoActiveNodeError):
                    client.request(b"x")
                if refused is not None and refused.key is stranger:
                    wait_until(lambda: server.counters.refusals["unknown-key"], "the refusal")
        assert server.counters.requests == len(MODELS)
    assert repr(security) == f"ServerSecurity({own!r}, 1 clients)"
    assert own.secret.decode() not in repr(security)


@loopback
def test_a_server_without_clients_or_with_a_wrong_security_is_refused(place: str) -> None:
    key = new_key("server")
    with pytest.raises(ConfigurationError, match="no client's key"):
        ServerSecurity(key, clients=[])
    with pytest.raises(ConfigurationError, match="list of public keys"):
        ServerSecurity(key, clients=key.public)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="security is of ServerSecurity"):
        FreelanceServer(upper, place, security=Security(key, servers=[key.public]))  # type: ignore[arg-type]


@loopback
def test_what_cannot_work_is_refused_at_once(place: str) -> None:
    for wildcard in ("tcp://*:5555", "tcp://127.0.0.1:0", "tcp://0.0.0.0:1", "tcp://127.0.0.1:*"):
        with pytest.raises(ConfigurationError, match="public="):
            FreelanceServer(upper, wildcard)
    with pytest.raises(ConfigurationError, match="models are some of 1, 2 and 3"):
        FreelanceServer(upper, place, models=(4,))
    with pytest.raises(ConfigurationError, match="1 to 255 bytes"):
        FreelanceServer(upper, place, public="x" * 256)
    with pytest.raises(ConfigurationError, match="cannot bind"):
        FreelanceServer(upper, "tcp://256.0.0.1:5555")
    with pytest.raises(TypeError, match="one argument"):
        FreelanceServer(lambda: b"", place)
    with FreelanceServer(upper, "tcp://127.0.0.1:0", models=(1, 2)) as server:
        assert server.endpoint.startswith("tcp://127.0.0.1:")
        with LazyPirateClient(server.endpoint, timeout=LIMIT_S) as client:
            assert client.request(b"x").body == b"X"
