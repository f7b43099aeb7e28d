"""Majordomo 0.1 (7/MDP) and 0.2 (18/MDP): the broker as its clients and workers meet it, byte by byte.

The ids are listed in tests/support/requirements.py. Frames are spelled out here wherever they are the point.
The broker is the production core in virtual time (``memory_broker``); tests/test_conformance_sockets.py has
what sockets add. No published program speaks 18/MDP as it is specified, so the specification is its judge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from support import memory_broker
from support.memory_broker import MemoryBroker
from support.rawpeers import EMPTY, Client01, Client02, Peers, Worker01, Worker02

requirement = pytest.mark.requirement
broker, mortal, forgetful = memory_broker.broker, memory_broker.mortal, memory_broker.forgetful
tight, tight_peers = memory_broker.tight, memory_broker.tight_peers


@dataclass(frozen=True)
class Dialect:
    """What a test of both versions needs to know of one."""

    version: str
    # What stands before a command of a worker, and before the service in a message of a client.
    worker_head: tuple[bytes, ...]
    client_head: tuple[bytes, ...]
    final_head: tuple[bytes, ...]
    final_code: bytes
    heartbeat_code: bytes
    disconnect_code: bytes

    def worker(
        self, peers: Peers, service: bytes | None = None, *, identity: bytes | None = None
    ) -> Worker01 | Worker02:
        make = peers.worker01 if self.version == "0.1" else peers.worker02
        return make(service, identity=identity)

    def client(self, peers: Peers, *, identity: bytes | None = None) -> Client01 | Client02:
        make = peers.client01 if self.version == "0.1" else peers.client02
        return make(identity=identity)

    def final(self, service: bytes, *body: bytes) -> list[bytes]:
        """The last or only reply as a client receives it."""
        return [*self.final_head, service, *body]

    def disconnect(self) -> list[bytes]:
        return [*self.worker_head, self.disconnect_code]

    def answer(self, worker: Worker01 | Worker02, address: bytes, *body: bytes) -> None:
        """A worker's last or only answer."""
        worker.send(*self.worker_head, self.final_code, address, EMPTY, *body)

    def ask(self, client: Client01 | Client02, name: bytes, *body: bytes) -> list[bytes]:
        """Ask the broker itself; once it answers, all that this client sent before has been read."""
        client.request(name, *body)
        frames = client.recv()
        head = self.final(name)
        assert frames[: len(head)] == head, frames
        return frames[len(head) :]


V01 = Dialect(
    "0.1", (b"", b"MDPW01"), (b"", b"MDPC01"), (b"", b"MDPC01"), b"\x03", b"\x04", b"\x05"
)  # fmt: skip
V02 = Dialect(
    "0.2", (b"MDPW02",), (b"MDPC02", b"\x01"), (b"MDPC02", b"\x03"), b"\x04", b"\x05", b"\x06"
)  # fmt: skip


ANSWERS = [
    pytest.param(V01, b"\x03", id="0.1-REPLY"),
    pytest.param(V02, b"\x03", id="0.2-PARTIAL"),
    pytest.param(V02, b"\x04", id="0.2-FINAL"),
]


@pytest.fixture(params=[V01, V02], ids=lambda dialect: dialect.version)
def mdp(request: pytest.FixtureRequest) -> Dialect:
    """The version of a test that both must pass."""
    dialect: Dialect = request.param
    return dialect


def served_by_another(
    mdp: Dialect, peers: Peers, service: bytes, client: Client01 | Client02, worker: Worker01 | Worker02
) -> None:
    """The request is free: another worker gets and answers it. The first one has heard nothing more."""
    other = mdp.worker(peers, service)
    other.finish(other.take(), b"there")
    assert client.recv() == mdp.final(service, b"there")
    assert worker.collect() == []


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


