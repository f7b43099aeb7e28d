"""An EventMQ router that acts as the published one does, on real ROUTER sockets, in a thread of its own.

It registers job managers, counts their slots, gives each request to the first manager with a slot, and sends
the client a REPLY then and only then. A request without a slot waits, and its client hears nothing. With
``forwards_results`` it passes the results of requests with ``reply-requested`` on, as a node of bstar does.
Whatever it reads is kept: ``heard`` has (routing id, message), in order.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Self, TypeVar

import zmq

from bstar.wire import emq
from bstar.wire.emq_jobs import encode_result
from support.waiting import Bell

M = TypeVar("M")

# Far more often than the published 3 s, so that no test waits.
BEAT_S = 0.05


def new_id() -> bytes:
    return str(uuid.uuid4()).encode()


class PublishedRouter:
    """``frontend`` and ``backend`` are its endpoints. ``close`` breaks its connections; ``open`` binds again.

    ``wire``: whose side it takes. Without ``beats`` it sends no HEARTBEAT, without ``acks`` no ACK.
    """

    def __init__(
        self,
        *,
        beats: bool = True,
        acks: bool = True,
        forwards_results: bool = False,
        wire: emq.Wire = emq.Wire.PUBLISHED,
    ) -> None:
        self.wire = wire
        self.beats = beats
        self.acks = acks
        self.forwards_results = forwards_results
        # As the passive node of a pair: a client's request is answered by KBYE with the request's msgid.
        self.dismisses_clients = False
        # As an active node: the result of a PUBLISH that asks for it.
        self.confirmation: object = None
        self.heard: list[tuple[bytes, emq.Message]] = []
        self.slots: dict[bytes, int] = {}
        self.bell = Bell()
        self._ports = [0, 0]
        self._waiting: deque[tuple[bytes, emq.Request]] = deque()
        self._clients: dict[bytes, bytes] = {}
        self._outbox: queue.SimpleQueue[tuple[int, list[bytes]]] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.open()

    @property
    def backend(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[0]}"

    @property
    def frontend(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[1]}"

    def open(self) -> None:
        self._is_stopping.clear()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets = [self._context.socket(zmq.ROUTER) for _ in self._ports]
        for number, socket in enumerate(sockets):
            socket.linger = 0
            socket.router_mandatory = True
            socket.bind(f"tcp://127.0.0.1:{self._ports[number] or '*'}")
            self._ports[number] = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._thread = threading.Thread(target=self._run, args=(sockets,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._context.term()
            self.slots.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def of(self, kind: type[M]) -> list[M]:
        """The messages of this kind so far."""
        return [message for _, message in self.heard if isinstance(message, kind)]

    def wait_until(self, question: Callable[[], object]) -> None:
        """Until the answer is yes; asked whenever a message came."""
        self.bell.wait_until(question)

    def send(self, manager: bytes, message: emq.Message) -> None:
        """To a job manager."""
        self.send_frames(manager, self._encode(message))

    def send_frames(self, manager: bytes, frames: list[bytes]) -> None:
        self._outbox.put((0, [manager, *frames]))

    def _encode(self, message: emq.Message) -> list[bytes]:
        return emq.encode(message, wire=self.wire)

    def submit(self, request: emq.Request) -> None:
        """A request of nobody; its result stays here."""
        with self.bell.ringing():
            self._waiting.append((b"", request))
            self._dispatch()

    def result_of(self, msgid: bytes) -> bytes:
        """Wait for the result of this request."""

        def found() -> list[bytes]:
            return [
                each.value for each in self.of(emq.Reply) if each.about == msgid and each.value is not None
            ]

        self.wait_until(found)
        return found()[0]

    # --- its thread ---------------------------------------------------------------------------------------

    def _run(self, sockets: list[zmq.Socket[bytes]]) -> None:
        beat_at = time.monotonic()
        try:
            while not self._is_stopping.is_set():
                while not self._outbox.empty():
                    number, frames = self._outbox.get()
                    self._pass(sockets[number], frames)
                if self.beats and time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + BEAT_S
                    for manager in list(self.slots):
                        beat = self._encode(emq.Heartbeat(new_id(), time.time()))
                        self._pass(sockets[0], [manager, *beat])
                for number, socket in enumerate(sockets):
                    while socket.poll(5 if not number else 0):
                        self._take(number, socket.recv_multipart())
        finally:
            for socket in sockets:
                socket.close(0)

    @staticmethod
    def _pass(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        try:
            socket.send_multipart(frames)
        except zmq.ZMQError as error:
            assert error.errno == zmq.EHOSTUNREACH  # noqa: PT017 - of a peer that has left

    def _take(self, number: int, frames: list[bytes]) -> None:
        # The published router decodes every frame as UTF-8, the routing id, too, and dies of others.
        for frame in frames:
            frame.decode()
        sender, message = frames[0], emq.decode(frames, 1, wire=self.wire)
        with self.bell.ringing():
            self.heard.append((sender, message))
            if number:
                self._take_client(sender, message)
            else:
                self._take_manager(sender, message)
            self._dispatch()

    def _take_manager(self, sender: bytes, message: emq.Message) -> None:
        match message:
            case emq.Inform():
                self.slots[sender] = 0
                if self.acks:
                    self.send(sender, emq.Ack(new_id(), message.msgid))
            case emq.Ready() if sender in self.slots:
                self.slots[sender] += 1
            case emq.Goodbye():
                self.slots.pop(sender, None)
            case emq.Reply(about=about, value=value) if value is not None:
                client = self._clients.pop(about, b"")
                if client and self.forwards_results:
                    self._outbox.put((1, [client, *self._encode(emq.Reply(new_id(), about, value))]))
            case _:
                pass

    def _take_client(self, sender: bytes, message: emq.Message) -> None:
        if self.dismisses_clients:
            self._outbox.put((1, [sender, *self._encode(emq.Goodbye(message.msgid))]))
        elif isinstance(message, emq.Request):
            self._waiting.append((sender, message))
        elif (
            isinstance(message, emq.Publish)
            and message.headers.reply_requested
            and self.confirmation is not None
        ):
            result = emq.Reply(new_id(), message.msgid, encode_result(self.confirmation))
            self._outbox.put((1, [sender, *self._encode(result)]))

    def _dispatch(self) -> None:
        while self._waiting:
            manager = next((each for each, count in self.slots.items() if count), None)
            if manager is None:
                return
            self.slots[manager] -= 1
            client, request = self._waiting.popleft()
            self.send(manager, request)
            if client:
                if request.headers.reply_requested:
                    self._clients[request.msgid] = client
                self._outbox.put((1, [client, *self._encode(emq.Reply(new_id(), request.msgid))]))
