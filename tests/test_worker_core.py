"""The worker's core in virtual time, in the native dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import WorkerError
from bstar.wire import native, native_broker
from bstar.wire.batches import final_rows, pack_requests
from bstar.wire.extensions import elsewhere_of
from bstar.wire.limits import TEXT_BYTES_MAX
from bstar.wire.messages import ALL_FEATURES, READS_BATCHES, ErrorCode, NodeStatus, Reason
from bstar_client.core.worker.dialects import Job, NativeWorker, WorkerDialect
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import (
    Abandon,
    Begin,
    Close,
    Ended,
    Lost,
    Open,
    Registered,
    Unregistered,
    WorkerOutput,
)
from support.work import asked
from support.worker_bench import CoreBench

ENDPOINTS = ("tcp://primary", "tcp://backup")
CODEC = native_broker.CODEC
ONE = native.identity(b"c" * 16, 1)
TWO = native.identity(b"c" * 16, 2)


@dataclass
class Bench(CoreBench):
    """Of the native dialect, with two nodes."""

    endpoints: Sequence[str] = ENDPOINTS
    dialect: WorkerDialect = field(default_factory=NativeWorker)
    # Do handlers run at once, or wait for a thread?
    claims: bool = True

    def take(self, outputs: list[WorkerOutput]) -> None:
        super().take(outputs)
        if self.claims:
            for output in outputs:
                if isinstance(output, Begin):
                    assert all(self.core.claim(job) for job in output.jobs)

    def connect(self, *nodes: int, epoch: int = 1, expiry_ms: int = 1000) -> None:
        """Connections come up and their brokers welcome the worker."""
        for node in nodes:
            self.take(self.core.connected(node, self.now))
            self.welcome(node, epoch, expiry_ms)

    def welcome(self, node: int, epoch: int = 1, expiry_ms: int = 1000) -> None:
        told = NodeStatus(3, epoch, 0, 0, 0, 100, 300)
        self.hear(node, CODEC.welcome(b"", (), told, expiry_ms // 4, expiry_ms))

    def hear(self, node: int, frames: list[bytes]) -> None:
        self.take(self.core.receive(node, frames[1:], self.now))

    def request(
        self,
        node: int,
        identity: bytes = ONE,
        *,
        epoch: int = 1,
        ttl_ms: int = 0,
        is_redelivered: bool = False,
    ) -> None:
        frames = CODEC.request(b"", (), asked([b"body"]), identity, ttl_ms, epoch, is_redelivered)
        self.hear(node, frames)

    def finish(self, job: Job, body: bytes = b"done") -> None:
        self.take(self.core.finished(job, [body], self.now))

    def sent(self, node: int) -> list[tuple[int, bytes, int, int]]:
        """(command, identity, epoch, value) of what was sent to a node."""
        return [
            (head[2], head[4:28], int.from_bytes(head[28:36], "big"), int.from_bytes(head[36:40], "big"))
            for head, *_ in self.frames(node)
        ]

    def commands(self, node: int) -> list[int]:
        return [command for command, _, _, _ in self.sent(node)]


@pytest.fixture
def bench() -> Bench:
    """Registered with both nodes, in epoch 1."""
    bench = Bench()
    bench.connect(0, 1)
    return bench


# --- warnings -----------------------------------------------------------------------------------------------


def warnings(bench: Bench) -> list[tuple[str, ...]]:
    found = [output.endpoints for output in bench.log if isinstance(output, Unregistered)]
    bench.log.clear()
    return found


def test_it_warns_of_nodes_without_a_registration_after_5_s_and_then_every_minute() -> None:
    bench = Bench()
    bench.core.begin(bench.now)
    bench.wait(4.9)
    assert warnings(bench) == []
    bench.wait(0.2)
    assert warnings(bench) == [ENDPOINTS]
    bench.wait(59.8)
    assert warnings(bench) == []
    bench.wait(120.0)
    assert warnings(bench) == [ENDPOINTS] * 2


def test_it_warns_of_the_node_alone_that_has_not_registered_it_and_of_a_lost_one_anew() -> None:
    bench = Bench()
    bench.core.begin(bench.now)
    bench.connect(0, expiry_ms=100_000)
    bench.wait(6.0)
    assert warnings(bench) == [ENDPOINTS[1:]]
    bench.connect(1, expiry_ms=100_000)
    bench.wait(90.0)
    assert warnings(bench) == []
    bench.take(bench.core.disconnected(0, bench.now))
    bench.wait(4.9)
    assert warnings(bench) == []
    bench.wait(0.2)
    assert warnings(bench) == [ENDPOINTS[:1]]


def test_a_worker_that_stops_warns_no_more() -> None:
    bench = Bench(WorkerLimits(drain_timeout_s=100.0))
    bench.core.begin(bench.now)
    bench.connect(0, expiry_ms=100_000)
    bench.request(0)
    bench.take(bench.core.stop(bench.now))
    bench.wait(50.0)
    assert warnings(bench) == []


# --- sessions -----------------------------------------------------------------------------------------------


def test_it_registers_with_every_node_and_tells_its_credit() -> None:
    bench = Bench(WorkerLimits(credit=4))
    bench.connect(0, 1)
    for node in (0, 1):
        assert bench.commands(node).count(native.READY) == 1
        assert bench.sent(node)[0][3] == 4
    assert [output.endpoint for output in bench.log if isinstance(output, Registered)] == list(ENDPOINTS)


def test_it_registers_again_on_every_new_connection(bench: Bench) -> None:
    bench.take(bench.core.disconnected(0, bench.now))
    bench.connect(0)
    assert bench.commands(0).count(native.READY) == 2
    assert [output for output in bench.log if isinstance(output, Lost)] == [
        Lost(ENDPOINTS[0], "disconnected")
    ]


def test_heartbeats_follow_the_interval_that_the_broker_told(bench: Bench) -> None:
    before = bench.commands(0).count(native.HEARTBEAT)
    for _ in range(4):
        bench.wait(0.25)
        bench.welcome(0)
        bench.welcome(1)
    assert bench.commands(0).count(native.HEARTBEAT) == before + 4


def test_heartbeats_go_on_while_a_handler_runs_and_carry_the_highest_epoch(bench: Bench) -> None:
    bench.request(0)
    bench.log.clear()
    for _ in range(4):
        bench.wait(0.25)
        bench.hear(0, CODEC.heartbeat(b"", (), 3, 1))
        bench.hear(1, CODEC.heartbeat(b"", (), 4, 1))
    heartbeats = [epoch for command, _, epoch, _ in bench.sent(0) if command == native.HEARTBEAT]
    assert heartbeats == [1, 1, 1, 1]


def test_a_silent_broker_is_left_for_a_new_socket_after_a_pause(bench: Bench) -> None:
    for _ in range(4):
        bench.wait(0.25)
        bench.welcome(1)
    assert [output for output in bench.log if isinstance(output, Lost)] == [Lost(ENDPOINTS[0], "silent")]
    assert Close(0) in bench.log
    assert Open(0) not in bench.log
    bench.wait(0.2)
    assert Open(0) in bench.log


def test_a_broker_that_never_welcomes_is_left_as_well() -> None:
    bench = Bench()
    bench.take(bench.core.connected(0, bench.now))
    bench.wait(3.5)
    assert Close(0) in bench.log


@pytest.mark.requirement("MDP1-R-02")
def test_a_broker_that_refuses_again_and_again_is_not_stormed() -> None:
    bench = Bench()
    pauses = []
    for _ in range(10):
        bench.connect(0)
        bench.hear(0, CODEC.disconnect(b"", (), Reason.FULL, 1))
        before, opened = bench.now, bench.log.count(Open(0))
        while bench.log.count(Open(0)) == opened:
            bench.wait(0.01)
        pauses.append(bench.now - before)
    assert pauses[0] >= 0.1
    assert pauses == sorted(pauses)
    assert pauses[5] > 1.0
    assert pauses[-1] < 5.2


def test_a_session_that_lasted_starts_the_pauses_anew(bench: Bench) -> None:
    for _ in range(3):
        for _ in range(8):
            bench.wait(0.25)
            bench.welcome(0)
            bench.welcome(1)
        bench.hear(0, CODEC.disconnect(b"", (), Reason.UNKNOWN, 1))
        opened = bench.log.count(Open(0))
        bench.wait(0.2)
        assert bench.log.count(Open(0)) == opened + 1
        bench.connect(0)
        bench.welcome(1)


def test_garbage_is_counted_and_changes_nothing(bench: Bench) -> None:
    for frames in (
        [b""],
        [b"\xb5\x01"],
        [b"MDPW02", b"\x02"],
        CODEC.pong(b"", ONE, NodeStatus(3, 1, 0, 0, 0, 1, 1))[1:],
    ):
        bench.take(bench.core.receive(0, frames, bench.now))
    assert bench.core.counters.messages_invalid == 4
    bench.request(0)
    assert len(bench.begun()) == 1


# --- requests -----------------------------------------------------------------------------------------------


def test_a_request_is_begun_and_answered_to_the_node_it_came_from(bench: Bench) -> None:
    bench.request(1, ttl_ms=5_000)
    [job] = bench.begun()
    assert (job.identity, job.body, job.deadline) == (ONE, [b"body"], bench.now + 5)
    bench.finish(job)
    assert bench.sent(1)[-1] == (native.FINAL, ONE, 1, 0)


def test_partials_are_numbered_and_counted_in_the_final(bench: Bench) -> None:
    bench.request(0)
    [job] = bench.begun()
    bench.log.clear()
    for _ in range(3):
        bench.take(bench.core.partial(job, [b"part"], bench.now))
    bench.finish(job)
    answers = [(command, value) for command, _, _, value in bench.sent(0)]
    assert answers == [(native.PARTIAL, 0), (native.PARTIAL, 1), (native.PARTIAL, 2), (native.FINAL, 3)]


def test_with_credit_one_the_requests_of_two_nodes_run_in_turn(bench: Bench) -> None:
    bench.request(0, ONE)
    bench.request(1, TWO)
    assert [job.identity for job in bench.begun()] == [ONE]
    bench.finish(bench.begun()[0])
    assert [job.identity for job in bench.begun()] == [ONE, TWO]


def test_with_more_credit_requests_run_at_once() -> None:
    bench = Bench(WorkerLimits(credit=2))
    bench.connect(0)
    bench.request(0, ONE)
    bench.request(0, TWO)
    assert len(bench.begun()) == 2


def test_a_broker_that_ignores_the_credit_is_ignored(bench: Bench) -> None:
    bench.request(0, ONE)
    bench.request(0, TWO)
    assert bench.core.counters.messages_invalid == 1
    bench.finish(bench.begun()[0])
    assert len(bench.begun()) == 1


def test_a_handlers_failure_becomes_an_error_with_its_text(bench: Bench) -> None:
    bench.request(0)
    [job] = bench.begun()
    bench.take(bench.core.failed(job, [b"ValueError: " + b"x" * 10_000], bench.now))
    assert bench.sent(0)[-1] == (native.ERROR, ONE, 1, ErrorCode.HANDLER_FAILED)
    text = bench.frames(0)[-1][1]
    assert text.startswith(b"ValueError: x")
    assert len(text) == TEXT_BYTES_MAX
    bench.request(0, TWO)
    assert len(bench.begun()) == 2


@pytest.mark.requirement("BSN-W-09")
@pytest.mark.parametrize(
    ("is_redelivered", "code"),
    # Of a redelivered request it does not say that nobody began it.
    [(False, ErrorCode.EXPIRED), (True, ErrorCode.WORKER_LOST)],
)
def test_a_request_whose_time_ended_before_it_began_is_not_executed(
    bench: Bench, is_redelivered: bool, code: ErrorCode
) -> None:
    bench.request(0, ONE)
    bench.request(1, TWO, ttl_ms=100, is_redelivered=is_redelivered)
    bench.wait(0.2)
    bench.finish(bench.begun()[0])
    assert len(bench.begun()) == 1
    assert bench.sent(1)[-1] == (native.ERROR, TWO, 1, code)


def test_a_reply_whose_session_is_gone_is_dropped_and_counted(bench: Bench) -> None:
    bench.request(0)
    bench.take(bench.core.disconnected(0, bench.now))
    bench.connect(0)
    bench.finish(bench.begun()[0])
    assert bench.core.counters.replies_dropped == 1
    assert native.FINAL not in bench.commands(0)
    bench.request(0, TWO)
    assert len(bench.begun()) == 2


def test_what_has_not_begun_goes_with_its_session(bench: Bench) -> None:
    bench.request(0, ONE)
    bench.request(1, TWO)
    bench.take(bench.core.disconnected(1, bench.now))
    bench.finish(bench.begun()[0])
    assert len(bench.begun()) == 1
    assert bench.core.counters.requests_dropped == 1


# --- fencing ------------------------------------------------------------------------------------------------


def test_a_request_of_a_lower_epoch_is_refused_and_not_executed(bench: Bench) -> None:
    bench.hear(1, CODEC.heartbeat(b"", (), 3, 2))
    bench.request(0, ONE, epoch=1)
    assert bench.begun() == []
    assert bench.sent(0)[-1] == (native.STALE_EPOCH, ONE, 2, 0)
    bench.request(1, TWO, epoch=2)
    assert [job.identity for job in bench.begun()] == [TWO]


def test_a_node_that_does_not_serve_is_not_obeyed_whatever_epoch_it_names(bench: Bench) -> None:
    bench.hear(1, CODEC.heartbeat(b"", (), 4, 2**40))
    bench.hear(1, CODEC.welcome(b"", (), NodeStatus(4, 2**40, 0, 0, 0, 100, 300), 250, 1000))
    bench.request(0, ONE, epoch=1)
    assert [job.identity for job in bench.begun()] == [ONE]


@pytest.mark.requirement("BSN-W-14")
def test_a_worker_follows_the_pair_down_from_an_epoch_that_nobody_stands_for(bench: Bench) -> None:
    bench.hear(1, CODEC.heartbeat(b"", (), 3, 2**40))
    bench.request(0, ONE, epoch=1)
    assert bench.sent(0)[-1][:3] == (native.STALE_EPOCH, ONE, 2**40)
    for _ in range(5):
        bench.wait(0.3)
        bench.hear(0, CODEC.heartbeat(b"", (), 3, 1))
        if bench.core.epoch == 1:
            break
    told = bench.sent(0)[-1][:3]
    assert told == (native.HEARTBEAT, native.NO_IDENTITY, 1), "until it is told the node gives it nothing"
    bench.request(0, TWO, epoch=1)
    assert [job.identity for job in bench.begun()] == [TWO]


def test_what_waits_is_refused_when_a_higher_epoch_appears(bench: Bench) -> None:
    bench.request(0, ONE)
    bench.connect(1, epoch=1)
    bench.request(1, TWO, epoch=1)
    bench.hear(0, CODEC.heartbeat(b"", (), 3, 3))
    assert bench.sent(1)[-1] == (native.STALE_EPOCH, TWO, 3, 0)
    bench.finish(bench.begun()[0])
    assert len(bench.begun()) == 1


@pytest.mark.requirement("BSN-W-24")
def test_the_node_that_takes_over_learns_what_the_worker_began_for_the_other_one() -> None:
    bench = Bench(WorkerLimits(credit=2))
    bench.connect(0)
    bench.request(0, ONE)
    bench.request(0, TWO)
    first, second = bench.begun()
    bench.take(bench.core.disconnected(0, bench.now))
    bench.connect(1, epoch=2)
    ready = bench.frames(1)[0][0]
    assert elsewhere_of(ready[41 + len("echo") :]) == 2
    assert bench.sent(1)[-1] == (native.HEARTBEAT, native.NO_IDENTITY, 2, 2)
    bench.finish(first)
    assert bench.sent(1)[-1] == (native.HEARTBEAT, native.NO_IDENTITY, 2, 1), "it learns of the end at once"
    bench.finish(second)
    assert bench.sent(1)[-1] == (native.HEARTBEAT, native.NO_IDENTITY, 2, 0)


@pytest.mark.requirement("BSN-W-24")
def test_a_node_that_does_not_serve_hears_of_no_single_end(bench: Bench) -> None:
    for _ in range(3):
        bench.request(0, ONE)
        bench.finish(bench.begun()[-1])
    assert native.HEARTBEAT not in bench.commands(1)
    bench.request(0, TWO)
    bench.wait(0.25)
    assert bench.sent(1)[-1] == (native.HEARTBEAT, native.NO_IDENTITY, 1, 1)
    bench.finish(bench.begun()[-1])
    assert bench.sent(1)[-1][3] == 1, "the next heartbeat is soon enough"


def test_the_other_node_is_told_of_a_higher_epoch_at_once(bench: Bench) -> None:
    bench.request(1, ONE, epoch=5)
    assert bench.sent(0)[-1][:3] == (native.HEARTBEAT, native.NO_IDENTITY, 5)
    assert bench.core.epoch == 5


def test_the_epoch_is_told_in_the_next_registration(bench: Bench) -> None:
    bench.request(1, ONE, epoch=5)
    bench.take(bench.core.disconnected(0, bench.now))
    bench.take(bench.core.connected(0, bench.now))
    assert bench.sent(0)[-1] == (native.READY, native.NO_IDENTITY, 5, 1)


# --- handlers that do not come back -------------------------------------------------------------------------


def test_a_handler_past_its_time_is_answered_for_and_the_next_one_begins() -> None:
    bench = Bench(WorkerLimits(handler_timeout_s=0.5))
    bench.connect(0, 1, expiry_ms=60_000)
    bench.request(0, ONE)
    bench.request(1, TWO)
    bench.wait(0.5)
    assert bench.sent(0)[-1] == (native.ERROR, ONE, 1, ErrorCode.HANDLER_TIMEOUT)
    first, second = bench.begun()
    assert Abandon(first) in bench.log
    bench.finish(first)
    assert bench.core.counters.results_late == 1
    bench.finish(second)
    assert bench.sent(1)[-1] == (native.FINAL, TWO, 1, 0)


def test_too_many_stuck_handlers_end_the_worker() -> None:
    bench = Bench(WorkerLimits(handler_timeout_s=0.5, stuck_handlers_max=2))
    bench.connect(0, expiry_ms=60_000)
    for identity in (ONE, TWO):
        bench.request(0, identity)
        bench.wait(0.5)
    [ended] = [output for output in bench.log if isinstance(output, Ended)]
    assert isinstance(ended.error, WorkerError)
    assert bench.commands(0)[-1] == native.DISCONNECT


def test_handlers_that_come_back_late_do_not_count_as_stuck() -> None:
    bench = Bench(WorkerLimits(handler_timeout_s=0.5, stuck_handlers_max=2))
    bench.connect(0, expiry_ms=60_000)
    for number in range(5):
        bench.request(0, native.identity(b"c" * 16, number))
        bench.wait(0.5)
        bench.finish(bench.begun()[-1])
    assert not [output for output in bench.log if isinstance(output, Ended)]


# --- leaving ------------------------------------------------------------------------------------------------


def test_an_idle_worker_leaves_at_once(bench: Bench) -> None:
    bench.take(bench.core.stop(bench.now))
    assert bench.commands(0)[-1] == bench.commands(1)[-1] == native.DISCONNECT
    assert bench.log[-1] == Ended()
    assert bench.core.next_deadline() is None


def test_a_busy_worker_answers_before_it_leaves(bench: Bench) -> None:
    bench.request(0)
    bench.take(bench.core.stop(bench.now))
    assert bench.commands(1)[-1] == native.DISCONNECT
    assert native.DISCONNECT not in bench.commands(0)
    bench.wait(0.3)
    assert bench.commands(0)[-1] == native.HEARTBEAT
    bench.finish(bench.begun()[0])
    assert bench.commands(0)[-2:] == [native.FINAL, native.DISCONNECT]
    assert bench.log[-1] == Ended()


def test_ending_at_once_leaves_every_node_and_waits_for_no_handler(bench: Bench) -> None:
    bench.request(0)
    bench.take(bench.core.end(bench.now))
    assert [bench.commands(node)[-1] for node in (0, 1)] == [native.DISCONNECT] * 2
    assert bench.log[-1] == Ended()
    assert bench.core.end(bench.now) == []


def unbegun(bench: Bench, node: int) -> list[bool]:
    """Of each DISCONNECT to this node: does it say that nothing was begun?"""
    heads = [head for head, *_ in bench.frames(node)]
    return [head[3] == native.FLAG_UNBEGUN for head in heads if head[2] == native.DISCONNECT]


@pytest.mark.requirement("BSN-W-12")
def test_a_worker_that_leaves_says_whether_it_began_what_it_still_holds() -> None:
    bench = Bench(options=WorkerLimits(credit=2, running_max=1, drain_timeout_s=2.0))
    bench.claims = False
    bench.connect(0, 1)
    bench.request(0, ONE)
    bench.request(0, TWO)
    first, _ = bench.begun()
    assert bench.core.claim(first)
    bench.take(bench.core.stop(bench.now))
    assert (unbegun(bench, 0), unbegun(bench, 1)) == ([], [True])
    # The first is answered, the second goes back.
    bench.finish(first)
    assert unbegun(bench, 0) == [True]


@pytest.mark.requirement("BSN-W-12")
def test_draining_is_bounded_and_who_leaves_handlers_behind_does_not_say_that_it_began_nothing() -> None:
    bench = Bench(options=WorkerLimits(credit=2, drain_timeout_s=0.5))
    bench.connect(0, 1)
    bench.request(0, ONE)
    bench.take(bench.core.stop(bench.now))
    bench.wait(0.5)
    assert (unbegun(bench, 0), unbegun(bench, 1)) == ([False], [True])
    assert bench.log[-1] == Ended()


def test_requests_that_come_after_leaving_are_ignored(bench: Bench) -> None:
    bench.request(0)
    bench.take(bench.core.stop(bench.now))
    bench.request(1, TWO)
    assert len(bench.begun()) == 1
    assert bench.sent(1)[-1][0] == native.DISCONNECT


def test_stopping_twice_is_stopping_once(bench: Bench) -> None:
    bench.take(bench.core.stop(bench.now))
    bench.take(bench.core.stop(bench.now))
    assert [output for output in bench.log if isinstance(output, Ended)] == [Ended()]


# --- any order of events ------------------------------------------------------------------------------------

VERBS = ["connect", "disconnect", "request", "finish", "fail", "epoch", "wait", "goodbye", "partial", "stop"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 1), st.integers(0, 5)), max_size=60)


@pytest.mark.storm
@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_request_is_answered_at_most_once_and_never_begun_under_a_stale_epoch(
    steps: list[tuple[str, int, int]],
) -> None:
    bench = Bench(WorkerLimits(handler_timeout_s=2.0, stuck_handlers_max=100))
    number = 0
    for verb, node, amount in steps:
        running = [job for job in bench.begun() if not job.is_ended]
        match verb:
            case "connect":
                bench.connect(node)
            case "disconnect":
                bench.take(bench.core.disconnected(node, bench.now))
            case "request":
                number += 1
                epoch_before, begun_before = max(bench.core.epoch, amount), len(bench.begun())
                bench.request(node, native.identity(b"c" * 16, number), epoch=amount, ttl_ms=amount * 100)
                assert all(job.epoch >= min(epoch_before, amount) for job in bench.begun()[begun_before:])
            case "finish" if running:
                bench.finish(running[0])
            case "fail" if running:
                bench.take(bench.core.failed(running[0], [b"no"], bench.now))
            case "partial" if running:
                bench.take(bench.core.partial(running[0], [b"p"], bench.now))
            case "epoch":
                bench.hear(node, CODEC.heartbeat(b"", (), 3, amount))
            case "wait":
                bench.wait(amount / 4)
            case "goodbye":
                bench.hear(node, CODEC.disconnect(b"", (), Reason.UNEXPECTED, 1))
            case "stop" if amount == 0:
                bench.take(bench.core.stop(bench.now))
    assert bench.core.running <= 1
    ends = [
        identity
        for node in (0, 1)
        for command, identity, _, _ in bench.sent(node)
        if command in (native.FINAL, native.ERROR, native.STALE_EPOCH)
    ]
    assert len(ends) == len(set(ends))
    ended = [output for output in bench.log if isinstance(output, Ended)]
    assert len(ended) <= 1


# --- batches ------------------------------------------------------------------------------------------------


def batch(
    bench: Bench, node: int, numbers: Sequence[int], *, epoch: int = 1, ttl_ms: int = 0, age_ms: int = 0
) -> None:
    rows = pack_requests(numbers, [ttl_ms] * len(numbers), [b"%d" % number for number in numbers])
    bench.hear(node, CODEC.requests(b"", b"c" * 16, rows[0], rows[1], age_ms, epoch, False))


def answered(bench: Bench, node: int) -> list[list[int]]:
    """The numbers in each FINALS to this node."""
    return [list(final_rows(frames, 1)[0]) for frames in bench.frames(node) if frames[0][2] == native.FINALS]


@pytest.fixture
def several() -> Bench:
    """Registered with both nodes, with room for five requests of which a shell runs some."""
    bench = Bench(WorkerLimits(credit=5, running_max=1))
    bench.connect(0, 1)
    return bench


@pytest.mark.requirement("BSN-G-17")
def test_who_takes_several_requests_takes_batches(several: Bench) -> None:
    assert several.frames(0)[0][0][3] == native.FLAG_BATCHES | native.FLAG_EXTENDED
    alone = Bench()
    alone.connect(0)
    assert alone.frames(0)[0][0][3] == 0


def test_requests_of_a_batch_begin_in_order_and_are_answered_together(several: Bench) -> None:
    batch(several, 0, [7, 8, 9])
    jobs = several.begun()
    assert [(job.identity, job.body) for job in jobs] == [
        (native.identity(b"c" * 16, number), [b"%d" % number]) for number in (7, 8, 9)
    ]
    several.take(several.core.finished_all([(jobs[1], [b"B"]), (jobs[0], [b"A"])], several.now))
    several.take(several.core.finished_all([(jobs[2], [b"C"])], several.now))
    assert answered(several, 0) == [[8, 7], [9]]
    assert several.core.running == 0
    batch(several, 0, [10, 11, 12, 13, 14])
    assert len(several.begun()) == 8


@pytest.mark.requirement("BSN-G-16")
def test_a_reply_that_is_different_travels_alone(several: Bench) -> None:
    batch(several, 0, [1, 2, 3, 4])
    several.request(0, native.keyed_identity(b"echo", b"key"))
    one, two, three, four, keyed = several.begun()
    several.take(several.core.partial(one, [b"part"], several.now))
    results = [(one, [b"1"]), (two, [b"2", b"2"]), (three, [bytes(100_000)]), (four, [b"4"]), (keyed, [b"5"])]
    several.take(several.core.finished_all(results, several.now))
    assert answered(several, 0) == [[4]]
    assert several.commands(0).count(native.FINAL) == 4
    assert several.core.counters.finished == 5


@pytest.mark.requirement("BSN-G-16")
def test_a_worker_that_drains_leaves_behind_all_the_replies_of_a_turn(several: Bench) -> None:
    batch(several, 0, [1, 2])
    several.request(0, native.keyed_identity(b"echo", b"key"))
    one, two, keyed = several.begun()
    several.take(several.core.stop(several.now))
    several.take(several.core.finished_all([(one, [b"1"]), (two, [b"2"]), (keyed, [b"5"])], several.now))
    assert several.commands(0)[-3:] == [native.FINALS, native.FINAL, native.DISCONNECT]
    assert isinstance(several.log[-1], Ended)


def test_replies_to_single_requests_of_one_client_travel_together_too(several: Bench) -> None:
    several.request(0, ONE)
    several.request(0, TWO)
    several.take(several.core.finished_all([(job, [b"x"]) for job in several.begun()], several.now))
    assert answered(several, 0) == [[1, 2]]


def test_replies_of_two_epochs_do_not_travel_together(several: Bench) -> None:
    several.request(0, ONE)
    several.request(0, TWO, epoch=2)
    several.take(several.core.finished_all([(job, [b"x"]) for job in several.begun()], several.now))
    assert answered(several, 0) == []
    finals = [(identity, epoch) for command, identity, epoch, _ in several.sent(0) if command == native.FINAL]
    assert finals == [(ONE, 1), (TWO, 2)]


@pytest.mark.requirement("BSN-G-17")
def test_a_broker_that_did_not_say_so_is_sent_no_batch() -> None:
    bench = Bench(WorkerLimits(credit=5))
    bench.take(bench.core.connected(0, bench.now))
    told = NodeStatus(3, 1, 0, 0, 0, 100, 300, ALL_FEATURES & ~READS_BATCHES)
    bench.hear(0, CODEC.welcome(b"", (), told, 250, 1000))
    bench.request(0, ONE)
    bench.request(0, TWO)
    bench.take(bench.core.finished_all([(job, [b"x"]) for job in bench.begun()], bench.now))
    assert answered(bench, 0) == []
    assert bench.commands(0).count(native.FINAL) == 2


@pytest.mark.requirement("BSN-W-04")
def test_the_age_of_a_batch_counts(several: Bench) -> None:
    batch(several, 0, [1], ttl_ms=1_000, age_ms=400)
    batch(several, 0, [2], ttl_ms=0, age_ms=400)
    assert [job.deadline for job in several.begun()] == [several.now + 0.6, None]


@pytest.mark.requirement("BSN-B-13")
def test_a_batch_beyond_the_credit_is_no_valid_message(several: Bench) -> None:
    batch(several, 0, range(1, 7))
    assert several.begun() == []
    assert several.core.counters.messages_invalid == 1


def test_a_request_that_no_handler_was_called_for_is_given_back(several: Bench) -> None:
    several.claims = False
    batch(several, 0, [1, 2, 3])
    one, two, three = several.begun()
    assert several.core.claim(one)
    several.take(several.core.stop(several.now))
    assert not several.core.claim(two)
    assert not several.core.claim(three)
    assert native.DISCONNECT not in several.commands(0)
    several.finish(one)
    assert several.commands(0)[-2:] == [native.FINAL, native.DISCONNECT]
    assert several.core.counters.requests_dropped == 2
    assert isinstance(several.log[-1], Ended)


@pytest.mark.requirement("BSN-W-01")
def test_a_request_that_no_handler_was_called_for_is_refused_when_its_epoch_is_over(several: Bench) -> None:
    several.claims = False
    batch(several, 0, [1, 2])
    one, two = several.begun()
    assert several.core.claim(one)
    several.hear(1, CODEC.heartbeat(b"", (), 3, 2))
    assert not several.core.claim(two)
    assert several.commands(0).count(native.STALE_EPOCH) == 1
    batch(several, 0, [3, 4], epoch=1)
    assert several.commands(0).count(native.STALE_EPOCH) == 3


def test_a_request_that_no_handler_was_called_for_is_gone_with_its_connection(several: Bench) -> None:
    several.claims = False
    batch(several, 0, [1, 2])
    several.take(several.core.disconnected(0, several.now))
    assert not any(several.core.claim(job) for job in several.begun())
    assert several.core.running == 0
    several.connect(0)
    batch(several, 0, [1, 2, 3, 4, 5])
    assert sum(several.core.claim(job) for job in several.begun()) == 5


@pytest.mark.requirement("BSN-W-09")
def test_a_request_whose_time_is_over_when_its_handler_is_to_be_called_is_answered_so(several: Bench) -> None:
    batch(several, 0, [1])
    (job,) = several.begun()
    several.take(several.core.expired(job, several.now))
    assert several.sent(0)[-1][0::3] == (native.ERROR, ErrorCode.EXPIRED)
    assert several.core.running == 0


def test_with_a_limit_to_their_time_only_as_many_begin_as_handlers_run() -> None:
    bench = Bench(WorkerLimits(credit=5, running_max=2, handler_timeout_s=0.5))
    bench.connect(0)
    batch(bench, 0, [1, 2, 3])
    assert len(bench.begun()) == 2
    bench.finish(bench.begun()[0])
    assert len(bench.begun()) == 3
    bench.wait(0.6)
    assert bench.core.counters.timed_out == 2