@requirement("MDP2-G-01")
@requirement("MDP2-G-02")
@requirement("MDP2-B-08")
def test_the_published_exchange_of_0_2_octet_by_octet(peers: Peers, service: bytes) -> None:
    worker, client = peers.dealer(), peers.dealer()
    worker.send(b"\x4d\x44\x50\x57\x30\x32", b"\x01", service)
    client.send(b"\x4d\x44\x50\x43\x30\x32", b"\x01", service, b"\x68\x69")
    frames = worker.recv()
    while frames == [b"MDPW02", b"\x05"]:
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
        pytest.param([b"\x04", b"", b"MDPC01", b"MDPC02", b"\x00"], id="frames-that-look-like-others"),
        pytest.param([b"\xb5\x01", b"\x00\xff" * 100], id="binary"),
        pytest.param([b"%d" % n for n in range(100)], id="many-frames"),
    ],
)
@requirement("MDP1-B-08")
@requirement("MDP2-B-08")
@requirement("MDP2-R-05")
def test_bodies_travel_unchanged_both_ways(
    peers: Peers, service: bytes, mdp: Dialect, body: list[bytes]
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, *body)
    job = worker.take()
    assert list(job.body) == body
    if isinstance(worker, Worker02):
        worker.partial(job.client, *body)
        assert client.recv() == [b"MDPC02", b"\x02", service, *body]
    worker.finish(job, *body)
    assert client.recv() == mdp.final(service, *body)


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
    [b"x", b"mmi.service", b"\x01\x00\x00\xff", b"i" * 255, b"MDPC01", b"MDPW02"],
    ids=["short", "like-a-service", "embedded-nul", "longest", "like-a-header", "like-a-worker"],
)
@requirement("MDP2-B-08")
def test_identities_are_opaque_octets(peers: Peers, service: bytes, mdp: Dialect, identity: bytes) -> None:
    worker = mdp.worker(peers, service, identity=identity[:200] + b"w")
    client = mdp.client(peers, identity=identity)
    client.request(service, b"who am I?")
    worker.finish(worker.take(), b"you")
    assert client.recv() == mdp.final(service, b"you")


