"""Links: a DEALER for each endpoint, with a monitor that reports when its connection is up or broken.

``ZMQ_IMMEDIATE`` makes the socket refuse messages while there is no connection. Without it, messages wait for
a connection that may never come. If the socket refuses a message although the connection is up, the message
waits in ``backlog`` until there is room. This keeps the order.
"""

import math
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from bstar.errors import ConfigurationError
from bstar.io_threads import keep_apart, new_context
from bstar.sockets import is_readable, receive, receive_event, send
from bstar_client.core.outputs import ClientCore
from bstar_client.core.worker_session import WorkerCore
from bstar_client.settings import LinkSettings
from bstar_client.wakeup import WakeUp

# After this many messages of one node, the other nodes and the timers have their turn.
_DRAIN_MAX = 512
# After this many messages of a burst, ask the socket whether it has more.
_ASKS_MAX = 5

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


Core = ClientCore | WorkerCore


def timeout_ms(due: float | None) -> int:
    """How long a poll may wait for this deadline, in milliseconds; -1 means for ever."""
    return -1 if due is None else max(0, math.ceil((due - time.monotonic()) * 1000))


@contextmanager
def connecting(endpoints: Sequence[str]) -> Iterator[None]:
    """Turn a ZMQError of opening links into a ConfigurationError."""
    try:
        yield
    except zmq.ZMQError as error:
        raise ConfigurationError(f"cannot connect to {list(endpoints)}: {error}") from error


class Link:
    """A DEALER and its monitor. Only the thread that owns it may call it.

    ``is_refused``: the last attempt to connect was refused, because nobody listened. A broken connection or a
    slow handshake does not count.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        settings: LinkSettings,
        index: int = 0,
        notes: "_Notes | None" = None,
    ) -> None:
        self._context = context
        self.endpoint = endpoint
        self._settings = settings
        self._index = index
        self._notes = notes or _Notes()
        self.backlog: deque[list[bytes]] = deque()
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        self._keepalive: zmq.Socket[bytes] | None = None
        self.is_refused = False

    def open(self) -> None:
        """Make a new socket and start connecting; ZMQError if the endpoint is none."""
        assert self.socket is None, "the link is open already"
        settings = self._settings
        socket = self._dealer()
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, settings.heartbeat_ms)
        socket.setsockopt(zmq.SNDHWM, settings.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, settings.high_water_mark)
        socket.setsockopt(zmq.MAXMSGSIZE, settings.message_bytes_max)
        self.monitor = socket.get_monitor_socket(_EVENTS)
        self.monitor.linger = 0
        self.socket = socket
        self._notes.changed[self._index] = None
        try:
            socket.connect(self.endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def keep_alive(self, routing_id: bytes, interval_ms: int, ttl_ms: int) -> None:
        """Make the keepalive, a second connection that libzmq serves by itself.

        See ``worker_session.KeepAlive``.
        """
        self._end_keepalive()
        socket = self._dealer()
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        # The broker sends probes; nobody reads them.
        socket.setsockopt(zmq.CONFLATE, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, interval_ms)
        socket.setsockopt(zmq.HEARTBEAT_TTL, ttl_ms)
        socket.connect(self.endpoint)
        self._keepalive = socket

    def _dealer(self) -> "zmq.Socket[bytes]":
        settings = self._settings
        socket = self._context.socket(zmq.DEALER)
        keep_apart(socket, self._index)
        socket.linger = 0
        socket.setsockopt(zmq.HANDSHAKE_IVL, settings.handshake_ms)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, settings.connect_timeout_ms)
        socket.setsockopt(zmq.RECONNECT_IVL, settings.reconnect_min_ms)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, settings.reconnect_max_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.heartbeat_timeout_ms)
        return socket

    def _end_keepalive(self) -> None:
        keepalive, self._keepalive = self._keepalive, None
        if keepalive is not None:
            keepalive.close(0)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; sent messages have ``linger_ms`` to leave the process."""
        self._end_keepalive()
        socket = self.socket
        if socket is not None:
            monitor = self.monitor
            self.socket = None
            self.monitor = None
            self.backlog.clear()
            self._notes.changed[self._index] = None
            socket.disable_monitor()
            if monitor is not None:
                monitor.close(0)
            socket.close(linger_ms)

    def descriptors(self) -> tuple[int, int] | None:
        """The descriptors of the socket and of its monitor (ZMQ_FD). None if closed."""
        if self.socket is None or self.monitor is None:
            return None
        return int(self.socket.getsockopt(zmq.FD)), int(self.monitor.getsockopt(zmq.FD))

    def send(self, frames: list[bytes]) -> None:
        """Send the message, or keep it until the socket takes it. A closed link drops it."""
        socket = self.socket
        if socket is None:
            return
        self._notes.touched[self._index] = None
        if self.backlog or not self._try_send(socket, frames):
            self.backlog.append(frames)

    def flush(self) -> None:
        """Send as much of the backlog as the socket takes."""
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
            # libzmq notices a new connection when the program asks for the socket's events.
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                return False
            try:
                send(socket, frames)
            except zmq.Again:
                return False
        return True

    def receive(self, limit: int, *, is_ready: bool) -> list[list[bytes]]:
        """The messages that have arrived, ``limit`` at most. ``is_ready``: there is probably one."""
        messages: list[list[bytes]] = []
        socket = self.socket
        if socket is None:
            return messages
        try:
            while len(messages) < limit:
                # To ask costs less than zmq.Again, but not if repeated.
                if (messages or not is_ready) and len(messages) < _ASKS_MAX and not is_readable(socket):
                    break
                messages.append(receive(socket))
        except zmq.Again:
            pass
        return messages

    def changes(self) -> list[bool]:
        """The changes of the connection, in order: True if it is up, False if it broke or was refused."""
        changes: list[bool] = []
        monitor = self.monitor
        if monitor is None:
            return changes
        try:
            while True:
                event = receive_event(monitor)[0]
                if event == zmq.EVENT_CLOSED:
                    # The closed connection was never up; EVENT_CONNECT_RETRIED comes next.
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


