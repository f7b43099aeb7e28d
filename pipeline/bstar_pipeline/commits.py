"""Which files the tables are made of: each run's manifest, and the one pointer that names the current run.

    ROOT/current.json                   the pointer: the run that is current
    ROOT/runs/<run>/manifest.json       every file of every table, those of earlier runs among them
    ROOT/runs/<run>/<layer>/<name>/…    the files that this run wrote

A run writes into its own folder, and nothing below ``runs`` ever changes. At its end it writes its manifest,
then replaces the pointer: that is the commit, and one atomic act (on a file system a rename, in a store of
objects one PUT). A run that is killed before leaves the pointer as it was. What a run does not make anew, its
manifest takes from the one before by reference. A reader resolves the pointer once (``open_snapshot``) and
then sees the tables of one run, whatever is committed meanwhile.

One run writes at a time. On a file system a lock refuses the second one at its start; the kernel frees the
lock of a killed process. In other stores the later of two is refused when it commits (``Folder.locked``).

Files stay for ``KEEP`` after the last commit that names them was current: a reader has that long
(``sweep``). ``bstar_pipeline.store`` reads and writes the tables; this module imports nothing of Spark.
"""

import datetime as dt
import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError
from bstar.host.whole_file import lock_file, sync_folder, write_whole

VERSION = 1
POINTER = "current.json"
KEEP = dt.timedelta(hours=1)
"""A reader that takes longer than this from the commit that replaces what it reads may miss a file."""

# No run takes longer: what began before and was never committed was killed.
_ABANDONED = dt.timedelta(days=1)

OPEN = ".open"
"""How the name of a journal ends that a process writes."""

_LOCK = "writing.lock"
RUNS = "runs"

Part = tuple[dt.date, str]
"""A day and a pair: what a run makes anew, or takes as it is."""


class File(NamedTuple):
    """A file of a table: all its rows are of one day and pair. ``path`` is below the root.

    ``topic``: of bronze.records, the topic of all its rows. ``journal``: ``journal_of`` the journal that all
    its rows are of.
    """

    day: dt.date
    pair: str
    path: str
    topic: str = ""
    journal: str = ""

    @property
    def part(self) -> Part:
        """What it belongs to."""
        return self.day, self.pair


class Made(msgspec.Struct, frozen=True):
    """What a run found in the tables of one day and pair."""

    day: dt.date
    pair: str
    records: int = 0
    requests: int = 0
    duplicates: int = 0
    files: dict[str, int] = {}
    rejected: dict[str, int] = {}
    incidents: dict[str, int] = {}
    findings: dict[str, int] = {}

    @property
    def part(self) -> Part:
        """What it is about."""
        return self.day, self.pair


class Manifest(msgspec.Struct, frozen=True):
    """One run: ``tables`` by name, and ``made``, what is in them. ``before`` is the run that it follows.

    ``read``: the journals whose records are in the tables, by path, with their length when they were read.
    ``unmade``: days and pairs whose records are newer than their other tables. ``until_us``: when the last
    record of each pair was written. ``horizon``: the first day that stays (``store.retain``): records of days
    before are left out.
    """

    run: str
    before: str
    at: dt.datetime
    tables: dict[str, list[File]]
    made: list[Made] = []
    read: dict[str, int] = {}
    unmade: list[tuple[dt.date, str]] = []
    until_us: dict[str, int] = {}
    horizon: dt.date = dt.date.min
    version: int = VERSION

    @property
    def paths(self) -> set[str]:
        """Of all files."""
        return {file.path for files in self.tables.values() for file in files}


class _Pointer(msgspec.Struct, frozen=True):
    run: str
    version: int = VERSION


_Kind = TypeVar("_Kind", _Pointer, Manifest)

NOTHING = Manifest("", "", dt.datetime.fromtimestamp(0, dt.UTC), {})
"""What is there before the first run."""


