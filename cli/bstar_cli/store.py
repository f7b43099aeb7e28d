"""``bstar store``: the durable store on a disk, checked while no node uses it (docs/durable.md)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bstar.base.printable import printable
from bstar_broker.operate.orders import ORDERS
from bstar_broker.store.check import Report, check
from bstar_cli import exits
from bstar_cli.options import check_folder, grouped
from bstar_cli.orders import add_to

_TEXT_CHARS_MAX: Final = 1_000
# Of a log: rarely enough, and often enough to see that it goes on.
_LINE_INTERVAL_S: Final = 10.0

store = typer.Typer(
    name="store",
    no_args_is_help=True,
    add_completion=False,
    help="The durable store of a node (docs/operations.md).",
)


@store.callback()
def _store() -> None:
    pass


def _check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The node's store.directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Read a stopped node's store to the end, and say what is damaged. It changes nothing.

    It reads each page, each entry of the log and each record: ten seconds for a million small ones. A store
    whose process was killed is no damage: the next start reads its write-ahead log, and so does this command.
    Run it as the user that runs the node. On standard error it shows how far it is: a bar on a terminal,
    otherwise a line every ten seconds.

    If it finds damage and the peer's store is whole: move the directory away and start the node, which then
    gets everything from the peer. Keep what was moved away until the copy is complete.

    Exit codes: 0 whole; 1 damaged, with what and where; 2 wrong usage, no store, or a node uses it.

    Examples:

        bstar store check /var/lib/bstar/store

        bstar store check /var/lib/bstar/store --json
    """
    check_folder(directory)
    with check_progress() as watch:
        report = check(directory, watch)
    if as_json:
        typer.echo(msgspec.json.encode({"is_whole": report.is_whole, **msgspec.to_builtins(_fields(report))}))
    else:
        _print(report)
    if not report.is_whole:
        raise typer.Exit(exits.FAILED)


@contextmanager
def check_progress(
    console: Console | None = None, line_interval_s: float = _LINE_INTERVAL_S
) -> Iterator[Callable[[str, int, int], None]]:
    """What the check calls: so many of the rows of a part are read, 0 of 0 if that is not known. It shows it
    on standard error: a bar on a terminal, otherwise a line now and then.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        tasks: dict[str, TaskID] = {}
        with Progress(*columns, console=console, transient=True) as bar:

            def draw(part: str, done: int, count: int) -> None:
                if part not in tasks:
                    tasks[part] = bar.add_task(part, total=count or None)
                bar.update(tasks[part], completed=done)

            yield draw
        return
    line_at = time.monotonic() + line_interval_s

    def write(part: str, done: int, count: int) -> None:
        nonlocal line_at
        now = time.monotonic()
        if now >= line_at:
            line_at = now + line_interval_s
            typer.echo(f"{part}: {done} of {count}" if count else f"{part}: under way", err=True)

    yield write


def _fields(report: Report) -> dict[str, object]:
    fields = msgspec.structs.asdict(report)
    if report.mark is not None:
        fields["mark"] = {**msgspec.structs.asdict(report.mark), "store": report.mark.store.hex()}
    return fields


def _print(report: Report) -> None:
    mark, totals, last = report.mark, report.totals, report.last
    typer.echo(
        f"{report.directory}: {report.size_bytes / 1e6:.1f} MB, "
        f"{'closed' if report.was_closed else 'not closed'}"
    )
    if mark is None:
        typer.echo("  of no pair yet")
    else:
        kind = "in sync" if mark.is_in_sync else "not in sync"
        alone = ", alone" if mark.is_alone else ""
        typer.echo(f"  of pair {printable(mark.pair.encode(), 100)}, {mark.role}: {kind}{alone}")
    typer.echo(
        f"  log: {report.log_entries} entries, {report.first} to {last.number} (epoch {last.epoch}), "
        f"{report.applied.number} applied"
    )
    typer.echo(
        f"  records: {totals.pending} pending, {totals.answered} answered, {totals.dead} dead, "
        f"{totals.cancelled} cancelled, {totals.scheduled} schedules; {totals.size_bytes / 1e6:.1f} MB"
    )
    if report.staged:
        typer.echo(f"  beside it {report.staged} records of the peer's table, whose copy was interrupted")
    for finding in report.findings:
        name = f" {finding.name}" if finding.part == "records" else ""
        typer.echo(f"{finding.part}{name}: {printable(finding.text.encode(), _TEXT_CHARS_MAX)}")
    more = report.findings_count - len(report.findings)
    if more:
        typer.echo(f"and {more} more")
    typer.echo("whole" if report.is_whole else f"damaged: {report.findings_count} findings")


add_to(store, next(order for order in ORDERS if order.command == "store force"))
store.command("check")(grouped(_check))
