"""Was every accepted request answered once, and did one node serve at a time? One row for each finding.

``gold.rules`` judges single requests. A violated rule names its request; excused and unproven requests are
counted, in one row for each pair, minute, service and reason: the first of them ended at ``at_us``, the last
``duration_us`` later. ``gold.nodes`` has what is found about processes.

Requests are never shuffled: they are filtered, counted, and joined with the clients that keep a journal.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar.records.broker import FINISHED
from bstar_pipeline.gold.rules import DURABLE_NUMBER, findings
from bstar_pipeline.schema import shaped

# Bits of silver.requests.evidence.
_NODE, _CLIENT, _WORKER = 1, 2, 4
_FOREVER = 1 << 62
# What the end of a journal may lack: records that waited to be written ...
_UNWRITTEN_US = 2_000_000
# ... and calls that had not ended yet.
_CALL_MAX_US = 60_000_000

_MINUTE_US = 60_000_000

_IS_ENDED = f"outcome IN {FINISHED}"
# What a rule cannot be proven for: the rule, the condition of such requests, and why.
_UNCOVERED = (
    (
        "lost",
        "client LIKE 'mdp-%'",
        "of plain Majordomo clients, whose requests have no identity: nothing is checked",
    ),
    (
        "lost",
        # The client of a durable request's attempts is the store.
        f"client NOT LIKE 'mdp-%' AND number <> {DURABLE_NUMBER} AND evidence & {_CLIENT} = 0",
        "not in a client's journal: whether the client got an answer is not known",
    ),
    (
        "executed-twice",
        f"client NOT LIKE 'mdp-%' AND evidence & {_WORKER} = 0 AND {_IS_ENDED}",
        "not in a worker's journal: how often they were executed is not known",
    ),
    (
        "answered-twice",
        f"client NOT LIKE 'mdp-%' AND number < {DURABLE_NUMBER} AND evidence & {_NODE} = 0 AND {_IS_ENDED}",
        "not in a node's journal: how often they were answered is not known",
    ),
    (
        "crossed",
        f"client NOT LIKE 'mdp-%' AND evidence & {_WORKER} = 0 AND {_IS_ENDED}",
        "not in a worker's journal: what was answered to them is not known",
    ),
)


def audit(requests: DataFrame, runs: DataFrame, further: Sequence[DataFrame] = ()) -> DataFrame:
    """gold.audit of the silver tables, with ``further`` rows of it."""
    found = findings(_with_context(requests, runs))
    # Named one by one if violated, else counted.
    is_named = F.col("verdict") == "violated"
    names = [F.when(is_named, F.col(name)).alias(name) for name in ("client", "number", "node")]
    of_requests = found.groupBy(
        "day", "pair", "rule", "verdict", "service", "text", _minute("at_us"), *names
    ).agg(F.count(F.lit(1)).alias("count"), F.min("at_us").alias("at_us"), _lasted("at_us"))
    parts = [of_requests, _coverage(requests), *further]
    return reduce(DataFrame.unionByName, [shaped(part, "gold.audit") for part in parts])


def _minute(at_us: str) -> Column:
    return F.expr(f"({at_us}) DIV {_MINUTE_US}").alias("minute")


def _lasted(at_us: str) -> Column:
    """From the first to the last of several; null of one."""
    return F.expr(f"nullif(max({at_us}) - min({at_us}), 0)").alias("duration_us")


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
    holes = "(missing > 0 OR dropped > 0 OR conflicts > 0)"

    def gaps(name: str, source: str, condition: str, since: str, until: str) -> Column:
        gap = f"if({condition}, struct({since} AS since, {until} AS until), NULL)"
        # What it wrote before its first record here was of an earlier time.
        early = "if(before > 0, struct(0L AS since, started_at_us AS until), NULL)"
        there = f"filter(array({gap}, {early}), gap -> gap IS NOT NULL)"
        of_source = f"if(source IN ('{source}', 'unknown'), {there}, NULL)"
        return F.expr(f"flatten(collect_list({of_source})) AS {name}")

    of_pair = runs.groupBy("pair").agg(
        gaps(
            "client_gaps",
            "client",
            f"is_sampled OR {holes} OR NOT is_clean",
            f"if(is_sampled OR {holes}, started_at_us, last_at_us - {_CALL_MAX_US})",
            f"{_FOREVER}",
        ),
        gaps(
            "worker_gaps",
            "worker",
            f"{holes} OR NOT is_clean",
            f"if({holes}, started_at_us, last_at_us - {_UNWRITTEN_US})",
            f"last_at_us + {_CALL_MAX_US}",
        ),
        gaps(
            "node_ends",
            "broker",
            "NOT is_clean",
            f"last_at_us - {_UNWRITTEN_US}",
            f"last_at_us + {_UNWRITTEN_US}",
        ),
        gaps(
            "node_gaps", "broker", f"is_sampled OR {holes}", "started_at_us", f"last_at_us + {_UNWRITTEN_US}"
        ),
    )
    known = requests.join(F.broadcast(keepers), ["pair", "client"], "left")
    return known.where(_is_suspect()).join(F.broadcast(of_pair), "pair", "left")


def _is_suspect() -> Column:
    """Whether any of the rules may have something to say about a request: of most there is nothing."""
    suspicions = (
        f"keeps AND evidence & {_CLIENT} = 0",
        "executions > 1",
        "deliveries > 1",
        "answers > 1",
        "calls > 1",
        "unmarked > 0",
        f"call_outcome NOT IN {FINISHED}",
        "outcome IN ('returned', 'late')",
        (
            "reply_crc IS NOT NULL AND size(execution_crcs) > 0 "
            "AND NOT coalesce(array_contains(execution_crcs, reply_crc), false)"
        ),
    )
    return F.expr(" OR ".join(f"coalesce({each}, false)" for each in suspicions))


# --- what cannot be proven ----------------------------------------------------------------------------------


def _coverage(requests: DataFrame) -> DataFrame:
    """How many requests lack the journals that a rule needs, and when they ended."""
    reasons = [
        F.when(
            F.expr(condition),
            F.struct(
                F.lit(rule).alias("rule"), F.lit("unproven").alias("verdict"), F.lit(text).alias("text")
            ),
        )
        for rule, condition, text in _UNCOVERED
    ]
    at_us = F.coalesce("ended_at_us", "accepted_at_us").alias("at_us")
    lacking = F.filter(F.array(*reasons), lambda one: one.isNotNull())
    # Of most requests nothing is lacking: that is found without making arrays.
    some = requests.where(" OR ".join(f"({condition})" for _, condition, _ in _UNCOVERED))
    rows = some.select("day", "pair", "service", at_us, F.explode(lacking).alias("found"))
    return (
        rows.select("*", "found.*")
        .groupBy("day", "pair", "rule", "verdict", "service", "text", _minute("at_us"))
        .agg(F.count(F.lit(1)).alias("count"), F.min("at_us").alias("at_us"), _lasted("at_us"))
    )
