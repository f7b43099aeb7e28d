"""The HTTP front of real nodes: curl through kill -9, tokens and TLS, slow clients, its process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Receive, Scope, Send

from bstar.errors import ConfigurationError, RemoteProtocolError
from bstar.settings.sample import sample_settings
from bstar_cli.http_front.node import NodeFront
from bstar_cli.http_front.plan import HttpPlan, bind, check_tls
from bstar_cli.http_front.server import _watch_peer, config_of
from bstar_client import ReplyMemory, Request, Worker
from bstar_client.asgi import FrontSettings
from bstar_testing import LoopbackHost, Pair, Process, pair, wait_until
from bstar_testing.processes import stopped
from support.curl import HTTP, curl, wait_ready, working
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

ORDERS = 60
ATTEMPTS = 600


@contextmanager
def booking(p: Pair) -> Iterator[Counter[str]]:
    """A worker that counts what it executes, and keeps its replies."""
    executed: Counter[str] = Counter()

    def book(request: Request) -> bytes:
        executed[request.body.decode()] += 1
        return b'{"booked": %b}' % request.body

    with working(Worker(p.endpoints, "book", book, dedupe=ReplyMemory())):
        yield executed


def place(urls: list[str], number: int) -> str:
    """One order by curl, at one address and the other until one answers."""
    for _, url in zip(range(ATTEMPTS), cycle(urls), strict=False):
        key = f"Idempotency-Key: order-{number}"
        status, body = curl(f"{url}/call/book", "--json", str(number), "-H", key, "-H", "Bstar-Timeout: 10")
        if status == 200:
            return body
        assert status in {0, 502, 503, 504}, body
    raise AssertionError(f"order {number} was not answered")


def test_curl_loses_nothing_and_does_nothing_twice_through_kills() -> None:
    with pair(workers=0, doors=[HTTP]) as p, booking(p) as executed, ThreadPoolExecutor(4) as pool:
        for url in p.http_urls:
            wait_ready(url)
        placed = [pool.submit(place, p.http_urls, number) for number in range(ORDERS)]
        for share in (3, 2):
            wait_until(lambda share=share: len(executed) >= ORDERS // share, "orders come in")  # type: ignore[misc]
            killed = p.kill_active()
            wait_until(lambda: len(executed) >= ORDERS // share + 5, "orders come in again")  # noqa: B023
            killed.start()
            killed.wait_for_state("PASSIVE")
        assert [future.result() for future in placed] == [
            f'{{"booked": {number}}}' for number in range(ORDERS)
        ]
        assert executed == dict.fromkeys(map(str, range(ORDERS)), 1)


def test_a_front_follows_its_node_and_is_replaced_when_it_dies() -> None:
    with pair(doors=[HTTP]) as p:
        url, other = p.http_urls
        wait_ready(url)
        wait_ready(other)
        assert curl(f"{url}/call/echo", "-d", "1") == (200, "1")
        wait_until(lambda: curl(f"{other}/readyz")[0] == 503, "the backup's front knows the active node")
        status, body = curl(f"{other}/call/echo", "-d", "1")
        assert (status, json.loads(body)["peer"]) == (503, url)
        child = front_of(p.primary)
        os.kill(child, signal.SIGKILL)
        assert curl(f"{url}/call/echo", "-d", "2", "--retry", "9", "--retry-all-errors") == (200, "2")
        assert front_of(p.primary) != child
        p.primary.stop()
        wait_until(lambda: curl(f"{url}/healthz")[0] == 0, "the front ended with its node")
        assert curl(f"{other}/call/echo", "-d", "3") == (200, "3")


def test_a_front_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment there is no memory for a process; then one ends before it has read its plan. A library's
    line on the output of the next one is no report, and ends nothing.
    """
    has_begun = threading.Event()
    failures = iter([OSError(errno.ENOMEM, "no memory"), BrokenPipeError(errno.EPIPE, "it has ended")])

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if (failure := next(failures, None)) is not None:
            raise failure
        has_begun.set()
        if command[0] != sys.executable:
            return real(command, **options)
        run = f"import runpy; runpy.run_module({command[-1]!r}, run_name='__main__')"
        return real([command[0], "-c", f"print('hello', flush=True); {run}"], **options)

    real = subprocess.Popen
    monkeypatch.setattr("bstar_cli.http_front.node.subprocess.Popen", start)
    settings = sample_settings("primary")
    http = msgspec.structs.replace(
        settings.fronts.http, bind="127.0.0.1:0", peer_clients="tcp://127.0.0.1:5002"
    )
    fronts = msgspec.structs.replace(settings.fronts, http=http)
    with NodeFront(msgspec.structs.replace(settings, fronts=fronts)) as front:
        assert has_begun.wait(LIMIT_S)
        wait_until(lambda: curl(f"{front.url}/healthz")[0] == 200, "the front serves")
        wait_until(lambda: front.state().counts, "the front reports")


