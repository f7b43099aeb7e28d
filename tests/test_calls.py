"""Bulk calls from Spark: every row gets one outcome, whatever happens to the pair meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from bstar.errors import BulkCallError, ConfigurationError
from bstar.wire import native, native_broker
from bstar.wire.messages import ErrorCode, Request
from bstar_pipeline.bulk import BATCHES_MAX, BODY, KEY, BulkPlan, call_batches
from support.bulk_pair import SERVICE, bulk_pair
from support.scripted import WAIT_S, ScriptedBroker, final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2_000


# --- in a task, without Spark -------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


def plan(broker: ScriptedBroker, **changes: object) -> BulkPlan:
    settings = {"window": 8, "timeout_s": WAIT_S} | changes
    return BulkPlan((broker.endpoint,), "echo", **settings)  # type: ignore[arg-type]


def batch(bodies: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    columns = {"n": pa.array(range(len(bodies))), BODY: pa.array(bodies, pa.binary())}
    if keys is not None:
        columns[KEY] = pa.array(keys, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def fail_if_told(request: Request) -> list[list[bytes]]:
    body = request.body[0]
    if not body.startswith(b"fail"):
        return [final(request, body.upper())]
    code = ErrorCode.HANDLER_FAILED
    return [native_broker.CODEC.failure(request, 1, code, body)]


@pytest.mark.loopback
def test_batches_keep_their_rows_and_each_row_its_own_outcome(broker: ScriptedBroker) -> None:
    broker.on_request = fail_if_told
    given = [
        batch([b"a", None, b"fail 1", b"b"], [b"k1", b"k2", b"k3", None]),
        batch([], []),
        batch([None], [b"k"]),
        batch([b"a", b"a"], [b"k9", b"k9"]),
    ]
    told = list(call_batches(given, plan(broker, has_keys=True, prefix="r_")))
    assert [each.num_rows for each in told] == [4, 0, 1, 2]
    assert told[0].schema.names == [
        "n", "r_reply", "r_status", "r_error", "r_attempts", "r_latency_us", "r_endpoint", "r_epoch"
    ]  # fmt: skip
    rows = [row for each in told for row in each.to_pylist()]
    assert [(row["n"], row["r_reply"], row["r_status"], row["r_attempts"]) for row in rows] == [
        (0, b"A", "answered", 1),
        (1, None, "rejected", 0),
        (2, None, "failed", 1),
        (3, None, "rejected", 0),
        (0, None, "rejected", 0),
        (0, b"A", "answered", 1),
        (1, b"A", "answered", 1),
    ]
    assert [row["r_error"] for row in rows[:4]] == [
        None, "the row's body is null; nothing was sent", "fail 1", "the row's key is null; nothing was sent"
    ]  # fmt: skip
    assert (rows[0]["r_endpoint"], rows[0]["r_epoch"]) == (broker.endpoint, 1)
    assert rows[0]["r_latency_us"] > 0
    identities = [request.identity for request in broker.messages if isinstance(request, Request)]
    assert Counter(identities) == Counter(
        native.keyed_identity(b"echo", key) for key in (b"k1", b"k3", b"k9")
    )


@pytest.mark.loopback
def test_batches_are_read_ahead_but_never_more_than_a_few_are_held(broker: ScriptedBroker) -> None:
    """The first row of all is answered with the last that may be read before it."""
    read = 0
    held: list[Request] = []

    def hold_the_first(request: Request) -> list[list[bytes]]:
        if request.body[0] == b"first":
            held.append(request)
            return []
        answers = [final(request, *request.body)]
        if request.body[0] == b"last of the read":
            answers += [final(held.pop(), b"first")]
        return answers

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for number in range(20):
            read += 1
            bodies = [b"x"] * 50
            if number == 0:
                bodies[0] = b"first"
            if number == BATCHES_MAX - 1:
                bodies[-1] = b"last of the read"
            yield batch(list(bodies))

    broker.on_request = hold_the_first
    told = []
    for each in call_batches(source(), plan(broker)):
        told.append(each)
        assert read - len(told) < BATCHES_MAX
    assert sum(each.num_rows for each in told) == 1_000
    assert {row["status"] for each in told for row in each.to_pylist()} == {"answered"}


@pytest.mark.loopback
@pytest.mark.parametrize(("limit", "failing", "sent_max"), [(0.2, 3, 120), (10, 7, 90)])
def test_a_task_gives_up_when_too_many_rows_fail(
    broker: ScriptedBroker, limit: float, failing: int, sent_max: int
) -> None:
    broker.on_request = fail_if_told
    bodies: list[bytes | None] = [b"fail" if n % failing == 0 else b"well" for n in range(5_000)]
    with pytest.raises(BulkCallError, match=r"gave up calling 'echo' at tcp://.* failed of .*: fail"):
        list(call_batches([batch(bodies)], plan(broker, error_limit=limit, error_span=100)))
    assert len(broker.received(Request)) <= sent_max
    within = plan(broker, error_limit=0.4, error_span=100)
    assert len(list(call_batches([batch(bodies)], within))) == 1


@pytest.mark.loopback
def test_no_request_outlives_the_tasks_deadline_and_what_has_no_time_left_is_not_sent(
    broker: ScriptedBroker,
) -> None:
    broker.on_request = lambda request: []
    deadline = plan(broker, window=2, task_deadline_s=0.5)
    [told] = call_batches([batch([b"x"] * 100)], deadline)
    rows = told.to_pylist()
    assert {row["status"] for row in rows} == {"timeout"}
    assert Counter(row["attempts"] for row in rows) == {1: 2, 0: 98}
    assert max(row["latency_us"] for row in rows) < WAIT_S * 1e6 / 2
    assert "the task's deadline (0.5 s) was over" in rows[-1]["error"]


@pytest.mark.loopback
def test_a_reply_of_several_frames_is_told_and_given_whole_if_asked(broker: ScriptedBroker) -> None:
    broker.on_request = lambda request: [final(request, b"a", b"b")]
    [told] = call_batches([batch([b"x"])], plan(broker))
    [row] = told.to_pylist()
    assert (row["reply"], row["status"]) == (None, "answered")
    assert "2 frames" in row["error"]
    [told] = call_batches([batch([b"x"])], plan(broker, has_frames=True))
    assert told.column("reply").to_pylist() == [[b"a", b"b"]]


# --- in Spark -----------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.loopback
def test_every_row_is_answered_once_although_the_active_node_is_killed(spark: SparkSession) -> None:
    """And with workers that keep their replies in a file, every key is executed once, however often asked."""
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import call

    orders = spark.range(ROWS, numPartitions=4).select(
        "id", F.concat(F.lit("body "), "id").alias("text"), F.lit(None).cast("double").alias("empty")
    )
    with bulk_pair() as bulk:
        called = call(
            orders, service=SERVICE, endpoints=bulk.endpoints, body="text", key=F.col("id") + 7, window=32
        )
        assert called.columns == [
            "id", "text", "empty", "reply", "status", "error", "attempts", "latency_us", "endpoint", "epoch"
        ]  # fmt: skip

        def kill_in_the_middle() -> None:
            bulk.wait_for_executions(ROWS // 3)  # in the middle of partitions, however they run
            bulk.pair.primary.kill()

        killer = threading.Thread(target=kill_in_the_middle)
        killer.start()
        told = called.toArrow()
        killer.join()
        assert Counter(told.column("status").to_pylist()) == {"answered": ROWS}
        rows = list(zip(*(told.column(name).to_pylist() for name in ("id", "text", "reply")), strict=True))
        assert [row for row in rows if row[2] != row[1].encode()[::-1]] == []
        assert sorted(row[0] for row in rows) == list(range(ROWS))
        assert set(told.column("endpoint").to_pylist()) == set(bulk.endpoints)
        assert max(told.column("attempts").to_pylist()) > 1, "nothing was under way when the node died"
        keys = {native.keyed_identity(SERVICE.encode(), b"%d" % (number + 7)) for number in range(ROWS)}
        executed = bulk.executions()
        assert set(executed) == keys
        assert executed.total() == ROWS, "a key was executed twice"
        # Every action calls again; the keys are the same.
        assert called.filter("status = 'answered'").count() == ROWS
        assert bulk.executions().total() == ROWS


@pytest.mark.spark
@pytest.mark.loopback
def test_a_small_queue_slows_a_job_down_and_loses_nothing(spark: SparkSession) -> None:
    """Also: statuses beside each other, a prefix, frames, bodies of bytes, and a job that gives up."""
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import call

    with bulk_pair(workers=1, store="none", limits={"queue_length_max": 3}) as bulk:
        rows = spark.range(300, numPartitions=2).withColumn(
            "body", F.when(F.col("id") % 100 == 99, F.lit("fail")).otherwise(F.concat(F.lit("slow "), "id"))
        )
        with_octets = rows.withColumn("body", F.col("body").cast("binary"))
        called = call(
            with_octets,
            service=SERVICE,
            endpoints=bulk.endpoints,
            body="body",
            window=64,
            frames=True,
            prefix="r_",
            error_threshold=None,
        )
        told = called.select("id", "body", "r_reply", "r_status", "r_error").collect()
        assert Counter(row.r_status for row in told) == {"answered": 297, "failed": 3}
        assert all([bytes(row.body)[::-1]] == row.r_reply for row in told if row.r_status == "answered")
        assert {row.r_error for row in told} == {None, "ValueError: fail"}
        services = bulk.pair.primary.state().broker.services
        [service] = [each for each in services if each.service == SERVICE]
        assert service.refused > 100, "the queue was never full"
        before = bulk.executions().total()
        failing = call(
            spark.range(100_000, numPartitions=2),
            service=SERVICE,
            endpoints=bulk.endpoints,
            body=F.lit("fail"),
            error_threshold=0.1,
        )
        with pytest.raises(Exception, match="BulkCallError: gave up calling 'bulk'"):
            failing.count()
        assert bulk.executions().total() - before < 10_000


@pytest.mark.spark
def test_what_is_wrong_with_a_job_is_told_before_it_runs(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from bstar_pipeline import call

    frame = spark.sql("SELECT 1 AS id, 'x' AS text, array(1) AS list, 'taken' AS Status")
    good = {"service": "s", "endpoints": "tcp://127.0.0.1:1", "body": "text", "prefix": "r_"}
    wrong: list[tuple[dict[str, object], str]] = [
        ({"body": "id"}, "body is a column of BINARY or STRING, not of int"),
        ({"key": "list"}, "key is a column .* not of array<int>: .* to_json"),
        ({"prefix": ""}, "columns called status already: give the new ones a prefix"),
        ({"window": 0}, "window is 1 to"),
        ({"timeout": 0}, "timeout is above 0"),
        ({"task_deadline": -1}, "task_deadline is above 0"),
        ({"error_threshold": 0}, "error_threshold is a share below 1"),
        ({"error_span": 0}, "error_span is 1 row"),
        ({"endpoints": []}, "the list is empty"),
        ({"service": "mmi.services"}, "a worker's service"),
    ]
    for change, text in wrong:
        with pytest.raises(ConfigurationError, match=text):
            call(frame, **(good | change))  # type: ignore[arg-type]
    for key in ("id", "text", F.lit(1.5), F.current_date(), F.lit(b"octets")):
        assert call(frame, key=key, **good).columns[-1] == "r_epoch"  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_worker_without_bstar_says_how_to_ship_it(spark: SparkSession) -> None:
    """The function that goes to the tasks is read by an interpreter that has Spark and not bstar."""
    from pyspark import cloudpickle

    from bstar_pipeline.calls import _task

    function = cloudpickle.dumps(_task({"service": "s"}))  # type: ignore[no-untyped-call]
    # A folder on PYTHONPATH is searched, but what an editable installation wrote there is not followed.
    packages = sysconfig.get_paths()["purelib"]
    program = "import sys; from pyspark import cloudpickle; cloudpickle.load(sys.stdin.buffer)([])"
    told = subprocess.run(
        (sys.executable, "-S", "-c", program),
        check=False,
        input=function,
        capture_output=True,
        env={"PYTHONPATH": packages, "PATH": os.environ["PATH"]},
    )
    assert told.returncode == 1
    last = told.stderr.decode().splitlines()[-1]
    assert "lacks bstar" in last
    assert "--archives" in last
