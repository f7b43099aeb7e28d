"""One pair under a steady load, and what is done to its active node.

A ``Stand`` has two nodes, two workers and one client process that makes calls from several threads through
one HAClient, each with a body of its own. ``trial`` makes one fault, waits until the client is served by the
successor, and then makes the pair whole again. Nothing is awaited by sleeping: nodes tell their state over
HTTP, workers and the client write histories. The one pause is part of the measurement: a fault comes at a
random moment between two heartbeats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from bstar.settings import RoleName
from bstar.settings.timing import ProfileName, timing_of
from bstar.star.failure_detector import START_S
from bstar_testing.hosts import Host
from bstar_testing.nodes import Node
from bstar_testing.pairs import Route, direct
from bstar_testing.processes import HarnessError
from chaos.cluster import Cluster, Profile
from chaos.history import ClientSaw, Ok, Tail, read
from chaos.traffic import ClientLoad, ClientProcess, WorkerLoad
from failover.figures import Losses, Trial, count_losses, longest_gap

WORKERS = 2
# Short executions, all of them idempotent: what is measured is the pair, not the work.
WORKER_LOAD = WorkerLoad(credit=4, work_ms=2.0)
# Longer than any failover here takes; a call that needs more has failed.
DEADLINE_S = 20.0
# Enough replies under the successor to see that it goes on, and before a fault, that all is well.
ANSWERS_AFTER = 40
ANSWERS_BEFORE = 20
ANSWERS_OF_CONTROL = 60

Isolation = Callable[[RoleName], AbstractContextManager[object]]


class Follower:
    """Reads a client's history while it grows."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self._tail = Tail(client.history_path)
        self.reply_times: list[float] = []
        self._epochs: list[int] = []
        self._connected_at: dict[str, float] = {}

    def look(self) -> None:
        """Take in what is new."""
        for line in self._tail.more():
            if isinstance(line, Ok):
                self.reply_times.append(line.at)
                self._epochs.append(line.epoch)
            elif isinstance(line, ClientSaw) and line.event == "Connected":
                self._connected_at[line.endpoint] = line.at

    def wait_for_answers(self, count: int, *, above_epoch: int = -1) -> None:
        """Wait for so many replies from now on, under a higher epoch than this one."""
        self.look()
        seen = len(self.reply_times)
        left = count

        def have_come() -> bool:
            nonlocal seen, left
            self.look()
            left -= sum(epoch > above_epoch for epoch in self._epochs[seen:])
            seen = len(self._epochs)
            return left <= 0

        self._client.wait_until(have_come, f"{count} answers above epoch {above_epoch}")

    def wait_connected(self, endpoint: str, since: float) -> None:
        """Wait until the client is connected with a node again."""

        def is_connected() -> bool:
            self.look()
            return self._connected_at.get(endpoint, 0.0) > since

        self._client.wait_until(is_connected, f"connected with {endpoint}")


