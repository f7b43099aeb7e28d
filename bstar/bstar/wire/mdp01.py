"""Majordomo 0.1 (7/MDP), all four sides: what clients, workers and the broker say and hear.

MDP/Client                                           MDP/Worker
    REQUEST  C→B  [] [MDPC01] [service] [body…]          READY       W→B  [] [MDPW01] [01] [service]
    REPLY    B→C  [] [MDPC01] [service] [body…]          REQUEST     B→W  [] [MDPW01] [02] [client] [] [body…]
                                                         REPLY       W→B  [] [MDPW01] [03] [client] [] [body…]
                                                         HEARTBEAT   both [] [MDPW01] [04]
                                                         DISCONNECT  both [] [MDPW01] [05]

A REQ socket supplies the empty frame by itself; a DEALER has to. Frames before the empty one (REQ_CORRELATE's
request id) belong to the client and go back with its reply.
"""

from bstar.errors import RemoteProtocolError
from bstar.wire.dialect import Dialect, Envelope, Frames, PlainMdp
from bstar.wire.limits import SERVICE_BYTES_MAX
from bstar.wire.mdp02 import ClientReply, WorkerCommand, WorkerVerb, check_body, check_service, reply_body
from bstar.wire.messages import Disconnect, Final, FromPeer, Heartbeat, Ready, Request

CLIENT = b"MDPC01"
WORKER = b"MDPW01"

_W_READY = b"\x01"
_W_REQUEST = b"\x02"
_W_REPLY = b"\x03"
_W_HEARTBEAT = b"\x04"
_W_DISCONNECT = b"\x05"


# --- the broker hears ---------------------------------------------------------------------------------------


def decode_client(frames: Frames, at: int, envelope: Envelope) -> Request:
    """Read a client's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
    if len(frames) < at + 3:
        raise RemoteProtocolError("client-frames", "a REQUEST is [] [MDPC01] [service] [body…]")
    service = frames[at + 1]
    if not 0 < len(service) <= SERVICE_BYTES_MAX:
        raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets")
    return Request(frames[0], 1, envelope, service, frames[at + 2 :])


def decode_worker(frames: Frames, at: int, envelope: Envelope) -> FromPeer:
    """Read a worker's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
    size = len(frames) - at
    if size < 2:
        raise RemoteProtocolError("worker-frames", "a worker's message has a command frame", from_worker=True)
    command = frames[at + 1]
    if command == _W_REPLY:
        body = reply_body(frames, at)
        if body is None:
            raise RemoteProtocolError(
                "worker-frames", "a REPLY is [] [MDPW01] [03] [client] [] [body…]", from_worker=True
            )
        return Final(frames[0], 1, envelope, frames[at + 2], body)
    if command == _W_HEARTBEAT:
        if size != 2:
            raise RemoteProtocolError("worker-frames", "HEARTBEAT is [] [MDPW01] [04]", from_worker=True)
        return Heartbeat(frames[0], 1, envelope)
    if command == _W_READY:
        if size != 3:
            raise RemoteProtocolError(
                "worker-frames", "READY is [] [MDPW01] [01] [service]", from_worker=True
            )
        if not 0 < len(frames[at + 2]) <= SERVICE_BYTES_MAX:
            raise RemoteProtocolError(
                "service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} octets", from_worker=True
            )
        return Ready(frames[0], 1, envelope, frames[at + 2])
    if command == _W_DISCONNECT:
        if size != 2:
            raise RemoteProtocolError("worker-frames", "DISCONNECT is [] [MDPW01] [05]", from_worker=True)
        return Disconnect(frames[0], 1)
    raise RemoteProtocolError("worker-command", f"no command of a worker: {command[:8]!r}", from_worker=True)


# --- the broker says ----------------------------------------------------------------------------------------


class Mdp01Codec(PlainMdp):
    """The broker's side; shapes as in the module's table. See ``BrokerCodec``."""

    dialect = Dialect.MDP01
    label = "mdp01"
    is_streaming = False

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
        raise AssertionError("MDP/0.1 has no PARTIAL; the broker buffers them into the one REPLY")

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
        return [to, *envelope, CLIENT, service, *body]


CODEC = Mdp01Codec()


# --- a client says and hears (as a DEALER does; a REQ socket strips and adds the empty frame) ---------------


def encode_request(service: bytes, body: Frames) -> Frames:
    """``[] [MDPC01] [service] [body…]``"""
    check_service(service)
    check_body(body)
    return [b"", CLIENT, service, *body]


def decode_for_client(frames: Frames) -> ClientReply:
    """``[] [MDPC01] [service] [body…]`` as a client receives it; always final."""
    if len(frames) < 4 or frames[0] or frames[1] != CLIENT:
        raise RemoteProtocolError("broker-frames", "a broker answers [] [MDPC01] [service] [body…]")
    return ClientReply(True, frames[2], frames[3:])


# --- a worker says and hears --------------------------------------------------------------------------------


def encode_ready(service: bytes) -> Frames:
    """``[] [MDPW01] [01] [service]``"""
    check_service(service)
    return [b"", WORKER, _W_READY, service]


def encode_reply(client: bytes, body: Frames) -> Frames:
    """``[] [MDPW01] [03] [client] [] [body…]``"""
    check_body(body)
    return [b"", WORKER, _W_REPLY, client, b"", *body]


def encode_heartbeat() -> Frames:
    """``[] [MDPW01] [04]``"""
    return [b"", WORKER, _W_HEARTBEAT]


def encode_disconnect() -> Frames:
    """``[] [MDPW01] [05]``"""
    return [b"", WORKER, _W_DISCONNECT]


def decode_for_worker(frames: Frames) -> WorkerCommand:
    """Read what a broker sends to a worker."""
    if len(frames) < 3 or frames[0] or frames[1] != WORKER:
        raise RemoteProtocolError(
            "broker-frames", "a broker's command to a worker starts [] [MDPW01] [command]"
        )
    command = frames[2]
    if command == _W_REQUEST and len(frames) >= 6 and frames[3] and not frames[4]:
        return WorkerCommand(WorkerVerb.REQUEST, frames[3], frames[5:])
    if command == _W_HEARTBEAT and len(frames) == 3:
        return WorkerCommand(WorkerVerb.HEARTBEAT)
    if command == _W_DISCONNECT and len(frames) == 3:
        return WorkerCommand(WorkerVerb.DISCONNECT)
    raise RemoteProtocolError("broker-command", f"no valid command of a broker: {command[:8]!r}")
