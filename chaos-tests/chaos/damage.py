"""Damage to the files of a stopped node's store: bits, cuts, gaps, and files of another time or another node.

    damage = Damage(chance)
    damage.keep(role, directory)            what an older file may come from
    what = damage.spoil(role, directory)    one of its files is not what it was

An older copy of the whole directory is no damage that a node could see by itself, and is not made here.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

FILES = ("store.db", "store.db-wal", "store.db", "store.db-wal", "store.reach", "store.lock")
_KINDS = ("bits", "bits", "bits", "cut", "gap", "gone", "older", "older", "swapped", "peer's")


class Damage:
    """``chance`` draws what is done. ``folder`` keeps copies of the files of both nodes."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self._chance = chance
        self._folder = folder

    def keep(self, role: str, directory: Path) -> None:
        """Remember the files as they are."""
        shutil.copytree(directory, self._folder / role, dirs_exist_ok=True)

    def spoil(self, role: str, directory: Path) -> str:
        """Damage one file, or two that change places; returns what was done."""
        there = [name for name in FILES if (directory / name).exists() and (directory / name).stat().st_size]
        while True:
            path, kind = directory / self._chance.choice(there), self._chance.choice(_KINDS)
            before = path.read_bytes()
            what = self._do(kind, role, path)
            if what and (not path.exists() or path.read_bytes() != before):
                return f"{path.name}: {what}"

    def _do(self, kind: str, role: str, path: Path) -> str:
        content, chance = bytearray(path.read_bytes()), self._chance
        at = chance.randrange(len(content))
        match kind:
            case "bits":
                places = [chance.randrange(len(content)) for _ in range(chance.choice((1, 1, 3, 20)))]
                for place in places:
                    content[place] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
                return f"bits of bytes {places} of {len(content)} are flipped"
            case "cut":
                path.write_bytes(content[:at])
                return f"cut from {len(content)} to {at} bytes"
            case "gap":
                size = chance.choice((16, 512, 4096, 20_000))
                content[at : at + size] = bytes(len(content[at : at + size]))
                path.write_bytes(content)
                return f"{size} bytes from {at} on are zeros"
            case "gone":
                path.unlink()
                return "deleted"
            case "older" | "peer's":
                other = {"primary": "backup", "backup": "primary"}[role] if kind == "peer's" else role
                source = self._folder / other / path.name
                if source.exists():
                    shutil.copy(source, path)
                    return "an older file" if kind == "older" else "an older file of the other node"
            case "swapped":
                twin = path.with_name(chance.choice(FILES))
                if twin != path and twin.exists():
                    between = path.with_name("between")
                    path.rename(between)
                    twin.rename(path)
                    between.rename(twin)
                    return f"changed places with {twin.name}"
        return ""
