"""The judge of the chaos tests, judged: hand-made histories, good ones and one for each way of being bad."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bstar_testing.rules import Violation
from chaos import waits as kernel
from chaos.history import (
    Begin,
    End,
    EpochSeen,
    Failed,
    Invoke,
    Line,
    Note,
    Ok,
    Started,
    Stopped,
    Tail,
    Writer,
    read,
)
from chaos.model import Call, Execution, Fault, Manifest, Round, Run, Span, Term, Watch, load, terms_of
from chaos.validate import InvalidRunError, check

INFINITE = float("inf")
FAULT_AT = 10.0


def answered(number: int, at: float, *, epoch: int = 1) -> tuple[Call, Execution]:
    """A call that was answered, and its execution."""
    body = f"client1-{number}"
    end = Ok(at=at + 0.01, id=number, reply=f"{body}|worker1|{number}", epoch=epoch, endpoint="", attempts=1)
    call = Call("client1", number, body, at, at + 5.0, True, (end,))
    return call, Execution("worker1", 1, number, at + 0.005, epoch, epoch, "", body, False, at + 0.008)


def failed(
    number: int, at: float, *, error: str = "OutcomeUnknownError", may_have_executed: bool = True
) -> Call:
    end = Failed(at=at + 0.2, id=number, error=error, may_have_executed=may_have_executed, text="")
    return Call("client1", number, f"client1-{number}", at, at + 5.0, False, (end,))


def good() -> Run:
    """The primary is killed after ten seconds of traffic, the backup takes over, the primary comes back."""
    before = [answered(number, number * 0.1) for number in range(1, 95)]
    after = [answered(number, 3.0 + number * 0.1, epoch=2) for number in range(95, 170)]
    calls, executions = zip(*before, *after, strict=True)
    return Run(
        Manifest("good", failover_timeout_s=0.3, heartbeat_s=0.1, clients=("client1",), workers=("worker1",)),
        (*calls, failed(1000, FAULT_AT - 0.1)),
        executions,
        (Term("primary", 1, 0.05, FAULT_AT), Term("backup", 2, 10.4, INFINITE)),
        (Fault("kill", "primary", FAULT_AT, 11.0, hits_peer_link=False),),
        (Round(11.0, 11.1, 20.0),),
        {"primary": Watch(dead=(Span(FAULT_AT, 10.9),))},
        21.0,
    )


def rules(run: Run) -> list[str]:
    return [violation.rule for violation in check(run)]


def found(run: Run, rule: str) -> Violation:
    """The only violation."""
    [violation] = check(run)
    assert violation.rule == rule, violation
    return violation


def with_call(call: Call, *executions: Execution) -> Run:
    run = good()
    return replace(run, calls=(*run.calls, call), executions=(*run.executions, *executions))


def again(number: int, at: float, *, is_redelivered: bool) -> Execution:
    _, execution = answered(number, at, epoch=2)
    return replace(execution, worker="worker2", is_redelivered=is_redelivered)


@pytest.mark.parametrize("is_redelivered", [False, True])
def test_a_call_that_forbids_it_is_not_executed_twice(is_redelivered: bool) -> None:
    call, execution = answered(2000, FAULT_AT - 0.2)
    call = replace(call, is_idempotent=False)
    run = with_call(call, execution, again(2000, FAULT_AT + 0.4, is_redelivered=is_redelivered))
    texts = [violation.text for violation in check(run) if violation.rule == "i"]
    assert "which it forbids: worker1 at 9.805, worker2 at 10.405" in texts[0]
    assert len(texts) == 2 - is_redelivered


def test_a_second_execution_is_marked_as_redelivered_whichever_comes_first() -> None:
    call, execution = answered(2000, FAULT_AT - 0.2)
    assert check(with_call(call, execution, again(2000, FAULT_AT + 0.4, is_redelivered=True))) == []
    assert check(with_call(call, execution, again(2000, FAULT_AT - 0.3, is_redelivered=True))) == []
    run = with_call(call, execution, again(2000, FAULT_AT + 0.4, is_redelivered=False))
    assert "without being marked as redelivered" in found(run, "i").text


def test_a_run_in_which_all_went_well_breaks_no_rule() -> None:
    assert check(good()) == []


# --- what shows nothing -------------------------------------------------------------------------------------


def test_a_run_with_too_little_traffic_before_the_fault_shows_nothing() -> None:
    run = good()
    late = tuple(call for call in run.calls if call.at > 8.0)
    with pytest.raises(InvalidRunError, match="before the first fault"):
        check(replace(run, calls=late))


def test_a_run_in_which_nothing_was_broken_shows_nothing() -> None:
    with pytest.raises(InvalidRunError, match="nothing was broken"):
        check(replace(good(), faults=()))


def test_a_run_in_which_the_wall_clock_was_set_shows_nothing() -> None:
    with pytest.raises(InvalidRunError, match="wall clock"):
        check(replace(good(), clock_steps_s=1.0))


# --- (a) one serves -----------------------------------------------------------------------------------------


def test_two_that_serve_at_once_with_a_sound_link_are_found() -> None:
    run = replace(
        good(), terms=(Term("primary", 1, 0.05, INFINITE), Term("backup", 2, 4.0, 6.0)), processes={}
    )
    assert rules(run) == ["a", "g"]
    assert "both served for 2.000 s" in check(run)[0].text


def test_two_may_serve_while_the_peer_link_is_cut_and_for_the_time_it_takes_to_connect_again() -> None:
    run = replace(
        good(),
        terms=(Term("primary", 1, 0.05, 12.5), Term("backup", 2, 10.4, INFINITE)),
        faults=(Fault("timeout", "peer", FAULT_AT, 11.0, hits_peer_link=True),),
        processes={},
        rounds=(Round(11.0, 12.6, 20.0),),
    )
    assert check(run) == []


def test_two_that_go_on_serving_long_after_the_link_healed_are_found() -> None:
    run = replace(
        good(),
        terms=(Term("primary", 1, 0.05, 15.0), Term("backup", 2, 10.4, INFINITE)),
        faults=(Fault("timeout", "peer", FAULT_AT, 11.0, hits_peer_link=True),),
        processes={},
        rounds=(Round(11.0, 12.6, 20.0),),
    )
    assert found(run, "a").rule == "a"


def paused(*, begins_after: int, epoch: int = 1) -> Run:
    """The primary stands still for a second; then requests are begun."""
    run = good()
    woken = [
        Execution("worker2", 1, number, 11.0 + number * 0.01, epoch, epoch, "", f"woken-{number}", False)
        for number in range(1, begins_after + 1)
    ]
    return replace(
        run,
        executions=(*run.executions, *woken),
        faults=(Fault("stop", "primary", FAULT_AT, 11.0, hits_peer_link=False),),
        terms=(Term("primary", 1, 0.05, 11.01), Term("backup", 2, 10.4, INFINITE)),
        processes={"primary": Watch(paused=(Span(FAULT_AT, 11.0),))},
    )


def test_a_stalled_node_does_not_count_as_serving_while_it_stands_still() -> None:
    assert check(paused(begins_after=0)) == []


def test_a_stalled_node_may_send_the_one_message_that_was_under_way() -> None:
    assert check(paused(begins_after=1)) == []


def test_a_stalled_node_that_serves_on_in_its_old_epoch_is_found() -> None:
    assert "went on to serve in epoch 1" in found(paused(begins_after=5), "a").text


def test_a_stalled_node_may_serve_again_in_a_new_epoch() -> None:
    assert check(paused(begins_after=5, epoch=3)) == []


# --- (b) workers --------------------------------------------------------------------------------------------


def test_a_worker_that_obeys_a_lower_epoch_than_it_has_seen_is_found() -> None:
    run = good()
    bad = replace(run.executions[3], is_redelivered=True, epoch_seen=2)
    assert "after it had seen 2" in found(replace(run, executions=(*run.executions, bad)), "b").text


def test_what_a_worker_saw_before_it_was_started_again_does_not_bind_it(tmp_path: Path) -> None:
    lines = [begin(1, 4), started(), begin(1, 1)]
    executions = executions_of(tmp_path, lines)
    assert [(each.run, each.epoch, each.epoch_seen) for each in executions] == [(1, 4, 0), (2, 1, 0)]


# --- (c) replies --------------------------------------------------------------------------------------------


def test_a_reply_to_another_call_is_found() -> None:
    call, execution = answered(500, 9.0)
    [end] = call.ends
    assert isinstance(end, Ok)
    crossed = replace(call, ends=(msgspec.structs.replace(end, reply="client1-7|worker1|7"),))
    assert "the reply to client1-7" in found(with_call(crossed, execution), "c").text


def test_a_reply_that_no_worker_made_is_found() -> None:
    call, _ = answered(500, 9.0)
    assert "no worker made" in found(with_call(call), "c").text


def test_a_call_that_is_answered_twice_is_found() -> None:
    call, execution = answered(500, 9.0)
    twice = replace(call, ends=call.ends * 2)
    assert sorted(rules(with_call(twice, execution))) == ["c", "d"]


# --- (d) ends -----------------------------------------------------------------------------------------------


def test_a_call_that_never_ends_is_found() -> None:
    assert "never ended" in found(with_call(Call("client1", 500, "x", 9.0, 14.0, True)), "d").text


def test_a_call_of_a_client_that_was_killed_need_not_end() -> None:
    assert check(with_call(Call("client1", 500, "x", 9.0, 14.0, True, is_orphan=True))) == []


def test_a_call_that_ends_long_after_its_deadline_is_found() -> None:
    late = replace(failed(500, 10.1), deadline_at=8.0)
    assert "after its deadline" in found(with_call(late), "d").text


def test_a_failure_that_no_fault_explains_is_found() -> None:
    assert "although nothing had failed" in found(with_call(failed(500, 2.0)), "d").text


@pytest.mark.parametrize(("waited_s", "is_explained"), [(0.1, False), (0.9, True)])
def test_a_failure_while_the_machine_kept_a_node_waiting_for_long_is_no_violation(
    waited_s: float, is_explained: bool
) -> None:
    run = replace(with_call(failed(500, 2.0)), unplanned=(Span(2.0, 2.0 + waited_s),))
    assert (rules(run) == []) is is_explained


def test_a_failure_that_a_fault_explains_is_no_violation() -> None:
    assert check(with_call(failed(500, 10.5))) == []


def test_a_call_that_was_begun_although_its_caller_was_told_otherwise_is_found() -> None:
    call = failed(500, 10.2, error="NoActiveNodeError", may_have_executed=False)
    begun = Execution("worker1", 1, 900, 12.0, 2, 2, "", call.body, False)
    assert "was answered as not executed" in found(with_call(call, begun), "d").text


# --- (f) recovery, (g) control ------------------------------------------------------------------------------


def test_a_pair_that_does_not_recover_is_found() -> None:
    run = good()
    assert found(replace(run, rounds=(Round(11.0, None, 20.0),)), "f").rule == "f"


def test_a_pair_that_recovers_too_late_is_found() -> None:
    run = good()
    assert "at most" in found(replace(run, rounds=(Round(11.0, 19.0, 20.0),)), "f").text


def test_a_role_that_moves_after_the_faults_is_found() -> None:
    run = good()
    moved = Term("primary", 3, 17.0, INFINITE, "for no reason")
    run = replace(run, terms=(run.terms[0], replace(run.terms[1], until=17.0), moved))
    assert rules(run) == ["f", "g"]
    assert all("for no reason" in violation.text for violation in check(run))


def test_a_role_that_moves_because_the_machine_itself_stood_still_is_no_violation() -> None:
    run = good()
    moved = Term("primary", 3, 17.0, INFINITE)
    terms = (run.terms[0], replace(run.terms[1], until=17.0), moved)
    assert check(replace(run, terms=terms, unplanned=(Span(16.5, 16.9),))) == []


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ((Span(16.5, 16.9),), []),
        ((Span(12.0, 12.4),), ["f", "g"]),
        ((Span(16.6, 16.68), Span(16.7, 16.78)), []),
        ((Span(16.6, 16.68),), ["f", "g"]),
        ((Span(16.0, 16.08), Span(16.1, 16.18), Span(16.6, 16.68)), ["f", "g"]),
    ],
)
def test_a_role_that_moves_because_what_carries_the_messages_was_kept_waiting_is_no_violation(
    waits: tuple[Span, ...], expected: list[str]
) -> None:
    """The nodes' own loops were in time; a proxy, the arbiter or a thread of ZeroMQ was not."""
    run = good()
    moved = Term("primary", 3, 17.0, INFINITE)
    terms = (run.terms[0], replace(run.terms[1], until=17.0), moved)
    assert rules(replace(run, terms=terms, waits=waits)) == expected


