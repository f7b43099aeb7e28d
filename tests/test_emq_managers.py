"""Job managers of EventMQ at a node: slots, queues, heartbeats, and what becomes of jobs of a lost one."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from bstar.wire import emq, native
from bstar.wire.emq import Kind, Queue
from bstar.wire.messages import ErrorCode
from bstar_broker.fronts.emq.desk import EmqSettings
from support.emq import EmqStage, job, kinds, replies, requests, result


@pytest.fixture
def stage() -> EmqStage:
    return EmqStage()


def native_request(stage: EmqStage, number: int, *body: bytes, service: bytes = b"default") -> None:
    """An HAClient asks."""
    identity = native.identity(b"h" * 16, number)
    stage.say(
        *native.encode_request(identity, service, list(body), ttl_ms=0, epoch=0, is_repeated=False),
        sender=b"native",
    )


@pytest.mark.requirement("EMQ-R-06")
@pytest.mark.requirement("EMQ-G-05")
def test_a_manager_gets_ack_and_heartbeats_from_the_start(stage: EmqStage) -> None:
    """EMQ-R-06, EMQ-G-05: ACK of each INFORM, a HEARTBEAT at once and every interval."""
    told = stage.manager()
    assert kinds(told) == ["Ack", "Heartbeat"]
    assert isinstance(told[0][1], emq.Ack)
    assert told[0][1].about == b"i"
    stage.says("workers", b"m1", emq.Heartbeat(b"h", 1.0))
    assert kinds(stage.waits(6.5)) == ["Heartbeat", "Heartbeat"]


@pytest.mark.requirement("EMQ-R-10")
def test_a_manager_without_queues_serves_the_default_queue(stage: EmqStage) -> None:
    """EMQ-R-10: an empty queue frame means the router's default."""
    stage.manager(slots=1)
    assert requests(stage.asks(b"q1")) == [(b"m1", b"q1")]


def test_a_slot_is_one_job(stage: EmqStage) -> None:
    stage.manager(slots=2)
    assert requests(stage.asks(b"q1") + stage.asks(b"q2") + stage.asks(b"q3")) == [
        (b"m1", b"q1"),
        (b"m1", b"q2"),
    ]
    # A result frees no slot: READY does.
    assert requests(stage.ends(b"q1")) == []
    assert requests(stage.ready()) == [(b"m1", b"q3")]
    assert requests(stage.ready()) == []
    assert stage.front.state(stage.now).levels["free_slots"] == 1


def test_queues_of_a_manager_share_its_slots_and_the_heavier_goes_first(stage: EmqStage) -> None:
    stage.asks(b"slow", queue="slow")
    stage.manager(b"m1", (10, "slow"), (20, "fast"))
    stage.asks(b"fast", queue="fast")
    assert requests(stage.ready()) == [(b"m1", b"fast")]
    assert requests(stage.ready()) == [(b"m1", b"slow")]
    assert requests(stage.asks(b"more", queue="fast")) == []
    stage.ends(b"slow")
    stage.ends(b"fast")
    assert requests(stage.ready()) == [(b"m1", b"more")]


def test_what_the_broker_gives_beyond_the_slots_waits_for_the_next_ready(stage: EmqStage) -> None:
    """A batch of a native client cannot overfill a lane; two services in one input can."""
    stage.manager(b"m1", (10, "a"), (10, "b"), slots=1)
    lanes = stage.front.managers.by_id[b"m1"].lanes
    for lane in lanes:
        stage.node.broker.set_credit(lane.peer, 5, stage.now)
    assert requests(stage.asks(b"qa", queue="a")) == [(b"m1", b"qa")]
    # The broker believes in more than there is.
    for lane in lanes:
        stage.node.broker.set_credit(lane.peer, 5, stage.now)
    assert requests(stage.asks(b"qb", queue="b")) == []
    assert requests(stage.ready()) == [(b"m1", b"qb")]


