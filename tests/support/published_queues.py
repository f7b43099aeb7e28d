"""The guide's Pirate queues and Majordomo broker in threads, with the habits that matter to workers."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Self

import zmq

from bstar.base.closing import Closing
from support.waiting import Bell, Socket

_POLL_MS = 20
INTERVAL_S = 0.2
# Of intervals: a busy machine is not taken for a dead worker.
LIVENESS = 50


def _endpoint(socket: Socket) -> str:
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


class _Published(Closing):
    """Runs until the block ends. ``clients`` and ``workers`` are where they connect."""

    def __init__(self, clients: str = "tcp://127.0.0.1:*", workers: str = "tcp://127.0.0.1:*") -> None:
        self.bell = Bell()
        # What workers have sent: the frames behind each routing id, in order.
        self.heard: defaultdict[bytes, list[list[bytes]]] = defaultdict(list)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.linger = 0
        self._front, self._back = self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER)
        for socket, endpoint in ((self._front, clients), (self._back, workers)):
            socket.bind(endpoint)
        self.clients, self.workers = map(_endpoint, (self._front, self._back))
        self._stop = threading.Event()
        self._beat_at = time.monotonic() + INTERVAL_S
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """End its thread and its sockets."""
        self._stop.set()
        self._thread.join()
        self._context.destroy()

    def wait_for(self, frames: list[bytes], count: int = 1) -> None:
        """Until workers have sent this message so often."""
        self.bell.wait_until(lambda: sum(sent.count(frames) for sent in self.heard.values()) >= count)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._back.poll(_POLL_MS):
                worker, *frames = self._back.recv_multipart()
                self._hear_worker(worker, frames)
                with self.bell.ringing():
                    self.heard[worker].append(frames)
            if self._takes_requests and self._front.poll(0):
                self._hear_client(self._front.recv_multipart())
            if time.monotonic() >= self._beat_at:
                self._beat_at = time.monotonic() + INTERVAL_S
                self._beat()

    @property
    def _takes_requests(self) -> bool:
        raise NotImplementedError

    def _hear_worker(self, worker: bytes, frames: list[bytes]) -> None:
        raise NotImplementedError

    def _hear_client(self, frames: list[bytes]) -> None:
        raise NotImplementedError

    def _beat(self) -> None:
        raise NotImplementedError


class PublishedQueue(_Published):
    """Any message of a worker lists it, also the heartbeat of one that works. A request takes it off.

    Only those on the list get heartbeats and can expire. ``is_paranoid`` is False: nothing expires.
    """

    is_paranoid = True
    _lead: tuple[bytes, ...] = ()

    def __init__(self, clients: str = "tcp://127.0.0.1:*", workers: str = "tcp://127.0.0.1:*") -> None:
        super().__init__(clients, workers)
        self._listed: dict[bytes, float] = {}

    @property
    def _takes_requests(self) -> bool:
        return bool(self._listed)

    def _hear_worker(self, worker: bytes, frames: list[bytes]) -> None:
        self._listed.pop(worker, None)
        self._listed[worker] = time.monotonic() + INTERVAL_S * LIVENESS
        rest = frames[len(self._lead) :]
        if len(rest) > 1:
            self._front.send_multipart(rest)

    def _hear_client(self, frames: list[bytes]) -> None:
        worker = next(iter(self._listed))
        del self._listed[worker]
        self._back.send_multipart([worker, *self._lead, *frames])

    def _beat(self) -> None:
        if self.is_paranoid:
            for worker in self._listed:
                self._back.send_multipart([worker, b"\x02"])
            now = time.monotonic()
            self._listed = {worker: at for worker, at in self._listed.items() if at > now}


class PublishedSimpleQueue(PublishedQueue):
    """The Simple Pirate's: workers are REQ sockets."""

    is_paranoid = False
    _lead = (b"",)


class PublishedBroker(_Published):
    """MDP/0.1. Waiting workers alone get heartbeats, and the thread ends at a DISCONNECT: ``is_ended``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False
        self._service_of: dict[bytes, bytes] = {}
        self._waiting: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self._requests: defaultdict[bytes, list[list[bytes]]] = defaultdict(list)

    @property
    def _takes_requests(self) -> bool:
        return True

    def _hear_worker(self, worker: bytes, frames: list[bytes]) -> None:
        empty, header, command, *rest = frames
        assert (empty, header) == (b"", b"MDPW01")
        known = self._service_of.get(worker)
        if command == b"\x05":
            self.is_ended = True
            self._stop.set()
        elif (command == b"\x01") == (known is not None):
            self._service_of.pop(worker, None)
            self._back.send_multipart([worker, b"", b"MDPW01", b"\x05"])
        elif command == b"\x01":
            self._service_of[worker] = rest[0]
            self._offer(worker, rest[0])
        elif command == b"\x03" and known is not None:
            client, empty, *body = rest
            self._front.send_multipart([client, b"", b"MDPC01", known, *body])
            self._offer(worker, known)

    def _hear_client(self, frames: list[bytes]) -> None:
        client, empty, header, service, *body = frames
        assert (empty, header) == (b"", b"MDPC01")
        self._requests[service].append([client, b"", *body])
        self._dispatch(service)

    def _offer(self, worker: bytes, service: bytes) -> None:
        self._waiting[service].append(worker)
        self._dispatch(service)

    def _dispatch(self, service: bytes) -> None:
        waiting, requests = self._waiting[service], self._requests[service]
        while waiting and requests:
            self._back.send_multipart([waiting.pop(0), b"", b"MDPW01", b"\x02", *requests.pop(0)])

    def _beat(self) -> None:
        for worker in [each for waiting in self._waiting.values() for each in waiting]:
            self._back.send_multipart([worker, b"", b"MDPW01", b"\x04"])
