"""Journals of pairs to which something happens, told record by record: a scene is a pair of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from bstar import records
from support.journals import AT_US, Run

MS = 1_000
S = 1_000_000
END = 60 * S
_EVERY = 50 * MS
_TOOK = 2 * MS


class Scene:
    """A pair with two clients and a worker. The primary serves from 1 s after ``at_us`` on."""

    def __init__(self, pair: str, *, has_calls: bool = True, at_us: int = AT_US) -> None:
        self.pair, self.has_calls, self._at_us = pair, has_calls, at_us
        self.runs: list[Run] = []
        self.number = 0
        self.dead: list[Run] = []
        """They write no more."""
        self._boots = 0
        self.primary, self.backup = (self.begin(node, 0) for node in ("primary", "backup"))
        self.client = self.begin("client-1", 0, "client")
        self.worker = self.begin("worker-1", 0, "worker")
        self.primary.add(records.PeerSeen, S // 2, peer="BACKUP", peer_boot=self.backup.boot)
        self.backup.add(records.PeerSeen, S // 2, peer="PRIMARY", peer_boot=self.primary.boot)
        self.activate(self.primary, S, "PRIMARY", "PEER_BACKUP", 1)
        self.backup.state(S, "BACKUP", "PASSIVE", "PEER_ACTIVE")

    def begin(self, node: str, t_us: int, source: str = "broker") -> Run:
        self._boots += 1
        boot = f"{self._boots:04d}{self.pair.encode().hex()}".ljust(32, "0")[:32]
        run = Run(node, pair=self.pair, boot=boot, at_us=self._at_us)
        timing = {"heartbeat_us": 100 * MS, "failover_timeout_us": 300 * MS} if source == "broker" else {}
        run.start(t_us, source, service="echo" if source == "worker" else "", **timing)
        self.runs.append(run)
        return run

    def activate(self, node: Run, t_us: int, old: str, event: str, epoch: int) -> None:
        node.state(t_us, old, "ACTIVE", event, epoch=epoch)
        node.add(records.Activated, t_us, epoch=epoch, text=event)

    def request(
        self,
        node: Run,
        asked: int,
        ended: int,
        *,
        attempts: int = 1,
        busy: int = MS,
        total: int = 0,
        epoch: int = 1,
    ) -> None:
        """One that is answered at ``ended``; a node has it for ``total``, at most since it was asked."""
        self.number += 1
        client = f"c{self.number % 2 + 1}"
        total = total or min(ended - asked, _TOOK)
        is_repeated = attempts > 1
        self.worker.execution(
            ended,
            client,
            self.number,
            busy_us=busy,
            epoch=epoch,
            reply_crc=self.number,
            is_repeated=is_repeated,
        )
        node.request(
            ended, client, self.number, total_us=total, busy_us=busy, epoch=epoch, is_repeated=is_repeated
        )
        if self.has_calls:
            self.client.call(
                ended, client, self.number, total_us=ended - asked, attempts=attempts, reply_crc=self.number
            )

    def serve(self, node: Run, since: int, until: int, every: int = _EVERY, epoch: int = 1) -> None:
        for asked in range(since, until, every):
            self.request(node, asked, asked + _TOOK, epoch=epoch)

    def wait(
        self, node: Run, since: int, until: int, *, count: int = 3, epoch: int = 1, attempts: int = 2
    ) -> None:
        """Calls that begin right after ``since`` and are answered right after ``until``."""
        for turn in range(count):
            self.request(node, since + turn * MS, until + turn * MS, attempts=attempts, epoch=epoch)

    def expire(self, asked: int, ended: int, *, node: Run | None = None) -> None:
        """A call whose deadline passes."""
        self.number += 1
        if self.has_calls:
            self.client.call(ended, "c1", self.number, "timeout", total_us=ended - asked)
        if node is not None:
            node.request(ended, "c1", self.number, "expired", total_us=ended - asked, deliveries=0, worker="")

    def lose(self, witness: Run, t_us: int, reason: str = "gone", silent: int = 20 * MS) -> None:
        witness.add(records.PeerLost, t_us, reason=reason, silent_us=silent)

    def end(self, t_us: int = END) -> None:
        """What did not die stops in good order."""
        for run in self.runs:
            if run not in self.dead:
                run.add(records.Stopped, t_us, reason="SIGTERM")


class Plot(NamedTuple):
    """``kinds``: of the incidents beside the pair's start and its end, in order. ``without``: the same where
    clients keep no journals, if it differs.
    """

    play: Callable[[Scene], None]
    kinds: tuple[str, ...]
    without: tuple[str, ...] | None = None


def _whole(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 30 * S)


def _quiet(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 5 * S)
    scene.serve(scene.primary, 25 * S, 30 * S)


def _slow(scene: Scene) -> None:
    """A handler works for 5 s; another request waits behind it."""
    scene.serve(scene.primary, 2 * S, 5 * S)
    scene.request(scene.primary, 5 * S, 10 * S, busy=5 * S - MS, total=5 * S)
    scene.request(scene.primary, 5 * S, 10 * S + MS, busy=MS, total=5 * S + MS)
    scene.serve(scene.primary, 11 * S, 20 * S)


def _taken(scene: Scene, at: int, *, reason: str, gap: int) -> None:
    """The primary is killed; the backup serves after ``gap``."""
    scene.serve(scene.primary, 2 * S, at)
    scene.dead.append(scene.primary)
    scene.lose(scene.backup, at + gap - 5 * MS, reason, gap)
    scene.activate(scene.backup, at + gap - 4 * MS, "PASSIVE", "CLIENT_REQUEST", 2)
    scene.wait(scene.backup, at + MS, at + gap, epoch=2)
    scene.serve(scene.backup, at + gap + 10 * MS, 30 * S, epoch=2)


def _killed(scene: Scene) -> None:
    _taken(scene, 10 * S, reason="gone", gap=21 * MS)


def _cut_off_machine(scene: Scene) -> None:
    _taken(scene, 10 * S, reason="silent", gap=480 * MS)


def _killed_again(scene: Scene) -> None:
    _taken(scene, 10 * S, reason="gone", gap=150 * MS)
    again = scene.begin("primary", 15 * S)
    again.add(records.PeerSeen, 15 * S + 10 * MS, peer="ACTIVE", peer_boot=scene.backup.boot)
    scene.backup.add(records.PeerSeen, 30 * S, peer="PRIMARY", peer_boot=again.boot)


def _passive_killed(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.dead.append(scene.backup)
    scene.lose(scene.primary, 10 * S + 5 * MS)
    scene.serve(scene.primary, 10 * S + 10 * MS, 30 * S)


def _both(scene: Scene, apart: int, gap: int) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.dead += [scene.primary, scene.backup]
    if apart:
        scene.lose(scene.backup, 10 * S + 5 * MS)
        scene.activate(scene.backup, 10 * S + 6 * MS, "PASSIVE", "CLIENT_REQUEST", 2)
        scene.serve(scene.backup, 10 * S + 20 * MS, 10 * S + apart, epoch=2)
    down = 10 * S + apart
    again = scene.begin("primary", down + gap - 300 * MS)
    scene.activate(again, down + gap - 10 * MS, "PRIMARY", "CLIENT_REQUEST", 3)
    scene.wait(again, down + MS, down + gap, epoch=3)
    scene.serve(again, down + gap + 10 * MS, 40 * S, epoch=3)
    other = scene.begin("backup", 41 * S)
    again.add(records.PeerSeen, 41 * S + 10 * MS, peer="BACKUP", peer_boot=other.boot)


def _both_killed(scene: Scene) -> None:
    _both(scene, 0, 12 * S)


def _one_after_the_other(scene: Scene) -> None:
    _both(scene, 2 * S, 8 * S)


def _paused(scene: Scene, gap: int, *, is_noticed: bool) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    began, ended = 10 * S, 10 * S + gap
    if is_noticed:
        scene.lose(scene.backup, began + 300 * MS, "silent", 320 * MS)
        scene.activate(scene.backup, began + 310 * MS, "PASSIVE", "CLIENT_REQUEST", 2)
        scene.wait(scene.backup, began + MS, began + 330 * MS, epoch=2)
        scene.serve(scene.backup, began + 340 * MS, 30 * S, epoch=2)
        scene.primary.add(records.Stalled, ended, gap_us=gap)
        scene.primary.state(ended, "ACTIVE", "PASSIVE", "STALL", epoch=1)
        scene.primary.add(records.Deactivated, ended, epoch=1, text="STALL")
        scene.backup.add(records.PeerSeen, 30 * S + MS, peer="PASSIVE", peer_boot=scene.primary.boot)
    else:
        scene.primary.add(records.Stalled, ended, gap_us=gap)
        scene.wait(scene.primary, began + MS, ended + 2 * MS, attempts=1)
        scene.serve(scene.primary, ended + 10 * MS, 30 * S)


def _stalled(scene: Scene) -> None:
    _paused(scene, 210 * MS, is_noticed=False)


def _stalled_for_a_moment(scene: Scene) -> None:
    _paused(scene, 60 * MS, is_noticed=False)


def _frozen(scene: Scene) -> None:
    _paused(scene, 3 * S, is_noticed=True)


def _passive_stalled(scene: Scene) -> None:
    scene.backup.add(records.Stalled, 10 * S, gap_us=200 * MS)
    scene.serve(scene.primary, 2 * S, 30 * S)


def _away(scene: Scene) -> None:
    """No worker for 4 s, and for good: some wait and are answered, others expire."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.expire(10 * S + MS, 12 * S, node=scene.primary)
    for turn in range(3):
        scene.request(scene.primary, 10 * S + turn * MS, 14 * S + turn * MS, total=4 * S)
    scene.serve(scene.primary, 15 * S, 30 * S)


