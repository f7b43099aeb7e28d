"""``bstar run``: processes that die, are replaced, are started anew, and end with their parent."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from bstar_cli import exits, run, run_child
from bstar_cli.run import _PAUSE_MAX_S, LEAVES_S_MAX, _Pages, _Slot, _Supervisor
from bstar_client import App, CallFuture, HAClient, Reply
from bstar_testing import Pair, wait_until
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

APP = """
import os

from bstar_client import App, Request

app = App({endpoints!r})


@app.service("pid", threads=2)
def pid(request: Request) -> bytes:
    return b"%d" % os.getpid()


@app.service("word")
async def word(request: Request) -> bytes:
    return b"{word}"
"""


EMPTY = "from bstar_client import App\napp = App(['tcp://127.0.0.1:1', 'tcp://127.0.0.1:2'])\n"

UNREADABLE = "the annotation 'Nope' of x cannot be read: name 'Nope' is not defined; define it in the module"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


def write(folder: Path, pair: Pair, word: str = "one") -> None:
    (folder / "shop.py").write_text(APP.format(endpoints=list(pair.endpoints), word=word))


@contextmanager
def running(folder: Path, *options: str, before: Iterable[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command in a folder; its log is the file ``log``. ``before`` starts it."""
    command = [*before, sys.executable, "-m", "bstar_cli", "run", "shop:app", *options]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def serving(client: HAClient, count: int, without: Container[int] = ()) -> set[int]:
    """Wait until so many processes serve, none of them among ``without``. Requests go to all in turns."""
    found: set[int] = set()

    def are_there() -> bool:
        nonlocal found
        found = {int(client.request("pid", b"").body) for _ in range(3 * count)}
        return len(found) == count and not any(pid in without for pid in found)

    wait_until(are_there, f"{count} processes serve", limit_s=2 * LIMIT_S)
    return found


def wait_gone(processes: Iterable[int]) -> None:
    """Wait until none of them runs; one that nobody has buried yet does not."""

    def are_gone() -> bool:
        return not any(
            Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
            for pid in processes
        )

    wait_until(are_gone, "the processes have ended", limit_s=LIMIT_S)


def test_a_process_that_is_killed_is_started_again_and_all_end_with_sigterm(
    pair: Pair, tmp_path: Path
) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2") as process, HAClient(pair.endpoints) as client:
        first, second = serving(client, 2)
        os.kill(first, signal.SIGKILL)
        last = serving(client, 2, without={first})
        assert second in last
        assert client.request("word", b"").body == b"one"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        wait_gone(last)


