"""``bstar run``: processes that die, are replaced, are started anew, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from bstar_client import HAClient
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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as made:
        made.start()
        yield made


def write(folder: Path, pair: Pair, word: str = "one") -> None:
    (folder / "shop.py").write_text(APP.format(endpoints=list(pair.endpoints), word=word))


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a folder; its log is the file ``log``."""
    command = [sys.executable, "-m", "bstar_cli", "run", "shop:app", *options]
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


def test_a_process_with_too_much_memory_is_replaced(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--memory-max", "1M"), HAClient(pair.endpoints) as client:
        first = serving(client, 1)
        serving(client, 1, without=first)


def test_a_changed_file_starts_all_anew(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--reload"), HAClient(pair.endpoints) as client:
        first = serving(client, 1)
        assert client.request("word", b"").body == b"one"
        (tmp_path / "shop.py").write_text("what is this")
        wait_gone(first)
        write(tmp_path, pair, "another")
        serving(client, 1)
        assert client.request("word", b"").body == b"another"


def test_no_process_outlives_a_parent_that_is_killed(pair: Pair, tmp_path: Path) -> None:
    write(tmp_path, pair)
    with running(tmp_path, "--processes", "2") as process, HAClient(pair.endpoints) as client:
        both = serving(client, 2)
        process.kill()
        wait_gone(both)


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
            return all(f'worker="{slot}/{name}"' in pages[-1] for slot in (1, 2) for name in ("pid", "word"))

        wait_until(is_whole, "both processes are on the page", limit_s=LIMIT_S)
        with urlopen(f"{url.strip()}/readyz") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_here", "the app 'shop:app' cannot be imported: ModuleNotFoundError"),
        ("app = 7", "'shop:app' is int, not a bstar_client.App"),
        ("from bstar_client import App\napp = App(['tcp://127.0.0.1:1'])", "the App has no services"),
    ],
)
def test_an_app_that_cannot_be_served_is_one_sentence_and_status_2(
    source: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(source)
    with running(tmp_path, "--processes", "2") as process:
        assert process.wait(LIMIT_S) == 2
    assert told in (tmp_path / "log").read_text()