def front_of(node: Process) -> int:
    node.wait_until(lambda: len(node.children) == 1, "has one front")
    return node.children[0]


def test_the_node_has_the_metrics_of_its_front_and_knows_one_that_hangs() -> None:
    with pair(doors=[HTTP]) as p:
        [url, _], node = p.http_urls, p.primary
        wait_ready(url)
        wait_until(lambda: curl(f"{url}/call/echo", "-d", "1") == (200, "1"), "the front answers")
        assert curl(f"{url}/call/mmi.state", "-d", "1")[0] == 403

        def has(*samples: str) -> bool:
            page = curl(f"{node.http_url}/metrics")[1]
            return all(f"\n{sample}\n" in page for sample in samples)

        events = 'bstar_front_events_total{event="%s",front="http"} %s'
        node.wait_until(lambda: has(events % ("not-allowed", "1.0"), events % ("busy", "0.0")), "counts")
        assert has('bstar_front_down{front="http"} 0.0')
        child = front_of(node)
        with stopped(child):
            node.wait_until(lambda: has('bstar_front_down{front="http"} 1.0'), "misses its front")
        node.wait_until(lambda: has('bstar_front_down{front="http"} 0.0'), "has its front again")


def test_tokens_hold_for_calls_and_for_durable_requests() -> None:
    with pair(workers=0, doors=[HTTP], is_secure=True, has_store=True) as p:
        # That of the active node is enough here, and a node's handshakes are slow on a busy machine.
        p.launch_workers(1, "echo", service="echo")
        assert p.keys is not None
        token = p.keys.add_token("shop", "calls:echo")
        other = p.keys.add_token("other", "calls:price")
        url = p.http_urls[0]
        wait_ready(url)
        mine, theirs = (["-H", f"Authorization: Bearer {each}"] for each in (token, other))
        wait_until(lambda: curl(f"{url}/readyz")[0] == 200, "the front knows the active node")
        wait_until(lambda: curl(f"{url}/call/echo", "-d", "1", *mine) == (200, "1"), "the list was read")
        assert curl(f"{url}/call/echo", "-d", "1")[0] == 401
        assert curl(f"{url}/call/echo", "-d", "1", *theirs)[0] == 403
        status, body = curl(f"{url}/submit/echo", "-d", "7", "-H", "Idempotency-Key: k", *mine)
        request_id = json.loads(body)["id"]
        assert status == 202
        assert curl(f"{url}/submit/echo", "-d", "7", "-H", "Idempotency-Key: k", *mine) == (202, body)
        assert curl(f"{url}/result/{request_id}?wait=60", *mine) == (200, "7")
        assert curl(f"{url}/result/{request_id}", *theirs)[0] == 403
        assert curl(f"{url}/result/{request_id}", "-X", "DELETE", *theirs)[0] == 403
        status, body = curl(f"{url}/result/{request_id}", "-X", "DELETE", *mine)
        assert (status, json.loads(body)["state"]) == (200, "answered")
        status, body = curl(f"{url}/result/{request_id}", *mine)
        assert (status, json.loads(body)["code"]) == (404, "unknown-request")
        status, body = curl(f"{url}/submit/echo", "-d", "1", "-H", "Bstar-Delay: 3600", *mine)
        pending = json.loads(body)["id"]
        assert curl(f"{url}/result/{pending}?wait=0.1", *mine) == (
            202,
            f'{{"id":"{pending}","state":"pending"}}',
        )
        assert curl(f"{url}/result/{pending}", "-X", "DELETE", *mine)[0] == 200


@contextmanager
def gateway(p: Pair, *options: str) -> Iterator[tuple[Process, int]]:
    """``bstar http`` before the pair, and its port."""
    host = LoopbackHost()
    port = host.ports(1)[0]
    argv = [sys.executable, "-m", "bstar_cli", "http", "--listen", f"127.0.0.1:{port}"]
    with Process(f"http-{port}", [*argv, "-e", ",".join(p.endpoints), *options], folder=p.folder) as process:
        process.wait_for_log("ready")
        yield process, port
        assert process.stop() == 0
    host.close()


def test_a_program_of_its_own_answers_through_a_failover() -> None:
    with LoopbackHost() as host, pair(doors=[]) as p:
        metrics = f"127.0.0.1:{host.ports(1)[0]}"
        with gateway(p, "--metrics", metrics) as (process, port):
            url = f"http://127.0.0.1:{port}"
            assert curl(f"{url}/call/echo", "-d", "1") == (200, "1")
            p.kill_active()
            assert curl(f"{url}/call/echo", "-d", "2") == (200, "2")
            sample = 'bstar_front_events_total{event="ok",front="http"} 2.0'
            process.wait_until(lambda: sample in curl(f"{metrics}/metrics")[1], "counts")