def _away_before_a_stop(scene: Scene) -> None:
    """The active node is stopped 0.7 s after the only worker, away for 6.8 s, is back."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    back = 16 * S + 800 * MS
    for turn in range(3):
        asked, ended = 10 * S + turn * MS, back + turn * MS
        scene.request(scene.primary, asked, ended, total=ended - asked)
    stop = back + 700 * MS
    scene.serve(scene.primary, back + 50 * MS, stop)
    scene.primary.add(records.Stopping, stop)
    scene.primary.state(stop, "ACTIVE", "PASSIVE", "LEAVE", epoch=1)
    scene.primary.add(records.Deactivated, stop, epoch=1, text="LEAVE")
    scene.lose(scene.backup, stop + MS, "left")
    scene.activate(scene.backup, stop + 2 * MS, "PASSIVE", "PEER_PASSIVE", 2)
    scene.serve(scene.backup, stop + 3 * MS, 30 * S, epoch=2)
    scene.primary.add(records.Stopped, stop + 2 * S, reason="SIGTERM")
    scene.dead.append(scene.primary)


def _away_before_a_stall(scene: Scene) -> None:
    """A stall that one request waits for, 0.3 s after the only worker, away for 4.8 s, is back."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    back = 14 * S + 800 * MS
    for turn in range(3):
        asked, ended = 10 * S + turn * MS, back + turn * MS
        scene.request(scene.primary, asked, ended, total=ended - asked)
    stall = back + 300 * MS
    scene.serve(scene.primary, back + 50 * MS, stall)
    scene.primary.add(records.Stalled, stall + 105 * MS, gap_us=105 * MS)
    scene.request(scene.primary, stall, stall + 107 * MS, total=107 * MS)
    scene.serve(scene.primary, stall + 150 * MS, 30 * S)


