"""Counts the bytes of replies that clients have not read, and bounds them.

libzmq bounds a connection's queue in messages only. It releases the memory of a frame that it did not copy
once that frame has left the queue. So the last of some frames to a client is sent uncopied, as a marker: the
queue is in order, so when a marker is released, all before it have left as well. What the kernel has from
libzmq counts as read. So does what no marker stands for yet.

pyzmq reports a release some 50 ms late on a busy machine. So the first ``_ALLOWED_BYTES`` of each client do
not count: a client that reads everything at once must not be refused because its limit is small.
"""

from collections import deque

import msgspec
import zmq

from bstar.net.sockets import send
from bstar_broker.core.waiting import Waiting

# Smaller messages are not counted: the queue's length bounds them.
COUNTED_BYTES_MIN = 4 << 10
# At 20 MB/s a client reads this much in 50 ms.
_ALLOWED_BYTES = 1 << 20
# A marker costs some microseconds, so it stands for this many bytes at least.
_MARKED_BYTES = 64 << 10


class _Queue(msgspec.Struct):
    """What waits for one client: markers with the bytes up to each, these bytes in all, and the bytes
    after the last marker.
    """

    markers: deque[tuple[zmq.MessageTracker, int]]
    held: int = 0
    unmarked_bytes: int = 0


class Unread:
    """Sends large messages through ``socket``, and keeps ``waiting.unread``."""

    def __init__(self, socket: "zmq.Socket[bytes]", waiting: Waiting) -> None:
        self._socket = socket
        self._waiting = waiting
        self._queues: dict[bytes, _Queue] = {}

    def send(self, frames: list[bytes]) -> None:
        """As ``bstar.net.sockets.send``. ``zmq.Again`` also if this client has too much unread."""
        client, size_bytes = frames[0], sum(map(len, frames))
        queue = self._queues.get(client)
        if queue is None:
            queue = self._queues[client] = _Queue(deque())
        self._settle(client, queue)
        if self._waiting.unread.get(client) and self._waiting.is_heavy(client, size_bytes):
            raise zmq.Again
        if queue.unmarked_bytes + size_bytes < _MARKED_BYTES:
            send(self._socket, frames)
            queue.unmarked_bytes += size_bytes
            return
        marker = zmq.Frame(frames[-1], track=True, copy=False)
        send(self._socket, [*frames[:-1], marker])  # type: ignore[list-item]  # a Frame is sent as it is
        assert isinstance(marker.tracker, zmq.MessageTracker)
        marked = queue.unmarked_bytes + size_bytes
        self._count(client, queue, marked)
        queue.markers.append((marker.tracker, marked))
        queue.unmarked_bytes = 0

    def look(self, now: float) -> None:
        """Take off what has been read."""
        for client, queue in list(self._queues.items()):
            self._settle(client, queue)
            if not queue.markers:
                del self._queues[client]

    def _settle(self, client: bytes, queue: _Queue) -> None:
        while queue.markers and queue.markers[0][0].done:
            self._count(client, queue, -queue.markers.popleft()[1])

    def _count(self, client: bytes, queue: _Queue, size_bytes: int) -> None:
        waiting = self._waiting
        queue.held += size_bytes
        left = max(queue.held - _ALLOWED_BYTES, 0)
        waiting.unread_bytes += left - waiting.unread.get(client, 0)
        if left:
            waiting.unread[client] = left
        else:
            waiting.unread.pop(client, None)
