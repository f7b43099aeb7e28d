"""What clients and admins of EventMQ get from a node."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bstar.star import PeerMessage, Publish, Stall
from bstar.wire import durable, emq, native
from bstar.wire.durable import State
from bstar.wire.emq_jobs import Headers
from bstar.wire.peer import PeerState
from bstar_broker.core import Output
from bstar_broker.core.outputs import FrontSend
from bstar_broker.fronts.emq.desk import EmqSettings
from bstar_broker.fronts.emq.jobs import to_result
from bstar_broker.store.core.events import Opened, Replaced
from support.emq import EmqStage, Told, job, kinds, replies, requests, result, words

MSGID = b"5f0c7f5a-6c3e-4b7e-9c59-0b6d2f6f1a11"


@pytest.fixture
def stage() -> EmqStage:
    return EmqStage()


def test_a_request_reaches_the_manager_as_the_client_wrote_it(stage: EmqStage) -> None:
    stage.manager(b"m1", (10, "default"), slots=1)
    told = stage.asks(b"q1", "timeout:30,shiny", "elsewhere")
    assert [each for each in told if isinstance(each[1], emq.Request)] == [
        (
            b"m1",
            emq.Request(
                b"q1", "elsewhere", job(1), Headers(reply_requested=True, timeout_s=30, others=("shiny",))
            ),
        )
    ]


@pytest.mark.requirement("EMQ-R-07")
@pytest.mark.requirement("EMQ-R-09")
def test_one_argument_is_a_submission_and_two_are_a_result(stage: EmqStage) -> None:
    """EMQ-R-07, EMQ-R-09: REPLY at dispatch has the msgid, the extension's result JSON and msgid."""
    stage.manager(slots=2)
    assert replies(stage.asks(b"q1", "reply-requested")) == [(b"c1", b"q1", None)]
    assert replies(stage.ends(b"q1", 42)) == [(b"c1", b"q1", result(42))]
    stage.asks(b"q2")
    assert replies(stage.ends(b"q2", 42)) == []


@pytest.mark.requirement("EMQ-R-08")
def test_a_request_that_waits_gets_no_reply_then_or_later(stage: EmqStage) -> None:
    """EMQ-R-08: the submission's REPLY is absent for a buffered request."""
    assert stage.asks(b"q1") == []
    assert kinds(stage.manager(slots=1)) == ["Ack", "Heartbeat", "Request"]


def test_a_request_waits_while_a_node_that_was_away_asks_its_peer(stage: EmqStage) -> None:
    stage.manager(slots=1)
    outputs = stage.node.step(Stall(3.0), 3.0)
    question = next(output.message.asks for output in outputs if isinstance(output, Publish))
    stage.now = 3.0
    assert stage.asks(b"q1", "reply-requested") == []
    answer = PeerState(4, "test", "backup", "they", 90_000, 0, 1_000, 2_000, answers=question)
    before = len(stage.left)
    stage.carry_out(stage.node.step(PeerMessage(answer), 3.1))
    assert requests(stage.told(before)) == [(b"m1", b"q1")]
    assert replies(stage.ends(b"q1", 42)) == [(b"c1", b"q1", result(42))]


def test_a_request_that_waited_while_the_peer_took_over_goes_to_the_peer(stage: EmqStage) -> None:
    stage.manager(slots=1)
    stage.now = 3.0
    stage.carry_out(stage.node.step(Stall(3.0), 3.0))
    stage.asks(b"q1", "reply-requested")
    before = len(stage.left)
    stage.step_down()
    assert [each for each in stage.told(before) if each[0] == b"c1"] == [(b"c1", emq.Goodbye(b"q1"))]


def test_an_unknown_queue_is_the_default_queue_where_somebody_offers_that(stage: EmqStage) -> None:
    stage.asks(b"early", queue="x")
    stage.manager(slots=2)
    assert requests(stage.asks(b"late", queue="y")) == [(b"m1", b"late")]
    assert requests(stage.manager(b"m2", (1, "x"), slots=1)) == [(b"m2", b"early")]


