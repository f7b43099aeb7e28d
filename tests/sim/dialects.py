"""What simulated clients and workers speak: the product's own sessions and dialects.

Like the published ones a worker of MDP/0.1 sends no heartbeats while its handler runs. A Pirate client is the
session of MDP/0.2 with its frames translated. Pirates meet the front of the node, which has one service.
EventMQ's peers have cores of their own: see ``sim.emq``.
"""

from __future__ import annotations

import json
from typing import Literal

from bstar.wire import mmi, native
from bstar.wire.mdp import MDP01, MDP02
from bstar_client.core.worker.dialects import (
    Mdp01Worker,
    Mdp02Worker,
    NativeWorker,
    ParanoidWorker,
    WorkerDialect,
)
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
            return ParanoidWorker()
        case "emq":
            raise AssertionError("a job manager has a core of its own: sim.emq")


def to_wire(dialect: Dialect, frames: Frames) -> Frames:
    """What a plain client's session says, as a client of this dialect says it."""
    return [b"", *frames[3:]] if dialect == "ppp" else frames


def from_wire(dialect: Dialect, frames: Frames) -> Frames:
    """What a client of this dialect hears, as a plain client's session reads it."""
    return [MDP02.client, b"\x03", b"work", *frames[1:]] if dialect == "ppp" else frames


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
