"""The sockets, files, timers and log of one node's Binary Star.

``PairShell`` makes the machine's inputs: state messages, subscriptions, answers of the arbiter, broken links,
pauses, deadlines, a stop. It hands the machine's outputs to the owner's ``carry_out``. The owner hands each
output of the Binary Star back to ``perform``. So the owner keeps all outputs in order.

The state link is PUB/SUB, because it must neither block nor queue for a peer that is away
(``state_publisher``, ``peer_link``).
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import zmq

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import PairError, RemoteProtocolError
from bstar.host.whole_file import write_whole
from bstar.net.curve import NodeSecurity
from bstar.net.reactor import Reactor
from bstar.pair.arbiter_link import Arbiter, ArbiterLink
from bstar.pair.epoch_file import EpochKeeper
from bstar.pair.peer_link import PeerLink
from bstar.pair.state_publisher import StatePublisher
from bstar.star import (
    ArbiterAnswer,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    Fatal,
    HandoverRefused,
    Input,
    Leave,
    LinkLost,
    Output,
    PauseKept,
    PeerGarbage,
    PeerMessage,
    PeerRefused,
    PeerSeen,
    PersistEpoch,
    PersistPause,
    Promotion,
    Publish,
    Report,
    Stall,
    StarSettings,
    StateChanged,
    Subscription,
    Tick,
)
from bstar.wire.arbiter import Answer
from bstar.wire.peer import PeerState, decode

_log = logging.getLogger("bstar.pair")

# A failed node stays for this long, without serving, so that its peer hears its state. A peer that has just
# started connects at least once a second (see ``bstar.pair.peer_link``).
LAST_WORD_S = 1.5

# How often it looks whether its epoch is stored, and retries.
_EPOCH_LOOK_S = 1.0

# Two nodes that start together, by hand or by a supervisor, have met by then.
FIRST_S = 5.0
# Often enough to be in the part of a log that people read, seldom enough not to fill it.
REMIND_S = 60.0

Out_co = TypeVar("Out_co", covariant=True)
Out = TypeVar("Out")


class PairMachine(Protocol[Out_co]):
    """The machine of a shell: a ``StarMachine``, or a machine that wraps one and adds outputs."""

    @property
    def serve_until(self) -> float:
        """This node may serve before that time."""

    @property
    def published_at(self) -> float:
        """When this node last sent its peer its state."""

    def step(self, given: Input, now: float) -> Sequence[Out_co]:
        """Handle an input."""
        ...

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due."""

    @property
    def absence_s(self) -> float:
        """How old this node's last state message may be before its peer may take over."""

    def has_left(self, now: float) -> bool:
        """After ``Leave``: True if the process may end."""

    def trouble(self, now: float) -> str:
        """Why the node cannot play its part; empty if it can."""


class PairLinks(msgspec.Struct, frozen=True):
    """The endpoints: it binds ``local`` and connects to ``remote`` and ``arbiter``.

    With ``security`` all of them use CURVE; an arbiter that is no endpoint sees to that itself.
    """

    local: str
    remote: str
    arbiter: str | Arbiter | None
    expire_on_refused: bool
    security: NodeSecurity | None = None


