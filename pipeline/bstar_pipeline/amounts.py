"""How much there is to read in folders of this machine: does it suit the local engine?

This module imports nothing of Spark until somebody asks for the amount of journals.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bstar_pipeline.memory import octets_here
from bstar_pipeline.tables import TABLES

_JOURNALS_MAX = 1 << 30
_TABLES_MAX = 4 << 30
# A job takes four times as much memory as there are journals.
_MEMORY_SHARE = 6
# How many times as long journals become when they are unpacked.
_PACKED = 15


@dataclass(frozen=True, slots=True)
class Amount:
    """``octets`` of ``what`` are to be read; beyond ``most`` Spark does it better."""

    what: str
    octets: int
    most: int

    @property
    def is_small(self) -> bool:
        """Whether the local engine is the better one."""
        return self.octets <= self.most


def of_journals(inputs: Sequence[str], root: str) -> Amount | None:
    """Of journals that a job reads, unpacked; None if they or its tables are not in folders of this machine.

    Raises ConfigurationError if a path has none.
    """
    if not all(map(_is_here, [*inputs, root])):
        return None
    from bstar_pipeline.local_journals import files_at

    octets = 0
    for path in (file.place.path for file in files_at(inputs)):
        size = Path(path).stat().st_size
        octets += size * _PACKED if path.endswith(".gz") else size
    return Amount("journals", octets, min(_JOURNALS_MAX, octets_here() // _MEMORY_SHARE))


def of_tables(root: str, names: Iterable[str] = TABLES) -> Amount | None:
    """Of tables below a root; None if it is no folder of this machine."""
    if not _is_here(root):
        return None
    folders = (Path(root) / TABLES[name].path for name in names)
    octets = sum(file.stat().st_size for folder in folders for file in folder.rglob("*.parquet"))
    return Amount("tables", octets, _TABLES_MAX)


def _is_here(path: str) -> bool:
    return re.match(r"(?!file:)[a-z][a-z0-9+.-]*:", path, re.IGNORECASE) is None
