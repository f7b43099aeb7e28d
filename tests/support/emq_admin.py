"""The admin socket of an EventMQ router that has one answer for everything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from bstar.wire import emq
from support.emq_router import new_id
from support.waiting import receive


@contextmanager
def admin_socket(answer: bytes) -> Iterator[tuple[str, list[emq.Message]]]:
    """A router's admin socket that answers each question with ``answer``."""
    heard: list[emq.Message] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def serve() -> None:
            for _ in range(2):
                frames = receive(socket)
                heard.append(emq.decode(frames, 1))
                if not isinstance(heard[-1], emq.Hello):
                    socket.send_multipart([frames[0], b"rubbish"])
                    socket.send_multipart([frames[0], *emq.encode(emq.Reply(new_id(), answer))])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}", heard
        finally:
            thread.join()