class PairShell(Generic[Out]):
    """Runs ``machine`` on ``links``. ``epochs`` stores the epoch, and a pause of takeovers beside it; None
    stores nothing.

    Everything happens in the reactor's thread. Raises zmq.ZMQError if an endpoint cannot be opened.
    """

    def __init__(
        self,
        machine: PairMachine[Out],
        settings: StarSettings,
        links: PairLinks,
        carry_out: Callable[[Sequence[Out]], None],
        *,
        epochs: EpochKeeper | None,
        reactor: Reactor,
        context: "zmq.Context[zmq.Socket[bytes]]",
    ) -> None:
        self.error: PairError | None = None
        self._machine = machine
        self._carry_out = carry_out
        self._epochs = epochs
        self._pauses = None if epochs is None else PauseFile(epochs.file.path.parent)
        self._reactor = reactor
        self._log = PairLog(reactor.now())
        self._last_word: PeerState | None = None
        self._link: PeerLink | None = None
        self._arbiter: Arbiter | None = None
        security = links.security
        key = None if security is None else security.key
        self._publisher = StatePublisher(
            context, reactor, links.local, key=key, on_subscribed=self._on_subscribed
        )
        timing = {"heartbeat_ms": settings.heartbeat_ms, "timeout_ms": settings.failover_timeout_ms}
        try:
            self._link = PeerLink(
                context,
                reactor,
                links.remote,
                **timing,
                security=None if security is None else security.to_peer(),
                expire_on_refused=links.expire_on_refused,
                on_messages=self._on_peer,
                on_lost=lambda now: self.step(LinkLost(), now),
                on_refused=lambda now: self.step(PeerRefused(), now),
            )
            arbiter = links.arbiter
            if isinstance(arbiter, str):
                trust = None if security is None else security.to_arbiter()
                arbiter = ArbiterLink(context, arbiter, **timing, security=trust)
            if arbiter is not None:
                self._arbiter = arbiter
                arbiter.open(reactor, self._on_answer)
            if security is not None:
                security.on_change(self._follow_trust)
        except BaseException:
            self.close()
            raise
        reactor.add_machine(machine.next_deadline, lambda now: self.step(Tick(), now))
        reactor.on_stall(settings.heartbeat_interval_s / 2, self._on_stall)
        reactor.add_timer(FIRST_S / 5, lambda now: self._log.remind(machine.trouble(now), now))
        reactor.on_stop(lambda now: self.step(Leave(), now), machine.has_left)
        if epochs is not None:
            reactor.add_timer(_EPOCH_LOOK_S, epochs.look)

    @property
    def peer_fault(self) -> str:
        """Why the last handshake with the peer failed; "" if it did not."""
        return "" if self._link is None else self._link.fault

    def _follow_trust(self, is_any_gone: bool) -> None:
        """The list of principals has changed: whose key is gone must neither be heard nor hear."""
        assert self._link is not None
        self._link.follow_trust()
        if isinstance(self._arbiter, ArbiterLink):
            self._arbiter.follow_trust()
        if is_any_gone:
            self._publisher.hang_up_all()

    def run(self) -> None:
        """Run until the reactor stops. Raises PairError when the pair cannot go on."""
        kept = None if self._pauses is None else self._pauses.load()
        if kept is not None:
            self.step(kept, self._reactor.now())
        self.step(Tick(), self._reactor.now())
        if self.error is None:
            self._reactor.run()
        if self.error is not None:
            raise self.error

    def promote(self, *, is_trial: bool = False) -> str | None:
        """``BinaryStar.promote``."""
        now = self._reactor.now()
        outputs = self._machine.step(Promotion(is_trial), now)
        self._carry_out(outputs)
        refusals = [output.why for output in outputs if isinstance(output, HandoverRefused)]
        return None if now < self._machine.serve_until else "".join(refusals)

    def close(self) -> None:
        """Close the sockets. Once, before the reactor is closed."""
        self._publisher.close()
        if self._link is not None:
            self._link.close()
        if self._arbiter is not None:
            self._arbiter.close()

    # --- what happens ---------------------------------------------------------------------------------------

    def step(self, given: Input, now: float) -> None:
        """Hand an input to the machine and let the owner carry out its outputs."""
        self._carry_out(self._machine.step(given, now))

    def _on_peer(self, messages: Iterator[list[bytes]], now: float) -> None:
        """Read the peer's messages; of a burst only the newest valid one counts."""
        newest: PeerState | None = None
        for frames in messages:
            try:
                newest = decode(frames)
            except RemoteProtocolError as error:
                self.step(PeerGarbage(error), now)
        if newest is not None:
            # Read the clock after the message: a promise must not begin before its question.
            self.step(PeerMessage(newest), self._reactor.now())

    def _on_subscribed(self, is_published: bool, now: float) -> None:
        if self.error is not None:
            self._say_last_word()
        else:
            self.step(Subscription(is_published), now)

    def _on_answer(self, answer: Answer) -> None:
        self.step(ArbiterAnswer(answer), self._reactor.now())

    def _on_stall(self, gap_s: float, now: float) -> None:
        age_s, limit_s = now - self._machine.published_at, self._machine.absence_s
        outputs = self._machine.step(Stall(gap_s), now)
        is_heeded = any(type(output) is StateChanged for output in outputs)
        self._log.stalled(gap_s, age_s, limit_s, is_heeded=is_heeded)
        self._carry_out(outputs)

    # --- what follows ---------------------------------------------------------------------------------------

    def perform(self, output: Output) -> None:
        """Log the output and carry it out."""
        if isinstance(output, Report):
            self._log.report(output)
        elif type(output) is Publish:
            self._last_word = output.message
            self._say_last_word()
        elif type(output) is AskArbiter:
            assert self._arbiter is not None, "a machine with an arbiter needs a shell with one"
            self._arbiter.ask(output.question)
        elif type(output) is PersistEpoch:
            if self._epochs is not None:
                self._epochs.keep(output.epoch, self._reactor.now())
        elif type(output) is PersistPause:
            if self._epochs is not None and self._pauses is not None:
                self._epochs.write(partial(self._pauses.keep, output), self._reactor.now())
        else:
            assert type(output) is Fatal, f"no branch performs {output!r}"
            _log.critical("%s", output.error)
            self.error = output.error
            # Both nodes must know it, and the peer may not have heard us yet.
            self._say_last_word()
            self._reactor.call_at(self._reactor.now() + LAST_WORD_S, lambda now: self._reactor.end())

    def _say_last_word(self) -> None:
        if self._last_word is not None:
            self._publisher.say(self._last_word)


