"""Garbage at the doors of the EventMQ front ends nothing and reaches nobody else."""

from __future__ import annotations

import json
import random

import pytest

from bstar.wire import emq, native
from bstar_broker.fronts.emq.desk import EmqSettings
from support.emq import EmqStage, job

MESSAGES = 100_000

COMMANDS = (
    b"INFORM", b"ACK", b"READY", b"REQUEST", b"REPLY", b"HEARTBEAT", b"SCHEDULE", b"UNSCHEDULE", b"PUBLISH",
    b"DISCONNECT", b"KBYE", b"KBAI", b"STATUS", b"ROUTER_SHOW_WORKERS", b"ROUTER_SHOW_SCHEDULERS", b"HELLO",
    b"x",
)  # fmt: skip
QUEUES = (b'[[10, "fast"]]', b'[[1, "a"], [2, "b"]]', b"")
WORDS = (
    b"", b"m1", b"m2", b"default", b"fast", b"a", b"worker", b"scheduler", *QUEUES,
    b"guarantee", b"reply-requested", b"retry-count:2", b"nohaste,run_count:1", b"1", b"5", b"-1",
    b"* * * * *", b"1.5", b"\xff\xfe", b"{}", job(1), job(2), b'{"value": "TimeoutError"}', b'{"value": 1}',
    b"mmi.state", b"store.submit", b"\0" * 300,
)  # fmt: skip
# How many arguments each command has, so that half of the messages are whole.
WHOLE = {
    b"INFORM": 2, b"REQUEST": 3, b"REPLY": 2, b"HEARTBEAT": 1, b"SCHEDULE": 5, b"UNSCHEDULE": 5, b"PUBLISH": 2
}  # fmt: skip


def message(rng: random.Random) -> list[bytes]:
    """Frames that look like eMQP."""
    if rng.random() < 0.05:
        return [rng.choice((*WORDS, *COMMANDS)) for _ in range(rng.randrange(12))]
    command = rng.choice(COMMANDS)
    count = WHOLE.get(command, 0) if rng.random() < 0.7 else rng.randrange(7)
    arguments = [rng.choice(WORDS) for _ in range(count)]
    if command == b"INFORM" and count == 2 and rng.random() < 0.7:
        arguments = [rng.choice(QUEUES), b"worker"]
    return [b"", emq.VERSION, command, rng.choice(WORDS[:5]), *arguments]


@pytest.mark.storm
def test_100_000_messages_change_nothing_for_others() -> None:
    """No exception, every job at a manager is one that the broker has there, and native peers are served."""
    rng = random.Random(12)
    stage = EmqStage(EmqSettings(has_store=True, has_subscribers=True), requests_per_client_max=50)
    native_worker = [b"", b"MDPW01", b"\x01", b"echo"]
    stage.say(*native_worker, sender=b"w")
    heard: set[bytes] = set()
    for number in range(MESSAGES):
        door = rng.choice(("clients", "workers", "workers", "admin"))
        peer = rng.choice((b"p1", b"p2", b"\0\xff3"))
        stage.front_hears("emq", door, peer, *message(rng))
        if number % 1_000 == 0:
            stage.wait(0.5)
            _counts_agree(stage)
            heard |= {frames[0] for frames in stage.sent}
            stage.left.clear()
            stage.sent.clear()
    assert heard <= {b"w"}
    identity = native.identity(b"h" * 16, 1)
    asked = native.encode_request(identity, b"echo", [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
    stage.say(*native_worker, sender=b"w2")
    assert any(frames[-1] == b"x" for frames in stage.say(*asked, sender=b"native"))
    json.dumps(stage.drops())
    assert stage.front.state(stage.now).counts["published"] > 100


def _counts_agree(stage: EmqStage) -> None:
    workers = stage.node.broker.ledger.workers
    for manager in stage.front.managers.by_id.values():
        assert manager.free >= 0
        for lane in manager.lanes:
            worker = workers[lane.peer]
            assert lane.held + lane.claims == worker.held
            assert lane.claims == 0
            assert worker.credit == lane.credit == lane.held + manager.free
