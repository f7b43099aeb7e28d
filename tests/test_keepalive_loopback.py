"""Workers that hold the GIL, block an event loop, are killed or stopped: on real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bstar_client import AsyncWorker, HAClient, Request
from support.pairs import QUICK, SERVICE, Pair, standing_pair

pytestmark = pytest.mark.loopback

# A worker expires in 2.5 s and may be stuck for 100 s.
TIMING = replace(
    QUICK,
    failover_timeout_s=2.0,
    worker_heartbeat_interval_s=0.5,
    mdp_heartbeat_interval_s=0.5,
    busy_timeout_s=100.0,
)
HOLD_S = 6
# A worker's keepalive says this soon after READY how long it may be silent. One that is stopped before is
# noticed after busy_timeout_s, like one without a keepalive.
FIRST_PING_S = 0.5
# Less than that: a dead worker is not noticed by its time being over.
CALL_S = 60.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with standing_pair(TIMING) as each:
        yield each


def stalls_of(pair: Pair, service: str) -> int:
    """How often a worker of it was stuck."""
    services = pair.primary.state().broker.services
    return next(each.stalls for each in services if each.service == service)


def test_a_handler_that_holds_the_gil_is_executed_once_and_answered(pair: Pair) -> None:
    before = stalls_of(pair, SERVICE)
    body = b"hold %d" % HOLD_S
    with HAClient(pair.endpoints) as client:
        assert client.request(SERVICE, body, timeout=CALL_S).body == body
        # The worker has not given its own session up: it serves on.
        pair.wait_for_workers()
        assert client.request(SERVICE, b"after it", timeout=CALL_S).body == b"after it"
    begun = [each for each in pair.begun() if each.body == body.decode()]
    assert [each.is_redelivered for each in begun] == [False]
    assert stalls_of(pair, SERVICE) > before
    log = pair.workers[begun[0].worker].log_path.read_text()
    assert "handle of service work kept the process from answering for" in log
    assert "has not answered for" in pair.primary.log()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_dead_or_stopped_worker_held_is_executed_elsewhere(pair: Pair, number: signal.Signals) -> None:
    body = b"hang " + number.name.encode()
    time.sleep(6 * FIRST_PING_S)  # of the youngest worker
    with HAClient(pair.endpoints) as client, ThreadPoolExecutor(1) as pool:
        result = pool.submit(client.request, SERVICE, body, timeout=CALL_S)
        victim = pair.wait_for_execution(body)
        os.kill(victim.pid, number)
        assert result.result().body == body
    begun = [each for each in pair.begun() if each.body == body.decode()]
    assert [each.is_redelivered for each in begun] == [False, True]
    assert begun[0].worker != begun[1].worker
    victim.close()
    pair.add_workers(1)


def test_a_handler_that_blocks_the_event_loop_is_executed_once_and_answered(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[bytes] = []

    async def block(request: Request) -> bytes:
        runs.append(request.body)
        time.sleep(HOLD_S)  # noqa: ASYNC251 - it is to block the loop
        return b"done"

    async def main() -> None:
        async with AsyncWorker(pair.endpoints, "blocking", block) as worker:
            reply = await asyncio.to_thread(client.request, "blocking", b"x", timeout=CALL_S)
            assert reply.body == b"done"
            assert worker.counters.finished == 1

    with caplog.at_level(logging.WARNING, "bstar_client"), HAClient(pair.endpoints) as client:
        asyncio.run(main())
    assert runs == [b"x"]
    (text,) = {each.getMessage() for each in caplog.records if "kept the process" in each.getMessage()}
    assert "<locals>.block" in text
    assert stalls_of(pair, "blocking") == 1