def test_a_process_is_replaced_after_so_many_requests_and_none_is_lost(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2", "--requests-max", "20"), HAClient(pair.endpoints) as client:
        before = serving(client, 2)
        serving(client, 2, without=before)
        wait_gone(before)


# Work that takes a moment: each process always has some, and the load leaves a core to the replacement.
LEAK = """
import time

held = []


@app.service("leak", threads=2, credit=16)
def leak(request: Request) -> bytes:
    time.sleep(0.02)
    if len(held) < 100:
        held.append(b"x" * (1 << 20))
    return request.body
"""


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="no list of children"
)
@pytest.mark.parametrize(
    "limit", [("--requests-max", "200"), ("--memory-max", "90M")], ids=lambda each: each[0]
)
def test_under_load_processes_over_a_limit_are_replaced_one_at_a_time_and_nothing_is_lost(
    pair: Pair, tmp_path: Path, limit: tuple[str, str]
) -> None:
    write(tmp_path, pair)
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write(LEAK)
    bodies = [b"%d" % number for number in range(200)]
    most = 0
    with (
        running(tmp_path, "--processes", "2", *limit) as process,
        HAClient(pair.endpoints, timeout=LIMIT_S) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        serving(client, 2)
        first = set(children.read_text().split())
        is_over = threading.Event()

        def load() -> None:
            while not is_over.is_set():
                assert [reply.body for reply in client.map("leak", bodies, window=50)] == bodies

        def are_replaced() -> bool:
            nonlocal most
            now = children.read_text().split()
            most = max(most, len(now))
            return first.isdisjoint(now) or loading.done()

        loading = threads.submit(load)
        try:
            wait_until(are_replaced, "both are replaced", limit_s=3 * LIMIT_S)
        finally:
            is_over.set()
        loading.result(LIMIT_S)
        assert most == 3


def logged(folder: Path, *words: str) -> None:
    """Wait until the log has a line with all of these words."""

    def is_there() -> bool:
        lines = (folder / "log").read_text().splitlines()
        return any(all(word in line for word in words) for line in lines)

    wait_until(is_there, f"the log has {words}", limit_s=10 * LIMIT_S)


def test_a_changed_file_replaces_all_and_one_that_cannot_be_imported_none(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--reload"), HAClient(pair.endpoints) as client:
        first = serving(client, 1)
        assert client.request("word", b"").body == b"one"
        (tmp_path / "shop.py").write_text("what is this")
        logged(tmp_path, "cannot be imported: NameError")
        assert serving(client, 1) == first
        write(tmp_path, pair, "another")
        serving(client, 1, without=first)
        wait_gone(first)  # until then some requests may go there
        assert client.request("word", b"").body == b"another"


def test_a_new_process_that_holds_too_much_at_once_is_warned_of(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--memory-max", "1M"):
        logged(tmp_path, "a new process holds more than --memory-max")


def test_a_new_process_that_dies_at_once_is_started_again_after_pauses_that_grow(
    pair: Pair, tmp_path: Path
) -> None:
    write(tmp_path, pair)
    (tmp_path / "started").touch()
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write("import pathlib\n\npathlib.Path('started').unlink()\n")
    options = ("--requests-max", "1", "--log-format", "json")
    with running(tmp_path, *options), HAClient(pair.endpoints) as client:
        client.request("pid", b"")
        logged(tmp_path, "a process ended", '"starts_in_s": 3.2')
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line[:1] == "{"]
    ended_at, pause_s = 0.0, 0.0
    for line in lines:
        at = datetime.fromisoformat(line["timestamp"]).timestamp()
        if line["event"] == "a process ended":
            ended_at, pause_s = at, line["starts_in_s"]
        elif line["event"] == "replacing a process":
            assert at >= ended_at + pause_s - 0.1


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no prlimit")
def test_a_process_that_cannot_be_started_is_tried_again_and_the_others_serve_on(
    pair: Pair, tmp_path: Path
) -> None:
    """The parent ended, and killed all of them."""
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2") as process, HAClient(pair.endpoints) as client:
        first, second = serving(client, 2)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(first, signal.SIGKILL)
        logged(tmp_path, "a process cannot be started", "Too many open files")
        assert serving(client, 1, without={first}) == {second}
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        assert second in serving(client, 2, without={first})


@contextmanager
def supervising_one_that_ignores_sigterm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Supervisor]:
    """Of one process, which ignores SIGTERM already."""
    (folder / "shop.py").write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('ignores').touch()\n"
        "time.sleep(1_000)\n"
    )
    monkeypatch.chdir(folder)
    supervisor = _Supervisor(["shop:app", "info", "console"], 1, None, None)
    [slot] = supervisor.slots
    try:
        slot.child = supervisor._start(slot)
        wait_until((folder / "ignores").exists, "it ignores SIGTERM", limit_s=LIMIT_S)
        yield supervisor
    finally:
        supervisor.__exit__()


def test_an_old_process_that_does_not_end_is_killed_or_none_would_be_replaced_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervising_one_that_ignores_sigterm(tmp_path, monkeypatch) as supervisor:
        [slot] = supervisor.slots
        old, slot.child = slot.child, None
        assert old is not None
        slot.old.append(old)
        old.leave()
        supervisor._look(old.leaves_at + LEAVES_S_MAX - 1)
        with pytest.raises(subprocess.TimeoutExpired):
            old.process.wait(0.1)
        supervisor._look(old.leaves_at + LEAVES_S_MAX)
        assert old.process.wait(LIMIT_S) == -signal.SIGKILL


def test_a_process_whose_shutdown_hangs_does_not_keep_the_command_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervising_one_that_ignores_sigterm(tmp_path, monkeypatch) as supervisor:
        monkeypatch.setattr(run, "LEAVES_S_MAX", 0.5)
        stopping = threading.Thread(target=supervisor._stop, daemon=True)
        stopping.start()
        stopping.join(LIMIT_S)
        assert not stopping.is_alive()