def test_a_call_that_fails_long_after_the_faults_is_found() -> None:
    run = with_call(failed(500, 18.0))
    assert sorted(rules(run)) == ["d", "f"]
    assert sorted(rules(replace(run, unplanned=(Span(18.0, 18.1),)))) == ["d", "f"]
    assert rules(replace(run, unplanned=(Span(18.0, 18.9),))) == []


def test_a_process_that_ended_by_itself_is_found() -> None:
    assert found(replace(good(), odd_exits=("primary ended with 1",)), "f").rule == "f"


def control() -> Run:
    run = good()
    return replace(
        run,
        manifest=msgspec.structs.replace(run.manifest, is_control=True),
        faults=(),
        rounds=(),
        processes={},
        calls=run.calls[:-1],
        executions=run.executions,
        terms=(Term("primary", 1, 0.05, INFINITE),),
    )


def test_a_run_without_faults_breaks_no_rule() -> None:
    assert check(control()) == []


def test_a_failover_without_a_fault_is_found() -> None:
    run = control()
    terms = (replace(run.terms[0], until=5.0), Term("backup", 2, 5.1, INFINITE))
    assert "neither node nor the link" in found(replace(run, terms=terms), "g").text


@pytest.mark.parametrize(("target", "hits_peer_link"), [("peer", True), ("backup", False)])
def test_a_failover_for_a_fault_of_a_node_or_the_peer_link_is_no_violation(
    target: str, hits_peer_link: bool
) -> None:
    run = good()
    run = replace(run, faults=(Fault("stall", target, FAULT_AT, 11.0, hits_peer_link),))
    assert check(run) == []


