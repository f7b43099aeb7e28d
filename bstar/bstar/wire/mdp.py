"""Majordomo 0.1 (7/MDP) and 0.2 (18/MDP), all four sides: what clients, workers and the broker say and hear.

MDP/0.1                                                  MDP/0.2
    REQUEST     C→B  [] [MDPC01] [service] [body…]           C→B  [MDPC02] [01] [service] [body…]
    PARTIAL     B→C                                          B→C  [MDPC02] [02] [service] [body…]
    FINAL       B→C  [] [MDPC01] [service] [body…]           B→C  [MDPC02] [03] [service] [body…]

    READY       W→B  [] [MDPW01] [01] [service]              W→B  [MDPW02] [01] [service]
    REQUEST     B→W  [] [MDPW01] [02] [client] [] [body…]    B→W  [MDPW02] [02] [client] [] [body…]
    PARTIAL     W→B                                          W→B  [MDPW02] [03] [client] [] [body…]
    FINAL       W→B  [] [MDPW01] [03] [client] [] [body…]    W→B  [MDPW02] [04] [client] [] [body…]
    HEARTBEAT   both [] [MDPW01] [04]                        both [MDPW02] [05]
    DISCONNECT  both [] [MDPW01] [05]                        both [MDPW02] [06]

7/MDP calls its one reply REPLY; here it is a FINAL. A body has one frame or more. A REQ socket adds and
strips the empty frame of MDP/0.1 by itself; a DEALER has to send it. The frames before the header (that
empty one, a request id of REQ_CORRELATE) are a peer's ``envelope`` and go back to it. A peer of MDP/0.2 that
puts an empty frame first is read too, and answered in kind.
"""

import enum
from functools import lru_cache

import msgspec

from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire.dialect import Asker, Dialect, Envelope, Frames, WorkRequest
from bstar.wire.limits import SERVICE_BYTES_MAX
from bstar.wire.messages import Disconnect, Final, FromPeer, Heartbeat, NodeStatus, Partial, Ready, Request

# What stands before an address in hexadecimal digits.
_HEX = b"hex:"
# An address of libzmq has 255 bytes at most.
_HEX_BYTES_MAX = len(_HEX) + 2 * 255
# How many addresses are kept in both forms, in 1 MiB. Each message of a worker has one, and nearly all of
# libzmq's begin with a zero byte.
_ADDRESSES_MAX = 4_096


class ClientReply(msgspec.Struct, frozen=True, gc=False):
    """What a client is sent: a PARTIAL, or the FINAL that ends the request."""

    is_final: bool
    service: bytes
    body: list[bytes]


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


