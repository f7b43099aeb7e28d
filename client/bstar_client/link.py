"""One DEALER to one endpoint, with the monitor that tells when its connection is up and when it breaks.

``ZMQ_IMMEDIATE`` makes the socket refuse messages while there is no connection, instead of keeping them
for one that may never come (PROTOCOLS: a DEALER buffers for connections that are not up yet). A message
that the socket does not take although the connection is up waits in ``backlog`` until there is room, so
that order is kept.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from bstar.io_threads import keep_apart
from bstar.sockets import is_readable, receive, send
from bstar_client.wakeup import WakeUp

__all__ = ["Link", "LinkSettings", "Links"]

# Messages read from one node before the others and the timers have their turn.
_DRAIN_MAX = 512
# Messages of a burst before which the socket is asked for more.
_ASKS_MAX = 5
_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class LinkSettings(msgspec.Struct, frozen=True):
    """Socket options that a program may want to change.

    Times in milliseconds. ``high_water_mark`` counts messages in each direction; the client's limit on
    outstanding requests should not exceed it, or replies may be dropped by the node.
    """

    handshake_ms: int = 1_000
    connect_timeout_ms: int = 1_000
    reconnect_min_ms: int = 20
    reconnect_max_ms: int = 250
    heartbeat_ms: int = 1_000
    heartbeat_timeout_ms: int = 5_000
    high_water_mark: int = 100_000
    message_bytes_max: int = 64 * 1024 * 1024


_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Link:
    """A DEALER and its monitor. Everything is called from the thread that owns it.

    ``is_refused``: the last attempt to connect found nobody, which is another thing than a connection that
    broke or a node too busy to shake hands.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        settings: LinkSettings,
        place: int = 0,
        opened: dict[int, None] | None = None,
    ) -> None:
        self._context = context
        self.endpoint = endpoint
        self._settings = settings
        self._place = place
        self._opened = {} if opened is None else opened
        self.backlog: deque[list[bytes]] = deque()
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self.is_refused = False

    def open(self) -> None:
        """Make a new socket and start connecting; ZMQError if the endpoint is none."""
        assert self.socket is None, "the link is open already"
        settings = self._settings
        socket = self._context.socket(zmq.DEALER)
        keep_apart(socket, self._place)
        socket.linger = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, settings.handshake_ms)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, settings.connect_timeout_ms)
        socket.setsockopt(zmq.RECONNECT_IVL, settings.reconnect_min_ms)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, settings.reconnect_max_ms)
        socket.setsockopt(zmq.HEARTBEAT_IVL, settings.heartbeat_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.heartbeat_timeout_ms)
        socket.setsockopt(zmq.SNDHWM, settings.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, settings.high_water_mark)
        socket.setsockopt(zmq.MAXMSGSIZE, settings.message_bytes_max)
        self.monitor = socket.get_monitor_socket(_EVENTS)
        self.monitor.linger = 0
        self.socket = socket
        self._opened[self._place] = None
        try:
            socket.connect(self.endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; what has been sent has ``linger_ms`` to leave the process."""
        socket = self.socket
        if socket is not None:
            monitor = self.monitor
            self.socket = None
            self.monitor = None
            self.backlog.clear()
            socket.disable_monitor()
            if monitor is not None:
                monitor.close(0)
            socket.close(linger_ms)

    def descriptors(self) -> set[int]:
        """What an event loop of another kind watches for reading: each tells of a change once (ZMQ_FD)."""
        sockets = (self.socket, self.monitor)
        return {int(socket.getsockopt(zmq.FD)) for socket in sockets if socket is not None}

    def send(self, frames: list[bytes]) -> None:
        """Send, or keep it until the socket takes it; without a socket it is dropped."""
        socket = self.socket
        if socket is None:
            return
        if self.backlog or not self._try_send(socket, frames):
            self.backlog.append(frames)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        socket = self.socket
        if socket is None:
            return
        backlog = self.backlog
        while backlog and self._try_send(socket, backlog[0]):
            backlog.popleft()

    @staticmethod
    def _try_send(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> bool:
        try:
            send(socket, frames)
        except zmq.Again:
            # A connection that has just come up is noticed when the socket is asked about its events.
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                return False
            try:
                send(socket, frames)
            except zmq.Again:
                return False
        return True

    def receive(self, limit: int) -> list[list[bytes]]:
        """The messages that are there, at most ``limit``."""
        messages: list[list[bytes]] = []
        socket = self.socket
        if socket is None:
            return messages
        try:
            while len(messages) < limit:
                # Asking is cheaper than running into zmq.Again, but not than many times.
                if 0 < len(messages) < _ASKS_MAX and not is_readable(socket):
                    break
                messages.append(receive(socket))
        except zmq.Again:
            pass
        return messages

    def changes(self) -> list[bool]:
        """What the monitor tells, in order: True the connection is up, False it broke or was refused."""
        changes: list[bool] = []
        monitor = self.monitor
        if monitor is None:
            return changes
        try:
            while True:
                event = recv_monitor_message(monitor, zmq.DONTWAIT)["event"]
                if event == zmq.EVENT_CLOSED:
                    # What was closed was never connected; EVENT_CONNECT_RETRIED comes next.
                    self.is_refused = True
                    continue
                if event != zmq.EVENT_CONNECT_RETRIED:
                    self.is_refused = False
                is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                changes.append(is_up)
                if not is_up:
                    self.backlog.clear()
        except zmq.Again:
            pass
        return changes


class Links:
    """The links of one session, polled together with the descriptor that wakes their owner."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        settings: LinkSettings,
        wakeup: WakeUp,
    ) -> None:
        # Those that are open, or were when they were polled last: of many pairs a client may use few.
        self._opened: dict[int, None] = {}
        self._links = [
            Link(context, endpoint, settings, place, self._opened) for place, endpoint in enumerate(endpoints)
        ]
        self._wakeup = wakeup
        self._poller = zmq.Poller()
        self._poller.register(wakeup.fd, zmq.POLLIN)
        # What is registered of each link. Sockets change when a link is opened anew, flags with its backlog.
        self._registered: list[_Registered] = [_NOTHING] * len(self._links)
        self._ready: dict[object, int] = {}

    def __getitem__(self, index: int) -> Link:
        return self._links[index]

    @property
    def is_congested(self) -> bool:
        """Does any link wait for room in its socket?"""
        return any(self._links[index].backlog for index in self._opened)

    def open(self) -> None:
        """Open every link."""
        for link in self._links:
            link.open()

    def close(self, linger_ms: int = 0) -> None:
        """Close every link."""
        for link in self._links:
            link.close(linger_ms)

    def poll(self, timeout_ms: int) -> Iterator[tuple[int, list[bytes]]]:
        """Wait, then yield (index of the link, message) for what has come; ``changes`` belongs after it."""
        closed = []
        for index in self._opened:
            link = self._links[index]
            flags = _POLLIN | _POLLOUT if link.backlog else _POLLIN
            socket, monitor, flags_before = self._registered[index]
            if socket is not link.socket or (socket is not None and flags != flags_before):
                for old in (socket, monitor):
                    if old is not None:
                        self._poller.unregister(old)
                self._registered[index] = _NOTHING
                if link.socket is not None and link.monitor is not None:
                    self._poller.register(link.socket, flags)
                    self._poller.register(link.monitor, zmq.POLLIN)
                    self._registered[index] = (link.socket, link.monitor, flags)
            if link.socket is None:
                closed.append(index)
        for index in closed:
            del self._opened[index]
        self._ready = ready = dict(self._poller.poll(timeout_ms))
        if self._wakeup.fd in ready:
            self._wakeup.clear()
        return self._messages(ready)

    def _messages(self, ready: "dict[object, int]") -> Iterator[tuple[int, list[bytes]]]:
        # A list, because what is yielded may lead to a link being opened.
        for index in list(self._opened):
            link = self._links[index]
            socket = self._registered[index][0]
            flags = ready.get(socket, 0)
            if flags & _POLLOUT:
                link.flush()
            if flags & _POLLIN and link.socket is socket:
                for frames in link.receive(_DRAIN_MAX):
                    yield index, frames

    def changes(self) -> Iterator[tuple[int, bool]]:
        """Yield (index of the link, is it up) for what the monitors tell."""
        for index in list(self._opened):
            link = self._links[index]
            monitor = self._registered[index][1]
            if monitor in self._ready and link.monitor is monitor:
                for is_up in link.changes():
                    yield index, is_up


_Registered = tuple["zmq.Socket[bytes] | None", "zmq.Socket[bytes] | None", int]
_NOTHING: _Registered = (None, None, 0)
