"""A node that must live with little memory: what it knows, what it warns of, and what it refuses."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from bstar.host.memory import RESERVE, Memory, MemoryLimit, give_back
from bstar.net import sockets
from bstar.settings import Settings, from_mapping
from bstar.wire import native
from bstar_broker.bounds.memory import MemoryWatch, bytes_needed
from bstar_broker.core import Node, Output
from bstar_broker.core.admission import REQUEST_BYTES
from bstar_broker.server import BrokerServer
from bstar_client import AsyncHAClient, HAClient, Worker
from bstar_testing import LoopbackHost, Pair, wait_until
from support.desk import Desk, heard, ident
from support.pairs import NEVER, standing_pair
from support.waiting import LIMIT_S, Socket, wait_for_store

MIB = 1 << 20
PAGE = resource.getpagesize()


# --- what the process may use -------------------------------------------------------------------------------


def system(root: Path, cgroup: str, limits: dict[str, str], resident: int = 0) -> Memory:
    """A machine with these control groups, on which this process has so many bytes resident."""
    for path, text in {
        "proc/self/cgroup": cgroup,
        "proc/self/statm": f"9 {resident // PAGE} 0 0 0 5 0",
        **limits,
    }.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return Memory(root)


@pytest.mark.parametrize(
    ("cgroup", "limits"),
    [
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": "104857600", "sys/fs/cgroup/a/memory.max": "max"}),
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "104857600"}),
        ("0::/", {"sys/fs/cgroup/memory.max": "104857600"}),
        ("0::/of/the/host", {"sys/fs/cgroup/memory.max": "104857600"}),
        ("4:cpu,memory:/x\n0::/", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "104857600"}),
        ("4:memory:/docker/123", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "104857600"}),
    ],
)
def test_a_control_group_s_limit_is_found_wherever_it_is_set(
    tmp_path: Path, cgroup: str, limits: dict[str, str]
) -> None:
    memory = system(tmp_path, cgroup, limits, resident=30 * MIB)
    least = memory.least()
    assert least.size_bytes == 100 * MIB
    assert least.where.startswith("control group, ")
    assert memory.left() == int(100 * MIB * (1 - RESERVE)) - 30 * MIB


def test_a_control_group_without_a_limit_leaves_the_machine_s_memory(tmp_path: Path) -> None:
    memory = system(
        tmp_path, "4:memory:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    )
    assert "control group" not in memory.least().where


def test_this_process_s_own_limits_and_size_are_told() -> None:
    memory = Memory()
    left = memory.left()
    assert left is not None
    assert any(limit.where == "the machine's memory" for limit in memory.limits())
    give_back()


def test_without_anything_to_read_nothing_is_claimed(tmp_path: Path) -> None:
    assert Memory(tmp_path).left() is None


GROUP = "sys/fs/cgroup/a/memory.max"


def test_a_limit_that_an_operator_changes_holds_at_the_next_look(tmp_path: Path) -> None:
    with system(tmp_path, "0::/a", {GROUP: "104857600"}) as memory:
        assert memory.least().size_bytes == 100 * MIB
        (tmp_path / GROUP).write_text("52428800\n")
        assert memory.least().size_bytes == 50 * MIB
        (tmp_path / GROUP).write_text("max\n")
        assert "control group" not in memory.least().where


def test_a_limit_counts_from_when_its_file_appears(tmp_path: Path) -> None:
    with system(tmp_path, "0::/a", {}) as memory:
        assert "control group" not in memory.least().where
        system(tmp_path, "0::/a", {GROUP: "104857600"})
        assert memory.least().size_bytes == 100 * MIB


def test_a_process_that_is_moved_to_another_control_group_obeys_that_one(tmp_path: Path) -> None:
    with system(tmp_path, "0::/a", {GROUP: "104857600", "sys/fs/cgroup/b/memory.max": "209715200"}) as memory:
        assert memory.least().size_bytes == 100 * MIB
        (tmp_path / "proc/self/cgroup").write_text("0::/b\n")
        assert memory.least().size_bytes == 200 * MIB


def test_a_look_opens_no_file_that_was_read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {GROUP: "104857600", "sys/fs/cgroup/memory.max": "max"}
    with system(tmp_path, "0::/a", limits, resident=30 * MIB) as memory:
        first = memory.left()

        def refuse(*_: object, **__: object) -> int:
            raise AssertionError("opened again")

        monkeypatch.setattr("bstar.host.memory.os.open", refuse)
        assert memory.left() == first == int(100 * MIB * (1 - RESERVE)) - 30 * MIB


def test_a_closed_memory_keeps_no_descriptor(tmp_path: Path) -> None:
    def opened() -> list[str]:
        """Its files that are open; others of this process come and go."""
        links = []
        for each in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(each.readlink())
        return [str(link) for link in links if link.is_relative_to(tmp_path)]

    memory = system(tmp_path, "0::/a", {GROUP: "104857600"})
    memory.left()
    assert opened()
    memory.close()
    memory.close()
    assert opened() == []


# --- what the node says and refuses -------------------------------------------------------------------------


class Told(Memory):
    """Memory as a test says."""

    def __init__(self, left: int, limit: int = 512 * MIB) -> None:
        super().__init__()
        self.now_left = left
        self.limit = limit
        self.looks = 0

    def least(self) -> MemoryLimit:
        return MemoryLimit(self.limit, "control group, /test", 1)

    def left(self) -> int | None:
        self.looks += 1
        return self.now_left


def node_settings(**limits: int) -> Settings:
    endpoints = {
        "clients": "tcp://127.0.0.1:1",
        "state": "tcp://127.0.0.1:2",
        "peer_state": "tcp://127.0.0.1:3",
    }
    return from_mapping({"role": "primary", "endpoints": endpoints, "limits": limits})


def test_limits_that_allow_more_than_there_is_are_warned_of_with_keys_and_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = node_settings()
    MemoryWatch(Desk().ledger, Told(0, limit=512 * MIB)).begin(settings)
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "may use 512 MiB (control group, /test)" in said
    assert f"allows it to hold {bytes_needed(settings) // MIB} MiB" in said
    for words in (
        "limits.queue_bytes_max 1024 MiB",
        "limits.message_bytes_max 64 MiB times 4",
        f"limits.queue_length_max {settings.limits.queue_length_max} requests",
    ):
        assert words in said


def test_limits_that_fit_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    small = node_settings(queue_bytes_max=64 * MIB, message_bytes_max=8 * MIB, queue_length_max=20_000)
    MemoryWatch(Desk().ledger, Told(0, limit=512 * MIB)).begin(small)
    assert caplog.records == []


def test_what_is_accepted_between_two_looks_is_bounded_by_what_was_left() -> None:
    desk = Desk()
    watch = MemoryWatch(desk.ledger, memory := Told(2 * (3 * REQUEST_BYTES + 250)))
    watch.look(desk.now)
    answers = [desk.request(b"c", number, b"x" * 100) for number in range(4)]
    assert [bool(frames) for frames in answers] == [False, False, True, True]
    told = heard(answers[-1][0])
    assert (told.command, told.body) == (native.BUSY, [b"the node's memory is used up"])
    assert desk.ledger.services[b"echo"].tally.refusals == {"memory-full": 2}
    busy = desk.requests(b"c", [11, 12, 13], [b"x" * 5_000] * 3)
    assert [heard(frames).command for frames in busy] == [native.BUSY] * 3
    memory.now_left = 100 * MIB
    watch.look(desk.now)
    assert desk.request(b"c", 9, b"x" * 100) == []
    assert desk.requests(b"c", [11, 12, 13], [b"x" * 5_000] * 3) == []
    assert desk.ledger.memory_left == 50 * MIB - 15_100 - REQUEST_BYTES


def test_of_a_batch_that_takes_more_than_is_left_what_fits_is_taken() -> None:
    desk = Desk()
    desk.ledger.memory_left = 10_000
    busy = desk.requests(b"c", [11, 12, 13], [b"x" * 5_000] * 3)
    assert [(heard(frames).command, heard(frames).identity) for frames in busy] == [
        (native.BUSY, ident(12)), (native.BUSY, ident(13))
    ]  # fmt: skip
    assert desk.ledger.memory_left == 10_000 - 5_000 - REQUEST_BYTES


def test_while_much_is_left_a_look_waits_for_growth_but_not_for_ever() -> None:
    desk = Desk()
    watch = MemoryWatch(desk.ledger, memory := Told(32 << 30))
    watch.look(0.0)
    for quarters in range(1, 20):
        watch.look(quarters / 4)
    assert memory.looks == 1
    watch.look(5.0)
    assert memory.looks == 2, "an operator may have lowered the limit"
    desk.ledger.memory_left -= 1 << 30
    watch.look(5.25)
    assert memory.looks == 3, "requests took a sixteenth of what they may"
    assert desk.ledger.memory_left == 16 << 30


def test_a_large_message_is_not_judged_by_an_old_look() -> None:
    desk = Desk()
    watch = MemoryWatch(desk.ledger, memory := Told(32 << 30))
    for at in (0.0, 0.1, 0.2):
        watch.arrived(at)
    assert memory.looks == 1
    memory.now_left = 10 * MIB
    watch.arrived(0.3)
    assert desk.ledger.memory_left == 5 * MIB


def test_while_little_is_left_no_look_is_left_out() -> None:
    desk = Desk()
    watch = MemoryWatch(desk.ledger, memory := Told(1 << 30), give_back=lambda: None)
    for quarters in range(4):
        watch.look(quarters / 4)
    memory.now_left = -1
    for quarters in range(4, 8):
        watch.look(quarters / 4)
    memory.now_left = 10 * MIB
    watch.look(2.0)
    assert desk.ledger.memory_left == 5 * MIB


def test_a_frame_that_would_take_most_of_what_is_left_is_not_received() -> None:
    ledger = Desk().ledger
    assert MemoryWatch(ledger, Told(50 * MIB)).frame_bytes_max(64 * MIB) == 25 * MIB
    assert MemoryWatch(ledger, Told(500 * MIB)).frame_bytes_max(64 * MIB) == 64 * MIB
    assert MemoryWatch(ledger, Told(-1)).frame_bytes_max(64 * MIB) == 2 * MIB


@pytest.mark.parametrize(("left", "messages"), [(0, 16), (400 * MIB, 25), (8 << 30, 512), (1 << 40, 10_000)])
def test_libzmq_holds_fewer_messages_of_a_connection_where_memory_is_little(left: int, messages: int) -> None:
    assert MemoryWatch(Desk().ledger, Told(left)).receive_queue() == messages


def test_a_worker_does_not_make_room_that_is_not_there() -> None:
    desk = Desk()
    desk.ready(b"w", credit=9)
    MemoryWatch(desk.ledger, Told(-5 * MIB), give_back=lambda: None).look(desk.now)
    assert heard(desk.request(b"c", 1)[0]).command == native.BUSY


def test_freed_memory_is_given_back_before_requests_are_refused_and_not_too_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk, memory, given = Desk(), Told(-1), []

    def trim() -> None:
        given.append(desk.now)
        memory.now_left = 10 * MIB

    watch = MemoryWatch(desk.ledger, memory, give_back=trim)
    watch.look(0.0)
    assert desk.ledger.memory_left == 5 * MIB
    assert caplog.records == []
    for at in (1.0, 2.0, 3.0, 6.0):
        desk.now, memory.now_left = at, -1
        watch.look(at)
    assert given == [0.0, 6.0]
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "once a minute"


# --- where there is none left -------------------------------------------------------------------------------


@pytest.mark.loopback
def test_a_message_that_cannot_be_copied_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        dealer.send_multipart([b"head", bytes(sockets.VIEW_BYTES_MIN), b"tail", b"more"])
        dealer.send_multipart([b"next"])

        def fails(frame: zmq.Frame) -> bytes:
            raise MemoryError

        monkeypatch.setattr(sockets, "_view", fails)
        assert router.poll(int(LIMIT_S * 1000))
        with pytest.raises(sockets.NoMemoryError) as caught:
            sockets.receive_bodies(router)
        assert caught.value.frames[1:] == [b"head"]
        assert router.poll(int(LIMIT_S * 1000))
        assert sockets.receive_bodies(router)[1:] == [b"next"]


@pytest.fixture
def settings() -> Iterator[Settings]:
    host = LoopbackHost()
    clients, state, peer_state = (f"tcp://127.0.0.1:{number}" for number in host.ports(3))
    endpoints = {"clients": clients, "state": state, "peer_state": peer_state}
    yield from_mapping({"role": "primary", "endpoints": endpoints, "http": {"bind": None}})
    host.close()


def ask(client: Socket, number: int) -> native.Message:
    client.send_multipart(native.encode_request(ident(number), b"echo", [bytes(sockets.VIEW_BYTES_MIN)]))
    assert client.poll(int(LIMIT_S * 1000))
    return native.decode(client.recv_multipart())


@pytest.mark.loopback
@pytest.mark.parametrize("place", ["read", "handle"])
def test_a_request_that_there_is_no_memory_for_is_refused_and_the_node_lives(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    is_short = True
    view, receive = sockets._view, Node.receive_frames

    def read(frame: zmq.Frame) -> bytes:
        if is_short and place == "read":
            raise MemoryError
        return view(frame)

    def handle(node: Node, frames: list[bytes], now: float, user_id: str) -> list[Output]:
        if is_short and place == "handle":
            raise MemoryError
        return receive(node, frames, now, user_id)

    monkeypatch.setattr(sockets, "_view", read)
    monkeypatch.setattr(Node, "receive_frames", handle)
    with zmq.Context() as context, BrokerServer(settings) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(settings.endpoints.clients)
            for number in (1, 2):
                told = ask(client, number)
                assert (told.command, told.identity) == (native.BUSY, ident(number))
                assert told.value > 0
            is_short = False
            assert ask(client, 3).command == native.NOT_ACTIVE
        server.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert server.node.broker.ledger.drops["memory-full"] == 2


@pytest.mark.loopback
def test_a_node_with_little_memory_refuses_what_it_cannot_hold_and_stays() -> None:
    """Four clients send it five times as much as it may have."""
    with standing_pair(NEVER, workers=0) as pair:
        node = pair.primary
        size = int(Path(f"/proc/{node.pid}/statm").read_text().split()[0]) * PAGE
        limit = int((size + 200 * MIB) / (1 - RESERVE))
        resource.prlimit(node.pid, resource.RLIMIT_AS, (limit, limit))
        answers: Counter[int] = Counter()
        number = 0
        with zmq.Context() as context:
            clients = []
            for _ in range(4):
                client = context.socket(zmq.DEALER)
                client.linger = 0
                client.connect(node.endpoint)
                clients.append(client)
            for _ in range(32):
                for client in clients:
                    number += 1
                    body = bytes(8 * MIB)
                    client.send_multipart(native.encode_request(ident(number), b"nobody", [body]))
            # A PING behind all that: when its PONG is there, everything before it was read.
            for client in clients:
                client.send_multipart(native.encode_ping())
            for client in clients:
                told = 0
                while told != native.PONG:
                    assert client.poll(int(LIMIT_S * 1000)), answers
                    told = native.decode(client.recv_multipart()).command
                    answers[told] += 1
                client.close()
        assert answers.keys() == {native.BUSY, native.PONG}
        state = node.state()
        drops = Counter(state.broker.drops)
        assert drops["memory-full"] + drops["bytes-full"] >= answers[native.BUSY]
        assert state.pair.state == "ACTIVE"
        assert state.pair.epoch == 1


# --- durable requests ---------------------------------------------------------------------------------------


# Runs a node that may have 200 MiB of data; an idle one has 85.
LIMITED = (
    sys.executable,
    "-c",
    f"""import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({200 * MIB}, {200 * MIB}))
