"""One node's Binary Star state machine: peer messages, client requests and time in; a list of outputs out.

It holds no socket and no clock. The shell (``bstar.pair``, or a simulator) calls ``step`` with what happened
(``rules.Input``) and the time, carries out what comes back in order, and gives a ``Tick`` at
``next_deadline``. Which state follows from which event is the table in ``rules``. What is here are the facts
that the guards ask about, and what a change of state entails: an epoch (``epochs``), a question
(``questions``), a publication. While active, ``epoch == epoch_seen``.

**Silence.** The peer is silent when no valid message has come for the failover timeout *while this node
listened*: time during which the process was away does not count, for the messages of that time may still be
on the way. Towards a peer that tells no timing the pattern's own holds (``pace``).

**A refused connection.** A process that dies closes its connections and its listening socket. When the link
to a peer that was heard breaks (``LinkLost``) and its endpoint then refuses a new connection
(``PeerRefused``), the peer counts as silent at once. Whether both are to be told is the shell's choice.

**The majority.** Where there is an arbiter, a rule that begins to serve is followed only with the majority of
three voters (``quorum``), and ``serve_until`` says until when it lasts. Leases are no matter of the peer's
silence: nothing that shortens the one shortens the other.
"""

import math
from collections import Counter

import msgspec

from bstar.errors import RemoteProtocolError
from bstar.star.cut_off import CutOff, Evidence
from bstar.star.epochs import (
    EPOCH_FAR,
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    Allowance,
    does_peer_outrank,
    does_peer_win,
    is_highest_claim,
    is_of,
    next_epoch,
)
from bstar.star.outputs import (
    Activated,
    ArbiterLost,
    ArbiterSeen,
    AskArbiter,
    Claimed,
    Deactivated,
    Fatal,
    HandoverRefused,
    Output,
    PeerAsked,
    PeerLost,
    PeerRejected,
    PeerSeen,
    PersistEpoch,
    Publish,
    StateChanged,
)
from bstar.star.pace import paces_of
from bstar.star.peer import Ignored, PeerRuns, Rival, Strangers
from bstar.star.questions import Questions
from bstar.star.quorum import Quorum
from bstar.star.rules import (
    ArbiterAnswer,
    Effect,
    EpochHeard,
    Event,
    Facts,
    Handover,
    Input,
    Leave,
    LinkLost,
    PeerGarbage,
    PeerMessage,
    PeerRefused,
    Promotion,
    Refusal,
    Role,
    Rule,
    Stall,
    State,
    Subscription,
    Tick,
    Vote,
    rule_for,
)
from bstar.star.settings import StarSettings
from bstar.star.texts import fatal_error, mismatch, rivalry, trouble
from bstar.wire.arbiter import Answer, Question, Verb
from bstar.wire.messages import NEVER_MS, NodeStatus
from bstar.wire.peer import PeerState

__all__ = ["StarMachine"]

# A broken link leads to a verdict within this time (``bstar.peer_link`` asks for 0.2 s), or the failover
# timeout decides as always. Clients that are refused meanwhile are told to ask again soon: the verdict takes
# a few milliseconds on a LAN, and who was told to wait for the rest of the timeout would miss it.
VERDICT_TIMEOUT_S = 0.25
VERDICT_RETRY_S = 0.02

# In ERROR a node still counts whom it refuses and tells the operator why; everything else is over.
_HEARD_IN_ERROR = frozenset({Vote, Handover, Promotion})

_PEER_EVENTS = {
    State.PRIMARY: Event.PEER_PRIMARY,
    State.BACKUP: Event.PEER_BACKUP,
    State.ACTIVE: Event.PEER_ACTIVE,
    State.PASSIVE: Event.PEER_PASSIVE,
}


