"""What a client of either shell is told, and how it turns what a caller asks into a call of its session.

No sockets, no threads, no event loop: ``client`` and ``aio`` add those, each its own way.
"""

import math
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from bstar.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from bstar.wire.mmi import OK
from bstar_client.bodies import Body, to_frames, to_name
from bstar_client.core.calls import Ask, Call, Reply
from bstar_client.core.mdp02_session import Mdp02Session, Mdp02Settings
from bstar_client.core.session import Session, SessionSettings
from bstar_client.link import LinkSettings

__all__ = ["DEFAULT", "Asker", "Dialect", "read_services", "to_key"]

Dialect = Literal["native", "mdp02"]

# "Not told": the client's own default applies.
DEFAULT: float = math.nan
_HEADER_BYTES = 64
# Thirty years and infinity are the same to a caller, but not to the calls of the system that wait.
_TIMEOUT_S_MAX = 1e9


class Asker:
    """The settings of a client, checked, its session, and the calls made by them.

    Raises ConfigurationError for settings that cannot work.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        dialect: Dialect,
        timeout: float | None,
        outstanding_max: int,
        partials_max: int,
        ping_interval_s: float | None,
        silence_limit_s: float | None,
        attempt_timeout_s: float,
        settle_delay_s: float,
        link: LinkSettings | None,
    ) -> None:
        self.endpoints = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        if not self.endpoints or len(set(self.endpoints)) != len(self.endpoints):
            raise ConfigurationError(f"endpoints must be one or more, each once: {list(self.endpoints)}")
        self._timeout = timeout
        self._has_keys = dialect == "native"
        self.core: Session | Mdp02Session
        now = time.monotonic()
        if dialect == "native":
            self.core = Session(
                self.endpoints,
                client_id=os.urandom(16),
                now=now,
                settings=SessionSettings(outstanding_max, partials_max, ping_interval_s, silence_limit_s),
            )
        elif dialect == "mdp02":
            self.core = Mdp02Session(
                self.endpoints,
                now=now,
                settings=Mdp02Settings(outstanding_max, partials_max, attempt_timeout_s, settle_delay_s),
            )
        else:
            raise ConfigurationError(f"dialect is 'native' or 'mdp02', not {dialect!r}")
        self.link_settings = link or LinkSettings(high_water_mark=max(outstanding_max, 1_000))
        self._message_bytes_max = self.link_settings.message_bytes_max

    def call(
        self,
        service: str | bytes,
        body: Body,
        timeout: float | None,
        is_idempotent: bool,
        sink: Any,  # the shell's: where the result goes
        is_stream: bool = False,
        index: int = 0,
        key: bytes | None = None,
    ) -> Call:
        """A call as the session takes it. Raises LocalProtocolError or TypeError for what cannot be sent."""
        if key is not None and not self._has_keys:
            raise LocalProtocolError("plain MDP/0.2 has no identities, so a request cannot have a key")
        name = to_name(service)
        frames = [body] if type(body) is bytes else to_frames(body)
        size = sum(map(len, frames))
        if size + len(name) + _HEADER_BYTES > self._message_bytes_max:
            raise LocalProtocolError(f"the message has more than {self._message_bytes_max} octets")
        if timeout is not None and timeout != timeout:  # noqa: PLR0124 - DEFAULT is not a number
            timeout = self._timeout
        if timeout is not None and timeout > _TIMEOUT_S_MAX:
            timeout = None
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        return Call(name, frames, deadline, is_idempotent, is_stream, index, sink, key, now, bytes_in=size)

    def call_for(
        self,
        body: Body | Ask,
        service: str | bytes,
        timeout: float | None,
        is_idempotent: bool,
        sink: Any,  # the shell's
        index: int,
    ) -> Call:
        """The call for one of ``map``'s bodies, which may bring a key and a timeout of its own."""
        if type(body) is not Ask:
            assert not isinstance(body, Ask), "its type is exactly Ask"
            return self.call(service, body, timeout, is_idempotent, sink, index=index)
        own = body.timeout
        if own is None or own == own:  # noqa: PLR0124 - "not told" is not a number
            timeout = own
        return self.call(service, body.body, timeout, is_idempotent, sink, index=index, key=to_key(body.key))


def to_key(key: bytes | str | None) -> bytes | None:
    """A caller's key as octets; text is UTF-8. LocalProtocolError for an empty one."""
    if key is None:
        return None
    octets = key.encode() if isinstance(key, str) else bytes(key)
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
