"""What the clients of servers without a broker take, and the cores that they make of it.

``bstar_client.sync.brokerless`` and ``bstar_client.aio.brokerless`` have the clients. Nothing here waits.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack

import zmq

from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.security import Security
from bstar_client.arguments.bodies import to_frames
from bstar_client.arguments.checks import check_function, check_shared, to_count, to_seconds, to_timeout
from bstar_client.arguments.settings import ClientSettings, LinkSettings, secured
from bstar_client.calls.client_base import ClientBase
from bstar_client.calls.requests import DEFAULT, Timeout
from bstar_client.core.calls import Ask, Asked, Call
from bstar_client.core.events import Event
from bstar_client.core.outputs import ClientCore
from bstar_client.core.plain.attempt_session import PlainSession
from bstar_client.core.plain.flp_session import FlpSession
from bstar_client.core.plain.shotgun_session import ShotgunSession
from bstar_client.core.session_settings import SessionSettings

# Beside its body a message has a delimiter and a number.
_HEAD_BYTES = 64
# The published client of one server asks it so often (FL1-C-01).
_SINGLE_SERVER_ATTEMPTS = 3
# Of a ``map`` with numbered requests: enough to hide the way to the server, few enough for one that is slow.
_NUMBERED_WINDOW = 64


class Shared(TypedDict, total=False):
    """The options that every client without a broker has, each as in ``HAClient``."""

    on_event: Callable[[Event], object] | None
    outstanding_max: int
    link: LinkSettings | None
    security: Security | None
    context: "zmq.Context[zmq.Socket[bytes]] | None"


class Brokerless(ClientBase):
    """Base of the clients without a broker.

    ``_attempts``: a call lasts as many times its timeout at most. ``_window``: the requests of a ``map`` that
    are under way, unless it says how many.
    """

    _attempts = 1
    _window = 1

    def _open_with(
        self,
        endpoints: Sequence[str],
        timeout: float | None,
        new_core: Callable[[tuple[str, ...], int], ClientCore],
        options: Shared,
        *,
        is_router: bool = False,
    ) -> None:
        """Check what all of them take, and begin. ``new_core`` gets the endpoints and ``outstanding_max``."""
        for name in options:
            if name not in Shared.__annotations__:
                raise TypeError(f"{type(self).__name__} has no option {name!r}")
        link, security = options.get("link"), options.get("security")
        context, on_event = options.get("context"), options.get("on_event")
        if isinstance(endpoints, str):
            endpoints = [endpoints]
        fleet = check_shared(endpoints, None, "native", link, context, None)
        if len(fleet.pairs) != 1:
            raise ConfigurationError("endpoints are one list of servers, not a list of lists")
        if on_event is not None:
            check_function(on_event, "on_event")
        outstanding_max = to_count(options.get("outstanding_max", 100_000), "outstanding_max", 1)
        link = secured(link or LinkSettings(high_water_mark=max(outstanding_max, 1_000)), security)
        self._settings = ClientSettings(
            self._net, fleet, False, timeout, outstanding_max, link, context, None, is_router
        )
        self._core = new_core(fleet.endpoints, outstanding_max)
        self._begin(on_event, 1)

    def _call(self, body: Asked, timeout: Timeout, sink: Any, index: int = 0) -> Call:
        """A call for the session. LocalProtocolError or TypeError if it cannot be sent."""
        content: object = body
        if isinstance(body, Ask):
            if body.key is not None or body.service is not None or body.urgent or body.codec is not None:
                raise LocalProtocolError(
                    "a server without a broker knows no keys, services, urgency or codecs"
                )
            timeout = timeout if body.timeout is DEFAULT else body.timeout
            content = body.body
        frames = to_frames(content)
        size = sum(map(len, frames))
        if size + _HEAD_BYTES > self._settings.link.message_bytes_max:
            raise LocalProtocolError(
                f"the message has more than {self._settings.link.message_bytes_max} bytes"
            )
        seconds = self._settings.timeout if timeout is DEFAULT else to_timeout(timeout)
        now = time.monotonic()
        deadline = None if seconds is None else now + seconds * self._attempts
        return Call(b"", frames, deadline, index=index, sink=sink, begun_at=now, bytes_in=size)

    def _maker(self, timeout: Timeout) -> Callable[[Any], Callable[[Asked, int], Call]]:
        """A function that makes, for a sink, the function that makes calls of bodies."""
        return lambda sink: lambda body, index: self._call(body, timeout, sink, index)


class LazyPirateBase(Brokerless):
    """Base of ``LazyPirateClient``, which explains the arguments, and ``AsyncLazyPirateClient``."""

    def __init__(
        self, endpoints: Sequence[str], *, timeout: float = 2.5, attempts: int = 3, **options: Unpack[Shared]
    ) -> None:
        attempt_s = to_seconds(timeout, "timeout")
        self._attempts = to_count(attempts, "attempts", 1)
        self._open_with(endpoints, attempt_s, _pirates(attempt_s, self._attempts), options)


class StarBase(Brokerless):
    """Base of ``StarClient``, which explains the arguments, and ``AsyncStarClient``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout: float | None = 30.0,
        attempt_timeout_s: float = 1.0,
        settle_delay_s: float = 2.0,
        **options: Unpack[Shared],
    ) -> None:
        if timeout is not None:
            timeout = to_timeout(to_seconds(timeout, "timeout", may_be_endless=True))
        attempt_s = to_seconds(attempt_timeout_s, "attempt_timeout_s")
        settle_s = to_seconds(settle_delay_s, "settle_delay_s", may_be_zero=True)

        def new_core(checked: tuple[str, ...], outstanding_max: int) -> ClientCore:
            settings = SessionSettings(outstanding_max, attempt_timeout_s=attempt_s, settle_delay_s=settle_s)
            return PlainSession(checked, now=time.monotonic(), settings=settings)

        self._open_with(endpoints, timeout, new_core, options)


