"""Was every accepted request answered once, and did one node serve at a time? One row for each finding.

A finding is *violated* if the journals prove that a promise of docs/guarantees.md was broken; such a row
names the request. It is *excused* if a repetition or an unknown outcome is one that the guarantees allow and
that somebody was told of; and *unproven* if these journals cannot tell. The last two are counted, in one row
for each pair, day, service and reason.

lost (guarantee 1: one outcome for every accepted request)
    *violated*: a node or a worker recorded the request, and its client, whose journal is whole, never
    recorded an outcome; or its client waited in vain: it had sent the request once, a node that lived on
    recorded the answer more than ``LATE_US`` before the client's time was up; or a worker executed it, no
    node recorded its end although all lived on and their journals are whole, and its client was told timeout;
    or its client was told that it certainly was not executed, and it was. *excused*: the client was told
    that the outcome is not known (timeout, unknown, interrupted, closed): that is an outcome, and an
    announced one. A caller that went away (abandoned) lost nothing. *unproven*: without the client's journal,
    or with one that has no proper end, a gap or a sample.

executed-twice (a request is executed again only as a marked repetition, and never if that was forbidden)
    *violated*: a run after the first one was not marked ``is_repeated``, or the call was not idempotent. A
    killed worker records nothing of what it was at, so the deliveries that nodes recorded count as well: two
    of a call that was not idempotent are one too many, whatever workers recorded.
    *excused*: marked, and idempotent; or named by a key, where whoever repeats the key after its end asks for
    a new execution. *unproven*: marked, and whether the call allowed it only its client's journal could tell.

answered-twice (guarantee 2: replies are never delivered twice)
    *violated*: two records of nodes say that they answered it, and none that it was a repetition.
    *excused*: a marked repetition (its reply had been lost with a node), of which the client delivers one; or
    named by a key.

crossed (guarantee 2: replies are never crossed)
    *violated*: the reply that the client delivered (by its CRC-32) is none that a worker gave to this
    request. *unproven*: so it looks, but a worker's journal is incomplete at that time.

both-active (guarantee 3: at most one node serves)
    *violated*: both nodes served at once for longer than the clock error. That a pair without an arbiter
    cannot prevent it while the nodes do not hear each other makes it no less true that it happened.

Requests of plain Majordomo clients have no identity that lasts (``client`` begins with "mdp-"), so rules
about single requests leave them out, and say so. Requests are never shuffled: they are filtered, counted, and
asked for the list of clients that keep a journal.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.serving import CLOCK_ERROR_US, both_serving

__all__ = ["LATE_US", "audit"]

LATE_US = 1_000_000
"""A reply that was sent so long before the client gave up should have reached it."""

# Bits of silver.requests.evidence.
_NODE, _CLIENT, _WORKER = 1, 2, 4
# Numbers of requests that are named by a key begin here (BSN-G-14).
_KEYED_MIN = 1 << 62
# What the end of a journal may lack: records that waited to be written ...
_UNWRITTEN_US = 2_000_000
# ... and calls that had not ended yet.
_CALL_MAX_US = 60_000_000
_COLUMNS = (
    "rule STRING",
    "verdict STRING",
    "client STRING",
    "number BIGINT",
    "service STRING",
    "node STRING",
    "at_us BIGINT",
    "duration_us BIGINT",
    "count BIGINT",
    "text STRING",
    "day DATE",
    "pair STRING",
)


def audit(
    requests: DataFrame, runs: DataFrame, states: DataFrame, clock_error_us: int = CLOCK_ERROR_US
) -> DataFrame:
    """gold.audit of the silver tables."""
    found = _findings(_with_context(requests, runs))
    # Named one by one if violated, else counted.
    is_named = F.col("verdict") == "violated"
    names = [F.when(is_named, F.col(name)).alias(name) for name in ("client", "number", "node")]
    of_requests = found.groupBy("day", "pair", "rule", "verdict", "service", "text", *names).agg(
        F.count(F.lit(1)).alias("count"), F.min("at_us").alias("at_us")
    )
    parts = [
        of_requests,
        _coverage(requests),
        _gaps(runs, states),
        _both_active(states, runs, clock_error_us),
    ]
    return reduce(DataFrame.unionByName, [_shaped(part) for part in parts])


# --- single requests ----------------------------------------------------------------------------------------


def _with_context(requests: DataFrame, runs: DataFrame) -> DataFrame:
    """Requests, with whether their client keeps a journal, and per pair the times in which journals lack
    something: ``client_gaps``, ``worker_gaps`` and ``node_ends`` (arrays of structs since, until).
    """
    keepers = (
        requests.where(F.col("evidence").bitwiseAND(_CLIENT) != 0)
        .select("pair", "client", F.lit(True).alias("keeps"))
        .distinct()
    )
    last = F.col("last_at_us")
    is_full_of_holes = (F.col("missing") > 0) | (F.col("dropped") > 0)
    forever = F.lit(1 << 62)

    def gaps(source: str, condition: Column, since: Column, until: Column) -> Column:
        return F.collect_list(
            F.when(
                (F.col("source") == source) & condition, F.struct(since.alias("since"), until.alias("until"))
            )
        )

    of_pair = runs.groupBy("pair").agg(
        gaps(
            "client",
            F.col("is_sampled") | is_full_of_holes | ~F.col("is_clean"),
            F.when(F.col("is_sampled") | is_full_of_holes, F.col("started_at_us")).otherwise(
                last - _CALL_MAX_US
            ),
            forever,
        ).alias("client_gaps"),
        gaps(
            "worker",
            is_full_of_holes | ~F.col("is_clean"),
            F.when(is_full_of_holes, F.col("started_at_us")).otherwise(last - _UNWRITTEN_US),
            last + _CALL_MAX_US,
        ).alias("worker_gaps"),
        gaps("broker", ~F.col("is_clean"), last - _UNWRITTEN_US, last + _UNWRITTEN_US).alias("node_ends"),
        gaps(
            "broker", F.col("is_sampled") | is_full_of_holes, F.col("started_at_us"), last + _UNWRITTEN_US
        ).alias("node_gaps"),
    )
    known = requests.join(F.broadcast(keepers), ["pair", "client"], "left")
    return known.where(_is_suspect()).join(F.broadcast(of_pair), "pair", "left")


def _is_suspect() -> Column:
    """Whether any of the rules may have something to say about a request: of most there is nothing."""
    is_same_reply = F.array_contains("execution_crcs", F.col("reply_crc"))
    suspicions = (
        F.col("keeps") & (F.col("evidence").bitwiseAND(_CLIENT) == 0),
        F.col("executions") > 1,
        F.col("deliveries") > 1,
        F.col("answers") > 1,
        F.col("unmarked") > 0,
        ~F.col("call_outcome").isin("answered", "failed"),
        F.col("outcome").isin("returned", "late"),
        F.col("reply_crc").isNotNull()
        & (F.size("execution_crcs") > 0)
        & ~F.coalesce(is_same_reply, F.lit(False)),
    )
    return reduce(Column.__or__, (F.coalesce(one, F.lit(False)) for one in suspicions))


def _findings(requests: DataFrame) -> DataFrame:
    """One row for each request and rule that something is to be said about."""
    has_node = F.col("evidence").bitwiseAND(_NODE) != 0
    has_call = F.col("evidence").bitwiseAND(_CLIENT) != 0
    has_worker = F.col("evidence").bitwiseAND(_WORKER) != 0
    is_keyed = F.col("number") >= _KEYED_MIN
    call = F.col("call_outcome")
    executions, answers = F.coalesce("executions", F.lit(0)), F.coalesce("answers", F.lit(0))
    ended, accepted = F.col("ended_at_us"), F.col("accepted_at_us")
    at_node = F.when(
        has_node, F.format_string("%s recorded it as %s", F.col("node"), F.coalesce("outcome", F.lit("?")))
    ).otherwise(F.lit("no node recorded it"))
    by_worker = F.format_string("%d executions by workers are recorded", executions)

    def within(gaps: str, since: Column, until: Column) -> Column:
        """Does [since, until] touch one of the gaps?"""
        return F.coalesce(
            F.exists(gaps, lambda gap: (gap["since"] <= until) & (gap["until"] >= since)), F.lit(False)
        )

    # lost: the client never had an outcome.
    is_silent = ~has_call & F.coalesce("keeps", F.lit(False)) & ~is_keyed
    is_silent_unsure = within("client_gaps", accepted, ended)
    # lost: it waited in vain for an answer that a node had sent.
    is_in_vain = (
        (call == "timeout")
        & (answers > 0)
        & (F.coalesce("attempts", F.lit(1)) <= 1)
        & (F.col("call_total_us") - F.col("total_us") > LATE_US)
        & ~is_keyed
        & ~within("node_ends", accepted, accepted + F.col("call_total_us"))
    )
    # lost: a worker did it, and the node that had given it out never had an end of it.
    is_vanished = (
        (call == "timeout")
        & (executions > 0)
        & ~has_node
        & (F.coalesce("attempts", F.lit(1)) <= 1)
        & ~is_keyed
        & ~within("node_ends", accepted, ended)
        & ~within("node_gaps", accepted, ended)
    )
    is_denied = call.isin("busy", "rejected", "no-active") & ((executions > 0) | (answers > 0)) & ~is_keyed
    is_announced = call.isin("timeout", "unknown", "interrupted", "closed") & (has_node | has_worker)
    # executed-twice
    is_again = executions > 1
    is_forbidden = ~F.coalesce("is_idempotent", F.lit(True))
    is_unmarked = F.coalesce("unmarked", F.lit(0)) > 0
    deliveries = F.coalesce("deliveries", F.lit(0))
    is_given_again = (deliveries > 1) & ~is_again & ~is_keyed
    # crossed
    known = F.filter("execution_crcs", lambda crc: crc.isNotNull())
    is_crossed = (
        F.col("reply_crc").isNotNull() & (F.size(known) > 0) & ~F.array_contains(known, F.col("reply_crc"))
    )

    lost = (
        F.when(
            is_silent & ~is_silent_unsure,
            _finding(
                "lost",
                "violated",
                at_node,
                "; ",
                by_worker,
                "; its client's journal is whole and knows no outcome",
            ),
        )
        .when(
            is_silent,
            _finding(
                "lost", "unproven", "no outcome in the client's journal, which may lack something there"
            ),
        )
        .when(
            is_in_vain,
            _finding(
                "lost",
                "violated",
                "a node answered it after ",
                _ms("total_us"),
                " and lived on; its client, which had sent it once, was told timeout after ",
                _ms("call_total_us"),
            ),
        )
        .when(
            is_vanished,
            _finding(
                "lost", "violated", by_worker, "; no node recorded its end, and its client was told timeout"
            ),
        )
        .when(
            is_denied,
            _finding(
                "lost",
                "violated",
                "its client was told ",
                call,
                ", so not executed, but ",
                by_worker,
                " and ",
                answers,
                " answers by nodes",
            ),
        )
        .when(
            is_announced,
            _finding("lost", "excused", "the client was told that the outcome is not known: ", call),
        )
        .when(
            ~has_call & has_node & F.col("outcome").isin("returned", "late"),
            _finding(
                "lost",
                "unproven",
                "given back by a node, never seen at the other: only the client's journal could tell",
            ),
        )
    )
    twice = (
        F.when(is_again & is_keyed, _finding("executed-twice", "excused", "asked again by its key"))
        .when(
            is_again & is_forbidden,
            _finding(
                "executed-twice",
                "violated",
                "executed ",
                executions,
                " times, although its caller forbade to repeat it",
            ),
        )
        .when(
            is_unmarked,
            _finding(
                "executed-twice",
                "violated",
                "executed ",
                executions,
                " times; ",
                F.col("unmarked"),
                " runs after the first were not marked as repetitions",
            ),
        )
        .when(
            is_again & has_call,
            _finding("executed-twice", "excused", "a marked repetition of an idempotent call"),
        )
        .when(
            is_again,
            _finding(
                "executed-twice",
                "unproven",
                "a marked repetition: only the client's journal could tell whether it was allowed",
            ),
        )
        .when(
            is_given_again & is_forbidden,
            _finding(
                "executed-twice",
                "violated",
                "given to workers ",
                deliveries,
                " times, although its caller forbade to repeat it; ",
                by_worker,
            ),
        )
        .when(
            is_given_again & has_call,
            _finding("executed-twice", "excused", "an idempotent call, given to another worker"),
        )
        .when(
            is_given_again,
            _finding(
                "executed-twice",
                "unproven",
                "given to another worker: only the client's journal could tell whether it was allowed",
            ),
        )
    )
    answered = (
        F.when((answers > 1) & is_keyed, _finding("answered-twice", "excused", "asked again by its key"))
        .when(
            (answers > 1) & F.coalesce("is_repeated", F.lit(False)),
            _finding("answered-twice", "excused", "a marked repetition: the first answer had been lost"),
        )
        .when(
            answers > 1,
            _finding(
                "answered-twice",
                "violated",
                "nodes recorded ",
                answers,
                " answers to it, none of them marked as a repetition",
            ),
        )
    )
    crossed = F.when(
        is_crossed & ~within("worker_gaps", accepted, ended),
        _finding(
            "crossed",
            "violated",
            "its client got a reply with CRC-32 ",
            F.hex("reply_crc"),
            "; what workers answered to it has ",
            F.array_join(F.transform(known, F.hex), ", "),
        ),
    ).when(
        is_crossed,
        _finding("crossed", "unproven", "no recorded reply, but a worker's journal is incomplete there"),
    )
    return (
        requests.where(~F.col("client").startswith("mdp-"))
        .select(
            "day",
            "pair",
            "client",
            "number",
            "service",
            "node",
            F.coalesce(ended, accepted).alias("at_us"),
            F.explode(F.filter(F.array(lost, twice, answered, crossed), lambda one: one.isNotNull())).alias(
                "found"
            ),
        )
        .select("*", "found.*")
        .drop("found")
    )


def _finding(rule: str, verdict: str, *text: Column | str) -> Column:
    parts = [F.lit(part) if isinstance(part, str) else part.cast("string") for part in text]
    return F.struct(
        F.lit(rule).alias("rule"), F.lit(verdict).alias("verdict"), F.concat(*parts).alias("text")
    )


def _ms(column: str) -> Column:
    return F.format_string("%.1f ms", F.col(column) / 1000.0)


# --- what cannot be proven ----------------------------------------------------------------------------------


def _coverage(requests: DataFrame) -> DataFrame:
    """How many requests lack the journals that a rule needs."""
    evidence, is_plain = F.col("evidence"), F.col("client").startswith("mdp-")
    counts = requests.groupBy("day", "pair", "service").agg(
        F.min("accepted_at_us").alias("at_us"),
        F.count_if(is_plain).alias("plain"),
        F.count_if(~is_plain & (evidence.bitwiseAND(_CLIENT) == 0)).alias("no_call"),
        F.count_if(
            ~is_plain & (evidence.bitwiseAND(_WORKER) == 0) & F.col("outcome").isin("answered", "failed")
        ).alias("no_run"),
    )
    lines: Sequence[tuple[str, str, str]] = (
        ("lost", "plain", "of plain Majordomo clients, whose requests have no identity: nothing is checked"),
        ("lost", "no_call", "not in a client's journal: whether the client was told is not known"),
        ("executed-twice", "no_run", "not in a worker's journal: how often they were executed is not known"),
        ("crossed", "no_run", "not in a worker's journal: what was answered to them is not known"),
    )
    rows = F.array(
        *(
            F.struct(F.lit(rule).alias("rule"), F.col(column).alias("count"), F.lit(text).alias("text"))
            for rule, column, text in lines
        )
    )
    return (
        counts.select("day", "pair", "service", "at_us", F.explode(rows).alias("row"))
        .select("day", "pair", "service", "at_us", "row.*")
        .where("count > 0")
        .withColumn("verdict", F.lit("unproven"))
    )


def _gaps(runs: DataFrame, states: DataFrame) -> DataFrame:
    """Runs whose journals lack something, and nodes whose last moments nobody wrote down."""
    rule = F.when(F.col("source") == "client", "lost").when(F.col("source") == "worker", "executed-twice")
    lacking = F.array(
        F.struct(F.col("missing").alias("count"), F.lit("records that it wrote are not here").alias("text")),
        F.struct(F.col("dropped").alias("count"), F.lit("records it could not write in time").alias("text")),
        F.struct(
            F.when(F.col("is_sampled"), 1).otherwise(0).cast("bigint").alias("count"),
            F.lit("its records of requests are a sample").alias("text"),
        ),
    )
    of_runs = (
        runs.select("*", F.explode(lacking).alias("lack"))
        .where("lack.count > 0")
        .select(
            "day",
            "pair",
            "node",
            "service",
            rule.otherwise("answered-twice").alias("rule"),
            F.col("started_at_us").alias("at_us"),
            F.col("lack.count").alias("count"),
            F.concat("source", F.lit(" "), "node", F.lit(": "), "lack.text").alias("text"),
        )
    )
    killed = states.where("ended_by = 'kill'").select(
        F.to_date(F.timestamp_micros("until_at_us")).alias("day"),
        "pair",
        "node",
        F.lit("lost").alias("rule"),
        F.col("until_at_us").alias("at_us"),
        F.lit(1).alias("count"),
        F.concat(
            F.lit("broker "), "node", F.lit(" ended without a word: its last records may be missing")
        ).alias("text"),
    )
    return of_runs.unionByName(killed, allowMissingColumns=True).withColumn("verdict", F.lit("unproven"))


# --- the pair -----------------------------------------------------------------------------------------------


def _both_active(states: DataFrame, runs: DataFrame, clock_error_us: int) -> DataFrame:
    took_us = F.col("until_at_us") - F.col("since_at_us")
    return both_serving(states, runs, clock_error_us).select(
        F.lit("both-active").alias("rule"),
        F.lit("violated").alias("verdict"),
        "node",
        F.col("since_at_us").alias("at_us"),
        took_us.alias("duration_us"),
        F.lit(1).alias("count"),
        F.format_string(
            "%s (epoch %d) and %s (epoch %d) both served for %.1f ms",
            F.col("node"),
            F.col("epoch"),
            F.col("successor"),
            F.col("successor_epoch"),
            took_us / 1000.0,
        ).alias("text"),
        F.to_date(F.timestamp_micros("since_at_us")).alias("day"),
        "pair",
    )


def _shaped(part: DataFrame) -> DataFrame:
    """In the table's columns and types; what a finding has not is null."""
    columns = []
    for column in _COLUMNS:
        name, sort = column.split()
        value = F.col(name) if name in part.columns else F.lit(None)
        columns.append(value.cast(sort).alias(name))
    return part.select(*columns)
