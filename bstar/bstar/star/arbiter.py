"""The third voter: one ballot for each pair, given to one node at a time. Pure, like the nodes' machines.

``receive`` takes a node's question and returns the answer. It grants a claim if the ballot is free or belongs
to that node. The ballot then belongs to the node for the ttl that it asked for, by this machine's clock. The
arbiter never decides who should serve. It only never says yes to two nodes at once.

It keeps nothing across restarts, so it does not know its earlier promises. A new arbiter grants nothing until
the longest ttl of the pair has passed since its start. That costs nothing while the nodes hear each other.

It does not speak first, does not know whether nodes live, and tells a node about the other only who holds the
ballot.
"""

from math import ceil

import msgspec

from bstar.wire.arbiter import Answer, Question

# The bound of the table: a stranger may invent pairs, and a record has about 300 bytes.
PAIRS_MAX = 10_000

# How often it removes ballots that ran out, for the log and to make room.
_SWEEP_INTERVAL_S = 1.0


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Send ``answer`` to the node that asked."""

    answer: Answer


class BallotGiven(msgspec.Struct, frozen=True, gc=False):
    """The ballot of ``pair`` is that node's, and was not before."""

    pair: str
    role: str
    node: str


class BallotReturned(msgspec.Struct, frozen=True, gc=False):
    """The ballot of ``pair`` is free: its holder gave it back, or ``has_expired`` because it fell silent."""

    pair: str
    role: str
    node: str
    has_expired: bool


class TableFull(msgspec.Struct, frozen=True, gc=False):
    """A pair was refused because there are ``PAIRS_MAX`` others. Once, until there is room again."""

    pair: str


ArbiterOutput = Reply | BallotGiven | BallotReturned | TableFull


class _Ballot(msgspec.Struct, gc=False):
    """``number`` is the holder's last question that counted; an older one is late."""

    role: str
    node: str
    number: int
    until: float
    is_given: bool = True


class ArbiterMachine:
    """Ballots of any number of pairs, up to ``PAIRS_MAX``. ``now`` is in seconds of one monotonic clock."""

    def __init__(self, *, now: float, pairs_max: int = PAIRS_MAX) -> None:
        self.questions = 0
        self.refusals = 0
        self._started_at = now
        self._pairs_max = pairs_max
        self._ballots: dict[str, _Ballot] = {}
        self._sweep_at = now + _SWEEP_INTERVAL_S
        self._was_full = False

    @property
    def pairs(self) -> int:
        """How many pairs have a ballot that a node holds or held a moment ago."""
        return len(self._ballots)

    def receive(self, question: Question, now: float) -> list[ArbiterOutput]:
        """A node's question. ``now`` must have been read after the message was."""
        self.questions += 1
        ballot = self._ballots.get(question.pair)
        outputs: list[ArbiterOutput] = []
        if ballot is not None and ballot.is_given and now >= ballot.until:
            outputs.append(self._take_back(question.pair, ballot, now, has_expired=True))
        is_holders = ballot is not None and ballot.node == question.node
        if is_holders and ballot is not None and question.number <= ballot.number:
            return outputs  # it came by an older connection, after younger questions
        is_granted = False
        if question.verb == "claim":
            is_granted = self._claim(question, ballot, now, outputs)
        elif question.verb == "release" and is_holders and ballot is not None:
            ballot.number = question.number
            if ballot.is_given:
                outputs.append(self._take_back(question.pair, ballot, now, has_expired=False))
        outputs.append(Reply(self._answer(question, is_granted, now)))
        return outputs

    def stalled(self, gap_s: float, now: float) -> list[ArbiterOutput]:
        """The process was away for ``gap_s``: extend the promises of that time by as much."""
        for ballot in self._ballots.values():
            if ballot.is_given and ballot.until > now - gap_s:
                ballot.until += gap_s
        return []

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        return self._sweep_at if self._ballots else None

    def handle_timer(self, now: float) -> list[ArbiterOutput]:
        """Free the ballots that have run out."""
        if now < self._sweep_at:
            return []
        self._sweep_at = now + _SWEEP_INTERVAL_S
        outputs: list[ArbiterOutput] = []
        for pair, ballot in list(self._ballots.items()):
            if now < ballot.until:
                continue
            if ballot.is_given:
                outputs.append(self._take_back(pair, ballot, now, has_expired=True))
            else:
                del self._ballots[pair]
                self._was_full = False
        return outputs

    def _claim(
        self, question: Question, ballot: _Ballot | None, now: float, outputs: list[ArbiterOutput]
    ) -> bool:
        ttl_s = question.ttl_ms / 1000
        is_new = now < self._started_at + _ttl_max_s(question)
        is_others = ballot is not None and ballot.is_given and ballot.node != question.node
        if is_new or is_others:
            self.refusals += 1
            return False
        if ballot is None:
            if len(self._ballots) >= self._pairs_max:
                self.refusals += 1
                if not self._was_full:
                    self._was_full = True
                    outputs.append(TableFull(question.pair))
                return False
            if not self._ballots:
                self._sweep_at = now + _SWEEP_INTERVAL_S
        until = now + ttl_s
        if ballot is not None and ballot.is_given:
            ballot.number = question.number
            ballot.until = max(ballot.until, until)
        else:
            self._ballots[question.pair] = _Ballot(question.role, question.node, question.number, until)
            outputs.append(BallotGiven(question.pair, question.role, question.node))
        return True

    def _take_back(self, pair: str, ballot: _Ballot, now: float, *, has_expired: bool) -> BallotReturned:
        """Free it, but remember its holder's last question until the next sweep."""
        ballot.is_given = False
        ballot.until = now
        return BallotReturned(pair, ballot.role, ballot.node, has_expired)

    def _answer(self, question: Question, is_granted: bool, now: float) -> Answer:
        ballot = self._ballots.get(question.pair)
        is_given = ballot is not None and ballot.is_given
        free_at = self._started_at + _ttl_max_s(question)
        if ballot is not None and ballot.is_given:
            free_at = max(free_at, ballot.until)
        return Answer(
            question.node,
            question.number,
            is_granted,
            ballot.role if is_given and ballot is not None else "",  # type: ignore[arg-type]  # as it was asked
            max(0, ceil((free_at - now) * 1000)),
            ttl_max_ms=question.ttl_max_ms,
        )


def _ttl_max_s(question: Question) -> float:
    """How long an earlier run of this arbiter may have promised the ballot of the pair."""
    return max(question.ttl_ms, question.ttl_max_ms) / 1000