def test_a_process_whose_shutdown_hangs_does_not_outlive_its_parent_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(run, "LEAVES_S_MAX", 0.0)
    monkeypatch.setattr(run_child, "os", SimpleNamespace(read=lambda *_: b"", _exit=ended.append))
    run_child._end_with_parent(App(), 0)
    assert ended == [exits.FAILED]


class StubChild:
    """A process as the supervisor sees it."""

    def __init__(self, *, began_at: float, is_ready: bool) -> None:
        self.slot, self.began_at, self.is_ready = 1, began_at, is_ready
        self.process = SimpleNamespace(pid=1)
        self.is_leaving = False
        self.leaves_at = 0.0

    def leave(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.is_leaving, self.leaves_at = True, self.began_at


def test_a_mended_file_is_tried_at_once_while_the_process_of_the_broken_one_hangs() -> None:
    """The startup function hung: the mended one began after 30 s, and 60 s more."""
    supervisor: Any = _Supervisor([], 1, None, None)
    supervisor._start = lambda slot: StubChild(began_at=30.0, is_ready=False)
    said: list[str] = []
    supervisor._log = SimpleNamespace(warning=lambda text, **_: said.append(text), info=lambda *_, **__: None)
    [slot] = supervisor.slots
    slot.child = StubChild(began_at=0.0, is_ready=True)
    slot.next = hangs = StubChild(began_at=10.0, is_ready=False)
    supervisor._changed_at = 10.0
    supervisor._look(20.0)
    assert slot.next is hangs
    supervisor._changed_at = 30.0
    supervisor._look(30.0)
    assert hangs.is_leaving
    assert said == ["a file has changed again: the new process is replaced before it serves"]
    assert slot.old == [hangs]
    assert slot.next.began_at == 30.0
    assert not slot.child.is_leaving
    slot.child = slot.next = None
    slot.old.clear()
    supervisor.__exit__()


def test_after_thousands_of_deaths_in_a_row_the_pause_is_the_longest() -> None:
    """It was an OverflowError, which ended the parent and all processes."""
    slot = _Slot(1)
    slot.deaths = 5_000
    assert slot.pause_s == _PAUSE_MAX_S


def test_processes_log_as_the_command_says(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write('import logging\n\nlogging.getLogger("shop").info("an apple")\n')
    with running(tmp_path, "--log-format", "json"):
        logged(tmp_path, '"event": "an apple"', '"process": "1"', '"level": "info"')


def test_no_process_outlives_a_parent_that_is_killed(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2") as process, HAClient(pair.endpoints) as client:
        both = serving(client, 2)
        process.kill()
        wait_gone(both)


READS_INPUT = """
import subprocess


@app.service("input", timeout=5)
def read_input(request: Request) -> bytes:
    return os.read(0, 10) + subprocess.run(["cat"], stdout=-1, check=True).stdout
"""


def test_handlers_and_their_programs_have_an_empty_standard_input(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write(READS_INPUT)
    with running(tmp_path), HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        assert client.request("input", b"").body == b""


SLOW = """
import pathlib
import time


@app.service("slow")
def slow(request: Request) -> bytes:
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return b"done"
"""


@contextmanager
def busy(folder: Path, pair: Pair) -> Iterator[tuple[subprocess.Popen[str], CallFuture[Reply]]]:
    """The command with two processes, one of which executes a request until the file ``go`` is there."""
    write(folder, pair)
    with (folder / "shop.py").open("a") as shop:
        shop.write(SLOW)
    with running(folder, "--processes", "2") as process, HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        call = client.begin("slow", b"")
        wait_until((folder / "begun").exists, "the request is executed", limit_s=LIMIT_S)
        yield process, call


def test_sigterm_lets_a_request_that_is_executed_finish(pair: Pair, tmp_path: Path) -> None:
    with busy(tmp_path, pair) as (process, call):
        process.send_signal(signal.SIGTERM)
        logged(tmp_path, "stopping")
        assert process.poll() is None
        (tmp_path / "go").touch()
        assert call.result(LIMIT_S).body == b"done"
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_all_at_once(pair: Pair, tmp_path: Path, second: signal.Signals) -> None:
    with busy(tmp_path, pair) as (process, call):
        process.send_signal(signal.SIGTERM)
        logged(tmp_path, "stopping")
        process.send_signal(second)
        assert process.wait(LIMIT_S) == exits.INTERRUPTED
        assert not call.done()
        (tmp_path / "go").touch()  # a process that outlived it would answer now
        call.cancel()


ORPHAN = """
import pathlib
import subprocess


@app.service("orphan")
def orphan(request: Request) -> bytes:
    return subprocess.check_output(["sh", "-c", "sleep 0.2 >/dev/null & echo $!"])


@app.service("is there")
def is_there(request: Request) -> bytes:
    return b"%d" % pathlib.Path("/proc", request.body.decode()).exists()
"""


def test_as_the_first_process_of_a_container_it_buries_what_others_leave_behind(
    pair: Pair, tmp_path: Path
) -> None:
    alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may make no namespaces")
    write(tmp_path, pair)
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write(ORPHAN)
    with running(tmp_path, before=alone), HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        orphan = client.request("orphan", b"").body.strip()
        wait_until(lambda: client.request("is there", orphan).body == b"0", "it is buried", limit_s=LIMIT_S)


def test_one_page_has_the_metrics_of_all_processes(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2", "--http", "127.0.0.1:0"), HAClient(pair.endpoints) as client:
        serving(client, 2)
        url = ""

        def has_told() -> bool:
            nonlocal url
            url = (tmp_path / "log").read_text().partition("http=")[2].partition(" ")[0]
            return url != ""

        wait_until(has_told, "the parent tells its address", limit_s=LIMIT_S)
        pages: list[str] = []

        def is_whole() -> bool:
            with urlopen(f"{url.strip()}/metrics") as answer:
                pages.append(answer.read().decode())
            names = [f'worker="{slot}/{name}"' for slot in (1, 2) for name in ("pid", "word")]
            names += ['bstar_run_memory_bytes{process="2"}', 'bstar_run_ended_total{why="died"}']
            return all(name in pages[-1] for name in names)

        wait_until(is_whole, "both processes are on the page", limit_s=LIMIT_S)
        with urlopen(f"{url.strip()}/readyz") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_here", "the app 'shop:app' cannot be imported: ModuleNotFoundError"),
        ("app = 7", "'shop:app' is int, not a bstar_client.App"),
        (EMPTY, "the App has no services"),
        (f"{EMPTY}@app.service('a')\ndef a(request, thing: dict): pass", "parameter 'thing' has type dict"),
        (f"{EMPTY}@app.service('a', threads=0)\ndef a(request): pass", "service 'a': threads is 1 to 1000"),
        (f"{EMPTY}@app.service\ndef a(request): pass", "@app.service takes a name"),
        (f"{EMPTY}@app.service('a')\ndef x(a: 'Nope'): pass", f"service 'a': {UNREADABLE}"),
        (f"{EMPTY}@app.service('a')\ndef x(a: '1 +'): pass", "service 'a': the annotation '1 +' of x"),
        (f"{EMPTY}@app.service('a')\ndef x(a, b: 'Nope'): pass", f"service 'a': {UNREADABLE}"),
        (f"{EMPTY}@app.startup\ndef x(b: 'Nope'): pass\n@app.service('a')\ndef a(r): pass", UNREADABLE),
        (f"{EMPTY}@app.resource\ndef x() -> 'Nope': yield 1", UNREADABLE),
        (
            f"{EMPTY}@app.around\ndef log(request, call): pass\n@app.service('a')\nasync def a(r): pass",
            "log (def) does not go around services with async def: 'a'; write its other form",
        ),
    ],
)
def test_an_app_that_cannot_be_served_is_one_sentence_and_status_2(
    source: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(source)
    # That it is so with several is the command's part, whatever is wrong with the app.
    with running(tmp_path, "--processes", "2" if source == EMPTY else "1") as process:
        assert process.wait(LIMIT_S) == 2
    log = (tmp_path / "log").read_text()
    assert told in log
    assert "Traceback" not in log


class Fleeting(_Slot):
    """Its child dies between two looks of the thread that shows the pages."""

    _looks = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name != "child":
            super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if name != "child":
            return super().__getattribute__(name)
        self._looks += 1
        return SimpleNamespace(memory_bytes=5, figures=[], is_ready=True) if self._looks % 2 else None


@pytest.mark.parametrize("page", ["health", "readiness", "metrics"])
def test_a_process_that_dies_while_a_page_is_made_does_not_end_the_page(page: str) -> None:
    supervisor: Any = SimpleNamespace(slots=[Fleeting(1)], ended=Counter())
    assert getattr(_Pages(supervisor), page)("").status == 200
