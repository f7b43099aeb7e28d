"""A node's view of its peer: its last message, until when it counts, and its run.

**Silence.** The peer is silent when no valid message has come for the failover timeout *while this node
listened*. Time during which the process was away does not count: messages of that time may still be on the
way. A native peer has the timing of this node, or the two are not a pair. Both may adapt the failover timeout
(``failure_detector``). A published peer tells no timing, so the published pattern's applies (``Pace``): it
speaks once a second and counts a node as dead after two.

**A refused connection.** A process that dies closes its connections and its listening socket. When the link
to a peer that was heard breaks (``LinkLost``) and its endpoint then refuses a new connection
(``PeerRefused``), the peer counts as silent at once. The shell decides whether it reports either.

**Whose messages count.** A run numbers its messages, and the numbers increase. A message is late if its
number does not increase or a later run has replaced its run. It must not undo younger messages. If late
messages go on for a failover timeout, they are right and the number is wrong (``Streak``). A stranger is a
node that cannot be our peer (``texts.mismatch`` says why); each is reported once. A rival is a node with our
role and our peer, which hears it.
"""

import enum
from typing import NamedTuple

import msgspec

from bstar.star.epochs import Epochs, is_highest_claim
from bstar.star.failure_detector import Detector
from bstar.star.outputs import PeerLost, PeerRejected, PeerSeen
from bstar.star.rules import State
from bstar.star.settings import StarSettings
from bstar.star.texts import fronts_apart
from bstar.wire.epochs import EPOCH_MAX
from bstar.wire.peer import PeerState

PUBLISHED_HEARTBEAT_S = 1.0
PUBLISHED_TIMEOUT_S = 2.0

# A broken link leads to a verdict within this time (``bstar.pair.peer_link`` asks for 0.2 s), or the failover
# timeout decides as always. Refused clients hear that they may ask again soon: the verdict takes a few
# milliseconds on a LAN.
VERDICT_TIMEOUT_S = 0.25
VERDICT_RETRY_S = 0.02
# While the peer's process is gone, its next run alone could take the role: after it has listened for
# ``failover_timeout_max_s``. It may take the rest of that time to connect to this node.
LONE_SHARE = 0.5
# The names of a peer's fronts go into logs.
_FRONTS_CHARS_MAX = 100

# A peer names a dead run of ours for one failover timeout, plus the time that its messages travel.
RIVAL_TIMEOUTS = 3

