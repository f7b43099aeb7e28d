"""Makes calls of callers' requests: checked, with a deadline and the pair of the service.

No sockets, no threads, no event loop: both clients use it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import CallTimeoutError, LocalProtocolError, RejectedError, RemoteProtocolError
from bstar.wire import durable, mmi
from bstar.wire.extensions import PROGRESS_EXTENSION, headers_extensions
from bstar.wire.limits import WORKER_NAME_BYTES_MAX
from bstar.wire.messages import ErrorCode
from bstar.wire.mmi import NOT_FOUND, NOT_IMPLEMENTED, OK, Service
from bstar_client.arguments.bodies import to_bytes, to_name
from bstar_client.arguments.checks import check_flag, check_on_progress, to_timeout
from bstar_client.arguments.codecs import CONTENT_TYPES, Codec, T, to_typed
from bstar_client.arguments.settings import ClientSettings
from bstar_client.core.calls import Ask, Asked, Call, CallTracer, OnProgress, Reply

# A call's own timeout. If it is unset, the client's applies.
Timeout: TypeAlias = float | msgspec.UnsetType | None
DEFAULT = msgspec.UNSET
# A request has at most this many bytes beside its service's name, its headers and its body.
_HEADER_BYTES = 64
# What such services answer depends on the pair, not on the name.
_BROKERS = (mmi.PREFIX, durable.PREFIX)
_OF_A_SERVICE = (
    Service.SERVICE.value,
    Service.WORKERS.value,
    Service.NAMES.value,
    Service.DESCRIPTIONS.value,
)


class MapOptions(TypedDict, total=False):
    """The options of ``map``, but for ``errors`` and ``reply``, on which the type of the outcomes depends."""

    window: int
    ordered: bool
    timeout: Timeout
    idempotent: bool
    codec: Codec | None
    progress: bool


class StreamOptions(TypedDict, total=False):
    """The options of ``stream``, but for ``reply``."""

    codec: Codec | None
    timeout: Timeout
    idempotent: bool
    urgent: bool
    headers: Mapping[str, str] | None
    on_progress: OnProgress | None


class AskAllOptions(TypedDict, total=False):
    """The options of ``ask_all``, but for ``reply``."""

    codec: Codec | None
    timeout: Timeout
    idempotent: bool
    headers: Mapping[str, str] | None


class RequestOptions(StreamOptions, total=False):
    """The options of ``request``, but for ``reply``."""

    key: bytes | str | None


class Requests:
    """The calls of one client. The shell puts outcomes into a call's ``sink``; nothing here reads it."""

    def __init__(self, settings: ClientSettings) -> None:
        self._fleet = settings.fleet
        self._is_fleet = len(settings.fleet.pairs) > 1
        self._timeout = settings.timeout
        self._clock = settings.net.clock
        self._is_native = settings.is_native
        self._message_bytes_max = settings.link.message_bytes_max
        self.tracer: CallTracer | None = None

    def call(
        self,
        ask: Ask,
        sink: Any,
        *,
        idempotent: bool,
        is_stream: bool = False,
        index: int = 0,
        pair: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Call:
        """A call for the session. LocalProtocolError or TypeError if it cannot be sent."""
        check_flag(idempotent, "idempotent")
        check_flag(ask.urgent, "urgent")
        key = to_key(ask.key)
        if key is not None and not self._is_native:
            raise LocalProtocolError("plain MDP has no identities, so a request cannot have a key")
        if ask.urgent and not self._is_native:
            raise LocalProtocolError("plain MDP has no urgent requests")
        body, headers = ask.body, ask.headers
        if type(body) is bytes and ask.codec is None:
            frames = [body]
        else:
            frames, headers = to_typed(body, ask.codec, headers, is_native=self._is_native)
        extensions = extensions_of(headers)
        if extensions and not self._is_native:
            raise LocalProtocolError("plain MDP has no headers")
        name = to_name(ask.service)
        size = sum(map(len, frames))
        if size + len(name) + len(extensions) + _HEADER_BYTES > self._message_bytes_max:
            raise LocalProtocolError(f"the message has more than {self._message_bytes_max} bytes")
        now = self._clock()
        timeout_s = self.seconds(ask.timeout)
        call = Call(
            name,
            frames,
            None if timeout_s is None else now + timeout_s,
            idempotent,
            is_stream,
            index,
            sink,
            key,
            ask.urgent,
            now,
            bytes_in=size,
            pair=(self._place(name, frames) if self._is_fleet else 0) if pair is None else pair,
            extensions=extensions,
        )
        if on_progress is not None:
            check_on_progress(on_progress)
            if not self._is_native:
                raise LocalProtocolError("plain MDP has no progress: leave on_progress out")
            call.on_progress = on_progress
        # Nothing may fail from here on: the trace would not end.
        if self.tracer is not None:
            self._trace(self.tracer, call, headers or {})
        if on_progress is not None:
            call.extensions += PROGRESS_EXTENSION
        return call

    def _trace(self, tracer: CallTracer, call: Call, headers: Mapping[str, str]) -> None:
        """Let the request carry its trace, if there is room: a trace never makes a call fail."""
        carried = tracer.begin(call, headers)
        if self._is_native:
            with contextlib.suppress(LocalProtocolError):
                extensions = headers_extensions(carried)
                size = call.bytes_in + len(call.service) + len(extensions) + _HEADER_BYTES
                if size <= self._message_bytes_max:
                    call.extensions = extensions

    def carried(self, headers: Mapping[str, str] | None) -> bytes:
        """The extensions of a durable request: its headers, and the caller's trace if calls are traced and if
        there is room for it.
        """
        extensions = extensions_of(headers)
        if self.tracer is not None:
            with contextlib.suppress(LocalProtocolError):
                extensions = headers_extensions(self.tracer.carried(headers or {}))
        return extensions

    def call_maker(
        self,
        service: str | bytes,
        timeout: Timeout,
        idempotent: bool,
        sink: Any,
        pair: int | None = None,
        codec: Codec | None = None,
    ) -> Callable[[Asked, int], Call]:
        """A function that makes calls of ``map``'s bodies and positions. Most bodies take a short path.

        ``pair``: that of all of them, if it is not the service's. ``codec``: of those without one.
        """
        check_flag(idempotent, "idempotent")
        timeout_s: float | None = None
        name, place = b"", -1
        size_max = self._message_bytes_max - _HEADER_BYTES
        clock = self._clock
        # A wrong service or timeout is the error of each body.
        # A call that is traced, or that names a codec, takes the long path.
        with contextlib.suppress(LocalProtocolError, CallTimeoutError):
            timeout_s = self.seconds(timeout)
            name = to_name(service)
            if self.tracer is None and codec is None and (pair is not None or not name.startswith(_BROKERS)):
                place = self._fleet.place(name) if pair is None else pair
                size_max -= len(name)

        def make(body: Asked, index: int) -> Call:
            if type(body) is bytes and place >= 0 and (size := len(body)) <= size_max:
                now = clock()
                deadline = None if timeout_s is None else now + timeout_s
                return Call(
                    name,
                    [body],
                    deadline,
                    idempotent,
                    index=index,
                    sink=sink,
                    begun_at=now,
                    bytes_in=size,
                    pair=place,
                )
            if isinstance(body, Ask):
                own_timeout = timeout if body.timeout is DEFAULT else body.timeout
                own_service = service if body.service is None else body.service
                own_codec = codec if body.codec is None else body.codec
                ask = Ask(body.body, body.key, own_timeout, own_service, body.urgent, body.headers, own_codec)
            else:
                ask = Ask(body, None, timeout, service, codec=codec)
            return self.call(ask, sink, idempotent=idempotent, index=index, pair=pair)

        return make

    def store_pair(self, service: str | bytes | None) -> int:
        """The pair that stores the requests to a service. LocalProtocolError if that is unknown."""
        if not self._is_native:
            raise LocalProtocolError("plain MDP has no durable requests: use the native dialect")
        if not self._is_fleet:
            return 0
        if service is None:
            raise LocalProtocolError(
                f"this client has {len(self._fleet.pairs)} pairs: name the service of the durable request "
                "(service=…), which leads to its pair"
            )
        return self._fleet.place(to_name(service))

    def store_pairs(self, service: str | bytes | None) -> range:
        """The same; without a service all pairs."""
        if service is None and self._is_native:
            return range(len(self._fleet.pairs))
        place = self.store_pair(service)
        return range(place, place + 1)

    def services_calls(self, timeout: Timeout, new_sink: Callable[[], Any]) -> list[Call]:
        """A call of mmi.services for each pair, each with a sink of its own."""
        ask = Ask(b"", timeout=timeout, service=Service.SERVICES.value)
        return [
            self.call(ask, new_sink(), idempotent=True, pair=place) for place in range(len(self._fleet.pairs))
        ]

    def read_services(self, calls: Sequence[Call], replies: Sequence[Reply]) -> list[dict[str, object]]:
        """Read the replies to ``services_calls``. In a fleet each service has its ``pair``."""
        services: list[dict[str, object]] = []
        for call, reply in zip(calls, replies, strict=True):
            pair = {"pair": self._fleet.pairs[call.pair].identity} if self._is_fleet else {}
            services += [entry | pair for entry in _read_services(reply)]
        return services

    # --- all workers of a service ---------------------------------------------------------------------------

    def ask_of_all(self, ask: Ask) -> Ask:
        """What each worker is asked, its body encoded once. LocalProtocolError or TypeError if it cannot be
        sent.
        """
        if not self._is_native:
            raise LocalProtocolError("plain MDP has no requests for one worker: use the native dialect")
        frames, headers = to_typed(ask.body, ask.codec, ask.headers)
        extensions, name = extensions_of(headers), to_name(ask.service)
        if name.startswith(_BROKERS):
            raise LocalProtocolError(
                f"{name.decode(errors='replace')} is the broker's own: no worker offers it"
            )
        size = sum(map(len, frames)) + len(name) + len(extensions) + WORKER_NAME_BYTES_MAX + _HEADER_BYTES
        if size > self._message_bytes_max:
            raise LocalProtocolError(f"the message has more than {self._message_bytes_max} bytes")
        return Ask(frames, None, ask.timeout, name, headers=headers)

    def deadline_of(self, timeout: Timeout) -> float | None:
        """When a call ends that begins now; None: never."""
        timeout_s = self.seconds(timeout)
        return None if timeout_s is None else self._clock() + timeout_s

    def directed_maker(
        self, ask: Ask, deadline: float | None, sink: Any, *, idempotent: bool
    ) -> Callable[[Asked, int], Call]:
        """A function that makes a call of a worker's name and its position. All have one deadline."""

        def make(worker: Asked, index: int) -> Call:
            assert isinstance(worker, bytes)
            timeout_s = None if deadline is None else deadline - self._clock()
            call = self.call(
                msgspec.structs.replace(ask, timeout=timeout_s), sink, idempotent=idempotent, index=index
            )
            call.body = [worker, *call.body]
            call.is_directed = True
            return call

        return make

    def _place(self, service: bytes, frames: list[bytes]) -> int:
        """The pair of a request. A question to a broker about a service goes to that service's pair."""
        fleet = self._fleet
        if not service.startswith(_BROKERS):
            return fleet.place(service)
        if service.startswith(durable.PREFIX):
            raise LocalProtocolError(
                f"{service.decode(errors='replace')} asks the store of one pair, but this client has "
                f"{len(fleet.pairs)} pairs: use submit(), result() and so on, or a client of one pair"
            )
        if frames[-1] and service in _OF_A_SERVICE:
            return fleet.place(frames[-1])
        raise LocalProtocolError(
            f"{service.decode(errors='replace')} asks one broker about itself, but this client has "
            f"{len(fleet.pairs)} pairs: use services(), node_states(), or a client of one pair"
        )

    def seconds(self, timeout: Timeout) -> float | None:
        """A call's timeout, or the client's."""
        return self._timeout if timeout is DEFAULT else to_timeout(timeout)


def extensions_of(headers: Mapping[str, str] | None) -> bytes:
    """The extensions of a caller's headers. TypeError or LocalProtocolError if they cannot be sent."""
    if headers is None:
        return b""
    # Of a typed body without other headers: it saves 2 of 5 µs.
    known = CONTENT_TYPES.get(id(headers))
    return headers_extensions(headers) if known is None else known


def to_key(key: bytes | str | None) -> bytes | None:
    """A caller's key as bytes; text becomes UTF-8. LocalProtocolError for an empty key."""
    if key is None:
        return None
    data = to_bytes(key, "a key")
    if not data:
        raise LocalProtocolError("a key is one byte or more; None means that the request has none")
    return data


def read_names(reply: Reply) -> list[bytes]:
    """The workers' names in an answer to mmi.names; none if the broker does not know the service."""
    code, *frames = reply.frames
    if code == NOT_FOUND:
        return []
    if code == NOT_IMPLEMENTED:
        text = f"{reply.endpoint} does not know requests for one worker alone (ask_all)"
        raise RejectedError(f"{text}; nothing was sent: upgrade the node", code=ErrorCode.INVALID)
    names = read_json(frames[0] if frames else b"", list[str], Service.NAMES)
    return [name.encode() for name in names]


def _read_services(reply: Reply) -> list[dict[str, object]]:
    if reply.frames[0] != OK or len(reply.frames) != 2:
        raise RemoteProtocolError("mmi", f"the broker does not answer mmi.services: {reply.frames[0][:16]!r}")
    listed = read_json(reply.frames[1], list[dict[str, object]], Service.SERVICES)
    if not all(isinstance(each.get("service"), str) for each in listed):
        raise RemoteProtocolError("mmi", "the answer to mmi.services has an entry without a service")
    return listed


def read_json(frame: bytes, kind: type[T], asked: Service) -> T:
    """The JSON of an answer to a question of ``mmi``. RemoteProtocolError if it cannot be read."""
    try:
        return msgspec.json.decode(frame, type=kind)
    except UNDECODABLE as error:
        text = f"the answer to {asked.value.decode()} cannot be read: {error}"
        raise RemoteProtocolError("mmi", text) from error
