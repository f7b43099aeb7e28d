"""Properties of the worker's core in virtual time; test_worker_scripts.py has what it does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.wire import native, native_broker
from bstar.wire.messages import Reason
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import Ended, Open
from support.worker_bench import NativeBench


@pytest.mark.requirement("MDP1-R-02")
def test_a_broker_that_refuses_again_and_again_is_not_stormed() -> None:
    bench = NativeBench()
    pauses = []
    for _ in range(10):
        bench.connect(0)
        bench.hear(0, native_broker.CODEC.disconnect(b"", (), Reason.FULL, 1))
        before, opened = bench.now, bench.log.count(Open(0))
        while bench.log.count(Open(0)) == opened:
            bench.wait(0.01)
        pauses.append(bench.now - before)
    assert pauses[0] >= 0.1
    assert pauses == sorted(pauses)
    assert pauses[5] > 1.0
    assert pauses[-1] < 5.2


VERBS = ["connect", "disconnect", "request", "finish", "fail", "epoch", "wait", "goodbye", "partial", "stop"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 1), st.integers(0, 5)), max_size=60)


@pytest.mark.storm
@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_request_is_answered_at_most_once_and_never_begun_under_a_stale_epoch(
    steps: list[tuple[str, int, int]],
) -> None:
    bench = NativeBench(WorkerLimits(handler_timeout_s=2.0, stuck_handlers_max=100))
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
                bench.hear(node, native_broker.CODEC.heartbeat(b"", (), 3, amount))
            case "wait":
                bench.wait(amount / 4)
            case "goodbye":
                bench.hear(node, native_broker.CODEC.disconnect(b"", (), Reason.UNEXPECTED, 1))
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
