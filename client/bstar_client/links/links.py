"""The links of one owner, polled together, and the ZeroMQ context that they are made from."""

import math
import select
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq

from bstar.errors import ConfigurationError
from bstar.net.io_threads import new_context
from bstar_client.arguments.settings import LinkSettings
from bstar_client.core.outputs import ClientCore
from bstar_client.core.worker.session import WorkerCore
from bstar_client.links.link import Link, Notes
from bstar_client.links.router_link import RouterLink
from bstar_client.links.wakeup import WakeUp

# After this many messages of one node, the other nodes and the timers have their turn.
_DRAIN_MAX = 512

Core = ClientCore | WorkerCore


def timeout_ms(due: float | None) -> int:
    """How long a poll may wait for this deadline, in milliseconds; -1 means for ever."""
    if due is None:
        return -1
    left_s = due - time.monotonic()
    # A deadline may be minus infinity: at once.
    return math.ceil(left_s * 1000) if left_s > 0 else 0


class AnyPoll:
    """What ``Links`` uses of ``select.epoll``, for systems without it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.fileno, self.unregister = self._selector.fileno, self._selector.unregister

    def register(self, descriptor: int, _: int) -> None:
        """Poll this descriptor for input."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Descriptors that are readable. A negative timeout is endless."""
        return [(key.fd, mask) for key, mask in self._selector.select(None if timeout_s < 0 else timeout_s)]


_new_poll: Callable[[], Any] = getattr(select, "epoll", AnyPoll)


