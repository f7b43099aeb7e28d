"""What came twice: files that are copies of others, and records that stand in two files.

A file may come twice: as a copy, or once while it was written and again sealed. Every record has a number in
its run (``boot``, ``seq``), so ``ranges`` tells from the first and the last number in each file whether files
overlap, without comparing rows. Of pairs in which some do, ``once`` leaves each record once, by its key.

A virtual machine that is restored from a snapshot goes on twice with one ``boot``: then two different records
have one number. Their monotonic times differ, so both stay.
"""

# ruff: noqa: S608 - all that is put into queries are constants

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from bstar_pipeline.bronze import JOURNAL, TRUNCATED, with_journal
from bstar_pipeline.journal_files import about_name
from bstar_pipeline.partitions import Made, Row, Rows, Stored, grouped, queried, text
from bstar_pipeline.schema import RECORDS
from bstar_pipeline.tables import utc

KEY = ("boot", "seq", "mono")
"""What tells records apart."""

_OF_RECORD = ("pair", "node", "boot", "seq", '"at"', "kind")
_PLACE = pa.schema({"file": pa.string(), "place": pa.int64()})


def ranges(lines: Stored) -> Rows:
    """Where each file stands among its run's records: a row for each ``file`` and ``boot``; few rows.

    ``boot`` is null in the row of a file's rejected lines; ``cuts`` counts ends that are missing.
    """
    return sorted(summed(lines).summed(_IN_ALL), key=_order)


def summed(lines: Stored) -> Made:
    """``ranges`` of each partition, to be added up."""
    return queried(lines.take(*_CARRIED), (), _RANGES)


_CARRIED = ("file", "pair", "node", "boot", "topic", "rejection", "seq", "at", "kind", "lines")
_KEYS = "file, pair, node, boot"
# One file may be several that somebody put together.
_RANGES = f"""
WITH told AS (
    SELECT * REPLACE ({", ".join(f"if(rejection IS NULL, {name}, NULL) AS {name}" for name in _OF_RECORD)})
    FROM rows
)
SELECT {_KEYS}, count(*) FILTER (topic <> '{TRUNCATED}') AS read,
    count(*) FILTER (topic = '{TRUNCATED}') AS cuts, min(seq) AS first_seq, max(seq) AS last_seq,
    min("at") AS first_at_us, max("at") AS last_at_us,
    sum(lines + 1) FILTER (kind = 'closed')::BIGINT AS closed_lines
FROM told GROUP BY {_KEYS}
"""
_IN_ALL = f"""
SELECT {_KEYS}, sum(read)::BIGINT AS lines, sum(cuts)::BIGINT AS cuts, min(first_seq) AS first_seq,
    max(last_seq) AS last_seq, min(first_at_us) AS first_at_us, max(last_at_us) AS last_at_us,
    sum(closed_lines)::BIGINT AS closed_lines
FROM rows GROUP BY {_KEYS}
"""


def _order(row: Row) -> tuple[Any, ...]:
    """Of two files with the same records the first one keeps them: the longer one, then a sealed one."""
    first, last = row["first_seq"] or 0, row["last_seq"] or 0
    return row["boot"] or "", first, -last, -row["lines"], -(row["closed_lines"] or 0), row["file"]


def overlapping(found: Rows) -> set[str]:
    """The pairs in which records may have come twice."""
    pairs: set[str] = set()
    for rows in grouped((row for row in found if row["boot"] is not None), "boot").values():
        reached = 0
        for row in sorted(rows, key=lambda row: row["first_seq"]):
            is_repeating = row["lines"] > row["last_seq"] - row["first_seq"] + 1
            if is_repeating or row["first_seq"] <= reached:
                pairs.update(each["pair"] for each in rows)
            reached = max(reached, row["last_seq"])
    return pairs


def once(lines: Stored, found: Rows, pairs: Collection[str], known: Stored) -> Made:
    """The records of these pairs that are not ``known``, each once, with their journal: that of the first
    file in order.
    """
    order = dict.fromkeys(row["file"] for row in found if row["boot"] is not None)
    places = [{"file": file, "place": place} for place, file in enumerate(order)]
    is_asked = f"pair IN ({', '.join(map(text, sorted(pairs)))})"
    rows = lines.take(*RECORDS.names, "false AS is_known", where=f"rejection IS NULL AND {is_asked}")
    rows = rows.joined(known.take(*KEY, "true AS is_known", where=is_asked))
    tables = {"places": pa.Table.from_pylist(places, _PLACE)}
    return queried(rows, KEY, _ONCE, with_journal(RECORDS), tables=tables)


_NAMES = ", ".join(f'"{name}"' for name in RECORDS.names)
_ONCE = f"""
WITH firsts AS (
    SELECT rows.* FROM rows LEFT JOIN places USING (file)
    QUALIFY row_number() OVER (
        PARTITION BY {", ".join(KEY)} ORDER BY is_known DESC, place, "at", kind
    ) = 1
)
SELECT {_NAMES}, {JOURNAL} AS journal FROM firsts WHERE NOT is_known
"""


def files(found: Rows, listing: Iterable[str], left: Rows) -> Iterator[dict[str, Any]]:
    """Rows of the table of files: one for each of ``listing``, even if no line of it was read.

    ``left``: ``ranges`` of the records that are kept. A packed file that is whole without a last record was
    packed by its writer's successor.
    """
    of_file = grouped(found, "file")
    stays: Counter[str] = Counter()
    for row in left:
        stays[row["file"]] += row["lines"] if row["boot"] is not None else 0
    for file in listing:
        rows = of_file[file]
        runs = [row for row in rows if row["boot"] is not None]
        lines = sum(row["lines"] for row in rows)
        records = sum(row["lines"] for row in runs)
        closed = [row["closed_lines"] for row in runs if row["closed_lines"] is not None]
        if runs and not stays[file]:
            state = "duplicate"
        elif closed and sum(closed) == lines:
            state = "whole"
        elif closed or any(row["cuts"] for row in rows):
            state = "truncated"
        else:
            state = "open"
        pair, day = about_name(file)
        first_at_us = min((row["first_at_us"] for row in runs), default=None)
        yield {
            "file": file,
            "state": state,
            "lines": lines,
            "rejected": lines - records,
            "duplicates": records - stays[file],
            "pair": max((row["pair"] for row in runs), default=pair),
            "node": max((row["node"] for row in runs), default=None),
            "boot": max((row["boot"] for row in runs), default=None),
            "first_seq": min((row["first_seq"] for row in runs), default=None),
            "last_seq": max((row["last_seq"] for row in runs), default=None),
            "first_at_us": first_at_us,
            "last_at_us": max((row["last_at_us"] for row in runs), default=None),
            "day": day if first_at_us is None else utc(first_at_us).date(),
        }
