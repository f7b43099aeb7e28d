"""EventMQ on a real pair: job managers, clients with plain DEALER sockets, ``kill -9`` of a node."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
import zmq

from bstar.errors import OutcomeUnknownError
from bstar.wire import emq
from bstar.wire.emq_jobs import Headers, Job, decode_job, decode_report, decode_result, encode_job
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqClient, EmqJobManager
from bstar_testing import Pair, wait_until
from support.emq import result
from support.waiting import LIMIT_S, Socket, receive, receive_until

pytestmark = pytest.mark.loopback

DOORS = ("fronts.emq.clients", "fronts.emq.workers", "fronts.emq.admin")
NEWS = ("fronts.emq.clients", "fronts.emq.workers", "fronts.emq.subscribers")
CALLS = "support.emq_calls"
PAGE = Path(__file__).parents[1] / "docs" / "patterns.md"
TIMING = ManagerSettings((), heartbeat_s=0.2, silence_s=LIMIT_S, answer_s=LIMIT_S, pause_s=0.05)
SETTINGS = {"fronts.emq.heartbeat_interval_s": 0.5}


@contextmanager
def manager(routers: Sequence[str], processes: int = 2) -> Iterator[EmqJobManager]:
    """A job manager in a thread."""
    with EmqJobManager(routers, timing=TIMING, allow=[CALLS], processes=processes) as made:
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join(LIMIT_S)


def test_a_router_that_is_down_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    router = "tcp://127.0.0.1:9"
    with manager([router], processes=1) as made:
        wait_until(lambda: made._link.opened > 3, "it tries again")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"not connected (one of {router}): the connection broke or was refused; tries again"
    ]


@contextmanager
def dealer(endpoint: str, identity: bytes | None = None) -> Iterator[Socket]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        socket.connect(endpoint)
        yield socket


def ask(socket: Socket, msgid: bytes, value: object, headers: Headers, queue: str = "default") -> None:
    """Send a REQUEST for a job that returns ``value``."""
    job = encode_job(Job(CALLS, "echo", [value]))
    socket.send_multipart(emq.encode(emq.Request(msgid, queue, job, headers)))


def result_of(socket: Socket, msgid: bytes) -> object:
    """The result of this request."""

    def is_it(frames: list[bytes]) -> bool:
        message = emq.decode(frames)
        return isinstance(message, emq.Reply) and message.about == msgid and message.value is not None

    reply = emq.decode(receive_until(socket, is_it))
    assert isinstance(reply, emq.Reply)
    assert reply.value is not None
    value: object = decode_result(reply.value)
    return value


@pytest.mark.requirement("EMQ-G-02")
def test_clients_of_all_kinds_share_a_job_manager_and_the_admin_sees_it(tmp_path: Path) -> None:
    """EMQ-G-02: each door is a ROUTER; a DEALER without an identity works at it."""
    with Pair(tmp_path, doors=DOORS, settings=SETTINGS) as pair:
        pair.start()
        endpoints = {key: pair.doors(f"fronts.emq.{key}") for key in ("clients", "workers", "admin")}
        with manager(endpoints["workers"]):
            pair.primary.wait_for_workers(1)
            for identity in (None, b"a-uuid"):
                with dealer(endpoints["clients"][0], identity) as client:
                    ask(client, b"q1", [1, "two"], Headers(reply_requested=True))
                    assert result_of(client, b"q1") == [1, "two"]
            with pair.client() as native:
                job = encode_job(Job(CALLS, "add", [1, 2]))
                assert native.request("default", job).body == result(3)
            with dealer(endpoints["admin"][0]) as admin:
                admin.send_multipart(emq.encode(emq.Status(b"s")))
                reply = emq.decode(receive_until(admin, lambda frames: frames[2] == b"REPLY"))
                assert isinstance(reply, emq.Reply)
                status = decode_report(reply.about)
                assert status["processed_messages_by_queue"]["default"] == 3


def test_guaranteed_jobs_survive_kill_9_of_the_active_node(tmp_path: Path) -> None:
    """Jobs are at the manager when the node dies; the client asks again at the other one, by the same ids."""
    settings = {**SETTINGS, "store.when_alone": "accept"}
    with Pair(tmp_path, doors=DOORS, has_store=True, settings=settings) as pair:
        pair.start()
        clients, workers = pair.doors("fronts.emq.clients"), pair.doors("fronts.emq.workers")
        msgids = {str(uuid.uuid4()).encode(): number for number in range(100)}
        headers = Headers(reply_requested=True, guarantee=True)
        with manager(workers) as one:
            pair.primary.wait_for_workers(1)
            pair.primary.wait_for("both disks", lambda state: state.store and state.store.copies == 2)
            with dealer(clients[0], b"client") as client:
                for msgid, number in msgids.items():
                    ask(client, msgid, number, headers)
                for _ in msgids:  # each is on both disks
                    receive_until(client, lambda frames: frames[2] == b"REPLY" and len(frames) == 5)
                result_of_any(client)
                pair.primary.kill()
            with dealer(clients[1], b"client") as client:
                # A request that comes before the peer's silence is proved is no vote.
                pair.backup.wait_for_silence()
                ask(client, b"vote", 0, Headers())  # nobody serves, so it makes the backup active
                pair.backup.wait_for_state("ACTIVE")
                for msgid, number in msgids.items():
                    ask(client, msgid, number, headers)
                    assert result_of(client, msgid) == number
            wait_until(lambda: one.jobs >= len(msgids), "the manager ran every job")


def result_of_any(socket: Socket) -> None:
    """Some job has ended."""
    receive_until(socket, lambda frames: frames[2] == b"REPLY" and len(frames) == 6)


def test_jobs_of_plain_requests_are_redelivered_when_a_manager_dies(tmp_path: Path) -> None:
    with Pair(tmp_path, doors=DOORS, settings=SETTINGS) as pair:
        pair.start()
        clients, workers = pair.doors("fronts.emq.clients"), pair.doors("fronts.emq.workers")
        with dealer(clients[0]) as client, dealer(workers[0]) as scripted:
            scripted.send_multipart(emq.encode(emq.Inform(b"i", emq.Kind.WORKER)))
            receive_until(scripted, lambda frames: frames[2] == b"HEARTBEAT")
            scripted.send_multipart(emq.encode(emq.Ready(b"r")))
            ask(client, b"q1", "kept", Headers(reply_requested=True))
            receive_until(scripted, lambda frames: frames[2] == b"REQUEST")
            scripted.close()
            with manager(workers):
                assert result_of(client, b"q1") == "kept"


def test_the_program_of_the_page_before_and_after_kill_9(tmp_path: Path) -> None:
    """docs/patterns.md: the client finds the node that serves, which has the scheduler in it."""
    (tmp_path / "shop.py").write_text("def price(fruit):\n    return f'{fruit} 3.50'\n")
    [text] = re.findall(r"```python\n(# emq_ask.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    with Pair(tmp_path / "pair", doors=DOORS) as pair:
        pair.start()
        for shipped, place in zip(("47292", "47291"), pair.doors("fronts.emq.clients"), strict=True):
            text = text.replace(f"tcp://127.0.0.1:{shipped}", place)
        (tmp_path / "emq_ask.py").write_text(text)
        routers = [word for place in pair.doors("fronts.emq.workers") for word in ("--router", place)]
        command = [sys.executable, "-m", "bstar_cli", "emq-jobmanager", *routers, "--allow", "shop"]
        with subprocess.Popen(command, cwd=tmp_path) as process:
            try:
                pair.primary.wait_for_workers(1)
                assert said(tmp_path) == "apple 3.50\n"
                pair.primary.kill()
                assert said(tmp_path) == "apple 3.50\n"
            finally:
                process.terminate()


def test_the_page_of_publications_does_what_it_says(tmp_path: Path) -> None:
    [text] = re.findall(r"```python\n(# emq_news.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    with Pair(tmp_path / "pair", doors=NEWS) as pair:
        pair.start()
        places = [*pair.doors("fronts.emq.clients"), *pair.doors("fronts.emq.subscribers")]
        for shipped, place in zip(("47291", "47292", "47299", "57299"), places, strict=True):
            assert shipped in text
            text = text.replace(shipped, place.rpartition(":")[2])
        (tmp_path / "emq_news.py").write_text(text)
        assert said(tmp_path, "emq_news.py") == "b'prices.apple' b'3.5'\n"
        pair.primary.kill()
        assert said(tmp_path, "emq_news.py") == "b'prices.apple' b'3.5'\n"


def said(folder: Path, program: str = "emq_ask.py") -> str:
    """What the page's program prints."""
    command = [sys.executable, program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120).stdout


