"""A session of a client without a broker with hands: its servers speak when told, and time is a variable."""

from __future__ import annotations

from bstar_client.core.calls import Call, Reply
from bstar_client.core.plain.attempt_session import PlainSession
from bstar_client.core.plain.flp_session import FlpSession
from bstar_client.core.plain.numbered_session import NumberedSession
from bstar_client.core.plain.shotgun_session import ShotgunSession
from bstar_client.core.session_settings import SessionSettings
from support.client_outputs import SessionDesk

SERVERS = ("tcp://one", "tcp://two", "tcp://three")
AnySession = PlainSession | ShotgunSession | FlpSession


class Desk(SessionDesk):
    """A session, the time, and everything it has put out."""

    def __init__(self, session: AnySession, *, call_s: float | None, now: float = 100.0) -> None:
        super().__init__()
        self.session: AnySession = session
        self.now = now
        self.call_s = call_s

    def call(self, body: bytes = b"x") -> Call:
        deadline = None if self.call_s is None else self.now + self.call_s
        call = Call(b"", [body], deadline, begun_at=self.now)
        self.take(self.session.submit(call, self.now))
        return call

    def reply_of(self, call: Call) -> Reply:
        [reply] = [reply for answered, reply in self.replies if answered is call]
        return reply

    def ends(self, call: Call) -> int:
        """How often the call has ended."""
        return [each for each, _ in [*self.replies, *self.errors]].count(call)


def pirate(count: int = 1, *, timeout: float = 2.5, attempts: int = 3, once: bool = False) -> Desk:
    """Lazy Pirate; with ``once`` Freelance model 1."""
    settings = SessionSettings(
        attempt_timeout_s=timeout, settle_delay_s=0.0, attempts_max=attempts, is_each_once=once
    )
    session = PlainSession(SERVERS[:count], now=100.0, settings=settings)
    return Desk(session, call_s=timeout * attempts)


def star(settle_s: float = 2.0) -> Desk:
    """A client of a pair of BinaryStar servers."""
    settings = SessionSettings(attempt_timeout_s=1.0, settle_delay_s=settle_s)
    return Desk(PlainSession(SERVERS[:2], now=100.0, settings=settings), call_s=30.0)


def shotgun(count: int = 3) -> Desk:
    """Freelance model 2."""
    return Desk(ShotgunSession(SERVERS[:count], outstanding_max=1_000), call_s=2.5)


def flp(count: int = 3) -> Desk:
    """Freelance model 3, with the published times."""
    session = FlpSession(SERVERS[:count], outstanding_max=1_000, ping_interval_s=2.0, server_expiry_s=6.0)
    return Desk(session, call_s=3.0)


def is_numbered(desk: Desk) -> bool:
    """True if its requests have numbers."""
    return isinstance(desk.session, NumberedSession)
