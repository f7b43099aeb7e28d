"""The Go client and worker of clients/go beside a real pair, and beside Python's.

A machine without Go, with an older one than go.mod asks for, or without its module skips these tests and
says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest

from bstar_client import Declined, DeclinedError, HAClient, Request, Worker
from bstar_testing import Pair, Process, pair
from bstar_testing.processes import environment

GO = Path(__file__).parents[1] / "clients" / "go"
LIMIT_S = 600.0
SERVICE = "go.echo"

pytestmark = pytest.mark.loopback


def go(*arguments: str, folder: Path = GO, endpoints: str = "") -> subprocess.CompletedProcess[str]:
    """Run the go command; a machine without it skips the test."""
    found = shutil.which("go")
    if found is None:
        pytest.skip("no go on the PATH")
    # A workspace, a newer toolchain or a C compiler of this machine is not what users have.
    own = {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "BSTAR_ENDPOINTS": endpoints}
    return subprocess.run(
        [found, *arguments],
        cwd=folder,
        env={**environment(), **own},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of clients/go/internal/trial."""
    fetched = go("mod", "download")
    if fetched.returncode:
        pytest.skip(f"go mod download: {fetched.stderr.strip()}")
    program = tmp_path_factory.mktemp("go") / "trial"
    built = go("build", "-o", str(program), "./internal/trial")
    assert built.returncode == 0, built.stderr
    return str(program)


def keys_of(p: Pair, name: str) -> dict[str, str]:
    return {} if p.keys is None else p.keys.variables(name)


def start_workers(p: Pair, trial: str, count: int, credit: int, pause_ms: int = 0) -> list[Process]:
    """Go workers that both nodes list; each request takes them so long."""
    command = [trial, "worker", SERVICE, str(credit), str(pause_ms)]
    started = [p.start_process(f"go{number}", command, keys_of(p, "worker")) for number in range(count)]
    for node in p.nodes:
        node.wait_for(
            f"{count} Go workers",
            lambda state: (
                [each.workers for each in state.broker.services if each.service == SERVICE] == [count]
            ),
        )
    return started


