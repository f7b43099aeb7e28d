"""How much there is to read in folders of this machine: which engine suits it, and how Spark is started.

This module imports nothing of Spark until somebody asks for the amount of journals.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bstar_pipeline.commits import NOTHING, Folder, Snapshot, current, folder_named
from bstar_pipeline.tables import TABLES

# 3,040,000 records, 120 MB packed and 1.1 GB not, take 0.8 GB of memory; 920,000 take 0.7.
_JOURNALS_MAX = 2 << 30
_TABLES_MAX = 4 << 30
# A job takes twice as much memory as there are journals, if those are few.
_MEMORY_SHARE = 3
_LITTLE, _MEDIUM = 100 << 20, 2 << 30
# How many times as long journals become when they are unpacked.
_PACKED = 15
# A container's limit, of cgroups version 2 and 1; "max" or a huge number without a limit.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# Verifying the bytecode of Spark's classes takes seconds of each start; they come from an installed package.
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
JVM = (
    f"{_UNVERIFIED} -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""How Java runs a driver that is started here. It optimizes what is called ten times as often as it asks for
by itself: of a job of 314,000 records its compilers took 60 of 147 CPU seconds, and take 37 of 103 so.
"""

MEDIUM_JVM = f"{_UNVERIFIED} -XX:TieredStopAtLevel=1"
"""Without the optimizing compiler: a job of 920,000 records takes 130 CPU seconds, and 164 with it; of
3,040,000 records 209 and 222.
"""

SMALL_JVM = f"{_UNVERIFIED} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    # What adaptive execution comes to with so little data, in one step.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # One task reads all files of a table. More would write as many files of each partition, with 70 columns
    # each, for the next query to open.
    "spark.sql.files.openCostInBytes": "4096",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # The driver lists directories: a job of 40 tasks takes longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
"""For jobs that are over before optimized code pays: the JVM's optimizing compiler alone takes two fifths of
the CPU time of a job of 40,000 records (98 s, and 61 s without it). Spark compiles plans to bytecode even so:
a job of 51,000 records takes 65 CPU seconds, and 74 without that.
"""


@dataclass(frozen=True, slots=True)
class Amount:
    """``size_bytes`` of ``what`` are to be read; beyond ``most`` Spark does it better."""

    what: str
    size_bytes: int
    most: int

    @property
    def is_small(self) -> bool:
        """Whether the local engine is the better one."""
        return self.size_bytes <= self.most

    @property
    def is_little(self) -> bool:
        """Whether a job of Spark is over before compiled code pays."""
        return self.size_bytes <= _LITTLE

    @property
    def jvm(self) -> str:
        """How Java runs a driver that is started here."""
        return SMALL_JVM if self.is_little else MEDIUM_JVM if self.size_bytes <= _MEDIUM else JVM


def of_journals(inputs: Sequence[str], root: str) -> Amount | None:
    """Of journals that a job reads, unpacked; None if they or its tables are not in folders of this machine.

    Raises ConfigurationError if a path has none.
    """
    if any(folder_named(path) is None for path in (*inputs, root)):
        return None
    from bstar_pipeline.journal_files import files_at

    files = files_at(inputs)
    size_bytes = sum(file.length * (_PACKED if file.path.endswith(".gz") else 1) for file in files)
    return Amount("journals", size_bytes, min(_JOURNALS_MAX, memory_bytes() // _MEMORY_SHARE))


def of_tables(root: str, names: Iterable[str] = TABLES) -> Amount | None:
    """Of tables below a root; None if it is no folder of this machine."""
    folder = folder_named(root)
    if folder is None:
        return None
    tables = Snapshot(str(folder), current(Folder(folder), root) or NOTHING)
    size_bytes = sum(Path(file).stat().st_size for name in names for file in tables.files(name))
    return Amount("tables", size_bytes, _TABLES_MAX)


def memory_bytes() -> int:
    """Of this machine, or of the container if that has less."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (file.read_text().strip() for file in _LIMITS if file.is_file())
    return min([there, *(int(limit) for limit in limits if limit.isdecimal())])
