"""The programs of examples/http, which docs/http.md names, place their order at one of two nodes."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bstar_client import ReplyMemory, Request, Worker
from bstar_testing import Pair, pair
from support.chromium import chromium
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


def write_program(name: str, folder: Path, at: Pair) -> None:
    """The program with the pair's addresses, the passive node first: it has to ask the other one."""
    text = (EXAMPLES / name).read_text()
    for shipped, url in zip(("8081", "8082"), reversed(at.http_urls), strict=True):
        assert f"http://127.0.0.1:{shipped}" in text
        text = text.replace(f"http://127.0.0.1:{shipped}", url)
    (folder / name).write_text(text)


def test_these_are_all_programs() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == {*PROGRAMS, "page.html"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_places_its_order(name: str, served: tuple[Pair, list[bytes]], tmp_path: Path) -> None:
    command = PROGRAMS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    p, booked = served
    write_program(name, tmp_path, p)
    before = len(booked)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '{"order": "booked"}'
    assert [b"".join(body.split()) for body in booked[before:]] == [b'{"item":"lamp"}']


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: the log of a test is pytest's."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a server of ``tmp_path``'s files."""
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# JavaScript: a promise that holds when so many orders are answered.
ANSWERED = """new Promise((done, fail) => {{
  const answered = document.querySelector('#answered');
  const look = () => Number(answered.textContent) >= {0} && done(true);
  new MutationObserver(look).observe(answered, {{subtree: true, childList: true, characterData: true}});
  setTimeout(() => fail(new Error(document.body.innerText)), {1});
  look();
}})"""


def test_a_page_in_a_browser_orders_on_through_kill_9(tmp_path: Path, site: str) -> None:
    booked: list[int] = []

    def book(request: Request) -> bytes:
        booked.append(json.loads(request.body)["number"])
        return b'{"order": "booked"}'

    with (
        pair(workers=0, doors=[HTTP], settings={"fronts.http.origins": site}) as p,
        working(Worker(p.endpoints, "book", book, dedupe=ReplyMemory())),
        chromium(tmp_path / "profile") as browser,
    ):
        for url in p.http_urls:
            wait_ready(url)
        write_program("page.html", tmp_path, p)
        page = browser.open(f"{site}/page.html", width=1280, height=800, is_phone=False)
        assert page.evaluate(ANSWERED.format(5, LIMIT_S * 1000))
        killed = p.kill_active()
        assert page.evaluate(ANSWERED.format(len(booked) + 10, LIMIT_S * 1000))
        placed = page.evaluate("Number(document.querySelector('#placed').textContent)")
        assert page.evaluate(ANSWERED.format(placed, LIMIT_S * 1000))
        shown = page.evaluate("document.body.innerText")
        assert '{"order": "booked"}' in shown
        assert p.http_urls[1 - p.nodes.index(killed)] in shown
        assert set(range(1, placed + 1)) <= set(booked)
        assert len(set(booked)) == len(booked), "an order was booked twice"
