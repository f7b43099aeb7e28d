"""The Majordomo Management Interface (8/MMI) in both versions of Majordomo.

The ids are listed in tests/support/requirements.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bstar.star import Role
from support import memory_broker
from support.brokers import STEADY
from support.memory_broker import MemoryBroker
from support.rawpeers import EMPTY, Peers, Worker01, Worker02

requirement = pytest.mark.requirement
broker, mortal = memory_broker.broker, memory_broker.mortal


def ask01(peers: Peers, name: bytes, *body: bytes) -> list[bytes]:
    client = peers.dealer()
    client.send(b"", b"MDPC01", name, *body)
    frames = client.recv()
    assert frames[:3] == [b"", b"MDPC01", name], frames
    return frames[3:]


def ask02(peers: Peers, name: bytes, *body: bytes) -> list[bytes]:
    client = peers.dealer()
    client.send(b"MDPC02", b"\x01", name, *body)
    frames = client.recv()
    assert frames[:3] == [b"MDPC02", b"\x03", name], frames
    return frames[3:]


Ask = Callable[..., list[bytes]]
both = pytest.mark.parametrize("ask", [pytest.param(ask01, id="0.1"), pytest.param(ask02, id="0.2")])


@requirement("MMI-B-01")
@requirement("MMI-B-03")
def test_the_published_frames_of_a_0_1_client(peers: Peers, service: bytes) -> None:
    client = peers.req_client01()
    client.send(b"MDPC01", b"mmi.service", service)
    assert client.recv() == [b"MDPC01", b"mmi.service", b"404"]
    peers.worker01(service).await_heartbeat()
    client.send(b"MDPC01", b"mmi.service", service)
    assert client.recv() == [b"MDPC01", b"mmi.service", b"200"]


@requirement("MMI-B-01")
@requirement("MMI-B-03")
def test_a_0_2_client_gets_one_final_and_no_partial(peers: Peers, service: bytes) -> None:
    client = peers.dealer()
    client.send(b"MDPC02", b"\x01", b"mmi.service", service)
    assert client.recv() == [b"MDPC02", b"\x03", b"mmi.service", b"404"]
    assert client.collect(0.1) == []


@requirement("MMI-B-01")
def test_the_envelope_of_a_question_goes_back_with_its_answer(peers: Peers, service: bytes) -> None:
    client = peers.dealer()
    client.send(b"hop", b"", b"MDPC01", b"mmi.service", service)
    assert client.recv() == [b"hop", b"", b"MDPC01", b"mmi.service", b"404"]
    client.send(b"", b"MDPC02", b"\x01", b"mmi.service", service)
    assert client.recv() == [b"", b"MDPC02", b"\x03", b"mmi.service", b"404"]


@requirement("MMI-B-02")
@pytest.mark.parametrize("name", [b"mmi.foo", b"mmi.service", b"mmi."])
@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_a_worker_cannot_register_a_name_of_the_broker(peers: Peers, name: bytes, version: str) -> None:
    worker: Worker01 | Worker02 = peers.worker01(name) if version == "0.1" else peers.worker02(name)
    worker.await_disconnect()
    assert worker.collect() == []
    assert ask01(peers, b"mmi.service", name) == [b"404"]
    assert ask01(peers, b"mmi.foo", b"x") == [b"501"]


@requirement("MMI-B-02")
@pytest.mark.parametrize("name", [b"MMI.foo", b"mmi", b"mm", b"my.mmi.foo", b"mmi/foo"])
def test_names_that_only_look_reserved_are_ordinary(peers: Peers, name: bytes) -> None:
    """Case counts, and only the beginning; a published broker looked for `mmi.` anywhere."""
    worker, client = peers.worker01(name), peers.client01()
    client.request(name, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == [b"", b"MDPC01", name, b"there"]
    worker.disconnect()
    assert worker.mmi(b"mmi.service", name) == [b"404"]


@both
@requirement("MMI-B-03")
@requirement("MMI-B-05")
def test_no_worker_idle_worker_busy_worker_left_worker(peers: Peers, service: bytes, ask: Ask) -> None:
    assert ask(peers, b"mmi.service", service) == [b"404"]
    worker, client = peers.worker02(service), peers.client01()
    worker.await_heartbeat()
    assert ask(peers, b"mmi.service", service) == [b"200"]
    client.request(service, b"hi")
    job = worker.take()
    assert ask(peers, b"mmi.service", service) == [b"200"]
    worker.finish(job, b"there")
    client.recv()
    assert ask(peers, b"mmi.service", service) == [b"200"]
    worker.disconnect()
    worker.mmi(b"mmi.service", service)
    assert ask(peers, b"mmi.service", service) == [b"404"]


@both
@requirement("MMI-B-05")
def test_a_queued_request_alone_is_no_service(peers: Peers, service: bytes, ask: Ask) -> None:
    client = peers.client01()
    client.request(service, b"hi")
    client.mmi(b"mmi.service", service)
    assert ask(peers, b"mmi.service", service) == [b"404"]


@both
@requirement("MMI-B-05")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_an_expired_worker_is_no_service(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, ask: Ask, *, is_busy: bool
) -> None:
    peers = mortal_peers
    worker, client = peers.worker01(service), peers.client01()
    worker.await_heartbeat()
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.fall_silent()
    peers.pass_time(mortal.timing.expiry_s * 1.2)
    assert ask(peers, b"mmi.service", service) == [b"404"]


@both
@requirement("MMI-B-04")
@pytest.mark.parametrize(
    "name", [b"mmi.nothing", b"mmi.", b"mmi.service2", b"mmi.Service", b"mmi.\xff\x00", b"mmi.filter"]
)
def test_what_is_not_implemented_is_501(peers: Peers, ask: Ask, name: bytes) -> None:
    assert ask(peers, name, b"x") == [b"501"]
    assert ask(peers, name, b"x", b"y", b"z") == [b"501"]


@both
@requirement("MMI-B-06")
def test_the_answer_does_not_wait_behind_queued_work(peers: Peers, service: bytes, ask: Ask) -> None:
    worker, client = peers.worker01(service), peers.client01()
    for number in range(50):
        client.request(service, b"%d" % number)
    worker.take()
    # The worker stays busy and 49 requests wait; the same connection is answered now.
    assert client.mmi(b"mmi.service", service) == [b"200"]
    assert ask(peers, b"mmi.service", service) == [b"200"]


@both
@requirement("MMI-B-07")
def test_an_empty_name_is_404(peers: Peers, ask: Ask) -> None:
    assert ask(peers, b"mmi.service", b"") == [b"404"]


@pytest.mark.parametrize("question", [[b"", b"MDPC01", b"mmi.service"], [b"MDPC02", b"\x01", b"mmi.service"]])
@requirement("MMI-B-07")
def test_a_question_without_a_body_is_404_or_dropped(
    peers: Peers, service: bytes, question: list[bytes]
) -> None:
    client = peers.dealer()
    client.send(*question)
    answer = client.mmi(b"mmi.service", service)
    assert answer == [b"404"]


@both
@requirement("MMI-B-03")
def test_of_several_body_frames_the_last_counts_and_one_comes_back(
    peers: Peers, service: bytes, ask: Ask
) -> None:
    peers.worker01(service).await_heartbeat()
    assert ask(peers, b"mmi.service", b"x", service) == [b"200"]
    assert ask(peers, b"mmi.service", service, b"x") == [b"404"]


@both
@requirement("MMI-B-03")
@pytest.mark.parametrize(
    "name", [b"s" * 256, b"s" * 100_000, b"\x00", b"\xff\xfe"], ids=["256", "100000", "nul", "no-text"]
)
def test_any_octets_may_be_asked_for(peers: Peers, ask: Ask, name: bytes) -> None:
    assert ask(peers, b"mmi.service", name) == [b"404"]


@both
def test_services_workers_and_state_answer_with_a_document(peers: Peers, service: bytes, ask: Ask) -> None:
    worker = peers.worker02(service)
    worker.await_heartbeat()
    code, services = ask(peers, b"mmi.services", b"")
    assert code == b"200"
    assert [entry for entry in json.loads(services) if entry["service"] == service.decode()] == [
        {"service": service.decode(), "workers": 1, "queued": 0}
    ]
    code, workers = ask(peers, b"mmi.workers", service)
    assert code == b"200"
    assert [entry["service"] for entry in json.loads(workers)] == [service.decode()]
    code, state = ask(peers, b"mmi.state", b"")
    assert code == b"200"
    assert json.loads(state)["pair"]["is_active"] is True


def test_asking_for_a_service_does_not_create_it(peers: Peers, service: bytes) -> None:
    asker = peers.client01()
    for name in (b"mmi.service", b"mmi.workers", b"mmi.nothing"):
        asker.mmi(name, service)
    names = [entry["service"] for entry in json.loads(asker.mmi(b"mmi.services", EMPTY)[1])]
    assert service.decode() not in names
    assert not [name for name in names if name.startswith("mmi.")]


@requirement("MMI-B-06")
@pytest.mark.parametrize("role", list(Role))
def test_a_node_that_may_not_serve_answers_all_the_same_and_is_not_voted_active(role: Role) -> None:
    broker = MemoryBroker(STEADY, role, activate=False)
    with broker.peers() as peers:
        worker = peers.worker01(b"echo")
        worker.await_heartbeat()
        # Long after the failover timeout, when a request for work would be a vote.
        peers.pass_time(broker.timing.failover_timeout_s * 1.5)
        for ask in (ask01, ask02):
            assert ask(peers, b"mmi.service", b"echo") == [b"200"]
            assert ask(peers, b"mmi.service", b"nothing") == [b"404"]
            assert ask(peers, b"mmi.nothing", b"") == [b"501"]
            for name in (b"mmi.services", b"mmi.workers", b"mmi.state"):
                assert ask(peers, name, b"")[0] == b"200"
        state = json.loads(ask01(peers, b"mmi.state", b"")[1])["pair"]
        assert (state["state"], state["is_active"], state["votes"]) == (role.name, False, 0)
