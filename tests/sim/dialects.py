"""What simulated clients and workers speak, and the plain MDP/0.1 that the product itself speaks to nobody.

A 0.1 client is the plain client's session with its frames translated: it has one request under way, and one
reply to it. A 0.1 worker is the worker's core with a dialect of 7/MDP; like the published ones it sends no
heartbeats while its handler runs, and it has no PARTIALs. Pirates are made alike; they meet the front of the
node, which has one service. EventMQ's peers have cores of their own: see ``sim.emq``.
"""

from __future__ import annotations

import json
from typing import Literal

from bstar.errors import RemoteProtocolError
from bstar.wire import mmi, native
from bstar.wire.mdp import MDP01, MDP02, WorkerVerb
from bstar_client.core.worker.dialects import Heard, Hearing, Job, Mdp02Worker, NativeWorker, WorkerDialect
from sim.network import Frames

Dialect = Literal["native", "mdp02", "mdp01", "ppp", "emq"]
# A client of these gets one reply, and a worker has no PARTIALs.
ONE_REPLY = ("mdp01", "ppp", "emq")
# Published workers of these are silent while their handler runs.
SILENT_AT_WORK = ("mdp01", "ppp")


def worker_dialect(dialect: Dialect) -> WorkerDialect:
    """What the core of such a worker speaks."""
    match dialect:
        case "native":
            return NativeWorker()
        case "mdp02":
            return Mdp02Worker()
        case "mdp01":
            return Mdp01Worker()
        case "ppp":
            return PirateWorker()
        case "emq":
            raise AssertionError("a job manager has a core of its own: sim.emq")


def to_wire(dialect: Dialect, frames: Frames) -> Frames:
    """What a plain client's session says, as a client of this dialect says it."""
    if dialect == "mdp01":
        return for_mdp01(frames)
    return [b"", *frames[3:]] if dialect == "ppp" else frames


def from_wire(dialect: Dialect, frames: Frames) -> Frames:
    """What a client of this dialect hears, as a plain client's session reads it."""
    if dialect == "mdp01":
        return from_mdp01(frames)
    return [MDP02.client, b"\x03", b"work", *frames[1:]] if dialect == "ppp" else frames


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
        if head[2] not in (native.REQUEST, native.REQUESTS, native.DIRECTED):
            return None
        service = head[native.HEADER_BYTES :][: head[native.HEADER_BYTES - 1]]
    elif head == MDP02.client or frames[1:2] == [MDP01.client]:
        service = frames[2]
    else:
        return None
    return frames[-1] if service.startswith(mmi.PREFIX) else service


def body_of(token: str, kind: str) -> bytes:
    """The body of a call. It is JSON in the form of a job, which EventMQ insists on."""
    return f'["{token}","{kind}"]'.encode()


def read_body(body: bytes) -> tuple[str, str]:
    """Token and kind of a call's body. A stored job is its own token."""
    text = bytes(body).decode()
    if text.startswith('["run",'):
        return text, ""
    token, kind = json.loads(text)
    return token, kind


def plain_call(frames: Frames) -> str | None:
    """The token of the call whose plain MDP request this is; None if it is something else."""
    is_plain = frames[0] == MDP02.client or frames[1:2] == [MDP01.client]
    return None if not is_plain or frames[2].startswith(mmi.PREFIX) else read_body(frames[3])[0]


class Mdp01Worker(Mdp02Worker):
    """Plain MDP/0.1 (7/MDP)."""

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> Frames:
        """``[] [MDPW01] [01] [service]``"""
        return MDP01.encode_ready(service)

    def heartbeat(self, epoch: int, elsewhere: int) -> Frames:
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

    def failure(self, job: Job, code: int, text: bytes, *behind: bytes) -> Frames:
        """The same, with ``[500] [text]`` for a body."""
        return MDP01.encode_final(job.identity, [b"500", text])

    def read(self, frames: Frames) -> Heard:
        """Read REQUEST, HEARTBEAT or DISCONNECT."""
        command = MDP01.decode_for_worker(frames)
        if command.verb is WorkerVerb.REQUEST:
            return Heard(Hearing.REQUEST, 0, command.client, command.body)
        if command.verb is WorkerVerb.HEARTBEAT:
            return Heard(Hearing.HEARTBEAT)
        return Heard(Hearing.DISCONNECT, reason="the broker says so")


class PirateWorker(Mdp02Worker):
    """6/PPP: heartbeats each second, three of them missed."""

    def __init__(self) -> None:
        super().__init__(heartbeat_s=1.0, expiry_s=3.0)

    def ready(self, service: bytes, credit: int, epoch: int, keepalive: bytes, elsewhere: int) -> Frames:
        """``[01]``"""
        return [b"\x01"]

    def heartbeat(self, epoch: int, elsewhere: int) -> Frames:
        """``[02]``"""
        return [b"\x02"]

    def disconnect(self, epoch: int, is_unbegun: bool) -> Frames:
        """A Pirate leaves without a word."""
        return []

    def partial(self, job: Job, body: Frames) -> Frames:
        """6/PPP has none."""
        raise AssertionError("6/PPP has no PARTIAL")

    def final(self, job: Job, body: Frames) -> Frames:
        """``[client] [] [body…]``"""
        return [job.identity, b"", *body]

    def failure(self, job: Job, code: int, text: bytes, *behind: bytes) -> Frames:
        """The same, with ``[500] [text]`` for a body."""
        return [job.identity, b"", b"500", text]

    def read(self, frames: Frames) -> Heard:
        """Read REQUEST or HEARTBEAT."""
        if frames == [b"\x02"]:
            return Heard(Hearing.HEARTBEAT)
        if len(frames) < 3 or frames[1]:
            raise RemoteProtocolError("ppp", f"a queue says no {frames!r}")
        return Heard(Hearing.REQUEST, 0, frames[0], frames[2:])
