"""The native dialect at the broker: reads messages of clients and workers, and writes messages to them.

The frames and their fields are in ``native``; the specification is docs/protocol/native.md.
"""

from collections.abc import Callable

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.wire import native
from bstar.wire.batches import final_rows, request_rows
from bstar.wire.declined import data_behind, read_declined
from bstar.wire.dialect import Asker, Dialect, Envelope, Frames, WorkRequest
from bstar.wire.extensions import elsewhere_of, process_of
from bstar.wire.limits import (
    CREDIT_MAX,
    DESCRIPTION_BYTES_MAX,
    SERVICE_BYTES_MAX,
    TEXT_BYTES_MAX,
    WORKER_NAME_BYTES_MAX,
)
from bstar.wire.messages import (
    NEVER_MS,
    OWN_BACKOFF,
    Cancel,
    Directed,
    Disconnect,
    ErrorCode,
    Failure,
    Final,
    Finals,
    FromPeer,
    Heartbeat,
    NodeStatus,
    Partial,
    Ping,
    ProgressMade,
    Ready,
    Request,
    Requests,
    StaleEpoch,
)
from bstar.wire.progress import unpack_progress

_NO_CLIENT = bytes(16)

_pack = native.pack_header


# --- the broker hears ---------------------------------------------------------------------------------------


def decode_peer(frames: Frames) -> FromPeer:
    """Read ``[routing id] [header] [body…]`` from a client or worker."""
    head = frames[1]
    size = len(head)
    if size < native.HEADER_BYTES or size > native.HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            "native-header", f"a header has {native.HEADER_BYTES} to {native.HEADER_BYTES_MAX} bytes"
        )
    fields = native.unpack_header(head)
    _, _, command, flags, ident, epoch, value, service_size = fields
    end = native.HEADER_BYTES + service_size
    if end > size:
        raise RemoteProtocolError("native-header", "the service name is longer than its header")
    # The two most frequent commands are read here: one more call would cost them 8 %.
    if command == native.REQUEST:
        _check_service(service_size)
        if len(frames) < 3:
            raise RemoteProtocolError("client-frames", "a REQUEST is [header] [body…]")
        if ident == native.NO_IDENTITY:
            raise RemoteProtocolError("identity", "a REQUEST names itself; 24 zero bytes name nothing")
        return Request(
            frames[0],
            3,
            (),
            head[native.HEADER_BYTES : end],
            frames[2:],
            ident,
            value,
            epoch,
            head[end:] if size > end else b"",
            flags & native.FLAG_REDELIVERED != 0,
            flags & native.FLAG_URGENT != 0,
            flags & native.FLAG_ONCE != 0,
            flags & native.FLAG_WHOLE != 0,
        )
    if command == native.FINAL:
        if len(frames) < 3:
            raise RemoteProtocolError("worker-frames", "a FINAL is [header] [body…]", from_worker=True)
        return Final(frames[0], 3, (), ident, frames[2:], head)
    read = _READERS.get(command)
    if read is None:
        raise RemoteProtocolError("native-command", f"no command of a client or worker: {command:#04x}")
    return read(frames, fields, head[native.HEADER_BYTES : end])


def _check_service(size: int) -> None:
    if not size:
        raise RemoteProtocolError("service-name", f"a service name has 1 to {SERVICE_BYTES_MAX} bytes")


def _read_directed(frames: Frames, fields: native.Fields, service: bytes) -> Directed:
    _, _, _, flags, ident, epoch, ttl_ms, _ = fields
    _check_service(len(service))
    if len(frames) < 4:
        raise RemoteProtocolError("client-frames", "a DIRECTED is [header] [worker] [body…]")
    if ident == native.NO_IDENTITY:
        raise RemoteProtocolError("identity", "a DIRECTED names itself; 24 zero bytes name nothing")
    if not 0 < len(frames[2]) <= WORKER_NAME_BYTES_MAX:
        text = f"the name of a worker has 1 to {WORKER_NAME_BYTES_MAX} bytes"
        raise RemoteProtocolError("client-frames", text)
    return Directed(
        frames[0],
        3,
        (),
        service,
        frames[3:],
        ident,
        ttl_ms,
        epoch,
        frames[1][native.HEADER_BYTES + len(service) :],
        flags & native.FLAG_REDELIVERED != 0,
        flags & native.FLAG_URGENT != 0,
        flags & native.FLAG_ONCE != 0,
        flags & native.FLAG_WHOLE != 0,
        worker=bytes(frames[2]),
    )


