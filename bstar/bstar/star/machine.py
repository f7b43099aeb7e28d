"""One node's Binary Star state machine: an input and the time in, a list of outputs out.

It holds no socket and no clock. The shell (``bstar.pair``, or a simulator) calls ``step`` with an input
(``rules.Input``) and the time. It carries out the outputs in order and passes a ``Tick`` at
``next_deadline``. ``step`` notes each input and makes an event of it if it is one. ``_fire`` finds the rule
for the event in the table of ``rules``, and ``_carry_out`` does what the rule says: an epoch, a question, a
publication, an output for the shell.

**The majority.** With an arbiter, a node begins to serve only with the majority of three voters (``quorum``);
``serve_until`` says until when it lasts. Leases do not depend on the peer's silence: nothing that shortens
the one shortens the other.
"""

import math
from collections import Counter

from bstar.errors import RemoteProtocolError
from bstar.star import rules
from bstar.star.chart import obey
from bstar.star.cut_off import CutOff, Evidence
from bstar.star.epochs import Epochs, does_peer_outrank, does_peer_win, is_of
from bstar.star.outputs import (
    Activated,
    Claimed,
    Deactivated,
    Drained,
    Fatal,
    HandoverRefused,
    Output,
    PeerAsked,
    Rejoined,
    StateChanged,
    TimeoutAdapted,
)
from bstar.star.peer import Ignored, PeerView
from bstar.star.publisher import Publisher, Questions, milliseconds
from bstar.star.quorum import Quorum
from bstar.star.rules import Effect, Event, Facts, Guard, Role, Rule, State
from bstar.star.settings import StarSettings
from bstar.star.takeover_pause import TakeoverPause
from bstar.star.texts import fatal_error, mismatch, rivalry, trouble
from bstar.wire.arbiter import Answer
from bstar.wire.messages import NEVER_MS, NodeStatus
from bstar.wire.peer import PeerState

# In ERROR a node only counts the requests that it refuses and tells the operator why.
_HEARD_IN_ERROR = frozenset({rules.Vote, rules.Handover, rules.Promotion})

_NO_FACTS = Facts()

# An order that moves the role, at the node that gives it up and at the one that gets it.
_ORDERS = frozenset({Event.HANDOVER, Event.LEAVE})
_GIFTS = frozenset({Guard.PEER_RELEASED, Guard.PEER_LEAVING})

_PEER_EVENTS = {
    State.PRIMARY: Event.PEER_PRIMARY,
    State.BACKUP: Event.PEER_BACKUP,
    State.ACTIVE: Event.PEER_ACTIVE,
    State.PASSIVE: Event.PEER_PASSIVE,
}


class Counters:
    """What a node counts for its state document and its metrics; it decides nothing by it.

    ``votes`` and ``requests_refused`` are the client requests that came while the node was not active.
    ``ordered_moves``: how often it gave the role up, or got it, because of an order.
    """

    def __init__(self) -> None:
        self.transitions: Counter[tuple[State, State]] = Counter()
        self.ordered_moves = 0
        self.votes = 0
        self.requests_refused = 0
        self.peer_messages = 0
        self.peer_ignored: Counter[Ignored] = Counter()
        self.peers_gone = 0
        self.stalls = 0
        self.majorities_lost = 0
        self.arbiter_answers = 0