def _stalled_while_away(scene: Scene) -> None:
    """A stall of 0.2 s in the middle of 6 s without a worker."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.add(records.Stalled, 13 * S, gap_us=200 * MS)
    for turn in range(3):
        scene.request(scene.primary, 10 * S + turn * MS, 16 * S + turn * MS, total=6 * S)
    scene.serve(scene.primary, 17 * S, 30 * S)


def _alone(scene: Scene) -> None:
    """One request waits alone."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.request(scene.primary, 10 * S, 13 * S, total=3 * S)
    scene.serve(scene.primary, 14 * S, 30 * S)


def _handed_over(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.state(10 * S, "ACTIVE", "PASSIVE", "HANDOVER", epoch=1)
    scene.primary.add(records.Deactivated, 10 * S, epoch=1, text="HANDOVER")
    scene.activate(scene.backup, 10 * S + 8 * MS, "PASSIVE", "PEER_PASSIVE", 2)
    scene.wait(scene.backup, 10 * S + MS, 10 * S + 130 * MS, epoch=2)
    scene.serve(scene.backup, 10 * S + 150 * MS, 30 * S, epoch=2)


def _stopped(scene: Scene) -> None:
    """The active node is stopped. It writes on for 2 s after it left, and its peer misses it meanwhile."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.add(records.Stopping, 10 * S)
    scene.primary.state(10 * S, "ACTIVE", "PASSIVE", "LEAVE", epoch=1)
    scene.primary.add(records.Deactivated, 10 * S, epoch=1, text="LEAVE")
    scene.lose(scene.backup, 10 * S + 300 * MS, "silent", 290 * MS)
    scene.activate(scene.backup, 10 * S + 301 * MS, "PASSIVE", "CLIENT_REQUEST", 2)
    scene.wait(scene.backup, 10 * S + MS, 10 * S + 310 * MS, epoch=2)
    scene.serve(scene.backup, 10 * S + 320 * MS, 30 * S, epoch=2)
    scene.primary.add(records.Stopped, 12 * S, reason="SIGTERM")
    scene.dead.append(scene.primary)


def _partition(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 30 * S)
    for node in (scene.primary, scene.backup):
        scene.lose(node, 10 * S + 350 * MS, "silent", 350 * MS)
        node.add(records.PeerSeen, 20 * S, peer="ACTIVE", peer_boot="")


def _deadlines(scene: Scene) -> None:
    """Both nodes are gone for 8 s, and calls end at their deadlines meanwhile."""
    scene.serve(scene.primary, 2 * S, 4 * S)
    scene.dead += [scene.primary, scene.backup]
    for asked in range(4 * S, 12 * S, 200 * MS):
        scene.expire(asked, asked + 2 * S)
    again = scene.begin("primary", 11 * S)
    scene.activate(again, 14 * S, "PRIMARY", "CLIENT_REQUEST", 3)
    scene.wait(again, 13 * S, 14 * S + 20 * MS, epoch=3)
    scene.serve(again, 14 * S + 50 * MS, 16 * S, epoch=3)
    scene.begin("backup", 20 * S)


def _not_started(scene: Scene) -> None:
    """The backup is killed, and another process has its port when it starts again."""
    _passive_killed(scene)
    again = scene.begin("backup", 40 * S)
    again.add(records.Stopped, 40 * S + 10 * MS, reason="did not start")
    scene.dead.append(again)


def _lost(scene: Scene) -> None:
    """A node and a worker know a request of which the client has no outcome."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.request(20 * S, "c1", 9_001)
    scene.worker.execution(20 * S - MS, "c1", 9_001)


def _unseen(scene: Scene) -> None:
    """A request of a client without a journal, long after the others."""
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.request(20 * S, "c9", 1)
    scene.worker.execution(20 * S - MS, "c9", 1)


def _executed_twice(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.request(scene.primary, 20 * S, 20 * S + _TOOK)
    scene.worker.execution(21 * S, f"c{scene.number % 2 + 1}", scene.number, reply_crc=scene.number)


def _answered_twice(scene: Scene) -> None:
    scene.serve(scene.primary, 2 * S, 10 * S)
    scene.primary.request(21 * S, f"c{scene.number % 2 + 1}", scene.number)


_SCENES = {
    "whole": Plot(_whole, ()),
    "quiet": Plot(_quiet, ()),
    "slow": Plot(_slow, ()),
    "killed": Plot(_killed, ("crash",)),
    "machine": Plot(_cut_off_machine, ("crash",)),
    "again": Plot(_killed_again, ("crash",)),
    "passive": Plot(_passive_killed, ("crash",)),
    "both": Plot(_both_killed, ("both-crash",)),
    "in-turn": Plot(_one_after_the_other, ("both-crash",)),
    "deadlines": Plot(_deadlines, ("both-crash",)),
    "stalled": Plot(_stalled, ("pause",), ()),
    "moment": Plot(_stalled_for_a_moment, ()),
    "frozen": Plot(_frozen, ("pause",)),
    "standby": Plot(_passive_stalled, ()),
    "away": Plot(_away, ("outage",)),
    "away-stop": Plot(_away_before_a_stop, ("outage", "stop")),
    "away-stall": Plot(_away_before_a_stall, ("outage",)),
    "stall-away": Plot(_stalled_while_away, ("outage",)),
    "alone": Plot(_alone, ()),
    "handover": Plot(_handed_over, ("handover",)),
    "stopped": Plot(_stopped, ("stop",)),
    "partition": Plot(_partition, ("partition",)),
    "no-port": Plot(_not_started, ("crash", "stop")),
    "lost": Plot(_lost, ()),
    "unseen": Plot(_unseen, ()),
    "executed": Plot(_executed_twice, ()),
    "answered": Plot(_answered_twice, ()),
}


# Each scene twice: with its clients' journals, and without.
PAIRS = [f"{name}-{journals}" for name in _SCENES for journals in ("calls", "nodes")]


@cache
def all_scenes() -> dict[str, tuple[Scene, Plot]]:
    """Played, by the pair."""
    played = {}
    for pair in PAIRS:
        name, _, journals = pair.rpartition("-")
        scene = Scene(pair, has_calls=journals == "calls")
        _SCENES[name].play(scene)
        scene.end()
        played[pair] = scene, _SCENES[name]
    return played
