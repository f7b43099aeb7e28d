"""How much memory this process may use, and how much it uses.

Three things can set a limit below the machine's memory: a control group (version 2 or 1, its own or one
around it), and the process's resource limits on address space and on data. A process that reaches one of
them is killed, or gets a MemoryError anywhere. ``Memory`` returns the least that is left under any of them.

The kernel's files stay open: each ``pread`` at their beginning returns the present text. So an answer takes
some 20 µs, a sixth of what opening and parsing paths takes.

Sources: cgroups(7), the kernel's documents of memory in cgroup v1 and v2, proc_pid_statm(5), getrlimit(2).
"""

import ctypes
import ctypes.util
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bstar.base.closing import Closing

# A part of each limit is reserved: interpreter and libzmq need it while the node refuses.
RESERVE = 0.1

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# A control group without a limit shows a number that no machine has.
_NO_LIMIT = 1 << 60
# Of glibc's <malloc.h>.
_M_MMAP_THRESHOLD = -3
# The longest is ``/proc/self/cgroup``: a line for each hierarchy, with a path.
_FILE_BYTES_MAX = 1 << 14


class MemoryLimit(msgspec.Struct, frozen=True):
    """A limit, who sets it, and which field of ``/proc/self/statm`` counts against it."""

    size_bytes: int
    where: str
    field: int


class _KernelFile(Closing):
    """A small file of the kernel. Its descriptor stays open from the first read that succeeds."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._descriptor: int | None = None

    def read(self) -> bytes:
        """Its present text; empty if it cannot be read now."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, _FILE_BYTES_MAX, 0)
        except OSError:
            # A control group that was removed; or the file appears when a controller is switched on.
            self.close()
            return b""

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Memory(Closing):
    """This process's limits, read each time because an operator may change them.

    ``root`` is where the file systems ``proc`` and ``sys`` are, for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._statm = _KernelFile(root / "proc/self/statm")
        self._membership = _KernelFile(root / "proc/self/cgroup")
        # The text of ``_membership`` for which ``_groups`` are the files of limits.
        self._groups_of = b""
        self._groups: list[_KernelFile] = []
        self._machine_bytes = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES

    def limits(self) -> list[MemoryLimit]:
        """All limits; the machine's own memory is always one."""
        found = [
            MemoryLimit(size_bytes, f"control group, {path}", 1) for path, size_bytes in self._group_limits()
        ]
        for kind, name, field in (
            (resource.RLIMIT_AS, "RLIMIT_AS, address space", 0),
            (resource.RLIMIT_DATA, "RLIMIT_DATA, data", 5),
        ):
            size_bytes, _ = resource.getrlimit(kind)
            if size_bytes != resource.RLIM_INFINITY:
                found.append(MemoryLimit(size_bytes, name, field))
        found.append(MemoryLimit(self._machine_bytes, "the machine's memory", 1))
        return found

    def least(self) -> MemoryLimit:
        """The limit that leaves least."""
        fields = self._fields()
        return min(self.limits(), key=lambda limit: limit.size_bytes - _used(fields, limit))

    def left(self) -> int | None:
        """How many bytes are left, below 0 if it is too late; None if the system does not tell."""
        fields = self._fields()
        if not fields:
            return None
        return min(int(limit.size_bytes * (1 - RESERVE)) - _used(fields, limit) for limit in self.limits())

    def close(self) -> None:
        """Close the kernel's files; a later question opens them again."""
        for file in (self._statm, self._membership, *self._groups):
            file.close()

    def _fields(self) -> list[int]:
        try:
            return [int(field) for field in self._statm.read().split()]
        except ValueError:
            return []

    def _group_limits(self) -> Iterator[tuple[str, int]]:
        """The limits of this process's control group and of those around it."""
        membership = self._membership.read()
        if membership != self._groups_of:
            for file in self._groups:
                file.close()
            self._groups_of = membership
            self._groups = [_KernelFile(path) for path in self._group_files(os.fsdecode(membership))]
        for file in self._groups:
            text = file.read().strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                yield file.path, int(text)

    def _group_files(self, membership: str) -> Iterator[Path]:
        base = self._root / "sys/fs/cgroup"
        for line in membership.splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                top, name = base, "memory.max"
            elif "memory" in controllers.split(","):
                top, name = base / "memory", "memory.limit_in_bytes"
            else:
                continue
            # In a container the path is often the host's, and the mount is the group itself.
            place = top / group.strip("/")
            for folder in (place, *place.parents):
                if folder == base.parent:
                    break
                yield folder / name


def _used(fields: list[int], limit: MemoryLimit) -> int:
    return fields[limit.field] * _PAGE_BYTES if fields else 0


def give_back() -> None:
    """Return freed memory to the system, as far as the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def return_large(size_bytes: int) -> None:
    """From now on return each freed block of so many bytes to the system at once (mallopt(3)).

    By itself glibc does so only until the first such block was freed. Then blocks of up to 32 MiB stay in its
    heaps, count as used, and are of no use to other threads. It costs the page faults of each such block.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size_bytes)
