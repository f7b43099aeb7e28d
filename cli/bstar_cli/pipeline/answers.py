"""``bstar pipeline report``, ``audit``, ``incidents`` and ``objectives``: what the tables answer."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import typer

from bstar.errors import ConfigurationError
from bstar_cli import exits
from bstar_cli.options import check_folder
from bstar_cli.pipeline.spark import (
    NOTHING,
    JsonOption,
    RootArgument,
    Selection,
    SparkOptions,
    print_json,
    print_table,
    say,
)
from bstar_pipeline.amounts import of_tables
from bstar_pipeline.report import asking
from bstar_pipeline.report.asking import ASKED
from bstar_pipeline.report.content import Finding, Incident, Objective
from bstar_pipeline.report.reading import Tables, open_tables
from bstar_pipeline.report.words import (
    alerts,
    budget_used,
    date_and_time,
    did,
    duration,
    judge,
    promised,
    share,
)
from bstar_pipeline.tables import TABLES

_Item = TypeVar("_Item")


class Column(NamedTuple, Generic[_Item]):
    """``kind``: "" text, "n" number. ``cell``: of an item."""

    label: str
    kind: Literal["", "n"]
    cell: Callable[[_Item], str]


_STYLES = {"violated": "bold red", "unproven": "yellow", "passed": "green", "empty": "yellow"}


def _worst_minute(each: Objective) -> str:
    if not each.worst_burn_rate:
        return NOTHING
    return f"{each.worst_burn_rate:.2g} at {date_and_time(each.worst_at_us, to='minutes')}"


_FINDINGS: tuple[Column[Finding], ...] = (
    Column("verdict", "", lambda each: each.verdict),
    Column("rule", "", lambda each: each.rule),
    Column("count", "n", lambda each: f"{each.count:,}"),
    Column("pair", "", lambda each: each.pair),
    Column("when (UTC)", "", lambda each: date_and_time(each.at_us, to="ms")),
    Column("for", "n", lambda each: duration(each.duration_us)),
    Column("request", "", lambda each: each.request),
    Column("service", "", lambda each: each.service),
    Column("node", "", lambda each: each.node),
    Column("text", "", lambda each: each.text),
)
_INCIDENTS: tuple[Column[Incident], ...] = (
    Column("when (UTC)", "", lambda each: date_and_time(each.began_at_us, to="ms")),
    Column("pair", "", lambda each: each.pair),
    Column("what", "", did),
    Column("successor", "", lambda each: each.successor or NOTHING),
    Column("outage", "n", lambda each: duration(each.outage_us)),
    Column("detected", "n", lambda each: duration(each.detection_us)),
    Column("taken over", "n", lambda each: duration(each.takeover_us)),
    Column("retried", "n", lambda each: f"{each.retried:,}"),
    Column("refused", "n", lambda each: f"{each.refused:,}"),
    Column("unknown", "n", lambda each: f"{each.unknown:,}"),
    Column("cause", "", lambda each: each.cause),
)
_OBJECTIVES: tuple[Column[Objective], ...] = (
    Column("pair", "", lambda each: each.pair),
    Column("service", "", lambda each: each.service),
    Column("requests", "n", lambda each: f"{each.requests:,.0f}"),
    Column("errors", "n", lambda each: share(each.error_share)),
    Column("p50", "n", lambda each: duration(each.p50_us)),
    Column("p95", "n", lambda each: duration(each.p95_us)),
    Column("p99", "n", lambda each: duration(each.p99_us)),
    Column("objective", "", lambda each: promised(each.promise) or NOTHING),
    Column("budget used", "n", lambda each: budget_used(each.promise)),
    Column("burn rate", "n", lambda each: NOTHING if each.burn_rate is None else f"{each.burn_rate:.2g}"),
    Column("worst minute (UTC)", "", _worst_minute),
    Column("alerts", "", lambda each: alerts(each) or NOTHING),
)


@contextmanager
def _tables(
    what: str,
    spark: SparkOptions,
    root: str,
    selection: Selection,
    names: Iterable[str] = TABLES,
    *,
    is_of_one_pair: bool = False,
) -> Iterator[tuple[Tables, Callable[[str], None]]]:
    """The tables that a question is about, and what tells people its progress. It reads ``names``."""
    keywords = selection.keywords()
    with (
        spark.session(what, lambda: of_tables(root, names)) as (session, tell),
        open_tables(session, root, **keywords, is_of_one_pair=is_of_one_pair) as tables,
    ):
        yield tables, tell


def _print(
    columns: Sequence[Column[_Item]], items: Sequence[_Item], *, as_json: bool, is_dense: bool = False
) -> None:
    """Print the items as a table if there are any, or each as one JSON object."""
    if as_json:
        for item in items:
            print_json(item)
    elif items:
        headings = [column.label for column in columns]
        right = [number for number, column in enumerate(columns) if column.kind == "n"]
        rows = [[column.cell(item) for column in columns] for item in items]
        print_table(headings, rows, right=right, is_dense=is_dense)


def report(
    root: RootArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    *,
    selection: Selection,
    as_json: JsonOption = False,
    spark: SparkOptions,
) -> None:
    """Write one HTML page about a pair: what happened, and what will be needed.

    The page needs no network, and its first screen answers what a person on call asks. It is of one pair:
    name it if the tables are about several. Its path is printed.

    Exit codes: 0 written, whatever it says (bstar pipeline audit judges); 2 wrong usage, or nothing to show;
    5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline report tables --out report.html

        bstar pipeline report s3a://ops/tables --pair orders --from 2026-11-21T02:00 --to 2026-11-21T04:00
    """
    folder = out.resolve().parent
    check_folder(folder, f"--out {out}: there is no folder {folder}")
    with _tables("report", spark, root, selection, is_of_one_pair=True) as (tables, tell):
        from bstar_pipeline.report.page import render

        content = asking.collect(tables, tell)
        try:
            out.write_text(render(content, made_at_us=time.time_ns() // 1000), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--out {out}: {error.strerror or error}") from error
    verdict = judge(content.verdicts, content.requests)
    if as_json:
        print_json(
            {"report": str(out), "pair": content.pair, "verdict": verdict.level, "why": verdict.headline}
        )
    else:
        typer.echo(str(out))
        say(verdict.headline, _STYLES[verdict.level])


def audit(
    root: RootArgument,
    *,
    selection: Selection,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="What the journals cannot prove does not pass either. After any kill of a node not all is.",
        ),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many findings to print.")] = 100,
    as_json: JsonOption = False,
    spark: SparkOptions,
) -> None:
    """Judge whether the pair kept its promises, and exit with 1 if not.

    Nothing lost, executed twice, answered twice or crossed; one node serving at a time. Findings go to
    stdout, the verdict to stderr; with --json it is the last line. What the guarantees allow is counted, and
    is no finding.

    Exit codes, fit to gate a release: 0 passed; 1 violated; 2 wrong usage; 3 nothing to judge (no request in
    the period), or with --strict not all is proven; 5 a table cannot be read, or Spark failed;
    130 interrupted.

    Examples:

        bstar pipeline audit tables

        bstar pipeline audit tables --strict && ./release

        bstar pipeline audit tables --json | jq -r 'select(.rule) | .text'
    """
    with _tables("audit", spark, root, selection, ASKED) as (asked, tell):
        tell("reading the audit")
        verdicts = asking.verdicts(asked)
        findings = asking.findings(asked, limit)
        tell("counting requests")
        requests = asking.requests(asked)
    verdict = judge(verdicts, requests)
    code = {"passed": exits.OK, "violated": exits.FAILED, "empty": exits.NOT_PROVEN}.get(
        verdict.level, exits.NOT_PROVEN if strict else exits.OK
    )
    _print(_FINDINGS, findings, as_json=as_json, is_dense=True)
    if as_json:
        print_json(
            {"verdict": verdict.level, "why": verdict.headline, "requests": requests, "by_rule": verdicts}
        )
        raise typer.Exit(code)
    if findings.is_cut:
        say(f"{len(findings):,} of {findings.total:,} findings are shown; --limit shows more.")
    say(verdict.headline, _STYLES[verdict.level])
    for each in verdict.sentences:
        say(each)
    raise typer.Exit(code)


def incidents(
    root: RootArgument,
    *,
    selection: Selection,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="How many to print, the longest outages first.")
    ] = 200,
    as_json: JsonOption = False,
    spark: SparkOptions,
) -> None:
    """List what moved the role or ended a node, and what clients noticed.

    Durations count from when it happened. UNKNOWN is how many requests' outcome their client never learned.

    Exit codes: 0 listed, even if the list is empty; 2 wrong usage; 5 a table cannot be read, or Spark failed;
    130 interrupted.

    Examples:

        bstar pipeline incidents tables

        bstar pipeline incidents tables --pair orders --from 2026-11-21

        bstar pipeline incidents tables --json | jq 'select(.outage_us > 1e6)'
    """
    with _tables("incidents", spark, root, selection, ASKED) as (asked, tell):
        tell("reading the incidents")
        found = asking.incidents(asked, limit)
    _print(_INCIDENTS, found, as_json=as_json, is_dense=True)
    if not as_json:
        more = f"; {len(found):,} of {found.total:,} are shown" if found.is_cut else ""
        say(f"{found.total:,} incident{'' if found.total == 1 else 's'}{more}")


def objectives(
    root: RootArgument, *, selection: Selection, as_json: JsonOption = False, spark: SparkOptions
) -> None:
    """Show each service against its objectives.

    Requests, errors, percentiles, burn rate, and how much of the error budget is gone. The
    objectives themselves are given to bstar pipeline run (--objectives FILE).

    Exit codes: 0 shown; 2 wrong usage; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline objectives tables

        bstar pipeline objectives tables --from 2026-11-14 --to 2026-11-21 --json
    """
    with _tables("objectives", spark, root, selection) as (tables, tell):
        tell("adding up the minutes")
        found, _ = asking.objectives(tables)
    _print(_OBJECTIVES, found, as_json=as_json)
    if as_json:
        return
    if found.is_cut:
        say(f"{len(found):,} of {found.total:,} services are shown: the busiest.")
    elif not found:
        say("no request was recorded by a node in this period")
