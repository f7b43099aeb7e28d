"""The base of both clients: it checks the arguments, makes the core and answers questions about it."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import zmq

from bstar.errors import LocalProtocolError
from bstar.fleet import Fleet
from bstar.security import Security
from bstar_client.arguments.checks import (
    check_function,
    check_shared,
    names_its_class,
    to_count,
    to_seconds,
    to_seconds_or_none,
    to_timeout,
    warn_of_lone_nodes,
)
from bstar_client.arguments.environment import NOT_GIVEN, Given, or_environment
from bstar_client.arguments.settings import ClientSettings, Dialect, LinkSettings, secured
from bstar_client.calls.client_base import ClientBase
from bstar_client.calls.requests import Requests
from bstar_client.calls.safe_tracer import SafeTracer
from bstar_client.core.calls import CallTracer
from bstar_client.core.counters import ENDS, Counters
from bstar_client.core.events import Event
from bstar_client.core.figures import ClientFigures
from bstar_client.core.fleet_session import FleetSession
from bstar_client.core.native.session import Session
from bstar_client.core.plain.attempt_session import MAJORDOMO, AttemptSession
from bstar_client.core.session_settings import SessionSettings

if TYPE_CHECKING:
    from bstar_client.journal import JournalPlace


class Client(ClientBase):
    """Base of ``HAClient``, which explains the arguments, and ``AsyncHAClient``.

    Raises ConfigurationError for settings that cannot work.
    """

    _core: Session | AttemptSession | FleetSession

    @names_its_class
    def __init__(
        self,
        endpoints: Given = NOT_GIVEN,
        *,
        pins: Mapping[str, str] | None = None,
        dialect: Dialect = "native",
        timeout: float | None = 30.0,
        on_event: Callable[[Event], object] | None = None,
        outstanding_max: int = 100_000,
        partials_max: int = 10_000,
        ping_interval_s: float | None = None,
        silence_limit_s: float | None = None,
        attempt_timeout_s: float = 2.5,
        settle_delay_s: float = 2.0,
        link: LinkSettings | None = None,
        security: Security | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        journal: "JournalPlace | None" = None,
    ) -> None:
        endpoints, security = or_environment(endpoints, security)
        self.fleet = check_shared(endpoints, pins, dialect, link, context, journal)
        if on_event is not None:
            check_function(on_event, "on_event")
        if timeout is not None:
            timeout = to_timeout(to_seconds(timeout, "timeout", may_be_endless=True))
        session = SessionSettings(
            to_count(outstanding_max, "outstanding_max", 1),
            to_count(partials_max, "partials_max", 1),
            to_seconds_or_none(ping_interval_s, "ping_interval_s"),
            to_seconds_or_none(silence_limit_s, "silence_limit_s"),
            to_seconds(attempt_timeout_s, "attempt_timeout_s"),
            to_seconds(settle_delay_s, "settle_delay_s", may_be_zero=True),
        )
        is_native = dialect == "native"
        if is_native:
            warn_of_lone_nodes(self.fleet, self)
        link = secured(link or LinkSettings(high_water_mark=max(session.outstanding_max, 1_000)), security)
        self._settings = ClientSettings(
            self._net, self.fleet, is_native, timeout, session.outstanding_max, link, context, journal
        )
        self._requests = Requests(self._settings)
        self._core = _new_core(self.fleet, session, self._net.clock(), dialect)
        self._begin(on_event, session.partials_max)

    # --- observing ----------------------------------------------------------------------------------------

    @property
    def active(self) -> str | None:
        """The endpoint of the node that the client follows, None while it knows of no active node.

        With several pairs: LocalProtocolError, read ``actives``.
        """
        if isinstance(self._core, FleetSession):
            raise LocalProtocolError("this client has several pairs, each with an active node: read actives")
        return self._core.active

    @property
    def actives(self) -> dict[str, str | None]:
        """The same for each pair, by its name, or by its sorted endpoints, joined by commas.

        A client of several pairs connects to a pair with the first call for it.
        """
        core = self._core
        actives = core.actives if isinstance(core, FleetSession) else [core.active]
        return {pair.identity: active for pair, active in zip(self.fleet.pairs, actives, strict=True)}

    def _standing(self) -> list[str]:
        actives = list(self.actives.values())
        found = [each for each in actives if each is not None]
        if len(actives) > 1:
            active = f"{len(found)} of {len(actives)} pairs have an active node"
        else:
            active = f"active: {found[0] if found else 'not known'}"
        return [active, *super()._standing()]

    def figures(self) -> ClientFigures:
        """The client at this moment, for metrics. Any thread may ask."""
        counters = dict(vars(self.counters))
        in_flight = counters["requests"] - sum(counters[name] for name in ENDS)
        following = {pair: active is not None for pair, active in self.actives.items()}
        return ClientFigures(counters, max(0, in_flight), following)

    def trace(self, tracer: CallTracer) -> None:
        """Report each call to ``tracer`` from now on; ``bstar_client.tracing.instrument`` has one."""
        self._requests.tracer = self._delivery.tracer = SafeTracer(tracer)


def _new_core(
    fleet: Fleet, settings: SessionSettings, now: float, dialect: Dialect
) -> Session | AttemptSession | FleetSession:
    def begin(pair: int, now: float, counters: Counters | None = None) -> Session | AttemptSession:
        endpoints = fleet.pairs[pair].endpoints
        if dialect != "native":
            return MAJORDOMO[dialect](endpoints, now=now, settings=settings, counters=counters)
        return Session(endpoints, client_id=os.urandom(16), now=now, settings=settings, counters=counters)

    if len(fleet.pairs) == 1:
        return begin(0, now)
    return FleetSession([len(pair.endpoints) for pair in fleet.pairs], begin)