class Folder:
    """What a root's storage does beside reading and writing tables: a folder that this machine has or mounts.

    ``bstar_pipeline.store`` does the same for other storage. Paths are below the root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, path: str) -> bytes | None:
        """The content of a small file; None if it is missing."""
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, path: str, content: bytes) -> None:
        """Write a small file, or replace it: a reader sees the old content or the new, never a part."""
        write_whole(self._root / path, content)

    def files(self, folder: str) -> list[str]:
        """Every file below a folder."""
        found = (path for path in (self._root / folder).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._root)) for path in found)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove these files, and the folders of runs that are empty then."""
        for path in paths:
            (self._root / path).unlink(missing_ok=True)
        for folder, _, _ in os.walk(self._root / RUNS, topdown=False):
            # One that is not empty stays.
            with suppress(OSError):
                Path(folder).rmdir()

    def settle(self, paths: Iterable[str]) -> None:
        """Return when these files survive a loss of power."""
        files = [self._root / path for path in paths]
        folders = {folder for file in files for folder in file.parents if self._root in folder.parents}
        for file in files:
            with file.open("rb") as written:
                os.fsync(written.fileno())
        for folder in folders:
            sync_folder(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to write for the block: a lock of the kernel, which ends with its process.

        Raises ConfigurationError if another process has it.
        """
        lock = lock_file(self._root / _LOCK)
        if lock is None:
            raise ConfigurationError(
                f"another process is writing the tables below {self._root}: start this one when that "
                "has ended"
            )
        try:
            yield
        finally:
            os.close(lock)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables of one run below ``root``."""

    root: str
    manifest: Manifest

    def has(self, name: str) -> bool:
        """Whether the table was written, be it without a row."""
        return name in self.manifest.tables

    def files(self, name: str, parts: Collection[Part] | None = None) -> list[str]:
        """The paths of a table's files, or of those of ``parts``."""
        chosen = self.manifest.tables.get(name, [])
        return [self.path(file) for file in chosen if parts is None or file.part in parts]

    def path(self, file: File) -> str:
        """The whole path of a file."""
        return f"{self.root.rstrip('/')}/{file.path}"


def open_snapshot(store: Folder, root: str) -> Snapshot:
    """The current run's tables. Raises ConfigurationError if there are no tables."""
    found = current(store, root)
    if found is None:
        raise ConfigurationError(
            f"no tables below {root}. Run `bstar pipeline run JOURNAL --out {root}` first"
        )
    return Snapshot(root, found)


def journal_of(path: str) -> str:
    """``File.journal`` of what is read of this journal: a name that a folder can have."""
    is_open = path.endswith(OPEN)
    return hashlib.md5(path.encode(), usedforsecurity=False).hexdigest() if is_open else "sealed"


def current(store: Folder, root: str) -> Manifest | None:
    """The manifest that the pointer names; None if nothing was ever committed."""
    pointer = store.get(POINTER)
    if pointer is None:
        return None
    run = _decoded(pointer, _Pointer, f"{root}/{POINTER}").run
    found = manifest_at(store, root, run)
    if found is None:
        raise ConfigurationError(
            f"{root}/{manifest_of(run)} is missing, and {POINTER} names it: make the tables anew, in another "
            "folder"
        )
    return found


def manifest_at(store: Folder, root: str, run: str) -> Manifest | None:
    """The manifest of a run; None if it is missing."""
    content = store.get(manifest_of(run))
    return None if content is None else _decoded(content, Manifest, f"{root}/{manifest_of(run)}")


def _decoded(content: bytes, kind: type[_Kind], path: str) -> _Kind:
    try:
        found = msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise ConfigurationError(
            f"{path} is damaged ({error}): make the tables anew, in another folder"
        ) from error
    if found.version > VERSION:
        raise ConfigurationError(
            f"{path} is of version {found.version}, this program knows {VERSION}: update it"
        )
    return found


def manifest_of(run: str) -> str:
    """Where the manifest of a run is."""
    return f"{folder_of(run)}/manifest.json"


def folder_of(run: str) -> str:
    """Where the files of a run are."""
    return f"{RUNS}/{run}"


def run_at(path: str) -> str:
    """The run that wrote a file below ``runs``."""
    return path.split("/")[1]


def new_run(now: dt.datetime) -> str:
    """A name for a run; names sort by time."""
    return f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"


def commit(store: Folder, root: str, manifest: Manifest) -> None:
    """Make a run the current one. Raises ConfigurationError if another run was committed since it began."""
    store.settle(path for path in manifest.paths if run_at(path) == manifest.run)
    store.put(manifest_of(manifest.run), msgspec.json.encode(manifest))
    now = store.get(POINTER)
    newest = "" if now is None else _decoded(now, _Pointer, f"{root}/{POINTER}").run
    if newest != manifest.before:
        raise ConfigurationError(
            f"another run has written the tables below {root} meanwhile ({newest}). They are whole, and have "
            "nothing of this run: start it again"
        )
    store.put(POINTER, msgspec.json.encode(_Pointer(manifest.run)))


def sweep(store: Folder, root: str, now: dt.datetime) -> None:
    """Remove the files that no reader needs.

    A file is needed if a commit names it that was current within ``KEEP``. A run that began after the newest
    commit may still write: its files stay for a day.
    """
    newest = current(store, root) or NOTHING
    needed: set[str] = set()
    found, until = newest, now
    while until >= now - KEEP:
        needed |= {manifest_of(found.run), *found.paths}
        until = found.at
        found = manifest_at(store, root, found.before) or NOTHING
    last = max(newest.run, new_run(now - _ABANDONED))
    store.remove(path for path in store.files(RUNS) if path not in needed and run_at(path) <= last)


def folder_named(root: str) -> Path | None:
    """The folder of this machine that a root names, as a path or as file:/…; None if it is elsewhere."""
    if re.match(r"[a-z][a-z0-9+.-]*:", root, re.IGNORECASE) is None:
        return Path(root)
    found = re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", root, re.IGNORECASE | re.DOTALL)
    return None if found is None else Path(found[1])
