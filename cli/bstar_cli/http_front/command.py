"""``bstar http``: the HTTP front as a program of its own, anywhere."""

import asyncio
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bstar.base.endpoints import parse_http_bind
from bstar.errors import ConfigurationError
from bstar.net.http_endpoint import HttpEndpoint, HttpPlace, metrics_page, process_registry
from bstar.settings.principals import load_principals
from bstar_broker.core.snapshot import FrontState
from bstar_cli.http_front.plan import HttpPlan, bind, check_tls, front_settings, url_of
from bstar_cli.logs import EventLog, LogOptions
from bstar_cli.options import Nodes, refuse


@dataclass(frozen=True, kw_only=True)
class _Guard:
    """Who may ask, and how it is protected."""

    principals: Annotated[
        Path | None,
        typer.Option("--principals", metavar="FILE", help="The list with the tokens that may call."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate, with its chain (PEM).")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM).")
    ] = None
    origins: Annotated[
        str, typer.Option("--origins", metavar="URL,…", help="The web pages that may call; * for all.")
    ] = ""
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Beyond loopback without tokens or TLS: the network keeps others out."
        ),
    ] = False

    def tls(self) -> tuple[str, str] | None:
        """The paths of both files, if there are any. Raises ConfigurationError."""
        refuse((self.tls_cert is None) != (self.tls_key is None), "--tls-cert and --tls-key need each other")
        return None if self.tls_cert is None else (str(self.tls_cert), str(self.tls_key))


@dataclass(frozen=True, kw_only=True)
class _Bounds:
    """How much callers may take."""

    timeout_max: Annotated[
        float, typer.Option("--timeout-max", min=0.1, max=86_400, help="Seconds of the longest call.")
    ] = 300.0
    body_max: Annotated[
        int, typer.Option("--body-max", min=1, max=1 << 26, help="Bytes of the largest body.")
    ] = 1 << 20
    connections_max: Annotated[
        int, typer.Option("--connections-max", min=1, max=100_000, help="Connections at once.")
    ] = 2_000
    slow: Annotated[
        float,
        typer.Option(
            "--slow", min=0.1, max=3_600, help="Seconds for a head, for a body, for 64 KiB of a response."
        ),
    ] = 30.0


def http(
    *,
    nodes: Nodes,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="ADDRESS:PORT", help="Where HTTP clients connect.")
    ] = "127.0.0.1:8080",
    guard: _Guard,
    bounds: _Bounds,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="ADDRESS:PORT", help="Serve /metrics there (loopback).")
    ] = None,
    logs: LogOptions,
) -> None:
    """Serve calls of the pair over HTTP until SIGTERM or Ctrl-C (docs/http.md).

    It runs anywhere, finds the node that serves, and follows a failover. A node has a front of its own with
    fronts.http.bind. With --principals a caller needs a token (bstar keys token).

    Exit codes: 0 stopped as asked; 2 wrong usage or configuration.

    Examples:

        bstar http

        bstar http -e tcp://10.0.0.1:5001,tcp://10.0.0.2:5001 --listen 127.0.0.1:8080

        bstar http --listen 10.0.0.3:8443 --principals principals.yaml --tls-cert http.crt --tls-key http.key
    """
    logs.configure()
    try:
        from bstar_cli.http_front.server import Stopper, serve_http  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install '.[http]' in a clone of bstar"
        raise ConfigurationError(text) from error
    fleet, security = nodes.fleet(), nodes.security()
    plan = HttpPlan(
        front_settings(
            timeout_max_s=bounds.timeout_max,
            body_bytes_max=bounds.body_max,
            slow_s=bounds.slow,
            origins=guard.origins,
        ),
        connections_max=bounds.connections_max,
        principals=None if guard.principals is None else str(guard.principals),
        tls=guard.tls(),
    )
    _check_place(listen, plan, is_insecure=guard.insecure)
    place = None if metrics is None else HttpPlace.of(HttpPlace(bind=metrics, allow_remote=guard.insecure))
    states: deque[FrontState] = deque(maxlen=1)
    check_tls(plan.tls, "--tls-cert, --tls-key")
    if plan.principals is not None:
        load_principals(plan.principals)
    log = EventLog("bstar.http")
    with bind(listen, "--listen") as listener, _exposed(place, states):
        log.info("ready", url=url_of(listener, plan), tokens=plan.principals is not None)
        asyncio.run(serve_http(plan, fleet, security, listener, Stopper(), states.append))
    log.info("stopped")


def _exposed(
    place: HttpPlace | None, states: "deque[FrontState]"
) -> "AbstractContextManager[HttpEndpoint | None]":
    """Serves the metrics of this process and of its front, if there is a place."""
    if place is None:
        return nullcontext()
    from bstar_broker.operate.metrics import FrontCollector  # noqa: PLC0415 - most have no such place

    registry = process_registry()
    registry.register(FrontCollector(states))
    return HttpEndpoint(place.bind, {"/metrics": metrics_page(registry)}, loop="it", setting="--metrics")


def _check_place(listen: str, plan: HttpPlan, *, is_insecure: bool) -> None:
    try:
        is_loopback = parse_http_bind(listen).is_loopback
    except ValueError as error:
        raise ConfigurationError(f"--listen: {error}") from error
    given = {"--principals": plan.principals, "--tls-cert and --tls-key": plan.tls}
    lacks = [word for word, value in given.items() if value is None]
    refuse(
        lacks and not is_loopback and not is_insecure,
        f"--listen {listen}: others can reach this address: add {' and '.join(lacks)}, bind 127.0.0.1, or "
        "say --insecure if the network itself, or a proxy with TLS, keeps strangers out",
    )
