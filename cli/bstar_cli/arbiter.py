"""``bstar arbiter``: the third voter, for any number of pairs."""

import os
from pathlib import Path
from typing import Annotated

import typer

import bstar
from bstar_cli.logs import EventLog, LogOptions
from bstar_cli.options import ServedHttp, check_listens


def arbiter(
    bind: Annotated[
        str, typer.Option("--bind", "-b", metavar="ENDPOINT", help="Where the nodes ask.")
    ] = "tcp://127.0.0.1:5010",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow an address that others can reach without a key: no encryption, no authentication.",
        ),
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="The arbiter's secret key (bstar keys new)."),
    ] = None,
    principals: Annotated[
        Path | None,
        typer.Option(
            "--principals", metavar="FILE", help="Who may ask: the peers of this list, with --key-file."
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Where it keeps which copies of durable stores are in sync; none: in memory only.",
        ),
    ] = None,
    *,
    http: ServedHttp,
    logs: LogOptions,
) -> None:
    """Run the optional third voter of one or many pairs until SIGTERM or Ctrl-C.

    With endpoints.arbiter on both nodes, a node serves only while its peer or the arbiter confirms it, so at
    most one serves whatever the network does. Put it on a third machine. While it is away nothing changes as
    long as the nodes hear each other. Pairs with a durable store need --state-dir: without it, a restart of
    the arbiter while one node is alone with the store may let the other lead without what it lacks.

    Exit codes: 0 stopped as asked; 2 wrong usage, or the address cannot be bound.

    Examples:

        bstar arbiter

        bstar arbiter --bind tcp://10.0.0.3:5010 --key-file keys/arbiter.key --principals keys/principals.yaml

        bstar arbiter --bind tcp://10.0.0.3:5010 --insecure --state-dir /var/lib/bstar-arbiter
    """
    check_listens("--bind", bind, key, principals, is_insecure=insecure)
    place = http.place()
    logs.configure()
    log = EventLog("bstar")
    # A wrong option is found without the sockets.
    from bstar.net.curve import NodeSecurity  # noqa: PLC0415
    from bstar.net.descriptors import raise_limit  # noqa: PLC0415
    from bstar.pair.arbiter import ArbiterServer  # noqa: PLC0415
    from bstar.pair.in_sync_file import InSyncFile  # noqa: PLC0415

    raise_limit()
    security = NodeSecurity(str(key), str(principals), "arbiter") if key is not None else None
    sets = None if state_dir is None else InSyncFile(state_dir)
    with ArbiterServer(bind, security, sets) as server:
        kept = "memory only" if state_dir is None else str(state_dir)
        served = {} if place is None else {"http": server.serve_http(place)}
        log.info(
            "ready", **served, version=bstar.__version__, arbiter=bind, pid=os.getpid(), in_sync_sets=kept
        )
        server.run()
    log.info("stopped", questions=server.machine.questions, refusals=server.machine.refusals)
