"""``bstar emq-…``: the sides of EventMQ that are not its router."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bstar.base.printable import printable
from bstar.security import Security
from bstar.settings.document import Problems, locator, read_document
from bstar_cli.logs import EventLog, LogOptions
from bstar_cli.options import refuse
from bstar_cli.terminal import json_line
from bstar_client.emq import EmqJobManager, ask_router

# What a configuration of a job manager may say.
_KEYS = ("routers", "queues", "allow", "processes", "timeout_s", "drain_s", "wire")


def emq_jobmanager(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help=f"YAML with the keys {', '.join(_KEYS)}."),
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option("--router", "-r", metavar="ENDPOINT", help="A router's backend; once for each node."),
    ] = None,
    queues: Annotated[
        str | None, typer.Option("--queues", metavar="WEIGHT:NAME,…", help="Otherwise the router's default.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="MODULE", help="Jobs may call what this module defines."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Jobs at once, each in a process; otherwise 4.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--job-timeout", min=0.001, help="Seconds for a job that names none; otherwise 300."),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option("--drain", min=0, help="Seconds that a stop waits for running jobs; otherwise 300."),
    ] = None,
    *,
    wire: Annotated[
        Literal["published", "specification"] | None,
        typer.Option(
            "--wire", help="Whose side to take where they disagree; otherwise the published program's."
        ),
    ] = None,
    logs: LogOptions,
) -> None:
    """Run jobs of EventMQ (eMQP/1.0) until SIGTERM or Ctrl-C.

    A job names a module and a function of it; modules are found from the current folder on. Only what a
    module of --allow defines itself is called: what it imports from others is refused, and so is every name
    that begins with an underscore. Each job runs in a child process, which is killed when its time is over.

    With several routers it goes to the next one when a connection breaks or is silent. A stop
    finishes the running jobs and says KBYE then; a second signal ends it at once. Options replace what the
    file says. BSTAR_KEY and BSTAR_SERVER_KEYS are for routers with keys.

    Exit codes: 0 stopped as asked; 2 wrong usage.

    Examples:

        bstar emq-jobmanager --router tcp://127.0.0.1:47290 --allow shop.jobs

        bstar emq-jobmanager -r tcp://10.0.0.1:47290 -r tcp://10.0.0.2:47290 --queues 20:fast,10:default \
--allow shop.jobs --allow shop.mail
    """
    logs.configure()
    given: dict[str, object] = {} if config is None else _read(config)
    said: dict[str, object] = {
        "routers": router or None,
        "queues": None if queues is None else _queues(queues),
        "allow": allow or None,
        "processes": processes,
        "timeout_s": timeout,
        "drain_s": drain,
        "wire": wire,
    }
    given |= {name: value for name, value in said.items() if value is not None}
    routers = given.pop("routers", ())
    refuse(not isinstance(routers, Sequence) or not routers, "no router: add --router tcp://ADDRESS:47290")
    refuse(not given.get("allow"), "no module is allowed, so every job would be refused: add --allow MODULE")
    # As python -m does, so that jobs are found where their author stands.
    if "" not in sys.path:
        sys.path.insert(0, "")
    log = EventLog("bstar.emq")
    with EmqJobManager(routers, security=Security.from_environment(), **given) as manager:  # type: ignore[arg-type]  # checked there
        log.info("started", routers=routers, processes=manager.options.processes, pid=os.getpid())
        manager.run()
        log.info("stopped", jobs=manager.jobs, refused=dict(manager.refused), ends=dict(manager.ends))


def emq_admin(
    question: Annotated[
        Literal["status", "workers", "schedulers"], typer.Argument(help="What to ask the router.")
    ],
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="The router's admin socket.")
    ] = "tcp://127.0.0.1:47293",
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.001, help="Seconds to wait for the answer.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Ask an EventMQ router for its queues, its job managers or its schedulers.

    Exit codes: 0 answered; 2 wrong usage; 3 no answer.

    Examples:

        bstar emq-admin status

        bstar emq-admin workers tcp://10.0.0.1:47293 --json
    """
    report = ask_router(question, endpoint, timeout_s=timeout, security=Security.from_environment())
    if as_json:
        typer.echo(json_line(report))
        return
    for name, value in report.items():
        rows: dict[str, Any] = value if isinstance(value, dict) else {"": value}
        typer.echo(f"{printable(name)}:" + ("" if rows else " none"))
        for key, row in rows.items():
            typer.echo("  " + printable(f"{key}  {json_line(row)}" if key else json_line(row), 1_000))


def _read(path: Path) -> dict[str, object]:
    problems = Problems()
    document, lines = read_document(path, problems)
    where = locator(os.fspath(path), lines)
    for key in document:
        if key not in _KEYS:
            problems.problem(where(str(key)), str(key), f"unknown key; there are {', '.join(_KEYS)}")
    problems.raise_all()
    return dict(document)


def _queues(text: str) -> list[tuple[int, str]]:
    queues = []
    for part in text.split(","):
        weight, separator, name = part.strip().partition(":")
        is_right = separator and name and weight.isascii() and weight.isdecimal()
        refuse(not is_right, f"--queues {text}: write WEIGHT:NAME,WEIGHT:NAME, such as 20:fast,10:default")
        queues.append((int(weight), name))
    return queues
