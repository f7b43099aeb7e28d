"""What goes along with ``spark-submit`` to a cluster whose nodes have Spark and Python, but no bstar.

    python -m bstar_pipeline.ship FOLDER

packs bstar and what it needs, as installed here, into an archive that Spark unpacks on each node, and
writes the program that spark-submit starts: ``bstar pipeline`` under another name, with the same commands.
The batch job parses journals by it, bulk calls and a driver in the cluster need it, too. Some of it is
compiled, so the nodes need the same version of Python and the same kind of machine as this one. It is
without pyspark, because a cluster has its own, and without what only folders of this machine need.
"""

import re
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from bstar.errors import ConfigurationError

ARCHIVE = "bstar-spark.tar.gz"
PROGRAM = "bstar_job.py"

_PACKAGES = ("bstar", "bstar_broker", "bstar_client", "bstar_pipeline", "bstar_cli")
# The job needs the first two on executors, the report the third; few clusters have them.
_ALSO = ("pyarrow", "duckdb", "Jinja2")
# Of no use at run time, and a quarter of the archive.
_LEFT_OUT = ("pyarrow/include/", "pyarrow/tests/", "pyarrow/src/")
_PROGRAM = '''\
"""What spark-submit starts: the commands of ``bstar pipeline``, from the archive that came along."""

import sys

from bstar_cli.main import main

sys.argv[1:1] = ["pipeline"]
raise SystemExit(main())
'''


def ship(folder: Path) -> tuple[Path, Path]:
    """Write archive and program into the folder, which is made if need be; return both paths, in this order.

    Raises ConfigurationError if something that belongs in it is not installed here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive, program = folder / ARCHIVE, folder / PROGRAM
    # Fast rather than small: it travels once, inside a cluster.
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name, file in sorted(dict(_files()).items()):
            # Scripts lie outside of the folder of modules.
            if not name.startswith(("..", *_LEFT_OUT)) and "__pycache__" not in name and file.is_file():
                tar.add(file, name)
    program.write_text(_PROGRAM)
    return archive, program


def _files() -> Iterator[tuple[str, Path]]:
    """Each file by its name in the archive, which is a folder of modules."""
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ConfigurationError(
                f"the package {package} is not there; pip install '.[spark]' in a clone of bstar"
            )
        root = Path(spec.origin).parent
        yield from ((f"{package}/{file.relative_to(root)}", file) for file in root.rglob("*"))
    for name in _distributions():
        yield from ((str(file), Path(str(file.locate()))) for file in metadata.files(name) or ())


def _distributions() -> set[str]:
    """What bstar and its command need, with what that needs, and so on."""
    found: set[str] = set()
    needed = {*_needs("bstar", extra="server"), *_ALSO}
    while needed:
        name = needed.pop()
        try:
            needs = {*_needs(name)}
        except metadata.PackageNotFoundError:
            if name in _ALSO:
                raise ConfigurationError(
                    f"{name} is not installed in {sys.prefix}; pip install '.[spark]' in a clone of bstar"
                ) from None
            # Of another platform or version of Python: bstar runs here without it.
            continue
        found.add(name)
        needed |= needs - found
    return found


def _needs(name: str, *, extra: str = "") -> Iterator[str]:
    """What a distribution requires, also for one of its extras."""
    for text in metadata.requires(name) or ():
        of = re.search(r"extra == ['\"]([\w.-]+)", text)
        if of is None or of[1] == extra:
            yield re.split(r"[^\w.-]", text, maxsplit=1)[0]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for path in ship(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
