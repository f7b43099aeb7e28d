"""What becomes of a situation when nothing befalls it any more: who serves, how soon, and for good?

The link heals, frozen processes go on, dead ones are started, and from then on each tick is alike:
connections are made, timers fire, every word is read, a client asks each node, a worker tells what it
knows. That is one way among many, but a fixed one, so each situation has one future and most futures have
been seen before. It is asked twice: with the words read first, and with the clients first.
"""

from __future__ import annotations

from explorer.canonical import Forms
from explorer.model import FROZEN, HEAL, TICK, UNBOUNDED, Action, Budget, Model, Situation, may_vote, serves

# No faults, but workers that tell what they know.
CALM = Budget(learns=UNBOUNDED)
# Without an end long before that, there is none.
_TICKS_MAX = 200
_STEPS_MAX = 100
# Of what is possible, what happens first; a word is the first of its line.
_ORDER = ("end", "start", "connect", "timer", "stray", "hear", "learn")


class Calm:
    """The fault-free future of situations, each looked up once."""

    def __init__(self, model: Model, forms: Forms) -> None:
        self.model = model
        self._forms = forms
        # By whether the clients are first.
        self._settles_in: tuple[dict[Situation, int | None], ...] = ({}, {})
        # What is left when all that can happen within a tick has happened.
        self._rests: dict[Situation, Situation] = {}

    def settles_in(self, mended: Situation, *, are_clients_first: bool) -> int | None:
        """After how many ticks exactly one node serves and nothing changes any more; None if never."""
        path: list[Situation] = []
        places: dict[Situation, int] = {}
        now = mended
        known = self._settles_in[are_clients_first]
        while now not in known and now not in places:
            places[now] = len(path)
            path.append(now)
            now = self._forms[self._round(now, are_clients_first=are_clients_first)]
            if len(path) > _TICKS_MAX:
                known[now] = None
        if now in known:
            after = known[now]
        else:
            # A cycle, which is what is for ever.
            cycle = path[places[now] :]
            after = 0 if self._is_settled(cycle) else None
            for each in cycle:
                known[each] = after
            del path[places[now] :]
        for each in reversed(path):
            after = None if after is None else after + 1
            known[each] = after
        return after

    def mend(self, situation: Situation) -> Situation:
        """The form of this situation without what has befallen it: that of both orders."""
        situation = situation._replace(budget=CALM, shaky=0)
        if situation.lines[0].is_cut or situation.lines[1].is_cut:
            situation = self.model.next(situation, HEAL)
        for who in (0, 1):
            process = situation.processes[who]
            if process.life == FROZEN:
                situation = self.model.next(situation, ("thaw", who, 0))
        return self._forms[situation]

    def _is_settled(self, cycle: list[Situation]) -> bool:
        # An activation would raise an epoch: in a cycle there is none.
        serving = {tuple(serves(process) for process in each.processes) for each in cycle}
        return serving in ({(True, False)}, {(False, True)})

    def _round(self, situation: Situation, *, are_clients_first: bool) -> Situation:
        """One tick."""
        if are_clients_first:
            situation = self._rest(self._ask(situation))
        else:
            situation = self._ask(self._rest(situation))
        return self.model.next(situation, TICK)

    def _rest(self, situation: Situation) -> Situation:
        """Let happen what can happen within the tick."""
        path: list[Situation] = []
        while (rest := self._rests.get(situation)) is None:
            path.append(situation)
            action = self._what_is_next(situation)
            if action is None:
                rest = situation
                break
            assert len(path) < _STEPS_MAX, f"within one tick there is no end of it: {situation}"
            situation = self.model.next(situation, action)
        for each in path:
            self._rests[each] = rest
        return rest

    def _ask(self, situation: Situation) -> Situation:
        """A client asks each node."""
        for who in (0, 1):
            if may_vote(situation.processes[who]):
                situation = self.model.next(situation, ("vote", who, 0))
        return situation

    def _what_is_next(self, situation: Situation) -> Action | None:
        """The first of what there is to do, in a fixed order."""
        actions = list(self.model.actions(situation))
        for verb in _ORDER:
            for action in actions:
                if action[0] == verb:
                    return action
        return None