class GoClient:
    """The trial's client, and the lines that it prints."""

    def __init__(self, p: Pair, trial: str, *arguments: object) -> None:
        variables = {"BSTAR_ENDPOINTS": ",".join(p.endpoints), **keys_of(p, "client")}
        self._process = subprocess.Popen(
            [trial, "client", SERVICE, *map(str, arguments)],
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()

    def tallies(self) -> Iterator[dict[str, object]]:
        """As they come; the last one is that of the end."""
        for line in self._lines:
            yield json.loads(line)
        assert self._process.wait() == 0


def answer(request: Request) -> bytes:
    match request.body:
        case b"raise":
            raise ValueError("told to")
        case b"decline":
            raise Declined("sold", "out", data=[7])
    return request.body


def count(request: Request) -> Generator[bytes, None, bytes]:
    for number in range(int(request.body)):
        yield b"%d" % number
    return b"done"


def test_the_go_tests_pass_beside_python_workers(trial: str) -> None:
    events = {"begun": threading.Event(), "cancelled": threading.Event()}

    def wait(request: Request) -> bytes:
        request.on_cancel(events["cancelled"].set)
        events["begun"].set()
        events["cancelled"].wait(LIMIT_S)
        return b""

    def waited(request: Request) -> bytes:
        assert events[request.body.decode()].wait(LIMIT_S)
        return b""

    with pair(workers=0) as p, ExitStack() as stack:
        for name, handler in {"answer": answer, "wait": wait, "waited": waited}.items():
            stack.enter_context(Worker(p.endpoints, f"go.{name}", handler, threads=4))
        stack.enter_context(Worker(p.endpoints, "go.count", count))
        for node in p.nodes:
            node.wait_for_workers(4)
        vetted = go("vet", "./...")
        assert vetted.returncode == 0, vetted.stderr
        done = go("test", "-count=1", "-timeout=5m", "./...", endpoints=",".join(p.endpoints))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_python_client_and_a_go_worker(trial: str) -> None:
    with pair(workers=0) as p, HAClient(p.endpoints, timeout=60) as client:
        worker, *_ = start_workers(p, trial, 1, 100)
        replies = [reply.body for reply in client.map(SERVICE, [b"%d" % n for n in range(2_000)], window=200)]
        assert replies == [b"%d" % n for n in range(2_000)]
        names = list(client.ask_all(SERVICE, b"x"))
        p.kill_active()
        assert client.request(SERVICE, b"x").body == b"x"
        # The other node knows it by the same name: that of its keepalives.
        assert names == list(client.ask_all(SERVICE, b"x"))
        assert len(names) == 1
        with pytest.raises(DeclinedError) as caught:
            client.request(SERVICE, b"decline")
        assert (caught.value.code, caught.value.text, caught.value.data) == ("sold", "out", [7])
        assert worker.stop() == 0


def sockets_of(process: Process) -> int:
    """How many sockets it has open."""
    count = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def test_what_a_stopped_go_worker_held_is_executed_elsewhere(trial: str) -> None:
    # A stopped worker whose keepalive went on would keep its request for longer than the call lives.
    with (
        pair(workers=0, settings={"timing.busy_timeout_s": 300.0}) as p,
        HAClient(p.endpoints, timeout=120) as client,
    ):
        (stopped,) = start_workers(p, trial, 1, 1, pause_ms=200_000)
        stopped.wait_until(lambda: sockets_of(stopped) == 4, "has a connection and a keepalive at each node")
        reply = client.begin(SERVICE, b"x")
        p.active().wait_for("the worker has it", lambda state: state.broker.services[0].in_flight == 1)
        with stopped.frozen():
            p.start_process("other", [trial, "worker", SERVICE, "1", "0"])
            assert reply.result().body == b"x"


def test_the_programs_of_the_page_run(trial: str, tmp_path: Path) -> None:
    blocks = re.findall(
        r"```go\n(// (\w+)\.go\n.*?)```", (GO.parents[1] / "docs" / "go.md").read_text(), re.DOTALL
    )
    assert [name for _, name in blocks] == ["client", "worker"]
    with pair(workers=0) as p:
        for text, name in blocks:
            folder = tmp_path / name
            folder.mkdir()
            for shipped, endpoint in zip(("5001", "5002"), p.endpoints, strict=True):
                text = text.replace(f"tcp://127.0.0.1:{shipped}", endpoint)  # noqa: PLW2901
            (folder / "main.go").write_text(text)
            for step in (
                ["mod", "init", "page"],
                ["mod", "edit", "-require=bstar@v0.0.0", f"-replace=bstar={GO}"],
                ["mod", "tidy"],
                ["build", "-o", name],
            ):
                done = go(*step, folder=folder)
                assert done.returncode == 0, done.stderr
        worker = p.start_process("page", [str(tmp_path / "worker" / "worker")])
        printed = subprocess.run(
            [tmp_path / "client" / "client"], capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        assert printed.stdout.splitlines() == ["HELLO <nil>", "0 A <nil>", "1 B <nil>", "2 C <nil>"]
        assert worker.stop() == 0


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "keys"])
def test_no_reply_is_lost_or_crossed_when_the_active_node_is_killed(trial: str, is_secure: bool) -> None:
    with pair(workers=0, is_secure=is_secure) as p:
        # Slow enough for the kill to come in the middle of the load.
        start_workers(p, trial, 2, 4, pause_ms=1)
        killed, last = p.active(), {}
        with GoClient(p, trial, 20_000, 200) as client:
            for last in client.tallies():
                if last["answered"] == 5_000:
                    killed.kill()
        assert last | {"seconds": 0} == {
            "answered": 20_000,
            "crossed": 0,
            "errors": 0,
            "first_error": "",
            "seconds": 0,
        }
        # Only a request turns the peer active, so the load was not over.
        assert p.active() is not killed