def test_an_unknown_queue_can_be_kept() -> None:
    stage = EmqStage(EmqSettings(has_store=True, keeps_unknown_queues=True))
    stage.manager(slots=1)
    assert requests(stage.asks(b"q1", queue="x")) == []


@pytest.mark.parametrize("name", ["", "mmi.state", "store.submit", "titanic.request"])
def test_the_brokers_own_services_are_no_queues(stage: EmqStage, name: str) -> None:
    assert words(stage.asks(b"q1", queue=name)).startswith("refused: ")
    assert stage.drops()["emq-queue"] == 1


def test_a_worker_of_another_dialect_gets_the_job_first_and_its_answer_becomes_a_value(
    stage: EmqStage,
) -> None:
    stage.say(b"", b"MDPW01", b"\x01", b"default", sender=b"w")
    stage.asks(b"q1", "reply-requested", "default")
    *head, message, headers, queue, msgid = stage.sent[-1]
    assert (message, headers, queue, msgid) == (job(1), b"reply-requested", b"default", b"q1")
    before = len(stage.left)
    stage.say(b"", b"MDPW01", b"\x03", head[-2], b"", b"done", sender=b"w")
    assert replies(stage.told(before)) == [(b"c1", b"q1", result("done"))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([result(3)], result(3)),
        ([b"[1]"], result("[1]")),
        ([b"a", b"\xff"], result(["a", "\N{REPLACEMENT CHARACTER}"])),
    ],
)
def test_answers_become_results(body: list[bytes], expected: bytes) -> None:
    assert to_result(body) == expected


@pytest.mark.requirement("EMQ-B-02")
def test_clients_take_turns(stage: EmqStage) -> None:
    """EMQ-B-02: a client with many requests does not hold the others up."""
    for number in range(20):
        stage.asks(b"a%d" % number, client=b"busy")
    stage.asks(b"b", client=b"other")
    stage.manager()
    first = [requests(stage.ready())[0][1] for _ in range(4)]
    assert b"b" in first


# --- retry-count --------------------------------------------------------------------------------------------


def test_a_failed_job_is_tried_again_and_its_last_failure_is_the_result(stage: EmqStage) -> None:
    stage.manager(slots=2)
    stage.asks(b"q1", "reply-requested,retry-count:1")
    assert replies(stage.ends(b"q1", "TimeoutError")) == []
    told = stage.waits(1.5)
    assert requests(told) == [(b"m1", b"q1")]
    assert replies(stage.ends(b"q1", "TimeoutError")) == [(b"c1", b"q1", result("TimeoutError"))]


def test_what_a_job_raises_is_a_result(stage: EmqStage) -> None:
    stage.manager(slots=1)
    stage.asks(b"q1", "reply-requested,retry-count:5")
    assert replies(stage.ends(b"q1", "division by zero")) == [(b"c1", b"q1", result("division by zero"))]


def test_managers_that_die_with_a_job_use_its_attempts_up() -> None:
    stage = EmqStage(deliveries_max=1)
    stage.asks(b"q1", "reply-requested,retry-count:1")
    told: list[Told] = []
    for name in (b"m1", b"m2"):
        stage.manager(name)
        assert requests(stage.ready(name)) == [(name, b"q1")]
        told = stage.says("workers", name, emq.Goodbye(b"k"))
        told += stage.waits(1.5)
    assert "workers were lost" in words(told)


