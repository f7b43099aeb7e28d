"""EventMQ's client, pub/sub device and admin with real sockets, at a router that acts as published."""

from __future__ import annotations

import socket as stdlib_socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from bstar.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    LocalProtocolError,
    NoActiveNodeError,
)
from bstar.security import Security, ServerSecurity, new_key
from bstar.wire import emq
from bstar.wire.emq_jobs import decode_job
from bstar_client.core.emq.calls import CallSettings
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqClient, EmqJobManager, EmqPublisher, EmqPubSub, Headers, Job, ask_router
from bstar_testing import LoopbackHost, wait_until
from support.emq_admin import admin_socket
from support.emq_router import PublishedRouter
from support.pirate_sockets import secure
from support.waiting import LIMIT_S, receive

JOB = Job("support.emq_calls", "add", [1], {"other": 2})
QUICK = CallSettings((), connect_s=LIMIT_S, pause_s=0.02)

pytestmark = pytest.mark.loopback


@contextmanager
def managed(router: PublishedRouter) -> Iterator[None]:
    """A job manager at this router."""
    timing = ManagerSettings((), heartbeat_s=0.05, silence_s=30.0, pause_s=0.05)
    with EmqJobManager([router.backend], allow=["support.emq_calls"], processes=1, timing=timing) as manager:
        thread = threading.Thread(target=manager.run)
        thread.start()
        try:
            yield
        finally:
            manager.stop()
            thread.join()


@pytest.mark.requirement("EMQ-R-09")
def test_a_result_comes_back_where_the_router_forwards_it() -> None:
    """EMQ-R-09: result forwarding is an extension: two arguments of REPLY."""
    router = PublishedRouter(forwards_results=True)
    with router, managed(router), EmqClient([router.frontend]) as client:
        assert client.call("default", JOB) == 3
        assert client.call("default", Job("os", "system", ["true"])).startswith("refused: ")
    assert router.of(emq.Request)[0].headers.reply_requested


@pytest.mark.parametrize("wire", emq.Wire)
def test_client_and_manager_take_either_side_at_a_router_that_takes_it(wire: emq.Wire) -> None:
    router = PublishedRouter(forwards_results=True, wire=wire)
    manager = EmqJobManager(
        [router.backend],
        queues=[(20, "fast"), (10, "default")],
        wire=wire.value,
        allow=["support.emq_calls"],
        processes=2,
    )
    with router, manager, EmqClient([router.frontend], wire=wire.value) as client:
        thread = threading.Thread(target=manager.run)
        thread.start()
        try:
            assert client.call("default", JOB) == 3
            assert client.call("default", Job("support.emq_calls", "echo", ["x"])) == "x"
            assert router.of(emq.Inform)[0].queues == (emq.Queue(20, "fast"), emq.Queue(10, "default"))
        finally:
            manager.stop()
            thread.join()
        assert (manager.drops.total(), client.counts["invalid"]) == (0, 0)


def test_a_schedule_needs_the_published_wire() -> None:
    with (
        EmqClient(["tcp://127.0.0.1:9"], wire="specification") as client,
        pytest.raises(LocalProtocolError, match="published wire"),
    ):
        client.schedule("default", JOB, every_s=60)
    with pytest.raises(ConfigurationError, match="choose published or specification"):
        EmqClient(["tcp://127.0.0.1:9"], wire="both")


@pytest.mark.requirement("EMQ-R-08")
@pytest.mark.requirement("EMQ-R-01")
def test_a_job_is_sent_whether_a_worker_is_there_or_not() -> None:
    """EMQ-R-08: no REPLY is waited for. EMQ-R-01: the identity is a uuid's text."""
    with PublishedRouter() as router, EmqClient([router.frontend]) as client:
        msgid = client.send("fast", JOB, Headers(timeout_s=7, guarantee=True))
        router.wait_until(lambda: router.heard)
        [(sender, request)] = router.heard
        assert isinstance(request, emq.Request)
        assert (request.msgid, request.queue) == (msgid.encode(), "fast")
        assert request.headers == Headers(timeout_s=7, guarantee=True)
        assert decode_job(request.message) == JOB
        assert len(sender.decode("ascii")) == 36


