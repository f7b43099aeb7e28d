"""The arbiter's part for durable stores: of each store the *in-sync set*, the copies that have all that is
committed (PacificA's configuration manager; docs/adr/0023-replicated-store.md).

The leader of a store registers a set of one before it commits alone, and a set of two after the other copy
has everything. A claim is granted if it is younger than the set, by epoch and number, and its node is in the
set or claims both. So once one node went on alone, the other cannot.

Sets that are kept on a disk survive the arbiter. Without one a new arbiter grants a store that it does not
know only to a leader that held the set, until one ttl has passed; then to the first that claims it.
"""

from collections.abc import Mapping

import msgspec

from bstar.star.arbiter import Reply, TableFull
from bstar.wire.arbiter import Answer, Question, Role, SetAnswer, SetClaim

# The bound of the table: a stranger may invent stores, and a set has about 300 bytes.
STORES_MAX = 10_000


class InSyncSet(msgspec.Struct, frozen=True, gc=False):
    """Whose copies have all that is committed, since claim ``number`` of the leader in ``epoch``."""

    epoch: int
    number: int
    in_sync: tuple[Role, ...]


class KeepSets(msgspec.Struct, frozen=True, gc=False):
    """Store ``InSyncSets.all`` before anything below is carried out."""

    text: str


SetOutput = KeepSets | Reply | TableFull


class InSyncSets:
    """The sets of all stores. ``kept``: what an earlier run stored; None: nothing is kept on a disk."""

    def __init__(
        self, kept: Mapping[str, InSyncSet] | None, *, now: float, stores_max: int = STORES_MAX
    ) -> None:
        self.is_kept = kept is not None
        self.all: dict[str, InSyncSet] = dict(kept or {})
        self.refusals = 0
        self._started_at = now
        self._stores_max = stores_max
        self._was_full = False

    def receive(self, question: Question, claim: SetClaim, now: float) -> list[SetOutput]:
        """The store of a node asks."""
        name = f"{question.pair}/{claim.store}"
        old = self.all.get(name)
        outputs: list[SetOutput] = []
        is_granted = bool(claim.in_sync) and self._may(question, claim, old, now)
        if is_granted and old is None and len(self.all) >= self._stores_max:
            is_granted = False
            if not self._was_full:
                self._was_full = True
                outputs.append(TableFull(question.pair))
        if is_granted:
            new = InSyncSet(claim.epoch, question.number, tuple(sorted(set(claim.in_sync))))
            self.all[name] = new
            if old is None or (old.epoch, old.in_sync) != (new.epoch, new.in_sync):
                members = " and ".join(new.in_sync)
                outputs.append(KeepSets(f"store {name}: in sync are {members}, epoch {new.epoch}"))
        elif claim.in_sync:
            self.refusals += 1
        return [*outputs, Reply(self._answer(question, is_granted=is_granted, known=self.all.get(name)))]

    def _may(self, question: Question, claim: SetClaim, old: InSyncSet | None, now: float) -> bool:
        if old is None:
            is_new = not self.is_kept and now < self._started_at + question.ttl_ms / 1000
            return claim.is_held or claim.is_forced or not is_new
        if claim.is_forced:
            return claim.epoch != old.epoch or question.number > old.number
        is_younger = (claim.epoch, question.number) > (old.epoch, old.number)
        return is_younger and (question.role in old.in_sync or len(set(claim.in_sync)) > 1)

    def _answer(self, question: Question, *, is_granted: bool, known: InSyncSet | None) -> Answer:
        answer = SetAnswer(is_granted, is_kept=self.is_kept)
        if known is not None:
            answer = SetAnswer(is_granted, known.epoch, list(known.in_sync), self.is_kept)
        return Answer(question.node, question.number, store=answer)