def test_a_failover_because_a_client_is_cut_off_is_found() -> None:
    run = good()
    run = replace(run, faults=(Fault("down", "client1-primary", FAULT_AT, 11.0, hits_peer_link=False),))
    assert "neither node nor the link" in found(run, "g").text


def test_a_role_that_follows_clients_that_were_cut_off_is_no_violation() -> None:
    run = good()
    cut = Fault("down", "client1-primary", FAULT_AT - 1.0, 11.0, hits_peer_link=False)
    first, *rest = run.terms
    followed = (replace(first, end_why="Clients reach the peer and not us."), *rest)
    assert check(replace(run, faults=(cut,), terms=followed)) == []
    # Not for any other reason, and not without such a fault.
    other = (replace(first, end_why="The operator asked for it."), *rest)
    assert "g" in rules(replace(run, faults=(cut,), terms=other))
    late = replace(cut, begin=11.5, end=12.0)
    assert "g" in rules(replace(run, faults=(late,), terms=followed))


def test_a_failover_on_a_machine_that_stood_still_shows_nothing() -> None:
    run = control()
    terms = (replace(run.terms[0], until=5.0), Term("backup", 2, 5.1, INFINITE))
    with pytest.raises(InvalidRunError, match="kept nodes waiting"):
        check(replace(run, terms=terms, unplanned=(Span(4.7, 5.0),)))
    with pytest.raises(InvalidRunError, match="kept nodes waiting"):
        check(replace(run, terms=terms, waits=(Span(4.7, 5.0),)))