class Links:
    """The links of one owner. It polls them together with the descriptor that wakes it.

    ``shared``: a context to use; without one the links have their own. ``wakeup`` makes ``wait`` return.
    ``poll``: what to use in the place of an epoll. ``is_router``: each link has a ROUTER, not a DEALER.
    ``warns``: log a node that does not accept the key; False where the owner says so itself.

    It polls the sockets' descriptors (ZMQ_FD), not the sockets: one system call where ``zmq_poll`` makes
    several for each socket. A descriptor shows a change once. A send may reset it, and it shows a socket's
    first message only after a read. So the owner reads a socket until it is empty, and reads a socket before
    it waits if the socket is new or has sent.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        settings: LinkSettings,
        shared: "zmq.Context[zmq.Socket[bytes]] | None",
        wakeup: WakeUp | None = None,
        poll: Any = None,  # Any: of several kinds, see AnyPoll
        is_router: bool = False,
        *,
        warns: bool = True,
    ) -> None:
        self._endpoints = endpoints
        self._link = RouterLink if is_router else Link
        self._settings = settings
        self._is_shared = shared is not None
        self._context = shared or new_context(len(endpoints))
        self._wakeup = wakeup
        self._warns = warns
        self._begin(poll or _new_poll())

    def _begin(self, poll: Any) -> None:
        self._notes = Notes(warns=self._warns)
        self._links = [
            self._link(self._context, endpoint, self._settings, index, self._notes)
            for index, endpoint in enumerate(self._endpoints)
        ]
        self._poll = poll
        if self._wakeup is not None:
            self._poll.register(self._wakeup.fd, select.POLLIN)
        # The link of each descriptor, and True for its monitor's.
        self._origins: dict[int, tuple[int, bool]] = {}
        # The results of ``wait``; messages with their sockets; links whose monitors are readable.
        self._ready: list[tuple[int, int]] = []
        self._read: list[tuple[int, zmq.Socket[bytes], list[list[bytes]]]] = []
        self._notified: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, index: int) -> Link:
        return self._links[index]

    @property
    def fd(self) -> int:
        """While everything is read, this descriptor is readable when ``wait`` would return."""
        return int(self._poll.fileno())

    @property
    def is_congested(self) -> bool:
        """True if any link has a backlog."""
        return any(link.backlog for link in self._links)

    @property
    def is_quiet(self) -> bool:
        """True if everything is read, so a descriptor shows the next message."""
        return not (self._notes.touched or self._notified or self._read)

    # --- open and close -----------------------------------------------------------------------------------

    def open(self, index: int) -> None:
        """Connect a link. ZMQError if its endpoint is invalid."""
        link = self._links[index]
        link.open()
        for descriptor, is_monitor in zip(link.descriptors(), (False, True), strict=True):
            self._origins[descriptor] = (index, is_monitor)
            self._poll.register(descriptor, select.POLLIN)
        self._notes.touched[index] = self._notified[index] = None

    def open_all(self) -> None:
        """Connect every link, or none: ConfigurationError."""
        try:
            for index in range(len(self._links)):
                self.open(index)
        except zmq.ZMQError as error:
            self.close_all()
            raise ConfigurationError(f"cannot connect to {list(self._endpoints)}: {error}") from error

    def reset(self, index: int) -> None:
        """Close a link with its messages, and open it again."""
        self.close(index)
        self.open(index)

    def close(self, index: int, linger_ms: int = 0) -> None:
        """Close a link; sent messages have ``linger_ms`` to leave the process."""
        # First the descriptors: the next socket may get the same numbers.
        for descriptor in self._links[index].descriptors():
            if self._origins.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)
        self._links[index].close(linger_ms)

    def close_all(self, linger_ms: int = 0) -> None:
        """Close every link."""
        for index in range(len(self._links)):
            self.close(index, linger_ms)

    def start_over(self) -> None:
        """Close every link; trust nothing of what an interrupt may have left half-way."""
        for link in self._links:
            link.close()
        self._begin(_new_poll())

    def end(self, linger_ms: int = 0) -> None:
        """Close every link, and terminate the context unless it is shared."""
        self.close_all(linger_ms)
        if not self._is_shared:
            self._context.term()

    # --- poll ---------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> Iterator[tuple[int, list[bytes]]]:
        """Wait, then yield (index of the link, message). Call ``changes`` afterwards."""
        self.prepare()
        self.wait(timeout_ms)
        return self.messages()

    # The steps of ``poll``, for an owner that an interrupt may hit while it waits.

    def suspect(self) -> None:
        """Let ``prepare`` and ``changes`` look at every link, whatever the descriptors show."""
        for index, _ in self._origins.values():
            self._notes.touched[index] = self._notified[index] = None

    def prepare(self) -> None:
        """Read the messages that no descriptor shows."""
        if self._notes.touched:
            self._take_in(is_ready=False)
        if self._notes.retries:
            self._connect_again()

    def next_deadline(self, core: Core) -> float | None:
        """When the core is due, or a link is to connect again, so that ``prepare`` is to be called."""
        due, retries = core.next_deadline(), self._notes.retries
        return due if not retries else min(*retries.values(), math.inf if due is None else due)

    def _connect_again(self) -> None:
        now = time.monotonic()
        for index, at in list(self._notes.retries.items()):
            if now >= at:
                del self._notes.retries[index]
                self._links[index].connect()

    def wait(self, timeout_ms: int) -> None:
        """Wait for a message or a change, -1 for ever. An exception in here loses no message."""
        if self._notes.retries:
            left_ms = max(0, math.ceil((min(self._notes.retries.values()) - time.monotonic()) * 1000))
            timeout_ms = left_ms if timeout_ms < 0 else min(left_ms, timeout_ms)
        self._ready = self._poll.poll(timeout_ms / 1000 if self.is_quiet else 0)

    def messages(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (index of the link, message) for each message."""
        notes = self._notes
        ready, self._ready = self._ready, []
        for descriptor, _ in ready:
            origin = self._origins.get(descriptor)
            if origin is not None:
                (self._notified if origin[1] else notes.touched)[origin[0]] = None
            elif self._wakeup is not None:
                self._wakeup.clear()
        if notes.touched:
            self._take_in(is_ready=True)
        read, self._read = self._read, []
        for index, socket, messages in read:
            link = self._links[index]
            for frames in messages:
                # The owner may reset the link meanwhile: the old socket's messages are void then.
                if link.socket is socket:
                    yield index, frames

    def step(
        self,
        core: Core,
        perform: Callable[[list[Any]], None],  # Any: the core's own outputs
        due: float | None = None,
        asked_at: float = 0.0,
    ) -> None:
        """Hand the core what ``wait`` found, and the time if the deadline ``due`` had passed at ``asked_at``.

        ``asked_at`` is before the wait. Another thread may have held the GIL since; what came until then is
        handed over before anything counts as overdue.
        """
        now = time.monotonic()
        for node, frames in self.messages():
            perform(core.receive(node, frames, now))
        for node, is_up in self.changes():
            last_words = self._links[node].last_words
            while last_words:
                perform(core.receive(node, last_words.popleft(), now))
            if is_up:
                perform(core.connected(node, now))
            else:
                perform(core.disconnected(node, now, is_untrusted=self._links[node].is_untrusted))
        if due is not None and asked_at >= due:
            perform(core.handle_timer(asked_at))

    def changes(self) -> Iterator[tuple[int, bool]]:
        """Yield (index of the link, True if it is up) for each change that a monitor reports."""
        if not self._notified:
            return
        notified, self._notified = self._notified, {}
        for index in notified:
            for is_up in self._links[index].changes():
                yield index, is_up

    def _take_in(self, *, is_ready: bool) -> None:
        """Send backlogs and read messages of the links that may have some."""
        touched = self._notes.touched
        for index in list(touched):
            link = self._links[index]
            socket = link.socket
            if link.backlog:
                link.flush()
            messages = link.receive(_DRAIN_MAX, is_ready=is_ready)
            if messages and socket is not None:
                self._read.append((index, socket, messages))
            if len(messages) < _DRAIN_MAX:
                touched.pop(index, None)


class Sockets:
    """The ``Net`` of every program: ZeroMQ's sockets, and the system's clock."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.new_links: Callable[..., Links] = Links


SOCKETS = Sockets()