class Beside(threading.Thread):
    """A thread that runs beside a block, and ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self.join()


class PublishedManager(Beside):
    """A job manager that behaves as the published one: one address, whatever KBYE says, and one process.

    It takes the router for dead after ``silence_s`` without a message (there 15 s), and says INFORM to the
    same address with a fresh identity. It is ready from the first HEARTBEAT on.
    """

    def __init__(self, router: str, silence_s: float = 1.5) -> None:
        super().__init__()
        self.router, self.silence_s = router, silence_s
        self.jobs = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            with dealer(self.router, str(uuid.uuid4()).encode()) as socket:
                socket.send_multipart(emq.encode(emq.Inform(b"i", emq.Kind.WORKER)))
                self._converse(socket)

    def _converse(self, socket: Socket) -> None:
        heard_at, is_ready = time.monotonic(), False
        while not self._is_over.is_set() and time.monotonic() < heard_at + self.silence_s:
            if not socket.poll(100):
                socket.send_multipart(emq.encode(emq.Heartbeat(b"h", time.time())))
                continue
            message = emq.decode(socket.recv_multipart())
            heard_at = time.monotonic()
            if isinstance(message, emq.Request):
                self.jobs += 1
                value = decode_job(message.message).args[0]
                socket.send_multipart(emq.encode(emq.Reply(b"e", message.msgid, result(value))))
            if isinstance(message, emq.Request) or (isinstance(message, emq.Heartbeat) and not is_ready):
                is_ready = True
                socket.send_multipart(emq.encode(emq.Ready(b"r")))


def test_published_managers_one_at_each_node_serve_before_and_after_kill_9(tmp_path: Path) -> None:
    """The one at the passive node is registered, is told nothing, and serves when its node does."""
    with Pair(tmp_path, doors=DOORS, settings=SETTINGS) as pair:
        pair.start()
        clients, workers = pair.doors("fronts.emq.clients"), pair.doors("fronts.emq.workers")
        headers = Headers(reply_requested=True)
        with PublishedManager(workers[0]) as one, PublishedManager(workers[1]) as other:
            with dealer(clients[0]) as client:
                for number in range(20):
                    ask(client, b"a%d" % number, number, headers)
                    assert result_of(client, b"a%d" % number) == number
            assert (one.jobs, other.jobs) == (20, 0)
            pair.primary.kill()
            with dealer(clients[1]) as client:
                pair.backup.wait_for_silence()
                for number in range(20):
                    ask(client, b"b%d" % number, number, headers)
                    assert result_of(client, b"b%d" % number) == number
            assert (one.jobs, other.jobs) == (20, 20)


# --- publications -------------------------------------------------------------------------------------------


@contextmanager
def subscriber(pair: Pair, topic: bytes = b"") -> Iterator[Socket]:
    """A SUB socket that both nodes know."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(topic)
        socket.rcvhwm = 0
        for node, endpoint in zip(pair.nodes, pair.doors("fronts.emq.subscribers"), strict=True):
            socket.connect(endpoint)
            node.wait_for("the subscriber", lambda state: state.fronts[0].peers["subscribers"] == 1)
        with EmqClient(pair.doors("fronts.emq.clients")) as client:
            # A subscription follows its connection; until it is there, publications are lost.
            while not socket.poll(20):
                client.publish(topic.decode() + "first", 0, confirm=True)
            receive_until(socket, lambda _: not socket.poll(200))
        yield socket