def test_a_control_run_is_not_excused_by_waits_that_moved_nothing() -> None:
    run = control()
    terms = (replace(run.terms[0], until=5.0), Term("backup", 2, 5.1, INFINITE))
    assert rules(replace(run, terms=terms, waits=(Span(1.0, 1.5),))) == ["g"]


# --- from files ---------------------------------------------------------------------------------------------


def started() -> Line:
    return Started(at=0.0, name="worker1", pid=1, endpoints=())


def begin(number: int, epoch: int) -> Line:
    return Begin(
        at=0.0, number=number, identity="00", epoch=epoch, endpoint="", body="client1-1", is_redelivered=False
    )


def write(path: Path, *lines: Line) -> None:
    with Writer(path) as history:
        for line in lines:
            history.write(line)


def executions_of(folder: Path, lines: list[Line]) -> tuple[Execution, ...]:
    """Read back what a worker has written."""
    write(folder / "worker1.jsonl", started(), *lines)
    write(folder / "client1.jsonl")
    write(folder / "harness.jsonl", Note(at=0.0, what="clock", text="0.0"))
    manifest = Manifest("x", 0.3, 0.1, clients=("client1",), workers=("worker1",))
    (folder / "run.json").write_bytes(msgspec.json.encode(manifest))
    return load(folder).executions


def test_what_waited_for_a_cpu_is_noted_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest of a process's threads, from one look to the next; what is new or gone counts nothing."""
    looks: Iterator[dict[int, float]] = iter(
        [{1: 5.0, 2: 0.0}, {1: 5.04, 2: 0.3, 3: 9.0}, {1: 5.05, 3: 9.01}, {1: 5.25, 3: 9.02}]
    )
    monkeypatch.setattr(kernel, "waits_of", lambda pid: next(looks))
    with Writer(tmp_path / "harness.jsonl") as journal:
        journal.write(Note(at=0.0, what="clock", text="0.0"))
        watch = kernel.WaitWatch(lambda: [("toxiproxy", 17)], journal)
        for _ in range(4):
            watch.look()
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(Manifest("x", 0.3, 0.1)))
    run = load(tmp_path)
    assert [round(span.end - span.begin, 3) for span in run.waits] == [0.3, 0.2]
    assert run.unplanned == ()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits")
