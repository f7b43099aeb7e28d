"""``bstar worker``: one worker for a service, with a built-in handler or one of the user's."""

import os
import time
from typing import Annotated, cast

import typer

from bstar.base.printable import printable
from bstar.errors import ConfigurationError
from bstar.wire.limits import CREDIT_MAX
from bstar_cli.importing import imported
from bstar_cli.logs import EventLog, LogOptions
from bstar_cli.options import KeptJournal, Nodes, ServedHttp, refuse
from bstar_client import Handler, ReplyMemory, ReplyStore, Request, Worker, WorkerHooks
from bstar_client.arguments.checks import check_handler
from bstar_client.arguments.settings import WorkerProtocol
from bstar_client.workers.reply_file import ReplyFile
from bstar_client.workers.typed import bind

# time.sleep of more is an OverflowError; a year is long enough for a test.
_SLEEP_S_MAX = 366 * 86_400.0

_RepliesOption = Annotated[
    str | None,
    typer.Option(
        "--keep-replies",
        metavar="[memory|FILE]",
        help="Answer a repeated request with the reply it had, without executing it again; a file is for "
        "all workers of this machine.",
    ),
]
_ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1_000,
        help="How many handlers run at once, if that is fewer; the other requests are at hand for them.",
    ),
]


def worker(
    service: Annotated[str, typer.Option("--service", "-s", help="The service to offer.")],
    handler: Annotated[
        str, typer.Argument(metavar="[echo|sleep|fail|MODULE:FUNCTION]", help="The handler of the requests.")
    ] = "echo",
    *,
    nodes: Nodes,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0, help="sleep: how long; otherwise the request's body says it."),
    ] = None,
    credit: Annotated[
        int, typer.Option("--credit", min=1, max=CREDIT_MAX, help="How many requests it may hold at once.")
    ] = 1,
    threads: _ThreadsOption = None,
    handler_timeout: Annotated[
        float | None,
        typer.Option("--handler-timeout", min=0.001, help="Give a handler up after this many seconds."),
    ] = None,
    keep_replies: _RepliesOption = None,
    dialect: Annotated[
        WorkerProtocol,
        typer.Option(
            "--dialect",
            help="native; mdp01 or mdp02 for any broker of plain Majordomo; ppp or spp for any queue of the "
            "Paranoid or Simple Pirate.",
        ),
    ] = "native",
    journal: KeptJournal,
    http: ServedHttp,
    logs: LogOptions,
) -> None:
    """Offer a service to every node of the pair, or of the pair it belongs to, until SIGTERM or Ctrl-C.

    A stopping worker finishes what it executes and leaves in good order; a second signal ends it at once.
    Handlers: echo answers with the body; sleep waits first; fail raises an error with the body as its text;
    MODULE:FUNCTION is a function of yours, found from the current folder on, that takes a
    bstar_client.Request and returns bytes (or several, or yields PARTIALs).

    Exit codes: 0 stopped as asked; 1 too many handlers are stuck; 2 wrong usage.

    Examples:

        bstar worker --service echo --http 127.0.0.1:9411

        bstar worker --service slow sleep --seconds 0.5 --credit 4

        bstar worker --service quick echo --credit 500 --threads 1

        bstar worker --service price shop.pricing:quote -e tcp://10.0.0.1:5001,tcp://10.0.0.2:5001
    """
    logs.configure()
    refuse(seconds is not None and handler != "sleep", "--seconds is for the handler sleep")
    log = EventLog("bstar.worker")
    instance = Worker(
        nodes.fleet(),
        service,
        find_handler(handler, seconds=seconds),
        dialect=dialect,
        credit=credit,
        threads=threads,
        handler_timeout_s=handler_timeout,
        dedupe=_store(keep_replies),
        hooks=_Reports(log),
        security=nodes.security(),
        journal=journal.settings(),
        http=http.place(),
    )
    served = {} if http.http is None else {"http": http.http}
    log.info(
        "connecting",
        **served,
        service=service,
        handler=handler,
        endpoints=instance.endpoints,
        pid=os.getpid(),
    )
    instance.run()
    log.info("stopped", service=service)


def _store(path: str | None) -> ReplyStore | None:
    if path is None:
        return None
    return ReplyMemory() if path == "memory" else ReplyFile(path)


class _Reports(WorkerHooks):
    """Logs each registration, and when the worker begins to serve and when no node has it any more."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._endpoints: set[str] = set()

    def registered(self, worker: Worker, endpoint: str) -> None:
        self._log.info("registered", endpoint=endpoint)
        if not self._endpoints:
            self._log.info("serving", service=printable(worker.service))
        self._endpoints.add(endpoint)

    def lost(self, worker: Worker, endpoint: str, reason: str) -> None:
        was_serving = bool(self._endpoints)
        self._endpoints.discard(endpoint)
        if was_serving and not self._endpoints:
            self._log.warning(
                "not serving: no node has registered this worker", service=printable(worker.service)
            )


def find_handler(name: str, *, seconds: float | None = None) -> Handler:
    """A built-in handler, or the function that ``module:function`` names. Raises ConfigurationError."""
    if name == "echo":
        return _echo
    if name == "fail":
        return _fail
    if name == "sleep":
        return _sleeper(seconds)
    if ":" not in name:
        raise ConfigurationError(f"{name!r} is no handler: write echo, sleep, fail or module:function")
    found = imported(name, "handler")
    try:
        check_handler(found)
        handler = cast("Handler", found)
        bind(handler)
    except TypeError as error:
        raise ConfigurationError(f"{name!r} cannot be used: {error}") from error
    return handler


def _echo(request: Request) -> tuple[bytes, ...]:
    return request.frames


def _fail(request: Request) -> bytes:
    raise RuntimeError(b" ".join(request.frames).decode("utf-8", "backslashreplace") or "asked to fail")


def _sleeper(seconds: float | None) -> Handler:
    def sleep(request: Request) -> tuple[bytes, ...]:
        duration_s = seconds
        if duration_s is None:
            try:
                duration_s = float(request.frames[0])
            except ValueError:
                raise ValueError("the body must be a number of seconds") from None
        if not 0 <= duration_s <= _SLEEP_S_MAX:
            raise ValueError(f"from 0 to {_SLEEP_S_MAX:g} seconds, not {duration_s}")
        time.sleep(duration_s)
        return request.frames

    return sleep