# Earlier runs of the peer whose late messages are recognised, and strangers that are reported once each. A
# peer that restarts in a loop must not grow the tables.
PEER_RUNS_MAX = 16


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The timing towards one kind of peer. ``heartbeat_interval_s`` is the time between our messages.
    ``silence_s`` is the silence after which the peer counts as dead. ``absence_s`` is the silence of ours
    after which the peer may have taken over.
    """

    heartbeat_interval_s: float
    silence_s: float
    absence_s: float


def paces_of(settings: StarSettings) -> tuple[Pace, Pace]:
    """The pace towards a published peer, and towards a native one whose timeout is fixed."""
    published = Pace(
        heartbeat_interval_s=min(settings.heartbeat_interval_s, PUBLISHED_HEARTBEAT_S),
        silence_s=max(settings.failover_timeout_s, PUBLISHED_TIMEOUT_S),
        absence_s=PUBLISHED_TIMEOUT_S,
    )
    native = Pace(
        heartbeat_interval_s=settings.heartbeat_interval_s,
        silence_s=settings.failover_timeout_s,
        absence_s=settings.failover_timeout_s,
    )
    return published, native


class Ignored(enum.StrEnum):
    """Why a peer message was not taken for a sign of life. Also the label of a metric."""

    STALE = "stale"  # its number does not increase, or it is of an earlier run of the peer
    BACKLOG = "backlog"  # older than our question
    MISMATCH = "mismatch"  # of a node that cannot be our peer
    EPOCH = "epoch"  # names an epoch that cannot be
    INVALID = "invalid"  # no state message at all


class Streak(NamedTuple):
    """Late messages of one run with increasing numbers, while no other message was believed.

    A number that the run never reached (forged, or damaged) makes all its true messages late. Late messages
    of an honest link come in a burst or stop soon. Those that go on for the failover timeout are the run's
    own. By then every earlier ballot has run out, so even an old message cannot free a ballot on which the
    peer relies.
    """

    node: str
    seq: int
    since: float
    rose_at: float


class PeerRuns:
    """The run of the peer that spoke last, its last number, and the runs before it with theirs."""

    def __init__(self) -> None:
        self.node: str | None = None
        self.seq = 0
        self.is_native = False  # speaks more than the published one-frame message
        self.past: dict[str, int] = {}
        self.streak: Streak | None = None

    def is_late(self, message: PeerState, now: float, silence_s: float, *, may_return: bool) -> bool:
        """True if younger messages were heard. Takes note of a late one, for it may belong to a streak. An
        earlier run is over, unless the later one turned out to be a passing guest: then it ``may_return``.
        """
        if message.node is None or message.seq is None:
            return False
        if message.node == self.node:
            last_seq = self.seq
        elif message.node not in self.past:
            return False
        elif may_return:
            last_seq = self.past[message.node]
        else:
            return True
        return message.seq <= last_seq and not self._goes_on(message.node, message.seq, now, silence_s)

    def _goes_on(self, node: str, seq: int, now: float, silence_s: float) -> bool:
        """True if late messages have increased for ``silence_s``, without a pause as long as that.

        A number that does not increase counts for nothing, so repetitions neither lengthen nor end a streak.
        """
        streak = self.streak
        if streak is None or now - streak.rose_at >= silence_s:
            self.streak = Streak(node, seq, since=now, rose_at=now)
            return False
        if node != streak.node or seq <= streak.seq:
            return False
        self.streak = streak._replace(seq=seq, rose_at=now)
        return now - streak.since >= silence_s

    def recognise(self, message: PeerState) -> bool:
        """Note the run and its number. True if the run is a new one."""
        is_other = message.node != self.node
        if is_other:
            if self.node is not None:
                while len(self.past) >= PEER_RUNS_MAX:
                    del self.past[next(iter(self.past))]
                self.past[self.node] = self.seq
            if message.node is not None:
                self.past.pop(message.node, None)
            self.node = message.node
        self.seq = message.seq or 0
        self.streak = None
        self.is_native = message.node is not None
        return is_other


class Strangers:
    """The strangers that were reported, with the reasons."""

    def __init__(self) -> None:
        self.reported: dict[tuple[str | None, str], None] = {}

    def is_news(self, node: str | None, reason: str) -> bool:
        """True once for each ``node`` and ``reason``."""
        key = (node, reason)
        if key in self.reported:
            return False
        while len(self.reported) >= PEER_RUNS_MAX:
            del self.reported[next(iter(self.reported))]
        self.reported[key] = None
        return True


class Rival:
    """The run that the peer hears and that is not ours, and since when it names it.

    After a restart that is our own earlier run, until the peer has heard us or has found that run silent. A
    run that it goes on hearing for ``RIVAL_TIMEOUTS`` failover timeouts is another process. While the peer is
    silent nothing is counted: its first messages after that may be old. Only one run of the peer can prove
    it: each message that is forged in a new run's name may repeat what the peer said long ago.
    """

    def __init__(self) -> None:
        self._claim: tuple[str | None, str] = (None, "")  # the run of the peer, and the run that it hears
        self._since = 0.0
        self._heard_at = 0.0

    def is_there(self, message: PeerState, node: str, now: float, silence_s: float) -> bool:
        """Note which run the peer hears. True if it is certainly another node than ours."""
        claim = (message.node, message.hears)
        if claim != self._claim or now - self._heard_at >= silence_s:
            self._claim = claim
            self._since = now
        self._heard_at = now
        return message.hears not in ("", node) and now - self._since >= RIVAL_TIMEOUTS * silence_s


class PeerView:
    """The peer as one node sees it.

    ``state`` is what it said last, and ``heard_at`` when. It is silent from ``expires_at`` on. ``is_gone``:
    silent because its endpoint refused us, and without a subscriber since. ``dual_since``: both nodes have
    said ACTIVE since then. ``fronts_apart``: a text if it serves other protocols on sockets of their own than
    this node. ``detector`` is None if the failover timeout is fixed.
    """

    def __init__(self, settings: StarSettings, now: float) -> None:
        self._settings = settings
        self.state: State | None = None
        self.heard_at: float | None = None
        self.is_gone = False
        self.has_left = False
        self.fronts_apart = ""
        self._fronts: str | None = None  # what the peer said of its fronts last
        self.dual_since: float | None = None
        self.runs = PeerRuns()
        self.strangers = Strangers()
        self.is_seen = False  # its silence was not reported yet
        self.link_lost_at: float | None = None
        self._rival = Rival()
        self.detector = Detector(settings, now) if settings.is_adaptive else None
        # What is known of the peer before it speaks is what this node's own configuration says.
        self._is_published = False
        self._is_peer_adaptive = True
        self._published_pace, self._native_pace = paces_of(settings)
        self._adaptive_pace = self._native_pace
        self.pace = self._pace()
        # A primary waits one expiry before a lone start: an active backup must have had the time to speak up.
        self.expires_at = now + self.pace.silence_s
        # Since when its silence counts; None before it was heard.
        self._silent_since: float | None = None
        self._is_published_awaited = False

    @property
    def failover_timeout_s(self) -> float:
        """The failover timeout of the pair as it is now. A published peer does not change it."""
        if self.detector is None or not self._is_peer_adaptive:
            return self._settings.failover_timeout_s
        return self.detector.silence_ms / 1000

    @property
    def absence_s(self) -> float:
        """The silence of this node after which the peer may have taken over. While the peer's process is gone
        and no other has subscribed, that is a new run, which waits for the longest timeout.
        """
        absence_s = self.pace.absence_s
        if not self.is_gone or self.detector is None or not self._is_peer_adaptive:
            return absence_s
        return max(absence_s, self._settings.failover_timeout_max_ms / 1000 * LONE_SHARE)

    def _pace(self) -> Pace:
        if self._is_published:
            return self._published_pace
        if self.detector is None or not self._is_peer_adaptive:
            return self._native_pace
        pace = self._adaptive_pace
        silence_s, absence_s = self.detector.silence_ms / 1000, self.detector.absence_ms / 1000
        if silence_s != pace.silence_s or absence_s != pace.absence_s:
            pace = msgspec.structs.replace(pace, silence_s=silence_s, absence_s=absence_s)
            self._adaptive_pace = pace
        return pace

    # --- its silence ----------------------------------------------------------------------------------------

    def is_silent(self, now: float) -> bool:
        """True if the peer counts as dead."""
        return now >= self.expires_at

    def is_heard(self, now: float) -> bool:
        """True if the peer was heard within the failover timeout and is not known to be gone. For displays
        only.

        The peer counts as alive for longer (``expires_at``) while this node waits for its answer to a
        question or a handover, and after a time in which this node did not listen.
        """
        heard_at = self.heard_at
        return heard_at is not None and now - heard_at < self.pace.silence_s and now < self.expires_at

    def is_deaf(self, now: float) -> bool:
        """True if the peer has said ACTIVE for a failover timeout, although this node says it as well."""
        return self.dual_since is not None and now - self.dual_since >= self.pace.silence_s

    def wait(self, now: float) -> None:
        """Give the peer a whole timeout from now on."""
        self.expires_at = now + self.pace.silence_s
        self.is_gone = False
        self._silent_since = now

    def put_off(self, gap_s: float, now: float) -> None:
        """This node did not listen for ``gap_s``: that time is not the peer's silence."""
        self.link_lost_at = None
        if not self.is_gone:
            self.expires_at = max(self.expires_at, min(self.expires_at + gap_s, now + self.pace.silence_s))
            if self._silent_since is not None:
                self._silent_since = min(self._silent_since + gap_s, now)

    def await_published(self, now: float) -> None:
        """A published server has subscribed. It may be the peer, which speaks once a second."""
        if self.heard_at is None and not self._is_published_awaited:
            self._is_published_awaited = True
            self.expires_at = max(self.expires_at, now + self._published_pace.silence_s)

    def lose(self, now: float) -> list[PeerLost]:
        """The peer has fallen silent."""
        self.is_seen = False
        self.dual_since = None
        return [PeerLost(now - (self.heard_at or now), self.has_left, self.is_gone)]

    def lose_link(self, now: float) -> None:
        """The connection broke. It matters only while the peer is not silent."""
        if self.is_seen and now < self.expires_at:
            self.link_lost_at = now

    def refuse(self, now: float) -> bool:
        """The endpoint refused us: the peer's process is gone, so it is silent from now on.

        False, without effect, if the peer was heard or this process was away since the link broke: then the
        refused connection may be old.
        """
        if self.link_lost_at is None:
            return False
        self.link_lost_at = None
        self.is_gone = True
        self.expires_at = now
        return True

    def silent_in_s(self, now: float) -> float:
        """How long until the peer may count as silent."""
        silent_in_s = max(0.0, self.expires_at - now)
        if self.link_lost_at is not None and now < self.link_lost_at + VERDICT_TIMEOUT_S:
            return min(silent_in_s, VERDICT_RETRY_S)
        return silent_in_s

    # --- its messages ---------------------------------------------------------------------------------------

    def why_ignored(self, message: PeerState, epochs: Epochs, now: float) -> Ignored | None:
        """Why a message is ignored: a late message must not undo younger ones."""
        if message.epoch is not None and message.epoch > EPOCH_MAX:
            return Ignored.EPOCH
        may_return = now >= self.expires_at or is_highest_claim(message, epochs.own, epochs.seen)
        # Longer than any lease of an earlier claim.
        streak_s = max(self.pace.silence_s, self._settings.failover_timeout_max_ms / 1000)
        is_late = self.runs.is_late(message, now, streak_s, may_return=may_return)
        return Ignored.STALE if is_late else None

    def recognise(self, message: PeerState, node: str, now: float) -> bool:
        """Note which run speaks, and what it says of the failover timeout. True if it is a new run."""
        is_other = self.runs.recognise(message)
        if is_other:
            self.is_seen = False
            self.dual_since = None
            self._silent_since = None
        self._is_published = not self.runs.is_native
        self._is_peer_adaptive = message.timeout_max_ms != 0
        if self.detector is not None and message.timeout_max_ms:
            self.detector.hear(message, node, now, is_new_run=is_other)
        self.pace = self._pace()
        return is_other

    def needs_ms(self, number: int) -> int:
        """Message ``number`` goes out. Returns the need that it carries (``Detector``); 0 if the failover
        timeout is fixed.
        """
        if self.detector is None:
            return 0
        needs_ms = self.detector.publish(number)
        self.pace = self._pace()
        return needs_ms

    def doubt(self) -> None:
        """Somebody has subscribed to this node's state: perhaps a run of the peer that heard nothing yet."""
        self.is_gone = False
        if self.detector is not None:
            self.detector.doubt()
            self.pace = self._pace()

    def is_taken(self, message: PeerState, node: str, now: float) -> bool:
        """True if the peer keeps hearing another node, not ``node``."""
        return self._rival.is_there(message, node, now, self.pace.silence_s)

    def hear(self, now: float) -> None:
        """A message of the peer counts."""
        self.heard_at = now
        self.link_lost_at = None

    def refresh(self, message: PeerState, now: float) -> list[PeerSeen]:
        """The message is a sign of life."""
        self.state = State(message.state)
        if message.fronts != self._fronts:
            self._fronts = message.fronts
            names = message.fronts[:_FRONTS_CHARS_MAX].split(",")
            self.fronts_apart = fronts_apart(self._settings, frozenset(filter(str.isalnum, names)))
        if self.detector is not None and message.timeout_max_ms and self._silent_since is not None:
            self.detector.observe(now - self._silent_since, now)
            self.pace = self._pace()
        self.wait(now)
        if self.is_seen or message.leaving:
            return []
        self.is_seen = True
        return [PeerSeen(self.state, message.node, self.fronts_apart)]

    def report(self, reason: str, why: str, message: PeerState | None) -> list[PeerRejected]:
        """Report a node that cannot be the peer, once per run and reason."""
        is_news = self.strangers.is_news(message.node if message is not None else None, reason)
        return [PeerRejected(reason, why)] if is_news else []

    # --- what it could do -----------------------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """True if the peer could take the role now."""
        return not self.is_silent(now) and self.state is State.PASSIVE and self.runs.is_native

    def why_not_ready(self, now: float) -> str:
        """Why the peer cannot take the role, and what to do."""
        if self.state is None or self.is_silent(now):
            has_left = "the peer has left: start it, or end its drain (bstar drain --undo)"
            return has_left if self.has_left else "the peer is silent: start it first"
        if not self.runs.is_native:
            return "the peer speaks the published one-frame message, which has no word for a handover"
        return f"the peer is {self.state.name}, not PASSIVE: try again when it stands by"
