"""Make any ZeroMQ server highly available: the shell around one node's Binary Star machine.

Two processes run the same server, one as primary and one as backup. Each has one ``BinaryStar``, which
publishes this node's state to the peer, listens to the peer's, and asks the machine whether a client's
request may be served:

    star = BinaryStar("primary", local="tcp://*:5003", remote="tcp://backup:5004")
    star.voter("tcp://*:5001", zmq.ROUTER, handle)      # handle(socket, frames), only while this node serves
    star.start()

The state link is PUB/SUB, because it must neither block nor queue for a peer that is away
(``state_publisher``, ``peer_link``).

Source: zguide chapter 4, Binary Star and its reactor class; BST-S-01 to BST-R-05.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import zmq

from bstar.arbiter_link import Arbiter, ArbiterLink
from bstar.descriptors import DescriptorGuard
from bstar.epoch_file import EpochFile, EpochKeeper
from bstar.errors import ConfigurationError, LocalProtocolError, PairError, RemoteProtocolError
from bstar.io_threads import keep_apart, new_context
from bstar.pair_log import FIRST_S, PairLog
from bstar.peer_link import PeerLink
from bstar.reactor import Reactor
from bstar.star import (
    Activated,
    ArbiterAnswer,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    ClientsCutOff,
    Deactivated,
    Fatal,
    Handover,
    HandoverRefused,
    Input,
    Leave,
    LinkLost,
    PeerAsked,
    PeerGarbage,
    PeerLost,
    PeerMessage,
    PeerRefused,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
    Promotion,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    StateChanged,
    Subscription,
    Tick,
    Vote,
)
from bstar.state_publisher import StatePublisher
from bstar.wire.arbiter import Answer
from bstar.wire.messages import NodeStatus
from bstar.wire.peer import PeerState, decode

__all__ = ["BinaryStar", "PairMachine"]

_log = logging.getLogger("bstar.pair")

# A node that cannot go on stays for this long, without serving, so that its peer hears who it was: a peer
# that has just started connects anew at least once a second (see ``bstar.peer_link``).
_LAST_WORD_S = 1.5

# How often an epoch that could not be stored is tried again.
_EPOCH_RETRY_S = 1.0

Outputs = Iterable[object]
Voter = Callable[["zmq.Socket[bytes]", list[bytes]], None]
Handler = Callable[[], None]


class PairMachine(Protocol):
    """What the shell runs: a ``StarMachine``, or a machine of the same face that wraps one."""

    @property
    def serve_until(self) -> float:
        """This node may serve before that time."""

    def step(self, given: Input, now: float) -> Outputs:
        """Take note of what happened."""

    def has_left(self, now: float) -> bool:
        """May it end now?"""

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due."""

    def status(self, now: float) -> NodeStatus:
        """What the node tells about itself."""

    def trouble(self, now: float) -> str:
        """What keeps the node from its part; empty if nothing does."""


