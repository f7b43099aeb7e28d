"""What the leader of a store claims at the arbiter, and what the arbiter knows of the in-sync set.

With an arbiter a leader commits alone only while the arbiter has granted it a set of one in its epoch.
It claims the set of two after the peer has everything and its own mark says that it is not alone. So a node
outside the set may lack something, and a node in it does not (docs/adr/0023-replicated-store.md).

A claim is asked again in each heartbeat until it is granted. Then it is repeated now and then, so an arbiter
without a state directory hears of it after a restart.
"""

from math import inf

from bstar.wire.arbiter import Role, SetAnswer, SetClaim
from bstar_broker.store.core.events import ArbiterSaid, AskArbiter

BOTH: tuple[Role, ...] = ("primary", "backup")


class _Claim:
    """What this leadership claims. ``since``: the number of its first question."""

    def __init__(self, epoch: int = 0, *, is_forced: bool = False) -> None:
        self.epoch = epoch
        self.is_forced = is_forced
        self.members: tuple[Role, ...] = ()
        self.since = 0
        self.is_granted = False


class InSync:
    """One node's part. ``is_on``: the pair has an arbiter; without one nothing is asked, all is granted."""

    def __init__(self, *, is_on: bool, heartbeat_s: float, timeout_s: float) -> None:
        self.is_on = is_on
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._number = self._number_heard = 0
        self._claim = _Claim()
        self._store = b""
        # The last answer, and of which store; None until one came.
        self._known: tuple[bytes, SetAnswer] | None = None
        self._repeat_at = inf
        # When the first question without an answer was asked.
        self._silent_since = inf
        self._is_silent = self._is_old = False

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def may_be_alone(self) -> bool:
        """True if this leader may commit alone, as far as the arbiter has a say."""
        claim = self._claim
        return not self.is_on or (len(claim.members) == 1 and claim.is_granted)

    @property
    def are_both_granted(self) -> bool:
        """True if the arbiter knows that both copies are in sync, or without an arbiter."""
        claim = self._claim
        return not self.is_on or (claim.members == BOTH and claim.is_granted)

    @property
    def epoch(self) -> int:
        """That of the set; 0 if none is known."""
        return 0 if self._known is None else self._known[1].epoch

    def is_answered(self, store: bytes) -> bool:
        """True if the arbiter has said what it knows of this store."""
        return self._known is not None and self._known[0] == store

    def is_member(self, role: Role, store: bytes) -> bool | None:
        """Is the copy of this role in the set? None without a set, or if it is not known yet."""
        if self._known is None or self._known[0] != store or not self._known[1].in_sync:
            return None
        return role in self._known[1].in_sync

    def is_refused(self, role: Role) -> bool:
        """True if this leadership is over for the arbiter: another one was granted what excludes it."""
        claim = self._claim
        if not claim.members or claim.is_granted or claim.is_forced or self._number_heard < claim.since:
            return False
        return self.epoch > claim.epoch or self.is_member(role, self._store) is False

    @property
    def problem(self) -> str:
        """Why no claim is granted although one is made; "" if it is only under way."""
        if self._is_old:
            return "the arbiter is of a release that keeps no in-sync sets: run this release there, too"
        if self._is_silent:
            return "the arbiter does not answer: start it, or the peer"
        return ""

    # --- questions ------------------------------------------------------------------------------------------

    def lead(self, epoch: int, *, is_forced: bool) -> None:
        """A leadership begins; nothing is claimed in its epoch yet."""
        self._claim = _Claim(epoch, is_forced=is_forced)

    def forget(self) -> None:
        """What was known may be outdated."""
        self._known = None

    def claim(self, store: bytes, members: tuple[Role, ...], now: float) -> list[AskArbiter]:
        """Claim this set; asks at once if it is another than before."""
        claim = self._claim
        if not self.is_on or (claim.members == members and self._store == store):
            return []
        claim.members, claim.is_granted = members, False
        claim.since = self._number + 1
        self._store = store
        return self._ask(now)

    def look(self, store: bytes, now: float) -> list[AskArbiter]:
        """Ask what the set of this store is, once in a heartbeat; nothing is claimed."""
        if not self.is_on or not store:
            return []
        if self._store == store and now < self._repeat_at and self._repeat_at != inf:
            return []
        self._store = store
        self._claim = _Claim()
        return self._ask(now)

    def repeat(self, now: float) -> list[AskArbiter]:
        """Claim again what is claimed, if it is time."""
        return self._ask(now) if self._claim.members and now >= self._repeat_at else []

    def _ask(self, now: float) -> list[AskArbiter]:
        self._number += 1
        self._silent_since = min(self._silent_since, now)
        self._is_silent = now >= self._silent_since + self._timeout_s
        self._repeat_at = now + self._heartbeat_s
        claim = self._claim
        asked = SetClaim(
            self._store.hex(), claim.epoch, list(claim.members), claim.is_forced, claim.is_granted
        )  # fmt: skip
        return [AskArbiter(self._number, asked)]

    # --- answers --------------------------------------------------------------------------------------------

    def hear(self, given: ArbiterSaid, now: float) -> bool:
        """An answer; False if it is late."""
        if not self._number_heard < given.number <= self._number:
            return False
        self._number_heard = given.number
        self._silent_since = inf
        self._is_silent = False
        self._is_old = given.answer is None
        answer, claim = given.answer, self._claim
        if answer is None:
            return True
        if given.number == self._number:
            self._known = (self._store, answer)
        if claim.members and given.number >= claim.since:
            claim.is_granted = answer.is_granted
            if answer.is_granted:
                claim.is_forced = False
                self._repeat_at = now + self._timeout_s / 2
        return True
