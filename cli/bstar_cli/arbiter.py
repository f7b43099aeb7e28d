"""``bstar arbiter``: the third voter, for any number of pairs."""

import os
from typing import Annotated

import structlog
import typer

import bstar
from bstar.endpoints import parse_endpoint
from bstar.errors import ConfigurationError
from bstar_cli.logs import LogOptions
from bstar_cli.options import refuse


def arbiter(
    bind: Annotated[
        str, typer.Option("--bind", "-b", metavar="ENDPOINT", help="Where the nodes ask.")
    ] = "tcp://127.0.0.1:5010",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow an address that others can reach: there is no encryption and no authentication yet.",
        ),
    ] = False,
    *,
    logs: LogOptions,
) -> None:
    """Run the optional third voter of one or many pairs until SIGTERM or Ctrl-C.

    With endpoints.arbiter on both nodes, a node serves only while its peer or the arbiter confirms it, so at
    most one serves whatever the network does. Put it on a third machine. It keeps nothing on disk; while it
    is away nothing changes as long as the nodes hear each other.

    Exit codes: 0 stopped as asked; 2 wrong usage, or the address cannot be bound.

    Examples:

        bstar arbiter

        bstar arbiter --bind tcp://10.0.0.3:5010 --insecure --log-format json
    """
    try:
        endpoint = parse_endpoint(bind, bind=True)
    except ValueError as error:
        raise ConfigurationError(f"--bind: {error}") from error
    refuse(
        not (endpoint.is_loopback or insecure),
        f"--bind {bind}: others can reach this address, and there is no encryption or authentication "
        "yet: bind 127.0.0.1, or say --insecure if the network itself keeps strangers out",
    )
    logs.configure()
    log = structlog.get_logger("bstar")
    # A wrong option is found without the sockets.
    from bstar.arbiter import ArbiterServer  # noqa: PLC0415
    from bstar.descriptors import raise_limit  # noqa: PLC0415

    raise_limit()
    with ArbiterServer(bind) as server:
        log.info("ready", version=bstar.__version__, arbiter=bind, pid=os.getpid())
        server.run()
    log.info("stopped", questions=server.machine.questions, refusals=server.machine.refusals)
