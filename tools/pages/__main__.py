"""Write or check the generated files: ``python -m pages --write`` or ``--check``."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bstar.settings import sample_client_configuration, sample_configuration
from pages import configuration, dashboards, faces, interface, journal, refusals, rules, tables
from pages.markdown import replace

FILES: dict[str, Callable[[], str]] = {
    "configs/primary.yaml": lambda: sample_configuration("primary"),
    "configs/backup.yaml": lambda: sample_configuration("backup"),
    "configs/client.yaml": sample_client_configuration,
    "docs/configuration.md": configuration.generate,
    "docs/interface.txt": interface.generate,
    **{f"client/bstar_client/sync/{name}.py": partial(faces.generate, name) for name in faces.FACES},
    **{name: partial(dashboards.generate, each) for name, each in dashboards.files().items()},
}
"""Files that are generated as a whole."""

PARTS: dict[str, Callable[[], str]] = {
    "docs/binary-star.md": rules.generate,
    "docs/journal.md": journal.generate,
    "docs/operations.md": refusals.generate,
    "docs/pipeline.md": tables.generate,
}
"""Pages of which the part between two markers is generated."""


def main(arguments: list[str] | None = None) -> int:
    """Status 0 if the files are (now) as they should be, 1 if some are not."""
    parser = argparse.ArgumentParser(prog="python -m pages", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the files")
    what.add_argument("--check", action="store_true", help="only say whether they are up to date")
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="the repository's folder")
    asked = parser.parse_args(arguments)
    stale = []
    for name in (*FILES, *PARTS):
        path: Path = asked.folder / name
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        after = FILES[name]() if name in FILES else replace(before, PARTS[name]())
        if before == after:
            continue
        if asked.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")
        else:
            stale.append(name)
    for name in stale:
        sys.stderr.write(f"{name} is not what the code says: run make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
