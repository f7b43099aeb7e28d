"""Do both engines come to the same numbers? Every row and column of every table that both have made."""

from dataclasses import dataclass
from pathlib import Path

import duckdb

# Sums of doubles depend on their order; whole numbers, words and times must be equal.
RELATIVE_ERROR_MAX = 1e-9

KEYS = {
    "sketches": ("pair", "service", "minute", "outcome", "measure", "bucket"),
    "objectives": ("pair", "service", "minute"),
    "capacity": ("pair", "service", "hour"),
    "clients": ("day", "pair", "client"),
    "outcomes": ("day", "pair", "service", "outcome"),
    "audit": ("day", "pair", "service", "rule", "verdict", "client", "number"),
}
# Where Spark's side is not simply the gold table of that name. The audit's other rules need more than the
# records of nodes.
_OUTCOMES = """
    SELECT day, pair, service, outcome, count(*) AS requests,
        sum(node_records)::BIGINT AS node_records, sum(answers)::BIGINT AS answers
    FROM {0} GROUP BY ALL
"""
_AUDIT = """
    SELECT day, pair, service, rule, verdict, client, number, sum(count)::BIGINT AS times
    FROM {0}
    WHERE service IS NOT NULL AND (rule = 'answered-twice' OR rule = 'lost' AND verdict = 'unproven')
    GROUP BY ALL
"""
_SOURCES = {"outcomes": ("silver/requests", _OUTCOMES), "audit": ("gold/audit", _AUDIT)}


@dataclass(frozen=True, slots=True)
class Difference:
    """``rows`` of a table differ in a column; of column "" they are in one table only."""

    table: str
    column: str
    rows: int


def compare(spark: Path, duck: Path, memory: str = "4GB") -> tuple[dict[str, int], list[Difference]]:
    """Rows of each table, and what differs. ``spark``: the root of the pipeline's tables; ``duck``: DuckDB's
    folder. Columns that only Spark has are left out.
    """
    database = duckdb.connect()
    database.execute(f"SET memory_limit = '{memory}'; SET TimeZone = 'UTC'")
    rows: dict[str, int] = {}
    differences: list[Difference] = []
    for table, key in KEYS.items():
        path, query = _SOURCES.get(table, (f"gold/{table}", "FROM {0}"))
        source = (
            f"read_parquet('{spark}/{path}/*/*/*.parquet', hive_partitioning = true, "
            "hive_types = {'day': DATE, 'pair': VARCHAR})"
        )
        database.execute(f"CREATE VIEW s_{table} AS {query.format(source)}")
        database.execute(f"CREATE VIEW d_{table} AS FROM '{duck}/{table}.parquet'")
        columns = dict(
            database.execute(f"SELECT column_name, column_type FROM (DESCRIBE d_{table})").fetchall()
        )
        both = " AND ".join(
            f"{_value(f's.{name}', columns[name])} IS NOT DISTINCT FROM {_value(f'd.{name}', columns[name])}"
            for name in key
        )
        checks = {
            name: _differ(f"s.{name}", f"d.{name}", kind) for name, kind in columns.items() if name not in key
        }
        counted = ", ".join(
            f"count(*) FILTER (s.pair IS NOT NULL AND d.pair IS NOT NULL AND {check})"
            for check in checks.values()
        )
        found = database.execute(
            f"SELECT count(*), count(*) FILTER (s.pair IS NULL OR d.pair IS NULL), {counted} "
            f"FROM s_{table} s FULL JOIN d_{table} d ON {both}"
        ).fetchone()
        assert found is not None
        rows[table] = found[0]
        differences += [
            Difference(table, name, count)
            for name, count in zip(["", *checks], found[1:], strict=True)
            if count
        ]
    return rows, differences


def _value(name: str, kind: str) -> str:
    """Spark writes moments, DuckDB plain timestamps; both mean UTC."""
    return f"epoch_us({name})" if kind.startswith("TIMESTAMP") else name


def _differ(left: str, right: str, kind: str) -> str:
    left, right = _value(left, kind), _value(right, kind)
    if kind != "DOUBLE":
        return f"{left} IS DISTINCT FROM {right}"
    return (
        f"(({left} IS NULL) != ({right} IS NULL) OR "
        f"abs({left} - {right}) > {RELATIVE_ERROR_MAX} * greatest(abs({left}), abs({right})))"
    )
