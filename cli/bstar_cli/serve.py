"""``bstar serve``: one node of the pair, until a signal stops it or the pair cannot go on."""

import gc
import os
import signal
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import bstar
from bstar.errors import PairError
from bstar.host.service_manager import ServiceManager
from bstar.settings import RESERVED_VARIABLES, Settings, node_warnings
from bstar_cli.logs import EventLog, configure_logs
from bstar_cli.options import NodeConfiguration, collect_garbage, refuse

if TYPE_CHECKING:
    from bstar_broker.operate.reload import Reload
    from bstar_cli.http_front.node import NodeFront


class _Stopped(BaseException):
    """SIGTERM or Ctrl-C before the event loop was there to take it."""


def serve(node: NodeConfiguration) -> None:
    """Run one node of the pair until SIGTERM or Ctrl-C.

    A stopping active node finishes what its workers hold and hands over to its peer. Logs go to stderr; the
    line "ready" tells the endpoints.

    SIGHUP makes it read its configuration again: the log says which changed keys are in force (log, limits,
    services) and which need a restart. A service manager that sets NOTIFY_SOCKET, as systemd does, gets its
    readiness, a line of status, and a watchdog message while its event loop turns.

    Exit codes: 0 stopped as asked; 2 wrong configuration; 70 both nodes were active and on_dual_active is
    exit; 71 both nodes were passive; 72 the nodes cannot be a pair as they are configured;
    73 the disk thread of the durable store has ended.

    Examples:

        bstar serve --config configs/primary.yaml

        BSTAR_LOG__LEVEL=debug bstar serve --config configs/backup.yaml

        bstar serve -c configs/primary.yaml --set http.bind=127.0.0.1:0 --set log.format=json
    """
    refuse(
        node.config is None and not node.assignments and not _has_variables(),
        "no configuration: name one with --config FILE or BSTAR_CONFIG; "
        "bstar sample-config --role primary prints a complete one",
    )
    # What comes before the node can read its configuration again, it does as its first act.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: early.append(number))
    settings = node.settings()
    configure_logs(settings.log.level, settings.log.format)
    log = EventLog("bstar")
    manager = ServiceManager.of(os.environ, os.getpid())

    def follow(reload: "Reload") -> None:
        configure_logs(reload.settings.log.level, reload.settings.log.format)
        level = log.warning if reload.waiting else log.info
        level("configuration read again", in_force=reload.applied, need_a_restart=reload.waiting)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_early)
    try:
        # Only now: the sockets' library is not needed to find a configuration wrong.
        gc.disable()  # as in bstar_cli.entry
        from bstar.net.descriptors import raise_limit  # noqa: PLC0415
        from bstar_broker.server import BrokerServer  # noqa: PLC0415
        from bstar_broker.supervision import Supervision  # noqa: PLC0415

        collect_garbage()

        raise_limit()
        for warning in node_warnings(settings):
            log.warning(warning)
        with manager or nullcontext(), BrokerServer(settings) as server, _http_front(settings) as front:
            if front is not None:
                server.front_processes.append(front.state)
            log.info(
                "ready",
                version=bstar.__version__,
                pair=settings.pair,
                role=settings.role,
                clients=settings.endpoints.clients,
                state=settings.endpoints.state,
                peer_state=settings.endpoints.peer_state,
                http=server.http_url,
                pid=os.getpid(),
            )
            supervision = Supervision(server, manager, node.settings, follow)
            signal.signal(signal.SIGHUP, lambda number, frame: supervision.reload_soon())
            if early:
                supervision.reload_soon()
            server.run()
    except _Stopped:
        pass
    except PairError as error:
        log.critical("ended", exit_code=error.exit_code, error=str(error))
        raise
    log.info("stopped", role=settings.role)


def _http_front(settings: Settings) -> "AbstractContextManager[NodeFront | None]":
    """The process of the HTTP front, if the configuration has one."""
    if settings.fronts.http.bind is None:
        return nullcontext()
    from bstar_cli.http_front.node import NodeFront  # noqa: PLC0415 - most nodes have none

    return NodeFront(settings)


def _stop_early(number: int, frame: FrameType | None) -> NoReturn:
    raise _Stopped


def _has_variables() -> bool:
    return any(name.startswith("BSTAR_") and name not in RESERVED_VARIABLES for name in os.environ)