class Publisher(Beside):
    """Publishes the numbers from 1 on to a pair, one after the other, until it is stopped."""

    def __init__(self, pair: Pair, timeout_s: float = LIMIT_S) -> None:
        super().__init__()
        self.endpoints, self.timeout_s = pair.doors("fronts.emq.clients"), timeout_s
        self.confirmed: list[int] = []
        self.unknown: list[int] = []

    def wait_for(self, count: int) -> None:
        """Until it has published so many more."""
        goal = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= goal, f"{count} publications")

    def run(self) -> None:
        with EmqClient(self.endpoints) as client:
            for number in itertools.count(1):
                if self._is_over.is_set():
                    return
                try:
                    client.publish("numbers", number, confirm=True, timeout_s=self.timeout_s)
                    self.confirmed.append(number)
                except OutcomeUnknownError:
                    self.unknown.append(number)


def check_numbers(socket: Socket, publisher: Publisher, missing: int = 0) -> None:
    """The subscriber gets all confirmed numbers but so many, and none twice. It reads its nodes in turn."""
    left, found = set(publisher.confirmed), set[int]()
    while len(left) > missing:
        number = int(receive(socket)[1])
        assert number not in found
        found.add(number)
        left.discard(number)


@pytest.mark.requirement("EMQ-P-03")
def test_a_subscriber_of_both_nodes_gets_each_publication_once_through_kill_9(tmp_path: Path) -> None:
    """EMQ-P-03: one publication is under way at the kill; all others are confirmed, and were sent out."""
    with Pair(tmp_path, profile="guide", doors=NEWS) as pair:
        pair.start()
        with subscriber(pair) as socket:
            with Publisher(pair) as publisher:
                publisher.wait_for(50)
                pair.primary.kill()
                publisher.wait_for(50)
            # What the primary confirmed last may have been in its socket when it was killed.
            check_numbers(socket, publisher, missing=1)
        assert len(publisher.unknown) <= 1