class Mdp:
    """One version of Majordomo. To a broker it is a ``BrokerCodec``; its frames are in the module's table."""

    gets_not_active = False

    def __init__(self, dialect: Dialect, *, is_streaming: bool) -> None:
        self.dialect = dialect
        self.label = f"mdp0{dialect}"
        self.is_streaming = is_streaming
        self.client = b"MDPC0%d" % dialect
        self.worker = b"MDPW0%d" % dialect
        # What stands before the service's name on the client's side.
        self._c_request = [self.client, b"\x01"] if is_streaming else [self.client]
        self._c_partial = [self.client, b"\x02"] if is_streaming else None
        self._c_final = [self.client, b"\x03"] if is_streaming else [self.client]
        self._w_ready, self._w_request = b"\x01", b"\x02"
        self._w_partial = b"\x03" if is_streaming else None
        self._w_final, self._w_heartbeat, self._w_disconnect = (
            (b"\x04", b"\x05", b"\x06") if is_streaming else (b"\x03", b"\x04", b"\x05")
        )
        # What peers put before the header by themselves.
        self._lead = [] if is_streaming else [b""]

    # --- the broker hears -----------------------------------------------------------------------------------

    def decode_client(self, frames: Frames, at: int, envelope: Envelope) -> Request:
        """Read a client's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
        if self.is_streaming:
            at += 1
        if len(frames) < at + 3:
            shape = self._shape(*self._c_request)
            raise RemoteProtocolError("client-frames", f"a REQUEST is {shape} [service] [body…]")
        if self.is_streaming and frames[at] != b"\x01":
            text = f"clients send 01 REQUEST, this is {frames[at][:8]!r}"
            raise RemoteProtocolError("client-command", text)
        service = frames[at + 1]
        if not 0 < len(service) <= SERVICE_BYTES_MAX:
            raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} bytes")
        return Request(frames[0], self.dialect, envelope, service, frames[at + 2 :])

    def decode_worker(self, frames: Frames, at: int, envelope: Envelope) -> FromPeer:
        """Read a worker's message; ``frames[at]`` is the header, ``frames[0]`` the routing id."""
        size = len(frames) - at
        if size < 2:
            raise _invalid("worker-frames", "a worker's message has a command frame")
        command = frames[at + 1]
        if command == self._w_final:
            kind: type[Final | Partial] = Final
        elif command == self._w_partial:
            kind = Partial
        else:
            return self._decode_order(frames, at, envelope)
        body = frames[at + 4 :] if size > 4 and not frames[at + 3] else _lax_body(frames, at)
        if body is None:
            shape = self._shape(self.worker, command)
            raise _invalid("worker-frames", f"a reply is {shape} [client] [] [body…]")
        address = frames[at + 2]
        if address[:4] == _HEX and len(address) <= _HEX_BYTES_MAX:
            address = _read(address)
        return kind(frames[0], self.dialect, envelope, address, body)

    def _decode_order(self, frames: Frames, at: int, envelope: Envelope) -> FromPeer:
        """As ``decode_worker``, for a message that is no reply."""
        size, command = len(frames) - at, frames[at + 1]
        if command == self._w_ready:
            if size != 3:
                raise _invalid("worker-frames", f"READY is {self._shape(self.worker, command)} [service]")
            service = frames[at + 2]
            if not 0 < len(service) <= SERVICE_BYTES_MAX:
                raise _invalid("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} bytes")
            return Ready(frames[0], self.dialect, envelope, service)
        if command not in (self._w_heartbeat, self._w_disconnect):
            raise _invalid("worker-command", f"no command of a worker: {command[:8]!r}")
        if size != 2:
            shape = self._shape(self.worker, command)
            raise _invalid("worker-frames", f"HEARTBEAT or DISCONNECT is {shape}")
        if command == self._w_heartbeat:
            return Heartbeat(frames[0], self.dialect, envelope)
        return Disconnect(frames[0], self.dialect)

    def _shape(self, *frames: bytes) -> str:
        """These frames, as a peer sends them, for people."""
        texts = (frame.decode() if len(frame) > 1 else frame.hex() for frame in (*self._lead, *frames))
        return " ".join(f"[{text}]" for text in texts)

    # --- the broker says ------------------------------------------------------------------------------------

    def request(
        self,
        to: bytes,
        envelope: Envelope,
        request: WorkRequest,
        identity: bytes,
        ttl_ms: int,
        epoch: int,
        is_redelivered: bool,
    ) -> Frames:
        """REQUEST to a worker; it names the client by its routing id, as text if that has a zero byte."""
        return [to, *envelope, self.worker, self._w_request, _written(request.sender), b"", *request.body]

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> None:
        """A registration has no answer (MDP1-W-03)."""

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        """HEARTBEAT to a worker."""
        return [to, *envelope, self.worker, self._w_heartbeat]

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        """DISCONNECT to a worker."""
        return [to, *envelope, self.worker, self._w_disconnect]

    def partial(
        self, asker: Asker, service: bytes, epoch: int, index: int, body: Frames, header: bytes
    ) -> Frames:
        """PARTIAL to a client."""
        assert self._c_partial is not None, "the broker holds PARTIALs back from clients of MDP/0.1"
        return [asker.sender, *asker.envelope, *self._c_partial, service, *body]

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames:
        """FINAL to a client."""
        return [asker.sender, *asker.envelope, *self._c_final, service, *body]

    def failure(self, asker: Asker, epoch: int, code: int, text: bytes) -> None:
        """A reply stands for success; a failed request has none (7/MDP)."""

    def declined(self, asker: Asker, service: bytes, epoch: int, text: bytes, data: bytes) -> Frames:
        """``500`` and the text: it will be declined whenever it is asked."""
        return self.final(asker, service, epoch, 0, [b"500", text], b"")

    def busy(self, asker: Asker, epoch: int, retry_after_ms: int, text: bytes) -> None:
        """A refused request is not answered."""

    def not_active(self, asker: Asker, status: NodeStatus, was_dispatched: bool) -> None:
        """The client's timeout takes it to the other node."""

    # --- a client says and hears, as a DEALER does ----------------------------------------------------------

    def encode_request(self, service: bytes, body: Frames) -> Frames:
        """REQUEST to a broker."""
        check_service(service)
        check_body(body)
        return [*self._lead, *self._c_request, service, *body]

    def decode_for_client(self, frames: Frames) -> ClientReply:
        """Read what a broker sends to a client."""
        head = frames[:2]
        is_final = head == [*self._lead, *self._c_final]
        if len(frames) < 4 or not (is_final or head == self._c_partial):
            text = f"a broker answers {self._shape(*self._c_final)} [service] [body…]"
            raise RemoteProtocolError("broker-frames", text)
        return ClientReply(is_final, frames[2], frames[3:])

    # --- a worker says and hears ----------------------------------------------------------------------------

    def encode_ready(self, service: bytes) -> Frames:
        """READY to a broker."""
        check_service(service)
        return [*self._lead, self.worker, self._w_ready, service]

    def encode_partial(self, client: bytes, body: Frames) -> Frames:
        """PARTIAL to a broker, for this client."""
        assert self._w_partial is not None, "MDP/0.1 has no PARTIAL"
        check_body(body)
        return [*self._lead, self.worker, self._w_partial, client, b"", *body]

    def encode_final(self, client: bytes, body: Frames) -> Frames:
        """FINAL to a broker, for this client."""
        check_body(body)
        return [*self._lead, self.worker, self._w_final, client, b"", *body]

    def encode_heartbeat(self) -> Frames:
        """HEARTBEAT to a broker."""
        return [*self._lead, self.worker, self._w_heartbeat]

    def encode_disconnect(self) -> Frames:
        """DISCONNECT to a broker."""
        return [*self._lead, self.worker, self._w_disconnect]

    def decode_for_worker(self, frames: Frames) -> WorkerCommand:
        """Read what a broker sends to a worker."""
        at = len(self._lead) + 1
        if frames[:at] != [*self._lead, self.worker] or len(frames) == at:
            shape = self._shape(self.worker)
            raise RemoteProtocolError(
                "broker-frames", f"a broker's command to a worker starts {shape} [command]"
            )
        command, *rest = frames[at:]
        if command == self._w_request and len(rest) >= 3 and rest[0] and not rest[1]:
            return WorkerCommand(WorkerVerb.REQUEST, rest[0], rest[2:])
        if command == self._w_heartbeat and not rest:
            return WorkerCommand(WorkerVerb.HEARTBEAT)
        if command == self._w_disconnect and not rest:
            return WorkerCommand(WorkerVerb.DISCONNECT)
        raise RemoteProtocolError("broker-command", f"no valid command of a broker: {command[:8]!r}")


