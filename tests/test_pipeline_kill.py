"""kill -9 at any moment of a run: a reader sees the tables of one whole run, and the next run makes the rest.

A child makes runs without an end, each of which finds a few journals more, and is killed at random moments.
Meanwhile readers open the tables again and again, by DuckDB, and compare all of them with what the run itself
counted. ``BSTAR_KILLS`` says how many kills (5), ``BSTAR_KILL_SEED`` which moments (1), ``BSTAR_KILL_ENGINE``
by which engine (local):

    BSTAR_KILLS=50 .venv/bin/python -m pytest -q -s tests/test_pipeline_kill.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from bstar_pipeline import commits
from bstar_pipeline.commits import Folder, Made, Manifest, Snapshot
from support import committed
from support.journals import Run, write

KILLS = int(os.environ.get("BSTAR_KILLS", "5"))
SEED = int(os.environ.get("BSTAR_KILL_SEED", "1"))
ENGINE = os.environ.get("BSTAR_KILL_ENGINE", "local")
# A machine that is busy takes so long for a run.
PATIENCE_S = 600
# How often a reader looks for a new run, and reads the tables of the same one.
_LOOK_S, _AGAIN_S = 0.05, 0.2
pytestmark = [pytest.mark.spark, pytest.mark.loopback, pytest.mark.timeout(PATIENCE_S + 60 * KILLS)]

S = 1_000_000
CHILD = """
import sys
from pathlib import Path
from test_pipeline_kill import feed
from bstar_pipeline import job
from support.kill_session import session

journals, root, engine = sys.argv[1:]
with session(engine) as spark:
    number = len(list(Path(journals).glob("*.primary.*")))
    while True:
        feed(Path(journals), number)
        print("begins", flush=True)
        job.run(spark, [journals], root)
        number += 1
"""


def feed(folder: Path, number: int) -> None:
    """Journals of one more process of each kind: odd ones break a promise, and each brings other counts."""
    primary, client = (
        Run(
            node,
            boot=f"{letter}{number:07x}".ljust(32, "0"),
            mono_us=5 * S + number * 60 * S,
            at_us=1_793_577_600 * S + number * 60 * S,
        )
        for letter, node in (("a", "primary"), ("c", "client"))
    )
    primary.start()
    client.start(source="client")
    for request in range(3 + number):
        at = (1 + request) * 100_000
        primary.request(at, f"c{number}", request)
        client.call(at + 100, f"c{number}", request)
    if number % 2:
        client.call(30 * S, f"c{number}", 1)
    for run in (client, primary):
        write(folder / f"{run.name()}.part", run.lines()).rename(folder / run.name())


def _told(tables: Snapshot, database: duckdb.DuckDBPyConnection) -> list[Made]:
    """What the tables of a run hold, counted from their files."""

    def counts(name: str, key: str) -> dict[tuple[object, str], Counter[str]]:
        found: dict[tuple[object, str], Counter[str]] = {}
        if tables.files(name):
            files = tables.files(name)
            rows = f"FROM read_parquet({files!r}, hive_partitioning = false)"
            query = f"SELECT day, pair, {key}, count(*) {rows} GROUP BY ALL"
            for day, pair, what, count in database.execute(query).fetchall():
                found.setdefault((day, pair), Counter())[what] = count
        return found

    records, requests = counts("bronze.records", "'n'"), counts("silver.requests", "'n'")
    files, findings = counts("bronze.files", "state"), counts("gold.audit", "verdict")
    kinds = counts("gold.incidents", "kind")
    return [
        Made(
            *part,
            records=records.get(part, Counter())["n"],
            requests=requests.get(part, Counter())["n"],
            files=dict(files.get(part, {})),
            incidents=dict(kinds.get(part, {})),
            findings=dict(findings.get(part, {})),
        )
        for part in sorted({file.part for file in tables.manifest.tables["bronze.records"]})
    ]


class Reader(threading.Thread):
    """Opens the tables again and again: those of a new run at once, and what it had open before once more.

    ``seen`` has the requests and verdicts of each run that it saw.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.seen: dict[str, Counter[str]] = {}
        self.looks = 0
        self.wrong: list[str] = []
        self._opened: Manifest | None = None
        self._again_at = 0.0
        # One for all looks: to make one takes longer than they do.
        self._database = duckdb.connect(config={"threads": 1})
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(_LOOK_S):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the test shows it
                self.wrong.append(repr(error))

    def _look(self) -> None:
        found = commits.current(Folder(self.root), str(self.root))
        before, self._opened = self._opened, found
        if found is None:
            return
        if before is not None and before.run != found.run:
            self._check(before)
        elif time.monotonic() < self._again_at:
            return
        self._check(found)
        self._again_at = time.monotonic() + _AGAIN_S

    def _check(self, found: Manifest) -> None:
        told = _told(Snapshot(str(self.root), found), self._database)
        if told != found.made:
            self.wrong.append(f"{found.run}: {told} is not {found.made}")
        self.looks += 1
        self.seen[found.run] = Counter(
            {
                "requests": sum(one.requests for one in told),
                **sum((Counter(one.findings) for one in told), Counter()),
            }
        )


@contextmanager
def reading(root: Path) -> Iterator[Reader]:
    reader = Reader(root)
    reader.start()
    try:
        yield reader
    finally:
        reader.is_over.set()
        reader.join(PATIENCE_S)


def _killed(journals: Path, root: Path, moment: random.Random, longest_s: float) -> None:
    """A child that is killed at a random moment after it has begun a run."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(journals), str(root), ENGINE],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begins\n"
        # Not a wait for something: the moment of the kill.
        threading.Event().wait(moment.uniform(0, longest_s))
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_reader_sees_one_whole_run_whenever_a_run_is_killed(tmp_path: Path) -> None:
    from bstar_pipeline import job

    journals, root = tmp_path / "journals", tmp_path / "tables"
    journals.mkdir()
    feed(journals, 0)
    first = job.run(None, [str(journals)], str(root))
    moment = random.Random(SEED)
    with reading(root) as reader:
        for _ in range(KILLS):
            _killed(journals, root, moment, 2 * first.took_s)
    assert not reader.wrong, reader.wrong[:3]
    assert reader.looks >= KILLS
    # What the last child began is made by the next run, and the tables are those of one run over all.
    last = job.run(None, [str(journals)], str(root))
    fresh = tmp_path / "fresh"
    job.run(None, [str(journals)], str(fresh))
    for name in ("bronze.records", "silver.requests", "silver.runs", "gold.audit", "gold.objectives"):
        one, other = (
            sorted(map(repr, duckdb.execute(f"FROM {committed.files(where, name)}").fetchall()))
            for where in (root, fresh)
        )
        assert one == other, name
    numbers = len(list(journals.glob("*.primary.*")))
    assert last.requests == sum(3 + number for number in range(numbers))
    assert last.findings.get("violated", 0) == numbers // 2
    # Nothing that was killed is left, apart from what a reader may still need.
    kept = {commits.run_at(path) for path in Folder(root).files(commits.RUNS)}
    manifests = {path.parent.name for path in root.glob(f"{commits.RUNS}/*/manifest.json")}
    assert kept == manifests
    sizes = sorted(seen["requests"] for seen in reader.seen.values())
    print(
        f"{KILLS} kills (seed {SEED}, {ENGINE}): {reader.looks} looks at {len(reader.seen)} runs "
        f"of {sizes[0]} to {sizes[-1]} requests, none mixed; {numbers} runs begun"
    )
