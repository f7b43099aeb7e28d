"""The durable demo's client: a process that submits requests, or fetches their answers, and notes each.

Its notes are lines of two files, each written with one system call: ``acknowledged`` has the number and the
id of each request that is stored, ``answers`` the number and the answer of each fetch. A client that was
killed goes on where its notes end.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bstar.errors import BstarError
from bstar_client import HAClient, Task

# Far longer than it takes to start everything again.
CALL_TIMEOUT_S = 30.0
_FETCHERS = 32


def main(arguments: list[str]) -> int:
    """``ENDPOINTS SERVICE FOLDER submit COUNT``, or ``… fetch PASS``: all of them, noted with this word."""
    endpoints, service, place, what, text = arguments
    folder = Path(place)
    with HAClient(endpoints.split(","), timeout=CALL_TIMEOUT_S) as client:
        if what == "submit":
            _submit(client, service, folder, int(text))
        else:
            _fetch(client, folder, text)
    return 0


def _submit(client: HAClient, service: str, folder: Path, count: int) -> None:
    stored = read_pairs(folder / "acknowledged")
    known = {number for number, _ in stored}
    left = [number for number in map(str, range(count)) if number not in known]
    # The key makes a request that was stored and not acknowledged the same one.
    tasks = [Task(number.encode(), key=number) for number in left]
    notes = _open(folder / "acknowledged")
    for number, request in zip(left, client.submit_many(service, tasks), strict=True):
        os.write(notes, f"{number} {request}\n".encode())


def _fetch(client: HAClient, folder: Path, word: str) -> None:
    notes = _open(folder / f"answers-{word}")

    def fetch(stored: tuple[str, str]) -> None:
        number, request = stored
        try:
            answer = client.result(request).body.decode("utf-8", "replace")
        except BstarError as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(notes, f"{number} {answer}\n".encode())

    with ThreadPoolExecutor(_FETCHERS) as pool:
        list(pool.map(fetch, read_pairs(folder / "acknowledged")))


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The lines of a file of notes; none if there is no file."""
    if not path.exists():
        return []
    pairs = (line.partition(" ") for line in path.read_text().splitlines())
    return [(first, rest) for first, _, rest in pairs]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
