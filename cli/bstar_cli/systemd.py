"""``bstar systemd-unit``: a unit file for a node, an arbiter, a worker or an App."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bstar_cli.options import refuse

Kind = Literal["node", "arbiter", "worker", "app"]

_ARGUMENTS: dict[Kind, str] = {
    "node": "serve --config /etc/bstar/node.yaml",
    "arbiter": "arbiter --state-dir /var/lib/bstar-arbiter",
    "worker": "worker --service echo",
    "app": "run shop:app --processes 4",
}

_UNIT = """\
[Unit]
Description=bstar {kind}
Wants=network-online.target
After=network-online.target
# It is started again for as long as it takes.
StartLimitIntervalSec=0

[Service]
{start}
Environment=PYTHONUNBUFFERED=1
{who}
StateDirectory=bstar-{kind}
# Operators' commands reach a node through a socket here; it has a /tmp of its own.
RuntimeDirectory=bstar-{kind}
RuntimeDirectoryMode=0700
WorkingDirectory=/var/lib/bstar-{kind}
Restart=always
# Longer than several failover timeouts of the profiles lan and guide.
RestartSec=10
# A wrong configuration waits for a person.
RestartPreventExitStatus=2
# SIGTERM lets it finish what was begun; only the main process gets it.
KillMode=mixed
TimeoutStopSec=60
LimitNOFILE=65536
# Secret keys and bodies of requests stay in memory.
LimitCORE=0
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

# A node says when it is ready, and is ended if its loop does not turn for this long.
_NODE = """\
Type=notify
NotifyAccess=main
WatchdogSec=30
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID"""


def systemd_unit(
    kind: Annotated[Kind, typer.Argument(help="What the unit runs.")] = "node",
    *,
    arguments: Annotated[
        str | None,
        typer.Option(
            "--arguments", metavar="TEXT", help="What follows bstar in ExecStart.", show_default=False
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="The system user. Otherwise systemd makes one while the unit runs (DynamicUser).",
            show_default=False,
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(
            "--program",
            metavar="FILE",
            help="The bstar command. Otherwise the one that prints this.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a systemd unit: hardened, with restarts that fit the exit statuses of bstar.

    systemd knows when a node is ready, shows its role in systemctl status, and ends it if its loop hangs;
    systemctl reload makes a node read its configuration again. The unit may write below /var/lib/bstar-KIND
    only: a node's state_dir, store.directory and journal.directory belong there.

    Exit codes: 0; 2 wrong usage.

    Examples:

        bstar systemd-unit > /etc/systemd/system/bstar-node.service

        bstar systemd-unit arbiter --arguments "arbiter --bind tcp://10.0.0.3:5010 --insecure"

        bstar systemd-unit worker --arguments "worker --service price shop.prices:handle" --user shop

        bstar systemd-unit app --arguments "run shop:app --processes 4" > /etc/systemd/system/shop.service
    """
    found = program or shutil.which(sys.argv[0]) or shutil.which("bstar")
    refuse(found is None, "the bstar command is not on the PATH: name it with --program")
    typer.echo(unit(kind, arguments or _ARGUMENTS[kind], user=user, program=Path(str(found))), nl=False)


def unit(kind: Kind, arguments: str, *, user: str | None, program: Path) -> str:
    """The text of the unit."""
    # "%" begins a specifier of systemd, "$" a variable.
    command = f"{program.absolute()} {arguments}".replace("%", "%%").replace("$", "$$")
    start = _NODE.format(command=command) if kind == "node" else f"ExecStart={command}"
    return _UNIT.format(kind=kind, start=start, who=f"User={user}" if user else "DynamicUser=yes")
