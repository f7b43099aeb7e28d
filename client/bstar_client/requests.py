"""What a client of either shell is told, and how it turns what a caller asks into a call of its session.

No sockets, no threads, no event loop: ``client`` and ``aio`` add those, each its own way.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from bstar.errors import CallTimeoutError, ConfigurationError, LocalProtocolError, RemoteProtocolError
from bstar.fleet import Endpoints, Fleet
from bstar.wire.mmi import OK, PREFIX, Service
from bstar_client.bodies import Body, to_frames, to_name, to_octets
from bstar_client.checks import (
    check_endpoints,
    check_flag,
    check_function,
    check_sockets,
    to_count,
    to_seconds,
    to_timeout,
)
from bstar_client.core.calls import Ask, Call, Reply
from bstar_client.core.fleet_session import FleetSession
from bstar_client.core.mdp02_session import Mdp02Session, Mdp02Settings
from bstar_client.core.session import Session, SessionSettings
from bstar_client.link import LinkSettings

__all__ = ["DEFAULT", "Asker", "Dialect", "Timeout", "read_services", "to_key"]

Dialect = Literal["native", "mdp02"]

# A call's own timeout; not set, the client's applies.
Timeout: TypeAlias = float | msgspec.UnsetType | None
DEFAULT = msgspec.UNSET
_HEADER_BYTES = 64


class Asker:
    """The settings of a client, checked, its session, and the calls made by them.

    Raises ConfigurationError for settings that cannot work.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        pins: Mapping[str, str] | None,
        dialect: Dialect,
        timeout: float | None,
        outstanding_max: int,
        partials_max: int,
        ping_interval_s: float | None,
        silence_limit_s: float | None,
        attempt_timeout_s: float,
        settle_delay_s: float,
        link: LinkSettings | None,
        context: object,
        journal: object,
        on_event: object,
    ) -> None:
        check_sockets(link, context, journal)
        if on_event is not None:
            check_function(on_event, "on_event")
        self.fleet = Fleet.of(endpoints, pins)
        self.endpoints = self.fleet.endpoints
        check_endpoints(self.endpoints)
        self.is_fleet = len(self.fleet.pairs) > 1
        if timeout is not None:
            timeout = to_timeout(to_seconds(timeout, "timeout", may_be_endless=True))
        self._timeout = timeout
        outstanding_max = to_count(outstanding_max, "outstanding_max", 1)
        partials_max = to_count(partials_max, "partials_max", 1)
        if ping_interval_s is not None:
            ping_interval_s = to_seconds(ping_interval_s, "ping_interval_s")
        if silence_limit_s is not None:
            silence_limit_s = to_seconds(silence_limit_s, "silence_limit_s")
        attempt_timeout_s = to_seconds(attempt_timeout_s, "attempt_timeout_s")
        settle_delay_s = to_seconds(settle_delay_s, "settle_delay_s", may_be_zero=True)
        self._is_native = dialect == "native"
        if dialect not in ("native", "mdp02"):
            raise ConfigurationError(f"dialect is 'native' or 'mdp02', not {dialect!r}")

        def begin(place: int, now: float) -> Session | Mdp02Session:
            listed = self.fleet.pairs[place].endpoints
            if dialect == "native":
                return Session(listed, client_id=os.urandom(16), now=now, settings=native)
            return Mdp02Session(listed, now=now, settings=plain)

        native = SessionSettings(outstanding_max, partials_max, ping_interval_s, silence_limit_s)
        plain = Mdp02Settings(outstanding_max, partials_max, attempt_timeout_s, settle_delay_s)
        self.core: Session | Mdp02Session | FleetSession
        if self.is_fleet:
            self.core = FleetSession([len(pair.endpoints) for pair in self.fleet.pairs], begin)
        else:
            self.core = begin(0, time.monotonic())
        self.link_settings = link or LinkSettings(high_water_mark=max(outstanding_max, 1_000))
        self._message_bytes_max = self.link_settings.message_bytes_max

    def call(
        self,
        service: str | bytes,
        body: Body,
        timeout: Timeout,
        is_idempotent: bool,
        sink: Any,  # the shell's: where the result goes
        is_stream: bool = False,
        index: int = 0,
        key: bytes | None = None,
        is_urgent: bool = False,
        pair: int | None = None,
    ) -> Call:
        """A call as the session takes it. Raises LocalProtocolError or TypeError for what cannot be sent."""
        check_flag(is_idempotent, "idempotent")
        check_flag(is_urgent, "urgent")
        if key is not None and not self._is_native:
            raise LocalProtocolError("plain MDP/0.2 has no identities, so a request cannot have a key")
        if is_urgent and not self._is_native:
            raise LocalProtocolError("plain MDP/0.2 has no word for an urgent request")
        name = to_name(service)
        frames = [body] if type(body) is bytes else to_frames(body)
        size = sum(map(len, frames))
        if size + len(name) + _HEADER_BYTES > self._message_bytes_max:
            raise LocalProtocolError(f"the message has more than {self._message_bytes_max} octets")
        now = time.monotonic()
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else now + seconds
        call = Call(
            name, frames, deadline, is_idempotent, is_stream, index, sink, key, is_urgent, now, bytes_in=size
        )
        if self.is_fleet:
            call.pair = self._place(name, frames) if pair is None else pair
        return call

    def _place(self, service: bytes, frames: list[bytes]) -> int:
        """The pair that a request belongs to; what is asked of a broker about a service goes to its pair."""
        if not service.startswith(PREFIX):
            return self.fleet.place(service)
        if frames[-1] and service in (Service.SERVICE.value, Service.WORKERS.value):
            return self.fleet.place(frames[-1])
        raise LocalProtocolError(
            f"{service.decode(errors='replace')} asks a broker about itself, and this client has "
            f"{len(self.fleet.pairs)} pairs: use services(), node_states(), or a client of one pair"
        )

    def services_calls(self, timeout: Timeout, sink: Callable[[], Any]) -> list[Call]:  # Any: the shell's
        """A call of mmi.services for each pair, each with a sink of its own."""
        return [
            self.call(Service.SERVICES.value, b"", timeout, True, sink(), pair=place)
            for place in range(len(self.fleet.pairs))
        ]

    def read_services(self, call: Call, reply: Reply) -> list[dict[str, object]]:
        """The answer to one of ``services_calls``; of a fleet, with the pair of each service."""
        listed = read_services(reply)
        if not self.is_fleet:
            return listed
        identity = self.fleet.pairs[call.pair].identity
        return [entry | {"pair": identity} for entry in listed]

    def actives(self) -> dict[str, str | None]:
        """The node that is followed now, by the identity of its pair."""
        core = self.core
        actives = core.actives if isinstance(core, FleetSession) else [core.active]
        return {pair.identity: active for pair, active in zip(self.fleet.pairs, actives, strict=True)}

    def caller(
        self,
        service: str | bytes,
        timeout: Timeout,
        is_idempotent: bool,
        sink: Any,  # the shell's
    ) -> Callable[[Body | Ask, int], Call]:
        """What makes the calls for ``map``'s bodies, at their places."""
        check_flag(is_idempotent, "idempotent")
        default: float | None = None
        name, pair = b"", -1
        size_max = self._message_bytes_max - _HEADER_BYTES
        # A name that is none or has no place of its own, or a timeout that is over: each body is told.
        with contextlib.suppress(LocalProtocolError, CallTimeoutError):
            default = self._seconds(timeout)
            name = to_name(service)
            if not name.startswith(PREFIX):
                pair = self.fleet.place(name) if self.is_fleet else 0
                size_max -= len(name)

        def call_for(body: Body | Ask, index: int) -> Call:
            if type(body) is bytes and pair >= 0 and (size := len(body)) <= size_max:
                frames, now = [body], time.monotonic()
                until = None if default is None else now + default
                return Call(
                    name,
                    frames,
                    until,
                    is_idempotent,
                    index=index,
                    sink=sink,
                    begun_at=now,
                    bytes_in=size,
                    pair=pair,
                )
            return self._call_for(body, service, timeout, is_idempotent, sink, index)

        return call_for

    def _call_for(
        self,
        body: Body | Ask,
        service: str | bytes,
        timeout: Timeout,
        is_idempotent: bool,
        sink: Any,  # the shell's
        index: int,
    ) -> Call:
        if type(body) is not Ask:
            assert not isinstance(body, Ask), "its type is exactly Ask"
            return self.call(service, body, timeout, is_idempotent, sink, index=index)
        if body.timeout is not DEFAULT:
            timeout = body.timeout
        if body.service is not None:
            service = body.service
        return self.call(
            service,
            body.body,
            timeout,
            is_idempotent,
            sink,
            index=index,
            key=to_key(body.key),
            is_urgent=body.urgent,
        )

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if timeout is DEFAULT else to_timeout(timeout)


def to_key(key: bytes | str | None) -> bytes | None:
    """A caller's key as octets; text is UTF-8. LocalProtocolError for an empty one."""
    if key is None:
        return None
    octets = to_octets(key, "a key")
    if not octets:
        raise LocalProtocolError("a key is one octet or more; None means that the request has none")
    return octets


def read_services(reply: Reply) -> list[dict[str, object]]:
    """The answer to mmi.services. RemoteProtocolError if it is none."""
    if reply.frames[0] != OK or len(reply.frames) != 2:
        raise RemoteProtocolError("mmi", f"the broker does not answer mmi.services: {reply.frames[0][:16]!r}")
    try:
        return msgspec.json.decode(reply.frames[1], type=list[dict[str, object]])
    except msgspec.DecodeError as error:
        raise RemoteProtocolError("mmi", f"the answer to mmi.services cannot be read: {error}") from error
