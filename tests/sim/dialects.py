"""What simulated clients and workers speak, and the plain MDP/0.1 that the product itself speaks to nobody.

A 0.1 client is the plain client's session with its frames translated: it has one request under way, and one
reply to it. A 0.1 worker is the worker's core with a dialect of 7/MDP; like the published ones it sends no
heartbeats while its handler runs, and it has no PARTIALs.
"""

from __future__ import annotations

from typing import Literal

from bstar.wire import mmi, native
from bstar.wire.mdp import MDP01, MDP02, WorkerVerb
from bstar_client.core.worker_dialects import Heard, Hearing, Job, Mdp02Worker, NativeWorker, WorkerDialect
from sim.network import Frames

Dialect = Literal["native", "mdp02", "mdp01"]


def worker_dialect(dialect: Dialect) -> WorkerDialect:
    """What the core of such a worker speaks."""
    if dialect == "native":
        return NativeWorker()
    return Mdp02Worker() if dialect == "mdp02" else Mdp01Worker()


def for_mdp01(frames: Frames) -> Frames:
    """A REQUEST of 0.2 as one of 0.1."""
    _, _, service, *body = frames
    return MDP01.encode_request(service, body)


def from_mdp01(frames: Frames) -> Frames:
    """The REPLY of 0.1 as a FINAL of 0.2, as its client reads it."""
    reply = MDP01.decode_for_client(frames)
    return [MDP02.client, b"\x03", reply.service, *reply.body]


def service_asked(frames: Frames) -> bytes | None:
    """The service that a client's message asks for, or asks about; None if it is no request."""
    head = frames[0]
    if head[:2] == native.MAGIC:
        if head[2] not in (native.REQUEST, native.REQUESTS):
            return None
        service = head[native.HEADER_BYTES :][: head[native.HEADER_BYTES - 1]]
    elif head == MDP02.client or frames[1] == MDP01.client:
        service = frames[2]
    else:
        return None
    return frames[-1] if service.startswith(mmi.PREFIX) else service


class Mdp01Worker(Mdp02Worker):
    """Plain MDP/0.1 (7/MDP)."""

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes) -> Frames:
        """``[] [MDPW01] [01] [service]``"""
        return MDP01.encode_ready(service)

    def heartbeat(self, epoch: int) -> Frames:
        """``[] [MDPW01] [04]``"""
        return MDP01.encode_heartbeat()

    def disconnect(self, epoch: int, is_unbegun: bool) -> Frames:
        """``[] [MDPW01] [05]``"""
        return MDP01.encode_disconnect()

    def partial(self, job: Job, body: Frames) -> Frames:
        """MDP/0.1 has none."""
        raise AssertionError("MDP/0.1 has no PARTIAL")

    def final(self, job: Job, body: Frames) -> Frames:
        """``[] [MDPW01] [03] [client] [] [body…]``"""
        return MDP01.encode_final(job.identity, body)

    def failure(self, job: Job, code: int, text: str) -> Frames:
        """The same, with ``[500] [text]`` for a body."""
        return MDP01.encode_final(job.identity, [b"500", text.encode()])

    def read(self, frames: Frames) -> Heard:
        """Read REQUEST, HEARTBEAT or DISCONNECT."""
        command = MDP01.decode_for_worker(frames)
        if command.verb is WorkerVerb.REQUEST:
            return Heard(Hearing.REQUEST, 0, command.client, command.body)
        if command.verb is WorkerVerb.HEARTBEAT:
            return Heard(Hearing.HEARTBEAT)
        return Heard(Hearing.DISCONNECT, reason="told by the broker")
