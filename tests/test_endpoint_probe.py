"""An error about a wrong address says what is there: HTTP, a state port, a name that no resolver knows."""

from __future__ import annotations

import asyncio
import http.server
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from bstar.errors import NoActiveNodeError
from bstar.security import Security, new_key
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, Request, Worker, node_states
from bstar_client.core.worker import node_sessions
from bstar_client.links import endpoint_probe
from bstar_client.links.endpoint_probe import explain, look
from bstar_client.workers.failures import warn_unregistered
from support.brokers import lone_broker
from support.scripted import WAIT_S

pytestmark = pytest.mark.loopback


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An error waits for its probes as long as a busy machine takes. Ports are used again within seconds."""
    monkeypatch.setattr(endpoint_probe, "WAIT_S", WAIT_S)
    endpoint_probe._kept.clear()
    yield
    endpoint_probe._kept.clear()


@contextmanager
def zmq_socket(kind: int, **options: object) -> Iterator[str]:
    with zmq.Context() as context, context.socket(kind) as bound:
        for name, value in options.items():
            setattr(bound, name, value)
        yield f"tcp://127.0.0.1:{bound.bind_to_random_port('tcp://127.0.0.1')}"


@contextmanager
def http_server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does this with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def what_is_at(endpoint: str, *, has_keys: bool = False) -> str:
    return look([endpoint], has_keys=has_keys)[endpoint]


def test_a_web_server_is_named() -> None:
    with http_server() as endpoint:
        assert what_is_at(endpoint).startswith(
            "speaks HTTP: clients and workers connect to a node's endpoints.cl"
        )


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.XPUB])
def test_a_state_port_is_named(kind: int) -> None:
    with zmq_socket(kind) as endpoint:
        assert what_is_at(endpoint).startswith("is a state port")


def test_a_broker_is_nothing_odd_and_another_socket_is() -> None:
    with zmq_socket(zmq.ROUTER) as router, zmq_socket(zmq.PULL) as pull:
        assert look([router, pull], has_keys=False) == {
            router: "",
            pull: "is another ZeroMQ socket (PULL), which is no broker",
        }


def test_a_side_without_the_keys_of_the_other_is_named() -> None:
    secret = zmq.curve_keypair()[1]
    with zmq_socket(zmq.ROUTER, curve_server=True, curve_secretkey=secret) as keyed:
        assert what_is_at(keyed).startswith("handshake failed: it wants keys (CURVE), and this side")
        assert not what_is_at(keyed, has_keys=True)
    with zmq_socket(zmq.ROUTER) as keyless:
        assert what_is_at(keyless, has_keys=True).startswith("handshake failed: it takes no keys")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda connection: None, "accepts a connection and closes it"),
        (
            lambda connection: connection.sendall(b"SSH-2.0-\x1b[1m"),
            r'protocol (it begins with "SSH-2.0-\x1b[")',
        ),
        (
            lambda connection: (connection.recv(100), connection.sendall(b"\x15\x03\x01\0\2\2\x16")),
            "speaks TLS",
        ),
        (
            lambda connection: connection.recv(100) and connection.recv(100),
            "accepts connections and says nothing",
        ),
    ],
    ids=["closes", "banner", "tls", "silent"],
)
def test_other_programs_are_described(
    answer: Callable[[socket.socket], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_probe, "_PROBE_S_MAX", 0.5)
    with answering(answer) as endpoint:
        assert said in what_is_at(endpoint)


def test_a_port_where_no_process_listens_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    assert what_is_at(endpoint) == "connection refused: no process listens there"
    assert what_is_at(f"ipc://{tmp_path}/none") == "no such socket: no process listens there"


def no_such_name(*_: object) -> object:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_name_that_no_resolver_knows_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    said = 'name not found: "brokr-1" (Name or service not known)'
    assert what_is_at("tcp://brokr-1:5001") == said


def test_errors_that_come_together_share_a_probe_and_do_not_wait_for_a_look_up_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_probe, "WAIT_S", 0.05)
    go_on, asked = threading.Event(), []

    def hang(host: str, *_: object) -> object:
        asked.append(host)
        assert go_on.wait(WAIT_S)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    endpoint = "tcp://brokr:5001"
    errors = [
        NoActiveNodeError(f"Nodes: {endpoint}: refused", unreached={endpoint: "refused"}) for _ in "123"
    ]
    for error in errors[:2]:
        explain(error, has_keys=False)
        assert str(error) == f"Nodes: {endpoint}: refused"
    go_on.set()
    endpoint_probe._kept[endpoint, False][1].result(WAIT_S)
    explain(errors[2], has_keys=False)
    assert str(errors[2]) == f'Nodes: {endpoint}: name not found: "brokr" (Name or service not known)'
    assert asked == ["brokr"]


def test_what_is_kept_of_many_endpoints_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_probe, "_KEPT_MAX", 3)
    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    for number in range(10):
        look([f"tcp://name-{number}:1"], has_keys=False)
        assert len(endpoint_probe._kept) <= 3


# --- where it is said ---------------------------------------------------------------------------------------


def test_both_clients_say_what_is_at_a_wrong_endpoint() -> None:
    with http_server() as page, zmq_socket(zmq.XPUB) as state:
        wrong = [page, state]
        with HAClient(wrong, timeout=0.5) as client:
            calls: list[Callable[[], object]] = [
                lambda: client.request("echo", b""),
                lambda: list(client.map("echo", [b""])),
                lambda: list(client.stream("echo", b"")),
                client.services,
            ]
            for call in calls:
                with pytest.raises(NoActiveNodeError) as caught:
                    call()
                check(caught.value, wrong)

        async def ask() -> None:
            async with AsyncHAClient(wrong, timeout=0.5) as client:
                for call in (
                    lambda: client.request("echo", b""),
                    lambda: anext(client.map("echo", [b""])),
                    lambda: anext(client.stream("echo", b"")),
                    client.services,
                ):
                    with pytest.raises(NoActiveNodeError) as caught:
                        await call()
                    check(caught.value, wrong)

        asyncio.run(ask())


def check(error: NoActiveNodeError, wrong: list[str]) -> None:
    page, state = wrong
    assert f"Nodes: {page}: speaks HTTP" in str(error)
    assert f"; {state}: is a state port" in str(error)
    assert list(error.unreached) == wrong
    assert not error.may_have_executed


def test_status_says_what_is_at_an_endpoint_without_a_node(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as broker, http_server() as page:
        node, other = node_states([broker.endpoint, page], timeout=2.0)
    assert (node.error, other.state) == (None, None)
    assert str(other.error).startswith("speaks HTTP")


def test_status_without_a_key_says_once_that_the_node_wants_one(caplog: pytest.LogCaptureFixture) -> None:
    secret = zmq.curve_keypair()[1]
    with zmq_socket(zmq.ROUTER, curve_server=True, curve_secretkey=secret) as keyed:
        [report] = node_states(keyed, timeout=2.0)
        assert report.is_denied
        assert str(report.error).startswith("handshake failed: it wants keys")
        assert not caplog.records
        with HAClient([keyed, "tcp://127.0.0.1:1"], timeout=0.5) as client, pytest.raises(NoActiveNodeError):
            client.request("echo", b"")
        assert "the node wants a key" in caplog.text


def test_a_client_with_a_key_says_that_the_node_has_none(tmp_path: Path) -> None:
    security = Security(new_key("shop"), servers=[new_key("node").public])
    with (
        lone_broker(tmp_path) as broker,
        HAClient(broker.endpoint, timeout=0.5, security=security) as client,
        pytest.raises(NoActiveNodeError, match="it takes no keys, and this side has one"),
    ):
        client.request("echo", b"")


def test_a_warning_says_where_a_worker_lacks_and_what_still_reaches_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    begin = 'the worker of service "price" is not registered at '
    warn_unregistered(b"price", {"tcp://brokr:1": ""}, ["tcp://b:2"], None)
    warn_unregistered(b"price", {"inproc://a": "", "inproc://b": "silent"}, [], None)
    assert [record.getMessage() for record in caplog.records] == [
        (
            f'{begin}tcp://brokr:1: name not found: "brokr" (Name or service not known); '
            "requests reach it through tcp://b:2 alone"
        ),
        f"{begin}inproc://a: no registration yet; inproc://b: silent; no request reaches it",
    ]


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_worker_with_wrong_endpoints_warns_and_says_what_is_there(
    kind: type[Worker | AsyncWorker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node_sessions, "UNREGISTERED_S", 0.2)
    warned = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is not registered" in record.getMessage():
                warned.set()

    ear = Ear()
    logging.getLogger("bstar_client").addHandler(ear)
    try:
        with lone_broker(tmp_path) as broker, http_server() as page:
            endpoints = [broker.endpoint, page]
            if kind is Worker:
                with Worker(endpoints, "price", lambda request: b""):
                    assert warned.wait(WAIT_S)
            else:
                asyncio.run(stand_by(endpoints, warned))
    finally:
        logging.getLogger("bstar_client").removeHandler(ear)
    assert f"{page}: speaks HTTP" in caplog.text


async def stand_by(endpoints: list[str], warned: threading.Event) -> None:
    async def answer(request: Request) -> bytes:
        return b""

    async with AsyncWorker(endpoints, "price", answer):
        assert await asyncio.to_thread(warned.wait, WAIT_S)