def test_attempts_of_a_client_that_is_gone_are_forgotten(stage: EmqStage) -> None:
    """One request waits in the queue, one for its next attempt, and the client hears of neither."""
    stage.manager(slots=1)
    stage.asks(b"q1", "reply-requested,retry-count:1")
    stage.ends(b"q1", "TimeoutError")
    stage.asks(b"q2", "reply-requested,retry-count:1")
    stage.asks(b"other", "retry-count:1", client=b"c2")
    gone = FrontSend("emq", "clients", [b"c1", *emq.encode(emq.Reply(b"k", b"q0"))])
    stage.carry_out(stage.node.front_unsent(gone, stage.now, is_gone=True))
    assert stage.front.state(stage.now).levels["retries"] == 1
    assert requests(stage.waits(1.5)) == []


def test_attempts_of_a_node_that_steps_down_are_the_other_nodes(stage: EmqStage) -> None:
    stage.manager(slots=1)
    stage.asks(b"q1", "retry-count:1")
    stage.ends(b"q1", "TimeoutError")
    before = len(stage.left)
    stage.step_down()
    assert (b"c1", emq.Goodbye(b"q1")) in stage.told(before)
    assert stage.front.state(stage.now).levels["retries"] == 0


def test_an_attempt_that_fails_after_its_node_stepped_down_has_its_next_one_at_the_other_node(
    stage: EmqStage,
) -> None:
    stage.manager(slots=1)
    stage.asks(b"q1", "retry-count:1")
    stage.step_down()
    assert (b"c1", emq.Goodbye(b"q1")) in stage.ends(b"q1", "TimeoutError")
    assert stage.front.state(stage.now).levels["retries"] == 0


@pytest.mark.requirement("EMQ-G-07")
def test_a_farewell_names_what_nobody_has_begun_and_nothing_else(stage: EmqStage) -> None:
    """A client sends again what a KBYE names: it must not run twice."""
    stage.manager(slots=1)
    stage.asks(b"begun")
    stage.says("workers", b"m1", emq.Goodbye(b"k"))
    stage.asks(b"waits")
    before = len(stage.left)
    stage.step_down()
    stage.asks(b"late")
    named = [message.msgid for peer, message in stage.told(before) if peer == b"c1"]
    assert len(named) == 3
    assert {b"waits", b"late"} < set(named)
    assert b"begun" not in named


@pytest.mark.parametrize(("queue", "text"), [("", "it is empty"), ("q" * 256, "has 256"), ("mmi.x", "own")])
def test_a_wrong_name_of_a_queue_is_told(stage: EmqStage, queue: str, text: str) -> None:
    assert text in words(stage.asks(b"q1", queue=queue))
    assert text in words(stage.says("clients", b"c1", emq.Schedule(b"s1", queue, job(1), interval_s=5)))


@pytest.mark.parametrize("headers", ["", "reply-requested", "guarantee", "retry-count:3"])
@pytest.mark.parametrize("message", [b"rubbish", b"", b'["run", {]', b"[" * 5_000, b'{"a": NaN}'])
def test_a_message_that_is_not_json_is_refused_at_the_door(
    stage: EmqStage, headers: str, message: bytes
) -> None:
    """It would end the loop of a published job manager, with all jobs that the manager has."""
    stage.manager(slots=1)
    told = stage.asks(b"q1", headers, message=message)
    assert requests(told) == []
    assert "refused: the message is not JSON" in words(told, b"q1")
    assert stage.node.broker.ledger.drops["emq-json"] == 1
    assert requests(stage.asks(b"q2")) == [(b"m1", b"q2")]


def test_it_counts_what_could_not_be_read(stage: EmqStage) -> None:
    stage.sends("clients", b"c1", b"rubbish")
    stage.sends("workers", b"m1", b"", b"eMQP/1.0", b"INFORM", b"m")
    assert stage.front.state(stage.now).counts["unread"] == 2


# --- guarantee ----------------------------------------------------------------------------------------------


