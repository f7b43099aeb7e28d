"""The calls of the guide's Majordomo programs: so such a program moves to a pair step by step.

    worker = MajorDomoWorker("tcp://n1:5001,tcp://n2:5002", b"echo")    mdwrkapi: recv(reply)
    client = MajorDomoClient("tcp://n1:5001,tcp://n2:5002")             mdcliapi2: send(…), recv()

Frames go in and come out as with the guide's classes. Under them are ``Worker`` and ``HAClient``: both nodes,
heartbeats while the program computes, failover, errors. docs/plain.md has the steps.
"""

import queue
from collections.abc import Sequence
from typing import Any

from bstar.base.closing import Closing
from bstar_client.arguments.environment import fleet_of_text
from bstar_client.core.calls import Reply
from bstar_client.sync.client import HAClient
from bstar_client.sync.futures import CallFuture
from bstar_client.sync.worker import Worker
from bstar_client.workers.handlers import Request

Frames = bytes | Sequence[bytes]

# The guide's classes wait so long for a reply.
WAIT_S = 2.5
# A request without a reply has so long to get one when the program leaves; then another worker gets it.
_DRAIN_S = 1.0


class MajorDomoClient(Closing):
    """``send`` and ``recv`` of the guide's asynchronous client.

    ``broker``: the endpoints of both nodes, with commas between. ``wait_s``: how long ``recv`` waits.
    ``options`` are those of ``HAClient``; its ``timeout`` is each request's deadline. One thread uses it.
    """

    def __init__(self, broker: str, *, wait_s: float = WAIT_S, **options: Any) -> None:
        self._wait_s = wait_s
        self._client = HAClient(fleet_of_text("broker", broker), **options)
        self._outstanding = 0
        self._ended: queue.SimpleQueue[CallFuture[Reply]] = queue.SimpleQueue()

    def send(self, service: bytes | str, request: Frames) -> None:
        """Send a request and return at once. ``request``: one frame, or a list of them."""
        future = self._client.begin(service, request)
        self._outstanding += 1
        future.add_done_callback(self._ended.put)  # type: ignore[arg-type]  # what ``begin`` returned

    def recv(self) -> list[bytes] | None:
        """The frames of the reply that comes next, to whichever request: replies overtake each other.

        None if none comes in ``wait_s``, if no request waits for one, and after Ctrl-C. A request that failed
        raises its error here, as with ``HAClient.request``.
        """
        if not self._outstanding:
            return None
        try:
            future = self._ended.get(timeout=self._wait_s)
        except (queue.Empty, KeyboardInterrupt):
            return None
        self._outstanding -= 1
        return list(future.result().frames)

    def close(self) -> None:
        """Give up what has no reply. Idempotent."""
        self._client.close()

    destroy = close


class MajorDomoWorker(Closing):
    """``recv`` of the guide's worker: it takes the reply to the last request and returns the next request.

        reply = None
        while (request := worker.recv(reply)) is not None:
            reply = request

    ``broker``: the endpoints of both nodes, with commas between. ``options`` are those of ``Worker``. It has
    one request at a time. One thread uses it.
    """

    def __init__(self, broker: str, service: bytes | str, **options: Any) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Frames | None] = queue.SimpleQueue()
        self._has_request = False
        options.setdefault("drain_timeout_s", _DRAIN_S)
        # Not that of ``_handle``.
        options.setdefault("description", "")
        self._worker = Worker(fleet_of_text("broker", broker), service, self._handle, **options).start()

    def _handle(self, request: Request) -> Frames | None:
        """In the worker's thread: the program has the request until it gives a reply."""
        self._requests.put(request)
        return self._replies.get()

    def recv(self, reply: Frames | None = None) -> list[bytes] | None:
        """Give the reply to the last request, if there was one, and wait for the next.

        ``reply``: one frame, or a list of them; None after a request is a reply of one empty frame. Returns
        the request's frames; None after ``close``, and after Ctrl-C, when the worker leaves its nodes.
        """
        if self._has_request:
            self._has_request = False
            self._replies.put(b"" if reply is None else reply)
        try:
            request = self._requests.get()
        except KeyboardInterrupt:
            self.close()
            return None
        if request is None:
            self._requests.put(None)
            return None
        self._has_request = True
        return list(request.frames)

    def close(self) -> None:
        """Leave the nodes. A request without a reply goes to another worker. Idempotent."""
        self._requests.put(None)
        self._worker.close()
        # The thread of a request that has no reply.
        self._replies.put(None)

    destroy = close
