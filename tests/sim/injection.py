"""Lets the faults of a plan happen: each begins in its time, and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from bstar.settings.timing import Timing
from bstar.wire import native
from sim.arbiter import SimArbiter
from sim.attacker import Attacker
from sim.client import SimClient
from sim.emq import SimEmqClient, SimManager
from sim.faults import LIES, Fault, Kind, Mood
from sim.key_faults import KeyFaults
from sim.keys import READ_S
from sim.network import Link, LinkOwner, Paths
from sim.node import SimNode
from sim.pair import SimPair
from sim.worker import SimWorker
from sim.world import World

AnyWorker = SimWorker | SimManager
AnyClient = SimClient | SimEmqClient
Startable = SimNode | AnyWorker | AnyClient | SimArbiter | Attacker


class Injection:
    """What befalls these pairs, workers and clients. ``is_over``: nothing begins any more."""

    def __init__(
        self,
        world: World,
        mood: Mood,
        timing: Timing,
        paths: Paths,
        pairs: Mapping[str, SimPair],
        workers: Mapping[str, AnyWorker],
        clients: Mapping[str, AnyClient],
    ) -> None:
        self.is_over = False
        self.key_faults: KeyFaults | None = None  # in a run with keys
        self._world = world
        self._mood = mood
        self._timing = timing
        self._paths = paths
        self._pairs = pairs
        self._workers = workers
        self._clients = clients
        self._owners: dict[str, LinkOwner] = {**workers, **clients}
        # By the names of nodes, arbiters and workers.
        self._pair_of: dict[str, SimPair] = {
            process.name: pair for pair in pairs.values() for process in pair.processes
        } | {worker.name: pairs[worker.pair] for worker in workers.values()}

    def plan(self, fault: Fault) -> None:
        """Let it happen in its time."""
        self._world.at(fault.at, partial(self._begin, fault))

    def _begin(self, fault: Fault) -> None:
        if self.is_over:
            return
        self._world.note(
            f"fault {fault.kind.name} {fault.target} {fault.duration_s:.3f} s {fault.amount:.3f}"
        )
        until = self._world.now + fault.duration_s
        pair = self._pair_of.get(fault.target.rpartition("|")[2])
        # A client's fault concerns that client, wherever its calls went; any other one its own pair.
        first = pair or next(iter(self._pairs.values()))
        first.checks.counts["faults"] += 1
        first.checks.counts[f"fault {fault.kind.name}"] += 1
        # Nothing may follow from an attack, so it explains nothing.
        if self._mood is not Mood.QUIET and fault.kind is not Kind.ATTACK:
            if fault.kind is Kind.KEY_WITHDRAWN:
                until += READ_S
            for each in [pair] if pair is not None else self._pairs.values():
                each.checks.trouble(self._world.now, until, client=None if pair else fault.target)
        end = self._start_fault(fault, pair)
        if end is not None:
            self._world.at(self._world.now + fault.duration_s, end)

    def _start_fault(self, fault: Fault, pair: SimPair | None) -> Callable[[], None] | None:
        name = fault.kind.name
        if fault.kind is Kind.KEY_WITHDRAWN:
            assert self.key_faults is not None
            return self.key_faults.withdraw(fault.target)
        if pair is None:
            return self._start_client_fault(fault, self._clients[fault.target])
        if name.startswith("PEER"):
            return self._start_peer_fault(fault, pair)
        if name.startswith("ARBITER") or fault.kind is Kind.ISOLATED:
            return self._start_arbiter_fault(fault, pair)
        if fault.kind is Kind.SPLIT:
            return self._split(fault, pair)
        if fault.kind is Kind.CLIENTS_CUT:
            return self._cut_clients(fault)
        if name.startswith("NET"):
            return self._start_net_fault(fault)
        if fault.kind is Kind.ATTACK:
            assert self.key_faults is not None
            self.key_faults.attack(fault, pair)
            return None
        if name.startswith("LIE"):
            return self._start_lie(fault, pair)
        if name.startswith("WORKER"):
            return self._start_worker_fault(fault, self._workers[fault.target])
        node = next(node for node in pair.nodes if node.name == fault.target)
        return self._start_node_fault(fault, node)

    def _start_node_fault(self, fault: Fault, node: SimNode) -> Callable[[], None] | None:
        match fault.kind:
            case Kind.STALL:
                node.freeze()
                # In every fourth case it is frozen again in the middle of what waited.
                again_s = max(0.0, fault.amount - 0.75) * 20 * self._timing.failover_timeout_s
                if again_s and self._mood is not Mood.QUIET:
                    return partial(node.thaw_for_a_moment, again_s)
                return node.thaw
            case Kind.JUMP:
                node.jump(fault.amount)
                return None
            case Kind.HANDOVER:
                node.handover()
                return None
            case Kind.STOP:
                node.stop()
            case _:
                node.die(with_host=fault.kind is Kind.DARK)
        if fault.kind is Kind.FORGET and node.disk is not None:
            node.disk = 0
        return partial(self.revive, node)

    def _start_worker_fault(self, fault: Fault, worker: AnyWorker) -> Callable[[], None]:
        match fault.kind:
            case Kind.WORKER_STALL:
                worker.freeze()
                return worker.thaw
            case Kind.WORKER_HOLD:
                worker.hold()
                return worker.thaw
            case Kind.WORKER_SLOW:
                worker.slowness = fault.amount
                return lambda: setattr(worker, "slowness", 1.0)
            case Kind.WORKER_STOP:
                worker.stop()
            case _:
                worker.die(with_host=fault.kind is Kind.WORKER_DARK)
        return partial(self.revive, worker)

    def _start_lie(self, fault: Fault, pair: SimPair) -> Callable[[], None] | None:
        lie = LIES[int(fault.amount * len(LIES))]
        if fault.kind is Kind.LIE_WORKER:
            worker = self._workers[fault.target]
            worker.lie = lie
            return lambda: setattr(worker, "lie", 0)
        node = next(node for node in pair.nodes if node.name == fault.target)
        if fault.kind is Kind.LIE_PEER:
            pair.checks.peer_unsound(self._world.now + fault.duration_s + pair.settle_s)
        rng = self._world.rng(f"lie {fault.at}")
        liar = next(iter(self._clients.values())).user_id
        until = self._world.now + fault.duration_s

        def tell() -> None:
            if node.is_alive:
                if fault.kind is Kind.LIE_CLIENT:
                    epoch = min(node.node.machine.epochs.seen + lie, 2**64 - 1)
                    # Whoever is not connected can be told nothing, which is as good here.
                    node.hear_router(b"liar", native.encode_ping(epoch=epoch), liar)
                    if node.is_alive:
                        node.hear_router(b"liar", native.encode_heartbeat(epoch), liar)
                else:
                    node.forge_word(lie, rng)
            if self._world.now + self._timing.heartbeat_interval_s <= until:
                self._world.after(self._timing.heartbeat_interval_s, tell)

        tell()
        return None

    def _start_client_fault(self, fault: Fault, client: AnyClient) -> Callable[[], None]:
        if fault.kind is Kind.CLIENT_STALL:
            client.freeze()
            return client.thaw
        if fault.kind is Kind.CLIENT_CLOSE:
            client.close()
        else:
            client.die()
        if not client.is_alive:
            for pair in self._pairs.values():
                pair.checks.client_gone(client)
        return partial(self.revive, client)

    def revive(self, process: Startable) -> None:
        """Start it if it is not alive, as soon as it is not about to end."""
        if process.is_stopping:
            self._world.after(self._timing.heartbeat_interval_s, partial(self.revive, process))
        elif not process.is_alive:
            process.start()

    def _start_peer_fault(self, fault: Fault, pair: SimPair) -> Callable[[], None]:
        links = [pair.peer_links[fault.target]]
        if fault.kind in (Kind.PEER_CUT, Kind.PEER_JITTER, Kind.PEER_LOSS):
            links = list(pair.peer_links.values())
        paths = [link.path for link in links]
        if fault.kind not in (Kind.PEER_JITTER, Kind.PEER_REPEAT):
            pair.checks.peer_unsound(self._world.now + fault.duration_s + pair.settle_s)
        for link in links:
            path = link.path
            match fault.kind:
                case Kind.PEER_CUT | Kind.PEER_MUTE:
                    path.cuts += 1
                    link.expect_silence()
                case Kind.PEER_CHOKE:
                    path.chokes += 1
                case Kind.PEER_LOSS:
                    path.loss = fault.amount
                case Kind.PEER_JITTER:
                    path.extra_s = fault.amount
                    link.slow_down()
                case Kind.PEER_REPEAT:
                    path.duplicates = fault.amount
                case Kind.PEER_RESET:
                    link.drop()
                case _:
                    path.reorders = fault.amount
        pair.checks.travel_s_max = max(pair.checks.travel_s_max, pair.travel_s_max)

        def end() -> None:
            for path in paths:
                match fault.kind:
                    case Kind.PEER_CUT | Kind.PEER_MUTE:
                        path.cuts = max(0, path.cuts - 1)
                    case Kind.PEER_CHOKE:
                        path.chokes = max(0, path.chokes - 1)
                    case Kind.PEER_LOSS:
                        path.loss = 0.0
                    case Kind.PEER_JITTER:
                        path.extra_s = 0.0
                    case Kind.PEER_REPEAT:
                        path.duplicates = 0.0
                    case Kind.PEER_REORDER:
                        path.reorders = 0.0
                    case _:
                        pass
            for link in links:
                link.heal()

        return end

    def _start_arbiter_fault(self, fault: Fault, pair: SimPair) -> Callable[[], None]:
        arbiter = pair.arbiter
        assert arbiter is not None
        if fault.kind is Kind.ARBITER_CRASH:
            arbiter.die()
            return partial(self.revive, arbiter)
        if fault.kind is Kind.ARBITER_STALL:
            arbiter.freeze()
            return arbiter.thaw
        link = pair.arbiter_links[fault.target]
        paths = [link.there, link.back]
        if fault.kind is Kind.ARBITER_LOSS:
            for path in paths:
                path.loss = fault.amount / 2
        elif fault.kind is Kind.ARBITER_SLOW:
            for path in paths:
                path.extra_s = fault.amount * self._timing.failover_timeout_s / 2
                path.reorders = fault.amount / 2
        else:
            paths = {Kind.ARBITER_DEAF: [link.back], Kind.ARBITER_MUTE: [link.there]}.get(fault.kind, paths)
            for path in paths:
                path.cuts += 1
        end_peer = (
            self._start_peer_fault(msgspec.structs.replace(fault, kind=Kind.PEER_CUT), pair)
            if fault.kind is Kind.ISOLATED
            else None
        )

        def end() -> None:
            for path in paths:
                if fault.kind is Kind.ARBITER_LOSS:
                    path.loss = 0.0
                elif fault.kind is Kind.ARBITER_SLOW:
                    path.extra_s = path.reorders = 0.0
                else:
                    path.cuts = max(0, path.cuts - 1)
            link.heal()
            if end_peer is not None:
                end_peer()

        return end

    def _start_net_fault(self, fault: Fault) -> Callable[[], None] | None:
        if fault.kind is Kind.NET_LOSS:
            paths = self._paths.of(fault.target)
            for path in paths:
                path.loss = fault.amount / 2

            def end() -> None:
                for path in paths:
                    path.loss = 0.0

            return end
        owner, node = fault.target.split("|")
        if fault.kind is Kind.NET_RESET:
            self._link(owner, node).reset()
            return None
        ends = {(owner, node), (node, owner)}
        if fault.kind is Kind.NET_DEAF:
            ends = {(node, owner)}
        elif fault.kind is Kind.NET_MUTE:
            ends = {(owner, node)}
        return self.cut(ends)

    def _cut_clients(self, fault: Fault) -> Callable[[], None]:
        ends: set[tuple[str, str]] = set()
        for name, client in self._clients.items():
            if any(link.node.name == fault.target for link in client.links):
                ends |= {(name, fault.target), (fault.target, name)}
        return self.cut(ends)

    def _split(self, fault: Fault, pair: SimPair) -> Callable[[], None]:
        """Half of the others see one node only, half the other, and the nodes do not see each other."""
        rng = self._world.rng(f"split {fault.at}")
        ends: set[tuple[str, str]] = set()
        for name, owner in self._owners.items():
            if not any(link.node in pair.nodes for link in owner.links):
                continue
            node = rng.choice(pair.nodes).name
            ends |= {(name, node), (node, name)}
        end = self.cut(ends)
        end_arbiter = None
        if pair.arbiter is not None:
            # It is in one of the halves.
            cut_off = rng.choice(pair.nodes).name
            end_arbiter = self._start_arbiter_fault(
                msgspec.structs.replace(fault, kind=Kind.ARBITER_CUT, target=cut_off), pair
            )
        end_peer = self._start_peer_fault(
            msgspec.structs.replace(fault, kind=Kind.PEER_CUT, target=pair.primary.name), pair
        )

        def heal() -> None:
            end()
            end_peer()
            if end_arbiter is not None:
                end_arbiter()

        return heal

    def _link(self, owner: str, node: str) -> Link:
        return next(link for link in self._owners[owner].links if link.node.name == node)

    def cut(self, ends: set[tuple[str, str]]) -> Callable[[], None]:
        """Let nothing through between these; call what comes back to heal."""
        paths = [self._paths.between(*pair) for pair in sorted(ends)]
        for path in paths:
            path.cuts += 1
        for pair in sorted(ends):
            owner, node = pair if pair[0] in self._owners else pair[::-1]
            self._link(owner, node).expect_silence()

        def heal() -> None:
            for path in paths:
                path.cuts = max(0, path.cuts - 1)
                path.heal()

        return heal
