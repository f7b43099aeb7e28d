"""A directory with everything that can be wrong with a directory of journals."""

import gzip
from pathlib import Path

from bstar.records import Refused, SegmentClosed
from support.journals import Run, closed, write

_HEAD = b'"pair":"orders","node":"x","boot":"b","seq":1,"mono":1'
BAD = {
    b'{"v":1,"pair":"orders","no': "unreadable",
    b"": "unreadable",
    b"nonsense": "unreadable",
    b"[1]": "unreadable",
    b"null": "unreadable",
    b'\xff\xfe{"v":1}': "unreadable",
    b'{"kind":"stopped","v":1,%b,"at":9000000000000000000}' % _HEAD: "unreadable",
    b'{"kind":"stopped","v":0,%b,"at":1}' % _HEAD: "unreadable",
    b"{}": "incomplete",
    b'{"kind":"request","v":1,%b,"at":1}' % _HEAD: "incomplete",
    b'{"kind":"stopped","v":1,%b,"at":"noon"}' % _HEAD: "incomplete",
    b'{"kind":"stopped","v":2,%b,"at":1}' % _HEAD: "newer-version",
    b'{"kind":"request","v":2,"at":"tomorrow"}': "newer-version",
    b'{"kind":"stopped","v":123456789012345,%b,"at":1}' % _HEAD: "newer-version",
}
NOVEL = b'{"kind":"novel","v":1,"colour":"red",%b,"at":1793577600000000}' % _HEAD


def history() -> Run:
    """A run that ended its segment in good order."""
    run = Run("primary")
    run.start()
    for number in range(20):
        run.request(1_000 * (number + 1), "c1", number)
    run.add(Refused, 40_000, reason="no-service", count=2)
    closed(run, 50_000)
    return run


def plant(root: Path) -> None:
    """Fill the directory."""
    whole = history()
    write(root / whole.name(), whole.lines())
    write(root / "copied here" / whole.name(suffix=".ndjson.gz"), whole.lines())
    # The same file, copied while it was written.
    write(
        root / "earlier" / whole.name(suffix=".ndjson.open"), whole.lines()[:12], torn=whole.lines()[12][:30]
    )
    # Two files of one run that share records 5 to 8.
    parts = Run("backup", boot="b0" * 16)
    parts.start()
    for number in range(11):
        parts.request(1_000 * (number + 1), "c2", number)
    write(root / parts.name(1, suffix=".ndjson.open"), parts.lines()[:8])
    write(root / parts.name(2, suffix=".ndjson.open"), parts.lines()[4:])
    # Two files in one.
    joined = Run("joined-1", boot="d0" * 16, pair="joined")
    joined.start()
    closed(joined, 1_000)
    middle = len(joined.records)
    joined.state(40_000, "PRIMARY", "ACTIVE", "PEER_BACKUP", epoch=1)
    joined.add(SegmentClosed, 50_000, lines=1)
    both = (joined.lines()[:middle], joined.lines()[middle:])
    path = root / joined.name(suffix=".ndjson.gz")
    path.write_bytes(b"".join(gzip.compress(b"".join(line + b"\n" for line in part)) for part in both))
    cut = Run("worker-1", boot="c0" * 16, pair="stock")
    cut.start(source="worker")
    for number in range(2_000):
        cut.request(1_000 * (number + 1), f"{number * 7919:032x}", number)
    path = root / cut.name(suffix=".ndjson.gz")
    packed = gzip.compress(b"".join(line + b"\n" for line in cut.lines()))
    path.write_bytes(packed[: len(packed) // 2])
    (root / cut.name(2, suffix=".ndjson.gz")).write_bytes(b"this was never packed")
    (root / cut.name(3, suffix=".ndjson")).write_bytes(b"")
    (root / cut.name(4, suffix=".ndjson.gz.part")).write_bytes(packed)
    write(root / "shop.east.primary.20261104T000000Z.0a0b0c0d.0001.ndjson", [*BAD, NOVEL], torn=b'{"v":1,"ki')