os.execv(sys.executable, [sys.executable, "-m", "bstar_cli", *sys.argv[1:]])""",
)

# Runs a node in the control group whose folder is the first argument.
GROUPED = (
    sys.executable,
    "-c",
    """import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as members:
    members.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "bstar_cli", *sys.argv[2:]])""",
)


@contextmanager
def memory_group(name: str, size_bytes: int) -> Iterator[Path]:
    """The folder of a new control group that may have so much memory. Skips where none can be made."""
    top = Path("/sys/fs/cgroup")
    if (top / "memory").is_dir():
        top, limit = top / "memory", "memory.limit_in_bytes"
    else:
        limit = "memory.max"
    group = top / f"bstar-test-{os.getpid()}-{name}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(size_bytes))
        except OSError as error:
            pytest.skip(f"no control group can bound memory here: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.fixture(params=["RLIMIT_DATA of 200 MiB", "a control group of 250 MiB"])
def limited(request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[str, ...]]]:
    """The commands of two nodes with little memory."""
    if request.param.startswith("RLIMIT"):
        yield {"primary": LIMITED, "backup": LIMITED}
        return
    with memory_group("primary", 250 * MIB) as primary, memory_group("backup", 250 * MIB) as backup:
        yield {"primary": (*GROUPED, str(primary)), "backup": (*GROUPED, str(backup))}


async def submit_all(pair: Pair, count: int, ids: set[str]) -> None:
    """Submit so many bodies of a megabyte, all at once, and gather the ids of those that are acknowledged."""
    async with AsyncHAClient(pair.endpoints) as client:
        bodies = (os.urandom(16) + bytes(1_000_000) for _ in range(count))
        async for each in client.submit_many("nobody", bodies, window=count, timeout=2 * LIMIT_S):
            ids.add(each)


@pytest.mark.loopback
def test_clients_with_many_large_submits_do_not_end_a_node_with_little_memory(
    tmp_path: Path, limited: dict[str, tuple[str, ...]]
) -> None:
    """Three clients offer 108 MB at once. What is not acknowledged is refused as busy, and they give up."""
    with Pair(tmp_path, profile="wan", has_store=True, commands=limited) as pair:
        pair.start()
        wait_for_store(pair)
        ids: set[str] = set()

        def is_full() -> bool:
            drops = sum((Counter(node.state().broker.drops) for node in pair.nodes), Counter[str]())
            return len(ids) > 0 and drops["memory-full"] + drops["store-busy"] > 0

        async def offer() -> None:
            tasks = [asyncio.create_task(submit_all(pair, 36, ids)) for _ in range(3)]
            await asyncio.to_thread(wait_until, is_full, "some are acknowledged, some refused")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        asyncio.run(offer())
        assert pair.odd_ends == []
        expected = {"memory-full", "store-busy", "store-waits", "undeliverable"}
        assert pair.active().state().broker.drops.keys() <= expected
        with HAClient(pair.endpoints) as client:
            assert {client.status_of(each, timeout=LIMIT_S).state for each in ids} == {"pending"}


@pytest.mark.loopback
def test_a_client_that_reads_no_reply_leaves_a_node_with_little_memory_to_the_others(
    tmp_path: Path, limited: dict[str, tuple[str, ...]]
) -> None:
    """It asks for 1.5 GB. What it does not read is dropped beyond its share; another client is served."""
    with Pair(tmp_path, profile="wan", commands=limited) as pair:
        pair.start()
        with (
            zmq.Context() as context,
            Worker(pair.endpoints, "large", lambda request: bytes(int(request.body)), credit=20),
            HAClient(pair.endpoints, timeout=LIMIT_S) as other,
        ):
            assert other.request("large", b"5").body == bytes(5)
            active = pair.active()
            with context.socket(zmq.DEALER) as greedy:
                greedy.linger = 0
                greedy.rcvhwm = 1
                greedy.connect(active.endpoint)
                for _ in range(3_000):
                    greedy.send_multipart([b"MDPC02", b"\1", b"large", b"500000"])
                # Its last requests are answered or refused, whatever became of the replies.
                active.wait_for("dropped", lambda state: state.broker.drops.get("undeliverable", 0) > 100)
                for _ in range(20):
                    assert other.request("large", b"100000").body == bytes(100_000)
            assert pair.odd_ends == []
            assert active.state().pair.epoch == 1
