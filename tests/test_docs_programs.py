"""Programs and commands of docs/ do what is said there: each page's are run as they stand, on free ports."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from bstar_testing import LoopbackHost
from support.brokers import Broker, broker_pair

ROOT = Path(__file__).parents[1]
LIMIT_S = 120.0

pytestmark = pytest.mark.loopback


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code on a page of docs/."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def programs(page: str) -> dict[str, str]:
    """The whole programs on it, by the name in their first line."""
    named = [re.match(r"# (\w+\.py)\n", block) for block in blocks(page, "python")]
    return {match[1]: match.string for match in named if match is not None}


def write(folder: Path, page: str, nodes: Sequence[Broker], names: set[str]) -> None:
    """The page's programs into files, with the endpoints of these nodes."""
    found = programs(page)
    assert found.keys() == names
    for name, text in found.items():
        for shipped, node in zip(("5001", "5002"), nodes, strict=True):
            assert shipped in text
            text = text.replace(f"tcp://127.0.0.1:{shipped}", node.endpoint)  # noqa: PLW2901
        (folder / name).write_text(text)


def run(folder: Path, name: str) -> list[str]:
    """What a program prints."""
    command = [sys.executable, name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextmanager
def running(folder: Path, name: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, name], cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_one_answer_per_key(tmp_path: Path) -> None:
    """docs/guarantees.md: two workers of each kind, and a client that asks three times with one key."""
    with broker_pair(tmp_path / "pair") as nodes, ExitStack() as stack:
        write(tmp_path, "guarantees.md", nodes, {"keeping.py", "booking.py", "buying.py"})
        for name in ("keeping.py", "booking.py") * 2:
            stack.enter_context(running(tmp_path, name))
        assert run(tmp_path, "buying.py") == ["b'order 1'", "b'1'"] * 3
        with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
            assert database.execute("SELECT what FROM orders").fetchall() == [(b"3 apples",)]


def test_clients_and_workers(tmp_path: Path) -> None:
    """docs/clients.md: all its programs."""
    with broker_pair(tmp_path / "pair") as nodes, ExitStack() as stack:
        write(tmp_path, "clients.md", nodes, {"ask.py", "work.py", "aio.py"})
        stack.enter_context(running(tmp_path, "work.py"))
        assert run(tmp_path, "ask.py") == [
            "b'HELLO'",
            "4000",
            *("0 Reply", "1 Reply", "2 Reply", "3 CallFailed"),
            "[b'0', b'1', b'2', b'done']",
            "CallTimeoutError may have been executed: False",
        ]
        assert run(tmp_path, "aio.py") == ["b'abab'", "1000", "0 b'aa'", "1 b'bb'"]


def test_two_pairs_on_one_machine(tmp_path: Path) -> None:
    """docs/fleet.md: what a newcomer types."""
    shipped = ["5001", "5002", "5003", "5004", "6001", "6002", "6003", "6004", "9401", "9402", "9501", "9502"]
    with LoopbackHost() as host:
        numbers = dict(zip(shipped, map(str, host.ports(len(shipped))), strict=True))

        def moved(text: str) -> str:
            return re.sub(r"(?<=127\.0\.0\.1:)\d{4}\b", lambda match: numbers[match[0]], text)

        (tmp_path / "configs").mkdir()
        for name in ("primary.yaml", "backup.yaml"):
            (tmp_path / "configs" / name).write_text(moved((ROOT / "configs" / name).read_text()))
        # Of a call only a terminal gets a line.
        typed = re.sub(
            r"^bstar call .*$", r"\g<0>; echo", "\n".join(blocks("fleet.md", "sh")), flags=re.MULTILINE
        )
        script = "set -e\ntrap 'kill $(jobs -p)' EXIT\n" + moved(typed)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    said = done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["pear", "apple"], said
    assert "all 2 pairs are served" in said
    rows = [line.split() for line in lines]
    measured = [row for row in rows if row[:1] in (["A"], ["east"], ["west"]) and "µs" in row]
    assert [row[0] for row in measured] == ["A", "east", "west"], said
    after = lines.index("pear", 2)
    assert "status 3" in lines[after:], said
    assert "NoActiveNodeError" in said
    assert "1 of 2 pairs: west: " in said
    assert "so nothing is known of the pair" in said


def test_plain_majordomo(tmp_path: Path) -> None:
    """docs/plain.md: a plain worker at both nodes, and a plain client before and after a node was killed."""
    with broker_pair(tmp_path / "pair") as nodes:
        write(tmp_path, "plain.md", nodes, {"plain_worker.py", "plain_client.py"})
        with running(tmp_path, "plain_worker.py"):
            assert run(tmp_path, "plain_client.py") == ["HELLO", "AGAIN"]
            nodes[0].kill()
            assert run(tmp_path, "plain_client.py") == ["HELLO", "AGAIN"]


def test_a_service_of_the_users_own_is_tested(tmp_path: Path) -> None:
    """docs/testing.md: the programs, and the snippet that opens the page."""
    found = programs("testing.md")
    assert found.keys() == {"prices.py", "test_prices.py"}
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "first.py").write_text(blocks("testing.md", "python")[0])
    assert run(tmp_path, "first.py") == []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_prices.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
