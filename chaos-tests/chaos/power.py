"""A disk under one directory whose power can fail, and which can be slow, full, read-only or faulty.

    disk = Disk(folder / "store", folder / "disk")
    process = start(environment=disk.variables)
    with disk.full(): …
    process.kill()
    disk.lose_power(Loss.SECTORS, seed=7)    # now the directory holds what such a disk would hold

``power.c`` goes into the process by LD_PRELOAD and writes its log; ``platter.py`` says what is lost. Only one
process at a time may write to the directory.
"""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.platter import Loss, Platter, records_of
from chaos.report import RUNS

_SOURCE = Path(__file__).with_name("power.c")
_CACHE = RUNS.parent
# The places of the numbers in `struct faults`.
_DELAY, _FAILING_SYNCS, _FAILING_WRITES, _FREE, _READ_ONLY, _WRITES, _SYNCS, _OCTETS = range(8)
_NUMBER = struct.Struct("<q")


class NoCompilerError(Exception):
    """There is no C compiler."""


@functools.cache
def library() -> Path:
    """The library, compiled if it is older than its source. NoCompilerError without a compiler."""
    made = _CACHE / "power.so"
    if made.exists() and made.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return made
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompilerError("there is no C compiler (Debian: apt-get install gcc libc6-dev)")
    _CACHE.mkdir(parents=True, exist_ok=True)
    # Several test processes may come here at once: the last rename wins, and all are the same.
    new = made.with_name(f"power-{os.getpid()}.so")
    options = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run((compiler, *options, "-o", new, _SOURCE, "-ldl", "-lpthread"), check=True)
    new.replace(made)
    return made


def need_power() -> None:
    """Skip the test if the library cannot be compiled; in CI, fail."""
    try:
        library()
    except NoCompilerError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


class Disk:
    """``directory`` is what it holds; ``folder`` has its log and what controls it, and must be elsewhere."""

    def __init__(self, directory: Path, folder: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.directory = directory.resolve()
        assert not folder.resolve().is_relative_to(self.directory)
        self._log = folder.resolve() / "log"
        self._faults_path = folder.resolve() / "faults"
        self._faults_path.write_bytes(bytes(8 * _NUMBER.size))
        with self._faults_path.open("r+b") as file:
            self._faults = mmap.mmap(file.fileno(), 0)
        self._set(_FREE, -1)
        self._platter = Platter({})
        self.begin()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the process that writes."""
        return {
            "LD_PRELOAD": str(library()),
            "POWER_ROOT": str(self.directory),
            "POWER_LOG": str(self._log),
            "POWER_FAULTS": str(self._faults_path),
        }

    def begin(self) -> None:
        """Take what the directory holds now for synced. The process must not run."""
        self._log.unlink(missing_ok=True)
        self._platter = Platter(read(self.directory))

    def log(self) -> bytes:
        """All that happened since ``begin`` or the last power loss."""
        return self._log.read_bytes() if self._log.exists() else b""

    def lose_power(self, loss: Loss, seed: int = 0) -> None:
        """Let the directory hold what remains. The process must be dead."""
        for record in records_of(self.log()):
            self._platter.play(record)
        write(self.directory, self._platter.after_power_loss(loss, seed))
        self.begin()

    # --- faults -------------------------------------------------------------------------------------------

    @contextmanager
    def slow(self, sync_s: float) -> Iterator[None]:
        """Each sync takes this long."""
        with self._changed(_DELAY, round(sync_s * 1e6), 0):
            yield

    @contextmanager
    def full(self, free_octets: int = 0) -> Iterator[None]:
        """Files grow by so many bytes more, and no further."""
        with self._changed(_FREE, free_octets, -1):
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written, as after the kernel found the file system damaged."""
        with self._changed(_READ_ONLY, 1, 0):
            yield

    def fail_syncs(self, count: int = 1) -> None:
        """The next syncs fail with EIO."""
        self._set(_FAILING_SYNCS, count)

    def fail_writes(self, count: int = 1) -> None:
        """The next writes fail with EIO."""
        self._set(_FAILING_WRITES, count)

    @property
    def failing(self) -> int:
        """How many syncs and writes are still to fail."""
        return self._get(_FAILING_SYNCS) + self._get(_FAILING_WRITES)

    @property
    def syncs(self) -> int:
        """All syncs, ever."""
        return self._get(_SYNCS)

    @property
    def octets(self) -> int:
        """All bytes written, ever."""
        return self._get(_OCTETS)

    @contextmanager
    def _changed(self, place: int, value: int, usual: int) -> Iterator[None]:
        self._set(place, value)
        try:
            yield
        finally:
            self._set(place, usual)

    def _get(self, place: int) -> int:
        number: int = _NUMBER.unpack_from(self._faults, place * _NUMBER.size)[0]
        return number

    def _set(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._faults, place * _NUMBER.size, value)


def read(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def write(directory: Path, content: dict[str, bytes]) -> None:
    """Let a directory hold these files, and no others."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for path, octets in content.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(octets)
