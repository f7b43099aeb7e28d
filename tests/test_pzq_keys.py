"""PZQ at a real pair with keys: who gets messages and figures, and who gets nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from bstar.security import Security, new_key
from bstar.wire import pzq
from bstar_client import Request, Worker
from bstar_testing import Pair, wait_until
from support.pzq_peers import Consumer, Monitor, Producer, context
from support.waiting import LIMIT_S, wait_for_store

pytestmark = pytest.mark.loopback

DOORS = ("fronts.pzq.producers", "fronts.pzq.consumers", "fronts.pzq.monitor")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    settings = {"store.when_alone": "accept", "fronts.pzq.ack_timeout_s": 1.0}
    with Pair(tmp_path, has_store=True, is_secure=True, doors=DOORS, settings=settings) as made:
        for name, role in (
            ("shop", "calls:pzq"),
            ("other-client", "calls:price"),
            ("packer", "offers:pzq"),
            ("second", "offers:pzq"),
            ("other-worker", "offers:price"),
        ):
            keys_of(made).add(name, role)
        made.start()
        wait_for_store(made)
        yield made


def keys_of(pair: Pair) -> Any:
    assert pair.keys is not None
    return pair.keys


def security(pair: Pair, name: str) -> Security:
    made = keys_of(pair).security(name)
    assert isinstance(made, Security)
    return made


def stranger(pair: Pair) -> Security:
    """A good key that no list has."""
    return Security(new_key("stranger"), servers=security(pair, "shop").servers)


def listed(pair: Pair) -> int:
    """How many principals the primary knows."""
    state = pair.primary.state()
    assert state.security is not None
    return state.security.principals


def wait_for_refusal(pair: Pair, reason: str) -> None:
    """Until the primary has refused a connection for this reason."""

    def is_there(_: object) -> bool:
        state = pair.primary.state()
        return state.security is not None and state.security.refusals.get(reason, 0) > 0

    pair.primary.wait_for(f"a refusal {reason}", is_there)


def producer(pair: Pair, zmq_context: zmq.Context[Any], name: str = "shop") -> Producer:
    """Its patience outlasts every wait: none of its messages is stored twice."""
    # It is at both nodes, and the passive one refuses at once.
    return Producer(zmq_context, pair.doors(DOORS[0]), patience_s=LIMIT_S, security=security(pair, name))


def consumer(pair: Pair, zmq_context: zmq.Context[Any], key: Security) -> Consumer:
    return Consumer(zmq_context, pair.doors(DOORS[1]), key)


def test_with_keys_messages_go_through_before_and_after_a_kill(pair: Pair) -> None:
    with (
        context() as zmq_context,
        producer(pair, zmq_context) as shop,
        consumer(pair, zmq_context, security(pair, "packer")) as packer,
    ):
        shop.produce([b"1", b"2"])
        assert sorted(packer.consume(2)) == [b"1", b"2"]
        pair.primary.wait_for("both are acknowledged", lambda state: state.fronts[0].counts["done"] == 2)
        pair.kill_active()
    with (
        context() as zmq_context,
        Producer(
            zmq_context,
            pair.doors(DOORS[0])[1:],
            patience_s=LIMIT_S,
            security=Security(security(pair, "shop").key, servers=security(pair, "shop").servers[1:]),
        ) as shop,
        consumer(pair, zmq_context, security(pair, "packer")) as packer,
    ):
        shop.produce([b"3"])
        assert b"3" in {body[0] for _, body in until(packer, b"3")}


def test_who_may_not_offer_the_service_gets_no_message(pair: Pair) -> None:
    with context() as zmq_context, producer(pair, zmq_context) as shop:
        with (
            consumer(pair, zmq_context, stranger(pair)) as nobody,
            consumer(pair, zmq_context, security(pair, "shop")) as client,
            consumer(pair, zmq_context, security(pair, "other-worker")) as other,
            Consumer(zmq_context, pair.doors(DOORS[1])) as keyless,
        ):
            for reason in ("unknown-key", "wrong-role"):
                wait_for_refusal(pair, reason)
            shop.produce([b"order"])
            # The message comes to who may have it, and then it has been to nobody else.
            with consumer(pair, zmq_context, security(pair, "packer")) as packer:
                assert packer.consume(1) == [b"order"]
            for peer in (nobody, client, other, keyless):
                assert peer.receive(0.0) is None
        with producer(pair, zmq_context, "other-client") as thief:
            thief.send(b"mine")
            while not any(b"may not" in text for text in thief.texts):
                thief.turn(LIMIT_S)
            assert thief.stored == []


def test_a_consumer_whose_key_is_withdrawn_gets_no_message_more(pair: Pair) -> None:
    with (
        context() as zmq_context,
        producer(pair, zmq_context) as shop,
        consumer(pair, zmq_context, security(pair, "packer")) as packer,
    ):
        shop.produce([b"first"])
        assert packer.consume(1) == [b"first"]
        keys_of(pair).remove("packer")
        wait_for_refusal(pair, "unknown-key")
        while packer.receive(0.0) is not None:
            pass  # its acknowledgement may have been late
        with consumer(pair, zmq_context, security(pair, "second")) as second:
            shop.produce([b"after"])
            assert b"after" in {body[0] for _, body in until(second, b"after")}
        assert packer.receive(0.0) is None


def until(consumer: Consumer, last: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for frames, body in consumer.messages(LIMIT_S):
        consumer.ack(frames)
        yield frames, body
        if body[0] == last:
            return


def test_the_others_consume_on_when_a_key_is_withdrawn(pair: Pair) -> None:
    """All connections of the door end, and who may enter connects again."""
    with (
        context() as zmq_context,
        producer(pair, zmq_context) as shop,
        consumer(pair, zmq_context, security(pair, "second")) as second,
    ):
        shop.produce([b"first"])
        assert second.consume(1) == [b"first"]
        before = listed(pair)
        keys_of(pair).remove("packer")
        pair.primary.wait_for("the new list", lambda _: listed(pair) == before - 1)
        shop.produce([b"after"])
        assert b"after" in {body[0] for _, body in until(second, b"after")}


def test_figures_are_for_operators(pair: Pair) -> None:
    [door, _] = pair.doors(DOORS[2])
    with context() as zmq_context:
        for key, reason in ((security(pair, "packer"), "wrong-role"), (stranger(pair), "unknown-key")):
            with Monitor(zmq_context, door, key) as monitor:
                monitor.socket.send(pzq.MONITOR)
                wait_for_refusal(pair, reason)
                assert monitor.receive(0.0) is None
        with Monitor(zmq_context, door, security(pair, "operator")) as monitor:
            assert pzq.read_figures(monitor.ask())["messages"] == 0


def test_workers_consume_beside_consumers(pair: Pair) -> None:
    heard: list[bytes] = []

    def handle(request: Request) -> bytes:
        heard.append(request.body)
        return b"done"

    with context() as zmq_context, producer(pair, zmq_context) as shop:
        shop.produce([b"order"])
        with Worker(pair.endpoints, "pzq", handle, security=security(pair, "packer")):
            wait_until(lambda: heard == [b"order"], "a worker has the producer's message")
