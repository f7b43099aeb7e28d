"""An app in several processes under load: its processes are recycled, started anew and killed, nodes and a
client are killed, and callers give up.

Each request has a number. Its handler notes the execution and answers with the number; every fifth one waits
until its caller, which cancels it, has gone. Nothing else may be lost, answered with another number, answered
twice, or begun twice if its caller forbade that.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bstar_client import CallFuture, HAClient, OutcomeUnknownError, Reply
from bstar_testing import Pair, wait_until

ROUNDS = int(os.environ.get("ROUNDS") or 16)
SEED = int(os.environ.get("SEED") or 1)
LIMIT_S = 120.0
THREADS = 6
FAULTS = ("process", "node", "file", "client")

APP = """
import os
import threading

from bstar_client import App, Request

app = App({endpoints!r})
notes = os.open({notes!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


held = []


@app.service("count", threads=4, credit=8)
def count(request: Request) -> bytes:
    if len(held) < 1_000:
        held.append(b"x" * 100_000)
    os.write(notes, request.body + b"\\n")
    return request.body


@app.service("wait", threads=4)
def wait(request: Request) -> bytes:
    gone = threading.Event()
    request.on_cancel(gone.set)
    gone.wait({limit_s})
    os.write(notes, b"left " + request.body + b"\\n")
    return b""


@app.service("pid")
async def pid(request: Request) -> bytes:
    return b"%d" % os.getpid()
"""


# A client that is killed. Its requests are numbered within its life.
CLIENT = """
import itertools, os, sys

from bstar_client import HAClient, OutcomeUnknownError

life, nodes, path = sys.argv[1:]
answers = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
with HAClient(nodes, timeout={limit_s}) as client:
    for number in itertools.count():
        body = f"{{life}}.{{number}}".encode()
        try:
            reply = client.request("count", body, idempotent=number % 3 > 0).body
        except OutcomeUnknownError:
            assert number % 3 == 0
        else:
            os.write(answers, body + b" " + reply + b"\\n")
"""


class Mortal:
    """A client in a process of its own, which can be killed and begins another life."""

    def __init__(self, nodes: list[str], folder: Path) -> None:
        self.answers = folder / "answers"
        self.answers.touch()
        self.lives = 0
        self._nodes = ",".join(nodes)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Live, and ask."""
        self.lives += 1
        arguments = [str(self.lives), self._nodes, str(self.answers)]
        self._process = subprocess.Popen([sys.executable, "-c", CLIENT.format(limit_s=LIMIT_S), *arguments])

    def kill(self) -> None:
        """Die in the middle of a call, after the first answer of this life."""
        assert self._process is not None
        wait_until(self._has_answer, f"the client has an answer in life {self.lives}", limit_s=LIMIT_S)
        self._process.kill()
        self._process.wait()

    def _has_answer(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "it has lost a request"
        own = f"{self.lives}."
        return any(line.startswith(own) for line in self.answers.read_text().splitlines())


class Load:
    """Callers in threads until ``stop``. What each call came to, by its number."""

    def __init__(self, client: HAClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._number = 0
        self.is_over = False
        self.answers: dict[int, bytes] = {}
        self.unknown: set[int] = set()
        self.once: set[int] = set()
        self.left: list[CallFuture[Reply]] = []

    def ask(self) -> None:
        """Call after call. Every fifth is given up, every third is forbidden to run twice."""
        while not self.is_over:
            with self._lock:
                self._number = number = self._number + 1
            body = b"%d" % number
            if number % 5 == 0:
                self.left.append(future := self._client.begin("wait", body))
                time.sleep(0.02)  # how long the caller has patience
                future.cancel()
                continue
            is_once = number % 3 == 0
            if is_once:
                self.once.add(number)
            try:
                self.answers[number] = self._client.request("count", body, idempotent=not is_once).body
            except OutcomeUnknownError:
                assert is_once
                self.unknown.add(number)


@pytest.mark.parametrize(
    "limit", [("--requests-max", "300"), ("--memory-max", "100M")], ids=lambda limit: limit[0]
)
def test_nothing_is_lost_while_processes_are_recycled_and_killed(
    tmp_path: Path, limit: tuple[str, str]
) -> None:
    chance = random.Random(SEED)
    notes = tmp_path / "notes"
    with Pair(tmp_path / "pair") as pair:
        pair.start()
        source = APP.format(endpoints=list(pair.endpoints), notes=str(notes), limit_s=LIMIT_S)
        (tmp_path / "shop.py").write_text(source)
        options = ("--processes", "3", *limit, "--reload")
        mortal = Mortal(pair.endpoints, tmp_path)
        command = [sys.executable, "-m", "bstar_cli", "run", "shop:app", *options]
        with (
            (tmp_path / "log").open("w") as log,
            HAClient(pair.endpoints, timeout=LIMIT_S) as client,
            subprocess.Popen(command, cwd=tmp_path, stderr=log) as parent,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            try:
                client.request("pid", b"")
                load = Load(client)
                callers = [threads.submit(load.ask) for _ in range(THREADS)]
                mortal.begin()
                # Each of them comes, in any order.
                faults = [fault for _ in range(ROUNDS) for fault in chance.sample(FAULTS, len(FAULTS))]
                for fault in faults[:ROUNDS]:
                    _disturb(fault, pair, client, mortal, tmp_path)
                    time.sleep(chance.uniform(0.1, 0.8))  # ordinary life between two faults
                load.is_over = True
                mortal.kill()
                for caller in callers:
                    caller.result(LIMIT_S)
                parent.send_signal(signal.SIGTERM)
                assert parent.wait(LIMIT_S) == 0
            finally:
                load.is_over = True
                parent.kill()
    told = [line.split() for line in mortal.answers.read_text().splitlines()]
    print(
        f"{len(load.answers)} answered, {len(load.unknown)} unknown, {len(load.left)} given up, "
        f"{len(told)} answered in {mortal.lives} lives"
    )
    assert len(load.answers) > 20 * ROUNDS, "too little traffic proves nothing"
    assert all(answer == b"%d" % number for number, answer in load.answers.items())
    begun = Counter(line for line in notes.read_text().splitlines() if not line.startswith("left "))
    assert {number for number in load.once if begun[str(number)] > 1} == set()
    assert all(begun[str(number)] for number in load.answers)
    assert len(told) > ROUNDS, "too little traffic proves nothing"
    assert all(begun[number] for number, _ in told)
    assert [line for line in told if line[0] != line[1]] == []
    assert len({number for number, _ in told}) == len(told)
    twice = {number for number in begun if "." in number and begun[number] > 1}
    assert {number for number in twice if int(number.partition(".")[2]) % 3 == 0} == set()
    assert "replacing a process" in (tmp_path / "log").read_text()


def _disturb(what: str, pair: Pair, client: HAClient, mortal: Mortal, folder: Path) -> None:
    """One thing happens, and the app serves again."""
    if what == "process":
        os.kill(int(client.request("pid", b"").body), signal.SIGKILL)
    elif what == "node":
        node = pair.kill_active()
        client.request("pid", b"")
        node.start()
        pair.settled()
    elif what == "client":
        mortal.kill()
        mortal.begin()
    else:
        shop = folder / "shop.py"
        shop.write_text(shop.read_text() + "\n")
    wait_until(lambda: client.request("pid", b"").body, "the app serves", limit_s=LIMIT_S)
