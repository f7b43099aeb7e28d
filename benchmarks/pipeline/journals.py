"""Journals of millions of requests: of simulated pairs, whose calm seconds are repeated.

The simulator plays a pair for a minute: it begins, serves in calm, loses a node and hands the role
over. Each record of the calm time comes again and again, later, with the next sequence number, and a request
with a number that its client has not used. So each record is one that the production code has made.
"""

import gzip
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bstar.records import SegmentClosed, decode, encode
from sim import journals
from sim.journals import JOURNAL, START_US, Incident, Scenario

_CALM_US = range(START_US + 10_000_000, START_US + 30_000_000)
_FILE_LINES = 250_000
_STAMP = re.compile(rb'"seq":\d+,"at":(\d+),"mono":(\d+)')
_REQUEST = re.compile(rb'"client":"([^"]+)","number":(\d+)')


class _Line(NamedTuple):
    """A record: its text with places for numbers, and the numbers that change. ``client`` is that of a
    request, otherwise empty.
    """

    text: bytes
    at: int
    mono: int
    client: bytes
    number: int


def write(folder: Path, requests: int, *, pairs: int, rate: float) -> int:
    """Write ``folder/journal``: about so many requests, ``rate`` a second at each pair. How many records.

    Nodes, clients and workers keep journals, so a request has three.
    """
    (folder / JOURNAL).mkdir(parents=True)
    with ProcessPoolExecutor(pairs, get_context("spawn")) as pool:
        tasks = [pool.submit(_pair, folder, number, requests // pairs, rate) for number in range(pairs)]
        return sum(task.result() for task in tasks)


def _pair(folder: Path, number: int, requests: int, rate: float) -> int:
    scenario = Scenario(
        pair=f"bulk-{number}",
        seed=number,
        seconds=60.0,
        services=4,
        workers=16,
        clients=100,
        calls_per_s=rate,
        segment_bytes=1 << 30,
        incidents=(Incident("crash", 35.0, 5.0), Incident("handover", 50.0, 0.0)),
    )
    with tempfile.TemporaryDirectory() as played:
        journals.write(scenario, Path(played))
        runs: dict[str, list[_Line]] = {}
        for path in sorted((Path(played) / JOURNAL).iterdir()):
            # Without what a kill left of a line. Each run has one file.
            lines = gzip.decompress(path.read_bytes()).split(b"\n")[:-1]
            runs[path.name.removesuffix(".0001.ndjson.gz")] = list(map(_line, lines))
    numbers: dict[bytes, list[int]] = {}
    for line in (line for run in runs.values() for line in run if line.client and line.at in _CALM_US):
        numbers.setdefault(line.client, []).append(line.number)
    of_nodes = [line.at in _CALM_US for run in runs.values() for line in run if _is_request(line)]
    calm, once = sum(of_nodes), len(of_nodes)
    times = 1 + max(0, -(-(requests - once) // calm))
    # By how much the numbers of a client grow each time.
    growth = {client: max(each) - min(each) + 1 for client, each in numbers.items()}
    return sum(_write(folder / JOURNAL, name, _repeated(run, times, growth)) for name, run in runs.items())


def _is_request(line: _Line) -> bool:
    """Whether a node recorded it: clients and workers have records of the same request."""
    return line.text.startswith(b'{"kind":"request"')


def _line(line: bytes) -> _Line:
    stamp, request = _STAMP.search(line), _REQUEST.search(line)
    assert stamp is not None
    text = line.replace(b"%", b"%%").replace(stamp[0], b'"seq":%(seq)d,"at":%(at)d,"mono":%(mono)d', 1)
    if request is None:
        return _Line(text, int(stamp[1]), int(stamp[2]), b"", 0)
    text = text.replace(request[0], b'"client":"%b","number":%%(number)d' % request[1], 1)
    return _Line(text, int(stamp[1]), int(stamp[2]), request[1], int(request[2]))


def _repeated(run: list[_Line], times: int, growth: dict[bytes, int]) -> Iterator[Callable[[int], bytes]]:
    """Each line of the long journal, as what makes it of its sequence number."""
    before = [line for line in run if line.at < _CALM_US.start]
    calm = [line for line in run if line.at in _CALM_US]
    after = [line for line in run if line.at >= _CALM_US.stop]
    for turn, lines in enumerate([before, *[calm] * times, after]):
        turns = min(max(turn - 1, 0), times - 1)
        later_us = turns * len(_CALM_US)
        for line in lines:
            yield _maker(line, later_us, turns * growth.get(line.client, 0))


def _maker(line: _Line, later_us: int, more: int) -> Callable[[int], bytes]:
    text, at, mono, _, number = line
    # By name: kinds have these fields in different orders.
    values = {b"at": at + later_us, b"mono": mono + later_us, b"number": number + more}
    return lambda seq: text % {b"seq": seq, **values}


def _write(folder: Path, name: str, lines: Iterator[Callable[[int], bytes]]) -> int:
    """Write the files of a run; how many records."""
    seq = segment = 0
    made: list[bytes] = []

    def close() -> None:
        nonlocal seq, segment, made
        segment, seq = segment + 1, seq + 1
        last = decode(made[-1])
        closed = SegmentClosed(
            v=last.v,
            pair=last.pair,
            node=last.node,
            boot=last.boot,
            seq=seq,
            at=last.at,
            mono=last.mono,
            lines=len(made),
        )
        data = b"\n".join([*made, encode(closed), b""])
        (folder / f"{name}.{segment:04}.ndjson.gz").write_bytes(gzip.compress(data, compresslevel=1, mtime=0))
        made = []

    for make in lines:
        seq += 1
        line = make(seq)
        if line.startswith(b'{"kind":"closed"'):
            seq -= 1
            continue
        made.append(line)
        if len(made) == _FILE_LINES:
            close()
    if made:
        close()
    return seq


def make_once(folder: Path, requests: int, *, pairs: int, rate: float) -> tuple[Path, int]:
    """The journal in ``folder``, made now if it was not made before, and how many records it has."""
    done, journal = folder / "made.json", folder / JOURNAL
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        done_records = write(folder, requests, pairs=pairs, rate=rate)
        done.write_text(json.dumps(done_records))
    records = json.loads(done.read_text())
    assert isinstance(records, int)
    return journal, records
