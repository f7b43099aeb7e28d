"""A running node is supervised: a service manager hears how it stands, and SIGHUP makes it reload."""

import logging
from collections.abc import Callable
from contextlib import suppress

from bstar.errors import ClosedError, ConfigurationError
from bstar.host.service_manager import ServiceManager
from bstar.settings import Settings
from bstar_broker.operate.reload import Reload, reload
from bstar_broker.server import BrokerServer

_log = logging.getLogger("bstar.broker")

# How old a status line may be.
_STATUS_INTERVAL_S = 1.0


class Supervision:
    """Reports to ``manager``, if there is one, by timers of the server's loop. So a loop that hangs lets the
    manager's watchdog end the process. ``read`` reads the configuration; ``on_reload`` hears what it changed.
    """

    def __init__(
        self,
        server: BrokerServer,
        manager: ServiceManager | None,
        read: Callable[[], Settings],
        on_reload: Callable[[Reload], None],
    ) -> None:
        self._server = server
        self._manager = manager
        self._read = read
        self._on_reload = on_reload
        self._sent = ""
        if manager is not None:
            self._say_ready(manager)
            reactor = server.reactor
            reactor.add_timer(_STATUS_INTERVAL_S, lambda now: self._say_status(manager))
            if manager.watchdog_s is not None:
                # Half of the time, as sd_watchdog_enabled(3) advises.
                reactor.add_timer(manager.watchdog_s / 2, lambda now: manager.alive())
            reactor.on_stop(lambda now: manager.stopping(), lambda now: True)

    def reload_soon(self) -> None:
        """Let the loop read the configuration. A handler of a signal may call this."""
        with suppress(ClosedError):  # the node has just ended
            self._server.reactor.call_threadsafe(self._reload)

    def _reload(self) -> None:
        server, manager = self._server, self._manager
        if manager is not None:
            manager.reloading()
        try:
            result = reload(server.settings, self._read(), server.node.broker.ledger.settings)
            server.follow(result.settings)
            self._on_reload(result)
        except ConfigurationError as error:
            _log.error("the configuration was not read again, and the node goes on as before: %s", error)
        except Exception:  # noqa: BLE001  # nothing that a file says ends a node, or leaves its manager waiting
            _log.exception("the configuration was not read again, by a defect of bstar")
        if manager is not None:
            self._say_ready(manager)

    def _say_ready(self, manager: ServiceManager) -> None:
        self._sent = self._status()
        manager.ready(self._sent)

    def _say_status(self, manager: ServiceManager) -> None:
        status = self._status()
        if status != self._sent:
            self._sent = status
            manager.status(status)

    def _status(self) -> str:
        machine = self._server.node.machine
        return f"{machine.state.name.lower()}, epoch {machine.epochs.own}"
