"""The state of one node, and the effects of a rule on it.

``StarState`` has the node's state and the parts that remember the rest: the view of the peer, the epochs, the
questions, the publisher, the majority, the evidence of clients that are cut off, the counters. ``fire`` finds
the rule for an event and carries it out: an epoch, a question, a publication, an output for the shell. What
happens to the node, and which events that is, is in ``machine``.
"""

import math
from collections import Counter

from bstar.star.cut_off import CutOff, Evidence
from bstar.star.epochs import Epochs, does_peer_outrank, does_peer_win, is_of
from bstar.star.outputs import (
    Activated,
    Claimed,
    Deactivated,
    Drained,
    Fatal,
    Output,
    PeerAsked,
    Rejoined,
    StateChanged,
    TimeoutAdapted,
)
from bstar.star.peer import Ignored
from bstar.star.peer_view import PeerView
from bstar.star.publisher import Publisher, milliseconds
from bstar.star.questions import Questions
from bstar.star.quorum import Quorum
from bstar.star.rules import Effect, Event, Facts, Role, Rule, State, rule_for
from bstar.star.settings import StarSettings
from bstar.star.takeover_pause import TakeoverPause
from bstar.star.texts import fatal_error, trouble
from bstar.wire.messages import NEVER_MS, NodeStatus
from bstar.wire.peer import PeerState


class Counters:
    """What a node counts for its state document and its metrics; it decides nothing by it.

    ``votes`` and ``requests_refused`` are the client requests that came while the node was not active.
    """

    def __init__(self) -> None:
        self.transitions: Counter[tuple[State, State]] = Counter()
        self.votes = 0
        self.requests_refused = 0
        self.peer_messages = 0
        self.peer_ignored: Counter[Ignored] = Counter()
        self.peers_gone = 0
        self.stalls = 0
        self.majorities_lost = 0
        self.arbiter_answers = 0