def test_a_guaranteed_job_is_on_the_disk_before_its_reply(stage: EmqStage) -> None:
    stage.is_held = True
    assert stage.asks(MSGID, "guarantee") == []
    before = len(stage.left)
    stage.release()
    assert replies(stage.told(before)) == [(b"c1", MSGID, None)]
    number = bytes.fromhex(MSGID.replace(b"-", b"").decode())
    assert stage.status(number).state == State.PENDING
    assert requests(stage.manager(slots=1)) == [(b"m1", MSGID)]
    stage.ends(MSGID, 8)
    assert stage.status(number).state == State.ANSWERED
    assert stage.table.records[number].answer == [result(8)]


def test_the_result_of_a_guaranteed_job_is_forwarded(stage: EmqStage) -> None:
    stage.asks(b"word", "guarantee,reply-requested")
    # Its end comes after the question has waited its time out in the store.
    stage.waits(70.0)
    stage.manager(slots=1)
    assert replies(stage.ends(b"word", 8)) == [(b"c1", b"word", result(8))]
    assert stage.status(durable.keyed_id(b"default", b"word")).state == State.ANSWERED


def test_the_result_of_a_client_that_is_gone_is_not_looked_for(stage: EmqStage) -> None:
    """Each of its jobs had one of the store's places for questions until it ended, a minute at a time."""
    stage.asks(MSGID, "guarantee,reply-requested")
    stage.asks(b"word", "guarantee,reply-requested", client=b"c2")
    assert waiting_fetches(stage) == 2
    stage.carry_out(stage.node.front_peer_gone("emq", "clients", b"c1", stage.now))
    [heartbeat] = stage.waits(61.0)
    assert heartbeat[0] == b"c1"
    stage.carry_out(stage.node.front_unsent(stage.left[-1], stage.now, is_gone=True))
    assert stage.waits(60.0) == []
    assert waiting_fetches(stage) == 1
    # It comes back, and asks with the same msgid.
    stage.asks(MSGID, "guarantee,reply-requested")
    stage.waits(61.0)
    assert waiting_fetches(stage) == 2


def test_a_client_that_only_lost_its_connection_gets_its_result(stage: EmqStage) -> None:
    stage.asks(MSGID, "guarantee,reply-requested")
    stage.carry_out(stage.node.front_peer_gone("emq", "clients", b"c1", stage.now))
    stage.waits(200.0)
    stage.manager(slots=1)
    assert replies(stage.ends(MSGID, 8)) == [(b"c1", MSGID, result(8))]


def waiting_fetches(stage: EmqStage) -> int:
    """Questions for results in the store."""
    assert stage.node.store is not None
    return stage.node.store.state(stage.now).waiting_fetches


def test_a_guaranteed_job_counts_its_attempts_in_the_store(stage: EmqStage) -> None:
    stage.manager(slots=3)
    stage.asks(MSGID, "guarantee,reply-requested,retry-count:0")
    told = stage.ends(MSGID, "TimeoutError")
    assert replies(told) == [(b"c1", MSGID, result("TimeoutError"))]
    assert stage.status(bytes.fromhex(MSGID.replace(b"-", b"").decode())).state == State.DEAD


def test_a_store_that_refuses_for_a_moment_is_asked_again(stage: EmqStage) -> None:
    stage.replica.copies = 1
    assert stage.asks(MSGID, "guarantee") == []
    stage.waits(3.0)
    stage.replica.copies = 2
    assert replies(stage.waits(1.5)) == [(b"c1", MSGID, None)]


def test_a_store_that_refuses_for_long_is_heard(stage: EmqStage) -> None:
    stage.replica.copies = 1
    stage.asks(MSGID, "guarantee")
    assert words(stage.waits(15.0)).startswith("refused: ")


@pytest.mark.parametrize("gets", ["entries", "its disk", "the whole table"])
def test_a_new_leader_looks_for_the_jobs_that_its_predecessor_accepted(stage: EmqStage, gets: str) -> None:
    stage.asks(MSGID, "guarantee")
    leader = successor_of(stage, has_restarted=gets == "its disk", has_table=gets == "the whole table")
    assert requests(leader.manager(slots=1)) == [(b"m1", MSGID)]