class Stand:
    """A pair of one profile. ``isolate`` cuts a node off the network, where the hosts can do that.
    ``padding_bytes`` makes the requests of its client so much longer.
    """

    def __init__(
        self,
        folder: Path,
        profile: ProfileName,
        *,
        rate: float,
        seed: int,
        hosts: Mapping[RoleName, Host] | None = None,
        clients_host: Host | None = None,
        route: Route = direct,
        isolate: Isolation | None = None,
        padding_bytes: int = 0,
    ) -> None:
        self.profile = profile
        self.trials: list[Trial] = []
        self._isolate = isolate
        self._random = random.Random(seed)
        self._timing = timing_of(profile)
        self.cluster = Cluster(folder, profile=Profile(profile), hosts=hosts, route=route)
        try:
            self.cluster.start()
            for _ in range(WORKERS):
                self.cluster.add_worker(host=clients_host, load=WORKER_LOAD)
            # As many threads as calls may wait during an outage, and enough of them to keep the rate.
            load = ClientLoad(
                threads=max(4, int(rate / 20)),
                rate=rate,
                deadline_s=DEADLINE_S,
                bound_every=0,
                padding_bytes=padding_bytes,
            )
            self.client = self.cluster.add_client(host=clients_host, load=load)
            self.follower = Follower(self.client)
            self._restored(self.cluster.backup)
        except BaseException:
            self.cluster.close()
            raise

    def trial(self, fault: str) -> Trial:
        """Make a fault at the active node and wait for the successor; then make the pair whole."""
        active = self.cluster.active()
        state = active.look()
        assert state is not None, f"the {active.role} was active a moment ago"
        epoch = state.pair.epoch
        self.follower.wait_for_answers(ANSWERS_BEFORE)
        time.sleep(self._random.uniform(0, self._timing.heartbeat_interval_s))
        with FAULTS[fault](self, active) as fault_at:
            if fault == "none":
                self.follower.wait_for_answers(ANSWERS_OF_CONTROL)
            else:
                self.follower.wait_for_answers(ANSWERS_AFTER, above_epoch=epoch)
            until = time.monotonic()
        self.follower.look()
        outage_s = longest_gap(self.follower.reply_times, fault_at, until)
        trial = Trial(self.profile, fault, fault_at, outage_s)
        self.trials.append(trial)
        return trial

    def mark(self, what: str, began: float, gap_s: float) -> None:
        """Count the calls from then on under this name."""
        self.trials.append(Trial(self.profile, what, began, gap_s))

    # --- what is done to the active node ------------------------------------------------------------------

    @contextmanager
    def none(self, active: Node) -> Iterator[float]:
        """Nothing: what the same figure is on an ordinary day."""
        yield time.monotonic()

    @contextmanager
    def kill(self, active: Node) -> Iterator[float]:
        """SIGKILL."""
        fault_at = time.monotonic()
        active.kill()
        yield fault_at
        self._start_again(active)

    @contextmanager
    def stop(self, active: Node) -> Iterator[float]:
        """SIGTERM: a planned stop, which hands the role over."""
        fault_at = time.monotonic()
        active.terminate()
        yield fault_at
        code = active.wait_exit()
        if code != 0:
            raise HarnessError(f"the {active.role} ended with {code} on SIGTERM\n{active.trouble()}")
        self._start_again(active)

    @contextmanager
    def freeze(self, active: Node) -> Iterator[float]:
        """SIGSTOP: it is there and does nothing."""
        fault_at = time.monotonic()
        active.pause()
        yield fault_at
        self._outlast_maximum(fault_at)
        active.resume()
        self._restored(active)

    @contextmanager
    def cut(self, active: Node) -> Iterator[float]:
        """Every packet from and to its host is lost; the host and its processes live."""
        assert self._isolate is not None, "these hosts cannot be cut off"
        fault_at = time.monotonic()
        with self._isolate(active.role):
            yield fault_at
            self._outlast_maximum(fault_at)
        # TCP backs off: what it could not send goes out as much later as the network was cut.
        self._outlast_maximum(time.monotonic())
        self._restored(active)

    def _outlast_maximum(self, fault_at: float) -> None:
        """Wait until the outage is longer than the maximum of a timeout that adapts. Then the pair learns
        nothing from it, and the next trial finds it as this one did.
        """
        timing = self._timing
        if timing.failover_timeout_max_s > timing.failover_timeout_s:
            until = fault_at + timing.failover_timeout_max_s + 2 * timing.heartbeat_interval_s
            time.sleep(max(0.0, until - time.monotonic()))

    def _start_again(self, node: Node) -> None:
        began = time.monotonic()
        node.start()
        self.follower.wait_connected(node.endpoint, began)
        self._restored(node)

    def _restored(self, passive: Node) -> None:
        """Wait until this node stands by, and both know each other, all workers, and how late they are."""
        timing = self._timing
        known_s = max(timing.failover_timeout_s, START_S - timing.heartbeat_interval_s)
        passive.wait_for(
            "PASSIVE beside its peer, with all workers",
            lambda state: (
                state.pair.state == "PASSIVE"
                and state.pair.is_peer_fresh
                and state.pair.failover_timeout_s <= known_s
                and state.broker.workers == WORKERS
            ),
        )
        self.cluster.peer_of(passive).wait_for(
            "ACTIVE beside its peer, with all workers",
            lambda state: (
                state.pair.is_active
                and state.pair.failover_timeout_s <= known_s
                and state.pair.is_peer_fresh
                and state.pair.peer_state == "PASSIVE"
                and state.broker.workers == WORKERS
            ),
        )

    # --- the end ------------------------------------------------------------------------------------------

    def losses(self) -> dict[str, Losses]:
        """End the traffic in good order; what became of the calls, by fault."""
        self.cluster.finish_traffic()
        workers = [worker.history() for worker in self.cluster.workers]
        return count_losses(self.trials, read(self.client.history_path), workers)

    def close(self) -> None:
        """Kill what still runs. Idempotent."""
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


FAULTS: dict[str, Callable[[Stand, Node], AbstractContextManager[float]]] = {
    "none": Stand.none,
    "kill": Stand.kill,
    "stop": Stand.stop,
    "freeze": Stand.freeze,
    "cut": Stand.cut,
}
