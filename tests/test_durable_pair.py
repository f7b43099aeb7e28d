"""Clients, workers and the command against a real pair with a store, whose nodes are killed."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bstar.errors import DeadLetterError, RejectedError, StoreEndedError, UnknownRequestError
from bstar_broker.core.snapshot import NodeState
from bstar_client import HAClient, Request, Retry, RetryPolicy, Task, Worker
from bstar_testing import Pair
from support.brokers import BrokerPair
from support.stored_pair import stored_pair

pytestmark = pytest.mark.loopback

COUNT = 1_000
ORDERED = 100
# So many entries that the log is cut.
SMALL, LARGE = 2_600, 24
LIMIT_S = 120.0

Handler = Callable[[Request], bytes]

# ``bstar serve`` whose disk thread ends with the first entry that has a body, as without memory.
FRAIL = """
import sys
from bstar_broker.store.disk import Disk
from bstar_cli.entry import main

turn = Disk._turn

def frail(disk):
    if any(getattr(order, "apply_to", 0) > 1 for order in disk._waiting):
        raise AssertionError("a fault of this test")
    turn(disk)

Disk._turn = frail
sys.exit(main())
"""


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPair]:
    with stored_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def pair(shared_pair: BrokerPair) -> BrokerPair:
    """Whole again, whatever a test before did to it. Each test has services of its own."""
    shared_pair.settled()
    shared_pair.active().wait_for("two copies", has_two_copies)
    return shared_pair


def has_two_copies(state: NodeState) -> bool:
    return state.store is not None and state.store.copies == 2


def test_a_node_whose_disk_thread_has_ended_gives_its_role_away_and_ends(tmp_path: Path) -> None:
    commands = {"primary": (sys.executable, "-c", FRAIL)}
    settings = {"store.when_alone": "accept"}
    with Pair(tmp_path, has_store=True, settings=settings, commands=commands) as pair:
        pair.start()
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            stored = client.submit("price", b"apple")
            assert pair.primary.wait_exit(LIMIT_S) == StoreEndedError.exit_code
            assert pair.active() is pair.backup
            assert client.status_of(stored).state == "pending"


def test_a_node_that_got_the_whole_table_runs_what_is_in_it(tmp_path: Path) -> None:
    with stored_pair(tmp_path, when_alone="accept", log_bytes=1 << 20) as pair:
        active = pair.active()
        passive = pair.peer_of(active)
        active.wait_for("two copies", has_two_copies)
        passive.kill()
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            first = client.submit("price", b"apple")
            # So much that the log of the active node no longer begins with it.
            list(client.submit_many("other", [b"x"] * SMALL, window=1))
            for _ in range(LARGE):
                client.submit("other", b"x" * 200_000)
            role = "primary" if passive is pair.primary else "backup"
            shutil.rmtree(tmp_path / f"{role}-store")
            passive.start()
            active.wait_for("two copies", has_two_copies)
            held = passive.wait_for(
                "the table",
                lambda state: state.store is not None and state.store.pending == 1 + SMALL + LARGE,
            )
            assert held.store is not None
            active.kill()
            with Worker(pair.endpoints, "price", lambda request: b"cost " + request.body):
                reply = client.result(first, wait=LIMIT_S)
        assert reply is not None
        assert reply.body == b"cost apple"


def test_requests_survive_the_death_of_both_nodes(pair: BrokerPair) -> None:
    with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        ids = list(client.submit_many("kept", [b"%d" % number for number in range(COUNT)]))
        for node in pair.nodes:
            node.kill()
        assert len(set(ids)) == COUNT
        pair.start()
        with Worker(pair.endpoints, "kept", lambda request: b"cost " + request.body, credit=100):
            answers = [client.result(each).body for each in ids]
        assert answers == [b"cost %d" % number for number in range(COUNT)]
        assert [each.id for each in client.requests("kept", state="answered")] == ids
        assert client.close_result(ids[0]).state == "answered"
        with pytest.raises(UnknownRequestError):
            client.result(ids[0])


def test_submits_go_on_when_the_active_node_is_killed(pair: BrokerPair) -> None:
    """It comes back: with one disk alone new requests would be refused."""
    half = threading.Event()

    def bodies() -> Iterator[bytes]:
        for number in itertools.count():
            if number == COUNT // 2:
                half.set()
            if number == COUNT:
                return
            yield b"%d" % number

    seen: set[bytes] = set()

    def price(request: Request) -> bytes:
        seen.add(request.body)
        return request.body

    def kill() -> None:
        half.wait(LIMIT_S)
        pair.kill_active().start()

    with (
        HAClient(pair.endpoints, timeout=LIMIT_S) as client,
        Worker(pair.endpoints, "many", price, credit=50),
    ):
        killer = threading.Thread(target=kill)
        killer.start()
        ids = list(client.submit_many("many", bodies(), window=100))
        killer.join(LIMIT_S)
        assert [client.result(each).body for each in ids] == [b"%d" % number for number in range(COUNT)]
    assert len(seen) == COUNT


def test_headers_survive_the_death_of_both_nodes_and_a_failed_attempt(pair: BrokerPair) -> None:
    seen: dict[bytes, list[dict[str, str]]] = {}

    def price(request: Request) -> bytes:
        seen.setdefault(request.body, []).append(dict(request.headers))
        if request.attempt == 1:
            raise Retry(after=0)
        return b""

    with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        ids = [client.submit("named", b"apple", headers={"tenant": "blue"}), client.submit("named", b"pear")]
        ids += client.submit_many("named", [Task(b"fig", headers={"tenant": "red"}), b"nut"])
        for node in pair.nodes:
            node.kill()
        pair.start()
        with Worker(pair.endpoints, "named", price, credit=4):
            for each in ids:
                client.result(each)
    blue, red = {"tenant": "blue"}, {"tenant": "red"}
    assert seen == {b"apple": [blue] * 2, b"pear": [{}] * 2, b"fig": [red] * 2, b"nut": [{}] * 2}


def test_a_handler_decides_what_becomes_of_its_request(pair: BrokerPair) -> None:
    attempts: dict[bytes, list[int]] = {}

    def price(request: Request) -> bytes:
        attempts.setdefault(request.body, []).append(request.attempt)
        if request.body == b"bad":
            raise ValueError("no such thing")
        if request.attempt < 3:
            raise Retry("not yet", after=0.01)
        return b"done"

    policy = RetryPolicy(max=4, backoff=0.01)
    with HAClient(pair.endpoints, timeout=LIMIT_S) as client, Worker(pair.endpoints, "decided", price):
        slow, bad = (client.submit("decided", body, retries=policy) for body in (b"slow", b"bad"))
        assert client.result(slow).attempts == 3
        with pytest.raises(DeadLetterError, match="after 4 attempts: failed: ValueError: no such thing"):
            client.result(bad)
        assert [each.id for each in client.dead_letters("decided")] == [bad]
        assert client.retry(bad).state == "pending"
        with pytest.raises(DeadLetterError):
            client.result(bad)
    assert attempts == {b"slow": [1, 2, 3], b"bad": [1, 2, 3, 4] * 2}


@pytest.mark.parametrize("has_failover", [False, True])
def test_requests_of_a_service_begin_in_the_order_of_their_submission(
    pair: BrokerPair, has_failover: bool
) -> None:
    """After a failover some of the last that had begun begin again; each begins first in its turn."""
    services = [f"{name} {has_failover}" for name in ("one", "two", "three")]
    bodies = [b"%d" % number for number in range(ORDERED)]
    begun: dict[str, list[bytes]] = {service: [] for service in services}
    is_half = threading.Event()

    def handler(service: str) -> Handler:
        def work(request: Request) -> bytes:
            begun[service].append(request.body)
            if len(begun[service]) > ORDERED // 2:
                is_half.set()
            return request.body

        return work

    with HAClient(pair.endpoints, timeout=LIMIT_S) as client, ExitStack() as workers:
        ids = [client.submit(service, body) for body in bodies for service in services]
        for service in services:
            workers.enter_context(Worker(pair.endpoints, service, handler(service), credit=1))
        if has_failover:
            assert is_half.wait(LIMIT_S)
            pair.kill_active().start()
        for each in ids:
            client.result(each)
    for service in services:
        assert list(dict.fromkeys(begun[service])) == bodies
        assert has_failover or begun[service] == bodies


def test_a_node_without_a_store_says_so(tmp_path: Path) -> None:
    with BrokerPair(tmp_path) as pair:
        pair.start()
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            with pytest.raises(RejectedError, match=r"store\.directory"):
                client.submit("price", b"x")
            with pytest.raises(RejectedError, match=r"store\.directory") as caught:
                list(client.submit_many("price", [b"x", b"y"]))
            assert caught.value.__notes__ == ["body 0 of submit_many()"]


def test_groups_keep_their_order_through_the_death_of_the_active_node(pair: BrokerPair) -> None:
    """No request begins before all that are ahead of it in its group have ended; some are retried."""
    groups, each, half = 4, 30, threading.Event()
    lock = threading.Lock()
    ended: dict[str, list[int]] = {f"account {number}": [] for number in range(groups)}
    wrong: list[tuple[str, int, list[int]]] = []

    def book(request: Request) -> bytes:
        group, _, text = request.body.decode().rpartition(" ")
        number = int(text)
        with lock:
            if set(range(number)) - set(ended[group]):
                wrong.append((group, number, ended[group][:]))
        if request.attempt == 1 and number % 7 == 3:
            raise Retry("not yet", after=0.05)
        with lock:
            ended[group].append(number)
            if sum(map(len, ended.values())) >= groups * each // 2:
                half.set()
        return request.body

    tasks = [Task(f"{group} {number}".encode(), group=group) for number in range(each) for group in ended]
    with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        ids = list(client.submit_many("book", tasks, window=1))
        with Worker(pair.endpoints, "book", book, threads=8):
            assert half.wait(LIMIT_S)
            pair.kill_active().start()
            answers = [client.result(each).body for each in ids]
        assert answers == [task.body for task in tasks]
        assert [each.group for each in client.requests("book")] == [task.group for task in tasks]
    assert wrong == []