def _read_requests(frames: Frames, fields: native.Fields, service: bytes) -> Requests:
    _, _, _, flags, ident, epoch, _, _ = fields
    _check_service(len(service))
    if ident[:16] == _NO_CLIENT:
        raise RemoteProtocolError("identity", "a batch names its client; 16 zero bytes name no client")
    numbers, ttls_ms, lengths, is_extended = request_rows(frames, 2)
    return Requests(
        frames[0],
        ident[:16],
        service,
        numbers,
        ttls_ms,
        lengths,
        frames[2],
        frames[3],
        epoch,
        flags & native.FLAG_REDELIVERED != 0,
        flags & native.FLAG_ONCE != 0,
        flags & native.FLAG_WHOLE != 0,
        is_extended,
    )


def _read_finals(frames: Frames, fields: native.Fields, service: bytes) -> Finals:
    try:
        numbers, lengths = final_rows(frames, 2)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.reason, error.text, from_worker=True) from None
    return Finals(frames[0], fields[4][:16], numbers, lengths, frames[2], frames[3], frames[1])


def _read_partial(frames: Frames, fields: native.Fields, service: bytes) -> Partial:
    if len(frames) < 3:
        raise RemoteProtocolError("worker-frames", "a PARTIAL is [header] [body…]", from_worker=True)
    return Partial(frames[0], 3, (), fields[4], frames[2:], frames[1])


def _read_progress(frames: Frames, fields: native.Fields, service: bytes) -> ProgressMade:
    try:
        progress = unpack_progress(frames[2:])
    except RemoteProtocolError as error:
        raise RemoteProtocolError(error.reason, error.text, from_worker=True) from None
    return ProgressMade(frames[0], fields[4], progress, frames[1], frames[2:])


def _read_error(frames: Frames, fields: native.Fields, service: bytes) -> Failure:
    text = bytes(frames[2][:TEXT_BYTES_MAX]) if len(frames) > 2 else b""
    code, behind = fields[6], frames[3:]
    if code == ErrorCode.HANDLER_FAILED and read_declined(text) is not None:
        data = data_behind(behind)
        return Failure(frames[0], fields[4], code, text, frames[1], is_declined=True, data=data)
    retry_ms = native.read_retry(behind) if code == ErrorCode.RETRY else OWN_BACKOFF
    return Failure(frames[0], fields[4], code, text, frames[1], retry_ms)


def _read_ready(frames: Frames, fields: native.Fields, service: bytes) -> Ready:
    _, _, _, flags, ident, epoch, credit, _ = fields
    if not service:
        raise RemoteProtocolError("service-name", "a READY names its service", from_worker=True)
    if not 0 < credit <= CREDIT_MAX:
        raise RemoteProtocolError("credit", f"a worker's credit is 1 to {CREDIT_MAX}", from_worker=True)
    keepalive = ident if ident != native.NO_IDENTITY else b""
    extensions = frames[1][native.HEADER_BYTES + len(service) :]
    return Ready(
        frames[0],
        3,
        (),
        service,
        credit,
        epoch,
        flags & native.FLAG_BATCHES != 0,
        keepalive,
        takes_extended=flags & native.FLAG_EXTENDED != 0,
        process=process_of(extensions),
        elsewhere=elsewhere_of(extensions),
        # A frame of a large message is a view.
        description=bytes(frames[2][: DESCRIPTION_BYTES_MAX + 1]) if len(frames) > 2 else b"",
    )


_READERS: dict[int, Callable[[Frames, native.Fields, bytes], FromPeer]] = {
    native.REQUESTS: _read_requests,
    native.DIRECTED: _read_directed,
    native.FINALS: _read_finals,
    native.PARTIAL: _read_partial,
    native.PROGRESS: _read_progress,
    native.ERROR: _read_error,
    native.READY: _read_ready,
    native.CANCEL: lambda frames, fields, service: Cancel(frames[0], fields[4]),
    native.PING: lambda frames, fields, service: Ping(frames[0], fields[4], fields[5]),
    native.HEARTBEAT: lambda frames, fields, service: Heartbeat(frames[0], 3, (), fields[5], fields[6]),
    native.DISCONNECT: lambda frames, fields, service: Disconnect(
        frames[0], 3, fields[3] & native.FLAG_UNBEGUN != 0
    ),
    native.STALE_EPOCH: lambda frames, fields, service: StaleEpoch(frames[0], fields[4], fields[5]),
}


_ASKING = tuple(native.MAGIC + bytes([command]) for command in (native.REQUEST, native.DIRECTED))


class NativeAsker(msgspec.Struct, gc=False):
    """A client that gets an answer although its request was not read. See ``Asker``."""

    sender: bytes
    identity: bytes
    envelope: Envelope = ()