def test_a_socket_without_a_token_is_refused_and_not_logged(sound: Pair, tmp_path: Path) -> None:
    listed = tmp_path / "principals.yaml"
    listed.write_text("principals: {}\n")

    async def ask(port: int) -> None:
        with pytest.raises(websockets.InvalidStatus, match="401"):
            await websockets.connect(f"ws://127.0.0.1:{port}/socket")

    with gateway(sound, "--principals", str(listed)) as (process, port):
        asyncio.run(ask(port))
    assert "error" not in process.log()


def test_tls_is_that_of_the_files(sound: Pair, tmp_path: Path) -> None:
    certificate, key = certify(tmp_path)
    with gateway(sound, "--tls-cert", str(certificate), "--tls-key", str(key)) as (_, port):
        url = f"https://127.0.0.1:{port}/call/echo"
        assert curl(url, "-d", "1", "--cacert", str(certificate)) == (200, "1")
        large = tmp_path / "body"
        large.write_text("0123456789" * 50_000, "ascii")  # several reads
        answer = curl(url, "--data-binary", f"@{large}", "--cacert", str(certificate))
        assert answer == (200, large.read_text("ascii"))
        carry_many(f"wss://127.0.0.1:{port}/socket", ssl=ssl.create_default_context(cafile=certificate))
        assert curl(url, "-d", "1")[0] == 0
        assert curl(f"http://127.0.0.1:{port}/call/echo", "-d", "1")[0] == 0


UNLOCKED = serialization.NoEncryption()


def test_a_key_with_a_passphrase_is_refused_and_none_is_asked_for(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path, serialization.BestAvailableEncryption(b"secret"))
    with pytest.raises(ConfigurationError, match=r"http\.key is encrypted"):
        check_tls((str(certificate), str(key)), "--tls-key")


