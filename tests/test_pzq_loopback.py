"""PZQ with plain ZeroMQ peers at a real pair."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bstar.settings.fields import FIELDS
from bstar.wire import pzq
from bstar_client import HAClient, Request, Worker
from bstar_client.pzq import PzqConsumer, PzqProducer
from bstar_testing import wait_until
from bstar_testing.nodes import Node
from bstar_testing.pairs import Pair
from support.pzq_peers import Consumer, Monitor, Producer, context
from support.waiting import LIMIT_S, wait_for_store

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

DOORS = ("fronts.pzq.producers", "fronts.pzq.consumers", "fronts.pzq.monitor")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    settings = {"fronts.pzq.ack_timeout_s": 1.0, "store.when_alone": "accept"}
    with Pair(tmp_path, has_store=True, doors=DOORS, settings=settings) as made:
        made.start()
        wait_for_store(made)
        yield made


def kept(node: Node) -> int:
    store = node.state().store
    assert store is not None
    return store.pending + store.answered + store.dead + store.cancelled


@requirement("PZQ-B-01")
@requirement("PZQ-P-01")
@requirement("PZQ-C-01")
def test_plain_sockets_produce_consume_and_monitor(pair: Pair) -> None:
    """PZQ-B-01, PZQ-P-01, PZQ-C-01: each socket type at its door; the passive node sends producers away."""
    producers, consumers, _ = map(pair.doors, DOORS)
    bodies = [b"%d" % number for number in range(500)]
    with context() as zmq_context, Producer(zmq_context, producers) as producer:
        producer.produce(bodies)
        assert producer.failures
        assert all(b"failover" in text for text in producer.texts)
        with Consumer(zmq_context, consumers) as consumer:
            assert sorted(consumer.consume(500)) == sorted(bodies)
        wait_until(lambda: kept(pair.primary) == 0, "acknowledged messages are forgotten")
        with Monitor(zmq_context, pair.doors(DOORS[2])[0]) as monitor:
            figures = pzq.read_figures(monitor.ask())
            assert figures["messages"] == figures["messages_inflight"] == 0
            assert figures["db_size"] > 0
            assert monitor.ask(b"STATUS").startswith(b"error: ")


@requirement("PZQ-P-01")
@requirement("PZQ-C-01")
def test_our_peers_lose_nothing_through_a_kill(pair: Pair) -> None:
    producers, consumers, _ = map(pair.doors, DOORS)
    with PzqProducer(producers, retry_s=0.5) as producer, PzqConsumer(consumers) as consumer:
        for number in range(100):
            producer.send(b"%d" % number)
            if number == 50:
                producer.flush(LIMIT_S)
                pair.kill_active()
        producer.flush(LIMIT_S)
        found: set[tuple[bytes, ...]] = set()
        while len(found) < 100:
            message = consumer.receive(LIMIT_S)
            assert message is not None
            found.add(message.frames)
            consumer.done(message)
        assert found == {(b"%d" % number,) for number in range(100)}
        wait_until(lambda: kept(pair.backup) == 0, "acknowledged messages are forgotten")


@requirement("PZQ-C-03")
def test_what_was_stored_before_a_kill_is_consumed_after_it(pair: Pair) -> None:
    """PZQ-C-03: a message that comes again has its key."""
    producers, consumers, _ = map(pair.doors, DOORS)
    with (
        context() as zmq_context,
        Producer(zmq_context, producers) as producer,
        Consumer(zmq_context, consumers) as consumer,
    ):
        producer.produce([b"%d" % number for number in range(20)])
        # It acknowledges none of them.
        seen: dict[bytes, bytes] = {}
        for frames, body in consumer.messages():
            seen[frames[1]] = body[0]
            if len(seen) == 20:
                break
        pair.kill_active()
        producer.produce([b"last"])
        again = {frames[1]: body[0] for frames, body in consumed(consumer, 21)}
        assert seen.items() <= again.items()
        assert sorted(again.values()) == sorted([*seen.values(), b"last"])
        wait_until(lambda: kept(pair.backup) == 0, "acknowledged messages are forgotten")


def consumed(consumer: Consumer, count: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    keys = set()
    for frames, body in consumer.messages():
        keys.add(frames[1])
        consumer.ack(frames)
        yield frames, body
        if len(keys) == count:
            return


@requirement("PZQ-C-02")
def test_a_consumer_that_drops_what_came_too_late_gets_it_again(pair: Pair) -> None:
    """PZQ-C-02: sent time and ack timeout tell it."""
    producers, consumers, _ = map(pair.doors, DOORS)
    with (
        context() as zmq_context,
        Producer(zmq_context, producers) as producer,
        Consumer(zmq_context, consumers) as consumer,
    ):
        producer.produce([b"late"])
        messages = consumer.messages()
        first, _ = next(messages)
        second, body = next(messages)
        assert body == [b"late"]
        assert first[1] == second[1]
        assert int(second[2]) >= int(first[2]) + int(first[3])
        consumer.ack(second)
        wait_until(lambda: kept(pair.primary) == 0, "acknowledged messages are forgotten")


def test_clients_and_workers_of_ours_share_the_service(pair: Pair) -> None:
    producers, consumers, _ = map(pair.doors, DOORS)
    with context() as zmq_context, HAClient(pair.endpoints) as client:
        client.submit("pzq", b"from a client")
        with Consumer(zmq_context, consumers) as consumer:
            assert consumer.consume(1) == [b"from a client"]
        with Producer(zmq_context, producers) as producer:
            producer.produce([b"from a producer"])
        heard: list[bytes] = []

        def handle(request: Request) -> bytes:
            heard.append(request.body)
            return b"done"

        with Worker(pair.endpoints, "pzq", handle):
            wait_until(lambda: heard == [b"from a producer"], "a worker has the producer's message")


def test_the_program_on_the_page_does_what_it_says(pair: Pair, tmp_path: Path) -> None:
    """docs/patterns.md: a producer and a consumer, and the configuration above them."""
    page = (Path(__file__).parents[1] / "docs/patterns.md").read_text()
    [given] = [
        yaml.safe_load(block)["fronts"]["pzq"]
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if "pzq:" in block
    ]
    assert {f"fronts.pzq.{name}" for name in given} <= FIELDS.keys()
    [program] = re.findall(r"```python\n(# orders.py\n.*?)```", page, re.DOTALL)
    endpoints = [*pair.doors(DOORS[0]), *pair.doors(DOORS[1])]
    for port, endpoint in zip(("11131", "21131", "11132", "21132"), endpoints, strict=True):
        assert f'"{port}"' in program
        program = program.replace(f'"{port}"', f'"{endpoint.rpartition(":")[2]}"')
    (tmp_path / "orders.py").write_text(program)
    command = [sys.executable, "orders.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120.0, check=True)
    assert done.stdout == "b'3 apples'\n"
