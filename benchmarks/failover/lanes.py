"""Many trials: which stand runs which, one after the other or several pairs side by side.

``auto`` and ``lan`` run one pair at a time. In ``guide`` most of a trial is waiting for seconds to pass, so
several pairs run side by side, each with a share of the trials. Cutting the network takes hosts in network
namespaces (``chaos.network``) and root; the other faults are made on the loopback interface.

A trial after which the pair does not come to rest is kept as a failure; the pair is thrown away and the next
trial begins with another. So one failure costs one trial, and three in one lane end that lane.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bstar.settings.timing import ProfileName
from bstar_testing.processes import HarnessError
from chaos.netns import what_is_missing
from chaos.network import Network
from failover.figures import Losses, Trial
from failover.stand import Stand

# Calls a second. Several pairs side by side must not make the machine their bottleneck.
RATES: dict[ProfileName, float] = {"auto": 250.0, "lan": 250.0, "wan": 100.0, "guide": 100.0}
LANES: dict[ProfileName, int] = {"auto": 1, "lan": 1, "wan": 4, "guide": 4}
FAILURES_MAX = 3


@dataclass(frozen=True)
class Plan:
    """What is to be measured."""

    profiles: Sequence[ProfileName]
    faults: Sequence[str]
    trials: int
    seed: int
    folder: Path


@dataclass
class Campaign:
    """What has been measured so far. Lanes fill it from their threads."""

    trials: list[Trial] = field(default_factory=list)
    losses: dict[tuple[str, str], Losses] = field(default_factory=dict)
    unrecovered: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: dict[str, str] = field(default_factory=dict)
    """Faults that could not be made on this machine, and why."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def take_trial(self, trial: Trial, of: int) -> None:
        """Keep one trial and say so. ``of``: how many there are to be."""
        with self.lock:
            self.trials.append(trial)
            done = sum(
                1 for each in self.trials if (each.profile, each.fault) == (trial.profile, trial.fault)
            )
            self.say(f"{trial.profile:5} {trial.fault:6} {done:3}/{of}: {trial.outage_s * 1000:6.0f} ms")

    def take_losses(self, profile: str, losses: dict[str, Losses]) -> None:
        """Keep what became of one stand's calls."""
        with self.lock:
            for fault, counts in losses.items():
                self.losses.setdefault((profile, fault), Losses()).add(counts)

    def take_failure(self, profile: str, fault: str, text: str) -> None:
        """Keep that the pair did not come to rest."""
        with self.lock:
            self.unrecovered[profile, fault] += 1
            self.say(f"{profile:5} {fault:6} FAILED\n{text}")


def run(plan: Plan) -> Campaign:
    """Measure all of it."""
    campaign = Campaign()
    if "cut" in plan.faults:
        missing = what_is_missing()
        if missing is not None:
            campaign.missing["cut"] = missing
            campaign.say(f"!!! NETWORK CUT IS NOT MEASURED: {missing}")
    for profile in plan.profiles:
        count = min(LANES[profile], plan.trials)
        lanes = [
            threading.Thread(target=_Lane(plan, profile, number, count, campaign).run)
            for number in range(count)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    return campaign


class _Lane:
    """A share of one profile's trials, one after the other."""

    def __init__(self, plan: Plan, profile: ProfileName, number: int, lanes: int, campaign: Campaign) -> None:
        self._plan = plan
        self._profile = profile
        self._number = number
        self._campaign = campaign
        self._trials = plan.trials // lanes + (number < plan.trials % lanes)
        self._stands = 0
        self._failures = 0

    def run(self) -> None:
        faults = [fault for fault in self._plan.faults if fault not in self._campaign.missing]
        for is_cut in (False, True):
            todo = [fault for fault in faults if (fault == "cut") is is_cut for _ in range(self._trials)]
            while todo and self._failures < FAILURES_MAX:
                try:
                    self._run_stand(todo)
                except Exception:  # noqa: BLE001  # whatever it is, the others go on, and it is reported
                    self._failures += 1
                    self._campaign.take_failure(self._profile, todo.pop(0), traceback.format_exc())
            for fault in todo:
                self._campaign.take_failure(self._profile, fault, "not tried: too many failures before")

    def _run_stand(self, todo: list[str]) -> None:
        """Run trials until all are done or one fails; those that are done are taken off the list."""
        self._stands += 1
        folder = self._plan.folder / f"{self._profile}-{self._number}-{self._stands}"
        with self._stand(folder, is_cut=todo[0] == "cut") as stand:
            try:
                while todo:
                    self._campaign.take_trial(stand.trial(todo[0]), self._plan.trials)
                    todo.pop(0)
            except HarnessError as error:
                error.add_note(stand.cluster.trouble())
                raise
            finally:
                # Also after a failure: what its calls came to is counted with the rest.
                self._campaign.take_losses(self._profile, stand.losses())

    @contextmanager
    def _stand(self, folder: Path, *, is_cut: bool) -> Iterator[Stand]:
        rate = RATES[self._profile]
        seed = self._plan.seed + 1000 * self._number + self._stands
        if not is_cut:
            with Stand(folder, self._profile, rate=rate, seed=seed) as stand:
                yield stand
            return
        with (
            Network(["primary", "backup", "clients"], seed=seed) as network,
            Stand(
                folder,
                self._profile,
                rate=rate,
                seed=seed,
                hosts={"primary": network["primary"], "backup": network["backup"]},
                clients_host=network["clients"],
                isolate=network.isolate,
            ) as stand,
        ):
            yield stand