# The published timeouts: of each attempt, of a request, of a request.
_TIMEOUTS_S = {1: 1.0, 2: 2.5, 3: 3.0}


class FreelanceBase(Brokerless):
    """Base of ``Freelance``, which explains the arguments, and ``AsyncFreelance``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        model: Literal[1, 2, 3] = 3,
        timeout: Timeout = DEFAULT,
        ping_interval_s: float = 2.0,
        server_expiry_s: float = 6.0,
        **options: Unpack[Shared],
    ) -> None:
        if model not in _TIMEOUTS_S:
            raise ConfigurationError(f"model is 1, 2 or 3, not {model!r}")
        if timeout is DEFAULT:
            timeout = _TIMEOUTS_S[model]
        elif timeout is not None:
            timeout = to_timeout(to_seconds(timeout, "timeout", may_be_endless=model != 1))
        elif model == 1:
            raise ConfigurationError("the timeout of model 1 bounds each attempt: give a number of seconds")
        ping_s = to_seconds(ping_interval_s, "ping_interval_s")
        expiry_s = to_seconds(server_expiry_s, "server_expiry_s")
        if expiry_s < ping_s:
            raise ConfigurationError(
                f"server_expiry_s, {expiry_s}, is below ping_interval_s, {ping_s}: no server would live"
            )
        count = 1 if isinstance(endpoints, str) else len(endpoints)

        def shotgun(checked: tuple[str, ...], outstanding_max: int) -> ClientCore:
            return ShotgunSession(checked, outstanding_max=outstanding_max)

        def flp(checked: tuple[str, ...], outstanding_max: int) -> ClientCore:
            return FlpSession(
                checked, outstanding_max=outstanding_max, ping_interval_s=ping_s, server_expiry_s=expiry_s
            )

        if model == 1:
            self._attempts = count if count > 1 else _SINGLE_SERVER_ATTEMPTS
            assert timeout is not None
            new_core = _pirates(timeout, self._attempts, is_each_once=count > 1)
        else:
            new_core = shotgun if model == 2 else flp
            self._window = _NUMBERED_WINDOW
        self._open_with(endpoints, timeout, new_core, options, is_router=model == 3)


def _pirates(
    attempt_s: float, attempts: int, *, is_each_once: bool = False
) -> Callable[[tuple[str, ...], int], ClientCore]:
    """Makes the core of Lazy Pirate and of Freelance model 1: a number of attempts, without pauses."""

    def new_core(checked: tuple[str, ...], outstanding_max: int) -> ClientCore:
        settings = SessionSettings(
            outstanding_max,
            attempt_timeout_s=attempt_s,
            settle_delay_s=0.0,
            attempts_max=attempts,
            is_each_once=is_each_once,
        )
        return PlainSession(checked, now=time.monotonic(), settings=settings)

    return new_core
