"""``make page-pictures``: a node's page at a desk and on a phone at night, for the documentation."""

import sys
import tempfile
from pathlib import Path

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


def main() -> int:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        for name, width, is_phone in SHOTS:
            with running(BusyNode()) as site:
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