def test_the_kernel_tells_how_long_threads_waited() -> None:
    own = kernel.waits_of(os.getpid())
    assert own.keys() >= {os.getpid()}
    assert min(own.values()) >= 0.0
    assert kernel.waits_of(2**30) == {}


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    lines = (started(), begin(1, 1), End(at=0.0, number=1), EpochSeen(at=0.0, epoch=2, endpoint="x"))
    write(tmp_path / "history", *lines, Stopped(at=0.0))
    assert [type(line) for line in read(tmp_path / "history")] == [Started, Begin, End, EpochSeen, Stopped]


def test_a_last_line_that_was_cut_short_is_dropped_and_does_not_spoil_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "history"
    write(path, started())
    with path.open("ab") as file:
        file.write(b'{"kind":"begin","at":1')
    assert len(read(path)) == 1
    write(path, started())
    assert len(read(path)) == 2


def test_a_line_in_the_middle_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'{"kind":"beg\n{"kind":"stopped","at":1.0}\n')
    with pytest.raises(msgspec.DecodeError):
        read(path)


def test_a_tail_yields_each_line_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "history")
    assert tail.more() == []
    write(tmp_path / "history", started())
    assert len(tail.more()) == 1
    write(tmp_path / "history", Stopped(at=0.0))
    assert [type(line) for line in tail.more()] == [Stopped]


def test_terms_end_with_the_log_or_with_the_death_of_the_process() -> None:
    events = [(1.0, "active in epoch 1: a"), (2.0, "no longer active: b"), (3.0, "active in epoch 3: c")]
    assert terms_of("primary", events, (Span(5.0, 6.0),)) == [
        Term("primary", 1, 1.0, 2.0, "a", "b"),
        Term("primary", 3, 3.0, 5.0, "c"),
    ]


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    manifest = Manifest("x", 0.3, 0.1, clients=("client1",), workers=("worker1",))
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(manifest))
    write(
        tmp_path / "client1.jsonl",
        started(),
        Invoke(at=0.0, id=1, service="work", body="client1-1", is_idempotent=True, deadline_s=5.0),
        Ok(at=0.0, id=1, reply="client1-1|worker1|1", epoch=1, endpoint="", attempts=1),
        Stopped(at=0.0),
    )
    write(tmp_path / "worker1.jsonl", started(), begin(1, 1), End(at=0.0, number=1))
    write(
        tmp_path / "harness.jsonl",
        Note(at=0.0, what="clock", text="100.0"),
        Note(at=0.0, what="start", target="primary"),
        Note(at=0.0, what="fault begins", target="primary", text="stop", span=1),
        Note(at=0.0, what="pause", target="primary"),
        Note(at=0.0, what="resume", target="primary"),
        Note(at=0.0, what="fault ends", target="primary", text="stop", span=1),
        Note(at=0.0, what="calm"),
        Note(at=0.0, what="settled"),
        Note(at=0.0, what="traffic ends"),
        Note(at=0.0, what="kill", target="primary"),
        Note(at=0.0, what="exit", target="primary", text="-9"),
    )
    (tmp_path / "primary.log").write_text(
        '{"event": "active in epoch 1: why", "timestamp": "1970-01-01T00:01:41Z"}\nsome other words\n'
    )

    run = load(tmp_path)

    assert [len(call.ends) for call in run.calls] == [1]
    assert [each.ended_at is not None for each in run.executions] == [True]
    assert [(term.node, term.epoch, term.since, term.why) for term in run.terms] == [
        ("primary", 1, 1.0, "why")
    ]
    assert [(fault.kind, fault.target) for fault in run.faults] == [("stop", "primary")]
    assert len(run.processes["primary"].paused) == len(run.processes["primary"].dead) == 1
    assert [quiet.settled_at is not None for quiet in run.rounds] == [True]
    assert [call.is_orphan for call in run.calls] == [False]


def test_with_an_arbiter_a_cut_peer_link_excuses_nobody() -> None:
    run = replace(
        good(),
        terms=(Term("primary", 1, 0.05, 12.5), Term("backup", 2, 10.4, INFINITE)),
        faults=(Fault("timeout", "peer", FAULT_AT, 11.0, hits_peer_link=True),),
        processes={},
        rounds=(Round(11.0, 12.6, 20.0),),
    )
    run = replace(run, manifest=msgspec.structs.replace(run.manifest, has_arbiter=True))
    assert found(run, "a").rule == "a"