@pytest.mark.parametrize("name", [b"s", b"s" * 255, b"\x00\xff/\xfe", b"MMI.service", b"mmi", b" "])
def test_any_service_name_of_1_to_255_octets_is_good(peers: Peers, mdp: Dialect, name: bytes) -> None:
    worker, client = mdp.worker(peers, name), mdp.client(peers)
    client.request(name, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == mdp.final(name, b"there")


@pytest.mark.parametrize("name", [b"", b"s" * 256, b"s" * 70_000], ids=["empty", "256", "70000"])
@requirement("MDP1-B-05")
def test_a_service_name_outside_1_to_255_octets_is_no_service(
    peers: Peers, mdp: Dialect, name: bytes
) -> None:
    worker, client = mdp.worker(peers), mdp.client(peers)
    worker.send(*mdp.worker_head, b"\x01", name)
    client.request(name, b"hi")
    assert mdp.ask(client, b"mmi.service", name) == [b"404"]
    # Nothing but, at most, being turned away.
    assert worker.collect() in ([], [mdp.disconnect()])
    listed = json.loads(mdp.ask(client, b"mmi.services", b"")[1])
    assert all(1 <= len(entry["service"]) <= 255 for entry in listed)


# --- one request at a time, and who is next ---


@requirement("MDP1-G-02")
@requirement("MDP2-B-10")
def test_a_worker_has_one_request_at_a_time_and_the_next_after_its_last_answer(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    worker, clients = mdp.worker(peers, service), [mdp.client(peers), mdp.client(peers)]
    for client in clients:
        client.request(service, b"hi")
    first = worker.take()
    if isinstance(worker, Worker02):
        worker.partial(first.client, b"not yet")
        assert clients[0].recv() == [b"MDPC02", b"\x02", service, b"not yet"]
    assert worker.commands() == []
    worker.finish(first, b"now")
    assert worker.take().client != first.client
    assert clients[0].recv() == mdp.final(service, b"now")


@requirement("MDP1-B-01")
@requirement("MDP2-B-10")
def test_the_worker_that_is_idle_longest_is_next(peers: Peers, service: bytes, mdp: Dialect) -> None:
    workers, client = [mdp.worker(peers, service) for _ in range(3)], mdp.client(peers)
    order = [0, 1, 2]
    for next_order in ([2, 0, 1], [1, 2, 0]):
        for number in range(3):
            client.request(service, b"%d" % number)
        jobs = {index: workers[index].take() for index in order}
        assert [job.body for job in jobs.values()] == [(b"0",), (b"1",), (b"2",)]
        for index in next_order:
            workers[index].finish(jobs[index], b"mine")
        order = next_order


@requirement("MDP1-B-01")
@requirement("MDP2-B-10")
def test_a_client_with_many_requests_does_not_starve_another(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    greedy, modest = mdp.client(peers), mdp.client(peers)
    for number in range(20):
        greedy.request(service, b"greedy %d" % number)
    modest.request(service, b"modest")
    worker = mdp.worker(peers, service)
    bodies = []
    for _ in range(21):
        job = worker.take()
        bodies.append(job.body[0])
        worker.finish(job, job.body[0])
    assert bodies.index(b"modest") <= 2
    # Each client's own requests keep their order.
    assert [body for body in bodies if body != b"modest"] == [b"greedy %d" % number for number in range(20)]


def test_replies_reach_an_asynchronous_client_in_the_order_of_completion(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    slow, fast, client = mdp.worker(peers, service), mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"1")
    client.request(service, b"2")
    slow_job, fast_job = slow.take(), fast.take()
    fast.finish(fast_job, *fast_job.body)
    assert client.recv() == mdp.final(service, *fast_job.body)
    slow.finish(slow_job, *slow_job.body)
    assert client.recv() == mdp.final(service, *slow_job.body)


# --- after the last answer ---


@pytest.mark.parametrize(("mdp", "command"), ANSWERS)
@requirement("MDP1-B-04")
@requirement("MDP1-G-02")
@requirement("MDP2-B-01")
@requirement("MDP2-B-04")
def test_nothing_reaches_the_client_or_the_worker_after_the_last_answer(
    peers: Peers, service: bytes, mdp: Dialect, command: bytes
) -> None:
    """A published broker has a worker that answers twice among its idle ones twice."""
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"hi")
    job = worker.take()
    worker.finish(job, b"the end")
    worker.send(*mdp.worker_head, command, job.client, b"", b"encore")
    worker.await_disconnect()
    assert client.recv() == mdp.final(service, b"the end")
    # The answer to this question would come behind the encore.
    assert mdp.ask(client, b"mmi.service", service) == [b"404"]
    client.request(service, b"hi")
    served_by_another(mdp, peers, service, client, worker)


@requirement("MDP2-B-01")
def test_a_client_may_ask_again_after_final(peers: Peers, service: bytes) -> None:
    worker, client = peers.worker02(service), peers.client02()
    for number in (b"1", b"2", b"3"):
        client.request(service, number)
        job = worker.take()
        worker.partial(job.client, number, b"partial")
        worker.final(job.client, number, b"final")
        assert client.recv() == [b"MDPC02", b"\x02", service, number, b"partial"]
        assert client.recv() == V02.final(service, number, b"final")


# --- queueing ---


@requirement("MDP1-B-02")
@requirement("MDP2-B-02")
def test_a_request_waits_for_the_first_worker_of_its_service(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    client = mdp.client(peers)
    client.request(service, b"early")
    worker = mdp.worker(peers, service)
    job = worker.take()
    assert job.body == (b"early",)
    worker.finish(job, b"at last")
    assert client.recv() == mdp.final(service, b"at last")


@requirement("MDP1-B-03")
@requirement("MDP2-B-03")
def test_a_request_that_waited_too_long_is_not_executed(
    forgetful: MemoryBroker, forgetful_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    peers = forgetful_peers
    client = mdp.client(peers)
    client.request(service, b"stale")
    peers.pass_time(forgetful.timing.request_ttl_s * 1.2)
    worker = mdp.worker(peers, service)
    assert worker.commands() == []
    client.request(service, b"fresh")
    assert worker.take().body == (b"fresh",)


@requirement("MDP1-R-05")
def test_a_full_queue_takes_no_more_requests(
    tight: MemoryBroker, tight_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    clients = [mdp.client(tight_peers) for _ in range(5)]
    for number, client in enumerate(clients):
        client.request(service, b"%d" % number)
    worker = mdp.worker(tight_peers, service)
    for number in range(tight.profile.limits["queue_length_max"]):
        job = worker.take()
        assert job.body == (b"%d" % number,)
        worker.finish(job, b"done")
    assert worker.commands() == []


@requirement("MDP1-R-05")
def test_the_octets_of_all_queues_are_bounded(
    tight: MemoryBroker, tight_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    half = tight.profile.limits["queue_bytes_max"] // 2
    for number in (b"1", b"2", b"3"):
        # One client after the other: the last tenth is not for one that has half of it.
        mdp.client(tight_peers).request(service, number, bytes(half - 1))
    worker = mdp.worker(tight_peers, service)
    for number in (b"1", b"2"):
        job = worker.take()
        assert job.body[0] == number
        worker.finish(job, b"done")
    assert worker.commands() == []


@requirement("MDP1-R-05")
def test_the_number_of_services_is_bounded(tight: MemoryBroker, tight_peers: Peers, service: bytes) -> None:
    client = tight_peers.client01()
    for number in range(50):
        client.request(service + b"-%d" % number, b"hi")
    listed = json.loads(client.mmi(b"mmi.services", b"")[1])
    assert len(listed) == tight.profile.limits["services_max"]


@requirement("MDP1-R-05")
def test_a_service_without_workers_and_requests_is_forgotten(forgetful_peers: Peers, service: bytes) -> None:
    peers = forgetful_peers
    client, worker = peers.client01(), peers.worker01(service)

    def listed() -> list[str]:
        return [entry["service"] for entry in json.loads(client.mmi(b"mmi.services", b"")[1])]

    assert service.decode() in listed()
    worker.disconnect()
    client.request(service + b"-never-offered", b"hi")
    peers.wait_until(lambda: not listed(), "both services are forgotten")


@requirement("MDP1-R-05")
@requirement("MDP1-B-07")
@requirement("MDP2-B-07")
def test_a_worker_too_many_is_turned_away(
    tight: MemoryBroker, tight_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    for _ in range(tight.profile.limits["workers_max"]):
        mdp.worker(tight_peers, service).await_heartbeat()
    one_more = mdp.worker(tight_peers, service)
    one_more.await_disconnect()
    assert one_more.collect() == []


@requirement("MDP2-B-11")
@requirement("MDP2-R-06")
def test_several_requests_of_one_client_run_at_once_and_each_is_answered(
    peers: Peers, service: bytes
) -> None:
    """A departure from the scalability section, where the broker holds one request per client."""
    workers = [peers.worker02(service), peers.worker02(service)]
    client = peers.client02()
    for number in (b"1", b"2", b"3"):
        client.request(service, number)
    jobs = [worker.take() for worker in workers]
    assert [job.body[0] for job in jobs] == [b"1", b"2"]
    for worker, job in zip(workers, jobs, strict=True):
        worker.partial(job.client, b"partial", *job.body)
    for worker, job in zip(workers, jobs, strict=True):
        worker.final(job.client, b"final", *job.body)
    workers[0].final(workers[0].take().client, b"final", b"3")
    heard = [client.recv() for _ in range(5)]
    for number in (b"1", b"2"):
        first, second = [frames for frames in heard if frames[-1] == number]
        assert first == [b"MDPC02", b"\x02", service, b"partial", number]
        assert second == V02.final(service, b"final", number)
    assert heard[-1] == V02.final(service, b"final", b"3")


@requirement("MDP2-B-11")
@requirement("MDP2-R-06")
def test_the_requests_of_one_client_are_bounded(
    tight: MemoryBroker, tight_peers: Peers, service: bytes
) -> None:
    workers = [tight_peers.worker02(service) for _ in range(6)]
    client = tight_peers.client02()
    for number in range(8):
        client.request(service, b"%d" % number)
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
    assert second.recv() == V02.final(service, b"for the second")


# --- commands that are not expected ---


@pytest.mark.parametrize(
    ("mdp", "command"),
    [
        pytest.param(V01, [b"\x04"], id="0.1-HEARTBEAT"),
        pytest.param(V01, [b"\x03", b"client", b"", b"body"], id="0.1-REPLY"),
        pytest.param(V02, [b"\x05"], id="0.2-HEARTBEAT"),
        pytest.param(V02, [b"\x03", b"client", b"", b"body"], id="0.2-PARTIAL"),
        pytest.param(V02, [b"\x04", b"client", b"", b"body"], id="0.2-FINAL"),
    ],
)
@requirement("MDP1-B-04")
@requirement("MDP2-B-04")
def test_a_worker_that_has_not_registered_is_disconnected(
    peers: Peers, mdp: Dialect, command: list[bytes]
) -> None:
    worker = peers.dealer()
    worker.send(*mdp.worker_head, *command)
    assert worker.recv() == mdp.disconnect()
    assert worker.collect() == []


@requirement("MDP1-B-04")
@requirement("MDP2-B-04")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_second_ready_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, mdp: Dialect, *, is_busy: bool
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.ready(service)
    worker.await_disconnect()
    assert mdp.ask(client, b"mmi.service", service) == [b"404"]
    if not is_busy:
        client.request(service, b"hi")
    served_by_another(mdp, peers, service, client, worker)


@pytest.mark.parametrize(("mdp", "command"), ANSWERS)
@requirement("MDP1-B-04")
@requirement("MDP2-B-04")
def test_an_answer_of_an_idle_worker_reaches_nobody_and_ends_its_registration(
    peers: Peers, service: bytes, mdp: Dialect, command: bytes
) -> None:
    bystander = mdp.client(peers, identity=b"bystander")
    mdp.ask(bystander, b"mmi.service", service)
    worker = mdp.worker(peers, service)
    worker.send(*mdp.worker_head, command, b"bystander", b"", b"unasked")
    worker.await_disconnect()
    assert worker.collect() == []
    assert mdp.ask(bystander, b"mmi.service", service) == [b"404"]


@pytest.mark.parametrize(("mdp", "command"), ANSWERS)
@requirement("MDP1-B-04")
@requirement("MDP1-R-03")
@requirement("MDP2-B-04")
def test_an_answer_to_somebody_else_reaches_nobody_and_frees_the_request(
    peers: Peers, service: bytes, mdp: Dialect, command: bytes
) -> None:
    bystander = mdp.client(peers, identity=b"bystander")
    mdp.ask(bystander, b"mmi.service", service)
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"hi")
    worker.take()
    worker.send(*mdp.worker_head, command, b"bystander", b"", b"unasked")
    worker.await_disconnect()
    served_by_another(mdp, peers, service, client, worker)
    # The answer to this question is the first thing the bystander hears.
    assert mdp.ask(bystander, b"mmi.service", service) == [b"200"]


# --- messages that are not valid ---


@pytest.mark.parametrize(
    ("mdp", "command"),
    [
        pytest.param(answer.values[0], [answer.values[1], *rest], id=f"{answer.id}-{how}")
        for answer in ANSWERS
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
@requirement("MDP1-B-05")
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
def test_a_malformed_answer_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, mdp: Dialect, command: list[bytes]
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"hi")
    job = worker.take()
    worker.send(*mdp.worker_head, *[job.client if frame == b"CLIENT" else frame for frame in command])
    worker.await_disconnect()
    served_by_another(mdp, peers, service, client, worker)


def malformed(head: Sequence[bytes], commands: dict[str, list[bytes]]) -> list[tuple[str, list[bytes]]]:
    return [(how, [*head, *rest]) for how, rest in commands.items()]


OF_STRANGERS = {
    V01: [
        *malformed(
            V01.worker_head,
            {
                "no-command": [],
                "empty-command": [b""],
                "command-0": [b"\x00"],
                "command-6": [b"\x06"],
                "command-255": [b"\xff"],
                "command-of-two-bytes": [b"\x01\x01", b"SERVICE"],
                "READY-without-service": [b"\x01"],
                "READY-with-more": [b"\x01", b"SERVICE", b"x"],
                "REQUEST-from-a-worker": [b"\x02", b"client", b"", b"body"],
                "REPLY-without-anything": [b"\x03"],
                "HEARTBEAT-with-more": [b"\x04", b"x"],
                "DISCONNECT-with-more": [b"\x05", b"x"],
            },
        ),
        ("unknown-header", [b"", b"MDPW0X", b"\x01", b"SERVICE"]),
        ("no-empty-frame", [b"MDPW01", b"\x01", b"SERVICE"]),
        ("two-empty-frames", [b"", b"", b"MDPW01", b"\x01", b"SERVICE"]),
    ],
    V02: [
        *malformed(
            V02.worker_head,
            {
                "no-command": [],
                "empty-command": [b""],
                "command-0": [b"\x00"],
                "command-7": [b"\x07"],
                "command-255": [b"\xff", b"SERVICE"],
                "READY-without-service": [b"\x01"],
                "READY-with-empty-service": [b"\x01", b""],
                "READY-with-more": [b"\x01", b"SERVICE", b"x"],
                "REQUEST-from-a-worker": [b"\x02", b"client", b"", b"body"],
                "PARTIAL-without-anything": [b"\x03"],
                "HEARTBEAT-with-more": [b"\x05", b"x"],
                "DISCONNECT-with-more": [b"\x06", b"x"],
            },
        ),
        ("unknown-header", [b"MDPW0X", b"\x01", b"SERVICE"]),
    ],
}
OF_CLIENTS = {
    V01: [
        ("no-service", [b"", b"MDPC01"]),
        ("no-body", [b"", b"MDPC01", b"SERVICE"]),
        ("empty-service", [b"", b"MDPC01", b"", b"body"]),
        ("header-in-small-letters", [b"", b"mdpc01", b"SERVICE", b"body"]),
        ("header-too-long", [b"", b"MDPC01\x00", b"SERVICE", b"body"]),
        ("unknown-version", [b"", b"MDPC03", b"SERVICE", b"body"]),
        ("two-empty-frames", [b"", b"", b"MDPC01", b"SERVICE", b"body"]),
    ],
    V02: [
        ("no-command", [b"MDPC02"]),
        ("no-service", [b"MDPC02", b"\x01"]),
        ("no-body", [b"MDPC02", b"\x01", b"SERVICE"]),
        ("empty-service", [b"MDPC02", b"\x01", b"", b"body"]),
        ("service-of-256-bytes", [b"MDPC02", b"\x01", b"s" * 256, b"body"]),
        ("command-0", [b"MDPC02", b"\x00", b"SERVICE", b"body"]),
        ("PARTIAL-from-a-client", [b"MDPC02", b"\x02", b"SERVICE", b"body"]),
        ("FINAL-from-a-client", [b"MDPC02", b"\x03", b"SERVICE", b"body"]),
        ("empty-command", [b"MDPC02", b"", b"SERVICE", b"body"]),
        ("no-command-as-in-0.1", [b"MDPC02", b"SERVICE", b"body"]),
        ("no-command-four-frames", [b"MDPC02", b"SERVICE", b"body", b"more"]),
        ("the-tag-that-calls-itself-0.2", [b"", b"MDPC02", b"SERVICE", b"body"]),
    ],
}


def messages(of: dict[Dialect, list[tuple[str, list[bytes]]]]) -> list[object]:
    return [
        pytest.param(mdp, frames, id=f"{mdp.version}-{how}")
        for mdp, found in of.items()
        for how, frames in found
    ]


@pytest.mark.parametrize(("mdp", "frames"), messages(OF_STRANGERS))
@requirement("MDP1-B-05")
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
def test_a_malformed_message_of_a_stranger_leaves_no_record(
    peers: Peers, service: bytes, mdp: Dialect, frames: list[bytes]
) -> None:
    worker = mdp.worker(peers)
    worker.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    # The broker has read it once it answers this, and it has said nothing about it.
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    # A half-made record would make this READY a second one.
    worker.ready(service)
    client = mdp.client(peers)
    client.request(service, b"hi")
    worker.finish(worker.take(), b"there")
    assert client.recv() == mdp.final(service, b"there")


@pytest.mark.parametrize(("mdp", "frames"), messages(OF_CLIENTS))
@requirement("MDP1-B-05")
@requirement("MDP2-B-05")
@requirement("MDP2-R-04")
@requirement("MDP2-R-05")
def test_a_malformed_message_of_a_client_is_dropped(
    peers: Peers, service: bytes, mdp: Dialect, frames: list[bytes]
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.send(*[service if frame == b"SERVICE" else frame for frame in frames])
    client.request(service, b"valid")
    assert worker.take().body == (b"valid",)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize(
    "command",
    [[b"\x02", b"client", b"", b"body"], [b"\x08", b"what?"], [b"\x01\x01"], [b""], []],
    ids=["REQUEST", "08", "two-bytes", "empty", "header-alone"],
)
@requirement("MDP1-B-05")
@requirement("MDP2-B-05")
@requirement("MDP2-B-04")
def test_what_no_worker_may_say_ends_the_registration_and_frees_the_request(
    peers: Peers, service: bytes, mdp: Dialect, command: list[bytes], *, is_busy: bool
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.send(*mdp.worker_head, *command)
    worker.await_disconnect()
    if not is_busy:
        client.request(service, b"hi")
    served_by_another(mdp, peers, service, client, worker)


# --- leaving ---


@requirement("MDP1-B-06")
@requirement("MDP2-B-06")
def test_a_worker_that_left_is_sent_nothing(peers: Peers, service: bytes, mdp: Dialect) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    worker.await_heartbeat()
    worker.disconnect()
    assert worker.mmi(b"mmi.service", service) == [b"404"]
    client.request(service, b"hi")
    assert worker.collect() == []
    assert mdp.worker(peers, service).take().body == (b"hi",)


@requirement("MDP1-B-06")
@requirement("MDP1-R-03")
@requirement("MDP2-B-06")
def test_a_worker_that_leaves_while_busy_leaves_its_request_behind(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"hi")
    worker.take()
    worker.disconnect()
    served_by_another(mdp, peers, service, client, worker)


@requirement("MDP1-B-06")
@requirement("MDP2-B-06")
def test_a_disconnect_of_a_stranger_is_not_answered(peers: Peers, mdp: Dialect) -> None:
    stranger = mdp.worker(peers)
    stranger.disconnect()
    assert stranger.collect() == []


@requirement("MDP1-B-07")
@requirement("MDP2-B-07")
def test_a_peer_that_never_said_anything_as_a_worker_is_never_disconnected(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    client = mdp.client(peers)
    client.request(service, b"hi")
    assert client.collect() == []


@requirement("MDP1-R-06")
def test_a_worker_with_a_fixed_identity_registers_anew_after_a_disconnect(
    peers: Peers, service: bytes, mdp: Dialect
) -> None:
    worker = mdp.worker(peers, service, identity=b"fixed")
    worker.ready(service)
    worker.await_disconnect()
    worker.close()
    again, client = mdp.worker(peers, service, identity=b"fixed"), mdp.client(peers)
    client.request(service, b"hi")
    again.finish(again.take(), b"there")
    assert client.recv() == mdp.final(service, b"there")


# --- heartbeats ---


@requirement("MDP1-B-09")
@requirement("MDP1-R-03")
@requirement("MDP2-B-09")
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_the_broker_sends_heartbeats_at_the_agreed_interval(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect, *, is_busy: bool
) -> None:
    worker, client = mdp.worker(mortal_peers, service), mdp.client(mortal_peers)
    if is_busy:
        client.request(service, b"hi")
        worker.take()
    worker.await_heartbeat()
    began = mortal.monotonic()
    for _ in range(5):
        worker.await_heartbeat()
    passed_s = mortal.monotonic() - began
    assert passed_s == pytest.approx(5 * mortal.timing.mdp_heartbeat_interval_s, rel=0.1)


@requirement("MDP1-B-09")
@requirement("MDP2-B-09")
def test_a_silent_worker_is_given_up_and_sent_nothing(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    peers = mortal_peers
    silent, client = mdp.worker(peers, service), mdp.client(peers)
    silent.await_heartbeat()
    silent.fall_silent()
    began = mortal.monotonic()
    assert mdp.ask(client, b"mmi.service", service) == [b"200"]
    peers.wait_until(lambda: mdp.ask(client, b"mmi.service", service) == [b"404"], "the worker is given up")
    assert mortal.monotonic() - began == pytest.approx(mortal.timing.expiry_s, abs=0.3)
    client.request(service, b"hi")
    assert mdp.worker(peers, service).take().body == (b"hi",)
    # What is left to read was sent before the broker gave up.
    silent.collect(0.001)
    assert silent.collect() == []


@requirement("MDP1-B-10")
@requirement("MDP1-B-09")
@requirement("MDP2-B-09")
@pytest.mark.parametrize(
    ("mdp", "has_partials"), [(V01, False), (V02, False), (V02, True)], ids=["REPLY", "FINAL", "PARTIAL"]
)
def test_answers_count_as_heartbeats(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect, *, has_partials: bool
) -> None:
    peers = mortal_peers
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    worker.fall_silent()
    client.request(service, b"hi")
    job = worker.take()
    until = mortal.monotonic() + 2.5 * mortal.timing.expiry_s
    while mortal.monotonic() < until:
        if has_partials:
            worker.send(b"MDPW02", b"\x03", job.client, b"", b"still at it")
            assert client.recv() == [b"MDPC02", b"\x02", service, b"still at it"]
        else:
            worker.finish(job, b"done")
            assert client.recv() == mdp.final(service, b"done")
            client.request(service, b"hi")
            job = worker.take()
        peers.pass_time(mortal.timing.mdp_heartbeat_interval_s / 2)
    worker.finish(job, b"the end")
    assert client.recv() == mdp.final(service, b"the end")


@requirement("MDP2-B-09")
def test_heartbeats_keep_a_worker_that_computes_for_long(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    worker, client = mdp.worker(mortal_peers, service), mdp.client(mortal_peers)
    client.request(service, b"hi")
    job = worker.take()
    mortal_peers.pass_time(3 * mortal.timing.expiry_s)
    worker.finish(job, b"there")
    assert client.recv() == mdp.final(service, b"there")


@requirement("MDP1-B-10")
def test_no_heartbeats_are_sent_while_other_commands_flow(
    broker: MemoryBroker, peers: Peers, service: bytes, mdp: Dialect
) -> None:
    interval_s = broker.timing.mdp_heartbeat_interval_s
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    until = broker.monotonic() + 5 * interval_s
    while broker.monotonic() < until:
        client.request(service, b"hi")
        # ``as_job`` takes no heartbeat.
        worker.finish(worker.as_job(worker.recv()), b"there")
        client.recv()
        peers.pass_time(interval_s / 4)


# --- what happens to the request of a dead worker ---


@requirement("MDP1-R-03")
def test_the_request_of_a_worker_that_hangs_goes_to_another_and_its_late_reply_nowhere(
    mortal_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    peers = mortal_peers
    worker, client = mdp.worker(peers, service), mdp.client(peers)
    client.request(service, b"hi")
    job = worker.take()
    worker.fall_silent()
    other = mdp.worker(peers, service)
    second = other.take()
    worker.finish(job, b"too late")
    worker.await_disconnect()
    other.finish(second, b"there")
    assert client.recv() == mdp.final(service, b"there")
    assert mdp.ask(client, b"mmi.service", service) == [b"200"]


@requirement("MDP2-R-02")
@pytest.mark.parametrize("how", ["falls-silent", "disconnects", "talks-nonsense", "says-ready"])
def test_a_request_with_partials_is_not_run_again(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, how: str
) -> None:
    peers = mortal_peers
    worker, client = peers.worker02(service), peers.client02()
    client.request(service, b"hi")
    job = worker.take()
    worker.partial(job.client, b"so far")
    assert client.recv() == [b"MDPC02", b"\x02", service, b"so far"]
    other = peers.worker02(service)
    if how == "falls-silent":
        worker.fall_silent()
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
    assert client.recv() == V02.final(service, b"there")


@requirement("MDP1-R-03")
@requirement("MDP2-R-02")
def test_a_request_that_ends_every_worker_is_given_up(
    tight: MemoryBroker, tight_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    client = mdp.client(tight_peers)
    client.request(service, b"poison")
    for _ in range(tight.profile.limits["deliveries_max"]):
        worker = mdp.worker(tight_peers, service)
        assert worker.take().body == (b"poison",)
        worker.disconnect()
    survivor = mdp.worker(tight_peers, service)
    assert survivor.commands() == []
    client.request(service, b"food")
    assert survivor.take().body == (b"food",)
    counted = json.loads(mdp.ask(client, b"mmi.state", b"")[1])["broker"]["services"]
    assert next(entry for entry in counted if entry["service"] == service.decode())["poisoned"] == 1


@requirement("MDP1-R-04")
def test_no_silent_worker_hides_behind_a_live_one(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    """Several orders of becoming idle, several services: whoever is silent is found and gets nothing."""
    peers, client = mortal_peers, mdp.client(mortal_peers)
    names = [service + b"-%d" % (number % 3) for number in range(9)]
    workers = [mdp.worker(peers, name) for name in names]
    for worker in workers:
        worker.await_heartbeat()
    silent = workers[1::2]
    for worker in silent:
        worker.fall_silent()
    peers.pass_time(mortal.timing.expiry_s * 1.5)
    for worker in silent:
        worker.collect(0.001)
    listed = json.loads(mdp.ask(client, b"mmi.services", b"")[1])
    counts = {entry["service"]: entry["workers"] for entry in listed}
    living = names[::2]
    assert [counts[name.decode()] for name in names[:3]] == [living.count(name) for name in names[:3]]
    for name in names:
        client.request(name, b"hi")
    assert [frames for worker in silent for frames in worker.collect()] == []


# --- the variants of the field ---


@requirement("MDP2-G-02")
def test_a_leading_empty_frame_is_mirrored_to_that_peer_alone(peers: Peers, service: bytes) -> None:
    plain_worker, plain_client = peers.worker02(service + b"-plain"), peers.client02()
    worker = peers.worker02(service + b"-delimited", delimited=True)
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


def test_a_request_without_any_frame_of_sense_is_answered_by_nobody(peers: Peers) -> None:
    stranger = peers.dealer()
    stranger.send(EMPTY)
    stranger.send(b"GET / HTTP/1.1")
    assert stranger.collect() == []


@requirement("MDP1-B-08")
def test_a_worker_that_keeps_the_address_as_a_c_string_answers_a_client_without_an_identity(
    peers: Peers, service: bytes
) -> None:
    worker, client = peers.worker01(service), peers.client01()
    client.request(service, b"hi")
    worker.reply(worker.take().client.split(b"\0")[0], b"there")
    assert client.recv() == V01.final(service, b"there")


def test_a_worker_in_its_own_service_only(peers: Peers, service: bytes) -> None:
    """A published broker lists workers under a service of others and names the wrong one in FINAL."""
    names = [service + suffix for suffix in (b"-a", b"-b", b"-c")]
    workers = {name: peers.worker02(name) for name in names}
    clients = {name: peers.client02() for name in names}
    for name in names:
        clients[name].request(name, name)
    jobs = {name: workers[name].take() for name in names}
    assert {name: job.body for name, job in jobs.items()} == {name: (name,) for name in names}
    for name in reversed(names):
        workers[name].partial(jobs[name].client, b"p")
    for name in names:
        workers[name].final(jobs[name].client, b"f")
    for name in names:
        assert clients[name].recv() == [b"MDPC02", b"\x02", name, b"p"]
        assert clients[name].recv() == V02.final(name, b"f")


@requirement("MDP2-B-05")
def test_a_disconnect_with_the_code_of_0_1_is_a_heartbeat(mortal_peers: Peers, service: bytes) -> None:
    """Header upgraded to 0.2, codes left at 0.1: the worker expires, and nothing is lost."""
    worker, client = mortal_peers.worker02(service), mortal_peers.client02()
    client.request(service, b"hi")
    worker.take()
    worker.fall_silent()
    worker.send(b"MDPW02", b"\x05")
    other = mortal_peers.worker02(service)
    other.finish(other.take(), b"there")
    assert client.recv() == V02.final(service, b"there")


@requirement("MDP1-R-01")
def test_an_idle_worker_that_left_is_not_expired_once_more(
    mortal: MemoryBroker, mortal_peers: Peers, service: bytes, mdp: Dialect
) -> None:
    worker, client = mdp.worker(mortal_peers, service), mdp.client(mortal_peers)
    worker.await_heartbeat()
    worker.disconnect()
    mortal_peers.pass_time(mortal.timing.expiry_s * 1.5)
    client.request(service, b"hi")
    served_by_another(mdp, mortal_peers, service, client, worker)
