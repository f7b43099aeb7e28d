"""Majordomo 0.1 (7/MDP): the broker as its clients and workers meet it, octet by octet.

The ids are listed in tests/support/requirements.py. Frames are spelled out here wherever they are the point.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from support.brokers import Broker
from support.rawpeers import EMPTY, Peers, Worker01

pytestmark = pytest.mark.loopback
requirement = pytest.mark.requirement

DISCONNECT = [b"", b"MDPW01", b"\x05"]


def reply(service: bytes, *body: bytes) -> list[bytes]:
    return [b"", b"MDPC01", service, *body]


# --- frames ---


@requirement("MDP1-G-01")
@requirement("MDP1-B-08")
@requirement("MDP1-B-11")
def test_one_socket_serves_clients_and_workers_with_the_published_frames(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.dealer(), peers.dealer()
    worker.send(b"", b"MDPW01", b"\x01", service)
    client.send(b"", b"MDPC01", service, b"hello", b"part2")
    frames = worker.recv()
    while frames == [b"", b"MDPW01", b"\x04"]:
        frames = worker.recv()
    address = frames[3]
    assert address
    assert frames == [b"", b"MDPW01", b"\x02", address, b"", b"hello", b"part2"]
    worker.send(b"", b"MDPW01", b"\x03", address, b"", b"hello", b"part2")
    assert client.recv() == [b"", b"MDPC01", service, b"hello", b"part2"]


@requirement("MDP1-G-01")
def test_a_req_client_sees_its_reply_without_the_empty_frame(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.req_client01()
    client.send(b"MDPC01", service, b"hi")
    job = worker.take()
    worker.reply(job.client, b"there")
    assert client.recv() == [b"MDPC01", service, b"there"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([b""], id="one-empty-frame"),
        pytest.param([b"", b"", b""], id="empty-frames"),
        pytest.param([b"a", b"", b"MDPC01", b"\x00"], id="frames-that-look-like-others"),
        pytest.param([b"\xb5\x01", b"\x00\xff" * 100], id="binary"),
        pytest.param([b"x" * 3_000_000], id="large"),
        pytest.param([b"%d" % n for n in range(100)], id="many-frames"),
    ],
)
@requirement("MDP1-B-08")
def test_bodies_travel_unchanged_both_ways(peers: Peers, service: bytes, body: list[bytes]) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, *body)
    job = worker.take()
    assert list(job.body) == body
    worker.reply(job.client, *body)
    assert client.recv() == reply(service, *body)


@requirement("MDP1-B-08")
def test_a_correlating_req_gets_its_request_id_back_and_the_worker_sees_one_address(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.worker01(service), peers.req_client01(correlate=True)
    for body in (b"first", b"second"):
        # The REQ socket itself throws away a reply that does not carry its request id.
        client.request(service, body)
        job = worker.take()
        assert job.body == (body,)
        worker.reply(job.client, body)
        assert client.recv() == [b"MDPC01", service, body]


@requirement("MDP1-B-08")
def test_an_envelope_of_several_frames_goes_back_as_it_came(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.dealer()
    client.send(b"hop 1", b"hop 2", b"", b"MDPC01", service, b"hi")
    job = worker.take()
    assert job.body == (b"hi",)
    worker.reply(job.client, b"there")
    assert client.recv() == [b"hop 1", b"hop 2", b"", b"MDPC01", service, b"there"]


@pytest.mark.parametrize(
    "identity",
    [b"x", b"mmi.service", b"\x01\x00\x00\xff", b"i" * 255, b"MDPC01"],
    ids=["short", "like-a-service", "embedded-nul", "longest", "like-a-header"],
)
def test_identities_are_opaque_octets(peers: Peers, service: bytes, identity: bytes) -> None:
    worker = peers.worker01(service, identity=b"w" + identity[:200])
    client = peers.client01(identity=identity)
    client.request(service, b"who am I?")
    worker.finish(worker.take(), b"you")
    assert client.recv() == reply(service, b"you")


@pytest.mark.parametrize("name", [b"s", b"s" * 255, b"\x00\xff/\xfe", b"MMI.service", b"mmi", b" "])
def test_any_service_name_of_1_to_255_octets_is_good(peers: Peers, name: bytes) -> None:
    worker, client = peers.worker01(name), peers.client01()
    client.request(name, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == reply(name, b"there")
    worker.disconnect()


@pytest.mark.parametrize("name", [b"", b"s" * 256, b"s" * 70_000], ids=["empty", "256", "70000"])
@requirement("MDP1-B-05")
def test_a_service_name_outside_1_to_255_octets_is_no_service(peers: Peers, name: bytes) -> None:
    worker, client = peers.worker01(), peers.client01()
    worker.send(b"", b"MDPW01", b"\x01", name)
    client.request(name, b"hi")
    assert client.mmi(b"mmi.service", name) == [b"404"]
    # Nothing but, at most, being turned away.
    assert worker.collect() in ([], [DISCONNECT])
    listed = json.loads(client.mmi(b"mmi.services", b"")[1])
    assert all(1 <= len(entry["service"]) <= 255 for entry in listed)


# --- one request at a time, and who is next ---


@requirement("MDP1-G-02")
def test_a_worker_has_one_request_at_a_time_and_the_next_after_its_reply(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"1")
    client.request(service, b"2")
    first = worker.take()
    assert worker.commands() == []
    worker.reply(first.client, b"one")
    assert worker.take().body == (b"2",)
    assert client.recv() == reply(service, b"one")


@requirement("MDP1-B-01")
def test_the_worker_that_is_idle_longest_is_next(peers: Peers, service: bytes) -> None:
    workers = [peers.worker01(service), peers.worker01(service), peers.worker01(service)]
    for worker in workers:
        worker.await_heartbeat()
    client = peers.client01()
    served: list[int] = []
    for _ in range(6):
        client.request(service, b"whose turn?")
        called: list[tuple[int, list[bytes]]] = []

        def is_one_called(called: list[tuple[int, list[bytes]]] = called) -> bool:
            for index, worker in enumerate(workers):
                frames = worker.try_recv()
                if frames is not None and frames != worker.command(worker.HEARTBEAT):
                    called.append((index, frames))
            return bool(called)

        peers.wait_until(is_one_called, "a worker is called")
        [(index, frames)] = called
        served.append(index)
        workers[index].finish(workers[index].as_job(frames), b"mine")
        client.recv()
    assert sorted(served[:3]) == [0, 1, 2]
    assert served[3:] == served[:3]


@requirement("MDP1-B-01")
def test_a_client_with_many_requests_does_not_starve_another(peers: Peers, service: bytes) -> None:
    greedy, modest = peers.client01(), peers.client01()
    for number in range(20):
        greedy.request(service, b"greedy %d" % number)
    greedy.mmi(b"mmi.service", service)
    modest.request(service, b"modest")
    modest.mmi(b"mmi.service", service)
    worker = peers.worker01(service)
    bodies = []
    for _ in range(21):
        job = worker.take()
        bodies.append(job.body[0])
        worker.finish(job, job.body[0])
    assert bodies.index(b"modest") <= 2
    # Each client's own requests keep their order.
    assert [body for body in bodies if body != b"modest"] == [b"greedy %d" % number for number in range(20)]


def test_replies_reach_an_asynchronous_client_in_the_order_of_completion(
    peers: Peers, service: bytes
) -> None:
    slow, fast, client = peers.worker01(service), peers.worker01(service), peers.client01()
    slow.await_heartbeat()
    fast.await_heartbeat()
    client.request(service, b"1")
    client.request(service, b"2")
    slow_job, fast_job = slow.take(), fast.take()
    fast.finish(fast_job, *fast_job.body)
    assert client.recv() == reply(service, *fast_job.body)
    slow.finish(slow_job, *slow_job.body)
    assert client.recv() == reply(service, *slow_job.body)


# --- queueing ---


@requirement("MDP1-B-02")
def test_a_request_waits_for_the_first_worker_of_its_service(peers: Peers, service: bytes) -> None:
    client = peers.client01()
    client.request(service, b"early")
    client.mmi(b"mmi.service", service)
    worker = peers.worker01(service)
    job = worker.take()
    assert job.body == (b"early",)
    worker.finish(job, b"at last")
    assert client.recv() == reply(service, b"at last")


@requirement("MDP1-B-03")
def test_a_request_that_waited_too_long_is_not_executed(
    forgetful: Broker, forgetful_peers: Peers, service: bytes
) -> None:
    peers = forgetful_peers
    client = peers.client01()
    client.request(service, b"stale")
    client.mmi(b"mmi.service", service)
    peers.pass_time(forgetful.timing.request_ttl_s * 1.2)
    worker = peers.worker01(service)
    assert worker.commands() == []
    client.request(service, b"fresh")
    assert worker.take().body == (b"fresh",)


@requirement("MDP1-R-05")
def test_a_full_queue_takes_no_more_requests(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    clients = [peers.client01() for _ in range(5)]
    for number, client in enumerate(clients):
        client.request(service, b"%d" % number)
        client.mmi(b"mmi.service", service)
    worker = peers.worker01(service)
    for number in range(tight.profile.limits["queue_length_max"]):
        job = worker.take()
        assert job.body == (b"%d" % number,)
        worker.finish(job, b"done")
    assert worker.commands() == []


@requirement("MDP1-R-05")
def test_the_octets_of_all_queues_are_bounded(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    half = tight.profile.limits["queue_bytes_max"] // 2
    for number in (b"1", b"2", b"3"):
        # One client after the other: the last tenth is not for one that has half of it.
        client = peers.client01()
        client.request(service, number, bytes(half - 1))
        client.mmi(b"mmi.service", service)
    worker = peers.worker01(service)
    for number in (b"1", b"2"):
        job = worker.take()
        assert job.body[0] == number
        worker.finish(job, b"done")
    assert worker.commands() == []


@requirement("MDP1-R-05")
def test_the_number_of_services_is_bounded(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    client = tight_peers.client01()
    for number in range(50):
        client.request(service + b"-%d" % number, b"hi")
    listed = json.loads(client.mmi(b"mmi.services", b"")[1])
    assert len(listed) == tight.profile.limits["services_max"]


@requirement("MDP1-R-05")
def test_a_service_without_workers_and_requests_is_forgotten(forgetful_peers: Peers, service: bytes) -> None:
    peers = forgetful_peers
    client, worker = peers.client01(), peers.worker01(service)

    def is_listed() -> bool:
        names = [entry["service"] for entry in json.loads(client.mmi(b"mmi.services", b"")[1])]
        return service.decode() in names

    worker.await_heartbeat()
    assert is_listed()
    worker.disconnect()
    client.request(service + b"-never-offered", b"hi")
    peers.wait_until(lambda: not is_listed(), "the service is forgotten")
    peers.wait_until(
        lambda: service not in client.mmi(b"mmi.services", b"")[1],
        "the service that nobody offered is forgotten",
    )


@requirement("MDP1-R-05")
@requirement("MDP1-B-07")
def test_a_worker_too_many_is_turned_away(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    for _ in range(tight.profile.limits["workers_max"]):
        peers.worker01(service).await_heartbeat()
    one_more = peers.worker01(service)
    one_more.await_disconnect()
    assert one_more.collect() == []


@requirement("MDP1-R-05")
def test_a_message_too_large_is_dropped(tight: Broker, tight_peers: Peers, service: bytes) -> None:
    peers = tight_peers
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, bytes(tight.profile.limits["message_bytes_max"] + 1))
    worker.answer = b"seen"
    # Whether the message is dropped or its connection ends is the broker's choice; the client can go on.
    while (frames := client.try_recv(0.1)) is None:
        client.request(service, b"small")
    assert frames == reply(service, b"seen", b"small")


# --- commands that are not expected ---


@pytest.mark.parametrize(
    "command",
    [pytest.param([b"\x04"], id="HEARTBEAT"), pytest.param([b"\x03", b"client", b"", b"body"], id="REPLY")],
)
@requirement("MDP1-B-04")
def test_a_worker_that_has_not_registered_is_disconnected(peers: Peers, command: list[bytes]) -> None:
    worker = peers.dealer()
    worker.send(b"", b"MDPW01", *command)
    assert worker.recv() == [b"", b"MDPW01", b"\x05"]
    assert worker.collect() == []


@requirement("MDP1-B-04")
def test_a_second_ready_ends_the_registration(peers: Peers, service: bytes) -> None:
    worker = peers.worker01(service)
    worker.ready(service)
    worker.await_disconnect()
    assert worker.collect() == []
    assert peers.client01().mmi(b"mmi.service", service) == [b"404"]


@requirement("MDP1-B-04")
def test_a_second_ready_of_a_busy_worker_frees_its_request(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    worker.take()
    worker.ready(service)
    worker.await_disconnect()
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")
    assert worker.collect() == []


@requirement("MDP1-B-04")
def test_a_reply_of_an_idle_worker_reaches_nobody_and_ends_its_registration(
    peers: Peers, service: bytes
) -> None:
    bystander = peers.client01(identity=b"bystander of " + service)
    bystander.mmi(b"mmi.service", service)
    worker = peers.worker01(service)
    worker.reply(b"bystander of " + service, b"unasked")
    worker.await_disconnect()
    assert worker.collect() == []
    assert bystander.mmi(b"mmi.service", service) == [b"404"]


@requirement("MDP1-B-04")
@requirement("MDP1-R-03")
def test_a_reply_to_somebody_else_reaches_nobody_and_frees_the_request(peers: Peers, service: bytes) -> None:
    bystander = peers.client01(identity=b"bystander of " + service)
    bystander.mmi(b"mmi.service", service)
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    worker.take()
    worker.reply(b"bystander of " + service, b"unasked")
    worker.await_disconnect()
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")
    # The answer to this question is the first thing the bystander hears.
    assert bystander.mmi(b"mmi.service", service) == [b"200"]


# --- messages that are not valid ---

MALFORMED_REPLIES = [
    pytest.param([b"\x03"], id="nothing-else"),
    pytest.param([b"\x03", b"CLIENT"], id="no-empty-frame-no-body"),
    pytest.param([b"\x03", b"CLIENT", b""], id="no-body"),
    pytest.param([b"\x03", b"CLIENT", b"body", b""], id="empty-frame-elsewhere"),
    pytest.param([b"\x03", b"CLIENT", b"second address", b"", b"body"], id="two-addresses"),
    pytest.param([b"\x03", b"", b"", b"body"], id="empty-address"),
]


@pytest.mark.parametrize("command", MALFORMED_REPLIES)
@requirement("MDP1-B-05")
def test_a_malformed_reply_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, command: list[bytes]
) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    job = worker.take()
    worker.send(b"", b"MDPW01", *[job.client if frame == b"CLIENT" else frame for frame in command])
    worker.await_disconnect()
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")
    assert worker.collect() == []


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"", b"MDPW01"], id="no-command"),
        pytest.param([b"", b"MDPW01", b""], id="empty-command"),
        pytest.param([b"", b"MDPW01", b"\x00"], id="command-0"),
        pytest.param([b"", b"MDPW01", b"\x06"], id="command-6"),
        pytest.param([b"", b"MDPW01", b"\xff"], id="command-255"),
        pytest.param([b"", b"MDPW01", b"\x01\x01", b"SERVICE"], id="command-of-two-octets"),
        pytest.param([b"", b"MDPW01", b"\x01"], id="READY-without-service"),
        pytest.param([b"", b"MDPW01", b"\x01", b"SERVICE", b"x"], id="READY-with-more"),
        pytest.param([b"", b"MDPW01", b"\x02", b"client", b"", b"body"], id="REQUEST-from-a-worker"),
        pytest.param([b"", b"MDPW01", b"\x03"], id="REPLY-without-anything"),
        pytest.param([b"", b"MDPW01", b"\x04", b"x"], id="HEARTBEAT-with-more"),
        pytest.param([b"", b"MDPW01", b"\x05", b"x"], id="DISCONNECT-with-more"),
        pytest.param([b"", b"MDPW0X", b"\x01", b"SERVICE"], id="unknown-header"),
        pytest.param([b"MDPW01", b"\x01", b"SERVICE"], id="no-empty-frame"),
        pytest.param([b"", b"", b"MDPW01", b"\x01", b"SERVICE"], id="two-empty-frames"),
    ],
)
@requirement("MDP1-B-05")
def test_a_malformed_message_of_a_stranger_leaves_no_record(
    peers: Peers, service: bytes, frames: list[bytes]
) -> None:
    worker = peers.worker01()
    worker.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    # The broker has read it once it answers this, and it has said nothing about it.
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    # A half-made record would make this READY a second one.
    worker.ready(service)
    client = peers.client01()
    client.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == reply(service, b"there")


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@requirement("MDP1-B-05")
def test_an_unknown_command_of_a_registered_worker_ends_the_registration(
    peers: Peers, service: bytes, *, is_busy: bool
) -> None:
    worker, client = peers.worker01(service), peers.client01()
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.send(b"", b"MDPW01", b"\x07", b"what?")
    worker.await_disconnect()
    if not is_busy:
        client.request(service, b"hi")
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")
    assert worker.collect() == []


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"", b"MDPC01"], id="no-service"),
        pytest.param([b"", b"MDPC01", b"SERVICE"], id="no-body"),
        pytest.param([b"", b"MDPC01", b"", b"body"], id="empty-service"),
        pytest.param([b"", b"mdpc01", b"SERVICE", b"body"], id="header-in-small-letters"),
        pytest.param([b"", b"MDPC01\x00", b"SERVICE", b"body"], id="header-too-long"),
        pytest.param([b"", b"MDPC03", b"SERVICE", b"body"], id="unknown-version"),
        pytest.param([b"", b"", b"MDPC01", b"SERVICE", b"body"], id="two-empty-frames"),
    ],
)
@requirement("MDP1-B-05")
def test_a_malformed_message_of_a_client_is_dropped(
    peers: Peers, service: bytes, frames: list[bytes]
) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    client.request(service, b"valid")
    assert worker.take().body == (b"valid",)


# --- leaving ---


@requirement("MDP1-B-06")
def test_a_worker_that_left_is_sent_nothing(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.client01()
    worker.await_heartbeat()
    worker.disconnect()
    # The order of one connection: the DISCONNECT has been read once this is answered.
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    client.request(service, b"hi")
    assert worker.collect() == []
    other = peers.worker01(service)
    assert other.take().body == (b"hi",)


@requirement("MDP1-B-06")
@requirement("MDP1-R-03")
def test_a_worker_that_leaves_while_busy_leaves_its_request_behind(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    worker.take()
    worker.disconnect()
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")
    assert worker.collect() == []


@requirement("MDP1-B-06")
def test_a_disconnect_of_a_stranger_is_not_answered(peers: Peers) -> None:
    stranger = peers.worker01()
    stranger.disconnect()
    assert stranger.collect() == []


@requirement("MDP1-B-07")
def test_a_peer_that_never_said_anything_as_a_worker_is_never_disconnected(
    peers: Peers, service: bytes
) -> None:
    client = peers.client01()
    client.request(service, b"hi")
    assert client.collect() == []


@requirement("MDP1-R-06")
def test_a_worker_with_a_fixed_identity_registers_anew_after_a_disconnect(
    peers: Peers, service: bytes
) -> None:
    identity = b"fixed " + service
    worker = peers.worker01(service, identity=identity)
    worker.ready(service)
    worker.await_disconnect()
    worker.close()
    again = peers.worker01(service, identity=identity)
    client = peers.client01()
    client.request(service, b"hi")
    again.finish(again.take(), b"there")
    assert client.recv() == reply(service, b"there")


@requirement("MDP1-R-06")
def test_a_worker_with_a_fixed_identity_may_return_before_its_old_connection_is_known_to_be_gone(
    peers: Peers, service: bytes
) -> None:
    identity = b"fixed " + service
    old = peers.worker01(service, identity=identity)
    old.await_heartbeat()
    old.fall_silent()
    # To the broker this is a second READY of the same worker; it then has to come once more, as after any
    # DISCONNECT.
    new = peers.worker01(service, identity=identity)
    new.await_disconnect()
    new.ready(service)
    client = peers.client01()
    client.request(service, b"hi")
    new.finish(new.take(), b"there")
    assert client.recv() == reply(service, b"there")


# --- heartbeats ---


@requirement("MDP1-B-09")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@requirement("MDP1-R-03")
def test_the_broker_sends_heartbeats_at_the_agreed_interval(
    mortal: Broker, mortal_peers: Peers, service: bytes, *, is_busy: bool
) -> None:
    worker, client = mortal_peers.worker01(service), mortal_peers.client01()
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


@requirement("MDP1-B-09")
def test_a_silent_worker_is_given_up_and_sent_nothing(
    mortal: Broker, mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    silent, client = peers.worker01(service), peers.client01()
    silent.await_heartbeat()
    silent.fall_silent()
    began = time.monotonic()
    assert client.mmi(b"mmi.service", service) == [b"200"]
    peers.wait_until(lambda: client.mmi(b"mmi.service", service) == [b"404"], "the worker is given up")
    assert time.monotonic() - began > mortal.timing.expiry_s * 0.4
    client.request(service, b"hi")
    second = peers.worker01(service)
    assert second.take().body == (b"hi",)
    # What is left to read was sent before the broker gave up.
    silent.collect(0.05)
    assert silent.collect() == []


@requirement("MDP1-B-10")
@requirement("MDP1-B-09")
def test_a_reply_counts_as_a_heartbeat(mortal: Broker, mortal_peers: Peers, service: bytes) -> None:
    peers = mortal_peers
    worker, client = peers.worker01(service), peers.client01()
    worker.fall_silent()
    until = time.monotonic() + 2.5 * mortal.timing.expiry_s
    while time.monotonic() < until:
        client.request(service, b"hi")
        worker.finish(worker.take(), b"there")
        assert client.recv() == reply(service, b"there")
        peers.pass_time(mortal.timing.mdp_heartbeat_interval_s / 2)


@requirement("MDP1-B-10")
def test_no_heartbeats_are_sent_while_other_commands_flow(
    broker: Broker, peers: Peers, service: bytes
) -> None:
    interval_s = broker.timing.mdp_heartbeat_interval_s
    worker, client = peers.worker01(service), peers.client01()
    beats, lulls, last = 0, 1, time.monotonic()
    until = last + 5 * interval_s
    while time.monotonic() < until:
        client.request(service, b"hi")
        while (frames := worker.recv()) == worker.command(worker.HEARTBEAT):
            beats += 1
        now = time.monotonic()
        # Where this test itself was held up, a heartbeat is right.
        lulls += now - last > interval_s / 2
        last = now
        worker.finish(worker.as_job(frames), b"there")
        client.recv()
    assert beats <= lulls


@requirement("MDP1-R-03")
def test_the_request_of_a_worker_that_vanished_goes_to_another(mortal_peers: Peers, service: bytes) -> None:
    peers = mortal_peers
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    worker.take()
    worker.vanish()
    other = peers.worker01(service)
    other.finish(other.take(), b"there")
    assert client.recv() == reply(service, b"there")


@requirement("MDP1-R-03")
def test_the_request_of_a_worker_that_hangs_goes_to_another_and_its_late_reply_nowhere(
    mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    job = worker.take()
    worker.fall_silent()
    other = peers.worker01(service)
    second = other.take()
    worker.finish(job, b"too late")
    worker.await_disconnect()
    other.finish(second, b"there")
    assert client.recv() == reply(service, b"there")
    assert client.mmi(b"mmi.service", service) == [b"200"]


@requirement("MDP1-R-03")
def test_a_request_that_ends_every_worker_is_given_up(
    tight: Broker, tight_peers: Peers, service: bytes
) -> None:
    peers = tight_peers
    client = peers.client01()
    client.request(service, b"poison")
    for _ in range(tight.profile.limits["deliveries_max"]):
        worker = peers.worker01(service)
        assert worker.take().body == (b"poison",)
        worker.disconnect()
    survivor = peers.worker01(service)
    assert survivor.commands() == []
    client.request(service, b"food")
    assert survivor.take().body == (b"food",)


@requirement("MDP1-R-04")
def test_a_silent_worker_behind_a_live_one_is_found(
    mortal: Broker, mortal_peers: Peers, service: bytes
) -> None:
    peers = mortal_peers
    live = peers.worker01(service + b"-Q")
    live.await_heartbeat()
    silent = peers.worker01(service + b"-P")
    silent.await_heartbeat()
    silent.fall_silent()
    client = peers.client01()
    peers.pass_time(mortal.timing.expiry_s * 1.5)
    while silent.try_recv() is not None:
        pass
    client.request(service + b"-P", b"hi")
    assert silent.collect() == []
    assert client.mmi(b"mmi.service", service + b"-Q") == [b"200"]
    assert client.mmi(b"mmi.service", service + b"-P") == [b"404"]


def test_a_burst_of_old_heartbeats_behind_ready_is_taken(peers: Peers, service: bytes) -> None:
    """A DEALER that connects before its broker is there delivers everything at once (T-06)."""
    worker: Worker01 = peers.worker01(service)
    for _ in range(200):
        worker.heartbeat()
    client = peers.client01()
    client.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == reply(service, b"there")


def test_a_second_live_connection_with_the_same_identity_takes_over(peers: Peers, service: bytes) -> None:
    """A default ROUTER would ignore the newcomer for as long as the old connection looks alive (T-03)."""
    worker = peers.worker01(service)
    old = peers.client01(identity=b"one and only " + service)
    old.mmi(b"mmi.service", service)
    new = peers.client01(identity=b"one and only " + service)
    new.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert new.recv() == reply(service, b"there")
    assert old.collect() == []


def test_a_request_without_any_frame_of_sense_is_answered_by_nobody(peers: Peers) -> None:
    stranger = peers.dealer()
    stranger.send(EMPTY)
    stranger.send(b"GET / HTTP/1.1")
    assert stranger.collect() == []