class StarMachine:
    """The Binary Star of one node. ``node`` names this run of this process and must differ for every run,
    because late messages of an earlier run are told apart by it. ``epoch`` is the one kept from the last
    activation before this run (0: none).

    Attributes are plain and may be read at any time: ``is_active``, ``state``, ``epoch`` (of the last
    activation), ``epoch_seen`` (the highest known), ``peer_state`` (the last heard), ``peer_heard_at``,
    ``peer_expires_at``, ``is_peer_gone`` (silent because its endpoint refused us), ``quorum`` (None without
    an arbiter), and the counters below them. The question of the request path is ``now < serve_until``: the
    end of the majority while active, never without an arbiter, and always past while not active.

    Time is in seconds of one monotonic clock (BST-R-03).
    """

    def __init__(self, settings: StarSettings, *, node: str, epoch: int, now: float) -> None:
        self.settings = settings
        self.node = node
        self.state = State.PRIMARY if settings.role is Role.PRIMARY else State.BACKUP
        self.is_active = False
        self.is_leaving = False
        self.epoch = self.epoch_seen = epoch
        self.peer_state: State | None = None
        self.peer_heard_at: float | None = None
        # A primary waits one expiry before a lone start: an active backup must have had the time to speak up.
        self.peer_expires_at = now + settings.failover_timeout_s
        self.is_peer_gone = False
        self.serve_until = -math.inf
        # As it travels: a lease is as long for whoever gives it as for whoever has it.
        self.quorum = Quorum(settings.failover_timeout_ms / 1000, now=now) if settings.arbiter else None

        self.transitions: Counter[tuple[State, State]] = Counter()
        self.votes = 0
        self.requests_refused = 0
        self.peer_messages = 0
        self.peer_ignored: Counter[Ignored] = Counter()
        self.peers_gone = 0
        self.stalls = 0
        self.epochs_ignored = 0
        self.majorities_lost = 0
        self.arbiter_answers = 0

        self._paces = paces_of(settings)
        self._pace = self._paces[True]
        self._is_published_awaited = False
        is_off = settings.on_clients_cut_off == "stay"
        self.cut_off = CutOff(settings.failover_timeout_s, now, is_off=is_off)
        self._seq = 0
        self._published_at = now
        self._publish_at = now
        self._is_mute = False
        self._questions = Questions(node)
        self._is_released = False
        self._is_grant_due = False
        self._is_peer_seen = False
        self._has_peer_left = False
        self._link_lost_at: float | None = None
        self._runs = PeerRuns()
        self._rival_since: float | None = None
        self._rival = Rival()
        self._strangers = Strangers()
        self._workers_claims = Allowance(EPOCH_STEP_MAX)
        self._peers_claims = Allowance(EPOCH_FAR)

    @property
    def is_asking(self) -> bool:
        """Whether the node waits for its peer to answer whether it serves."""
        return self._questions.asking != 0

    def is_peer_heard(self, now: float) -> bool:
        """Whether the peer was heard within the failover timeout and is not known to have gone since.

        That is for people to see. It counts as there for longer (``peer_expires_at``) while this node waits
        for its answer, to a question or to a handover, and after a time in which this node did not listen.
        """
        heard_at = self.peer_heard_at
        return heard_at is not None and now - heard_at < self._pace.silence_s and now < self.peer_expires_at

    # --- what may happen ------------------------------------------------------------------------------------

    def step(self, given: Input, now: float) -> list[Output]:  # noqa: PLR0911  # one case for each input
        """Take note of what happened, and tell what the shell must do about it, in order."""
        if self.state is State.ERROR and type(given) not in _HEARD_IN_ERROR:
            return []
        match given:
            case PeerMessage(message):
                return self._on_peer_message(message, now)
            case Tick():
                return self._on_tick(now)
            case Vote():
                return self._on_vote(now)
            case Refusal(client, has_worker):
                return self._on_refusal(client, now, has_worker=has_worker)
            case ArbiterAnswer(answer):
                return self._on_arbiter_answer(answer, now)
            case EpochHeard(epoch):
                return self._on_epoch_heard(epoch, now)
            case PeerGarbage(error):
                return self._on_peer_garbage(error, now)
            case LinkLost():
                return self._on_link_lost(now)
            case PeerRefused():
                return self._on_peer_refused(now)
            case Subscription(is_published):
                return self._on_subscription(now, is_published=is_published)
            case Stall(gap_s):
                return self._on_stall(gap_s, now)
            case Handover():
                return self._on_handover(now)
            case Promotion(is_trial):
                return self._on_promotion(now, is_trial=is_trial)
            case Leave():
                return self._on_leave(now)

    def _on_peer_message(self, message: PeerState, now: float) -> list[Output]:
        self.peer_messages += 1
        outputs = self._notice_absence(now)
        ignored = self._why_ignored(message, now)
        if ignored is not None:
            self.peer_ignored[ignored] += 1
            return outputs
        misfit = mismatch(message, self.settings, self.node)
        if misfit is not None:
            return outputs + self._reject(*misfit, message, now)

        is_peer_fresh = now < self.peer_expires_at
        if self._runs.recognise(message):
            self._is_peer_seen = False
            self._rival_since = None
            self._questions.forget()
        self._pace = self._paces[self._runs.is_native]
        if self._rival.is_there(message.hears, self.node, now, self._pace.silence_s) and not self.is_leaving:
            text = rivalry(message.hears, self.settings)
            outputs += self._report("taken", text, message)
            return outputs + self._fire(Event.PEER_TAKEN, self._facts(now, message), now, text)
        self.peer_heard_at = now
        self._link_lost_at = None
        if message.epoch is not None:
            self._believe(message.epoch, self._peers_claims, now)
            if message.epoch > self.epoch:
                # The peer has been active above us since, so what we offered was taken.
                self._is_released = False
        if message.released and not self.is_active:
            self.cut_off.moved(now)
        self._questions.hear(message)
        outputs += self._hear_ballot(message, now)

        if self._questions.is_backlog(message, self.epoch):
            self.peer_ignored[Ignored.BACKLOG] += 1
            if message.state == State.ACTIVE:
                # It may be old, but as long as the peer says that it serves, nobody's vote counts here.
                outputs += self._refresh(message, now)
        else:
            outputs += self._refresh(message, now)
            outputs += self._follow(message, is_peer_fresh, now)
            outputs += self._heed_cut_off(message, now)
            self._has_peer_left = message.leaving
            if message.leaving:
                # It neither serves nor votes any more, so clients need not wait for its silence. In a backlog
                # that is old: the peer may have come back and serve.
                self.peer_expires_at = now
        if self._questions.answers != self._questions.answers_told or self._is_grant_due:
            outputs += self._publish(now)
        return outputs

    def _on_arbiter_answer(self, answer: Answer, now: float) -> list[Output]:
        quorum = self.quorum
        if quorum is None or answer.node != self.node:
            return []
        outputs = self._notice_absence(now)
        self.arbiter_answers += 1
        quorum.arbiter_heard_at = now
        if not quorum.is_arbiter_there:
            quorum.is_arbiter_there = True
            outputs.append(ArbiterSeen())
        if answer.is_granted:
            quorum.hear_grant(quorum.arbiter, answer.number)
        else:
            quorum.hear_refusal(answer.free_in_ms / 1000, now)
        return outputs + self._use_majority(now)

    def _on_peer_garbage(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """Counted, never a sign of life (BST-R-02). A foreign version of the dialect is a mismatch like any
        other and ends a node that is just starting.
        """
        self.peer_messages += 1
        outputs = self._notice_absence(now)
        if error.reason == "peer-version":
            return outputs + self._reject(error.reason, error.text, None, now)
        self.peer_ignored[Ignored.INVALID] += 1
        return outputs + self._report(error.reason, error.text, None)

    def _on_vote(self, now: float) -> list[Output]:
        outputs = self._notice_absence(now)
        # What the guard of both rules says, without walking the table for every refused request.
        if now < self.peer_expires_at or self.is_leaving:
            pass
        elif self.quorum is not None and self.quorum.is_claiming:
            self.quorum.want(now)
        else:
            outputs += self._fire(Event.CLIENT_REQUEST, self._facts(now), now)
        if self.is_active:
            self.votes += 1
        else:
            self.requests_refused += 1
        return outputs

    def _on_refusal(self, client: bytes, now: float, *, has_worker: bool) -> list[Output]:
        """A native client that asks here finds no active node."""
        if self._hears_active_peer(now):
            self.cut_off.refuse(client, now, has_worker=has_worker)
        return []

    def _on_stall(self, gap_s: float, now: float) -> list[Output]:
        """Put the peer's deadline off by any gap that matters beside a heartbeat interval. If our own last
        publication is older than the failover timeout, the peer may have taken over: an active node steps
        down and asks.
        """
        self._link_lost_at = None
        if not self.is_peer_gone:
            self.peer_expires_at = max(
                self.peer_expires_at, min(self.peer_expires_at + gap_s, now + self._pace.silence_s)
            )
        if self.quorum is not None:
            self.quorum.was_away(gap_s, now)
        return self._notice_absence(now)

    def _on_link_lost(self, now: float) -> list[Output]:
        """Only a peer that is not silent can be missed."""
        outputs = self._notice_absence(now)
        if self._is_peer_seen and now < self.peer_expires_at:
            self._link_lost_at = now
        return outputs

    def _on_peer_refused(self, now: float) -> list[Output]:
        """The peer's process is gone, so it is silent from now on. Without effect if it was heard since, or
        if this process was away since, because then nobody knows how old the refusal is.
        """
        outputs = self._notice_absence(now)
        if self._link_lost_at is None:
            return outputs
        self._link_lost_at = None
        self.is_peer_gone = True
        self.peers_gone += 1
        self.peer_expires_at = now
        return outputs + self._lose_peer(now)

    def _on_handover(self, now: float) -> list[Output]:
        """Refused if the peer could not take the role now."""
        outputs = self._notice_absence(now)
        facts = self._facts(now)
        if self.is_leaving:
            return [*outputs, HandoverRefused("this node is already leaving")]
        if not self.is_active:
            return [*outputs, HandoverRefused(f"this node is {self.state.name}: ask the active node")]
        if not facts.peer_ready:
            return [*outputs, HandoverRefused(self._why_peer_is_not_ready(now))]
        return outputs + self._hand_over(Event.HANDOVER, facts, now)

    def _on_promotion(self, now: float, *, is_trial: bool) -> list[Output]:
        """Refused if this node knows better. With an arbiter it claims the majority first."""
        outputs = self._notice_absence(now)
        if self.is_active:
            return outputs
        if self.is_leaving:
            return [*outputs, HandoverRefused("this node is leaving")]
        if self.state is not State.BACKUP:
            text = (
                f"this node is {self.state.name} and needs no promotion: once its peer is silent, it serves "
                "with the next request"
            )
            return [*outputs, HandoverRefused(text)]
        if now < self.peer_expires_at:
            if self.peer_state is None:
                text = f"its primary may be about to speak: ask again in {self.peer_expires_at - now:.1f} s"
            else:
                text = f"it hears its primary, which is {self.peer_state.name}"
            return [*outputs, HandoverRefused(text)]
        if is_trial:
            return outputs
        return outputs + self._fire(Event.PROMOTE, self._facts(now), now)

    def _hand_over(self, event: Event, facts: Facts, now: float) -> list[Output]:
        # The peer has a whole timeout to take the role, or we would take it back while its answer travels.
        self.peer_expires_at = now + self._pace.silence_s
        return self._fire(event, facts, now)

    def _on_leave(self, now: float) -> list[Output]:
        """An active node gives the role up and goes on saying so, another one falls silent. From now on
        nothing is served and no vote counts. Idempotent.
        """
        if self.is_leaving:
            return []
        outputs = self._notice_absence(now)
        self.is_leaving = True
        self._is_mute = not (self.is_active or self._is_released)
        if self.quorum is not None and not self.is_active:
            self.quorum.release()
        if self.is_active:
            return outputs + self._fire(Event.LEAVE, self._facts(now), now)
        return outputs if self._is_mute else outputs + self._publish(now)

    def has_left(self, now: float) -> bool:
        """After ``Leave``: may the process end, because the peer has taken over or cannot be told?"""
        if self.state is State.ERROR:
            return True
        if not self.is_leaving:
            return False
        return (
            self._is_mute or not self._is_released or not self._runs.is_native or now >= self.peer_expires_at
        )

    def _on_epoch_heard(self, epoch: int, now: float) -> list[Output]:
        """It matters only above ``epoch_seen``. One that is too far above is not followed. The worker then
        follows this node, so neither is stuck.
        """
        if epoch <= self.epoch_seen:
            return []
        outputs = self._notice_absence(now)
        self._believe(epoch, self._workers_claims, now)
        return outputs + self._climb(now, is_hearsay=True)

    def _on_subscription(self, now: float, *, is_published: bool) -> list[Output]:
        """Who has just subscribed need not wait for the next heartbeat. Whoever subscribes as a published
        server does may be our peer, which speaks once a second.
        """
        if is_published and self.peer_heard_at is None and not self._is_published_awaited:
            self._is_published_awaited = True
            self.peer_expires_at = max(self.peer_expires_at, now + self._paces[False].silence_s)
        return self._notice_absence(now) or self._publish(now)

    def next_deadline(self) -> float | None:
        """When ``Tick`` is due; None for never."""
        if self.state is State.ERROR:
            return None
        deadline = math.inf if self._is_mute else self._publish_at
        if self._is_peer_seen and self.peer_expires_at < deadline:
            deadline = self.peer_expires_at
        if self.quorum is not None:
            deadline = min(deadline, self.serve_until if self.is_active else self.quorum.next_deadline())
        return None if deadline == math.inf else deadline

    def _on_tick(self, now: float) -> list[Output]:
        """Publish when it is time, and notice that the peer has fallen silent."""
        outputs = self._notice_absence(now)
        if self._is_peer_seen and now >= self.peer_expires_at:
            outputs += self._lose_peer(now)
        outputs += self._tend_claim(now)
        if now >= self._publish_at:
            if not self.is_active:
                outputs += self.cut_off.tell(self.evidence(now))
            outputs += self._publish(now)
        return outputs

    # --- what a node knows of itself ------------------------------------------------------------------------

    def retry_after_s(self, now: float) -> float | None:
        """How long until a client request could turn this node active: 0 at once, None not by a request."""
        if self.is_active:
            return 0.0
        if self.is_leaving or self.state in (State.BACKUP, State.ERROR):
            return None
        silent_in_s = max(0.0, self.peer_expires_at - now)
        if self._link_lost_at is not None and now < self._link_lost_at + VERDICT_TIMEOUT_S:
            silent_in_s = min(silent_in_s, VERDICT_RETRY_S)
        if self.quorum is None:
            return silent_in_s
        return max(silent_in_s, self.quorum.retry_after_s(now, self.settings.heartbeat_interval_s))

    def status(self, now: float) -> NodeStatus:
        """What this node tells clients and workers about itself. ``epoch`` is that of its last activation:
        what it has only heard of it does not pass on.
        """
        retry_after_s = self.retry_after_s(now)
        return NodeStatus(
            state=int(self.state),
            epoch=self.epoch,
            peer_state=0 if now >= self.peer_expires_at else int(self.peer_state or 0),
            peer_age_ms=NEVER_MS if self.peer_heard_at is None else _milliseconds(now - self.peer_heard_at),
            retry_after_ms=NEVER_MS if retry_after_s is None else _milliseconds(retry_after_s),
            heartbeat_ms=self.settings.heartbeat_ms,
            failover_timeout_ms=self.settings.failover_timeout_ms,
        )

    def trouble(self, now: float) -> str:
        """What keeps this node from its part, and what to do about it; empty if nothing does."""
        if self.is_active or self.is_leaving or self.is_peer_heard(now):
            return ""
        return trouble(self.state, self.quorum)

    # --- the peer's messages --------------------------------------------------------------------------------

    def _why_ignored(self, message: PeerState, now: float) -> Ignored | None:
        """Late messages must not undo what younger ones said."""
        if message.epoch is not None and message.epoch > EPOCH_MAX:
            return Ignored.EPOCH
        may_return = now >= self.peer_expires_at or is_highest_claim(message, self.epoch, self.epoch_seen)
        is_late = self._runs.is_late(message, now, self._pace.silence_s, may_return=may_return)
        return Ignored.STALE if is_late else None

    def _reject(self, reason: str, text: str, message: PeerState | None, now: float) -> list[Output]:
        self.peer_ignored[Ignored.MISMATCH] += 1
        outputs = self._report(reason, text, message)
        if not self.is_leaving:
            outputs += self._fire(Event.PEER_MISMATCH, self._facts(now, message), now, text)
        return outputs

    def _report(self, reason: str, text: str, message: PeerState | None) -> list[Output]:
        is_news = self._strangers.is_news(message.node if message is not None else None, reason)
        return [PeerRejected(reason, text)] if is_news else []

    def _refresh(self, message: PeerState, now: float) -> list[Output]:
        self.peer_state = State(message.state)
        self.peer_expires_at = now + self._pace.silence_s
        self.is_peer_gone = False
        if self._is_peer_seen or message.leaving:
            return []
        self._is_peer_seen = True
        return [PeerSeen(self.peer_state, message.node)]

    def _lose_peer(self, now: float) -> list[Output]:
        self._is_peer_seen = False
        self._rival_since = None
        return [PeerLost(now - (self.peer_heard_at or now), self._has_peer_left, self.is_peer_gone)]

    def _follow(self, message: PeerState, is_peer_fresh: bool, now: float) -> list[Output]:
        """Let the peer's word move us."""
        if self.is_leaving:
            if message.state == State.ACTIVE:
                self._is_released = False
            return []
        if not is_peer_fresh or message.state != State.ACTIVE:
            self._rival_since = None
        outputs = self._fire(_PEER_EVENTS[State(message.state)], self._facts(now, message), now)
        if self.is_active and message.state == State.ACTIVE:
            if self._rival_since is None:
                self._rival_since = now
        else:
            self._rival_since = None
            outputs += self._climb(now)
            if message.state == State.ACTIVE and self.epoch_seen > EPOCH_FAR:
                outputs += self._come_down(message.epoch)
        return outputs

    def _climb(self, now: float, *, is_hearsay: bool = False) -> list[Output]:
        """An active node cannot stay below an epoch that it knows of."""
        if not self.is_active or self.is_leaving or self.epoch_seen <= self.epoch:
            return []
        return self._fire(Event.EPOCH_LEARNED, self._facts(now, is_hearsay=is_hearsay), now)

    # --- clients that reach one node only (``cut_off``) -----------------------------------------------------

    def _hears_active_peer(self, now: float) -> bool:
        return (
            self.state is State.PASSIVE
            and self.peer_state is State.ACTIVE
            and now < self.peer_expires_at
            and not self.is_asking
        )

    def evidence(self, now: float) -> Evidence:
        """Of clients that reach this passive node and not its active peer."""
        if self._hears_active_peer(now):
            return self.cut_off.evidence(now)
        self.cut_off.forget()
        return Evidence()

    def _heed_cut_off(self, message: PeerState, now: float) -> list[Output]:
        """The passive peer says that clients do not reach this node."""
        if not self.is_active:
            return []
        facts = self._facts(now, message)
        why_not = "" if facts.peer_ready else self._why_peer_is_not_ready(now)
        evidence = Evidence(message.cut_off, message.cut_off_ms / 1000)
        outputs: list[Output] = [*self.cut_off.heed(evidence, why_not, now)]
        if facts.nobody_served and facts.peer_ready:
            outputs += self._hand_over(Event.CLIENTS_CUT_OFF, facts, now)
        return outputs

    def _believe(self, epoch: int, claims: Allowance, now: float) -> None:
        """Take ``epoch`` for the highest there is, if it is believable."""
        if epoch <= self.epoch_seen:
            return
        if epoch <= EPOCH_MAX and claims.take(epoch - self.epoch_seen, now):
            self.epoch_seen = epoch
        else:
            self.epochs_ignored += 1

    def _come_down(self, epoch: int | None) -> list[Output]:
        """The peer serves. If that is far below what we remember, our memory cannot be of this pair."""
        if epoch is None or self.epoch_seen - epoch <= EPOCH_FAR:
            return []
        self.epoch_seen = epoch
        if self.epoch <= epoch:
            return []
        self.epoch = epoch - 1
        return [PersistEpoch(self.epoch)]

    # --- the majority ---------------------------------------------------------------------------------------

    def _hear_ballot(self, message: PeerState, now: float) -> list[Output]:
        """What the peer's message says of its ballot and asks of ours."""
        quorum = self.quorum
        if quorum is None:
            return []
        assert message.node is not None, "a published peer is a mismatch"
        assert message.seq is not None
        if message.claims:
            # Who serves is not disturbed. If both only claim, one must leave the other its ballot.
            has_to_yield = message.state == State.ACTIVE or self.settings.role is Role.BACKUP
            if has_to_yield and not self.is_active:
                quorum.release()
            self._is_grant_due = quorum.hear_claim(message.node, message.seq, now)
        else:
            quorum.hear_no_claim()
        if message.granted_to == self.node:
            quorum.hear_grant(quorum.peer, message.granted)
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

    def _claim(self, reason: str, now: float) -> list[Output]:
        """A rule says that we should serve: claim the majority, as soon as our own ballot is ours to use."""
        quorum = self.quorum
        assert quorum is not None
        quorum.want(now)
        if quorum.is_claiming or not quorum.claim(now):
            return []
        return [Claimed(reason), *self._publish(now)]

    def _tend_claim(self, now: float) -> list[Output]:
        """Whatever is due of a reason to serve that has not led to the majority yet."""
        quorum = self.quorum
        if quorum is None:
            return []
        outputs: list[Output] = []
        if (
            quorum.is_arbiter_there is not False
            and now - quorum.arbiter_heard_at >= self.settings.failover_timeout_s
        ):
            quorum.is_arbiter_there = False
            outputs.append(ArbiterLost(now - quorum.arbiter_heard_at))
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

    # --- the rules ------------------------------------------------------------------------------------------

    def _facts(self, now: float, message: PeerState | None = None, *, is_hearsay: bool = False) -> Facts:
        is_silent = now >= self.peer_expires_at
        facts_of_peer = {}
        if message is not None:
            peer_wins = does_peer_win(message, self.settings.role, self.epoch)
            is_claim = message.epoch is not None and message.epoch > self.epoch
            facts_of_peer = {
                "peer_wins": peer_wins,
                "peer_outranks": does_peer_outrank(message, self.epoch, self.node),
                "peer_released": message.released and is_claim,
                "peer_leaving": message.released and message.leaving,
                "answered": self._questions.is_answered_by(message) and not (message.asks != 0 and peer_wins),
                "peer_asking": message.asks != 0,
                "peer_native": message.node is not None,
                "nobody_served": message.cut_off > 0
                and not self.cut_off.why_stay(Evidence(message.cut_off, message.cut_off_ms / 1000), now),
            }
        return Facts(
            peer_silent=is_silent,
            policy_exit=self.settings.on_dual_active == "exit",
            peer_deaf=self._rival_since is not None and now - self._rival_since >= self._pace.silence_s,
            peer_ready=not is_silent and self.peer_state is State.PASSIVE and self._runs.is_native,
            # A worker may have heard of the peer's new epoch a moment before we do, however fresh the peer's
            # last word is; the peer itself says in the same message whether it serves.
            peer_may_be_active=(
                is_silent or self.peer_state is State.ACTIVE or (is_hearsay and self._runs.is_native)
            )
            and not is_of(self.settings.role, self.epoch_seen),
            released=self._is_released,
            asking=self._questions.asking != 0,
            majority_missing=self.quorum is not None and now >= self.quorum.until,
            **facts_of_peer,
        )

    def _why_peer_is_not_ready(self, now: float) -> str:
        if self.peer_state is None or now >= self.peer_expires_at:
            return "the peer is silent: start it first"
        if not self._runs.is_native:
            return "the peer speaks the published one-frame message, which has no word for a handover"
        return f"the peer is {self.peer_state.name}, not PASSIVE: try again when it stands by"

    def _notice_absence(self, now: float) -> list[Output]:
        """If our last publication is older than the failover timeout, the peer may have taken over; and if
        the majority has run out, it may have a right to.
        """
        away_s = now - self._published_at
        if away_s < self._pace.absence_s or self.is_leaving or self.state is State.ERROR:
            if self.is_active and now >= self.serve_until:
                self.majorities_lost += 1
                return self._fire(Event.MAJORITY_LOST, self._facts(now), now)
            return []
        self.stalls += 1
        if self.quorum is not None:
            self.quorum.was_away(away_s, now)
            self.quorum.arbiter_heard_at = now
        self.peer_expires_at = now + self._pace.silence_s
        self.is_peer_gone = False
        self._link_lost_at = None
        return self._fire(Event.STALL, self._facts(now), now) or self._publish(now)

    def _fire(self, event: Event, facts: Facts, now: float, text: str = "") -> list[Output]:
        """Find the rule for ``event`` and do what it says."""
        rule = rule_for(self.state, event, facts)
        return [] if rule is None else self._carry_out(rule, now, text)

    def _carry_out(self, rule: Rule, now: float, text: str) -> list[Output]:
        old, new, effect = rule.state, rule.next_state, rule.effect
        is_change = old is not new
        self.state = new
        if effect is Effect.CLAIM:
            return self._claim(rule.reason, now)
        if not is_change and new is State.PASSIVE and effect is not Effect.ASK:
            if effect is Effect.SETTLE:
                self._questions.settle()
                self._is_released = False
            return []
        quorum = self.quorum
        if quorum is not None and (is_change or rule.event is Event.STALL) and new is not State.ACTIVE:
            quorum.release()

        outputs: list[Output] = []
        self.transitions[old, new] += 1
        self._rival_since = None
        self.is_active = new is State.ACTIVE
        self.serve_until = -math.inf
        if self.is_active:
            self.serve_until = math.inf if quorum is None else quorum.until
            self.epoch = self._next_epoch()
            self.epoch_seen = self.epoch
            self.cut_off.activate(now)
            outputs.append(PersistEpoch(self.epoch))
        if is_change:
            self._questions.settle()
            self._is_released = effect is Effect.RELEASE
            outputs.append(StateChanged(old, new, rule.event, rule.reason))
            if old is State.ACTIVE:
                outputs.append(Deactivated(rule.reason))
        if effect is Effect.RELEASE:
            self.cut_off.moved(now)
        if effect is Effect.ASK:
            self._questions.ask()
            self.peer_expires_at = now + self._pace.silence_s
            self.is_peer_gone = False
            outputs.append(PeerAsked(rule.reason))
        if new is State.ERROR:
            outputs.append(Fatal(fatal_error(effect, text, self.settings)))
            return outputs
        outputs += self._publish(now)
        if self.is_active:
            outputs.append(Activated(self.epoch, rule.reason))
        return outputs

    def _next_epoch(self) -> int:
        return next_epoch(self.settings.role, self.epoch_seen)

    def _publish(self, now: float) -> list[Output]:
        if self._is_mute or self.state is State.ERROR:
            return []
        self._published_at = now
        self._publish_at = now + self._pace.heartbeat_interval_s
        self._questions.answers_told = self._questions.answers
        if self.state is State.PASSIVE and self.peer_state is State.PASSIVE and not self._runs.is_native:
            # A published peer that is passive takes our PASSIVE for the end of the pair and exits. It can
            # neither answer nor be handed the role; left in silence, it takes over with the next vote.
            return []
        self._seq += 1
        self._is_grant_due = False
        quorum = self.quorum
        if quorum is None:
            return [Publish(self._message(now))]
        quorum.sent(self._seq, now)
        message = self._message(now)
        if now < quorum.peers_until:
            message = msgspec.structs.replace(message, granted=quorum.granted, granted_to=quorum.granted_to)
        return [Publish(message), AskArbiter(self._question(quorum))]

    def _question(self, quorum: Quorum) -> Question:
        verb: Verb = "claim" if quorum.is_claiming else "release" if quorum.is_release_due else "look"
        quorum.is_release_due = False
        settings = self.settings
        return Question(
            verb, settings.pair, settings.role.value, self.node, self._seq, settings.failover_timeout_ms
        )

    def _message(self, now: float) -> PeerState:
        evidence = self.evidence(now)
        return PeerState(
            state=int(self.state),
            pair=self.settings.pair,
            role=self.settings.role.value,
            node=self.node,
            seq=self._seq,
            epoch=self.epoch,
            heartbeat_ms=self.settings.heartbeat_ms,
            timeout_ms=self.settings.failover_timeout_ms,
            asks=self._questions.asking,
            answers=self._questions.answers,
            released=self._is_released,
            leaving=self.is_leaving,
            arbiter=self.settings.arbiter,
            claims=self.quorum is not None and self.quorum.is_claiming,
            cut_off=evidence.clients,
            cut_off_ms=_milliseconds(evidence.for_s) if evidence.clients else 0,
            hears=(self._runs.node or "") if self.is_peer_heard(now) else "",
        )


def _milliseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), NEVER_MS - 1)