def test_a_native_client_is_served_by_a_job_manager(stage: EmqStage) -> None:
    stage.manager(slots=1)
    native_request(stage, 1, job(3))
    [(_, request)] = [each for each in stage.told() if isinstance(each[1], emq.Request)]
    assert isinstance(request, emq.Request)
    assert (request.message, request.queue) == (job(3), "default")
    assert request.headers.reply_requested
    stage.ends(request.msgid, 7)
    answer = native.decode(stage.sent[-1][1:])
    assert (answer.command, answer.body) == (native.FINAL, [result(7)])


def test_a_job_that_is_not_utf8_never_reaches_a_manager(stage: EmqStage) -> None:
    """The published program decodes every frame, and ends at the first that is not text."""
    stage.manager(slots=1)
    before = len(stage.left)
    native_request(stage, 1, b"\xff")
    assert requests(stage.told(before)) == []
    assert native.decode(stage.sent[-1][1:]).command == native.ERROR
    assert requests(stage.asks(b"q1")) == [(b"m1", b"q1")]


@pytest.mark.parametrize("body", [b"rubbish", b"{}", b"5", b"[]", b'["run"]', b'["run",NaN]', b'["run",{}'])
def test_a_job_that_ends_the_published_manager_never_reaches_a_manager(stage: EmqStage, body: bytes) -> None:
    """It reads a JSON array and takes its second element; anything else raises in its loop."""
    stage.manager(slots=1)
    before = len(stage.left)
    native_request(stage, 1, body)
    assert requests(stage.told(before)) == []
    answer = native.decode(stage.sent[-1][1:])
    assert (answer.command, answer.value) == (native.ERROR, ErrorCode.INVALID)
    assert stage.node.broker.ledger.drops["emq-job-job"] == 1
    assert requests(stage.asks(b"q1")) == [(b"m1", b"q1")]


def test_a_job_without_a_reply_ends_thirty_seconds_after_its_timeout(stage: EmqStage) -> None:
    """A published manager forgets a job whose process died. Its slot comes back with the next process.

    ``timeout:0`` is no limit (PROTOCOLS.md 12.4).
    """
    stage.manager(slots=3)
    stage.asks(b"short", "reply-requested,timeout:5")
    stage.asks(b"long", "reply-requested")
    stage.asks(b"free", "reply-requested,timeout:0")
    beats = [emq.Heartbeat(b"h", 1.0)] * 3
    told = []
    for turn in range(180):
        told += stage.waits(2.0) + stage.says("workers", b"m1", beats[turn % 3])
        ended = [msgid for _, msgid, value in replies(told) if value == result("TimeoutError")]
        passed_s = 2 * (turn + 1)
        assert ended == [b"short"] * (passed_s > 35) + [b"long"] * (passed_s > 330), passed_s
    assert stage.node.broker.ledger.drops["emq-job-overdue"] == 2
    assert stage.node.broker.ledger.workers, "the manager stays"
    before = len(stage.left)
    stage.ends(b"long", 7)
    assert replies(stage.told(before)) == [], "a reply after that reaches nobody"
    assert requests(stage.asks(b"next")) == []
    assert requests(stage.ready()) == [(b"m1", b"next")]


def test_a_job_that_its_manager_forgot_uses_an_attempt_up(stage: EmqStage) -> None:
    stage.manager(slots=2)
    stage.asks(b"q1", "reply-requested,retry-count:1,timeout:1")
    told = []
    for _ in range(18):
        told += stage.waits(2.0) + stage.says("workers", b"m1", emq.Heartbeat(b"h", 1.0))
    assert (requests(told), replies(told)) == ([(b"m1", b"q1")], [(b"c1", b"q1", None)])
    assert replies(stage.ends(b"q1", 5)) == [(b"c1", b"q1", result(5))]


def test_after_a_forgotten_job_no_reply_without_a_name_ends_another_one() -> None:
    """By the specification a REPLY may name no request. It could be the late one."""
    stage = EmqStage(EmqSettings(wire=emq.Wire.SPECIFICATION))
    stage.manager(slots=2)
    stage.asks(b"lost", "reply-requested,timeout:1")
    for _ in range(18):
        stage.waits(2.0)
        stage.says("workers", b"m1", emq.Heartbeat(b"h", 1.0))
    stage.asks(b"next", "reply-requested")
    before = len(stage.left)
    stage.says("workers", b"m1", emq.Reply(b"own", b"own", result("of the lost one")))
    assert replies(stage.told(before)) == []
    stage.says("workers", b"m1", emq.Reply(b"next", b"next", result(5)))
    assert [value for _, _, value in replies(stage.told(before))] == [result(5)]


