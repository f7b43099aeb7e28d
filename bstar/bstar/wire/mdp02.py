"""Majordomo 0.2 (18/MDP), all four sides: what clients, workers and the broker say and hear.

MDP/Client                                              MDP/Worker
    REQUEST  C→B  [MDPC02] [01] [service] [body…]           READY       W→B  [MDPW02] [01] [service]
    PARTIAL  B→C  [MDPC02] [02] [service] [body…]           REQUEST     B→W  [MDPW02] [02] [client] [] [body…]
    FINAL    B→C  [MDPC02] [03] [service] [body…]           PARTIAL     W→B  [MDPW02] [03] [client] [] [body…]
                                                            FINAL       W→B  [MDPW02] [04] [client] [] [body…]
                                                            HEARTBEAT   both [MDPW02] [05]
                                                            DISCONNECT  both [MDPW02] [06]

The same reply is 03/04 on the worker's side and 02/03 on the client's. Body is one frame or more. A peer
whose first message began with an empty frame is read too, and answered in kind (its ``envelope``).
"""

import enum

import msgspec

from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.dialect import Dialect, Envelope, Frames, PlainMdp
from bstar.wire.limits import SERVICE_BYTES_MAX
from bstar.wire.messages import Disconnect, Final, FromPeer, Heartbeat, Partial, Ready, Request

CLIENT = b"MDPC02"
WORKER = b"MDPW02"

_C_REQUEST = b"\x01"
_C_PARTIAL = b"\x02"
_C_FINAL = b"\x03"
_W_READY = b"\x01"
_W_REQUEST = b"\x02"
_W_PARTIAL = b"\x03"
_W_FINAL = b"\x04"
_W_HEARTBEAT = b"\x05"
_W_DISCONNECT = b"\x06"


# --- the broker hears ---------------------------------------------------------------------------------------


def decode_client(frames: Frames, at: int, envelope: Envelope) -> Request:
    """Read a client's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
    if len(frames) < at + 4:
        raise RemoteProtocolError("client-frames", "a REQUEST is [MDPC02] [01] [service] [body…]")
    if frames[at + 1] != _C_REQUEST:
        raise RemoteProtocolError(
            "client-command", f"clients send 01 REQUEST, this is {frames[at + 1][:8]!r}"
        )
    service = frames[at + 2]
    if not 0 < len(service) <= SERVICE_BYTES_MAX:
        raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets")
    return Request(frames[0], 2, envelope, service, frames[at + 3 :])


def reply_body(frames: Frames, at: int) -> Frames | None:
    """The body of ``[header] [command] [client] [] [body…]``, the header at ``at``; None if it has none.

    A published worker leaves the empty frame out. That is read as well if no frame is empty: then none of
    them can be the one that is missing, or end a longer address.
    """
    if len(frames) > at + 4 and not frames[at + 3]:
        return frames[at + 4 :]
    body = frames[at + 3 :]
    return body if body and frames[at + 2] and all(body) else None


def decode_worker(frames: Frames, at: int, envelope: Envelope) -> FromPeer:
    """Read a worker's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
    size = len(frames) - at
    if size < 2:
        raise RemoteProtocolError("worker-frames", "a worker's message has a command frame", from_worker=True)
    command = frames[at + 1]
    if command in (_W_FINAL, _W_PARTIAL):
        body = reply_body(frames, at)
        if body is None:
            raise RemoteProtocolError(
                "worker-frames",
                "PARTIAL and FINAL are [MDPW02] [03|04] [client] [] [body…]",
                from_worker=True,
            )
        kind = Final if command == _W_FINAL else Partial
        return kind(frames[0], 2, envelope, frames[at + 2], body)
    if command == _W_HEARTBEAT:
        if size != 2:
            raise RemoteProtocolError("worker-frames", "HEARTBEAT is [MDPW02] [05]", from_worker=True)
        return Heartbeat(frames[0], 2, envelope)
    if command == _W_READY:
        if size != 3:
            raise RemoteProtocolError("worker-frames", "READY is [MDPW02] [01] [service]", from_worker=True)
        if not 0 < len(frames[at + 2]) <= SERVICE_BYTES_MAX:
            raise RemoteProtocolError(
                "service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets", from_worker=True
            )
        return Ready(frames[0], 2, envelope, frames[at + 2])
    if command == _W_DISCONNECT:
        if size != 2:
            raise RemoteProtocolError("worker-frames", "DISCONNECT is [MDPW02] [06]", from_worker=True)
        return Disconnect(frames[0], 2)
    raise RemoteProtocolError("worker-command", f"no command of a worker: {command[:8]!r}", from_worker=True)


# --- the broker says ----------------------------------------------------------------------------------------


