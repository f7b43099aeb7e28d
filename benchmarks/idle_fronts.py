"""CPU that an idle node needs without fronts and with all of them: 30 seconds, both pairs at the same time.

.venv/bin/python benchmarks/idle_fronts.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bstar_testing import Pair

SECONDS = 30.0
DOORS = (
    "fronts.ppp.clients",
    "fronts.ppp.workers",
    "fronts.pzq.producers",
    "fronts.pzq.consumers",
    "fronts.pzq.monitor",
    "fronts.emq.clients",
    "fronts.emq.workers",
    "fronts.emq.admin",
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def main() -> None:
    """Print a line for each node."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder) / "off", has_store=True) as off,
        Pair(Path(folder) / "on", has_store=True, doors=DOORS) as on,
    ):
        pids = {}
        for name, pair in (("off", off), ("on", on)):
            pair.start()
            pids |= {f"{name}, active": pair.primary.pid, f"{name}, passive": pair.backup.pid}
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        began = time.monotonic()
        time.sleep(SECONDS)
        elapsed = time.monotonic() - began
        for name, pid in pids.items():
            print(f"fronts {name}: {(cpu_s(pid) - before[name]) / elapsed:.2%} of a core")


if __name__ == "__main__":
    main()
