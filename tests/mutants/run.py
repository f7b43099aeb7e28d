"""Runs mutants: each in a copy of the tree, by the tests that its entry names.

pytest ends with 1 if a test failed: the mutant is *caught*. It *survived* if all passed. Anything else (a
module that cannot be imported, a test that is not there, no end in time) proves nothing: it is *broken*.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import msgspec

from mutants.catalogue import ROOT, Mutant

# One mutant's tests take seconds; a mutant that makes one wait for ever is ended here. All tests together,
# before any mutant, get longer.
TIMEOUT_S = 300.0
ALL_TIMEOUT_S = 1800.0
_PACKAGES = ("bstar", "broker", "client", "pipeline", "cli")
_REST = ("tests", "chaos-tests", "benchmarks", "configs", "docs", "examples", "tools", "pyproject.toml")
_TAIL_LINES = 15


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant; ``state`` is caught, survived or broken, ``output`` pytest's last lines."""

    mutant: Mutant
    state: str
    output: str

    @property
    def is_fault(self) -> bool:
        """Whether somebody has to do something about it."""
        return self.state == "broken" or (self.state == "survived") != bool(self.mutant.equivalent)


class _Copy:
    """A copy of the tree for one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        for name in (*_PACKAGES, *_REST):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(folder / name) for name in _PACKAGES),
            # A mutant has its original's size and, within a second, its time: a cached module would hide it.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the mutant's tests on it."""
        path = self._root / mutant.file
        original = path.read_text()
        path.write_text(mutant.text(original))
        try:
            state, output = self.test(mutant.tests)
        finally:
            path.write_text(original)
        return Verdict(mutant, {0: "survived", 1: "caught"}.get(state, "broken"), output)

    def test(self, tests: Iterable[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
        """The exit status of pytest (-1 for no end in time) and its last lines."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {timeout_s:.0f} s"
        return done.returncode, "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])


@contextmanager
def _copies(count: int) -> Iterator[SimpleQueue[_Copy]]:
    with tempfile.TemporaryDirectory(prefix="bstar-mutants-") as folder:
        free: SimpleQueue[_Copy] = SimpleQueue()
        for number in range(count):
            free.put(_Copy(Path(folder) / str(number)))
        yield free


def judge_all(mutants: list[Mutant], processes: int) -> Iterator[Verdict]:
    """Judge each mutant, ``processes`` at a time, in the order in which they end.

    Before that, all their tests must pass on the tree as it is; raises ``RuntimeError`` if one does not,
    since every mutant would count as caught by it.
    """
    with _copies(processes) as free, ThreadPoolExecutor(processes) as threads:
        copy = free.get()
        status, output = copy.test(
            sorted({test for mutant in mutants for test in mutant.tests}), ALL_TIMEOUT_S
        )
        free.put(copy)
        if status != 0:
            raise RuntimeError(f"without any mutant the tests do not pass:\n{output}")

        def judge(mutant: Mutant) -> Verdict:
            copy = free.get()
            try:
                return copy.judge(mutant)
            finally:
                free.put(copy)

        for future in as_completed([threads.submit(judge, mutant) for mutant in mutants]):
            yield future.result()
