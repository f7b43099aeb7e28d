"""What all commands of ``bstar pipeline`` share: options about engine and time, sessions, progress, tables.

Spark is an extra and takes a second to load, so it is imported when a command runs, never before.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bstar.errors import ConfigurationError, PipelineError
from bstar_cli import exits
from bstar_cli.options import refuse
from bstar_cli.terminal import json_line, sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bstar_pipeline.amounts import Amount

RootArgument = Annotated[
    str, typer.Argument(metavar="ROOT", help="Where bstar pipeline run wrote the tables: any path of Spark.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """What does the work, and where Spark runs."""

    engine: Annotated[
        Literal["auto", "local", "spark"],
        typer.Option(
            "--engine",
            help="local: in this process, without Java, for folders of this machine. auto: that, unless "
            "there is more to read than suits it, or something is said about Spark.",
        ),
    ] = "auto"
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Where Spark runs: local[4], spark://HOST:7077, yarn, … Otherwise what spark-submit or "
            "Spark's configuration says, otherwise all cores of this machine.",
            show_default=False,
        ),
    ] = None
    remote: Annotated[
        str | None,
        typer.Option("--remote", metavar="URL", help="A Spark Connect server instead: sc://HOST:15002."),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            metavar="KEY=VALUE",
            help="A setting of Spark, such as spark.driver.memory=8g; repeatable.",
        ),
    ] = None

    @property
    def is_chosen(self) -> bool:
        """Whether anything was said about Spark; spark-submit does so by the environment."""
        given = self.master or self.remote or self.conf or self.engine == "spark"
        return bool(given or os.environ.keys() & _SPARKS)

    @contextmanager
    def session(
        self, what: str, amount: Callable[[], Amount | None]
    ) -> Iterator[tuple[SparkSession | None, Callable[[str], None]]]:
        """A session for one command (None: the local engine), and what tells people its progress. Ctrl-C ends
        the command.

        ``amount`` finds out how much the command reads; None if that is elsewhere.
        """
        settings = self._settings()
        with _progress("starting") as tell:
            opened: AbstractContextManager[SparkSession | None]
            try:
                if self.is_for_spark(amount):
                    from bstar_pipeline.console import session

                    found = amount()
                    opened = session(
                        f"bstar pipeline {what}",
                        master=self.master,
                        remote=self.remote,
                        settings=settings,
                        is_small=found is not None and found.is_little,
                        jvm=None if found is None else found.jvm,
                    )
                else:
                    import duckdb

                    opened = _local(duckdb.Error)
            except ModuleNotFoundError as error:
                given = missing_spark(error)
                if given is None:
                    raise
                raise given from error
            try:
                with opened as spark:
                    yield spark, tell
            except KeyboardInterrupt:
                raise typer.Exit(exits.INTERRUPTED) from None

    def _settings(self) -> dict[str, str]:
        settings = {}
        for assignment in self.conf or ():
            key, separator, value = assignment.partition("=")
            refuse(not separator or not key.strip(), f"--conf {assignment}: write --conf KEY=VALUE")
            settings[key.strip()] = value
        return settings

    def is_for_spark(self, amount: Callable[[], Amount | None]) -> bool:
        """Whether Spark does it. What ``auto`` chooses, and why, goes to stderr."""
        if self.engine != "local" and self.is_chosen:
            return True
        found = amount()
        if self.engine == "local":
            about = [name for name in ("master", "remote", "conf") if getattr(self, name)]
            refuse(bool(about), f"--engine local: --{', --'.join(about)} is about Spark")
            refuse(found is None, "--engine local reads and writes folders of this machine")
            return False
        if found is None:
            say("engine: Spark, because not all is in folders of this machine")
            return True
        size, most = (f"{size_bytes / 1e6:,.0f} MB" for size_bytes in (found.size_bytes, found.most))
        if found.is_small:
            say(f"engine: local, because {found.what} have {size}, and Spark is for more than {most}")
        else:
            say(f"engine: Spark, because {found.what} have {size}, and the local one is for {most} at most")
        return not found.is_small


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows of the tables a question is about."""

    pair: Annotated[str | None, typer.Option("--pair", metavar="PAIR", help="Only this pair.")] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Not before: 2026-11-21T08:00, UTC unless it says otherwise."
        ),
    ] = None
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time.")] = None

    def keywords(self) -> dict[str, Any]:
        """The selection as ``bstar_pipeline.report`` takes it. Raises ConfigurationError."""
        from_us, until_us = time_of("--from", self.since), time_of("--to", self.until)
        return {"pair": self.pair, "from_us": from_us, "until_us": until_us}


# What spark-submit and Spark Connect tell a program of theirs.
_SPARKS = {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"}
# Not a terminal: nothing is cut, so that a script finds whole words.
_WIDTH = 240
NOTHING = "–"
"""A cell of a table about which there is nothing to tell."""
_EXTRA = ("pyspark", "duckdb", "py4j", "pyarrow", "pandas", "numpy", "grpc", "google", "zstandard", "jinja2")


@contextmanager
def _local(fault: type[Exception]) -> Iterator[None]:
    """The local engine for the time of the block; what it cannot do is a PipelineError."""
    try:
        yield
    except fault as error:
        raise PipelineError(str(error)) from error


def missing_spark(error: ModuleNotFoundError) -> ConfigurationError | None:
    """What to tell the user if this is about the extra; None if it is a defect of ours."""
    name = error.name or ""
    if name.partition(".")[0] not in _EXTRA:
        return None
    return ConfigurationError(
        f"the pipeline needs {name}, which is not installed: pip install '.[spark]' in a clone of bstar "
        "(about 1 GB)"
    )


@contextmanager
def _progress(first: str) -> Iterator[Callable[[str], None]]:
    """Tell people at a terminal what is going on, and for how long, on stderr; scripts hear nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(first, total=None)
        yield lambda word: shown.update(task, description=word)


def time_of(option: str, text: str | None) -> int | None:
    """An option's time as microseconds since 1970."""
    if text is None:
        return None
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{option} {text}: write a time like 2026-11-21T08:00 or 2026-11-21T09:00+01:00"
        ) from error
    if given.tzinfo is None:
        given = given.replace(tzinfo=dt.UTC)
    return round(given.timestamp() * 1e6)


def say(text: str, style: str = "") -> None:
    """A line on stderr."""
    Console(stderr=True, soft_wrap=True).print(sentence(text, style=style))
    sys.stderr.flush()


def print_json(value: object) -> None:
    """One JSON object on one line of stdout."""
    typer.echo(json_line(value))


def print_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    is_dense: bool = False,
) -> None:
    """A table on stdout; ``right``: the columns of numbers. ``is_dense``: without columns that are empty."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    chosen = [
        index
        for index in range(len(headings))
        if not is_dense or any(row[index] not in {"", NOTHING} for row in rows)
    ]
    for index in chosen:
        heading = headings[index].upper()
        table.add_column(heading, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(sentence(row[index]) for index in chosen))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
