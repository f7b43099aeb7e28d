"""Majordomo 0.2 (18/MDP): the broker as its clients and workers meet it, octet by octet.

No published program speaks this protocol as it is specified, so the specification alone is the judge here.
The ids are listed in tests/support/requirements.py.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from support.brokers import Broker
from support.rawpeers import Client02, Peers, Worker02

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

DISCONNECT = [b"MDPW02", b"\x06"]
HEARTBEAT = [b"MDPW02", b"\x05"]


def partial(service: bytes, *body: bytes) -> list[bytes]:
    return [b"MDPC02", b"\x02", service, *body]


def final(service: bytes, *body: bytes) -> list[bytes]:
    return [b"MDPC02", b"\x03", service, *body]


def ask(client: Client02, name: bytes, *body: bytes) -> list[bytes]:
    """Ask the broker itself; once it answers, all that this client sent before has been read."""
    client.request(name, *body)
    frames = client.recv()
    assert frames[:3] == [b"MDPC02", b"\x03", name], frames
    return frames[3:]


# --- frames ---


@requirement("MDP2-G-01")
@requirement("MDP2-G-02")
@requirement("MDP2-B-08")
def test_the_published_exchange_octet_by_octet(peers: Peers, service: bytes) -> None:
    worker, client = peers.dealer(), peers.dealer()
    worker.send(b"\x4d\x44\x50\x57\x30\x32", b"\x01", service)
    client.send(b"\x4d\x44\x50\x43\x30\x32", b"\x01", service, b"\x68\x69")
    frames = worker.recv()
    while frames == HEARTBEAT:
        frames = worker.recv()
    address = frames[2]
    assert address
    assert frames == [b"\x4d\x44\x50\x57\x30\x32", b"\x02", address, b"", b"\x68\x69"]
    worker.send(b"\x4d\x44\x50\x57\x30\x32", b"\x04", address, b"", b"\x68\x69")
    assert client.recv() == [b"\x4d\x44\x50\x43\x30\x32", b"\x03", service, b"\x68\x69"]


@requirement("MDP2-G-02")
def test_partials_and_final_change_their_codes_between_worker_and_client(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    worker.send(b"MDPW02", b"\x03", job.client, b"", b"1", b"of many")
    worker.send(b"MDPW02", b"\x03", job.client, b"", b"")
    worker.send(b"MDPW02", b"\x04", job.client, b"", b"the end")
    assert client.recv() == [b"MDPC02", b"\x02", service, b"1", b"of many"]
    assert client.recv() == [b"MDPC02", b"\x02", service, b""]
    assert client.recv() == [b"MDPC02", b"\x03", service, b"the end"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([b""], id="one-empty-frame"),
        pytest.param([b"", b"", b""], id="empty-frames"),
        pytest.param([b"\x04", b"", b"MDPC02", b"\x00"], id="frames-that-look-like-others"),
        pytest.param([b"\xb5\x01", b"\x00\xff" * 100], id="binary"),
        pytest.param([b"x" * 3_000_000], id="large"),
        pytest.param([b"%d" % n for n in range(100)], id="many-frames"),
    ],
)
@requirement("MDP2-R-05")
@requirement("MDP2-B-08")
def test_bodies_travel_unchanged_both_ways(peers: Peers, service: bytes, body: list[bytes]) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, *body)
    job = worker.take()
    assert list(job.body) == body
    worker.partial(job.client, *body)
    worker.final(job.client, *body)
    assert client.recv() == partial(service, *body)
    assert client.recv() == final(service, *body)


@pytest.mark.parametrize("identity", [b"x", b"mmi.service", b"\x01\x00\x00\xff", b"MDPW02"])
@requirement("MDP2-B-08")
def test_identities_are_opaque_octets(peers: Peers, service: bytes, identity: bytes) -> None:
    worker = peers.worker02(service, identity=b"w" + identity)
    client = peers.client02(identity=identity)
    client.request(service, b"who am I?")
    worker.finish(worker.take(), b"you")
    assert client.recv() == final(service, b"you")


# --- one request at a time, and who is next ---


@requirement("MDP2-B-10")
def test_a_worker_has_one_request_at_a_time_and_the_next_after_final(peers: Peers, service: bytes) -> None:
    worker = peers.worker02(service)
    clients = [peers.client02(), peers.client02()]
    for client in clients:
        client.request(service, b"hi")
    first = worker.take()
    worker.partial(first.client, b"not yet")
    assert worker.commands() == []
    worker.final(first.client, b"now")
    second = worker.take()
    assert second.client != first.client


@requirement("MDP2-B-10")
def test_the_worker_that_is_idle_longest_is_next(peers: Peers, service: bytes) -> None:
    first, second = peers.worker02(service), peers.worker02()
    first.await_heartbeat()
    second.ready(service)
    second.await_heartbeat()
    client = peers.client02()
    for worker in (first, second, first, second):
        client.request(service, b"whose turn?")
        worker.finish(worker.take(), b"mine")
        assert client.recv() == final(service, b"mine")


@requirement("MDP2-B-10")
def test_a_client_with_many_requests_does_not_starve_another(peers: Peers, service: bytes) -> None:
    greedy, modest = peers.client02(), peers.client02()
    for number in range(20):
        greedy.request(service, b"greedy %d" % number)
    ask(greedy, b"mmi.service", service)
    modest.request(service, b"modest")
    ask(modest, b"mmi.service", service)
    worker = peers.worker02(service)
    bodies = []
    for _ in range(21):
        job = worker.take()
        bodies.append(job.body[0])
        worker.finish(job, job.body[0])
    assert bodies.index(b"modest") <= 2


# --- after FINAL ---


@requirement("MDP2-B-01")
@requirement("MDP2-B-04")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"], ids=["PARTIAL", "FINAL"])
def test_nothing_reaches_the_client_after_final(peers: Peers, service: bytes, command: bytes) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    worker.final(job.client, b"the end")
    worker.send(b"MDPW02", command, job.client, b"", b"encore")
    worker.await_disconnect()
    assert client.recv() == final(service, b"the end")
    assert worker.collect() == []
    # The answer to this question would come behind the encore.
    assert ask(client, b"mmi.service", service) == [b"404"]


@requirement("MDP2-B-01")
def test_a_client_may_ask_again_after_final(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker02(service), peers.client02()
    for number in (b"1", b"2", b"3"):
        client.request(service, number)
        job = worker.take()
        worker.partial(job.client, number, b"partial")
        worker.final(job.client, number, b"final")
        assert client.recv() == partial(service, number, b"partial")
        assert client.recv() == final(service, number, b"final")


# --- queueing ---


@requirement("MDP2-B-02")
def test_a_request_waits_for_the_first_worker_of_its_service(peers: Peers, service: bytes) -> None:
    client = peers.client02()
    client.request(service, b"early")
    ask(client, b"mmi.service", service)
    worker = peers.worker02(service)
    job = worker.take()
    assert job.body == (b"early",)
    worker.finish(job, b"at last")
    assert client.recv() == final(service, b"at last")


@requirement("MDP2-B-03")
def test_a_request_that_waited_too_long_is_not_executed(
    forgetful: Broker, forgetful_peers: Peers, service: bytes
) -> None:
    peers = forgetful_peers
    client = peers.client02()
    client.request(service, b"stale")
    ask(client, b"mmi.service", service)
    peers.pass_time(forgetful.timing.request_ttl_s * 1.2)
    worker = peers.worker02(service)
    assert worker.commands() == []
    client.request(service, b"fresh")
    assert worker.take().body == (b"fresh",)


@requirement("MDP2-B-11")
@requirement("MDP2-R-06")
def test_several_requests_of_one_client_run_at_once_and_each_is_answered(
    peers: Peers, service: bytes
) -> None:
    """A departure from the scalability section, where the broker holds one request per client."""
    workers = [peers.worker02(service), peers.worker02(service)]
    for worker in workers:
        worker.await_heartbeat()
    client = peers.client02()
    for number in (b"1", b"2", b"3"):
        client.request(service, number)
    jobs = [worker.take() for worker in workers]
    assert sorted(job.body[0] for job in jobs) == [b"1", b"2"]
    for worker, job in zip(workers, jobs, strict=True):
        worker.partial(job.client, b"partial", *job.body)
    for worker, job in zip(workers, jobs, strict=True):
        worker.final(job.client, b"final", *job.body)
    third = next(worker for worker in workers for frames in worker.commands(0.3) if frames[-1] == b"3")
    third.final(jobs[0].client, b"final", b"3")
    heard = [client.recv() for _ in range(5)]
    for number in (b"1", b"2"):
        first, second = [frames for frames in heard if frames[-1] == number]
        assert first == partial(service, b"partial", number)
        assert second == final(service, b"final", number)
    assert heard[-1] == final(service, b"final", b"3")


@requirement("MDP2-B-11")
@requirement("MDP2-R-06")
def test_the_requests_of_one_client_are_bounded(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    workers = [peers.worker02(service) for _ in range(6)]
    for worker in workers:
        worker.await_heartbeat()
    client = peers.client02()
    for number in range(8):
        client.request(service, b"%d" % number)
    ask(client, b"mmi.service", service)
    taken = [frames for worker in workers for frames in worker.commands(0.1)]
    assert len(taken) == tight.profile.limits["requests_per_client_max"]


@requirement("MDP2-R-03")
def test_the_reply_to_an_abandoned_socket_vanishes(peers: Peers, service: bytes) -> None:
    worker, first = peers.worker02(service), peers.client02()
    first.request(service, b"try 1")
    abandoned = worker.take()
    first.close()
    second = peers.client02()
    second.request(service, b"try 2")
    worker.partial(abandoned.client, b"for nobody")
    worker.final(abandoned.client, b"for nobody")
    worker.finish(worker.take(), b"for the second")
    assert second.recv() == final(service, b"for the second")


# --- commands that are not expected ---


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([b"\x05"], id="HEARTBEAT"),
        pytest.param([b"\x03", b"client", b"", b"body"], id="PARTIAL"),
        pytest.param([b"\x04", b"client", b"", b"body"], id="FINAL"),
    ],
)
@requirement("MDP2-B-04")
def test_a_worker_that_has_not_registered_is_disconnected(peers: Peers, command: list[bytes]) -> None:
    worker = peers.dealer()
    worker.send(b"MDPW02", *command)
    assert worker.recv() == [b"MDPW02", b"\x06"]
    assert worker.collect() == []


@requirement("MDP2-B-04")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"], ids=["PARTIAL", "FINAL"])
def test_an_answer_of_an_idle_worker_reaches_nobody_and_ends_its_registration(
    peers: Peers, service: bytes, command: bytes
) -> None:
    bystander = peers.client02(identity=b"bystander of " + service)
    ask(bystander, b"mmi.service", service)
    worker = peers.worker02(service)
    worker.send(b"MDPW02", command, b"bystander of " + service, b"", b"unasked")
    worker.await_disconnect()
    assert worker.collect() == []
    assert ask(bystander, b"mmi.service", service) == [b"404"]


@requirement("MDP2-B-04")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"], ids=["PARTIAL", "FINAL"])
def test_an_answer_to_somebody_else_reaches_nobody_and_frees_the_request(
    peers: Peers, service: bytes, command: bytes
) -> None:
    bystander = peers.client02(identity=b"bystander of " + service)
    ask(bystander, b"mmi.service", service)
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    worker.take()
    worker.send(b"MDPW02", command, b"bystander of " + service, b"", b"unasked")
    worker.await_disconnect()
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")
    assert ask(bystander, b"mmi.service", service) == [b"200"]


@requirement("MDP2-B-04")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_second_ready_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, *, is_busy: bool
) -> None:
    worker, client = peers.worker02(service), peers.client02()
    worker.await_heartbeat()
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.ready(service)
    worker.await_disconnect()
    assert worker.collect() == []
    if not is_busy:
        client.request(service, b"hi")
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")


# --- messages that are not valid ---


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([code, *rest], id=f"{name}-{how}")
        for name, code in (("PARTIAL", b"\x03"), ("FINAL", b"\x04"))
        for how, rest in (
            ("nothing-else", []),
            ("address-only", [b"CLIENT"]),
            ("no-body", [b"CLIENT", b""]),
            ("empty-frame-elsewhere", [b"CLIENT", b"body", b""]),
            ("two-addresses", [b"CLIENT", b"second address", b"", b"body"]),
            ("empty-address", [b"", b"", b"body"]),
        )
    ],
)
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
def test_a_malformed_answer_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, command: list[bytes]
) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    worker.send(b"MDPW02", *[job.client if frame == b"CLIENT" else frame for frame in command])
    worker.await_disconnect()
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")
    assert worker.collect(0.05) == []


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"MDPW02"], id="no-command"),
        pytest.param([b"MDPW02", b""], id="empty-command"),
        pytest.param([b"MDPW02", b"\x00"], id="command-0"),
        pytest.param([b"MDPW02", b"\x07"], id="command-7"),
        pytest.param([b"MDPW02", b"\xff", b"SERVICE"], id="command-255"),
        pytest.param([b"MDPW02", b"\x01"], id="READY-without-service"),
        pytest.param([b"MDPW02", b"\x01", b""], id="READY-with-empty-service"),
        pytest.param([b"MDPW02", b"\x01", b"SERVICE", b"x"], id="READY-with-more"),
        pytest.param([b"MDPW02", b"\x02", b"client", b"", b"body"], id="REQUEST-from-a-worker"),
        pytest.param([b"MDPW02", b"\x03"], id="PARTIAL-without-anything"),
        pytest.param([b"MDPW02", b"\x05", b"x"], id="HEARTBEAT-with-more"),
        pytest.param([b"MDPW02", b"\x06", b"x"], id="DISCONNECT-with-more"),
        pytest.param([b"MDPW0X", b"\x01", b"SERVICE"], id="unknown-header"),
    ],
)
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
def test_a_malformed_message_of_a_stranger_leaves_no_record(
    peers: Peers, service: bytes, frames: list[bytes]
) -> None:
    worker = peers.worker02()
    worker.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    worker.ready(service)
    client = peers.client02()
    client.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == final(service, b"there")


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@requirement("MDP2-B-05")
@requirement("MDP2-B-04")
@pytest.mark.parametrize(
    "command", [[b"\x02", b"client", b"", b"body"], [b"\x08", b"what?"]], ids=["REQUEST", "08"]
)
def test_what_no_worker_may_say_is_dropped_or_ends_the_registration(
    peers: Peers, service: bytes, command: list[bytes], *, is_busy: bool
) -> None:
    worker, client = peers.worker02(service), peers.client02()
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.send(b"MDPW02", *command)
    worker.disconnect()
    assert worker.commands() in ([], [DISCONNECT])
    if not is_busy:
        client.request(service, b"hi")
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"MDPC02"], id="no-command"),
        pytest.param([b"MDPC02", b"\x01"], id="no-service"),
        pytest.param([b"MDPC02", b"\x01", b"SERVICE"], id="no-body"),
        pytest.param([b"MDPC02", b"\x01", b"", b"body"], id="empty-service"),
        pytest.param([b"MDPC02", b"\x01", b"s" * 256, b"body"], id="service-of-256-octets"),
        pytest.param([b"MDPC02", b"\x00", b"SERVICE", b"body"], id="command-0"),
        pytest.param([b"MDPC02", b"\x02", b"SERVICE", b"body"], id="PARTIAL-from-a-client"),
        pytest.param([b"MDPC02", b"\x03", b"SERVICE", b"body"], id="FINAL-from-a-client"),
        pytest.param([b"MDPC02", b"", b"SERVICE", b"body"], id="empty-command"),
        pytest.param([b"MDPC02", b"SERVICE", b"body"], id="no-command-as-in-0.1"),
        pytest.param([b"MDPC02", b"SERVICE", b"body", b"more"], id="no-command-four-frames"),
        pytest.param([b"", b"MDPC02", b"SERVICE", b"body"], id="the-tag-that-calls-itself-0.2"),
    ],
)
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
@requirement("MDP2-R-05")
def test_a_malformed_message_of_a_client_is_dropped(
    peers: Peers, service: bytes, frames: list[bytes]
) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    client.request(service, b"valid")
    assert worker.take().body == (b"valid",)


# --- leaving ---


@requirement("MDP2-B-06")
def test_a_worker_that_left_is_sent_nothing(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker02(service), peers.client02()
    worker.await_heartbeat()
    worker.disconnect()
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    client.request(service, b"hi")
    assert worker.collect() == []
    assert peers.worker02(service).take().body == (b"hi",)


@requirement("MDP2-B-06")
def test_a_worker_that_leaves_while_busy_leaves_its_request_behind(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    worker.take()
    worker.disconnect()
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")
    assert worker.collect() == []


@requirement("MDP2-B-06")
def test_a_disconnect_of_a_stranger_is_not_answered(peers: Peers) -> None:
    stranger = peers.worker02()
    stranger.disconnect()
    assert stranger.collect() == []


@requirement("MDP2-B-07")
def test_a_peer_that_never_said_anything_as_a_worker_is_never_disconnected(
    peers: Peers, service: bytes
) -> None:
    client = peers.client02()
    client.request(service, b"hi")
    assert client.collect() == []


@requirement("MDP2-B-07")
def test_a_worker_too_many_is_turned_away(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    for _ in range(tight.profile.limits["workers_max"]):
        peers.worker02(service).await_heartbeat()
    one_more = peers.worker02(service)
    one_more.await_disconnect()
    assert one_more.collect() == []


# --- heartbeats ---


@requirement("MDP2-B-09")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_the_broker_sends_heartbeats_at_the_agreed_interval(
    mortal: Broker, mortal_peers: Peers, service: bytes, *, is_busy: bool
) -> None:
    worker, client = mortal_peers.worker02(service), mortal_peers.client02()
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    else:
        worker.await_heartbeat()
    interval_s, at = mortal.timing.mdp_heartbeat_interval_s, [time.monotonic()]
    for _ in range(5):
        worker.await_heartbeat()
        at.append(time.monotonic())
    # A busy machine makes them late, never early, and not all of them.
    assert at[-1] - at[0] >= 5 * 0.6 * interval_s
    assert min(later - earlier for earlier, later in pairwise(at)) <= 3 * interval_s


@requirement("MDP2-B-09")
def test_a_silent_worker_is_given_up_and_sent_nothing(
    mortal: Broker, mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    silent, client = peers.worker02(service), peers.client02()
    silent.await_heartbeat()
    silent.fall_silent()
    began = time.monotonic()
    assert ask(client, b"mmi.service", service) == [b"200"]
    peers.wait_until(lambda: ask(client, b"mmi.service", service) == [b"404"], "the worker is given up")
    assert time.monotonic() - began > mortal.timing.expiry_s * 0.4
    client.request(service, b"hi")
    assert peers.worker02(service).take().body == (b"hi",)
    silent.collect(0.05)
    assert silent.collect() == []


@requirement("MDP2-B-09")
@pytest.mark.parametrize("has_partials", [True, False], ids=["PARTIAL", "FINAL"])
def test_answers_count_as_heartbeats(
    mortal: Broker, mortal_peers: Peers, service: bytes, *, has_partials: bool
) -> None:
    peers = mortal_peers
    worker, client = peers.worker02(service), peers.client02()
    worker.fall_silent()
    client.request(service, b"hi")
    job = worker.take()
    until = time.monotonic() + 2.5 * mortal.timing.expiry_s
    while time.monotonic() < until:
        if has_partials:
            worker.partial(job.client, b"still at it")
            assert client.recv() == partial(service, b"still at it")
        else:
            worker.final(job.client, b"done")
            assert client.recv() == final(service, b"done")
            client.request(service, b"hi")
            job = worker.take()
        peers.pass_time(mortal.timing.mdp_heartbeat_interval_s / 2)
    worker.final(job.client, b"the end")
    assert client.recv() == final(service, b"the end")


@requirement("MDP2-B-09")
def test_heartbeats_keep_a_worker_that_computes_for_long(
    mortal: Broker, mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    peers.pass_time(3 * mortal.timing.expiry_s)
    worker.final(job.client, b"there")
    assert client.recv() == final(service, b"there")


# --- what happens to the request of a dead worker ---


@requirement("MDP2-B-09")
def test_the_request_of_a_worker_that_vanished_goes_to_another(mortal_peers: Peers, service: bytes) -> None:
    peers = mortal_peers
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    worker.take()
    worker.vanish()
    other = peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == final(service, b"there")


@requirement("MDP2-R-02")
@pytest.mark.parametrize("how", ["vanishes", "disconnects", "talks-nonsense", "says-ready"])
def test_a_request_with_partials_is_not_run_again(
    mortal: Broker, mortal_peers: Peers, service: bytes, how: str
) -> None:
    peers = mortal_peers
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    worker.partial(job.client, b"so far")
    assert client.recv() == partial(service, b"so far")
    other = peers.worker02(service)
    other.await_heartbeat()
    if how == "vanishes":
        worker.vanish()
        peers.pass_time(mortal.timing.expiry_s * 1.5)
    elif how == "disconnects":
        worker.disconnect()
    elif how == "talks-nonsense":
        worker.send(b"MDPW02", b"\x04", job.client, b"the empty frame", b"", b"is elsewhere")
    else:
        worker.ready(service)
    assert other.commands() == []
    # The client hears nothing of it; its next request is served as any other.
    client.request(service, b"again")
    retried = other.take()
    assert retried.body == (b"again",)
    other.finish(retried, b"there")
    assert client.recv() == final(service, b"there")


@requirement("MDP2-R-02")
def test_a_request_that_ends_every_worker_is_given_up(
    tight: Broker, tight_peers: Peers, service: bytes
) -> None:
    peers = tight_peers
    client = peers.client02()
    client.request(service, b"poison")
    for _ in range(tight.profile.limits["deliveries_max"]):
        worker = peers.worker02(service)
        assert worker.take().body == (b"poison",)
        worker.disconnect()
    survivor = peers.worker02(service)
    assert survivor.commands() == []
    client.request(service, b"food")
    assert survivor.take().body == (b"food",)
    counted = json.loads(ask(client, b"mmi.state", b"")[1])["broker"]["services"]
    assert next(entry for entry in counted if entry["service"] == service.decode())["poisoned"] == 1


# --- the variants of the field ---


@requirement("MDP2-G-02")
def test_a_leading_empty_frame_is_mirrored_to_that_peer_alone(peers: Peers, service: bytes) -> None:
    plain_worker, plain_client = peers.worker02(service + b"-plain"), peers.client02()
    worker: Worker02 = peers.worker02(service + b"-delimited", delimited=True)
    client = peers.client02(delimited=True)
    client.request(service + b"-delimited", b"hi")
    job = worker.take()
    assert job.frames[:3] == (b"", b"MDPW02", b"\x02")
    worker.partial(job.client, b"some")
    worker.final(job.client, b"all")
    assert client.recv() == [b"", b"MDPC02", b"\x02", service + b"-delimited", b"some"]
    assert client.recv() == [b"", b"MDPC02", b"\x03", service + b"-delimited", b"all"]
    worker.await_heartbeat()
    # One with and one without meet.
    for asking, serving, name in (
        (client, plain_worker, service + b"-plain"),
        (plain_client, worker, service + b"-delimited"),
    ):
        asking.request(name, b"hi")
        job = serving.take()
        assert job.frames[: len(serving.delimiter) + 1] == (*serving.delimiter, b"MDPW02")
        serving.final(job.client, b"there")
        assert asking.recv() == [*asking.delimiter, b"MDPC02", b"\x03", name, b"there"]


@requirement("MDP2-B-04")
def test_a_stranger_with_a_leading_empty_frame_is_disconnected_in_kind(peers: Peers) -> None:
    worker = peers.dealer()
    worker.send(b"", b"MDPW02", b"\x05")
    assert worker.recv() == [b"", b"MDPW02", b"\x06"]


@pytest.mark.parametrize("correlate", [False, True], ids=["plain", "correlating"])
def test_a_req_client_works_for_a_service_without_partials(
    peers: Peers, service: bytes, *, correlate: bool
) -> None:
    worker, client = peers.worker02(service), peers.req_client02(correlate=correlate)
    for number in (b"1", b"2"):
        client.request(service, number)
        worker.finish(worker.take(), number)
        assert client.recv() == [b"MDPC02", b"\x03", service, number]