def asker_of(frames: Frames) -> NativeAsker | None:
    """The client of a REQUEST or DIRECTED that ``decode_peer`` refused, if that much of it can be read."""
    if len(frames) < 2 or frames[1][:3] not in _ASKING or len(frames[1]) < native.HEADER_BYTES:
        return None
    identity = bytes(frames[1][4 : 4 + native.IDENTITY_BYTES])
    return NativeAsker(frames[0], identity) if identity != native.NO_IDENTITY else None


# --- the broker says ----------------------------------------------------------------------------------------


class NativeCodec:
    """The broker's side; see ``BrokerCodec`` and the specification."""

    dialect = Dialect.NATIVE
    label = "native"
    is_streaming = True
    gets_not_active = True

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
        """``[header] [body…]``, the client's extensions behind the header."""
        head = _pack(0xB5, 0x01, native.REQUEST, is_redelivered, identity, epoch, ttl_ms, 0)
        return [to, head + request.extensions, *request.body]

    def requests(
        self,
        to: bytes,
        client_id: bytes,
        table: bytes,
        blob: bytes,
        age_ms: int,
        epoch: int,
        is_redelivered: bool,
    ) -> Frames:
        """Dispatch these rows to a worker; ``age_ms`` is the part of their times to live that has passed."""
        head = native.pack_header(
            0xB5, 0x01, native.REQUESTS, is_redelivered, client_id + native.NO_NUMBER, epoch, age_ms, 0
        )
        return [to, head, table, blob]

    def cancel(self, to: bytes, identity: bytes, epoch: int) -> Frames:
        """Tell a worker that no client waits for this request: ``[header]``"""
        return [to, *native.encode_cancel(identity, epoch)]

    def welcome(
        self, to: bytes, envelope: Envelope, status: NodeStatus, heartbeat_ms: int, expiry_ms: int
    ) -> Frames:
        """``[header] [status] [expiry]``"""
        head = native.header(native.WELCOME, epoch=status.epoch, value=heartbeat_ms)
        return [to, head, native.encode_status(status), expiry_ms.to_bytes(4, "big")]

    def heartbeat(self, to: bytes, envelope: Envelope, state: int, epoch: int) -> Frames:
        """``[header]``"""
        return [to, native.header(native.HEARTBEAT, epoch=epoch, value=state)]

    def disconnect(self, to: bytes, envelope: Envelope, reason: int, epoch: int) -> Frames:
        """``[header]``"""
        return [to, native.header(native.DISCONNECT, epoch=epoch, value=reason)]

    def partial(
        self, asker: Asker, service: bytes, epoch: int, index: int, body: Frames, header: bytes
    ) -> Frames:
        """``[header] [body…]``"""
        header = header or _pack(0xB5, 0x01, native.PARTIAL, 0, asker.identity, epoch, index, 0)
        return [asker.sender, header, *body]

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames:
        """``[header] [body…]``"""
        header = header or _pack(0xB5, 0x01, native.FINAL, 0, asker.identity, epoch, partials, 0)
        return [asker.sender, header, *body]

    def failure(self, asker: Asker, epoch: int, code: int, text: bytes) -> Frames:
        """``[header] [text]``"""
        head = native.header(native.ERROR, identity=asker.identity, epoch=epoch, value=code)
        return [asker.sender, head, text]

    def declined(self, asker: Asker, service: bytes, epoch: int, text: bytes, data: bytes) -> Frames:
        """``[header] [text]``, and ``[data]`` if there is any."""
        frames = self.failure(asker, epoch, ErrorCode.HANDLER_FAILED, text)
        return [*frames, data] if data else frames

    def busy(self, asker: Asker, epoch: int, retry_after_ms: int, text: bytes) -> Frames:
        """``[header] [text]``"""
        wait_ms = min(retry_after_ms, NEVER_MS)
        head = native.header(native.BUSY, identity=asker.identity, epoch=epoch, value=wait_ms)
        return [asker.sender, head, text]

    def not_active(self, asker: Asker, status: NodeStatus, was_dispatched: bool) -> Frames:
        """``[header] [status]``"""
        return self._status(
            native.NOT_ACTIVE,
            asker.sender,
            asker.identity,
            status,
            native.FLAG_DISPATCHED if was_dispatched else 0,
        )

    def pong(self, to: bytes, identity: bytes, status: NodeStatus) -> Frames:
        """``[header] [status]``: the answer to PING in every state."""
        return self._status(native.PONG, to, identity, status)

    @staticmethod
    def _status(command: int, to: bytes, identity: bytes, status: NodeStatus, flags: int = 0) -> Frames:
        retry_after_ms = min(status.retry_after_ms, NEVER_MS)
        head = native.header(
            command, flags=flags, identity=identity, epoch=status.epoch, value=retry_after_ms
        )
        return [to, head, native.encode_status(status)]


CODEC = NativeCodec()