class StarState:
    """One node: ``state``, ``peer``, ``epochs``, ``counters`` and the other parts may be read at any time.

    The request path asks ``now < serve_until``. While the node is active this is the end of the majority, or
    infinity without an arbiter. Otherwise it is in the past. ``quorum`` is None without an arbiter.
    ``is_released``: the node gave the role up and the peer has not taken it yet.
    """

    def __init__(self, settings: StarSettings, *, node: str, epoch: int, now: float) -> None:
        self.settings = settings
        self.node = node
        self.state = State.PRIMARY if settings.role is Role.PRIMARY else State.BACKUP
        self.is_active = False
        self.is_leaving = False
        self.is_released = False
        self.serve_until = -math.inf
        self.counters = Counters()
        self.peer = PeerView(settings, now)
        self.epochs = Epochs(settings.role, epoch)
        self.quorum: Quorum | None = None
        if settings.arbiter:
            # In whole milliseconds, as they travel: both sides of a lease count the same time.
            ttl_min_s, ttl_max_s = (
                settings.failover_timeout_ms / 1000,
                settings.failover_timeout_max_ms / 1000,
            )
            self.quorum = Quorum(ttl_min_s, ttl_max_s, now=now)
        self.questions = Questions(node)
        self.pause = TakeoverPause(settings.role)
        self.publisher = Publisher(
            settings, node, self.peer, self.questions, quorum=self.quorum, pause=self.pause, now=now
        )
        is_off = settings.on_clients_cut_off == "stay"
        self._failover_timeout_s = self.peer.failover_timeout_s
        self.cut_off = CutOff(self._failover_timeout_s, now, is_off=is_off)

    # --- what a node knows of itself ------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the last activation."""
        return self.epochs.own

    @property
    def drained_why(self) -> str:
        """Why an operator has taken this node out of the pair; "" otherwise."""
        return self.publisher.drained_why

    @property
    def failover_timeout_s(self) -> float:
        """The failover timeout of the pair as it is now."""
        return self.peer.failover_timeout_s

    @property
    def absence_s(self) -> float:
        """How old this node's last state message may be before its peer may take over."""
        return self.peer.pace.absence_s

    @property
    def published_at(self) -> float:
        """When this node last told its peer how it stands."""
        return self.publisher.published_at

    def has_left(self, now: float) -> bool:
        """After ``Leave``: True if the process may end, because the peer has taken over or cannot be told."""
        if self.state is State.ERROR:
            return True
        if not self.is_leaving:
            return False
        is_told = not self.is_released or not self.peer.runs.is_native or self.peer.is_silent(now)
        return self.publisher.is_mute or is_told

    def retry_after_s(self, now: float) -> float | None:
        """How long until a client request could turn this node active: 0 at once, None not by a request."""
        if self.is_active:
            return 0.0
        if self.is_leaving or self.state in (State.BACKUP, State.ERROR):
            return None
        silent_in_s = self.peer.silent_in_s(now)
        if self.is_held(now):
            # Clients ask again in good time for the end of the pause.
            silent_in_s = max(silent_in_s, self.settings.heartbeat_interval_s)
        if self.quorum is None:
            return silent_in_s
        return max(silent_in_s, self.quorum.retry_after_s(now, self.settings.heartbeat_interval_s))

    def is_held(self, now: float) -> bool:
        """True if an operator's pause keeps this node from taking the role over."""
        return self.pause.is_on(now) and self.epochs.seen > self.epochs.own

    def status(self, now: float) -> NodeStatus:
        """What this node tells clients and workers about itself. ``epoch`` is that of its last activation. It
        does not pass on epochs that it only heard.
        """
        peer = self.peer
        retry_after_s = self.retry_after_s(now)
        return NodeStatus(
            state=int(self.state),
            epoch=self.epochs.own,
            peer_state=0 if peer.is_silent(now) else int(peer.state or 0),
            peer_age_ms=NEVER_MS if peer.heard_at is None else milliseconds(now - peer.heard_at),
            retry_after_ms=NEVER_MS if retry_after_s is None else milliseconds(retry_after_s),
            heartbeat_ms=self.settings.heartbeat_ms,
            failover_timeout_ms=milliseconds(self.failover_timeout_s),
        )

    def trouble(self, now: float) -> str:
        """Why this node cannot play its part, and what to do; empty if it can."""
        if self.is_active or self.is_leaving or self.peer.is_heard(now):
            return ""
        return trouble(self.state, self.quorum)

    def evidence(self, now: float) -> Evidence:
        """Evidence of clients that reach this passive node and not its active peer."""
        if self.hears_active_peer(now):
            return self.cut_off.evidence(now)
        self.cut_off.forget()
        return Evidence()

    def hears_active_peer(self, now: float) -> bool:
        """True if this node stands by and knows that its peer serves, by a message that is not old."""
        return (
            self.state is State.PASSIVE
            and self.peer.state is State.ACTIVE
            and not self.peer.is_silent(now)
            and not self.questions.asking
        )

    # --- the rules ------------------------------------------------------------------------------------------

    def _facts(self, now: float, message: PeerState | None = None, *, is_hearsay: bool = False) -> Facts:
        peer, own = self.peer, self.epochs.own
        is_silent = peer.is_silent(now)
        facts_of_peer = {}
        if message is not None:
            peer_wins = does_peer_win(message, self.settings.role, own)
            is_claim = message.epoch is not None and message.epoch > own
            is_answer = self.questions.is_answered_by(message)
            facts_of_peer = {
                "peer_wins": peer_wins,
                "peer_outranks": does_peer_outrank(message, own, self.node),
                "peer_released": message.released and is_claim,
                "peer_leaving": message.released and message.leaving,
                "answered": is_answer and not (message.asks != 0 and peer_wins),
                "peer_asking": message.asks != 0,
                "peer_native": message.node is not None,
                "nobody_served": (
                    message.cut_off > 0
                    and not self.pause.is_on(now)
                    and not self.cut_off.why_stay(Evidence.of(message), now)
                ),
            }
        return Facts(
            peer_silent=is_silent,
            held=self.is_held(now),
            policy_exit=self.settings.on_dual_active == "exit",
            peer_deaf=peer.is_deaf(now),
            peer_ready=peer.is_ready(now),
            # A worker may hear the peer's new epoch a moment before we do. The peer itself says in the same
            # message whether it serves.
            peer_may_be_active=(
                is_silent or peer.state is State.ACTIVE or (is_hearsay and peer.runs.is_native)
            )
            and not is_of(self.settings.role, self.epochs.seen),
            released=self.is_released,
            asking=self.questions.asking != 0,
            majority_missing=self.quorum is not None and now >= self.quorum.until,
            **facts_of_peer,
        )

    def _fire(self, event: Event, facts: Facts, now: float, why: str = "") -> list[Output]:
        """Find the rule for ``event`` and carry it out; ``why`` is the text of a mismatch."""
        rule = rule_for(self.state, event, facts)
        return [] if rule is None else self._carry_out(rule, now, why)

    def _carry_out(self, rule: Rule, now: float, why: str) -> list[Output]:
        old, new, effect = rule.state, rule.next_state, rule.effect
        is_change = old is not new
        if effect is Effect.CLAIM:
            return self._claim(rule.reason, now)
        if not is_change and new is State.PASSIVE and effect is not Effect.ASK:
            if effect is Effect.SETTLE:
                self.questions.settle()
                self.is_released = False
            return []
        quorum = self.quorum
        if quorum is not None and (is_change or rule.event is Event.STALL) and new is not State.ACTIVE:
            quorum.release()

        outputs: list[Output] = []
        self.state = new
        self.counters.transitions[old, new] += 1
        self.peer.dual_since = None
        self.is_active = new is State.ACTIVE
        self.serve_until = -math.inf
        if self.is_active:
            self.serve_until = math.inf if quorum is None else quorum.until
            outputs.append(self.epochs.take())
            self.cut_off.activate(now)
        if is_change:
            self.questions.settle()
            self.is_released = effect is Effect.RELEASE
            outputs.append(StateChanged(old, new, rule.event, rule.reason))
            if old is State.ACTIVE:
                outputs.append(Deactivated(rule.reason))
        if effect is Effect.RELEASE:
            self.cut_off.moved(now)
        if effect is Effect.ASK:
            self.questions.ask()
            self.peer.wait(now)
            outputs.append(PeerAsked(rule.reason))
        if new is State.ERROR:
            outputs.append(Fatal(fatal_error(effect, why, self.settings)))
            return outputs
        outputs += self._publish(now)
        if self.is_active:
            outputs.append(Activated(self.epochs.own, rule.reason))
        return outputs

    def _claim(self, reason: str, now: float) -> list[Output]:
        """A rule says that we should serve: claim the majority as soon as our own ballot is free."""
        quorum = self.quorum
        assert quorum is not None
        quorum.want(now)
        if quorum.is_claiming or not quorum.claim(now):
            return []
        return [Claimed(reason), *self._publish(now)]

    def _withdraw(self, why: str, now: float) -> list[Output]:
        """A node that does not serve says that it leaves, and falls silent. Its peer goes on alone."""
        if self.is_active or self.is_released or self.is_leaving:
            return []
        if self.quorum is not None:
            self.quorum.release()
        self.is_leaving = True
        self.publisher.drained_why = why
        outputs = self._publish(now)
        self.publisher.is_mute = True
        return [*outputs, Drained(why)]

    def _rejoin(self, why: str, now: float) -> list[Output]:
        """The node speaks again. It listens for a whole timeout before it takes its peer for dead."""
        if not self.drained_why:
            return []
        self.is_leaving = self.publisher.is_mute = False
        self.publisher.drained_why = ""
        self.peer.wait(now)
        return [*self._publish(now), Rejoined(why)]

    def _adapt(self) -> list[Output]:
        """Let everything follow the failover timeout, if it has changed."""
        old_s, new_s = self._failover_timeout_s, self.failover_timeout_s
        if new_s == old_s:
            return []
        self._failover_timeout_s = new_s
        self.cut_off.adapt(new_s)
        if self.quorum is not None:
            self.quorum.ttl_s = new_s
        return [TimeoutAdapted(old_s, new_s)]

    def _publish(self, now: float) -> list[Output]:
        return [
            *self.publisher.publish(
                self.state,
                self.epochs.own,
                self.evidence(now),
                now,
                is_released=self.is_released,
                is_leaving=self.is_leaving,
            )
        ]