def successor_of(leader: EmqStage, *, has_restarted: bool = False, has_table: bool = False) -> EmqStage:
    """A node that has copied this one's entries, or its table, and serves when its clients miss the other."""
    node = EmqStage()
    node.step_down()
    if has_restarted or has_table:
        node.table, node.log, node.applied = leader.table, leader.log, leader.applied
        totals, due = node.table.totals, node.table.next_due()
        node.replica.last = last = leader.replica.last
        node.hear(
            Replaced(totals, due) if has_table else Opened(None, last, 1, node.applied, 0, [], totals, due)
        )
    for entry in leader.log[len(node.log) :]:
        node.carry_out(node.replica.propose(entry.commands, entry.at_ms, node.now))
    assert kinds(node.asks(b"early")) == ["Goodbye"]
    node.miss_peer()
    node.asks(b"vote", queue="nobody's")
    assert node.node.is_active
    return node


def test_a_guarantee_needs_a_store(stage: EmqStage) -> None:
    stage.node.store = None
    assert "store.directory" in words(stage.asks(b"q1", "guarantee"))


# --- schedules ----------------------------------------------------------------------------------------------


def runs(told: list[Told]) -> int:
    return len(requests(told))


@pytest.fixture(params=[True, False], ids=["store", "memory"])
def planner(request: Any) -> EmqStage:  # pytest's own type has no public name for the parameter
    stage = EmqStage(EmqSettings(has_store=request.param))
    stage.manager(slots=100)
    return stage


def lively(stage: EmqStage, seconds: float) -> list[Told]:
    """Time passes, and the manager sends heartbeats and results."""
    told = []
    for _ in range(round(seconds / 2)):
        stage.says("workers", b"m1", emq.Heartbeat(b"h", 1.0))
        more = stage.waits(2.0)
        for _, msgid in requests(more):
            stage.ends(msgid)
        told += more
    return told


def test_an_interval_runs_at_once_and_then_on_its_grid(planner: EmqStage) -> None:
    told = planner.schedules(interval_s=10)
    assert runs(told + lively(planner, 40.0)) in (4, 5)


def test_nohaste_waits_for_the_first_time(planner: EmqStage) -> None:
    assert runs(planner.schedules("nohaste", interval_s=10) + lively(planner, 8.0)) == 0
    assert runs(lively(planner, 4.0)) == 1


@pytest.mark.parametrize("headers", ["run_count:2", "nohaste,run_count:2"])
def test_run_count_is_the_number_of_runs(planner: EmqStage, headers: str) -> None:
    assert runs(planner.schedules(headers, interval_s=10) + lively(planner, 60.0)) == 2


@pytest.mark.parametrize("headers", ["run_count:2", "nohaste,run_count:2"])
def test_run_count_is_the_number_of_runs_of_a_cron_schedule(planner: EmqStage, headers: str) -> None:
    assert runs(planner.schedules(headers, cron="* * * * *") + lively(planner, 200.0)) == 2


def test_a_cron_schedule_runs_once_at_each_time_when_the_clock_is_set_back(planner: EmqStage) -> None:
    planner.schedules("nohaste", cron="* * * * *")
    planner.skipped_ms -= 500
    # The first time is now 60.5 s away, and the loop's timer still goes off after 60 s.
    assert runs(lively(planner, 100.0)) == 1
    assert runs(lively(planner, 60.0)) == 1


def test_one_run_at_once_leaves_no_cron_schedule(planner: EmqStage) -> None:
    assert runs(planner.schedules("run_count:1", cron="* * * * *") + lively(planner, 130.0)) == 1