class Mdp02Codec(PlainMdp):
    """The broker's side; shapes as in the module's table. See ``BrokerCodec``."""

    dialect = Dialect.MDP02
    label = "mdp02"
    is_streaming = True

    def request(
        self,
        to: bytes,
        envelope: Envelope,
        address: bytes,
        identity: bytes,
        body: Frames,
        ttl_ms: int,
        epoch: int,
        is_redelivered: bool,
        extensions: bytes,
    ) -> Frames:
        return [to, *envelope, WORKER, _W_REQUEST, address, b"", *body]

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        return [to, *envelope, WORKER, _W_HEARTBEAT]

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        return [to, *envelope, WORKER, _W_DISCONNECT]

    def partial(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        index: int,
        body: Frames,
        header: bytes,
    ) -> Frames:
        return [to, *envelope, CLIENT, _C_PARTIAL, service, *body]

    def final(
        self,
        to: bytes,
        envelope: Envelope,
        service: bytes,
        identity: bytes,
        epoch: int,
        partials: int,
        body: Frames,
        header: bytes,
    ) -> Frames:
        return [to, *envelope, CLIENT, _C_FINAL, service, *body]


CODEC = Mdp02Codec()


# --- a client says and hears --------------------------------------------------------------------------------


class ClientReply(msgspec.Struct, frozen=True, gc=False):
    """What a client is sent: a PARTIAL, or the FINAL that ends the request."""

    is_final: bool
    service: bytes
    body: list[bytes]


def encode_request(service: bytes, body: Frames) -> Frames:
    """``[MDPC02] [01] [service] [body…]``"""
    check_service(service)
    check_body(body)
    return [CLIENT, _C_REQUEST, service, *body]


def decode_for_client(frames: Frames) -> ClientReply:
    """``[MDPC02] [02|03] [service] [body…]`` as a client receives it."""
    if len(frames) < 4 or frames[0] != CLIENT or frames[1] not in (_C_PARTIAL, _C_FINAL):
        raise RemoteProtocolError("broker-frames", "a broker answers [MDPC02] [02|03] [service] [body…]")
    return ClientReply(frames[1] == _C_FINAL, frames[2], frames[3:])


# --- a worker says and hears --------------------------------------------------------------------------------


class WorkerVerb(enum.Enum):
    """What a broker tells a worker."""

    REQUEST = enum.auto()
    HEARTBEAT = enum.auto()
    DISCONNECT = enum.auto()


class WorkerCommand(msgspec.Struct, frozen=True, gc=False):
    """A command of the broker to a worker; ``client`` and ``body`` only of a REQUEST."""

    verb: WorkerVerb
    client: bytes = b""
    body: list[bytes] = []


def encode_ready(service: bytes) -> Frames:
    """``[MDPW02] [01] [service]``"""
    check_service(service)
    return [WORKER, _W_READY, service]


def encode_partial(client: bytes, body: Frames) -> Frames:
    """``[MDPW02] [03] [client] [] [body…]``"""
    check_body(body)
    return [WORKER, _W_PARTIAL, client, b"", *body]


def encode_final(client: bytes, body: Frames) -> Frames:
    """``[MDPW02] [04] [client] [] [body…]``"""
    check_body(body)
    return [WORKER, _W_FINAL, client, b"", *body]


def encode_heartbeat() -> Frames:
    """``[MDPW02] [05]``"""
    return [WORKER, _W_HEARTBEAT]


def encode_disconnect() -> Frames:
    """``[MDPW02] [06]``"""
    return [WORKER, _W_DISCONNECT]


def decode_for_worker(frames: Frames) -> WorkerCommand:
    """Read what a broker sends to a worker."""
    if len(frames) < 2 or frames[0] != WORKER:
        raise RemoteProtocolError("broker-frames", "a broker's command to a worker starts [MDPW02] [command]")
    command = frames[1]
    if command == _W_REQUEST and len(frames) >= 5 and frames[2] and not frames[3]:
        return WorkerCommand(WorkerVerb.REQUEST, frames[2], frames[4:])
    if command == _W_HEARTBEAT and len(frames) == 2:
        return WorkerCommand(WorkerVerb.HEARTBEAT)
    if command == _W_DISCONNECT and len(frames) == 2:
        return WorkerCommand(WorkerVerb.DISCONNECT)
    raise RemoteProtocolError("broker-command", f"no valid command of a broker: {command[:8]!r}")


# --- shared checks ------------------------------------------------------------------------------------------


def check_service(service: bytes) -> None:
    """A name that we are asked to send must be one that a broker takes."""
    if not 0 < len(service) <= SERVICE_BYTES_MAX:
        raise LocalProtocolError(f"a service name has 1 to {SERVICE_BYTES_MAX} octets, not {len(service)}")


def check_body(body: Frames) -> None:
    """A body has one frame at least, even if that is empty."""
    if not body:
        raise LocalProtocolError("a body is one frame or more; send one empty frame to say nothing")