class BinaryStar:
    """One node of a pair, over ZeroMQ.

    ``role`` is "primary" or "backup". ``local`` is the endpoint where this node publishes its state
    (bound), ``remote`` the peer's (connected to). Both nodes must agree on ``pair`` and on the timing, in
    seconds. ``state_dir`` keeps the epoch across restarts. ``on_dual_active`` is "yield" or "exit".
    ``expire_on_refused``: a peer whose connection broke and whose endpoint then refuses connections is dead
    at once, without the failover timeout. It needs a direct link: whatever stands between the nodes and
    refuses in the peer's name (a proxy, a firewall that rejects) would be believed.
    ``arbiter`` is the endpoint of a ``bstar arbiter`` process, or an arbiter of another kind
    (``bstar.arbiter_link.Arbiter``): with one at most one node serves whatever the network does. Both nodes
    must have it. ``machine`` and ``perform`` are for servers that wrap the state machine in one of their own:
    outputs that are not the Binary Star's go to ``perform``. ``observe`` is told every output before it is
    carried out; it must be quick and not raise.

    Raises ConfigurationError for settings that cannot work and zmq.ZMQError if an endpoint cannot be bound.
    """

    def __init__(
        self,
        role: Role | str,
        *,
        local: str,
        remote: str,
        pair: str = "bstar",
        heartbeat_interval_s: float = 1.0,
        failover_timeout_s: float = 2.0,
        on_dual_active: str = "yield",
        expire_on_refused: bool = True,
        arbiter: str | Arbiter | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        reactor: Reactor | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        machine: PairMachine | None = None,
        perform: Callable[[object], None] | None = None,
        observe: Callable[[object], None] | None = None,
    ) -> None:
        self._owns_reactor = reactor is None
        self._owns_context = context is None
        self._epochs = EpochKeeper(EpochFile(state_dir)) if state_dir is not None else None
        # What can be wrong with the configuration is found before anything is opened.
        settings = StarSettings(
            pair=pair,
            role=_role(role),
            heartbeat_interval_s=heartbeat_interval_s,
            failover_timeout_s=failover_timeout_s,
            on_dual_active=on_dual_active,  # type: ignore[arg-type]  # the settings check it
            arbiter=arbiter if isinstance(arbiter, str) else "" if arbiter is None else arbiter.name,
        )
        epoch = self._epochs.file.load() if self._epochs is not None and machine is None else 0
        self.reactor = reactor if reactor is not None else Reactor()
        if machine is None:
            machine = StarMachine(settings, node=os.urandom(16).hex(), epoch=epoch, now=self.reactor.now())
        self.machine = machine
        self._perform = perform
        self._observe = observe
        self._log = PairLog(failover_timeout_s, self.reactor.now())
        self._error: PairError | None = None
        self._last_word: PeerState | None = None
        self._on_active: list[Handler] = []
        self._on_passive: list[Handler] = []
        self._voter: zmq.Socket[bytes] | None = None
        self._guard: DescriptorGuard | None = None
        self._sockets: list[zmq.Socket[bytes]] = []
        self._publisher: StatePublisher | None = None
        self._link: PeerLink | None = None
        self._arbiter: Arbiter | None = None
        self._is_closed = False
        self._context = context if context is not None else new_context(3)
        try:
            self._publisher = StatePublisher(
                self._context, self.reactor, local, on_subscribed=self._on_subscribed
            )
            self._link = PeerLink(
                self._context,
                self.reactor,
                remote,
                heartbeat_ms=settings.heartbeat_ms,
                timeout_ms=settings.failover_timeout_ms,
                expire_on_refused=expire_on_refused,
                on_messages=self._on_peer,
                on_lost=lambda now: self._step(LinkLost(), now),
                on_refused=lambda now: self._step(PeerRefused(), now),
            )
            if arbiter is not None:
                self._open_arbiter(arbiter, settings)
        except BaseException:
            self.close()
            raise
        self.reactor.add_machine(machine.next_deadline, self._on_deadline)
        self.reactor.on_stall(heartbeat_interval_s / 2, self._on_stall)
        self.reactor.add_timer(FIRST_S / 5, self._on_reminder)
        self.reactor.on_stop(self._on_stop, machine.has_left)
        if self._epochs is not None:
            self.reactor.add_timer(_EPOCH_RETRY_S, self._epochs.retry)

    def _socket(self, socket_type: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(socket_type)
        self._sockets.append(socket)
        keep_apart(socket, 0)
        socket.linger = 0
        socket.ipv6 = True
        return socket

    def _open_arbiter(self, arbiter: str | Arbiter, settings: StarSettings) -> None:
        if isinstance(arbiter, str):
            arbiter = ArbiterLink(
                self._context,
                arbiter,
                heartbeat_ms=settings.heartbeat_ms,
                timeout_ms=settings.failover_timeout_ms,
            )
        self._arbiter = arbiter
        arbiter.open(self.reactor, self._on_answer)

    # --- for the server -----------------------------------------------------------------------------------

    @property
    def epoch_error(self) -> str:
        """Why the epoch of the last activation is not in ``state_dir``; "" if it is, or need not be."""
        return "" if self._epochs is None else self._epochs.error

    def voter(self, endpoint: str, socket_type: int, handler: Voter) -> "zmq.Socket[bytes]":
        """Bind the socket whose messages are votes; one per instance.

        ``handler(socket, frames)`` gets the messages that this node may serve; the others are read and
        dropped, and their senders, hearing nothing, ask the other node.
        """
        if self._voter is not None:
            raise LocalProtocolError("a BinaryStar has one voter: serve everything on that socket")
        socket = self._socket(socket_type)
        self._guard = DescriptorGuard(self.reactor, socket, endpoint)
        self._voter = socket

        def on_request(frames: list[bytes], now: float) -> None:
            if self.may_serve(now):
                handler(socket, frames)

        self.reactor.add_reader(socket, on_request)
        return socket

    def may_serve(self, now: float) -> bool:
        """Ask whether this node serves one client request; a vote while the node is not active."""
        if now >= self.machine.serve_until:
            self._step(Vote(), now)
        return now < self.machine.serve_until

    def on_active(self, handler: Handler) -> Handler:
        """Call ``handler()`` whenever this node begins to serve; usable as a decorator."""
        self._on_active.append(handler)
        return handler

    def on_passive(self, handler: Handler) -> Handler:
        """Call ``handler()`` whenever this node ceases to serve; usable as a decorator."""
        self._on_passive.append(handler)
        return handler

    def handover(self) -> None:
        """Give the active role to the peer, if it is there to take it. From the loop's thread."""
        self._step(Handover(), self.reactor.now())

    def promote(self, *, is_trial: bool = False) -> str | None:
        """Let this lone backup serve; you vouch that its primary does not run. From the loop's thread.

        None if it serves; a sentence if it refuses; "" if it claims the majority first (with an arbiter), or
        if ``is_trial``, which changes nothing, found no refusal.
        """
        now = self.reactor.now()
        outputs = list(self.machine.step(Promotion(is_trial), now))
        self.carry_out(outputs)
        refusals = [output.text for output in outputs if isinstance(output, HandoverRefused)]
        return None if now < self.machine.serve_until else "".join(refusals)

    def start(self) -> None:
        """Run until ``reactor.stop()``, SIGTERM or SIGINT. Raises PairError when the pair cannot go on."""
        self._step(Tick(), self.reactor.now())
        if self._error is None:
            self.reactor.run()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the sockets, and the reactor and context if they are this object's own. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._publisher is not None:
            self._publisher.close()
        if self._link is not None:
            self._link.close()
        if self._arbiter is not None:
            self._arbiter.close()
        if self._guard is not None:
            self._guard.close()
        for socket in self._sockets:
            with suppress(KeyError):  # it could not be bound and was never served
                self.reactor.remove(socket)
            socket.close()
        if self._owns_reactor:
            self.reactor.close()
        if self._owns_context:
            self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, given: Input, now: float) -> None:
        self.carry_out(self.machine.step(given, now))

    # --- events -------------------------------------------------------------------------------------------

    def _on_peer(self, messages: Iterator[list[bytes]], now: float) -> None:
        """Read what the peer sent; of a burst only the newest valid message still says how things are."""
        newest: PeerState | None = None
        for frames in messages:
            try:
                newest = decode(frames)
            except RemoteProtocolError as error:
                self._step(PeerGarbage(error), now)
        if newest is not None:
            # The clock is read after the message was: no promise may begin before what it answers came.
            self._step(PeerMessage(newest), self.reactor.now())

    def _on_subscribed(self, is_published: bool, now: float) -> None:
        if self._error is not None:
            self._say_last_word()
        else:
            self._step(Subscription(is_published), now)

    def _on_answer(self, answer: Answer) -> None:
        self._step(ArbiterAnswer(answer), self.reactor.now())

    def _on_deadline(self, now: float) -> None:
        self._step(Tick(), now)

    def _on_stall(self, gap_s: float, now: float) -> None:
        outputs = list(self.machine.step(Stall(gap_s), now))
        self._log.stalled(gap_s, is_heeded=any(type(output) is StateChanged for output in outputs))
        self.carry_out(outputs)

    def _on_reminder(self, now: float) -> None:
        self._log.remind(self.machine.trouble(now), now)

    def _on_stop(self, now: float) -> None:
        self._step(Leave(), now)

    # --- outputs --------------------------------------------------------------------------------------------

    def carry_out(self, outputs: Outputs) -> None:
        """Do what the machine says, in order."""
        for output in outputs:
            if self._observe is not None:
                self._observe(output)
            self._log.report(output)
            match output:
                case Publish():
                    self._last_word = output.message
                    self._say_last_word()
                case AskArbiter():
                    assert self._arbiter is not None, "a machine with an arbiter needs a shell with one"
                    self._arbiter.ask(output.question)
                case PersistEpoch():
                    if self._epochs is not None:
                        self._epochs.keep(output.epoch, self.reactor.now())
                case Activated():
                    for handler in self._on_active:
                        handler()
                case Deactivated():
                    for handler in self._on_passive:
                        handler()
                case Fatal():
                    _log.critical("%s", output.error)
                    self._error = output.error
                    # Both nodes must learn of it, and the peer may not have heard us yet.
                    self._say_last_word()
                    self.reactor.call_at(self.reactor.now() + _LAST_WORD_S, lambda now: self.reactor.end())
                case (
                    StateChanged()
                    | PeerSeen()
                    | PeerLost()
                    | PeerAsked()
                    | PeerRejected()
                    | HandoverRefused()
                    | Claimed()
                    | ClientsCutOff()
                    | ArbiterSeen()
                    | ArbiterLost()
                ):
                    pass  # they are told, above
                case _ if self._perform is not None:
                    self._perform(output)
                case _:
                    raise AssertionError(f"nobody performs {output!r}")

    def _say_last_word(self) -> None:
        if self._last_word is not None:
            assert self._publisher is not None
            self._publisher.say(self._last_word)


def _role(role: Role | str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigurationError(f"role is {role!r}: choose 'primary' or 'backup'") from None
