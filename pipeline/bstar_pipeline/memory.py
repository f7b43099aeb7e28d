"""How much memory there is here, for those that must not take more."""

import os
from pathlib import Path

# A container's limit, of cgroups version 2 and 1; "max" or a huge number if there is none.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def octets_here() -> int:
    """Of this machine, or of the container if that has less."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        try:
            limit = file.read_text().strip()
        except OSError:
            continue
        if limit.isdecimal():
            there = min(there, int(limit))
    return there
