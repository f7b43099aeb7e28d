"""Run a command and see what it takes: wall-clock, CPU and peak memory of all its processes together."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAMPLE_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):  # noqa: N818 - it is what happened
    """The command ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``peak_bytes``: the largest sum of the resident sets of the process and all that it started, of samples
    taken five times a second; ``cpu_s``: the CPU time of all of them. ``told``: the last line of its output,
    which is JSON.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    told: dict[str, Any]


def run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Cost:
    """Run it to its end; what it says on stderr goes to ``log``."""
    sampled = _Samples()
    ended = threading.Event()
    begun = time.perf_counter()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=errors
        )

        def sample() -> None:
            while not ended.wait(_SAMPLE_S):
                sampled.take(process.pid)

        sampler = threading.Thread(target=sample, name="samples")
        sampler.start()
        try:
            out, _ = process.communicate()
        finally:
            ended.set()
            sampler.join()
    wall_s = time.perf_counter() - begun
    if process.returncode:
        raise Failed(f"{' '.join(command)}: status {process.returncode}\n{_end(log)}")
    return Cost(wall_s, sum(sampled.cpu_s.values()), sampled.peak_bytes, json.loads(out.splitlines()[-1]))


class _Samples:
    """Of a process and all its descendants: the most memory, and the last seen of each one's CPU."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.cpu_s: dict[int, float] = {}

    def take(self, root: int) -> None:
        children: dict[int, list[int]] = {}
        found: dict[int, tuple[float, int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # The name, in parentheses, may contain anything; after it: state, parent, …
                told = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            pid = int(folder.name)
            children.setdefault(int(told[1]), []).append(pid)
            found[pid] = (int(told[11]) + int(told[12])) / _TICKS, int(told[21]) * _PAGE
        resident, waiting = 0, [root]
        while waiting:
            pid = waiting.pop()
            waiting += children.get(pid, [])
            if pid in found:
                self.cpu_s[pid], in_memory = found[pid]
                resident += in_memory
        self.peak_bytes = max(self.peak_bytes, resident)


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