def test_a_schedule_is_replaced_and_ended_by_its_call(planner: EmqStage) -> None:
    planner.schedules("nohaste", interval_s=10)
    # The same again changes nothing; another interval of the same call replaces it.
    planner.schedules("nohaste", interval_s=10)
    planner.schedules("nohaste", interval_s=30)
    assert runs(lively(planner, 28.0)) == 0
    assert runs(lively(planner, 4.0)) == 1
    planner.says("clients", b"c2", emq.Unschedule(b"u", "any", job(2)))
    assert runs(lively(planner, 32.0)) == 1
    planner.says("clients", b"c2", emq.Unschedule(b"u", "any", job(1)))
    assert runs(lively(planner, 70.0)) == 0


def test_a_schedule_that_is_over_can_begin_again(planner: EmqStage) -> None:
    for _ in range(2):
        told = planner.schedules("run_count:1,nohaste", interval_s=10)
        assert runs(told + lively(planner, 40.0)) == 1


def test_the_request_of_a_schedule_asks_for_a_reply_and_has_no_other_header(planner: EmqStage) -> None:
    told = planner.schedules("timeout:5,guarantee", interval_s=10) + lively(planner, 2.0)
    [request] = [message for _, message in told if isinstance(message, emq.Request)]
    assert request.headers == Headers(reply_requested=True)


@pytest.mark.requirement("EMQ-R-04")
def test_a_schedule_of_three_arguments_is_counted(planner: EmqStage) -> None:
    """EMQ-R-04: it is an error and nothing worse."""
    assert planner.sends("clients", b"c1", b"", emq.VERSION, b"SCHEDULE", b"s", b"default", b"", job(1)) == []
    assert planner.drops()["emq-arguments"] == 1


@pytest.mark.parametrize("cron", ["nonsense", "61 * * * *"])
def test_a_schedule_without_times_is_refused(planner: EmqStage, cron: str) -> None:
    assert "cron" in words(planner.schedules(cron=cron))


def test_a_schedule_of_no_job_is_refused(planner: EmqStage) -> None:
    assert len(replies(planner.schedules(interval_s=5, message=b"{}"))) == 1
    assert planner.drops()["emq-schedule-job"] == 1