@lru_cache(_ADDRESSES_MAX)
def _written(client: bytes) -> bytes:
    """The client's address as a REQUEST has it.

    The guide's C++ worker keeps it as a C string: a zero byte would cut it short, one in front would end the
    worker. So an address with one is written in digits, and so is one that would be read as digits.
    """
    return _HEX + client.hex().encode() if 0 in client or client.startswith(_HEX) else client


@lru_cache(_ADDRESSES_MAX)
def _read(address: bytes) -> bytes:
    """The client that a worker's reply names in digits."""
    try:
        return bytes.fromhex(address[len(_HEX) :].decode())
    except ValueError:
        return address


def _lax_body(frames: Frames, at: int) -> Frames | None:
    """The body of ``[header] [command] [client] [body…]``, the header at ``at``; None if it has none.

    A published worker leaves the empty frame out. That is read as well if no frame is empty: then none of
    them can be the one that is missing, or end a longer address.
    """
    body = frames[at + 3 :]
    return body if body and frames[at + 2] and all(body) else None


def _invalid(reason: str, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(reason, text, from_worker=True)


def check_service(service: bytes) -> None:
    """A name that we are asked to send must be one that a broker takes."""
    if not 0 < len(service) <= SERVICE_BYTES_MAX:
        raise LocalProtocolError(f"a service name has 1 to {SERVICE_BYTES_MAX} bytes, not {len(service)}")


def check_body(body: Frames) -> None:
    """A body has one frame at least, even if that is empty."""
    if not body:
        raise LocalProtocolError("a body is one frame or more; send one empty frame to say nothing")


MDP01 = Mdp(Dialect.MDP01, is_streaming=False)
MDP02 = Mdp(Dialect.MDP02, is_streaming=True)