class _Notes:
    """What the links of one owner note about themselves, by their indexes."""

    def __init__(self) -> None:
        # Links with new sockets, and links that may have a message that no descriptor shows.
        self.changed: dict[int, None] = {}
        self.touched: dict[int, None] = {}


class Links:
    """The links of one owner. It polls them together with the descriptor that wakes it.

    It polls the sockets' descriptors (ZMQ_FD), not the sockets: one system call where ``zmq_poll`` makes
    several for each socket. A descriptor shows a change once. A send may reset it, and it shows a socket's
    first message only after a read. So the owner reads a socket until it is empty, and reads a socket before
    it waits if the socket is new or has sent.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        settings: LinkSettings,
        wakeup: WakeUp,
    ) -> None:
        self._notes = _Notes()
        self._links = [
            Link(context, endpoint, settings, index, self._notes) for index, endpoint in enumerate(endpoints)
        ]
        self._wakeup = wakeup
        self._poller = select.poll()
        self._poller.register(wakeup.fd, select.POLLIN)
        # The link of each descriptor, and True for its monitor's; the descriptors of each open link.
        self._origins: dict[int, tuple[int, bool]] = {}
        self._watched: dict[int, tuple[int, ...]] = {}
        # The results of ``wait``; messages with their sockets; links whose monitors are readable.
        self._ready: list[tuple[int, int]] = []
        self._read: list[tuple[int, zmq.Socket[bytes], list[list[bytes]]]] = []
        self._told: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, index: int) -> Link:
        return self._links[index]

    @property
    def is_congested(self) -> bool:
        """True if any link has a backlog."""
        return any(self._links[index].backlog for index in self._watched)

    @property
    def is_quiet(self) -> bool:
        """True if everything is read, so a descriptor shows the next message."""
        return not (self._notes.touched or self._told or self._read or self._notes.changed)

    def descriptors(self) -> list[int]:
        """Descriptors that another thread can poll while everything is read."""
        if self._notes.changed:
            self._watch()
        return list(self._origins)

    def open(self) -> None:
        """Open every link, or none: ZMQError."""
        try:
            for link in self._links:
                link.open()
        except zmq.ZMQError:
            self.close()
            raise

    def reset(self, index: int) -> None:
        """Close a link with its messages, and open it again."""
        self._links[index].close()
        self._links[index].open()

    def close(self, linger_ms: int = 0) -> None:
        """Close every link."""
        for link in self._links:
            link.close(linger_ms)

    def poll(self, timeout_ms: int) -> Iterator[tuple[int, list[bytes]]]:
        """Wait, then yield (index of the link, message). Call ``changes`` afterwards."""
        self.prepare()
        self.wait(timeout_ms)
        return self.messages()

    # The steps of ``poll``, for an owner that an interrupt may hit while it waits.

    def prepare(self) -> None:
        """Read the messages that no descriptor shows."""
        if self._notes.changed:
            self._watch()
        if self._notes.touched:
            self._take_in(is_ready=False)

    def wait(self, timeout_ms: int) -> None:
        """Wait for a message or a change, -1 for ever. An exception in here loses no message."""
        self._ready = self._poller.poll(timeout_ms if self.is_quiet else 0)

    def messages(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (index of the link, message) for each message."""
        notes = self._notes
        ready, self._ready = self._ready, []
        for descriptor, _ in ready:
            origin = self._origins.get(descriptor)
            if origin is None:
                self._wakeup.clear()
            elif origin[1]:
                self._told[origin[0]] = None
            else:
                notes.touched[origin[0]] = None
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
            perform(core.connected(node, now) if is_up else core.disconnected(node, now))
        if due is not None and asked_at >= due:
            perform(core.handle_timer(asked_at))

    def changes(self) -> Iterator[tuple[int, bool]]:
        """Yield (index of the link, True if it is up) for each change that a monitor reports."""
        if not self._told:
            return
        told, self._told = self._told, {}
        for index in told:
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

    def _watch(self) -> None:
        """Poll the sockets that are open now."""
        changed = list(self._notes.changed)
        self._notes.changed.clear()
        for index in changed:
            for descriptor in self._watched.pop(index, ()):
                # Another link's new socket may have got the number in the meantime.
                if self._origins.get(descriptor, (index,))[0] == index:
                    self._origins.pop(descriptor, None)
                    self._poller.unregister(descriptor)
            descriptors = self._links[index].descriptors()
            if descriptors is not None:
                self._watched[index] = descriptors
                for descriptor, is_monitor in zip(descriptors, (False, True), strict=True):
                    self._origins[descriptor] = (index, is_monitor)
                    self._poller.register(descriptor, select.POLLIN)
                self._notes.touched[index] = None
                self._told[index] = None


class Transport:
    """The ZeroMQ context of a client or worker, its own or a shared one, and the links made from it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        settings: LinkSettings,
        shared: "zmq.Context[zmq.Socket[bytes]] | None",
    ) -> None:
        self._endpoints = endpoints
        self._settings = settings
        self._is_shared = shared is not None
        self._context = shared or new_context(len(endpoints))

    def new_links(self, wakeup: WakeUp) -> Links:
        """Links to all endpoints, closed."""
        return Links(self._context, self._endpoints, self._settings, wakeup)

    def close(self) -> None:
        """Terminate the context, unless it is shared. Close every link before."""
        if not self._is_shared:
            self._context.term()
