"""Two real pairs: clients and workers agree on where a service is, and a failover concerns one pair only."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from bstar import records
from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.fleet import Fleet
from bstar.journal import SegmentName
from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    CallFailed,
    Event,
    FailedOver,
    HAClient,
    JournalSettings,
    Reply,
    Request,
    Worker,
    WorkerHooks,
)
from bstar_testing import wait_until
from bstar_testing.nodes import COMMAND
from support.brokers import Broker, broker_pair
from support.talking import Program

pytestmark = pytest.mark.loopback

T = TypeVar("T")
LIMIT_S = 60.0
SERVICES = [f"service-{number}" for number in range(6)]
# What nobody offers has a pair all the same.
NOBODY = "nobody-offers-this"


class Stand:
    """Two pairs, ``east`` and ``west``; both primaries are active."""

    def __init__(self, east: tuple[Broker, Broker], west: tuple[Broker, Broker]) -> None:
        self.brokers = {"east": east, "west": west}
        self.nodes = {name: [node.endpoint for node in nodes] for name, nodes in self.brokers.items()}
        self.fleet = Fleet.of(self.nodes)

    def home(self, service: str) -> str:
        home = self.fleet.pair_of(service).name
        assert home is not None
        return home

    def services_of(self, pair: str) -> list[str]:
        return [service for service in SERVICES if self.home(service) == pair]


class Registrations(WorkerHooks):
    """Where workers have registered."""

    def __init__(self) -> None:
        self.endpoints: dict[bytes, set[str]] = {}
        self._lock = threading.Lock()

    def registered(self, worker: Worker, endpoint: str) -> None:
        with self._lock:
            self.endpoints.setdefault(worker.service, set()).add(endpoint)

    def wait_for_both_nodes(self, count: int) -> None:
        wait_until(
            lambda: len(self.endpoints) == count and all(len(each) == 2 for each in self.endpoints.values()),
            f"{count} workers are registered with both nodes of their pair: {self.endpoints}",
        )


@contextmanager
def two_pairs(folder: Path) -> Iterator[Stand]:
    with broker_pair(folder / "east", pair="east") as east, broker_pair(folder / "west", pair="west") as west:
        yield Stand(east, west)


@contextmanager
def workers_of(stand: Stand) -> Iterator[Registrations]:
    """A worker for each service, told of the fleet and not of its pair."""
    seen = Registrations()
    with ExitStack() as stack:
        for service in SERVICES:
            stack.enter_context(Worker(stand.nodes, service, named, hooks=seen))
        seen.wait_for_both_nodes(len(SERVICES))
        yield seen


def named(request: Request) -> bytes:
    return request.service + b":" + request.body


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """For tests that break nothing."""
    with two_pairs(tmp_path_factory.mktemp("fleet")) as stand:
        yield stand


def test_both_pairs_have_services_or_the_other_tests_say_nothing(stand: Stand) -> None:
    assert stand.services_of("east")
    assert stand.services_of("west")


def test_workers_are_where_clients_ask(stand: Stand) -> None:
    with workers_of(stand) as seen, HAClient(stand.nodes, timeout=LIMIT_S) as client:
        assert seen.endpoints == {
            service.encode(): set(stand.nodes[stand.home(service)]) for service in SERVICES
        }
        for service in SERVICES:
            reply = client.request(service, b"x")
            assert (reply.body, reply.attempts) == (named_by(service, b"x"), 1)
            assert reply.endpoint in stand.nodes[stand.home(service)]
            assert client.discover(service)
        assert not client.discover(NOBODY)
        listed = {str(each["service"]): each["pair"] for each in client.services() if each["workers"]}
        assert {service: listed[service] for service in SERVICES} == {
            service: stand.home(service) for service in SERVICES
        }
        assert client.actives == {pair: nodes[0] for pair, nodes in stand.nodes.items()}
        with pytest.raises(LocalProtocolError, match="actives"):
            _ = client.active


def named_by(service: str, body: bytes) -> bytes:
    return service.encode() + b":" + body


def mixed_asks(count: int) -> list[Ask]:
    return [Ask(b"%d" % number, service=SERVICES[number % len(SERVICES)]) for number in range(count)]


def check_mixed(outcomes: list[Reply | CallFailed], stand: Stand) -> None:
    """All of ``mixed_asks`` in order, each from its own pair."""
    for number, outcome in enumerate(outcomes):
        service = SERVICES[number % len(SERVICES)]
        assert isinstance(outcome, Reply)
        assert (outcome.index, outcome.body) == (number, named_by(service, b"%d" % number))
        assert outcome.endpoint in stand.nodes[stand.home(service)]


def test_a_map_of_several_services_goes_to_several_pairs_and_keeps_its_order(stand: Stand) -> None:
    with workers_of(stand), HAClient(stand.nodes, timeout=LIMIT_S) as client:
        outcomes: list[Reply | CallFailed] = list(client.map("unused", mixed_asks(300), window=50))
        assert len(outcomes) == 300
        check_mixed(outcomes, stand)
        endpoints = {outcome.endpoint for outcome in client.map(SERVICES[0], [b"x"] * 50)}
        assert len(endpoints) == 1


async def test_the_asyncio_twins_agree_with_them(stand: Stand) -> None:
    async def answer(request: Request) -> bytes:
        return named(request)

    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    seen = Registrations()
    workers = [AsyncWorker(stand.nodes, service, answer, hooks=seen).start() for service in SERVICES]
    workers.append(AsyncWorker(stand.nodes, "parts", parts, hooks=seen).start())
    await asyncio.to_thread(seen.wait_for_both_nodes, len(workers))
    async with AsyncHAClient(stand.nodes, timeout=LIMIT_S) as client:
        replies = await asyncio.gather(*(client.request(service, b"x") for service in SERVICES))
        assert [reply.body for reply in replies] == [named_by(service, b"x") for service in SERVICES]
        check_mixed([each async for each in client.map("unused", mixed_asks(300), window=50)], stand)
        assert [part.frames async for part in client.stream("parts", b"")] == [(b"one",), (b"two",), (b"",)]
        assert await client.discover("parts")
        listed = {str(each["service"]): each["pair"] for each in await client.services()}
        assert listed["parts"] == stand.home("parts")
        assert client.actives == {pair: nodes[0] for pair, nodes in stand.nodes.items()}
    for worker in workers:
        await worker.close()


def test_the_journals_of_a_client_and_a_worker_bear_the_names_of_their_pairs(
    stand: Stand, tmp_path: Path
) -> None:
    place = JournalSettings(str(tmp_path))
    with (
        Worker(stand.nodes, SERVICES[0], named, journal=place),
        Worker(stand.nodes, "other", named, journal=place, pins={"other": other(stand.home(SERVICES[0]))}),
        HAClient(
            stand.nodes, timeout=LIMIT_S, journal=place, pins={"other": other(stand.home(SERVICES[0]))}
        ) as client,
    ):
        for _ in range(3):
            client.request(SERVICES[0], b"x")
        client.request("other", b"x")
    told: Counter[tuple[str, str, str]] = Counter()
    for path in tmp_path.iterdir():
        name = SegmentName.parse(path.name)
        assert name is not None
        octets = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for record in (records.decode(line) for line in octets.splitlines(keepends=True)):
            if isinstance(record, records.Call | records.Execution):
                told[(name.pair, type(record).__name__, record.service)] += 1
                assert record.endpoint in stand.nodes[name.pair]
    home = stand.home(SERVICES[0])
    assert told == {
        (home, "Call", SERVICES[0]): 3,
        (home, "Execution", SERVICES[0]): 3,
        (other(home), "Call", "other"): 1,
        (other(home), "Execution", "other"): 1,
    }


def other(pair: str) -> str:
    return "west" if pair == "east" else "east"


def test_a_journal_needs_the_names_of_the_pairs(stand: Stand, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="names"):
        HAClient(list(stand.nodes.values()), journal=tmp_path)
    with pytest.raises(ConfigurationError, match="'north'"):
        HAClient(stand.nodes, journal=JournalSettings(str(tmp_path), pair="north"))


# --- commands -----------------------------------------------------------------------------------------------


def bstar(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_commands_take_the_configuration_of_a_fleet(stand: Stand, tmp_path: Path) -> None:
    config = tmp_path / "client.yaml"
    config.write_text(json.dumps({"pairs": stand.nodes, "pins": {"cli-fleet": "west"}}))
    told = ("--config", str(config))
    seen = Registrations()
    with (
        Program(
            "-m", "bstar_cli", "worker", "--service", "cli-fleet", "--log-format", "json", *told
        ) as worker,
        Worker(stand.nodes["east"], "cli-fleet", named, hooks=seen),
    ):
        for endpoint in stand.nodes["west"]:
            worker.wait_for(re.compile(rf'(?=.*"registered").*{re.escape(endpoint)}"').match)
        wait_until(lambda: bool(seen.endpoints), "the stray worker is registered")
        done = bstar("call", "cli-fleet", "hello", "--json", *told)
        assert (done.returncode, json.loads(done.stdout)["endpoint"]) == (0, stand.nodes["west"][0])
        assert bstar("call", "mmi.service", "cli-fleet", *told).stdout == "200"
        refused = bstar("call", "mmi.state", *told)
        assert "2 pairs" in refused.stderr
        done = bstar("load", "cli-fleet", "--seconds", "1", "--rate", "20", "--json", *told)
        assert done.returncode == 0, done.stdout
        assert json.loads(done.stdout.splitlines()[0])["active"] == stand.nodes["west"][0]
        done = bstar("status", "--service", "cli-fleet", *told)
        assert done.returncode == 6, done.stderr
        table = done.stdout.splitlines()
        assert table[0].split()[:3] == ["PAIR", "ENDPOINT", "ROLE"]
        assert [line.split()[:4] for line in table[1:5]] == [
            [pair, endpoint, role, state]
            for pair, nodes in stand.nodes.items()
            for endpoint, role, state in zip(nodes, ("primary", "backup"), ("ACTIVE", "PASSIVE"), strict=True)
        ]
        assert "cli-fleet has workers at east, but clients look for it at west" in done.stderr
        assert "all 2 pairs are served, but not where" in done.stderr
        assert f"cli-fleet belongs to west: {', '.join(stand.nodes['west'])}" in done.stderr
        document = json.loads(bstar("status", "--json", *told).stdout)
        assert [pair["pair"] for pair in document["pairs"]] == ["east", "west"]
        assert [node["pair"] for node in document["nodes"]] == ["east", "east", "west", "west"]
        assert document["reason"] == "strays"
        assert [pair["reason"] for pair in document["pairs"]] == ["served", "served"]
        assert document["strays"] == [
            {"service": "cli-fleet", "pair": "east", "belongs_to": "west", "workers": 1, "queued": 0}
        ]
        listed = ";".join(",".join(nodes) for nodes in stand.nodes.values())
        done = bstar("status", "--endpoints", f"{listed};tcp://127.0.0.1:1", "--timeout", "10")
        assert done.returncode == 3
        assert "1 of 3 pairs: #3: no node answers" in done.stderr
        # The west's nodes stand where the list says east.
        crossed = json.dumps({"pairs": {"east": stand.nodes["west"], "west": stand.nodes["east"]}})
        config.write_text(crossed)
        done = bstar("status", "--json", *told)
        assert done.returncode == 6
        assert [pair["reason"] for pair in json.loads(done.stdout)["pairs"]] == ["wrong-pair"] * 2


def test_an_active_node_whose_address_cannot_be_reached_is_not_taken_for_dead(stand: Stand) -> None:
    """As from a container, or with the addresses of another network."""
    active, passive = stand.nodes["east"]
    elsewhere = "tcp://127.0.0.1:1"
    done = bstar("status", "--json", "--timeout", "5", "--endpoints", f"{elsewhere},{passive}")
    document = json.loads(done.stdout)
    assert (done.returncode, document["reason"]) == (1, "active-unreachable")
    assert [node["reason"] for node in document["nodes"]] == ["no-answer", "stands-by"]
    assert elsewhere in document["why"]
    done = bstar("status", "--timeout", "5", "--endpoints", f"{active},{elsewhere}")
    assert done.returncode == 1
    assert f"hears its peer PASSIVE, but {elsewhere} does not answer" in done.stderr


# --- a pair more --------------------------------------------------------------------------------------------


def test_a_pair_added_in_the_documented_order_loses_nothing(stand: Stand) -> None:
    """Workers first, at both pairs, then clients; docs/fleet.md, "Changing the list"."""
    old = {"east": stand.nodes["east"]}
    service = stand.services_of("west")[0]
    told: dict[str, list[Reply]] = {"old": [], "new": []}
    stop = threading.Event()

    def ask(client: HAClient, replies: list[Reply]) -> None:
        while not stop.is_set():
            replies.append(client.request(service, b"x"))

    with ExitStack() as stack:
        early, late = Registrations(), Registrations()
        old_worker = stack.enter_context(Worker(old, service, named, hooks=early))
        old_client = stack.enter_context(HAClient(old, timeout=LIMIT_S))
        threads = [threading.Thread(target=ask, args=(old_client, told["old"]))]
        threads[0].start()
        wait_until(lambda: len(told["old"]) > 20, "replies before the change")
        stack.enter_context(Worker(stand.nodes, service, named, hooks=late))
        late.wait_for_both_nodes(1)
        new_client = stack.enter_context(HAClient(stand.nodes, timeout=LIMIT_S))
        threads.append(threading.Thread(target=ask, args=(new_client, told["new"])))
        threads[1].start()
        before = len(told["old"])
        wait_until(lambda: len(told["new"]) > 20 and len(told["old"]) > before + 20, "both are served")
        stop.set()
        for thread in threads:
            thread.join()
        old_client.close()
        old_worker.close()
        assert new_client.request(service, b"x").endpoint == stand.nodes["west"][0]
    assert {reply.endpoint for reply in told["old"]} == {stand.nodes["east"][0]}
    assert {reply.endpoint for reply in told["new"]} == {stand.nodes["west"][0]}
    assert {reply.body for replies in told.values() for reply in replies} == {named_by(service, b"x")}


# --- what breaks --------------------------------------------------------------------------------------------


def test_a_failover_of_one_pair_is_not_noticed_at_the_other(tmp_path: Path) -> None:
    events: list[Event] = []
    with (
        two_pairs(tmp_path) as stand,
        workers_of(stand),
        HAClient(stand.nodes, timeout=LIMIT_S, on_event=events.append) as client,
    ):
        hit, spared = stand.services_of("east")[0], stand.services_of("west")[0]
        stop = threading.Event()
        replies: dict[str, list[Reply]] = {hit: [], spared: []}

        def ask(service: str) -> None:
            while not stop.is_set():
                replies[service].append(client.request(service, b"x"))

        threads = [threading.Thread(target=ask, args=(service,)) for service in replies]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(len(each) > 20 for each in replies.values()), "replies before the kill")
        victim, heir = stand.brokers["east"]
        victim.kill()
        wait_until(
            lambda: sum(reply.endpoint == heir.endpoint for reply in replies[hit]) > 20,
            "replies of the backup",
        )
        stop.set()
        for thread in threads:
            thread.join()
    failovers = [event for event in events if isinstance(event, FailedOver)]
    assert [(event.from_endpoint, event.to_endpoint) for event in failovers] == [
        (victim.endpoint, heir.endpoint)
    ]
    assert {(reply.attempts, reply.endpoint) for reply in replies[spared]} == {(1, stand.nodes["west"][0])}
    assert {reply.body for reply in replies[hit]} == {named_by(hit, b"x")}
