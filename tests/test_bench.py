"""``bstar bench``: the schedule, the shares, the ratios, what is printed, and runs against a real pair."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar.fleet import Pair
from bstar_cli.bench.command import numbers_of
from bstar_cli.bench.histogram import Histogram
from bstar_cli.bench.plan import Case, Side, Tally, Turn, bucket_of, cases_of, due_at, due_count, shares_of
from bstar_cli.bench.report import CSV_COLUMNS, Asked, Document, as_csv
from bstar_cli.bench.results import Result, ratio_of, row_of
from bstar_cli.bench.stage import _Child, cpu_of
from bstar_cli.main import main
from bstar_testing.nodes import COMMAND
from support import pairs
from support.waiting import LIMIT_S

A = Side("A", [Pair(("tcp://a:1", "tcp://b:1"))], "native", "sync", ["echo"])
B = Side("B", [Pair(("tcp://c:1",))], "mdp02", "async", ["echo"])
CASE = Case(16, 100)


def turn(
    *, rate: float, seconds: float | None = None, count: int | None = None, number: int = 0, clients: int = 1
) -> Turn:
    return Turn(16, 10, seconds, count, rate, number, clients)


# --- the plan -------------------------------------------------------------------------------------------


def test_requests_are_due_at_moments_that_no_reply_changes() -> None:
    assert [due_at(turn(rate=4, seconds=1), index) for index in range(4)] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("clients", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("rate", "seconds"), [(4.0, 1.0), (10.0, 0.95), (3.0, 1 / 3), (0.5, 1.0), (1000.0, 0.3)]
)
def test_the_clients_schedules_together_are_the_whole_one(rate: float, seconds: float, clients: int) -> None:
    turns = [turn(rate=rate, seconds=seconds, number=n, clients=clients) for n in range(clients)]
    due = sorted(due_at(each, index) for each in turns for index in range(due_count(each)))
    assert due == [index / rate for index in range(len(due))]
    assert due[-1] < seconds <= len(due) / rate


def test_a_count_bounds_the_schedule() -> None:
    assert due_count(turn(rate=10, count=7)) == 7


@pytest.mark.parametrize(("count", "parts", "shares"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (2, 2, [1, 1])])
def test_shares_are_whole_and_add_up(count: int, parts: int, shares: list[int]) -> None:
    assert shares_of(count, parts) == shares


def test_every_size_meets_every_window() -> None:
    assert cases_of([1, 2], [3, 4]) == [Case(1, 3), Case(1, 4), Case(2, 3), Case(2, 4)]


@pytest.mark.parametrize(
    ("latency_s", "bucket"),
    [
        (0.0, 1),
        (0.000_000_2, 1),
        (0.000_123, 123),
        (0.009_999, 9_999),
        (0.012_344, 12_340),
        (1.234_56, 1_235_000),
    ],
)
def test_a_latency_keeps_four_digits_at_least(latency_s: float, bucket: int) -> None:
    assert bucket_of(latency_s) == bucket


def test_buckets_are_few_whatever_the_latencies_are() -> None:
    buckets = {bucket_of(number * 0.000_37) for number in range(200_000)}
    assert len(buckets) < 10_000 + 3 * 9_000


def test_a_list_of_numbers_is_read_in_order_and_once() -> None:
    assert numbers_of("--size", "16,0,16,7", 0, 20) == [16, 0, 7]


@pytest.mark.parametrize("text", ["", "x", "1,,2", "-1", "21", "1.5"])
def test_what_is_no_such_list_is_told_with_its_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--size"):
        numbers_of("--size", text, 0, 20)


# --- the results ----------------------------------------------------------------------------------------


def result(*latencies_us: int, seconds: float = 1.0, cpu_s: float | None = None) -> Result:
    return Result([Tally(seconds, dict.fromkeys(latencies_us, 1), {})], cpu_s)


def test_a_histogram_adds_up_and_has_three_digits() -> None:
    histogram = Histogram([{100: 98, 5_000: 1}, {2_000_000: 1}])
    assert histogram.count == 100
    assert histogram.percentile_us(50.0) == 100
    assert histogram.percentile_us(99.0) == pytest.approx(5_000, rel=1e-3)
    assert histogram.max_us == pytest.approx(2_000_000, rel=1e-3)


def test_of_nothing_there_is_no_percentile() -> None:
    histogram = Histogram([])
    assert (histogram.count, histogram.percentile_us(50.0), histogram.max_us) == (0, None, None)


def test_clients_are_added_up_over_the_longest_of_them() -> None:
    both = Result([Tally(1.0, {10: 3}, {}), Tally(2.0, {10: 1}, {})], 0.000_4)
    assert both.per_second == 2.0
    assert both.cpu_us == pytest.approx(100.0)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine slows down by ten in the last round; both sides meet it, so the ratio does not.
    first = row_of(A, CASE, [result(*range(1, 21)), result(*range(1, 31)), result(1, 2, seconds=1.0)])
    second = row_of(B, CASE, [result(*range(1, 11)), result(*range(1, 11)), result(1, seconds=1.0)])
    assert ratio_of(first, second).per_second == 2.0
    assert first.per_second == 20.0


def test_a_ratio_that_lacks_a_figure_is_not_told() -> None:
    first = row_of(A, CASE, [result(10, cpu_s=0.1), result(10, cpu_s=None)])
    second = row_of(B, CASE, [result(10, cpu_s=0.1), result(10, cpu_s=0.1)])
    assert first.cpu_us is None
    assert ratio_of(first, second).cpu_us is None
    assert ratio_of(first, second).p50_us == 1.0
    assert ratio_of(first, row_of(B, CASE, [result()])).p99_us is None


def test_failures_are_told_by_their_kind() -> None:
    row = row_of(
        A, CASE, [Result([Tally(1.0, {10: 1}, {"BusyError": 2}, 3), Tally(1.0, {}, {"BusyError": 1})], None)]
    )
    assert (row.answered, row.failed, row.unsent) == (1, {"BusyError": 3}, 3)


# --- what is printed ------------------------------------------------------------------------------------


def document() -> Document:
    rows = [row_of(A, CASE, [result(10, 20, cpu_s=0.000_1)]), row_of(B, CASE, [result(10)])]
    load = Asked(2, "map", None, 5.0, None, 1, 0)
    return Document(
        load=load,
        sides=[A, B],
        rows=rows,
        ratios=[ratio_of(*rows)],
        cpu_unknown={"B": "why"},
        is_complete=True,
    )


def test_csv_has_a_line_per_row_and_nothing_where_nothing_is_known() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(document()))))
    assert [tuple(line) for line in lines] == [CSV_COLUMNS] * 2
    a, b = lines
    assert (a["side"], a["endpoints"], a["size"], a["window"], a["answered"]) == (
        "A",
        "tcp://a:1 tcp://b:1",
        "16",
        "100",
        "2",
    )
    assert (a["per_second"], a["cpu_us"], a["p50_us"]) == ("2.0", "50.0", "10")
    assert (b["cpu_us"], b["rate"], b["dialect"], b["client"]) == ("", "", "mdp02", "async")


def test_the_cpu_of_a_process_grows_with_its_work_also_of_a_thread_that_has_ended() -> None:
    side = Side("A", [Pair(("tcp://a:1",))], "native", "sync", ["echo"], pid=os.getpid())
    [before] = cpu_of(side).values()
    worker = threading.Thread(target=lambda: sum(number * number for number in range(300_000)))
    worker.start()
    worker.join()
    [after] = cpu_of(side).values()
    assert isinstance(before, tuple)
    assert isinstance(after, tuple)
    assert before[0] == after[0]
    assert after[1] > before[1]


def test_a_process_that_is_not_there_is_told() -> None:
    side = Side("A", [Pair(("tcp://a:1",))], "native", "sync", ["echo"], pid=2**22 + 1)
    assert "cannot be looked at" in str(cpu_of(side))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--csv", "--json"],
        ["--count", "5", "--seconds", "5"],
        ["--count", "1", "--clients", "2"],
        ["--size", "99999999"],
        ["--window", "0"],
        ["--window", "1001", "--call", "request"],
        ["--window", "1001", "--rate", "10"],
        ["--size", "16777216", "--window", "100"],
        ["one", "two", "--clients", "1"],
        ["--against-dialect", "mdp02"],
        ["--credit", "5"],
        ["--clients", "65"],
        ["--rate", "1e9"],
        ["--endpoints", "here"],
        ["--endpoints", "tcp://127.0.0.1:1;tcp://127.0.0.1:2", "--echo", "1", "--cpu-of", "1"],
        ["--endpoints", "tcp://127.0.0.1:1", "--config", "client.yaml"],
        ["--against", "tcp://127.0.0.1:1", "--against-config", "client.yaml"],
        ["--config", "/nowhere/client.yaml"],
        ["--against", "here"],
    ],
)
def test_a_load_that_would_not_be_what_it_seems_is_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err
    assert "Traceback" not in shown.err


# --- with real processes --------------------------------------------------------------------------------


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "bench", *arguments], capture_output=True, text=True, timeout=3 * LIMIT_S, check=False
    )


@pytest.fixture(scope="module")
def pair() -> Iterator[pairs.Pair]:
    with pairs.standing_pair(work_s=0.0) as pair:
        yield pair


@pytest.mark.loopback
def test_a_pair_is_measured_in_every_way(pair: pairs.Pair) -> None:
    nodes = ",".join(pair.endpoints)
    sides = ("--endpoints", nodes, "--against", nodes, "--against-client", "async")
    done = bench(
        *(*sides, "--against-dialect", "mdp02", "--echo", "1", "-n", "40", "--window", "1,8"),
        *("--rounds", "2", "--warm-up", "0.1", "--json"),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["is_complete"] is True
    assert [(row["side"], row["window"], row["answered"], row["failed"]) for row in told["rows"]] == [
        (side, window, 80, {}) for window in (1, 8) for side in "AB"
    ]
    assert all(len(row["rounds"]) == 2 for row in told["rows"])
    assert all(0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] for row in told["rows"])
    assert all(row["cpu_us"] > 0 for row in told["rows"])
    assert told["cpu_unknown"] == {}
    assert all(ratio["per_second"] > 0 and ratio["cpu_us"] > 0 for ratio in told["ratios"])

    for how in (("--rate", "200", "--clients", "2"), ("--call", "request")):
        turns = ("--rounds", "1", "-n", "21", "--window", "4", "--warm-up", "0")
        done = bench(pairs.SERVICE, *sides, *turns, *how, "--csv")
        assert done.returncode == 0, done.stderr
        lines = csv.DictReader(io.StringIO(done.stdout))
        assert [(line["client"], line["answered"], line["failed"], line["unsent"]) for line in lines] == [
            (client, "21", "0", "0") for client in ("sync", "async")
        ]


@pytest.mark.loopback
def test_ctrl_c_prints_what_was_measured_so_far(pair: pairs.Pair) -> None:
    before = sum(each.answered for each in pair.primary.state().broker.services)
    process = subprocess.Popen(
        [
            *(*COMMAND, "bench", pairs.SERVICE, "--endpoints", ",".join(pair.endpoints), "--window", "4"),
            *("--seconds", "0.5", "--rounds", "1000", "--warm-up", "0", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pair.primary.wait_for(
            "with requests answered",
            lambda state: sum(each.answered for each in state.broker.services) > before + 10,
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["is_complete"] is False
    assert told["rows"][0]["answered"] > 0
    assert "so far" in err


@pytest.mark.loopback
def test_that_nobody_answers_is_told(tmp_path: Path) -> None:
    done = bench("echo", "--endpoints", f"ipc://{tmp_path}/nobody", "--timeout", "0.2")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no worker answers echo" in done.stderr
    assert "--echo 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.loopback
def test_a_process_that_says_much_on_standard_error_is_not_held_up() -> None:
    child = _Child("x", "timeit", "-n1", "-r1", "import sys; sys.stderr.write('x' * 1_000_000)")
    child.close_input()
    assert child.process.wait(LIMIT_S) == 0
    assert child.process.stdout is not None
    child.process.stdout.close()
    child.errors.close()