@pytest.mark.requirement("EMQ-R-04")
def test_schedules_have_five_arguments() -> None:
    """EMQ-R-04: SCHEDULE and UNSCHEDULE as the published program reads them."""
    with PublishedRouter() as router, EmqClient([router.frontend]) as client:
        client.schedule("fast", JOB, Headers(nohaste=True), every_s=60)
        client.schedule("fast", JOB, cron="*/5 * * * *")
        client.unschedule(JOB)
        router.wait_until(lambda: len(router.heard) == 3)
        every, cron, never = (message for _, message in router.heard)
        assert isinstance(every, emq.Schedule)
        assert isinstance(cron, emq.Schedule)
        assert isinstance(never, emq.Unschedule)
        assert (every.interval_s, every.cron, cron.interval_s, cron.cron) == (60, "", -1, "*/5 * * * *")
        assert all(len(emq.encode(each)) == 9 for each in (every, cron, never))


def test_it_goes_to_the_next_router_when_one_is_gone() -> None:
    first, second = PublishedRouter(), PublishedRouter(forwards_results=True)
    endpoints = [first.frontend, second.frontend]
    with first, second, managed(second), EmqClient(endpoints, timing=QUICK) as client:
        client.send("default", JOB)
        first.wait_until(lambda: first.heard)
        first.close()
        assert client.call("default", JOB, Headers(guarantee=True)) == 3
        assert client.counts["connections"] >= 2


def test_what_was_sent_just_before_the_end_goes_to_the_other_node_too() -> None:
    passive, active = PublishedRouter(), PublishedRouter()
    passive.dismisses_clients = True
    with passive, active:
        with EmqClient([passive.frontend, active.frontend], timing=QUICK) as client:
            msgid = client.send("default", JOB)
            # A client listens for half a second when it ends; here the other node is heard of before.
            active.wait_until(lambda: active.of(emq.Request))
        assert active.of(emq.Request)[0].msgid == msgid.encode()


def test_without_a_router_nothing_was_sent() -> None:
    with (
        EmqClient(["tcp://127.0.0.1:9"], timeout_s=0.2) as client,
        pytest.raises(NoActiveNodeError) as caught,
    ):
        client.send("default", JOB)
    assert not caught.value.may_have_executed
    with pytest.raises(ClosedError):
        client.send("default", JOB)


def test_wrong_arguments_are_told_before_anything_is_sent() -> None:
    with EmqClient(["tcp://127.0.0.1:9"]) as client:
        for wrong in ({}, {"every_s": 1, "cron": "* * * * *"}, {"every_s": -1}):
            arguments: dict[str, Any] = dict(wrong)
            with pytest.raises(LocalProtocolError):
                client.schedule("default", JOB, **arguments)
        for name, text in (("", "it is empty"), ("q" * 256, "has 256")):
            with pytest.raises(LocalProtocolError, match=text):
                client.send(name, JOB)
            with pytest.raises(ConfigurationError, match=text):
                EmqJobManager(["tcp://127.0.0.1:9"], allow=["m"], queues=[(1, name)])
        with pytest.raises(TypeError):
            client.send("default", Job("m", "f", [{1, 2}]))
    with pytest.raises(ConfigurationError):
        EmqClient([])


# --- pub/sub --------------------------------------------------------------------------------------------


@contextmanager
def device(
    security: ServerSecurity | None = None, wire: emq.Wire = emq.Wire.PUBLISHED
) -> Iterator[EmqPubSub]:
    with EmqPubSub("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", security=security, wire=wire.value) as found:
        thread = threading.Thread(target=found.run)
        thread.start()
        try:
            yield found
        finally:
            found.stop()
            thread.join()