@pytest.mark.requirement("EMQ-P-03")
def test_a_switchover_loses_and_repeats_no_publication(tmp_path: Path) -> None:
    """EMQ-P-03: the node that serves no more gives back what it does not publish."""
    with Pair(tmp_path, profile="guide", doors=NEWS) as pair:
        pair.start()
        with subscriber(pair) as socket:
            with Publisher(pair) as publisher:
                publisher.wait_for(50)
                command = [sys.executable, "-m", "bstar_cli", "switchover"]
                command += ["--config", str(pair.primary.config_path)]
                subprocess.run(command, check=True, timeout=120, capture_output=True)
                pair.backup.wait_for_state("ACTIVE")
                publisher.wait_for(50)
            check_numbers(socket, publisher)
        assert publisher.unknown == []


@pytest.mark.requirement("EMQ-P-02")
def test_the_published_publisher_is_served_and_a_slow_subscriber_holds_nobody_up(tmp_path: Path) -> None:
    """EMQ-P-02: the frames of its ``send_publish_request``, and no answer, which it would not read."""
    with Pair(tmp_path, profile="guide", doors=NEWS) as pair:
        pair.start()
        slow_door, clients = pair.doors("fronts.emq.subscribers")[0], pair.doors("fronts.emq.clients")
        with (
            zmq.Context() as context,
            context.socket(zmq.SUB) as slow,
            subscriber(pair, b"topic") as socket,
            dealer(clients[0], str(uuid.uuid4()).encode()) as published,
        ):
            slow.rcvhwm, slow.rcvbuf = 1, 4_096
            slow.subscribe(b"")
            slow.connect(slow_door)
            pair.primary.wait_for("both", lambda state: state.fronts[0].peers["subscribers"] == 2)
            message = b'["update", "%s"]' % (b"x" * 5_000)
            while "emq-slow-subscriber" not in pair.primary.state().broker.drops:
                for _ in range(100):
                    msgid = str(uuid.uuid4()).encode()
                    published.send_multipart([b"", b"eMQP/1.0", b"PUBLISH", msgid, b"topic", message])
                for _ in range(100):
                    assert receive(socket) == [b"topic", message]
            assert not published.poll(0)
