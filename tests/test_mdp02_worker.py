"""The worker's core in virtual time, in plain MDP/0.2: the frames of 18/MDP and its rules for workers."""

from __future__ import annotations

import pytest

from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Close, Ended, Lost, Open, Registered
from support.worker_bench import ADDRESS, Bench

READY = [b"MDPW02", b"\x01", b"echo"]
HEARTBEAT = [b"MDPW02", b"\x05"]
DISCONNECT = [b"MDPW02", b"\x06"]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.connect()
    return bench


@pytest.mark.requirement("MDP1-W-02")
@pytest.mark.requirement("MDP2-W-02")
def test_ready_is_the_first_thing_on_a_new_connection_and_names_one_service(bench: Bench) -> None:
    assert bench.frames() == [READY]


@pytest.mark.requirement("MDP1-W-03")
@pytest.mark.requirement("MDP2-W-03")
def test_ready_is_sent_once_on_a_connection(bench: Bench) -> None:
    for _ in range(20):
        bench.wait(0.5)
        bench.hear(*HEARTBEAT)
        bench.take(bench.core.finished(bench.request(), [b"done"], bench.now))
    assert bench.frames().count(READY) == 1


@pytest.mark.requirement("MDP1-W-04")
@pytest.mark.requirement("MDP2-W-04")
def test_registration_counts_as_done_until_disconnect_or_silence(bench: Bench) -> None:
    assert Registered("tcp://broker") in bench.log
    bench.wait(2.9)
    assert not [output for output in bench.log if isinstance(output, Lost)]


@pytest.mark.requirement("MDP2-W-01")
@pytest.mark.requirement("MDP1-W-01")
def test_each_broker_has_a_session_of_its_own() -> None:
    bench = Bench(endpoints=("tcp://one", "tcp://two"))
    bench.connect(0)
    bench.connect(1)
    job = bench.request()
    bench.take(bench.core.finished(job, [b"done"], bench.now))
    assert len(bench.frames(0)) == 2
    assert bench.frames(1) == [READY]


@pytest.mark.requirement("MDP1-W-06")
@pytest.mark.requirement("MDP2-W-06")
def test_on_disconnect_it_says_nothing_more_closes_and_comes_back_on_a_new_socket(bench: Bench) -> None:
    bench.request()
    bench.hear(*DISCONNECT)
    assert bench.log[-1:] == [Close(0)]
    said = len(bench.frames())
    bench.wait(0.09)
    assert Open(0) not in bench.log
    bench.wait(0.1)
    assert bench.log[-1:] == [Open(0)]
    assert len(bench.frames()) == said
    bench.connect()
    assert bench.frames()[-1] == READY


@pytest.mark.requirement("MDP2-W-07")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_partials_and_then_exactly_one_final(bench: Bench, count: int) -> None:
    job = bench.request()
    for _ in range(count):
        bench.take(bench.core.partial(job, [b"part"], bench.now))
    bench.take(bench.core.finished(job, [b"done"], bench.now))
    bench.take(bench.core.finished(job, [b"again"], bench.now))
    partial, final = [b"MDPW02", b"\x03", ADDRESS, b"", b"part"], [b"MDPW02", b"\x04", ADDRESS, b"", b"done"]
    assert bench.frames() == [READY, *[partial] * count, final]


def test_a_failure_is_a_final_of_two_frames(bench: Bench) -> None:
    bench.take(bench.core.failed(bench.request(), [b"ValueError: no"], bench.now))
    assert bench.frames()[-1] == [b"MDPW02", b"\x04", ADDRESS, b"", b"500", b"ValueError: no"]


def test_a_handler_past_its_time_is_a_final_too_and_the_only_one() -> None:
    bench = Bench(WorkerLimits(handler_timeout_s=0.5))
    bench.connect()
    job = bench.request()
    bench.wait(0.6)
    bench.take(bench.core.finished(job, [b"late"], bench.now))
    finals = [frames for frames in bench.frames() if frames[1] == b"\x04"]
    assert len(finals) == 1
    assert finals[0][4] == b"500"


@pytest.mark.requirement("MDP2-W-08")
@pytest.mark.requirement("MDP1-W-07")
def test_replies_have_exactly_one_address_and_one_empty_frame(bench: Bench) -> None:
    job = bench.request()
    bench.take(bench.core.finished(job, [b"", b"a", b"b"], bench.now))
    assert bench.frames()[-1] == [b"MDPW02", b"\x04", ADDRESS, b"", b"", b"a", b"b"]


@pytest.mark.requirement("MDP2-W-09")
@pytest.mark.requirement("MDP2-W-10")
def test_no_heartbeats_are_sent_while_other_commands_flow(bench: Bench) -> None:
    for _ in range(10):
        bench.take(bench.core.finished(bench.request(), [b"done"], bench.now))
        bench.wait(0.9)
    assert HEARTBEAT not in bench.frames()
    assert Close(0) not in bench.log, "any message of the broker is a sign of life"
    bench.wait(0.2)
    assert bench.frames()[-1] == HEARTBEAT


@pytest.mark.requirement("MDP1-W-08")
@pytest.mark.requirement("MDP2-W-10")
def test_it_heartbeats_regularly_and_leaves_a_silent_broker_for_a_new_conversation(bench: Bench) -> None:
    bench.wait(2.9)
    assert bench.frames() == [READY, HEARTBEAT, HEARTBEAT]
    bench.wait(0.2)
    assert Close(0) in bench.log
    bench.wait(0.2)
    assert bench.log[-1] == Open(0)
    bench.connect()
    assert bench.frames()[-1] == READY


@pytest.mark.requirement("MDP1-W-05")
@pytest.mark.requirement("MDP2-W-05")
def test_it_may_leave_at_any_time(bench: Bench) -> None:
    bench.take(bench.core.stop(bench.now))
    assert bench.frames() == [READY, DISCONNECT]
    assert bench.log[-1] == Ended()
    unconnected = Bench()
    unconnected.take(unconnected.core.stop(unconnected.now))
    assert unconnected.log == [Ended()]


@pytest.mark.requirement("MDP2-R-04")
def test_malformed_commands_are_dropped(bench: Bench) -> None:
    for frames in (
        [],
        [b""],
        [b"MDPW02"],
        [b"MDPW02", b"\x02"],
        [b"MDPW02", b"\x02", ADDRESS, b"body"],
        [b"MDPW02", b"\x02", ADDRESS, b"not empty", b"body"],
        [b"MDPW02", b"\x02", b"", b"", b"body"],
        [b"MDPW02", b"\x05", b"more"],
        [b"MDPW02", b"\x09"],
        [b"MDPW01", b"\x05"],
        [b"", b"MDPW02", b"\x05"],
        [b"\xb5\x01" + bytes(39)],
    ):
        bench.hear(*frames)
    assert bench.core.counters.messages_invalid == 12
    assert bench.frames() == [READY]
