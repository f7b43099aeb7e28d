"""A run over many seeds on every core, and the state file with which a later call goes on.

A long run ends by Ctrl-C, SIGKILL or power as it may: what was done is in the file, but for the last seconds.
The file is named after the options and the digest of all sources that are tested, so no figure is of two
versions.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import msgspec

from bstar.host.whole_file import write_whole

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".cache" / "sim"
_SOURCES = (
    "bstar/bstar", "broker/bstar_broker", "client/bstar_client", "testing/bstar_testing", "tests/sim",
    "tests/store_sim", "tests/support",
)  # fmt: skip
# Seeds handed to a process at once: enough to keep it busy while another one is answered.
_BATCH = 4
_SAVE_S = 5.0
# How often progress is shown on a terminal, in a log, and in the log of a long run.
_TERMINAL_S, _LOG_S, _LONG_LOG_S = 1.0, 5.0, 60.0


class Result(msgspec.Struct):
    """What a seed came to. ``violation`` is "" if every rule was kept."""

    seed: int
    violation: str
    simulated_s: float
    counts: dict[str, int]
    dual_s_max: float = 0.0
    cpu_s: float = 0.0


class State(msgspec.Struct):
    """What is stored. All seeds below ``next_seed`` are done, and those in ``done``."""

    next_seed: int
    done: set[int] = msgspec.field(default_factory=set)
    runs: int = 0
    simulated_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    dual_s_max: float = 0.0
    violations: list[tuple[int, str]] = msgspec.field(default_factory=list)


class Campaign:
    """``play`` runs in other processes and takes a seed. The run is over after ``runs`` seeds or ``hours``
    simulated hours. ``key``: the options of a run that a later call may go on with; "" stores nothing.
    """

    def __init__(
        self,
        play: Callable[[int], Result],
        *,
        first: int,
        runs: int | None = None,
        hours: float | None = None,
        key: str = "",
        processes: int = 1,
        repeat: Callable[[int], str],
    ) -> None:
        assert (runs is None) != (hours is None)
        self._play = play
        self._runs, self._hours = runs, hours
        self._processes = processes
        self._repeat = repeat
        self.path = None if not key else _FOLDER / f"{_digest(f'{first} {key}')}.json"
        self.state = State(first)
        if self.path is not None and self.path.exists():
            self.state = msgspec.json.decode(self.path.read_bytes(), type=State)
            for seed, text in self.state.violations:
                self._report(seed, text)
            print(f"goes on after {self.line}\nremove {self.path} to begin anew", flush=True)

    # --- progress -------------------------------------------------------------------------------------------

    @property
    def hours(self) -> float:
        """Simulated hours so far."""
        return self.state.simulated_s / 3600

    @property
    def line(self) -> str:
        """How far it is, and how fast it was over all calls."""
        state = self.state
        whole = f" of {self._hours:g}" if self._hours is not None else ""
        speed = self.hours / state.real_s if state.real_s else 0.0
        cost_s = state.cpu_s / self.hours if self.hours else 0.0
        calls = state.counts.get("calls", state.counts.get("acknowledged", 0))
        return (
            f"{state.runs} runs, {self.hours:.1f}{whole} simulated hours in {state.real_s:.0f} s "
            f"({speed:.2f} simulated hours per second, {cost_s:.2f} CPU s an hour), "
            f"{state.counts.get('faults', 0)} faults, {calls} calls, {len(state.violations)} violations"
        )

    def _report(self, seed: int, text: str) -> None:
        print(f"\nseed {seed}: VIOLATION {text}\nrepeat:     {self._repeat(seed)}", flush=True)

    def _show(self, *, is_last: bool = False) -> None:
        is_line = is_last or not sys.stdout.isatty()
        print(f"{self.line}\n" if is_line else f"\r\x1b[K{self.line}", end="", flush=True)

    # --- the run --------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Play; False if it was interrupted by Ctrl-C. Either way ``state`` is what was complete by then."""
        state, seeds = self.state, self._seeds()
        futures: set[Future[Result]] = set()
        interval_s = _LONG_LOG_S if self.path is not None else _LOG_S
        if sys.stdout.isatty():
            interval_s = _TERMINAL_S
        at = shown = saved = time.perf_counter()
        # Ctrl-C goes to every process of the terminal; only this one acts on it.
        with ProcessPoolExecutor(self._processes, initializer=_begin_process) as pool:
            try:
                while True:
                    while len(futures) < _BATCH * self._processes and (seed := next(seeds, None)) is not None:
                        futures.add(pool.submit(_timed, self._play, seed))
                    if not futures:
                        break
                    done, futures = wait(futures, return_when=FIRST_COMPLETED)
                    now = time.perf_counter()
                    state.real_s += now - at
                    at = now
                    for future in done:
                        self._take(future.result())
                    if now > shown + interval_s:
                        shown = now
                        self._show()
                    if now > saved + _SAVE_S:
                        saved = now
                        self._save()
            except KeyboardInterrupt:
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)
                self._save()
                pool.shutdown(cancel_futures=True)
                signal.signal(signal.SIGINT, before)
                print("\ninterrupted; what was complete by then:", flush=True)
                self._show(is_last=True)
                if self.path is not None:
                    print("the same command goes on from here", flush=True)
                return False
        self._save()
        self._show(is_last=True)
        return True

    def _seeds(self) -> Iterator[int]:
        state = self.state
        seed, last = state.next_seed, None
        if self._runs is not None:
            last = state.next_seed + self._runs
        while seed != last and (self._hours is None or self.hours < self._hours):
            if seed not in state.done:
                yield seed
            seed += 1

    def _take(self, result: Result) -> None:
        state = self.state
        state.done.add(result.seed)
        while state.next_seed in state.done:
            state.done.remove(state.next_seed)
            state.next_seed += 1
        state.runs += 1
        state.simulated_s += result.simulated_s
        state.cpu_s += result.cpu_s
        state.dual_s_max = max(state.dual_s_max, result.dual_s_max)
        counts = Counter(state.counts)
        counts.update(result.counts)
        state.counts = dict(counts)
        if result.violation:
            state.violations.append((result.seed, result.violation))
            self._report(result.seed, result.violation)

    def _save(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, msgspec.json.encode(self.state))


def _digest(key: str) -> str:
    """Of these options and of every source file."""
    digest = hashlib.sha256(key.encode())
    for folder in _SOURCES:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _timed(play: Callable[[int], Result], seed: int) -> Result:
    began_s = time.process_time()
    result = play(seed)
    result.cpu_s = time.process_time() - began_s
    return result


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        # A pool's process would wait for ever for the next seed of a parent that was killed.
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