class StarMachine:
    """The Binary Star of one node. ``state``, ``peer``, ``epochs``, ``counters`` and the other parts may be
    read at any time.

    ``node`` names this run of this process. It must differ for every run, because it marks late messages of
    an earlier run. ``epoch`` is the one kept from the last activation before this run (0: none). Time is in
    seconds of one monotonic clock (BST-R-03).

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
        # The role that this node is about to take is the gift of its peer, by an order.
        self._is_given = False
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

    def step(self, given: rules.Input, now: float) -> list[Output]:
        """Handle an input; return what the shell must do, in order."""
        if self.state is State.ERROR and type(given) not in _HEARD_IN_ERROR:
            return []
        match given:
            case rules.PeerMessage(message):
                return self._on_peer_message(message, now)
            case rules.Tick():
                return self._on_tick(now)
            case rules.Vote():
                return self._on_vote(now)
            case rules.Refusal(client, has_worker):
                return self._on_refusal(client, now, has_worker=has_worker)
            case rules.ArbiterAnswer(answer):
                return self._on_arbiter_answer(answer, now)
            case rules.EpochHeard(epoch):
                return self._on_epoch_heard(epoch, now)
            case rules.PeerGarbage(error):
                return self._on_peer_garbage(error, now)
            case rules.LinkLost():
                return self._on_link_lost(now)
            case rules.PeerRefused():
                return self._on_peer_refused(now)
            case rules.Subscription(is_published):
                return self._on_subscription(now, is_published=is_published)
            case rules.Stall(gap_s):
                return self._on_stall(gap_s, now)
            case rules.Handover():
                return self._on_handover(now)
            case rules.Promotion(is_trial):
                return self._on_promotion(now, is_trial=is_trial)
            case rules.PauseTakeovers(for_s, why):
                return self._on_pause(for_s, why, now)
            case rules.ResumeTakeovers(why):
                return self._on_pause(0.0, why, now)
            case rules.PauseKept(number, for_s, why):
                return [*self.pause.learn(number, for_s, why, now)]
            case rules.Drain(why):
                return self._withdraw(why, now)
            case rules.Rejoin(why):
                return self._rejoin(why, now)
            case rules.Leave():
                return self._on_leave(now)

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due; None for never."""
        if self.state is State.ERROR:
            return None
        deadline = math.inf if self.publisher.is_mute else self.publisher.due_at
        if self.peer.is_seen and self.peer.expires_at < deadline:
            deadline = self.peer.expires_at
        if self.quorum is not None:
            deadline = min(deadline, self.serve_until if self.is_active else self.quorum.next_deadline())
        return None if deadline == math.inf else deadline

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
        return self.peer.absence_s

    @property
    def published_at(self) -> float:
        """When this node last sent its peer its state."""
        return self.publisher.published_at

    def has_left(self, now: float) -> bool:
        """After ``Leave``: True if the process may end, if the peer has taken over or cannot be reached."""
        if self.state is State.ERROR:
            return True
        if not self.is_leaving:
            return False
        knows_peer = not self.is_released or not self.peer.runs.is_native or self.peer.is_silent(now)
        return self.publisher.is_mute or knows_peer

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

    # --- time -----------------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Output]:
        """Publish when it is due, and notice the peer's silence."""
        outputs = self._notice_absence(now)
        outputs += self.pause.expire(now)
        if self.peer.is_seen and self.peer.is_silent(now):
            outputs += self.peer.lose(now)
        outputs += self._tend_claim(now)
        if now >= self.publisher.due_at:
            if not self.is_active:
                outputs += self.cut_off.tell(self.evidence(now))
            outputs += self._publish(now)
        return outputs

    def _on_stall(self, gap_s: float, now: float) -> list[Output]:
        """Put the peer's deadline off by any gap that matters beside a heartbeat interval. If our own last
        publication is older than the failover timeout, the peer may have taken over: an active node steps
        down and asks.
        """
        self.peer.put_off(gap_s, now)
        if self.quorum is not None:
            self.quorum.was_away(gap_s, now)
        return self._notice_absence(now)

    def _notice_absence(self, now: float) -> list[Output]:
        """If our last publication is older than the failover timeout, the peer may have taken over. If the
        majority has run out, it was allowed to.
        """
        away_s = now - self.publisher.published_at
        if away_s < self.peer.absence_s or self.is_leaving or self.state is State.ERROR:
            if self.is_active and now >= self.serve_until:
                self.counters.majorities_lost += 1
                return self._fire(Event.MAJORITY_LOST, self._facts(now), now)
            return []
        self.counters.stalls += 1
        if self.quorum is not None:
            self.quorum.was_away(away_s, now)
            self.quorum.arbiter_heard_at = now
        self.peer.wait(now)
        self.peer.link_lost_at = None
        return self._fire(Event.STALL, self._facts(now), now) or self._publish(now)

    # --- the peer -------------------------------------------------------------------------------------------

    def _on_peer_message(self, message: PeerState, now: float) -> list[Output]:
        peer = self.peer
        self.counters.peer_messages += 1
        outputs = self._notice_absence(now)
        ignored = peer.why_ignored(message, self.epochs, now)
        if ignored is not None:
            self.counters.peer_ignored[ignored] += 1
            return outputs
        misfit = mismatch(message, self.settings, self.node)
        if misfit is not None:
            return outputs + self._reject(*misfit, message, now)

        is_peer_fresh = not peer.is_silent(now)
        if peer.recognise(message, self.node, now):
            self.questions.forget()
        if peer.is_taken(message, self.node, now) and not self.is_leaving:
            why = rivalry(message.hears, self.settings)
            outputs += peer.report("taken", why, message)
            return outputs + self._fire(Event.PEER_TAKEN, self._facts(now, message), now, why)
        peer.hear(now)
        if message.epoch is not None:
            self.epochs.hear_peer(message.epoch, now)
            if message.epoch > self.epochs.own:
                # The peer has been active above us since, so what we offered was taken.
                self.is_released = False
        if message.released and not self.is_active:
            self.cut_off.moved(now)
        self.questions.hear(message)
        was_held = self.is_held(now)
        outputs += self.pause.hear(message, now)
        if not was_held:
            self._drop_claim(now)
        outputs += self._hear_ballot(message, now)

        if self.questions.is_backlog(message, self.epochs.own):
            self.counters.peer_ignored[Ignored.BACKLOG] += 1
            if message.state == State.ACTIVE:
                # It may be old, but while the peer says that it serves, no vote counts here.
                outputs += peer.refresh(message, now)
        else:
            outputs += peer.refresh(message, now)
            outputs += self._follow(message, now, is_peer_fresh=is_peer_fresh)
            outputs += self._heed_cut_off(message, now)
            peer.has_left = message.leaving
            if message.leaving:
                # It neither serves nor votes any more, so clients need not wait for its silence. In a backlog
                # that is old: the peer may have come back and serve.
                peer.expires_at = now
        outputs += self._adapt()
        if self.publisher.is_answer_due:
            outputs += self._publish(now)
        return outputs

    def _follow(self, message: PeerState, now: float, *, is_peer_fresh: bool) -> list[Output]:
        """Follow the peer's message."""
        peer = self.peer
        if self.is_leaving:
            if message.state == State.ACTIVE:
                self.is_released = False
            return []
        if not is_peer_fresh or message.state != State.ACTIVE:
            peer.dual_since = None
        event = _PEER_EVENTS[State(message.state)]
        facts = self._facts(now, message) if rules.asks_facts(self.state, event) else _NO_FACTS
        outputs = self._fire(event, facts, now)
        if self.is_active and message.state == State.ACTIVE:
            if peer.dual_since is None:
                peer.dual_since = now
        else:
            peer.dual_since = None
            outputs += self._climb(now)
            if message.state == State.ACTIVE:
                outputs += self.epochs.come_down(message.epoch)
        return outputs

    def _heed_cut_off(self, message: PeerState, now: float) -> list[Output]:
        """The passive peer says that clients do not reach this node."""
        if not self.is_active:
            return []
        if not message.cut_off:
            return [*self.cut_off.heed(Evidence(), "", now)]
        facts = self._facts(now, message)
        why_not = "" if facts.peer_ready else self.peer.why_not_ready(now)
        if self.pause.is_on(now):
            why_not = "takeovers are paused"
        outputs: list[Output] = [*self.cut_off.heed(Evidence.of(message), why_not, now)]
        if facts.no_client_served and facts.peer_ready:
            outputs += self._hand_over(Event.CLIENTS_CUT_OFF, facts, now)
        return outputs

    def _on_peer_garbage(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """Counted, never a sign of life (BST-R-02). A foreign version of the dialect is a mismatch like any
        other and ends a node that is just starting.
        """
        self.counters.peer_messages += 1
        outputs = self._notice_absence(now)
        if error.reason == "peer-version":
            return outputs + self._reject(error.reason, error.text, None, now)
        self.counters.peer_ignored[Ignored.INVALID] += 1
        return [*outputs, *self.peer.report(error.reason, error.text, None)]

    def _reject(self, reason: str, why: str, message: PeerState | None, now: float) -> list[Output]:
        self.counters.peer_ignored[Ignored.MISMATCH] += 1
        outputs: list[Output] = [*self.peer.report(reason, why, message)]
        if not self.is_leaving:
            outputs += self._fire(Event.PEER_MISMATCH, self._facts(now, message), now, why)
        return outputs

    def _on_subscription(self, now: float, *, is_published: bool) -> list[Output]:
        """A new subscriber gets the state at once."""
        if is_published:
            self.peer.await_published(now)
        else:
            self.peer.doubt()
        return self._notice_absence(now) or self._publish(now)

    def _on_link_lost(self, now: float) -> list[Output]:
        outputs = self._notice_absence(now)
        self.peer.lose_link(now)
        return outputs

    def _on_peer_refused(self, now: float) -> list[Output]:
        outputs = self._notice_absence(now)
        if not self.peer.refuse(now):
            return outputs
        self.counters.peers_gone += 1
        return [*outputs, *self.peer.lose(now)]

    # --- clients and workers --------------------------------------------------------------------------------

    def _on_vote(self, now: float) -> list[Output]:
        outputs = self._notice_absence(now)
        # The guard of both rules, without a walk through the table for every refused request.
        if now < self.peer.expires_at or self.is_leaving:
            pass
        elif self.quorum is not None and self.quorum.is_claiming:
            self.quorum.want(now)
        else:
            outputs += self._fire(Event.CLIENT_REQUEST, self._facts(now), now)
        if self.is_active:
            self.counters.votes += 1
        else:
            self.counters.requests_refused += 1
        return outputs

    def _on_refusal(self, client: bytes, now: float, *, has_worker: bool) -> list[Output]:
        """A native client that asks here finds no active node."""
        if self.hears_active_peer(now):
            self.cut_off.refuse(client, now, has_worker=has_worker)
        return []

    def _on_epoch_heard(self, epoch: int, now: float) -> list[Output]:
        """It matters only above the highest epoch that this node believes."""
        if epoch <= self.epochs.seen:
            return []
        outputs = self._notice_absence(now)
        self.epochs.hear_worker(epoch, now)
        return outputs + self._climb(now, is_hearsay=True)

    def _climb(self, now: float, *, is_hearsay: bool = False) -> list[Output]:
        """An active node cannot stay below an epoch that it knows."""
        if not self.is_active or self.is_leaving or self.epochs.seen <= self.epochs.own:
            return []
        return self._fire(Event.EPOCH_LEARNED, self._facts(now, is_hearsay=is_hearsay), now)

    # --- the operator ---------------------------------------------------------------------------------------

    def _on_handover(self, now: float) -> list[Output]:
        """Refused if the peer could not take the role now."""
        outputs = self._notice_absence(now)
        why_not = self.why_no_handover(now)
        if why_not:
            return [*outputs, HandoverRefused(why_not)]
        return outputs + self._hand_over(Event.HANDOVER, self._facts(now), now)

    def why_no_handover(self, now: float) -> str:
        """Why ``Handover`` would be refused; empty if the role would move."""
        if self.is_leaving:
            return "this node is already leaving"
        if not self.is_active:
            return f"this node is {self.state.name}: ask the active node"
        return "" if self.peer.is_ready(now) else self.peer.why_not_ready(now)

    def _hand_over(self, event: Event, facts: Facts, now: float) -> list[Output]:
        # The peer has a whole timeout to take the role, or we would take it back while its answer travels.
        self.peer.wait(now)
        return self._fire(event, facts, now)

    def _on_promotion(self, now: float, *, is_trial: bool) -> list[Output]:
        """Refused if the node hears its primary or is no lone backup. With an arbiter it claims the majority
        first.
        """
        outputs = self._notice_absence(now)
        if self.is_active:
            return outputs
        why_not = self._why_no_promotion(now)
        if why_not:
            return [*outputs, HandoverRefused(why_not)]
        if is_trial:
            return outputs
        return outputs + self._fire(Event.PROMOTE, self._facts(now), now)

    def _why_no_promotion(self, now: float) -> str:
        if self.is_leaving:
            return "this node is leaving"
        if self.state is not State.BACKUP:
            return (
                f"this node is {self.state.name} and needs no promotion: once its peer is silent, it serves "
                "with the next request"
            )
        if self.peer.is_silent(now):
            return ""
        if self.peer.state is None:
            return f"its primary may be about to speak: ask again in {self.peer.expires_at - now:.1f} s"
        return f"it hears its primary, which is {self.peer.state.name}"

    def _on_pause(self, for_s: float, why: str, now: float) -> list[Output]:
        """The peer hears of it at once."""
        outputs = self._notice_absence(now)
        outputs += self.pause.order(for_s, why, now)
        self._drop_claim(now)
        return outputs + self._publish(now)

    def _drop_claim(self, now: float) -> None:
        """A pause ends a claim that began because of the peer's silence."""
        if self.quorum is not None and not self.is_active and self.is_held(now):
            self.quorum.release()

    def _on_leave(self, now: float) -> list[Output]:
        """An active node gives the role up and repeats it in its state messages; another one falls silent.
        From now on the node serves nothing and no vote counts. Idempotent.
        """
        if self.is_leaving:
            return []
        outputs = self._notice_absence(now)
        self.is_leaving = True
        self.publisher.is_mute = not (self.is_active or self.is_released)
        if self.quorum is not None and not self.is_active:
            self.quorum.release()
        if self.is_active:
            return outputs + self._fire(Event.LEAVE, self._facts(now), now)
        return outputs + self._publish(now)

    # --- the majority ---------------------------------------------------------------------------------------

    def _on_arbiter_answer(self, answer: Answer, now: float) -> list[Output]:
        quorum = self.quorum
        if quorum is None or answer.node != self.node:
            return []
        outputs = self._notice_absence(now)
        self.counters.arbiter_answers += 1
        outputs += quorum.hear_arbiter(answer, now)
        return outputs + self._use_majority(now)

    def _hear_ballot(self, message: PeerState, now: float) -> list[Output]:
        """Handle the peer's message about its ballot and ours."""
        quorum = self.quorum
        if quorum is None:
            return []
        # A serving node is not disturbed. If both only claim, one must leave its ballot to the other.
        has_to_yield = message.state == State.ACTIVE or self.settings.role is Role.BACKUP
        if message.claims and has_to_yield and not self.is_active:
            quorum.release()
        is_grant_due = quorum.hear_ballot(message, self.node, now)
        if message.claims:
            self.publisher.is_grant_due = is_grant_due
        return self._tend_claim(now) + self._use_majority(now)

    def _use_majority(self, now: float) -> list[Output]:
        """A lease may be longer than before: go on serving, or begin."""
        quorum = self.quorum
        assert quorum is not None
        if self.is_active:
            self.serve_until = quorum.until
            return []
        if now >= quorum.until or self.is_leaving:
            return []
        return self._fire(Event.MAJORITY_WON, self._facts(now), now)

    def _tend_claim(self, now: float) -> list[Output]:
        """Repeat or end a claim that has not led to the majority yet."""
        quorum = self.quorum
        if quorum is None:
            return []
        outputs: list[Output] = [*quorum.miss_arbiter(now)]
        if self.is_active or quorum.wanted_until == -math.inf:
            return outputs
        if now >= quorum.wanted_until:
            was_claiming = quorum.is_claiming
            quorum.release()
            return outputs + (self._publish(now) if was_claiming else [])
        if not quorum.is_claiming:
            if quorum.claim(now):
                outputs += [Claimed("Our own ballot is free again."), *self._publish(now)]
        elif now >= quorum.ask_again_at:
            quorum.ask_again_at = math.inf
            outputs += self._publish(now)
        return outputs

    def is_claiming(self, now: float) -> bool:
        """True if this node has a reason to serve and waits for the majority."""
        return not self.is_active and self.quorum is not None and now < self.quorum.wanted_until

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
                "no_client_served": (
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
        """Let the chart move ``state``, and carry the rule out; ``why`` is the text of a mismatch."""
        rule = obey(self, event, facts)
        return [] if rule is None else self._carry_out(rule, now, why)

    def _carry_out(self, rule: Rule, now: float, why: str) -> list[Output]:
        old, new, effect = rule.state, rule.next_state, rule.effect
        is_change = old is not new
        if rule.event is not Event.MAJORITY_WON:
            # A peer that gives the role up for clients of this node has no order to.
            self._is_given = rule.guard in _GIFTS and not self.cut_off.evidence(now).clients
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
        self.counters.transitions[old, new] += 1
        if rule.event in _ORDERS or (self._is_given and new is State.ACTIVE):
            self.counters.ordered_moves += 1
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
