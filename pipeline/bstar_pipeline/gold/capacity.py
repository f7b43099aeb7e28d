"""The utilisation of workers, and when they will be too few.

A node's load records have, for an interval, how long workers held requests (busy) and how many they take at
once (credit). busy / (credit × interval) is the utilisation. Only the node that serves counts. Workers
register at both nodes, and are idle at the passive one. A node's last record of its state before the load
record says which one it was.

The forecast is a straight line through the utilisation of all hours of the input, by least squares. It knows
nothing of weekdays and holidays: give it whole weeks. Fewer than two days give none, because then the rhythm
of a day looks like a trend.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from bstar_pipeline.partitions import Made, Stored, queried
from bstar_pipeline.schema import table_schema

HOURS_MIN = 48
"""With fewer hours there is no forecast."""

# Beyond a year a straight line says nothing.
_AHEAD_MAX_S = 365 * 86_400
_HOUR_US = 3_600_000_000
_CARRIED = (
    "kind", "pair", "boot", "seq", "at", "service", "state", "new", "interval_us", "workers", "credit",
    "busy_us", "accepted", "queued",
)  # fmt: skip


def capacity(records: Stored, before: Stored | None = None) -> Made:
    """gold.capacity of bronze records: one row for each service and hour in which a node served it.

    The line goes through the hours of ``before``, too: the table of earlier days.
    """
    is_told = "kind IN ('load', 'pulse', 'state', 'active', 'inactive')"
    unknown = ("CAST(NULL AS DOUBLE) AS utilisation", "CAST(NULL AS TIMESTAMP) AS hour")
    rows = records.take(*_CARRIED, *unknown, where=is_told)
    known = None if before is None else before.take("pair", "service", "utilisation", "hour")
    return queried(rows.joined(known).here, ("pair",), _SQL, table_schema("gold.capacity"))


def _mean(column: str) -> str:
    """Over time: each record weighs as much as its interval is long."""
    return f"sum({column} * interval_us) / sum(interval_us) AS {column}"


# Of unknown state only those nodes count that had work. Hours are counted from the last one: with seconds
# since 1970 the intercept would be far away. Rounded to the minute: more would be pretence.
_SQL = f"""
WITH told AS (
    SELECT * REPLACE (coalesce("at", epoch_us(hour)) AS "at"), last_value(
        CASE kind WHEN 'active' THEN true WHEN 'inactive' THEN false
            WHEN 'pulse' THEN lower(state) = 'active' WHEN 'state' THEN lower(new) = 'active' END
        IGNORE NULLS) OVER (PARTITION BY pair, boot ORDER BY seq ROWS UNBOUNDED PRECEDING) AS is_serving
    FROM rows
),
hours AS (
    SELECT pair, service, "at" // {_HOUR_US} * {_HOUR_US} AS hour_us,
        {_mean("workers")}, {_mean("credit")},
        coalesce(any_value(utilisation), sum(busy_us) / nullif(sum(credit * interval_us), 0)) AS utilisation,
        max(busy_us / nullif(credit * interval_us, 0)) AS peak,
        sum(accepted) / sum(interval_us) * 1e6 AS arrivals_per_s,
        {_mean("queued")}, max(queued) AS queued_max,
        regr_slope(queued, ("at" - "at" // {_HOUR_US} * {_HOUR_US}) / 1e6
            ORDER BY "at", boot, seq) AS queue_growth_per_s
    FROM told
    WHERE utilisation IS NOT NULL OR (kind = 'load' AND interval_us > 0
        AND coalesce(is_serving, busy_us > 0 OR accepted > 0 OR queued > 0))
    GROUP BY pair, service, hour_us
),
placed AS (
    SELECT *, max(hour_us) OVER (PARTITION BY pair, service) AS last_us, (hour_us - last_us) / 1e6 AS after_s
    FROM hours
),
lines AS (
    SELECT *, count(utilisation) OVER of_service >= {HOURS_MIN} AS is_known,
        if(is_known, regr_slope(utilisation, after_s) OVER of_service, NULL) AS slope,
        (1 - regr_intercept(utilisation, after_s) OVER of_service) / nullif(slope, 0) AS until_s
    FROM placed WINDOW of_service AS (
        PARTITION BY pair, service ORDER BY hour_us ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
)
SELECT service, make_timestamp(hour_us) AS hour, workers, credit, utilisation, peak, arrivals_per_s, queued,
    queued_max, queue_growth_per_s, slope * 86_400,
    if(slope > 0 AND until_s <= {_AHEAD_MAX_S},
        make_timestamp((round((last_us / 1e6 + until_s) / 60) * 60_000_000)::BIGINT), NULL),
    hour::DATE AS day, pair
FROM lines
"""
