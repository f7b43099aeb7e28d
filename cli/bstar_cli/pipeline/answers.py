"""``bstar pipeline report``, ``audit``, ``incidents`` and ``objectives``: what the tables answer."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bstar.errors import ConfigurationError
from bstar_cli import exits
from bstar_cli.options import refuse
from bstar_cli.pipeline.spark import (
    NOTHING,
    JsonOption,
    RootArgument,
    Selection,
    SparkOptions,
    print_json,
    print_table,
)
from bstar_cli.terminal import sentence

if TYPE_CHECKING:
    from bstar_pipeline.report.reading import Tables

_STYLES = {"violated": "bold red", "unproven": "yellow", "passed": "green", "empty": "yellow"}


@contextmanager
def _tables(
    what: str, spark: SparkOptions, root: str, selection: Selection
) -> "Iterator[tuple[Tables, Callable[[str], None]]]":
    """The tables that a question is about, and what tells people its progress."""
    keywords = selection.keywords()
    with spark.session(what) as (session, tell):
        from bstar_pipeline.report.reading import open_tables

        yield open_tables(session, root, **keywords), tell


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

    The page needs no network, is about 5 MB, and reads well on a phone. It is of one pair: name it if the
    tables are about several. Its path is printed.

    Exit codes: 0 written, whatever it says (bstar pipeline audit judges); 2 wrong usage, or nothing to show;
    5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline report tables --out report.html

        bstar pipeline report s3a://ops/tables --pair orders --from 2026-11-21T02:00 --to 2026-11-21T04:00
    """
    keywords = selection.keywords()
    folder = out.resolve().parent
    refuse(not folder.is_dir(), f"--out {out}: there is no folder {folder}")
    with spark.session("report") as (session, tell):
        from bstar_pipeline.report import write
        from bstar_pipeline.report.words import judge

        try:
            content = write(session, root, out, **keywords, progress=tell)
        except OSError as error:
            raise ConfigurationError(f"--out {out}: {error.strerror or error}") from error
    verdict = judge(content.verdicts, content.requests)
    if as_json:
        print_json(
            {"report": str(out), "pair": content.pair, "verdict": verdict.level, "why": verdict.headline}
        )
    else:
        typer.echo(str(out))
        _say(verdict.headline, verdict.level)


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
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print so many findings.")] = 100,
    as_json: JsonOption = False,
    spark: SparkOptions,
) -> None:
    """Judge whether the pair kept its promises, and exit with 1 if not.

    Nothing lost, executed twice, answered twice or crossed; one node serving at a time. Findings go to
    stdout, the verdict to stderr; with --json it is the last line. What the guarantees allow is counted, and
    is no finding.

    Exit codes, fit to gate a release: 0 passed; 1 violated; 2 wrong usage; 3 nothing to judge (no request in
    the period), or with --strict not all is proven; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline audit tables

        bstar pipeline audit tables --strict && ./release

        bstar pipeline audit tables --json | jq -r 'select(.rule) | .text'
    """
    with _tables("audit", spark, root, selection) as (tables, tell):
        from bstar_pipeline.report import events
        from bstar_pipeline.report.words import date_and_time, duration, judge

        tell("reading the audit")
        verdicts = events.verdicts(tables)
        findings, cut = events.findings(tables, limit)
        tell("counting requests")
        requests = events.requests(tables)
    verdict = judge(verdicts, requests)
    code = {"passed": exits.OK, "violated": exits.FAILED, "empty": exits.NOT_PROVEN}.get(
        verdict.level, exits.NOT_PROVEN if strict else exits.OK
    )
    if as_json:
        for finding in findings:
            print_json(finding)
        print_json(
            {"verdict": verdict.level, "why": verdict.headline, "requests": requests, "by_rule": verdicts}
        )
        raise typer.Exit(code)
    if findings:
        print_table(
            ["verdict", "rule", "count", "pair", "when (UTC)", "for", "request", "service", "node", "text"],
            [
                [
                    each.verdict,
                    each.rule,
                    f"{each.count:,}",
                    each.pair,
                    date_and_time(each.at_us, to="ms"),
                    duration(each.duration_us),
                    f"{each.client} {'' if each.number is None else each.number}".strip(),
                    each.service,
                    each.node,
                    each.text,
                ]
                for each in findings
            ],
            right=(2, 5),
            is_dense=True,
        )
    if cut.is_cut:
        _say(f"{cut.shown:,} of {cut.total:,} findings are shown; --limit shows more.")
    _say(verdict.headline, verdict.level)
    for each in verdict.sentences:
        _say(each)
    raise typer.Exit(code)


