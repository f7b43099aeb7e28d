"""Are we within our objectives? Rates, errors, percentiles and burn rates for each service and minute.

``sketches`` reads the records once and adds them up by service, minute, outcome, measure and bucket; that is
the only step that sees requests one by one, it needs no join, and what it makes can be added to what other
runs of it made. Everything else is computed from those sums. A request counts in the minute in which it
ended, by the wall clock of the node that recorded it.

**Whose view.** Of a service whose clients keep journals, requests and errors are its calls: what clients saw.
A call that was not answered (timeout, unknown, interrupted, no-active) is an error whatever the objective
names; ``busy`` is one if the objective names a reason of refusal. ``rejected``, ``closed`` and ``abandoned``
are the caller's doing and do not count. Of other services they are the nodes' requests. ``counted`` says
which.

Requests that a node gave back ("returned", and "late" after it) did not end there: they are in the records of
the node that answered them, and left out here. Percentiles and slowness are those of requests that a worker
finished; the rest has no meaningful times, and is an error anyway.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bstar.records.broker import FINISHED
from bstar.wire.refusals import OF_SERVICE
from bstar_pipeline import sketch
from bstar_pipeline.schema import table_schema
from bstar_pipeline.slo import Objective, Objectives

MEASURES = ("queued", "busy", "total")
SHARES = (0.5, 0.95, 0.99)
ENDED = (*FINISHED, "expired", "poison", "lost")
UNANSWERED = ("timeout", "unknown", "interrupted", "no-active")
"""Calls that ended so are errors."""

CALL_ENDED = (*FINISHED, "busy", *UNANSWERED)
CALL = "call"
"""The measure of calls: from the beginning of the call to its outcome."""

_MINUTE_US = 60_000_000
_KEY = ("day", "pair", "service", "minute")


def sketches(records: DataFrame) -> DataFrame:
    """gold.sketches of bronze records. One pass: rows are added up where they lie, only sums are shuffled."""
    ended = (F.col("kind") == "request") & F.col("outcome").isin(*ENDED)
    refused = (F.col("kind") == "refused") & F.col("reason").isin(*OF_SERVICE) & (F.col("service") != "")
    called = (F.col("kind") == "call") & F.col("outcome").isin(*CALL_ENDED)
    counted = records.where(F.col("topic").isin("requests", "calls", "events")).where(
        ended | refused | called
    )
    # Measures go by number until the sums are made: whole numbers are grouped faster than words.
    rows = counted.select(
        "pair",
        "service",
        F.expr(f"at DIV {_MINUTE_US}").alias("at_minute"),
        F.when(ended | called, F.col("outcome")).otherwise(F.col("reason")).alias("outcome"),
        F.when(ended | called, F.col("weight")).otherwise(F.col("count").cast("double")).alias("weight"),
        F.explode(
            F.when(ended, F.array(*(_entry(i, f"{name}_us") for i, name in enumerate(MEASURES))))
            .when(called, F.array(_entry(len(MEASURES), "total_us")))
            .otherwise(F.array(_entry(MEASURES.index("total"), "CAST(NULL AS BIGINT)")))
        ).alias("entry"),
    )
    sums = rows.groupBy(
        "pair",
        "service",
        "at_minute",
        "outcome",
        F.col("entry.measure").alias("measure"),
        F.col("entry.bucket").alias("bucket"),
    ).agg(sketch.total("weight").alias("weight"))
    minute = F.timestamp_micros(F.col("at_minute") * _MINUTE_US)
    names = F.array(*map(F.lit, (*MEASURES, CALL)))
    return sums.select(
        "service",
        minute.alias("minute"),
        "outcome",
        F.element_at(names, F.col("measure") + 1).alias("measure"),
        "bucket",
        "weight",
        F.to_date(minute).alias("day"),
        "pair",
    )


def _entry(measure: int, column: str) -> Column:
    return F.struct(F.lit(measure).alias("measure"), sketch.bucket(column).alias("bucket"))


def objectives(sketches: DataFrame, slo: Objectives | None = None) -> DataFrame:
    """gold.objectives of sketches, of one run or of many together."""
    slo = slo or Objectives()
    minutes = _minutes(sketches, slo)
    budget = 1 - _of(slo, lambda objective: objective.availability)
    slow_budget = 1 - _of(slo, lambda objective: objective.latency_share)
    error_share = F.col("errors") / F.col("requests")
    slow_share = F.col("slow") / F.nullif("finished", F.lit(0.0))

    def within(back_s: int, column: str) -> Column:
        window = (
            Window.partitionBy("pair", "service")
            .orderBy(F.unix_timestamp("minute"))
            .rangeBetween(60 - back_s, Window.currentRow)
        )
        return F.sum(column).over(window)

    def burn(back_s: int) -> Column:
        return within(back_s, "errors") / within(back_s, "requests") / budget

    burning = minutes.select(
        *_KEY,
        "requests",
        "counted",
        (F.col("requests") / 60).alias("rate"),
        "errors",
        error_share.alias("error_share"),
        slow_share.alias("slow_share"),
        *(f"{name}_p{share * 100:.0f}_us" for name in MEASURES for share in SHARES),
        (error_share / budget).alias("burn_rate"),
        (slow_share / slow_budget).alias("slow_burn_rate"),
        burn(300).alias("burn_5m"),
        burn(3600).alias("burn_1h"),
        burn(21_600).alias("burn_6h"),
        (within(3600, "requests") >= slo.alert_requests).alias("has_1h"),
        (within(21_600, "requests") >= slo.alert_requests).alias("has_6h"),
    )
    alert = F.when(
        F.col("has_1h") & (F.col("burn_1h") >= slo.fast_burn) & (F.col("burn_5m") >= slo.fast_burn),
        F.lit("fast"),
    ).when(
        F.col("has_6h") & (F.col("burn_6h") >= slo.slow_burn) & (F.col("burn_1h") >= slo.slow_burn),
        F.lit("slow"),
    )
    return burning.withColumn("alert", alert).select(*table_schema("gold.objectives").names)


def budgets(sketches: DataFrame, slo: Objectives | None = None) -> DataFrame:
    """gold.budgets of sketches: what each day brought, and what its period has used up."""
    slo = slo or Objectives()
    days = (
        _minutes(sketches, slo, with_percentiles=False)
        .groupBy("day", "pair", "service", "counted")
        .agg(*(sketch.total(name).alias(name) for name in ("requests", "errors", "slow", "finished")))
    )
    period = (
        Window.partitionBy("pair", "service")
        .orderBy(F.unix_date("day"))
        .rangeBetween(1 - slo.period_days, Window.currentRow)
    )
    summed = days.select(
        "*",
        *(
            F.sum(name).over(period).alias(f"period_{name}")
            for name in ("requests", "errors", "slow", "finished")
        ),
        _of(slo, lambda objective: objective.availability).alias("availability"),
        _of(slo, lambda objective: objective.latency_us).cast("bigint").alias("latency_us"),
        _of(slo, lambda objective: objective.latency_share).alias("latency_share"),
    )
    used = F.col("period_errors") / F.col("period_requests") / (1 - F.col("availability"))
    slow_used = F.coalesce(
        F.col("period_slow") / F.nullif("period_finished", F.lit(0.0)) / (1 - F.col("latency_share")),
        F.lit(0.0),
    )
    columns = {"budget_used": used, "slow_budget_used": slow_used, "is_kept": (used <= 1) & (slow_used <= 1)}
    return summed.withColumns(columns).select(*table_schema("gold.budgets").names)


def _minutes(sketches: DataFrame, slo: Objectives, with_percentiles: bool = True) -> DataFrame:
    """One row for each service and minute: counted, requests, errors, finished, slow, and the percentiles."""
    finished = F.col("outcome").isin(*FINISHED)
    is_call = F.col("measure") == CALL
    has_calls = F.max(is_call).over(Window.partitionBy("day", "pair", "service"))
    error = F.when(is_call, _is_failed_call(slo)).otherwise(_is_error(slo))
    # Refusals that the objective does not count as errors are no requests either: they came again.
    ended = F.when(is_call, F.col("outcome").isin(*CALL_ENDED)).otherwise(
        F.col("outcome").isin(*ENDED) | error
    )
    rows = sketches.where(ended).withColumn("has_calls", has_calls)
    # What requests and errors are counted by, and the total time.
    is_total = F.col("measure") == F.when(F.col("has_calls"), CALL).otherwise("total")
    buckets = rows.groupBy(*_KEY, "has_calls", "measure", "bucket")
    sums = buckets.agg(
        sketch.millionths("weight").alias("weight"),
        sketch.millionths(F.when(error, F.col("weight")).otherwise(0.0)).alias("errors"),
        sketch.millionths(F.when(finished, F.col("weight")).otherwise(0.0)).alias("finished"),
    )
    border = _of(slo, lambda objective: sketch.bucket_of(objective.latency_us))
    counts = [
        (F.sum(F.when(condition, F.col(column)).otherwise(0)) / 1e6).alias(name)
        for name, column, condition in (
            ("requests", "weight", is_total),
            ("errors", "errors", is_total),
            ("finished", "finished", is_total),
            ("slow", "finished", is_total & (F.col("bucket") > border)),
        )
    ]
    counted = F.when(F.col("has_calls"), "calls").otherwise("requests").alias("counted")
    if not with_percentiles:
        return sums.groupBy(*_KEY, "has_calls").agg(*counts).where("requests > 0").select("*", counted)
    whole = Window.partitionBy(*_KEY, "measure")
    running = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = sums.select(
        "*", F.sum("finished").over(running).alias("running"), F.sum("finished").over(whole).alias("whole")
    )
    measured = {name: F.col("measure") == name for name in MEASURES} | {"total": is_total}
    quantiles = [
        sketch.percentile(share, F.when(condition, F.col("bucket")), F.col("running"), F.col("whole")).alias(
            f"{name}_p{share * 100:.0f}"
        )
        for name, condition in measured.items()
        for share in SHARES
    ]
    grouped = ranked.groupBy(*_KEY, "has_calls").agg(*counts, *quantiles).where("requests > 0")
    return grouped.select(
        *_KEY,
        counted,
        "requests",
        "errors",
        "finished",
        "slow",
        *(
            sketch.value(f"{name}_p{share * 100:.0f}").alias(f"{name}_p{share * 100:.0f}_us")
            for name in MEASURES
            for share in SHARES
        ),
    )


def _is_error(slo: Objectives) -> Column:
    """Whether a node's outcome, or its reason of refusal, is an error of the row's service."""
    error = F.lit(False)
    for service, objective in slo.services.items():
        error = error | ((F.col("service") == service) & F.col("outcome").isin(*objective.errors))
    of_default = F.col("outcome").isin(*slo.default.errors)
    return error | (~F.col("service").isin(*slo.services) & of_default if slo.services else of_default)


def _is_failed_call(slo: Objectives) -> Column:
    """The same of a call's outcome."""
    busy = _of(slo, lambda objective: not set(objective.errors).isdisjoint(OF_SERVICE))
    failed = _of(slo, lambda objective: "failed" in objective.errors)
    outcome = F.col("outcome")
    return outcome.isin(*UNANSWERED) | ((outcome == "busy") & busy) | ((outcome == "failed") & failed)


def _of(slo: Objectives, field: Callable[[Objective], float]) -> Column:
    """A field of the objective that the row's service has."""
    chosen = F.lit(field(slo.default))
    for name, objective in slo.services.items():
        chosen = F.when(F.col("service") == name, F.lit(field(objective))).otherwise(chosen)
    return chosen