def test_a_late_frame_of_another_dialect_is_no_header(stage: EmqStage) -> None:
    stage.manager(slots=1)
    native_request(stage, 1, job(1), b"timeout:soon", b"\xff", b"")
    assert len(requests(stage.told())) == 1


@pytest.mark.requirement("EMQ-B-01")
def test_jobs_of_a_silent_manager_are_redelivered(stage: EmqStage) -> None:
    """EMQ-B-01: the broker stops sending to a manager that is gone. Its jobs go on elsewhere."""
    stage.manager(b"m1", slots=1)
    stage.asks(b"q1", "reply-requested")
    stage.manager(b"m2")
    told = []
    for _ in range(5):
        stage.says("workers", b"m2", emq.Heartbeat(b"h", 1.0))
        told += stage.waits(2.0)
    assert b"m1" not in stage.front.managers.by_id
    assert stage.drops()["emq-manager-expired"] == 1
    assert requests(stage.ready(b"m2")) == [(b"m2", b"q1")]
    [reply] = replies(stage.ends(b"q1", 5, b"m2"))
    assert reply == (b"c1", b"q1", result(5))
    assert replies(stage.ends(b"q1", 6, b"m1")) == []


@pytest.mark.requirement("EMQ-G-07")
@pytest.mark.requirement("EMQ-R-05")
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_a_manager_that_leaves_is_forgotten(stage: EmqStage, word: bytes) -> None:
    """EMQ-G-07, EMQ-R-05: nothing more is sent after KBYE or KBAI, and its jobs are redelivered."""
    stage.manager(b"m1", slots=2)
    stage.asks(b"q1")
    stage.manager(b"m2", slots=1)
    assert requests(stage.sends("workers", b"m1", b"", b"eMQP/1.0", word, b"k")) == [(b"m2", b"q1")]
    assert [peer for peer, _ in stage.waits(4.0) if peer == b"m1"] == []


def test_a_manager_that_registers_again_begins_anew(stage: EmqStage) -> None:
    stage.manager(b"m1", slots=3)
    stage.asks(b"q1")
    told = stage.manager(b"m1")
    assert kinds(told) == ["Ack", "Heartbeat"]
    assert requests(stage.ready()) == [(b"m1", b"q1")]


def test_a_request_that_could_not_be_sent_goes_to_the_next_manager(stage: EmqStage) -> None:
    stage.manager(b"m1", slots=1)
    stage.manager(b"m2", slots=1)
    stage.asks(b"q1")
    [output] = [each for each in stage.left if each.frames[3] == b"REQUEST"]
    before = len(stage.left)
    stage.carry_out(stage.node.front_unsent(output, stage.now, is_gone=True))
    other = b"m2" if output.frames[0] == b"m1" else b"m1"
    assert requests(stage.told(before)) == [(other, b"q1")]
    assert list(stage.front.managers.by_id) == [other]


def test_a_broken_connection_is_found_before_the_silence(stage: EmqStage) -> None:
    stage.manager(b"m1", slots=1)
    stage.asks(b"q1", "reply-requested")
    stage.carry_out(stage.node.front_peer_gone("emq", "workers", b"m1", stage.now))
    # What it sent before is read.
    stage.ends(b"q1", 3)
    stage.asks(b"q2")
    stage.carry_out(stage.node.front_peer_gone("emq", "workers", b"m1", stage.now))
    stage.waits(1.5)
    assert not stage.front.managers.by_id


@pytest.mark.parametrize("value", ["TimeoutError", "refused: the job manager has 1000 jobs waiting"])
def test_a_native_client_hears_of_a_failed_job(stage: EmqStage, value: str) -> None:
    stage.manager(slots=1)
    native_request(stage, 1, job(3))
    stage.ends(requests(stage.told())[0][1], value)
    assert native.decode(stage.sent[-1][1:]).command == native.ERROR