def incidents(
    root: RootArgument,
    *,
    selection: Selection,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print so many: the longest outages.")] = 200,
    as_json: JsonOption = False,
    spark: SparkOptions,
) -> None:
    """List what moved the role or ended a node, and what clients noticed.

    Durations count from when it happened. UNKNOWN is how many requests' outcome their client never learned.

    Exit codes: 0 listed, even if there are none; 2 wrong usage; 5 Spark failed; 130 interrupted.

    Examples:

        bstar pipeline incidents tables

        bstar pipeline incidents tables --pair orders --from 2026-11-21

        bstar pipeline incidents tables --json | jq 'select(.outage_us > 1e6)'
    """
    with _tables("incidents", spark, root, selection) as (tables, tell):
        from bstar_pipeline.report import events
        from bstar_pipeline.report.words import KINDS, date_and_time, duration

        tell("reading the incidents")
        found, cut = events.incidents(tables, limit)
    if as_json:
        for each in found:
            print_json(each)
        return
    if found:
        print_table(
            [
                "when (UTC)", "pair", "what", "successor", "outage", "detected", "taken over", "retried",
                "refused", "unknown", "cause",
            ],
            [
                [
                    date_and_time(each.began_at_us, to="ms"),
                    each.pair,
                    f"{each.node} {KINDS.get(each.kind, each.kind)}",
                    each.successor or NOTHING,
                    duration(each.outage_us),
                    duration(each.detection_us),
                    duration(each.takeover_us),
                    f"{each.retried:,}",
                    f"{each.refused:,}",
                    f"{each.unknown:,}",
                    each.cause,
                ]
                for each in found
            ],
            right=(4, 5, 6, 7, 8, 9),
            is_dense=True,
        )  # fmt: skip
    more = f"; {cut.shown:,} of {cut.total:,} are shown" if cut.is_cut else ""
    _say(f"{cut.total:,} incident{'' if cut.total == 1 else 's'}{more}")


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
        from bstar_pipeline.report import services
        from bstar_pipeline.report.words import alerts, budget_used, date_and_time, duration, promised, share

        tell("adding up the minutes")
        found, cut, _ = services.objectives(tables)
    if as_json:
        for each in found:
            print_json(each)
        return
    if found:
        print_table(
            [
                "pair", "service", "requests", "errors", "p50", "p95", "p99", "objective", "budget used",
                "burn rate", "worst minute (UTC)", "alerts",
            ],
            [
                [
                    each.pair,
                    each.service,
                    f"{each.requests:,.0f}",
                    share(each.error_share),
                    duration(each.p50_us),
                    duration(each.p95_us),
                    duration(each.p99_us),
                    promised(each.promise) or NOTHING,
                    budget_used(each.promise),
                    NOTHING if each.burn_rate is None else f"{each.burn_rate:.2g}",
                    f"{each.worst_burn_rate:.2g} at {date_and_time(each.worst_at_us, to='minutes')}"
                    if each.worst_burn_rate
                    else NOTHING,
                    alerts(each) or NOTHING,
                ]
                for each in found
            ],
            right=(2, 3, 4, 5, 6, 8, 9),
        )  # fmt: skip
    if cut.is_cut:
        _say(f"{cut.shown:,} of {cut.total:,} services are shown: the busiest.")
    elif not found:
        _say("no request was recorded by a node in this period")


def _say(text: str, level: str = "") -> None:
    Console(stderr=True, soft_wrap=True).print(sentence(text, style=_STYLES.get(level, "")))
    sys.stderr.flush()
