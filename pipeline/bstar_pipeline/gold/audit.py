"""Was every accepted request answered once, and did one node serve at a time? One row for each finding.

``gold.rules`` judges single requests. A violated rule names its request; excused and unproven requests are
counted, in one row for each pair, day, service and reason. Further rows say what the journals cannot prove,
and *both-active* (guarantee 3): both nodes served at once for longer than the clock error, which breaks the
guarantee also where a pair without an arbiter cannot prevent it.

Requests are never shuffled: they are filtered, counted, and joined with the clients that keep a journal.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar_pipeline.gold.rules import findings
from bstar_pipeline.gold.serving import CLOCK_ERROR_US, both_serving

# Bits of silver.requests.evidence.
_CLIENT, _WORKER = 2, 4
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
    found = findings(_with_context(requests, runs))
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
