"""The worker's core in virtual time, as a worker of MDP/0.1 and of both Pirates.

test_worker_scripts.py has the rules that MDP/0.1 shares with MDP/0.2.
"""

from __future__ import annotations

import pytest

from bstar.wire.limits import MESSAGE_BYTES_MAX
from bstar_client.core.worker.dialects import Mdp01Worker, ParanoidWorker, SimpleWorker
from bstar_client.core.worker.outputs import Begin, Close, Ended, Open
from support.worker_bench import ADDRESS, Bench

requirement = pytest.mark.requirement

READY_01 = [b"", b"MDPW01", b"\x01", b"echo"]
HEARTBEAT_01 = [b"", b"MDPW01", b"\x04"]
READY, HEARTBEAT = [b"\x01"], [b"\x02"]
OTHER = b"\x00other"


@pytest.fixture
def majordomo() -> Bench:
    bench = Bench(dialect=Mdp01Worker(1.0, 3.0), lead=(b"", b"MDPW01", b"\x02"))
    bench.connect()
    return bench


@pytest.fixture
def paranoid() -> Bench:
    bench = Bench(dialect=ParanoidWorker(1.0, 3.0), lead=())
    bench.connect()
    return bench


@pytest.fixture
def simple() -> Bench:
    bench = Bench(dialect=SimpleWorker(), lead=(b"",))
    bench.connect()
    return bench


# --- MDP/0.1 ------------------------------------------------------------------------------------------------


@requirement("MDP1-W-02")
@requirement("MDP1-W-07")
def test_an_empty_frame_stands_before_all_that_it_sends(majordomo: Bench) -> None:
    majordomo.finish(majordomo.request(), b"", b"done")
    majordomo.wait(1.0)
    reply = [b"", b"MDPW01", b"\x03", ADDRESS, b"", b"", b"done"]
    assert majordomo.frames() == [READY_01, reply, HEARTBEAT_01]


@requirement("MDP1-W-06")
def test_on_disconnect_it_begins_anew_on_another_socket(majordomo: Bench) -> None:
    majordomo.hear(b"", b"MDPW01", b"\x05")
    assert Close(0) in majordomo.log
    majordomo.wait(0.2)
    assert majordomo.log[-1] == Open(0)
    majordomo.connect()
    assert majordomo.frames() == [READY_01, READY_01]


def test_parts_wait_and_stand_before_the_one_reply(majordomo: Bench, paranoid: Bench) -> None:
    """A node does the same with PARTIALs for a client of MDP/0.1."""
    for bench in (majordomo, paranoid):
        job = bench.request()
        for part in ([b"a", b""], [b"b"]):
            bench.take(bench.core.partial(job, part, bench.now))
        assert len(bench.frames()) == 1
        bench.finish(job, b"end")
        assert bench.frames()[-1][-6:] == [ADDRESS, b"", b"a", b"", b"b", b"end"]


