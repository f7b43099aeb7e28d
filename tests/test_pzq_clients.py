"""PZQ's producer and consumer of ours, at a queue that is two plain sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from bstar.errors import BusyError, CallTimeoutError
from bstar_client.pzq import PzqConsumer, PzqProducer
from bstar_testing import LoopbackHost
from support.waiting import LIMIT_S, Socket, receive

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement


class Queue:
    """A published queue's two sockets; the test says what they answer."""

    def __init__(self, context: zmq.Context[Socket]) -> None:
        self.producers, self.consumers = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        self.endpoints = []
        for socket in (self.producers, self.consumers):
            socket.linger = 0
            socket.bind("tcp://127.0.0.1:*")
            endpoint = socket.get(zmq.LAST_ENDPOINT)
            assert isinstance(endpoint, bytes)
            self.endpoints.append(endpoint.rstrip(b"\0").decode())

    def deliver(self, key: bytes, *, age_s: float = 0.0, extra: tuple[bytes, ...] = ()) -> None:
        sent_us = round((time.time() - age_s) * 1e6)
        self.consumers.send_multipart([key, b"%d" % sent_us, b"60000000", *extra, b"", b"body", b""])


@pytest.fixture
def queue() -> Iterator[Queue]:
    context: zmq.Context[Socket] = zmq.Context()
    try:
        yield Queue(context)
    finally:
        context.destroy(linger=0)


@requirement("PZQ-P-01")
def test_a_producer_lists_what_is_not_acknowledged_and_sends_again_what_failed(queue: Queue) -> None:
    with PzqProducer(queue.endpoints[:1], retry_s=LIMIT_S) as producer:
        producer.send([b"one", b""])
        producer.send(b"two")
        with pytest.raises(CallTimeoutError, match="2 messages were not acknowledged"):
            producer.flush(0.1)
        heard = {}
        for _ in range(2):
            peer, message_id, empty, *body = receive(queue.producers)
            heard[body[0]] = (peer, message_id)
            assert empty == b""
        queue.producers.send_multipart([*heard[b"two"], b"1", b""])
        queue.producers.send_multipart([*heard[b"one"], b"0", b"", b"no room"])
        queue.producers.send_multipart([heard[b"one"][0], b"unknown", b"1", b""])
        queue.producers.send_multipart([heard[b"one"][0], b"garbage"])
        with pytest.raises(CallTimeoutError):
            producer.flush(0.5)
        assert producer.unacknowledged == [[b"one", b""]]
        again = receive(queue.producers)
        assert again[1:] == [heard[b"one"][1], b"", b"one", b""], "the same id"
        queue.producers.send_multipart([*heard[b"one"], b"1", b""])
        producer.flush(LIMIT_S)
        assert producer.unacknowledged == []
        assert producer.counts == {"stored": 2, "failed": 1, "invalid": 1}


def test_a_producer_refuses_more_than_its_list_may_have(queue: Queue) -> None:
    with PzqProducer(queue.endpoints[:1], outstanding_max=1) as producer:
        producer.send(b"one")
        with pytest.raises(BusyError, match="flush"):
            producer.send(b"two")


def test_what_was_sent_without_a_connection_comes_in_its_order() -> None:
    context: zmq.Context[Socket] = zmq.Context()
    with LoopbackHost() as host, context, context.socket(zmq.ROUTER) as late:
        late.linger = 0
        (port,) = host.ports(1)
        endpoint = f"tcp://127.0.0.1:{port}"
        with PzqProducer([endpoint], retry_s=LIMIT_S) as producer:
            for number in range(5):
                producer.send(b"%d" % number)
            late.bind(endpoint)
            while not late.poll(0):
                with pytest.raises(CallTimeoutError):
                    producer.flush(0.1)
            assert [receive(late)[-1] for _ in range(5)] == [b"%d" % number for number in range(5)]


def test_silence_is_a_failure(queue: Queue) -> None:
    with PzqProducer(queue.endpoints[:1], retry_s=0.05) as producer:
        producer.send(b"one")
        with pytest.raises(CallTimeoutError):
            producer.flush(0.5)
        first, second = receive(queue.producers), receive(queue.producers)
        assert first == second


@requirement("PZQ-C-01")
@requirement("PZQ-C-02")
@requirement("PZQ-C-03")
def test_a_consumer_drops_the_expired_and_acknowledges_repetitions(queue: Queue) -> None:
    with PzqConsumer(queue.endpoints[1:]) as consumer:
        queue.deliver(b"key-1", extra=(b"header",))
        message = consumer.receive(LIMIT_S)
        assert message is not None
        assert (message.key, message.frames) == (b"key-1", (b"body", b""))
        consumer.done(message)
        assert receive(queue.consumers) == [b"key-1", b"1"]
        queue.deliver(b"key-1")
        queue.deliver(b"key-2", age_s=61.0)
        queue.consumers.send_multipart([b"garbage"])
        queue.deliver(b"key-3")
        third = consumer.receive(LIMIT_S)
        assert third is not None
        assert third.key == b"key-3"
        assert receive(queue.consumers) == [b"key-1", b"1"]
        consumer.again(third)
        assert receive(queue.consumers) == [b"key-3", b"0"]
        assert consumer.counts == {"repeated": 1, "expired": 1, "invalid": 1}
        assert consumer.receive(0) is None


def test_where_clocks_differ_nothing_is_dropped(queue: Queue) -> None:
    with PzqConsumer(queue.endpoints[1:], drops_expired=False) as consumer:
        queue.deliver(b"old", age_s=3_600.0)
        message = consumer.receive(LIMIT_S)
        assert message is not None
        assert message.key == b"old"
