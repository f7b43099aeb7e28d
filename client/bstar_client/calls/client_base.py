"""What every client has, of brokers or of servers without one: a core, its settings, its observers."""

import os
from collections.abc import Callable
from typing import NoReturn

from bstar_client.arguments.checks import check_function, check_map
from bstar_client.arguments.settings import ClientSettings, Net
from bstar_client.calls.delivery import Delivery
from bstar_client.core.counters import ENDS, Counters
from bstar_client.core.events import Event
from bstar_client.core.outputs import ClientCore
from bstar_client.core.window import Window
from bstar_client.links.links import SOCKETS


class ClientBase:
    """Base of every client. A subclass calls ``_begin`` at the end of its constructor."""

    endpoints: tuple[str, ...]
    _net: Net = SOCKETS
    _settings: ClientSettings
    _core: ClientCore
    _delivery: Delivery
    _pid: int

    def _begin(self, on_event: Callable[[Event], object] | None, partials_max: int) -> None:
        """Make the rest of it, once the core and the settings are there."""
        self.endpoints = self._settings.fleet.endpoints
        self._delivery = Delivery(self._core, on_event, partials_max, self._net.clock)
        self._pid = os.getpid()
        self._init_shell()

    def _init_shell(self) -> None:
        """Make what the shell has from the beginning."""

    def _new_window(
        self, bodies: object, window: int, ordered: bool, errors: str, *, name: str = "map"
    ) -> Window:
        """The window of a ``map``, or of the method of this name, whose arguments are checked here."""
        size = check_map(bodies, window, ordered, errors)
        return Window(size, self.counters, name, is_ordered=ordered, is_returning=errors == "return")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: make one in each process")

    def __repr__(self) -> str:
        """Its servers, and how many calls are under way."""
        name = type(self).__name__
        if not hasattr(self, "_delivery"):
            return f"<{name}, not made>"
        words = [", ".join(self.endpoints), *self._standing()]
        if self._settings.link.security is not None:
            words.append(f"key {self._settings.link.security.key.name}")
        return f"<{name} {'; '.join(words)}>"

    def _standing(self) -> list[str]:
        """How it is, in words for its repr. Any thread may ask."""
        counters = self.counters
        in_flight = max(0, counters.requests - sum(getattr(counters, name) for name in ENDS))
        return [f"{in_flight} in flight"]

    @property
    def counters(self) -> Counters:
        """Counts of events so far, as plain integers."""
        return self._core.counters

    def observe(self, observer: Callable[[Event], object]) -> None:
        """Call ``observer`` with each event from now on, like ``on_event``. It must not block."""
        check_function(observer, "an observer")
        self._delivery.observers.append(observer)