def test_a_schedule_nested_as_deep_as_a_decoder_reads_ends_nothing(planner: EmqStage) -> None:
    """To write JSON takes a little more of the stack than to read it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # some library of another test may have raised it
    try:
        for depth in range(900, 1_000):
            planner.schedules(interval_s=10, message=job().replace(b"[]", b"[" * depth + b"]" * depth, 1))
    finally:
        sys.setrecursionlimit(limit)
    assert "emq-schedule-job" in planner.drops()


def test_a_schedule_survives_in_the_store_and_not_in_memory(planner: EmqStage) -> None:
    planner.schedules("nohaste", interval_s=10)
    planner.step_down()
    assert len(planner.table.records) == planner.emq.has_store
    assert planner.front.state(planner.now).levels["schedules"] == 0


def test_a_new_leader_reads_the_schedules_that_its_predecessor_accepted(stage: EmqStage) -> None:
    stage.schedules("nohaste", interval_s=10)
    successor = successor_of(stage)
    successor.manager(slots=5)
    assert runs(lively(successor, 12.0)) == 1


def external() -> EmqStage:
    return EmqStage(EmqSettings(has_external_scheduler=True))


@pytest.mark.requirement("EMQ-S-01")
def test_external_schedulers_get_the_schedules() -> None:
    """EMQ-S-01: a scheduler registers, lives by heartbeats, and registers again when it was gone."""
    stage = external()
    stage.schedules(interval_s=10)
    assert stage.drops()["emq-no-scheduler"] == 1
    for name in (b"s1", b"s2"):
        told = stage.says("clients", name, emq.Inform(b"i", emq.Kind.SCHEDULER))
        assert kinds(told) == ["Ack", "Heartbeat"]
    assert [peer for peer, _ in stage.schedules(interval_s=10)] == [b"s2"]
    told = stage.says("clients", b"c1", emq.Unschedule(b"u", "default", job(1)))
    assert [peer for peer, _ in told] == [b"s1", b"s2"]
    stage.says("clients", b"s2", emq.Goodbye(b"k"))
    assert "Heartbeat" in kinds(stage.waits(4.0))
    stage.waits(10.0)
    assert stage.drops()["emq-scheduler-expired"] == 1
    stage.says("clients", b"s1", emq.Inform(b"i", emq.Kind.SCHEDULER))
    assert [peer for peer, _ in stage.schedules(interval_s=10)] == [b"s1"]


# --- the admin ----------------------------------------------------------------------------------------------


def report(stage: EmqStage, command: emq.Message) -> dict[str, Any]:
    [(peer, about, value)] = replies(stage.says("admin", b"a", command))
    assert (peer, value) == (b"a", None)
    found: dict[str, Any] = json.loads(about)
    return found


def test_the_admins_reports_have_the_published_keys(stage: EmqStage) -> None:
    assert stage.says("admin", b"a", emq.Hello(b"h")) == []
    stage.manager(b"m1", (20, "fast"), (10, "default"), slots=2)
    stage.asks(b"q1", queue="fast")
    stage.asks(b"q2", queue="fast")
    stage.asks(b"q3", queue="fast")
    stage.ends(b"q1")
    status = report(stage, emq.Status(b"s"))
    assert status["inflight_messages_by_queue"]["fast"] == 1
    assert status["waiting_messages_by_queue"]["fast"] == 1
    assert status["processed_messages_by_queue"]["fast"] == 1
    assert status["processed_messages_by_worker"] == {"m1": 1}
    assert set(status) - set(_STATUS) == set()
    assert (
        set(status["latency_messages_by_queue"]) == set(status["max_latency_messages_by_queue"]) == {"fast"}
    )
    shown = report(stage, emq.ShowWorkers(b"w"))
    assert shown["connected_queues"] == {"fast": [[20, "m1"]], "default": [[10, "m1"]]}
    assert set(shown["connected_workers"]["m1"]) == {"queues", "hb", "available_slots"}
    stage.says("clients", b"s1", emq.Inform(b"i", emq.Kind.SCHEDULER))
    assert set(report(stage, emq.ShowSchedulers(b"w"))["connected_schedulers"]["s1"]) == {"hb"}


_STATUS = (
    "inflight_messages_by_queue", "latency_messages_by_queue", "max_latency_messages_by_queue",
    "waiting_messages_by_queue", "processed_messages_by_queue", "processed_messages_by_worker",
)  # fmt: skip


@pytest.mark.requirement("EMQ-R-11")
def test_no_peer_ends_the_router_without_permission(stage: EmqStage) -> None:
    """EMQ-R-11: DISCONNECT does nothing at any door, unless the operator allows it."""
    stage.manager(slots=1)
    for door in ("clients", "workers", "admin"):
        assert stage.says(door, b"x", emq.Disconnect(b"d")) == []
    assert stage.drops()["emq-disconnect"] == 3
    assert requests(stage.asks(b"q1")) == [(b"m1", b"q1")]


@pytest.mark.requirement("EMQ-G-06")
def test_the_admin_may_end_it_and_what_is_under_way_ends() -> None:
    """EMQ-G-06: KBYE to all, nothing new, and pending work finishes."""
    stage = EmqStage(EmqSettings(has_store=True, may_disconnect=True))
    stage.manager(b"m1", slots=2)
    stage.manager(b"m2", slots=1)
    stage.asks(b"q1", "reply-requested")
    busy = requests(stage.told())[0][0]
    idle = b"m2" if busy == b"m1" else b"m1"
    stage.says("clients", b"s1", emq.Inform(b"i", emq.Kind.SCHEDULER))
    told = stage.says("admin", b"a", emq.Disconnect(b"d"))
    assert [(peer, type(message).__name__) for peer, message in told] == [
        (b"a", "Ack"), (b"s1", "Goodbye"), (idle, "Goodbye"),
    ]  # fmt: skip
    assert kinds(stage.asks(b"q2")) == ["Goodbye"]
    ended = stage.ends(b"q1", 1, busy)
    assert (kinds(ended), replies(ended)) == (["Reply", "Goodbye"], [(b"c1", b"q1", result(1))])
    assert stage.front.state(stage.now).error


@pytest.mark.requirement("EMQ-G-06")
@pytest.mark.parametrize(
    ("door", "peer"),
    [("clients", b"c9"), ("clients", b"s1"), ("workers", b"m9"), ("workers", b"m1")],
    ids=["client", "scheduler", "stranger at the managers' door", "manager"],
)
def test_every_peer_may_end_it_where_that_is_allowed(door: str, peer: bytes) -> None:
    """EMQ-G-06: KBYE to all and to the one that asked, once each, and pending work finishes."""
    stage = EmqStage(EmqSettings(may_disconnect=True))
    stage.manager(b"m1", slots=1)
    stage.asks(b"q1", "reply-requested")
    stage.says("clients", b"s1", emq.Inform(b"i", emq.Kind.SCHEDULER))
    told = stage.says(door, peer, emq.Disconnect(b"d"))
    assert set(kinds(told)) == {"Goodbye"}
    # The manager has a job: its farewell comes after that.
    assert sorted(each for each, _ in told) == sorted({peer, b"s1"} - {b"m1"})
    assert kinds(stage.asks(b"q2")) == ["Goodbye"]
    assert kinds(stage.ends(b"q1", 1, b"m1")) == ["Reply", "Goodbye"]


# --- frames -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("EMQ-G-01")
@pytest.mark.requirement("EMQ-R-02")
@pytest.mark.requirement("EMQ-R-03")
@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"", emq.VERSION, b"READY"], "emq-frames"),
        ([b"x", emq.VERSION, b"READY", b"m"], "emq-delimiter"),
        ([b"", b"eMQP/2.0", b"READY", b"m"], "emq-version"),
        ([b"", emq.VERSION, b"ready", b"m"], "emq-command"),
        ([b"", emq.VERSION, b"READY", b""], "emq-msgid"),
        ([b"", emq.VERSION, b"READY", b"\xff"], "emq-text"),
        ([b"", emq.VERSION, b"REQUEST", b"m", b"q", b"\xff", b"x"], "emq-text"),
        ([b"", emq.VERSION, b"READY", b"m"], "emq-unexpected"),
        ([], "emq-frames"),
    ],
)
def test_what_cannot_be_read_is_counted(stage: EmqStage, frames: list[bytes], reason: str) -> None:
    """EMQ-G-01, EMQ-R-02, EMQ-R-03: every frame has its place, is UTF-8, and there is a msgid."""
    assert stage.sends("clients", b"c1", *frames) == []
    assert stage.drops() == {reason: 1}


@pytest.mark.requirement("EMQ-G-04")
def test_any_message_is_a_heartbeat(stage: EmqStage) -> None:
    """EMQ-G-04: a manager that sends READY and REPLY needs no HEARTBEAT; a busy node sends it none."""
    stage.manager(slots=1)
    told = []
    for number in range(12):
        told += stage.asks(b"q%d" % number)
        told += stage.waits(1.0)
        told += stage.ends(b"q%d" % number)
        told += stage.ready()
    assert "Heartbeat" not in kinds(told)
    assert list(stage.front.managers.by_id) == [b"m1"]


def test_native_clients_are_not_disturbed(stage: EmqStage) -> None:
    stage.say(b"", b"MDPW01", b"\x01", b"echo", sender=b"w")
    stage.sends("workers", b"native", b"", emq.VERSION, b"READY", b"m")
    identity = native.identity(b"h" * 16, 1)
    asked = native.encode_request(identity, b"echo", [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
    outputs: list[Output] = stage.node.receive_frames([b"native", *asked], stage.now)
    assert len(outputs) == 1
