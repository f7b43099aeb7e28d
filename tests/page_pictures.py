"""``make page-pictures``: a node's page at a desk and on a phone at night, for the documentation."""

import sys
import tempfile
import time
from pathlib import Path

from bstar.records.role import RoleChange
from bstar_broker.core.snapshot import PeerChange
from support.busy_node import BusyNode
from support.chromium import chromium
from support.status_site import running

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
SHOTS = (("status-page-1280.webp", 1280, False), ("status-page-390.webp", 390, True))
# Rates need two events.
SEEN = """new Promise(done => {
  const look = () => {
    const cell = document.querySelector('tbody td:nth-child(6)');
    if (cell && cell.textContent !== '-') done(true); else setTimeout(look, 50);
  };
  look();
})"""


def past() -> list[RoleChange]:
    """What happened in the last hours, at times of now."""
    now_us = time.time_ns() // 1_000
    return [
        RoleChange(now_us - round(hours * 3.6e9), "primary", old, new, "", text, epoch)
        for hours, old, new, text, epoch in (
            (5.0, "PRIMARY", "ACTIVE", "The backup waits for us to begin.", 5),
            (2.5, "ACTIVE", "PASSIVE", "An operator gave the role to the backup.", 5),
            (1.2, "PASSIVE", "ACTIVE", "The backup is gone.", 7),
        )
    ]


def past_of_peer() -> list[PeerChange]:
    """What the node has heard of its peer since it started, three hours ago."""
    now_us = time.time_ns() // 1_000
    heard = ((3.0, "PASSIVE"), (2.5, "ACTIVE"), (1.2, "SILENT"), (1.1, "PASSIVE"))
    return [PeerChange(now_us - round(hours * 3.6e9), state) for hours, state in heard]


def main() -> int:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        for name, width, is_phone in SHOTS:
            node = BusyNode()
            node.history, node.peer_history = past(), past_of_peer()
            with running(node) as site:
                shown = browser.open(
                    f"{site.server.url}/",
                    width=width,
                    height=844,
                    is_phone=is_phone,
                    is_dark=is_phone,
                    scale=1,
                )
                shown.evaluate(SEEN)
                shown.screenshot(FOLDER / name)
            print(f"{FOLDER / name}: {(FOLDER / name).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
