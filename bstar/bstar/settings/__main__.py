"""Write or check the generated files: ``python -m bstar.settings --write`` or ``--check``."""

import argparse
import sys
from pathlib import Path

from bstar.settings.client import sample_client_configuration
from bstar.settings.sample import reference, sample_configuration


def main(arguments: list[str] | None = None) -> int:
    """Status 0 if the files are (now) as they should be, 1 if some are not."""
    parser = argparse.ArgumentParser(prog="python -m bstar.settings", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the files")
    what.add_argument("--check", action="store_true", help="only say whether they are up to date")
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="the repository's folder")
    asked = parser.parse_args(arguments)

    generated = {
        "configs/primary.yaml": sample_configuration("primary"),
        "configs/backup.yaml": sample_configuration("backup"),
        "configs/client.yaml": sample_client_configuration(),
        "docs/configuration.md": reference(),
    }
    stale = []
    for name, content in generated.items():
        path = asked.folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == content:
            continue
        if asked.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")
        else:
            stale.append(name)
    for name in stale:
        sys.stderr.write(f"{name} is not what the schema says: run make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