def test_parts_without_end_are_a_failure_and_are_not_kept(majordomo: Bench) -> None:
    job = majordomo.request()
    for _ in range(3):
        majordomo.take(majordomo.core.partial(job, [bytes(MESSAGE_BYTES_MAX // 2)], majordomo.now))
    assert sum(map(len, job.held or ())) <= MESSAGE_BYTES_MAX
    majordomo.finish(job, b"end")
    code, text = majordomo.frames()[-1][5:]
    assert code == b"500"
    assert b"more than" in text


def test_it_leaves_without_disconnect_which_ends_a_published_broker(majordomo: Bench) -> None:
    majordomo.take(majordomo.core.stop(majordomo.now))
    assert majordomo.frames() == [READY_01]
    assert majordomo.log[-1] == Ended()


@requirement("MDP1-W-08")
def test_a_broker_that_is_silent_to_a_busy_worker_is_no_lost_one(majordomo: Bench) -> None:
    """The guide's brokers send heartbeats to waiting workers only."""
    job = majordomo.request()
    majordomo.wait(30.0)
    assert majordomo.frames().count(HEARTBEAT_01) == 30
    majordomo.finish(job, b"done")
    majordomo.wait(2.9)
    assert Close(0) not in majordomo.log, "silence counts from the reply"
    majordomo.wait(0.2)
    assert Close(0) in majordomo.log


# --- Paranoid Pirate ----------------------------------------------------------------------------------------


@requirement("PPP-W-01")
@requirement("PPP-W-03")
def test_a_pirate_begins_with_ready_and_replies_once_with_the_envelope_unchanged(paranoid: Bench) -> None:
    job = paranoid.request()
    paranoid.finish(job, b"done", b"")
    paranoid.finish(job, b"again")
    assert paranoid.frames() == [READY, [ADDRESS, b"", b"done", b""]]


@requirement("PPP-W-04")
@pytest.mark.parametrize("heartbeat", [HEARTBEAT, [b"HEARTBEAT"]])
def test_it_sends_heartbeats_while_it_waits(paranoid: Bench, heartbeat: list[bytes]) -> None:
    for _ in range(10):
        paranoid.wait(1.0)
        paranoid.hear(*heartbeat)
    assert paranoid.frames() == [READY, *[HEARTBEAT] * 10]
    assert Close(0) not in paranoid.log


@requirement("PPP-W-02")
@requirement("PPP-W-05")
def test_it_leaves_a_silent_queue_and_comes_back_after_pauses_that_grow(paranoid: Bench) -> None:
    pauses = []
    for _ in range(5):
        paranoid.wait(3.01)
        assert paranoid.log[-1:] == [Close(0)]
        closed_at = paranoid.now
        while paranoid.log[-1] != Open(0):
            paranoid.wait(0.05)
        pauses.append(paranoid.now - closed_at)
        paranoid.connect()
        assert paranoid.frames()[-1] == READY
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]


def test_it_neither_sends_nor_expects_heartbeats_while_it_works(paranoid: Bench) -> None:
    """The guide's queue takes one for READY, and gives the worker a second request; it sends none itself."""
    job = paranoid.request()
    paranoid.wait(30.0)
    assert paranoid.frames() == [READY]
    paranoid.finish(job, b"done")
    paranoid.wait(2.9)
    assert paranoid.frames()[2:] == [HEARTBEAT, HEARTBEAT]
    assert Close(0) not in paranoid.log
    paranoid.wait(0.2)
    assert Close(0) in paranoid.log


@requirement("PPP-W-06")
def test_a_second_request_while_it_works_waits(paranoid: Bench) -> None:
    job = paranoid.request()
    paranoid.hear(OTHER, b"", b"second")
    assert len(paranoid.begun()) == 1
    paranoid.finish(job, b"one")
    assert [begun.identity for begun in paranoid.begun()] == [ADDRESS, OTHER]
    paranoid.finish(paranoid.begun()[-1], b"two")
    assert paranoid.frames()[1:] == [[ADDRESS, b"", b"one"], [OTHER, b"", b"two"]]


def test_a_failure_is_a_reply_of_two_frames(paranoid: Bench) -> None:
    paranoid.take(paranoid.core.failed(paranoid.request(), [b"ValueError: no"], paranoid.now))
    assert paranoid.frames()[-1] == [ADDRESS, b"", b"500", b"ValueError: no"]


def test_what_is_no_message_of_a_queue_is_dropped(paranoid: Bench, simple: Bench) -> None:
    garbage: tuple[list[bytes], ...] = (
        [],
        [b""],
        [b"\x03"],
        [b"\x02", b""],
        [ADDRESS, b""],
        [ADDRESS, b"body"],
        [ADDRESS, b"not empty", b"body"],
        [b"", b"", b"body"],
        [b"", b"", b"", b"body"],
    )
    for bench in (paranoid, simple):
        for frames in garbage:
            bench.hear(*frames)
        assert bench.core.counters.messages_invalid == len(garbage)
        assert not [output for output in bench.log if isinstance(output, Begin)]


# --- Simple Pirate ------------------------------------------------------------------------------------------


@requirement("SPP-W-01")
def test_a_simple_pirate_is_ready_once_and_returns_the_envelope(simple: Bench) -> None:
    for number in range(3):
        simple.finish(simple.request(), b"%d" % number)
    replies = [[b"", ADDRESS, b"", b"%d" % number] for number in range(3)]
    assert simple.frames() == [[b"", b"\x01"], *replies]


def test_a_simple_pirate_has_no_heartbeats(simple: Bench) -> None:
    assert simple.core.next_deadline() is None
    simple.take(simple.core.disconnected(0, simple.now))
    simple.connect()
    assert simple.frames() == [[b"", b"\x01"]] * 2, "a new connection is a new worker to the queue"
