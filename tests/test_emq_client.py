"""EventMQ's client and admin with real sockets, at a router that acts as published."""

from __future__ import annotations

import math
import socket as stdlib_socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bstar.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigurationError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RefusedError,
)
from bstar.wire import emq
from bstar.wire.emq_jobs import decode_job
from bstar_client.core.emq.calls import CallSettings
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqClient, EmqJobManager, Headers, Job, ask_router
from support.emq_admin import admin_socket
from support.emq_router import PublishedRouter
from support.waiting import LIMIT_S

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


def test_a_timeout_that_is_no_number_of_seconds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="timeout_s is a number of seconds, 0 or more, not nan"):
        EmqClient(["tcp://127.0.0.1:9"], timeout_s=math.nan)
    with (
        EmqClient(["tcp://127.0.0.1:9"]) as client,
        pytest.raises(LocalProtocolError, match="timeout_s is a number of seconds, not nan"),
    ):
        client.send("default", JOB, timeout_s=math.nan)


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


# --- publications ---------------------------------------------------------------------------------------


@pytest.mark.requirement("EMQ-P-01")
@pytest.mark.parametrize("wire", emq.Wire)
def test_a_publication_has_no_headers_unless_it_asks_for_its_confirmation(wire: emq.Wire) -> None:
    """EMQ-P-01: so the published device, which answers nothing, gets the frames that it knows."""
    with PublishedRouter(wire=wire) as router, EmqClient([router.frontend], wire=wire.value) as client:
        router.confirmation = True
        msgids = [client.publish("prices.apple", {"euro": 3.5}), client.publish("news", 1, confirm=True)]
        router.wait_until(lambda: len(router.of(emq.Publish)) == 2)
    bare, confirmed = (Headers(), Headers(reply_requested=True))
    assert router.of(emq.Publish) == [
        emq.Publish(msgids[0].encode(), b"prices.apple", b'{"euro": 3.5}', bare),
        emq.Publish(msgids[1].encode(), b"news", b"1", confirmed),
    ]


@pytest.mark.parametrize("confirm", [False, True])
def test_a_publication_that_a_node_gives_back_goes_to_the_other_one(confirm: bool) -> None:
    passive, active = PublishedRouter(), PublishedRouter()
    passive.dismisses_clients, active.confirmation = True, True
    with passive, active, EmqClient([passive.frontend, active.frontend], timing=QUICK) as client:
        msgid = client.publish("news", "hello", confirm=confirm)
        active.wait_until(lambda: active.of(emq.Publish))
        assert active.of(emq.Publish)[0].msgid == msgid.encode()


def test_a_publication_that_is_not_confirmed_says_why() -> None:
    with PublishedRouter() as router, EmqClient([router.frontend]) as client:
        router.confirmation = "refused: no door"
        with pytest.raises(RefusedError, match="no door"):
            client.publish("news", 1, confirm=True)
        router.confirmation = None
        with pytest.raises(CallTimeoutError) as caught:
            client.publish("news", 1, confirm=True, timeout_s=0.2)
        assert caught.value.may_have_executed
        for value in ({1, 2}, float("nan")):
            with pytest.raises((TypeError, ValueError)):
                client.publish("news", value)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_publication_whose_connection_breaks_is_unknown_or_sent_again(is_idempotent: bool) -> None:
    first, second = PublishedRouter(), PublishedRouter()
    second.confirmation = True
    done: list[object] = []
    with first, second, EmqClient([first.frontend, second.frontend], timing=QUICK) as client:

        def publish() -> None:
            try:
                done.append(client.publish("news", 1, confirm=True, idempotent=is_idempotent))
            except OutcomeUnknownError as error:
                done.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        first.wait_until(lambda: first.of(emq.Publish))
        first.close()
        thread.join(LIMIT_S)
    assert [type(each) for each in done] == [str if is_idempotent else OutcomeUnknownError]
    assert len(second.of(emq.Publish)) == is_idempotent


# --- admin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["status", "workers", "schedulers"])
def test_an_admin_gets_a_report(question: str) -> None:
    with admin_socket(b'{"connected_workers": {}}') as (endpoint, heard):
        assert ask_router(question, endpoint, timeout_s=LIMIT_S) == {"connected_workers": {}}
    assert isinstance(heard[0], emq.Hello)


def test_an_admin_does_not_wait_for_ever() -> None:
    with stdlib_socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(CallTimeoutError):
        ask_router("status", f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)


FORKED = """
import os, signal, sys
from bstar.errors import ForkedError
from bstar_client.emq import EmqClient, Job
client = EmqClient(["tcp://127.0.0.1:1"])
child = os.fork()
if not child:
    signal.alarm(int(sys.argv[1]))
    try:
        client.send("default", Job("module", "function"), timeout_s=0.1)
    except ForkedError:
        client.close()
        os._exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
client.close()
"""


def test_a_forked_child_is_told_to_make_its_own_client() -> None:
    """Its call never ended: the client's thread is in the parent alone."""
    subprocess.run([sys.executable, "-c", FORKED, str(int(LIMIT_S))], check=True, timeout=2 * LIMIT_S)
