"""The programs of examples/http, which docs/http.md names, place their order at one of two nodes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bstar_client import ReplyMemory, Request, Worker
from bstar_testing import Pair, pair
from support.curl import HTTP, wait_ready, working

pytestmark = pytest.mark.loopback

EXAMPLES = Path(__file__).parents[1] / "examples" / "http"
LIMIT_S = 240.0
PROGRAMS = {
    "order.sh": ["bash", "order.sh"],
    "order.mjs": ["node", "order.mjs"],
    "order.go": ["go", "run", "order.go"],
    "Order.java": ["java", "Order.java"],
    "order.cs": ["dotnet", "run", "order.cs"],
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Pair, list[bytes]]]:
    """A pair with a service that books, and what it has booked."""
    booked: list[bytes] = []

    def book(request: Request) -> bytes:
        booked.append(request.body)
        return b'{"order": "booked"}'

    with pair(workers=0, doors=[HTTP]) as p, working(Worker(p.endpoints, "book", book, dedupe=ReplyMemory())):
        for url in p.http_urls:
            wait_ready(url)
        yield p, booked


def test_these_are_all_programs() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_places_its_order(name: str, served: tuple[Pair, list[bytes]], tmp_path: Path) -> None:
    command = PROGRAMS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    p, booked = served
    text = (EXAMPLES / name).read_text()
    # The passive node first: the program has to ask the other one.
    for shipped, url in zip(("8081", "8082"), reversed(p.http_urls), strict=True):
        assert f"http://127.0.0.1:{shipped}" in text
        text = text.replace(f"http://127.0.0.1:{shipped}", url)
    (tmp_path / name).write_text(text)
    before = len(booked)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '{"order": "booked"}'
    assert [b"".join(body.split()) for body in booked[before:]] == [b'{"item":"lamp"}']