def certify(folder: Path, lock: serialization.KeySerializationEncryption = UNLOCKED) -> tuple[Path, Path]:
    """A certificate for loopback that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "http.crt", folder / "http.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, lock
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return paths


# --- slow clients -------------------------------------------------------------------------------------------


def connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 60)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    return made


def wait_closed(connection: socket.socket) -> None:
    """Until the other side has ended the connection; nothing is read."""
    assert is_closed(connection, 60), "the connection was not closed"


def is_closed(connection: socket.socket, wait_s: float = 0) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLERR | select.POLLHUP | select.POLLRDHUP)
    return bool(poller.poll(wait_s * 1000))


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /call/echo HTTP/1.1\r\nHost: h\r\nX-Slow: ",
        b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET /heal",
    ],
    ids=["nothing", "a head", "a second head"],
)
def test_a_slow_head_ends_its_connection(bounded: int, begun: bytes) -> None:
    with connected(bounded) as slow:
        slow.sendall(begun)
        wait_closed(slow)


def test_a_slow_body_ends_its_connection_with_a_status(bounded: int) -> None:
    with connected(bounded) as slow:
        slow.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nx")
        with slow.makefile("rb") as told:
            answer = told.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"slow-body"' in answer


def test_a_body_that_is_not_wanted_does_not_hold_its_connection(bounded: int) -> None:
    with connected(bounded) as slow:
        slow.sendall(b"POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
        assert slow.recv(100).startswith(b"HTTP/1.1 404 ")

        def is_closed() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(is_closed, "the connection was closed")


def test_a_slow_reader_ends_its_connection(bounded: int) -> None:
    with connected(bounded) as slow:
        slow.sendall(b"POST /call/large HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
        wait_closed(slow)


def test_connections_beyond_the_bound_are_closed_and_the_others_live(bounded: int) -> None:
    request = b"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
    with connected(bounded) as first, connected(bounded) as second, connected(bounded) as third:
        with connected(bounded) as fourth:
            wait_closed(fourth)
        for each in (first, second, third):
            each.sendall(request)
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")


def test_silent_connections_count_before_their_tls_handshake(sound: Pair, tmp_path: Path) -> None:
    certificate, key = certify(tmp_path)
    options = ["--tls-cert", str(certificate), "--tls-key", str(key), "--connections-max", "2"]
    with gateway(sound, *options) as (_, port):
        with connected(port) as first, connected(port) as second:
            with connected(port) as third:
                wait_closed(third)
            assert not is_closed(first)
            assert not is_closed(second)
        url = f"https://127.0.0.1:{port}/call/echo"
        wait_until(lambda: curl(url, "-d", "1", "-k") == (200, "1"), "those that ended made room")


def test_large_heads_and_bodies_are_refused(bounded: int) -> None:
    url = f"http://127.0.0.1:{bounded}/call/echo"
    assert curl(url, "-d", "x", "-H", f"X-Large: {'x' * 20_000}")[0] == 400
    assert curl(url, "-H", "Expect:", "-d", "x" * 100_000)[0] == 200
    with connected(bounded) as large:
        large.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000001\r\n\r\nx")
        with large.makefile("rb") as told:
            assert told.read().startswith(b"HTTP/1.1 413 ")


def test_a_request_that_has_two_ends_is_the_last_of_its_connection(bounded: int) -> None:
    with connected(bounded) as twofold, twofold.makefile("rb") as told:
        twofold.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n")
        twofold.sendall(b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        twofold.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
        answers = told.read()
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("length", [b"Content-Length: 20000000", b"Transfer-Encoding: chunked"])
def test_who_sends_much_too_large_a_body_reads_the_answer_and_asks_again(bounded: int, length: bytes) -> None:
    """A connection that ends with unread data is reset, and a reset can come before the answer is read."""
    with connected(bounded) as large, large.makefile("rb") as told:
        large.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\n" + length + b"\r\n\r\n")
        for _ in range(20):
            large.sendall((b"f4240\r\n" if b"chunked" in length else b"") + b"x" * 1_000_000)
            large.sendall(b"\r\n" if b"chunked" in length else b"")
        large.sendall(b"0\r\n\r\n" if b"chunked" in length else b"")
        large.sendall(b"POST /call/echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n")
        large.sendall(b"Content-Length: 1\r\n\r\nx")
        answers = told.read()
    assert answers.startswith(b"HTTP/1.1 413 ")
    assert b"HTTP/1.1 200 " in answers


def test_a_socket_carries_many_calls_at_once(bounded: int) -> None:
    carry_many(f"ws://127.0.0.1:{bounded}/socket")


def carry_many(url: str, **options: Any) -> None:
    """Many calls over one WebSocket, each with its own reply."""

    async def talk() -> None:
        async with websockets.connect(url, **options) as wire:
            for number in range(50):
                await wire.send(json.dumps({"id": number, "call": "echo", "body": str(number)}))
            heard = [json.loads(await wire.recv()) for _ in range(50)]
        assert sorted(each["id"] for each in heard) == list(range(50))
        assert all(each["frames"] == [str(each["id"])] for each in heard)

    asyncio.run(asyncio.wait_for(talk(), 60))


@pytest.fixture(scope="module")
def sound() -> Iterator[Pair]:
    """A pair that no test breaks."""
    with pair() as made:
        yield made


@pytest.fixture(scope="module")
def bounded(sound: Pair) -> Iterator[int]:
    """The port of a front with small bounds."""
    options = ["--slow", "1", "--connections-max", "3", "--body-max", "1000000"]
    with (
        working(Worker(sound.endpoints, "large", lambda request: bytes(30_000_000))),
        gateway(sound, *options) as (_, port),
    ):
        url = f"http://127.0.0.1:{port}/call/echo"
        wait_until(lambda: curl(url, "-d", "1")[0] == 200, "the front answers")
        yield port


def test_a_response_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    with bind("127.0.0.1:0", "--listen") as listener:
        assert listener.proto == socket.IPPROTO_TCP, "asyncio leaves Nagle's algorithm on"


def test_all_connections_are_read_into_one_buffer() -> None:
    config = config_of(empty, HttpPlan(FrontSettings(), 2_000), Counter())
    for kind in (config.http, config.ws):
        assert isinstance(kind, type)
        assert issubclass(kind, asyncio.BufferedProtocol), "asyncio allocates 256 KiB for each read"


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers nothing."""


def test_a_front_asks_for_its_peer_again_after_an_answer_that_it_cannot_read() -> None:
    class Client:
        active = "tcp://peer:5001"
        asked = 0

        async def discover(self, prefix: str, **_: float) -> None:
            self.asked += 1
            if self.asked == 1:
                raise RemoteProtocolError("mmi", "not JSON")
            raise EOFError

    with pytest.raises(EOFError):
        asyncio.run(_watch_peer(Client(), "tcp://local:5001"))  # type: ignore[arg-type]


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "0.0.0.0:0"], "--principals and --tls-cert"),
        (["--tls-cert", "a.crt"], "need each other"),
        (["--tls-cert", "a.crt", "--tls-key", "a.key"], "cannot be used"),
        (["--principals", "missing.yaml"], "missing.yaml"),
    ],
)
def test_wrong_usage_says_what_to_do(
    options: list[str], word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from bstar_cli import exits
    from bstar_cli.main import main

    assert main(["http", *options]) == exits.USAGE
    assert word in capfd.readouterr().err
