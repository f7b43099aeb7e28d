"""How much memory this process may use, and how much it uses.

Three things can set a limit below the machine's memory: a control group (version 2 or 1, its own or one
around it), and the process's resource limits on address space and on data. A process that reaches one of
them is killed, or gets a MemoryError anywhere. ``Memory`` returns the least that is left under any of them.
It reads files of a few octets. That takes some 50 µs: a timer calls it, not each request.

Sources: cgroups(7), the kernel's documents of memory in cgroup v1 and v2, proc_pid_statm(5), getrlimit(2).
"""

import ctypes
import ctypes.util
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

# A part of each limit is reserved: interpreter and libzmq need it while the node refuses.
RESERVE = 0.1

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# A control group without a limit shows a number that no machine has.
_NO_LIMIT = 1 << 60


class MemoryLimit(msgspec.Struct, frozen=True):
    """A limit, who sets it, and which field of ``/proc/self/statm`` counts against it."""

    octets: int
    where: str
    field: int


class Memory:
    """This process's limits, read each time because an operator may change them.

    ``root`` is where the file systems ``proc`` and ``sys`` are, for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._statm = root / "proc/self/statm"

    def limits(self) -> list[MemoryLimit]:
        """All limits; the machine's own memory is always one."""
        found = [MemoryLimit(octets, f"control group, {path}", 1) for path, octets in self._groups()]
        for kind, name, field in (
            (resource.RLIMIT_AS, "RLIMIT_AS, address space", 0),
            (resource.RLIMIT_DATA, "RLIMIT_DATA, data", 5),
        ):
            octets, _ = resource.getrlimit(kind)
            if octets != resource.RLIM_INFINITY:
                found.append(MemoryLimit(octets, name, field))
        found.append(MemoryLimit(os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES, "the machine's memory", 1))
        return found

    def least(self) -> MemoryLimit:
        """The limit that leaves least."""
        fields = self._fields()
        return min(self.limits(), key=lambda limit: limit.octets - _used(fields, limit))

    def left(self) -> int | None:
        """How many octets are left, below 0 if it is too late; None if the system does not tell."""
        fields = self._fields()
        if not fields:
            return None
        return min(int(limit.octets * (1 - RESERVE)) - _used(fields, limit) for limit in self.limits())

    def _fields(self) -> list[int]:
        try:
            return [int(field) for field in self._statm.read_text().split()]
        except (OSError, ValueError):
            return []

    def _groups(self) -> Iterator[tuple[Path, int]]:
        """The limits of this process's control group and of those around it."""
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return
        base = self._root / "sys/fs/cgroup"
        for line in lines:
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
                path = folder / name
                try:
                    text = path.read_text().strip()
                except OSError:
                    continue
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    yield path, int(text)


def _used(fields: list[int], limit: MemoryLimit) -> int:
    return fields[limit.field] * _PAGE_BYTES if fields else 0


def give_back() -> None:
    """Return freed memory to the system, as far as the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
