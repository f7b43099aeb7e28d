"""Another version of everything: ``python -m chaos.another TREE MODULE ARGUMENT…``.

``TREE`` is a checkout as ``another_tree`` makes it. The module, all that it imports of bstar, and the chaos
tests' own programs (``chaos.worker``, ``chaos.client``) come from there; other libraries are this
installation's.
"""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("bstar", "broker", "client", "cli", "testing", "chaos-tests")


def another_version() -> str:
    """The commit or tag that CHAOS_OTHER names, otherwise the last release; empty if there is none."""
    asked = os.environ.get("CHAOS_OTHER", "")
    return asked or _git("tag", "--list", "v*", "--sort=-version:refname").decode().partition("\n")[0]


def another_tree(version: str, folder: Path) -> Path:
    """The files of this commit or tag in a folder. RuntimeError if git does not know it."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", version, *_PACKAGES))) as files:
        files.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def _forget(packages: Iterable[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def main() -> None:
    """Run the module as ``python -m`` does, from the tree."""
    _, tree, module, *arguments = sys.argv
    sys.path[:0] = [str(Path(tree) / package) for package in _PACKAGES]
    _forget({"chaos"})
    for package in ("bstar", "bstar_client", module.partition(".")[0]):
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None or not Path(found.origin).is_relative_to(tree):
            sys.exit(f"{package} is not in {tree}")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