def test_publications_reach_those_who_subscribed_to_the_topic_and_garbage_nobody() -> None:
    with device() as found, zmq.Context() as context:
        publishers, subscribers = found.endpoints
        with context.socket(zmq.SUB) as subscriber, context.socket(zmq.DEALER) as stranger:
            subscriber.subscribe(b"prices.")
            subscriber.connect(subscribers)
            stranger.connect(publishers)
            for frames in ([b"x"], [b"", b"eMQP/1.0", b"PUBLISH", b"m", b"t"], emq.encode(emq.Ready(b"m"))):
                stranger.send_multipart(frames)
            with EmqPublisher(publishers) as publisher:
                # A subscription takes its time; until it is there, publications are lost.
                while not (subscriber.poll(20) and found.drops.total() == 3):
                    publisher.publish("prices.apple", {"euro": 3.5})
                    publisher.publish("weather", "fine")
                assert receive(subscriber) == [b"prices.apple", b'{"euro": 3.5}']
    assert found.published >= 2
    assert found.drops == {"frames": 1, "arguments": 1, "unexpected": 1}


def test_a_publisher_without_a_device_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never did while the connection was refused: libzmq reports each attempt, and each began the wait."""
    monkeypatch.setattr("bstar_client.emq.pubsub._CONNECT_MS", 300)
    with LoopbackHost() as host:
        endpoint = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        with EmqPublisher(endpoint) as publisher, pytest.raises(NoActiveNodeError, match="was not sent"):
            publisher.publish("news", "true")


def test_with_keys_only_those_of_the_list_publish_and_subscribe() -> None:
    own, friend, stranger = (new_key(name) for name in ("device", "friend", "stranger"))
    known, unknown = (Security(key, servers=[own.public]) for key in (friend, stranger))
    with (
        device(ServerSecurity(own, clients=[friend.public])) as found,
        zmq.Context() as context,
        context.socket(zmq.SUB) as subscriber,
        context.socket(zmq.SUB) as listener,
        context.socket(zmq.SUB) as keyless,
        context.socket(zmq.DEALER) as forger,
    ):
        publishers, subscribers = found.endpoints
        for socket, key in ((subscriber, known), (listener, unknown), (keyless, None)):
            secure(socket, key)
            socket.subscribe(b"")
            socket.connect(subscribers)
        secure(forger, unknown)
        forger.connect(publishers)
        forger.send_multipart([b"", b"eMQP/1.0", b"PUBLISH", b"m", b"news", b'"forged"'])
        wait_until(lambda: found.refusals["unknown-key"] >= 2, "both strangers are refused")
        with EmqPublisher(publishers, security=known) as publisher:
            # A subscription takes its time; until it is there, publications are lost.
            while not subscriber.poll(20):
                publisher.publish("news", "true")
        assert receive(subscriber) == [b"news", b'"true"']
        assert not listener.poll(0)
        assert not keyless.poll(0)
        forger.close(0)


def test_a_publisher_speaks_the_specifications_wire_to_a_device_that_does() -> None:
    with device(wire=emq.Wire.SPECIFICATION) as found, zmq.Context() as context:
        publishers, subscribers = found.endpoints
        with context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe(b"prices.")
            subscriber.connect(subscribers)
            with EmqPublisher(publishers, wire="specification") as publisher:
                # A subscription takes its time; until it is there, publications are lost.
                while not subscriber.poll(20):
                    publisher.publish("prices.apple", 3.5)
                assert receive(subscriber) == [b"prices.apple", b"3.5"]
    assert not found.drops


def test_a_place_that_is_taken_is_a_configuration_error() -> None:
    with device() as found, pytest.raises(ConfigurationError, match="--bind-out"):
        EmqPubSub("tcp://127.0.0.1:*", found.endpoints[1])


# --- admin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["status", "workers", "schedulers"])
def test_an_admin_gets_a_report(question: str) -> None:
    with admin_socket(b'{"connected_workers": {}}') as (endpoint, heard):
        assert ask_router(question, endpoint, timeout_s=LIMIT_S) == {"connected_workers": {}}
    assert isinstance(heard[0], emq.Hello)


def test_an_admin_does_not_wait_for_ever() -> None:
    with stdlib_socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(CallTimeoutError):
        ask_router("status", f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
