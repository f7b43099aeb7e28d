"""The tables of the pipeline: what each holds, and what its columns mean.

Three layers. *Bronze* is the journals as they came, typed, with what could not be read beside it. *Silver*
joins the records of nodes, clients and workers to requests, processes and intervals. *Gold* answers
questions.

A table is Parquet files, each of one ``day`` (UTC) and ``pair``; the manifest of the current run names them
(``bstar_pipeline.commits``).

Columns ending in ``_us`` are microseconds; those called ``…_at_us`` are microseconds since 1970 on the
pair's common timeline, which is free of clock steps (see silver.runs.offset_us). This module imports
nothing of Spark, so that anybody may read it; ``bstar_pipeline.store`` reads and writes the tables.
"""

import datetime as dt
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``columns`` in Spark's DDL, without ``day`` and ``pair``, which all tables have."""

    about: str
    columns: str


def columns_of(table: Table) -> list[tuple[str, str]]:
    """Name and Spark type of each column, in order; words in angle brackets stand for several columns."""
    columns = []
    for part in (*re.split(r",\s+", table.columns), "day DATE", "pair STRING"):
        name, _, kind = (part, "", "") if part.startswith("<") else part.partition(" ")
        columns.append((name, kind))
    return columns


def utc(at_us: int) -> dt.datetime:
    """A time of a column …_at_us."""
    return _EPOCH + dt.timedelta(microseconds=at_us)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TABLES: dict[str, Table] = {
    # bronze.records has one column for each field of bstar.records, made by bstar_pipeline.schema.
    "bronze.records": Table(
        "Every record that the job could read, once. topic is requests, calls, executions, durables, or "
        "events (all other kinds).",
        "<fields of bstar.records>, time TIMESTAMP, file STRING, topic STRING",
    ),
    "bronze.rejected": Table(
        "Every line that the job could not read, and the reason: unreadable, newer-version, or incomplete "
        "(a field is missing or has another type). day and pair come from the file's name, else they are "
        "1970-01-01 and unknown.",
        "file STRING, reason STRING, version INT, line STRING",
    ),
    "bronze.files": Table(
        "One row for each file. state is whole (the last record tells the number of lines, and all are "
        "here), open (a process writes the file, or its writer was killed), truncated (a packed file "
        "without its end) or duplicate (other files have all its records).",
        "file STRING, node STRING, boot STRING, state STRING, lines BIGINT, rejected BIGINT, duplicates "
        "BIGINT, first_seq BIGINT, last_seq BIGINT, first_at_us BIGINT, last_at_us BIGINT",
    ),
    "silver.runs": Table(
        "One row for each run of a process. offset_us turns its monotonic clock into the common timeline: "
        "it is the median of at - mono, so steps of the wall clock do not matter; processes of one machine "
        "share it. clock_off_us is what that clock was ahead of those of other machines, by the requests "
        "that both recorded: all times have it taken off; clock_unsure_us, by how much that changed "
        "meanwhile. source is broker, client or worker, or unknown if nothing that is here says so. "
        "is_clean: the process said that it stopped. began_before: its first record here is not its first. "
        "before counts the records that it wrote before the first one here and that the job did not read, "
        "missing those that lack after that (gaps in seq). conflicts counts records that have the number of "
        "another one: two processes ran with one boot id. dropped counts records that it could not write. "
        "is_sampled: its records of requests are a sample.",
        "node STRING, boot STRING, source STRING, machine STRING, host STRING, version STRING, config "
        "STRING, service STRING, heartbeat_us BIGINT, failover_timeout_us BIGINT, offset_us BIGINT, "
        "clock_off_us BIGINT, clock_unsure_us BIGINT, started_at_us BIGINT, last_at_us BIGINT, "
        "is_clean BOOLEAN, began_before BOOLEAN, records BIGINT, before BIGINT, missing BIGINT, "
        "conflicts BIGINT, dropped BIGINT, is_sampled BOOLEAN",
    ),
    "silver.requests": Table(
        "One row for each request, by identity (client, number), from all its records. outcome is what its "
        "client got if the client keeps a journal, else the best outcome that a node recorded (null: "
        "only a worker recorded it). evidence has the bits 1 (a node's record), 2 (its client's) and 4 (a "
        "worker's). accepted_at_us is when the first node took it, else when the client sent it or a worker "
        "began it. asked_at_us is since when it waits; asked_by says what began then: its client's call, its "
        "stay at a node, or a run of a worker. ended_at_us is when its client had the outcome, else when the "
        "node or the worker made "
        "its record. queued_us, busy_us and total_us come from the record that answered. deliveries is the "
        "sum over all nodes. answers counts node records with the outcome answered, declined or failed, "
        "without the failed ones of a call that was rejected: a worker refused it. "
        "executions counts the runs by workers; unmarked counts the runs after the first that were not "
        "marked as redelivered. calls counts the outcomes that clients recorded. reply_crc is what the "
        "client got; execution_crcs are what workers answered.",
        "client STRING, number BIGINT, service STRING, sender STRING, node STRING, worker STRING, "
        "outcome STRING, evidence INT, accepted_at_us BIGINT, asked_at_us BIGINT, asked_by STRING, "
        "ended_at_us BIGINT, epoch BIGINT, "
        "total_us BIGINT, queued_us BIGINT, busy_us BIGINT, deliveries INT, is_repeated BOOLEAN, "
        "node_records INT, answers INT, returned INT, executions INT, unmarked INT, calls INT, "
        "call_outcome STRING, call_total_us BIGINT, attempts INT, busy INT, is_idempotent BOOLEAN, "
        "bytes_in BIGINT, bytes_out BIGINT, reply_crc BIGINT, execution_crcs ARRAY<BIGINT>, weight DOUBLE",
    ),
    "silver.durables": Table(
        "One row for each durable request, by its id (client) and its place in the order of submission. "
        "state is pending, answered, dead, cancelled, closed or forgotten, after the last step that a node "
        "recorded. given_at_us is when a node last gave it to a worker. stopped_at_us is when it was first "
        "cancelled or closed after its last retry, ended_at_us when it was first answered, dead or "
        "cancelled. last_entry is the log entry of its last step. ends counts the entries that ended "
        "it. answers are the CRC-32 of the answers that nodes stored or gave to clients.",
        "client STRING, submission BIGINT, service STRING, state STRING, cause STRING, "
        "submitted_at_us BIGINT, given_at_us BIGINT, ended_at_us BIGINT, stopped_at_us BIGINT, "
        "last_at_us BIGINT, last_entry BIGINT, node STRING, attempts INT, retries INT, ends INT, "
        "fetches INT, answers ARRAY<BIGINT>, weight DOUBLE",
    ),
    "silver.states": Table(
        "Intervals of each node's state, in order, without gaps within a run. until_at_us is the next "
        "change, or the run's last sign of life. is_serving: the state is ACTIVE and the process was not "
        "away; the time of a stall is an interval of its own. text tells why the interval began. ended_by "
        "is state, stall (the process went away or came back), stop, kill (no more records) or end (the "
        "journal ends here).",
        "node STRING, boot STRING, state STRING, is_serving BOOLEAN, epoch BIGINT, since_at_us BIGINT, "
        "until_at_us BIGINT, event STRING, text STRING, ended_by STRING, votes BIGINT",
    ),
    "gold.incidents": Table(
        "What moved the role, ended a node, or left requests without an answer. kind is crash (killed, or "
        "gone without a word), both-crash (of both nodes within 10 s), stop (in good order), handover, pause "
        "(the process was away), partition (both nodes lived and did not hear each other), both-active, "
        "start (the pair begins) or outage (requests waited and no worker was at work on one, and no "
        "other incident explains it). began_at_us is when it happened, began_error_us "
        "how far that may be off. detected_at_us is the first sign at another process, taken_over_at_us "
        "when the other node served, recovered_at_us when both nodes were there again. outage_us is the "
        "longest time of its own in which a request waited and none was answered, outage_at_us when that "
        "began. retried, refused, unknown and affected "
        "count requests.",
        "id STRING, kind STRING, node STRING, boot STRING, successor STRING, epoch BIGINT, "
        "began_at_us BIGINT, began_error_us BIGINT, detected_at_us BIGINT, taken_over_at_us BIGINT, "
        "recovered_at_us BIGINT, detection_us BIGINT, takeover_us BIGINT, outage_us BIGINT, "
        "outage_at_us BIGINT, "
        "retried BIGINT, refused BIGINT, unknown BIGINT, affected BIGINT, cause STRING",
    ),
    "gold.audit": Table(
        "One row for each finding. rule is lost, executed-twice, answered-twice, crossed, both-active, "
        "epoch-reused, stale-epoch, or of durable requests durable-lost, begun-after-end or answer-changed. "
        "verdict is violated, excused (the guarantees allow the repetition; such findings are counted, not "
        "listed) or unproven (the journals cannot tell: they are sampled, incomplete or missing). What is "
        "counted has one row for each minute: the first ended at at_us, the last duration_us later.",
        "rule STRING, verdict STRING, client STRING, number BIGINT, service STRING, node STRING, "
        "at_us BIGINT, duration_us BIGINT, count BIGINT, text STRING",
    ),
    "gold.sketches": Table(
        "Mergeable histograms of the requests that ended at a node, and of the calls that ended at a "
        "client: one row for each service, minute, outcome, measure (queued, busy, total of a node, call of "
        "a client) and bucket. Bucket b holds values in (G^(b-1), G^b] microseconds, see "
        "bstar_pipeline.sketch. outcome is that of bstar.records, without returned and late, because such "
        "requests did not end there; or the reason of a refusal (queue-full, ...), with the measure total "
        "and no bucket.",
        "service STRING, minute TIMESTAMP, outcome STRING, measure STRING, bucket INT, weight DOUBLE",
    ),
    "gold.objectives": Table(
        "One row for each service and minute in which a request ended. counted is calls where clients of "
        "the service keep journals on that day (what clients saw), else requests (what nodes recorded). "
        "Then requests per second, the share of errors, the share of finished requests that were slower "
        "than the objective, and percentiles of the finished requests in microseconds. A burn rate is a "
        "share over its budget: at 1 the budget lasts exactly for its period. burn_rate is that of errors "
        "in this minute, burn_5m, burn_1h and burn_6h those of the last 5 minutes, 1 and 6 hours, "
        "slow_burn_rate that of slow requests in this minute. alert is fast (1 hour and 5 minutes burn "
        "fast: an hour costs 2 % of the budget), slow (6 hours and 1 hour: 5 %) or null, also while the "
        "longer window has too few requests, see bstar_pipeline.slo.",
        "service STRING, minute TIMESTAMP, counted STRING, requests DOUBLE, rate DOUBLE, errors DOUBLE, "
        "error_share DOUBLE, slow_share DOUBLE, queued_p50_us DOUBLE, queued_p95_us DOUBLE, queued_p99_us "
        "DOUBLE, busy_p50_us DOUBLE, busy_p95_us DOUBLE, busy_p99_us DOUBLE, total_p50_us DOUBLE, "
        "total_p95_us DOUBLE, total_p99_us DOUBLE, burn_rate DOUBLE, slow_burn_rate DOUBLE, burn_5m DOUBLE, "
        "burn_1h DOUBLE, burn_6h DOUBLE, alert STRING",
    ),
    "gold.budgets": Table(
        "One row for each service and day: its objectives, the day's figures, and how much of the error "
        "budget and of the budget of slow requests the period up to this day has used (1 = all). is_kept: "
        "neither budget is overdrawn. counted is that of gold.objectives on that day. The period is as long "
        "as the objectives say, or as the input.",
        "service STRING, counted STRING, availability DOUBLE, latency_us BIGINT, latency_share DOUBLE, "
        "requests DOUBLE, errors DOUBLE, slow DOUBLE, period_requests DOUBLE, period_errors DOUBLE, "
        "period_slow DOUBLE, budget_used DOUBLE, slow_budget_used DOUBLE, is_kept BOOLEAN",
    ),
    "gold.capacity": Table(
        "One row for each service and hour in which a node served it: workers, their credit (requests at "
        "once), the share of the credit in use in the hour and in its worst interval, accepted requests per "
        "second, the queue and its growth. trend_per_day is the slope of a straight line through the "
        "utilisation of all hours of the input; saturates_at is when that line reaches 1. Both are null "
        "with fewer than two days, saturates_at also beyond a year.",
        "service STRING, hour TIMESTAMP, workers DOUBLE, credit DOUBLE, utilisation DOUBLE, "
        "peak_utilisation DOUBLE, arrivals_per_s DOUBLE, queued_mean DOUBLE, queued_max BIGINT, "
        "queue_growth_per_s DOUBLE, trend_per_day DOUBLE, saturates_at TIMESTAMP",
    ),
    "gold.clients": Table(
        "One row for each client and day: its requests, how often it sent one again, its share of all "
        "requests and its busiest minute. The figures come from its own journal if it keeps one (node names "
        "it), else from the nodes' records (node and busy are null). Durable requests "
        "are of the client durable. is_flooding: its busiest minute had at "
        "least half of all requests, and 10 times those of the median client's. is_retrying: it sent at "
        "least 10 requests and 5 % of its requests again.",
        "client STRING, node STRING, requests DOUBLE, answered DOUBLE, failed DOUBLE, not_answered DOUBLE, "
        "retries BIGINT, busy BIGINT, bytes_in BIGINT, bytes_out BIGINT, share DOUBLE, "
        "peak_per_s DOUBLE, total_p99_us DOUBLE, is_flooding BOOLEAN, is_retrying BOOLEAN",
    ),
}
"""Every table by ``layer.name``."""
