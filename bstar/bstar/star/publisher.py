"""A node's messages to its peer and questions to the arbiter, and when they are due.

Every message has the next number. A node publishes once per heartbeat interval. It publishes at once after a
change, to a new subscriber, and when the peer waits for an answer or a grant.

A node that was away asks its peer. The question is a fresh token, the answer its echo, and both travel in the
state messages. Only a message that echoes the token is certainly younger than the question. Until then every
message counts as backlog, except a better claim to be active. ``rules`` says when to ask and what follows.
"""

from zlib import crc32

import msgspec

from bstar.star.cut_off import Evidence
from bstar.star.epochs import is_better_claim
from bstar.star.outputs import AskArbiter, Publish
from bstar.star.peer import PeerView
from bstar.star.quorum import Quorum
from bstar.star.rules import State
from bstar.star.settings import StarSettings
from bstar.star.takeover_pause import TakeoverPause
from bstar.wire.arbiter import Question, Verb
from bstar.wire.messages import NEVER_MS
from bstar.wire.peer import PeerState


def milliseconds(seconds: float) -> int:
    """A duration in whole milliseconds, as on the wire."""
    return min(max(0, round(seconds * 1000)), NEVER_MS - 1)


class Questions:
    """Our question (``asking``, 0: none) and the peer's that we answer (``answers``, 0: none)."""

    def __init__(self, node: str) -> None:
        self.asking = 0
        self.answers = 0
        self.answers_published = 0  # the last that was published
        # Tokens differ between runs as well, or the echo of an earlier run's question would answer ours.
        self.token = crc32(node.encode()) << 16

    def ask(self) -> None:
        """Ask a new question. An answer to an earlier one answers nothing."""
        self.token += 1
        self.asking = self.token

    def settle(self) -> None:
        """Withdraw the question."""
        self.asking = 0

    def hear(self, message: PeerState) -> None:
        """Remember what the peer asks."""
        if message.asks:
            self.answers = message.asks

    def forget(self) -> None:
        """A new run of the peer has asked nothing. It does not know our question, which stays open."""
        self.answers = self.answers_published = 0

    def is_answered_by(self, message: PeerState) -> bool:
        """True if the message echoes our question."""
        return self.asking != 0 and message.answers == self.asking

    def is_backlog(self, message: PeerState, epoch: int) -> bool:
        """True if the message may be older than the question whose answer we await."""
        if not self.asking or message.answers == self.asking:
            return False
        return not is_better_claim(message, epoch)


class Publisher:
    """``published_at`` is when this node spoke last, and ``due_at`` when it must speak again. ``is_mute``: it
    has left and publishes nothing; ``drained_why`` says why an operator wants it so. ``is_grant_due``: the
    peer waits for our ballot.
    """

    def __init__(
        self,
        settings: StarSettings,
        node: str,
        peer: PeerView,
        questions: Questions,
        *,
        quorum: Quorum | None,
        pause: TakeoverPause,
        now: float,
    ) -> None:
        self.seq = 0
        self.published_at = now
        self.due_at = now
        self.is_mute = False
        self.drained_why = ""
        self.is_grant_due = False
        self._settings = settings
        self.node = node
        self._peer = peer
        self._questions = questions
        self._quorum = quorum
        self._pause = pause

    @property
    def is_answer_due(self) -> bool:
        """True if the peer waits for an unpublished answer or grant."""
        return self._questions.answers != self._questions.answers_published or self.is_grant_due

    def publish(
        self, state: State, epoch: int, evidence: Evidence, now: float, *, is_released: bool, is_leaving: bool
    ) -> list[Publish | AskArbiter]:
        """Publish the node's state."""
        if self.is_mute or state is State.ERROR:
            return []
        self.published_at = now
        self.due_at = now + self._peer.pace.heartbeat_interval_s
        self._questions.answers_published = self._questions.answers
        if state is State.PASSIVE and self._peer.state is State.PASSIVE and not self._peer.runs.is_native:
            # A published peer that is passive takes our PASSIVE for the end of the pair and exits. It can
            # neither answer nor be handed the role; left in silence, it takes over with the next vote.
            return []
        self.seq += 1
        self.is_grant_due = False
        settings, quorum, pause = self._settings, self._quorum, self._pause
        hears = (self._peer.runs.node or "") if self._peer.is_heard(now) else ""
        message = PeerState(
            state=int(state),
            pair=settings.pair,
            role=settings.role.value,
            node=self.node,
            seq=self.seq,
            epoch=epoch,
            heartbeat_ms=settings.heartbeat_ms,
            timeout_ms=settings.failover_timeout_ms,
            asks=self._questions.asking,
            answers=self._questions.answers,
            released=is_released,
            leaving=is_leaving,
            arbiter=settings.arbiter,
            claims=quorum is not None and quorum.is_claiming,
            cut_off=evidence.clients,
            cut_off_ms=milliseconds(evidence.for_s) if evidence.clients else 0,
            hears=hears,
            pause=pause.number,
            paused_ms=milliseconds(pause.rest_s(now)),
            pause_why=pause.why,
            fronts=",".join(settings.fronts),
        )
        if settings.is_adaptive:
            message = msgspec.structs.replace(
                message,
                timeout_max_ms=settings.failover_timeout_max_ms,
                needs_ms=self._peer.needs_ms(self.seq),
                hears_seq=self._peer.runs.seq if hears else 0,
                lease_ms=milliseconds(quorum.ttl_s) if quorum is not None and quorum.is_claiming else 0,
            )
        if quorum is None:
            return [Publish(message)]
        quorum.sent(self.seq, now)
        if now < quorum.peers_until:
            message = msgspec.structs.replace(message, granted=quorum.granted, granted_to=quorum.granted_to)
        return [Publish(message), AskArbiter(self._question(quorum))]

    def _question(self, quorum: Quorum) -> Question:
        verb: Verb = "claim" if quorum.is_claiming else "release" if quorum.is_release_due else "look"
        quorum.is_release_due = False
        settings = self._settings
        ttl_ms, ttl_max_ms = settings.failover_timeout_ms, 0
        if settings.is_adaptive:
            ttl_max_ms = settings.failover_timeout_max_ms
            # An arbiter that knows no maximum would forget a longer promise when it is started again.
            ttl_ms = milliseconds(quorum.ttl_s) if quorum.is_maximum_known else ttl_max_ms
        return Question(
            verb, settings.pair, settings.role.value, self.node, self.seq, ttl_ms, ttl_max_ms=ttl_max_ms
        )
