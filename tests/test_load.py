"""``bstar load``: every call is counted once, what was lost is told, and the exit code says which it was."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bstar_cli.engine import Gaps
from bstar_cli.load import percentile
from bstar_client import FailedOver, Worker
from bstar_testing.nodes import COMMAND
from support.pairs import SERVICE, standing_pair
from support.waiting import LIMIT_S


def load(endpoints: list[str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "load", *arguments, "--json", "--endpoints", ",".join(endpoints)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(text: str, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 2), (0.99, 4), (1.0, 4), (0.25, 1), (0.0, 1)])
def test_a_percentile_is_one_of_the_values(share: float, wanted: float) -> None:
    assert percentile([1, 2, 3, 4], share) == wanted


def failover(source: str, target: str) -> FailedOver:
    """As a client tells it that found the other node at once: a silent one was active until then."""
    return FailedOver(source, target, "silent", 2, 7, 0.012)


def test_a_failovers_gap_is_from_the_last_answer_before_to_the_first_one_after() -> None:
    gaps = Gaps()
    assert gaps.answer("a", 1.0) == []
    event = failover("a", "b")
    assert gaps.failover(event) == []
    # A reply of the node before that was on its way.
    assert gaps.answer("a", 1.5) == []
    assert gaps.answer("b", 4.75) == [(event, 3.25)]
    assert gaps.answer("b", 4.8) == []
    assert gaps.longest_s == 3.25
    assert gaps.close() == []


def test_an_answer_that_is_noted_before_its_failover_settles_it() -> None:
    gaps = Gaps()
    gaps.answer("a", 1.0)
    gaps.answer("b", 3.0)
    gaps.answer("b", 3.1)
    event = failover("a", "b")
    assert gaps.failover(event) == [(event, 2.0)]
    back = failover("b", "a")
    assert gaps.failover(back) == []
    assert gaps.answer("a", 3.6) == [(back, 0.5)]


def test_a_node_that_took_over_and_answered_nothing_has_no_gap_of_its_own() -> None:
    gaps = Gaps()
    gaps.answer("a", 1.0)
    there, back, again = failover("a", "b"), failover("b", "a"), failover("a", "b")
    assert gaps.failover(there) == gaps.failover(back) == []
    assert gaps.answer("a", 6.0) == [(there, None), (back, 5.0)]
    assert gaps.failover(again) == []
    assert gaps.close() == [(again, None)]
    assert gaps.close() == []


def test_answers_that_are_noted_out_of_order_make_no_gap_of_a_gap() -> None:
    gaps = Gaps()
    for answered_at in (1.0, 1.1, 1.05, 1.3):
        gaps.answer("a", answered_at)
    assert gaps.longest_s == pytest.approx(0.2)
    assert gaps.failover(failover("a", "b")) == []


def test_a_call_that_is_lost_after_the_last_answer_ends_the_time_without_one() -> None:
    gaps = Gaps()
    gaps.failure(0.5)
    assert gaps.longest_s == 0
    for answered_at in (1.0, 1.1):
        gaps.answer("a", answered_at)
    gaps.failure(1.05)
    assert gaps.longest_s == pytest.approx(0.1)
    gaps.failure(30.1)
    assert gaps.longest_s == pytest.approx(29.0)
    assert gaps.close() == []


def test_of_no_calls_there_is_no_percentile() -> None:
    assert percentile([], 0.5) is None


@pytest.mark.loopback
def test_the_load_goes_on_through_a_failover_and_loses_nothing() -> None:
    with standing_pair() as pair:
        process = load(pair.endpoints, SERVICE, "--rate", "50")
        try:
            assert process.stdout is not None
            seen = ""
            while not lines(seen, "failover"):
                seen += process.stdout.readline()
                told = lines(seen, "second")
                if told and told[-1]["answered"] > 20 and pair.primary.is_running:
                    pair.primary.kill()
            before = lines(seen, "second")[-1]["answered"]
            while lines(seen, "second")[-1]["answered"] < before + 50:
                seen += process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            rest, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    [failover] = lines(seen, "failover")
    assert (failover["from_endpoint"], failover["to_endpoint"]) == tuple(pair.endpoints)
    [total] = lines(rest, "sum")
    assert 0 < failover["gap_s"] <= total["longest_gap_s"]
    assert total["ok"] is True
    assert (total["lost"], total["crossed"], total["failovers"]) == (0, 0, 1)
    assert total["answered"] == total["sent"] > 70
    assert total["longest_call_s"] >= lines(seen, "second")[0]["p50_s"] > 0


@pytest.mark.loopback
def test_the_gap_of_a_node_that_falls_silent_is_all_the_time_without_an_answer() -> None:
    """The backup takes over after the failover timeout at the soonest; for the client that was one moment."""
    with standing_pair() as pair:
        process = load(pair.endpoints, SERVICE, "--rate", "50")
        try:
            assert process.stdout is not None
            seen = ""
            while not (told := lines(seen, "second")) or told[-1]["answered"] <= 20:
                seen += process.stdout.readline()
            with pair.primary.frozen():
                while not lines(seen, "failover"):
                    seen += process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    [failover] = lines(seen, "failover")
    # Less what the last heartbeat was older than the last answer.
    timing = pair.primary.timing
    assert failover["gap_s"] > timing.failover_timeout_s - 2 * timing.heartbeat_interval_s
    assert failover["gap_s"] <= lines(rest, "sum")[0]["longest_gap_s"]


@pytest.mark.loopback
def test_calls_that_nobody_answers_are_lost_and_counted(tmp_path: Path) -> None:
    nobody = f"ipc://{tmp_path}/nobody"
    process = load([nobody], "echo", "--rate", "20", "--timeout", "0.2")
    try:
        assert process.stdout is not None
        out = ""
        while not lines(out, "lost"):
            out += process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        # Not communicate(): it does not see the lines that came together with the first one.
        out += process.stdout.read()
        assert process.wait(LIMIT_S) == 1, out
    finally:
        process.kill()
        process.communicate()
    [total] = lines(out, "sum")
    assert total["ok"] is False
    assert total["answered"] == 0
    assert total["lost"] == total["sent"] == len(lines(out, "lost")) > 0
    assert (
        0.2 <= total["longest_call_s"] <= total["longest_gap_s"] == pytest.approx(total["seconds"], abs=0.001)
    )
    assert {line["error"] for line in lines(out, "lost")} == {"NoActiveNodeError"}


@pytest.mark.loopback
def test_people_get_sentences(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "load", "-e", f"ipc://{tmp_path}/nobody", "-t", "0.1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        told = ""
        while "lost: call 1: NoActiveNodeError" not in told or "no active node known" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 1
    assert rest.splitlines()[-1].split("  ", 1)[1].startswith("sum: ")


@pytest.mark.loopback
def test_a_service_that_answers_something_else_is_named_as_the_cause() -> None:
    """Its answers are not those of other calls."""
    with standing_pair(workers=0) as pair, Worker(pair.endpoints, "price", lambda request: b"1250"):
        process = load(pair.endpoints, "price", "--rate", "50", "--seconds", "0.5")
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    [total] = lines(out, "sum")
    assert total["crossed"] == total["answered"] > 0
    assert "load needs a service that answers as echo does" in err
