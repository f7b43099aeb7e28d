"""One seed: two nodes under faults for a while, then peace; then both copies must be one."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from sim.checks import Violation
from sim.world import Action, World
from store_sim.arbiter import SimArbiter
from store_sim.link import SimLink
from store_sim.node import SimNode
from store_sim.promises import Promises

# The simulated Binary Star: a passive node takes over when it has not heard of an active one for so long.
FAILOVER_S = 1.0
TICK_S = 0.1
FAULTS_S = 20.0
# After the last fault; a table is sent, and a node that failed to join waits for ten seconds.
PEACE_S = 60.0
# An operator forces a copy that nothing else can bring to lead.
FORCE_AFTER_S = 20.0

# Entries that may be under way at the end, since clients go on.
_BEHIND_MAX = 10

# Only with an arbiter.
ARBITER_FAULTS = ("crash arbiter", "cut arbiter")
FAULTS = (
    "crash", "crash both", "crash and replace", "crash and damage", "crash both and damage", "damage",
    "cut store", "cut pair", "cut all", "lossy", "slow link",
    "freeze", "stall", "full disk", "promote", "dual", "clock",
)  # fmt: skip


# ``forgetful``: it has no state directory.
Arbitration = Literal["none", "kept", "forgetful"]


class Outcome(msgspec.Struct):
    """What came of a seed. ``violation`` "" if every promise was kept."""

    seed: int
    violation: str
    counts: Counter[str]
    trace: list[str]
    simulated_s: float


class StoreSim:
    """The world of one seed. ``kinds``: the faults to draw from; all by default."""

    def __init__(
        self,
        seed: int,
        kinds: tuple[str, ...] = FAULTS,
        *,
        keep_trace: bool = False,
        arbiter: Arbitration = "none",
    ) -> None:
        self.world = world = World(seed, keep_trace=keep_trace)
        self.rng = world.rng("faults")
        self.kinds = kinds
        self.counts: Counter[str] = Counter()
        self.promises = Promises(has_arbiter=arbiter == "kept")
        self.nodes = [SimNode(world, "primary", self.promises), SimNode(world, "backup", self.promises)]
        self.promises.nodes = self.nodes
        primary, backup = self.nodes
        primary.link = SimLink(world, world.rng("there"), backup.receive)
        backup.link = SimLink(world, world.rng("back"), primary.receive)
        self.arbiter: SimArbiter | None = None
        if arbiter != "none":
            self.arbiter = SimArbiter(world, self.nodes, is_kept=arbiter == "kept")
            primary.arbiter = backup.arbiter = self.arbiter
            self.arbiter.start()
        self.is_pair_cut = False
        self.is_peace = False
        self.dual_until = 0.0
        self._bodies = 0
        self._may_force = False
        self._leading: list[tuple[str, int, int]] = []
        self._troubled_since: float | None = None

    def run(self) -> None:
        """Play it. Raises ``Violation``."""
        world = self.world
        for node in self.nodes:
            world.after(self.rng.uniform(0.0, 1.0), self._starter(node))
        world.after(TICK_S, self._tick)
        world.after(0.01, self._client)
        at = 3.0
        while at < FAULTS_S:
            world.at(at, self._fault)
            at += self.rng.expovariate(0.7)
        world.run_until(FAULTS_S)
        self._make_peace()
        while world.now < FAULTS_S + PEACE_S and not self._is_calm():
            world.run_until(world.now + 2.0)
        self._check_end()

    def _starter(self, node: SimNode) -> Action:
        return lambda: None if node.is_alive else self._start(node)

    def _start(self, node: SimNode) -> None:
        node.start()
        if not node.link.is_cut:
            self._reconnect()

    def _reconnect(self) -> None:
        for node in self.nodes:
            node.link.cut()
            node.link.mend()
            node.lose_peer()

    # --- the Binary Star ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.world.after(TICK_S, self._tick)
        primary, backup = self.nodes
        if not self.is_pair_cut:
            for node, other in ((primary, backup), (backup, primary)):
                if node.is_awake and other.is_awake:
                    node.epoch_max = max(node.epoch_max, other.epoch_max)
                    if other.epoch:
                        node.hear_active(self.world.now)
            is_dual = primary.epoch and backup.epoch and primary.is_awake and backup.is_awake
            if is_dual and self.world.now > self.dual_until:
                min(self.nodes, key=lambda node: node.epoch).follow()
        for node in self.nodes:
            is_alone = self.world.now - node.heard_active_at > FAILOVER_S
            if node.is_awake and not node.epoch and is_alone:
                patience = 0.0 if node is primary else 0.3
                if self.world.now - node.heard_active_at > FAILOVER_S + patience:
                    node.lead()
        self.promises.check()
        self._note_sync()
        self._force_if_stuck()

    def _note_sync(self) -> None:
        if not all(node.is_awake for node in self.nodes):
            return
        for node in self.nodes:
            one, two = node.disk.durable, self.promises.other(node).disk.durable
            is_counted = node.replica.copies == 2 and one.mark is not None and not one.mark.is_alone
            is_told = two.mark is not None and two.mark.is_in_sync
            if is_counted and is_told and one.history.last == two.history.last:
                self.promises.in_sync()

    def _force_if_stuck(self) -> None:
        """An operator is needed where a disk that had everything was lost."""
        active = [node for node in self.nodes if node.is_awake and node.epoch]
        stuck = [] if any(node.replica.epoch for node in active) else active
        if not self.is_peace or not stuck or not all(node.is_awake for node in self.nodes):
            self._troubled_since = None
            return
        if self._troubled_since is None:
            self._troubled_since = self.world.now
        if self.world.now - self._troubled_since > FORCE_AFTER_S:
            if not self._may_force:
                raise Violation(
                    "peace",
                    f"no disk was lost, and {stuck[0].name} does not lead: {stuck[0].replica.trouble}",
                )
            best = max(
                self.nodes,
                key=lambda node: (node.disk.durable.mark is not None, node.disk.durable.history.last),
            )
            if best.epoch:
                self.counts["forced"] += 1
                best.force()
            else:
                best.lead()
                self.dual_until = self.world.now + 0.5

    def _client(self) -> None:
        self.world.after(self.rng.expovariate(20.0 if not self.is_peace else 2.0), self._client)
        for node in self.nodes:
            if node.is_alive and node.replica.is_leading and node.replica.lag < 1_000:
                self._bodies += 1
                node.propose(b"\x90" + b"%d" % self._bodies)

    # --- faults ---------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        kind = self.rng.choice(self.kinds)
        node = self.rng.choice(self.nodes)
        self.counts[kind] += 1
        self.world.note(f"fault: {kind} {node.name}")
        getattr(self, "_do_" + kind.replace(" ", "_"))(node)

    def _for(self, mean_s: float, begin: Action, end: Action) -> None:
        begin()
        self.world.after(self.rng.expovariate(1 / mean_s), lambda: None if self.is_peace else end())

    def _crash(self, node: SimNode) -> None:
        if node.is_alive:
            node.crash()
            other = self.promises.other(node)
            if self.rng.random() < 0.7:
                self.world.after(0.01, other.lose_peer if other.is_alive else lambda: None)
            self.world.after(self.rng.expovariate(1 / 2.0), self._starter(node))

    def _do_crash(self, node: SimNode) -> None:
        self._crash(node)

    def _do_crash_both(self, node: SimNode) -> None:
        for each in self.nodes:
            self._crash(each)

    def _do_crash_and_replace(self, node: SimNode) -> None:
        other = self.promises.other(node)
        self._crash(node)
        if not node.is_alive:
            # With its epoch file, often.
            self.promises.replaced(node)
            node.disk.replace()
            self._may_force = True
            if self.rng.random() < 0.3 and other.is_alive:
                node.epoch_max = 0

    def _is_undamaged(self) -> bool:
        """One node at a time: where both are damaged an operator must choose."""
        return not any(node.disk.durable.is_damaged for node in self.nodes)

    def _note_damage(self, node: SimNode) -> None:
        """If both copies were whole nothing may be lost by it, and no operator is needed."""
        marks = [each.disk.durable.mark for each in self.nodes]
        are_in_sync = all(mark is not None and mark.is_in_sync for mark in marks)
        are_awake = all(each.is_awake for each in self.nodes)
        if are_in_sync and are_awake and any(each.replica.is_peer_whole for each in self.nodes):
            self.counts["damage beside a whole copy"] += 1
        else:
            self.promises.replaced(node)
            self._may_force = True

    def _do_crash_and_damage(self, node: SimNode) -> None:
        if node.is_alive and self._is_undamaged():
            self._note_damage(node)
            self._crash(node)
            node.disk.damage(self.rng)

    def _do_crash_both_and_damage(self, node: SimNode) -> None:
        self._do_crash_and_damage(node)
        self._crash(self.promises.other(node))

    def _do_damage(self, node: SimNode) -> None:
        if node.is_alive and self._is_undamaged():
            self._note_damage(node)
            node.disk.find_damage()

    def _cut(self) -> None:
        for node in self.nodes:
            node.link.cut()
            if self.rng.random() < 0.7 and node.is_alive:
                node.lose_peer()

    def _mend(self) -> None:
        for node in self.nodes:
            node.link.mend()
            if node.is_alive:
                node.lose_peer()

    def _do_cut_store(self, node: SimNode) -> None:
        self._for(3.0, self._cut, self._mend)

    def _set_pair(self, *, is_cut: bool) -> None:
        self.is_pair_cut = is_cut

    def _do_cut_pair(self, node: SimNode) -> None:
        self._for(3.0, lambda: self._set_pair(is_cut=True), lambda: self._set_pair(is_cut=False))

    def _do_cut_all(self, node: SimNode) -> None:
        self._do_cut_store(node)
        self._do_cut_pair(node)

    def _do_lossy(self, node: SimNode) -> None:
        def lose(share: float) -> None:
            node.link.loss = share

        share = self.rng.choice((0.05, 0.3, 0.9))
        self._for(3.0, lambda: lose(share), lambda: lose(0.0))

    def _do_slow_link(self, node: SimNode) -> None:
        def slow(delay_s: float) -> None:
            node.link.delay_s = delay_s

        delay_s = self.rng.choice((0.02, 0.2, 1.0))
        self._for(3.0, lambda: slow(delay_s), lambda: slow(0.0005))

    def _do_freeze(self, node: SimNode) -> None:
        self._for(2.0, node.freeze, node.thaw)

    def _do_stall(self, node: SimNode) -> None:
        node.disk.stalled_until = self.world.now + self.rng.expovariate(1 / 2.0)

    def _do_full_disk(self, node: SimNode) -> None:
        node.disk.fails_until = self.world.now + self.rng.expovariate(1 / 3.0)

    def _do_promote(self, node: SimNode) -> None:
        other = self.promises.other(node)
        if node.is_awake and other.is_awake and other.epoch and not node.epoch:
            other.follow()
            node.epoch_max = max(node.epoch_max, other.epoch_max)
            node.lead()

    def _do_dual(self, node: SimNode) -> None:
        self.dual_until = self.world.now + self.rng.expovariate(1 / 1.0)
        if node.is_awake and not node.epoch:
            node.lead()

    def _do_clock(self, node: SimNode) -> None:
        if node.is_alive:
            node.drift(self.rng.choice((0.96, 1.04)))

    def _do_crash_arbiter(self, node: SimNode) -> None:
        arbiter = self.arbiter
        assert arbiter is not None
        if arbiter.is_alive:
            self._for(2.0, arbiter.crash, arbiter.start)

    def _do_cut_arbiter(self, node: SimNode) -> None:
        arbiter = self.arbiter
        assert arbiter is not None
        self._for(
            4.0,
            lambda: arbiter.set_cut(node.name, is_cut=True),
            lambda: arbiter.set_cut(node.name, is_cut=False),
        )

    # --- the end --------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        self.world.note("peace")
        self.is_peace = True
        self.is_pair_cut = False
        self.dual_until = 0.0
        if self.arbiter is not None:
            if not self.arbiter.is_alive:
                self.arbiter.start()
            for node in self.nodes:
                self.arbiter.set_cut(node.name, is_cut=False)
        for node in self.nodes:
            node.link.loss, node.link.delay_s = 0.0, 0.0005
            node.disk.stalled_until = node.disk.fails_until = 0.0
            node.thaw()
        self._mend()
        for node in self.nodes:
            if not node.is_alive:
                self._start(node)

    def _is_calm(self) -> bool:
        """True if one node leads, with both copies, and did so two seconds ago."""
        before, self._leading = (
            self._leading,
            [(n.name, n.replica.epoch, n.replica.copies) for n in self.nodes],
        )
        is_led = before == self._leading and sorted(copies for _, _, copies in before) == [1, 2]
        applied = [node.disk.durable.applied for node in self.nodes]
        return is_led and max(node.replica.last.number for node in self.nodes) - min(applied) < _BEHIND_MAX

    def _check_end(self) -> None:
        leaders = [node for node in self.nodes if node.replica.epoch]
        if len(leaders) != 1:
            raise Violation(
                "peace",
                f"{len(leaders)} nodes lead the store in peace: {[n.replica.trouble for n in self.nodes]}",
            )
        leader = leaders[0]
        follower = self.promises.other(leader)
        if leader.replica.copies != 2:
            raise Violation(
                "peace", f"the {follower.name} is not in sync in peace: {leader.replica.lag} behind"
            )
        done = min(leader.disk.durable.applied, follower.disk.durable.applied)
        tables = [
            {number: record.body for number, record in node.disk.durable.table.items() if number <= done}
            for node in (leader, follower)
        ]
        if tables[0] != tables[1]:
            raise Violation("peace", "the tables differ")
        if leader.replica.last.number - done >= _BEHIND_MAX:
            raise Violation(
                "peace", f"the tables are {leader.replica.last.number - done} entries behind the log"
            )
        self.promises.ready(leader)
        self.counts["acknowledged"] = len(self.promises.acknowledged)
        self.counts["on one disk"] = self.promises.on_one_disk
        self.counts["excused"] = self.promises.excused
        self.counts["syncs"] = sum(node.disk.syncs for node in self.nodes)


def play(
    seed: int, kinds: tuple[str, ...] = FAULTS, arbiter: Arbitration = "none", *, keep_trace: bool = False
) -> Outcome:
    """Run one seed."""
    sim = StoreSim(seed, kinds, keep_trace=keep_trace, arbiter=arbiter)
    violation = ""
    try:
        sim.run()
    except AssertionError as error:
        violation = f"{type(error).__name__}: {error}"
    return Outcome(seed, violation, sim.counts, sim.world.trace or [], sim.world.now)