def test_another_principal_cannot_speak_for_a_manager(stage: EmqStage) -> None:
    stage.manager(b"m1", slots=1)
    stage.asks(b"q1", "reply-requested")
    before = len(stage.left)
    frames = [b"m1", *emq.encode(emq.Reply(b"e", b"q1", result("forged")))]
    stage.carry_out(stage.node.receive_front("emq", "workers", frames, stage.now, "mallory key"))
    assert stage.told(before) == []
    assert stage.drops()["emq-unknown-manager"] == 1


def test_slots_are_bounded(stage: EmqStage) -> None:
    stage.manager()
    stage.front.managers.by_id[b"m1"].free = 10_000
    stage.ready()
    assert stage.drops()["emq-slots"] == 1


def test_a_result_on_the_specifications_wire_names_its_job_or_ends_the_oldest() -> None:
    stage = EmqStage(EmqSettings(wire=emq.Wire.SPECIFICATION))
    stage.manager(slots=3)
    for msgid in (b"q1", b"q2", b"q3"):
        stage.asks(msgid, "reply-requested")
    # A manager of ours, and one that knows the specification only.
    for name, ended in ((b"q2", b"q2"), (b"e", b"q1")):
        [(client, reply)] = stage.says("workers", b"m1", emq.Reply(b"e", name, result(1)))
        assert (client, reply.msgid) == (b"c1", ended)
    assert list(stage.front.managers.by_id[b"m1"].jobs) == [b"q3"]


# --- roles --------------------------------------------------------------------------------------------------


def test_a_passive_node_sends_managers_to_the_one_that_serves(stage: EmqStage) -> None:
    stage.manager(b"m1", slots=1)
    stage.asks(b"q1")
    stage.step_down()
    # Its job ends first: a manager drops the results of a node it has left.
    before = len(stage.left)
    stage.carry_out(stage.node.fronts.each(lambda front: front.handle_timer(stage.now + 0.8)))
    assert "Goodbye" not in kinds(stage.told(before))
    assert kinds(stage.ends(b"q1")) == ["Goodbye"]
    assert kinds(stage.manager(b"m2")) == ["Ack", "Goodbye"]
    assert kinds(stage.says("clients", b"c1", emq.Request(b"q2", "default", job(1)))) == ["Goodbye"]


def test_a_manager_at_a_passive_node_stays_while_nobody_serves(stage: EmqStage) -> None:
    stage.step_down()
    stage.miss_peer()
    assert not stage.node.is_active
    told = stage.manager(b"m1", slots=1)
    assert kinds(told) == ["Ack", "Heartbeat"]
    # The request is the vote.
    assert requests(stage.asks(b"q1")) == [(b"m1", b"q1")]
    assert stage.node.is_active


@pytest.mark.requirement("EMQ-R-01")
def test_routing_ids_are_octets(stage: EmqStage) -> None:
    """EMQ-R-01: an automatic identity, binary with zeros, works."""
    manager, client = b"\0\x80\xff \n", b"\0\xfe  \0"
    stage.says("workers", manager, emq.Inform(b"i", Kind.WORKER, (Queue(1, "default"),)))
    stage.says("workers", manager, emq.Ready(b"r"))
    told = stage.asks(b"q1", "reply-requested", client=client)
    assert requests(told) == [(manager, b"q1")]
    assert replies(stage.ends(b"q1", 2, manager)) == [(client, b"q1", result(2))]


def test_a_manager_is_forgotten_in_a_time_in_proportion_to_its_queues() -> None:
    """Each queue added up what all of them held: with 1,000 queues that was most of 0.15 s."""

    def calls_to_forget(queues: int) -> int:
        stage = EmqStage()
        stage.manager(b"m1", *((10, f"q{number}") for number in range(queues)), slots=2)
        stage.asks(b"held", queue="q0")
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            stage.says("workers", b"m1", emq.Goodbye(b"k"))
        finally:
            sys.setprofile(None)
        return calls

    assert calls_to_forget(400) < 5 * calls_to_forget(100)