class PairLog:
    """Logs a node's reports, pauses of its process, and its lasting troubles. Call ``remind`` each second.

    A report of the machine has its own level and sentence (``bstar.star.outputs``). Of unsuccessful claims,
    only the first is logged. A trouble that needs an operator is logged again every REMIND_S.
    """

    def __init__(self, now: float) -> None:
        self._has_claimed = False
        self._trouble = ""
        self._trouble_since = now
        self._remind_at = math.inf

    def report(self, output: Report) -> None:
        """Log a report. While no claim succeeds, each request makes another: only the first is logged."""
        level = output.level
        if type(output) is Claimed:
            level = logging.DEBUG if self._has_claimed else level
            self._has_claimed = True
        elif type(output) in (StateChanged, PeerSeen, ArbiterSeen):
            self._has_claimed = False
        _log.log(level, "%s", output.text)

    def stalled(self, gap_s: float, age_s: float, limit_s: float, *, is_heeded: bool) -> None:
        """The process was away for ``gap_s``, and its last state message is ``age_s`` old, by which the peer
        judges it: after ``limit_s`` the peer may take over. ``is_heeded``: that changed something.
        """
        level = logging.WARNING if is_heeded or age_s >= limit_s else logging.DEBUG
        text = (
            "the process was away for %.3f s; its last state message is %.3f s old, the failover timeout %g s"
        )
        _log.log(level, text, gap_s, age_s, limit_s)

    def remind(self, trouble: str, now: float) -> None:
        """Log at WARNING why this node cannot play its part, and what to do; repeat it while it lasts."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._trouble_since = now
            self._remind_at = now + FIRST_S
        if trouble and now >= self._remind_at:
            self._remind_at = now + REMIND_S
            _log.warning("for %.0f s: %s", now - self._trouble_since, trouble)


class _KeptPause(msgspec.Struct, frozen=True):
    """``until`` is in seconds since 1970; 0 when takeovers were resumed."""

    number: int
    until: float
    why: str


class PauseFile:
    """A pause of takeovers (``bstar.star.takeover_pause``), kept across restarts in ``STATE_DIR/pause``.

    The file is one JSON object with the end of the pause by the wall clock, because the clock of a run ends
    with it. A pause that cannot be stored or read is logged; a node that restarts then hears it from its
    peer. ``wall_clock`` returns seconds since 1970.
    """

    def __init__(self, state_dir: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self.path = state_dir / "pause"
        self._wall_clock = wall_clock

    def load(self) -> PauseKept | None:
        """The last order that was stored; None without one, or if it cannot be read."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=_KeptPause)
        except FileNotFoundError:
            return None
        except (OSError, *UNDECODABLE) as error:
            _log.warning(
                "%s cannot be read: %s; whether takeovers are paused, the peer says", self.path, error
            )
            return None
        return PauseKept(kept.number, max(0.0, kept.until - self._wall_clock()), kept.why)

    def keep(self, pause: PersistPause) -> None:
        """Store an order."""
        until = self._wall_clock() + pause.for_s if pause.for_s else 0.0
        line = msgspec.json.encode(_KeptPause(pause.number, until, pause.why)) + b"\n"
        try:
            write_whole(self.path, line)
        except OSError as error:
            _log.error(
                "the pause of takeovers could not be stored in %s: %s; a restart of both nodes forgets it",
                self.path,
                error.strerror or error,
            )
