"""Shrinks the PPM files that it is given, and writes a PNG beside each.

python shrink.py SIDE FILE.ppm ...
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from pathlib import Path

from bstar_client import Ask, CallFailed, CallFuture, HAClient, Progress, Reply


def shrink(client: HAClient, paths: Iterable[Path], side: int) -> Iterator[str]:
    """One line for each file. The files are read as there is room for them, not all at once."""
    asked: list[Path] = []

    def images() -> Iterator[Ask]:
        for path in paths:
            asked.append(path)
            yield Ask(path.read_bytes(), headers={"side": str(side)})

    for outcome in client.map("thumbnail", images(), window=16, errors="return", progress=True):
        path = asked[outcome.index]
        if isinstance(outcome, CallFailed):
            yield f"{path}: {outcome.error}"
        else:
            written = path.with_suffix(".png").write_bytes(outcome.body)
            yield f"{path.with_suffix('.png')}: {written} bytes"


def sizes(
    client: HAClient,
    image: bytes,
    sides: Iterable[int],
    timeout: float,
    on_progress: Callable[[int, Progress], object] | None = None,
) -> list[bytes]:
    """The same image in several sizes at once. The first failure gives up the others.

    ``on_progress`` gets each side and how many of its rows are done.
    """

    def begin(side: int) -> CallFuture[Reply]:
        watch = None if on_progress is None else partial(on_progress, side)
        headers = {"side": str(side)}
        return client.begin("thumbnail", image, headers=headers, timeout=timeout, on_progress=watch)

    begun = [begin(side) for side in sides]
    _, waiting = wait(begun, return_when=FIRST_EXCEPTION)
    for each in waiting:
        each.cancel()  # its worker is free for others
    return [each.result().body for each in begun if not each.cancelled()]


if __name__ == "__main__":
    with HAClient(timeout=60) as shared:
        for line in shrink(shared, map(Path, sys.argv[2:]), int(sys.argv[1])):
            print(line)
