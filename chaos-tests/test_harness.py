"""The harness itself: what it starts it ends, and what it tells the Toxiproxy server is so."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from toxiproxy import Proxy
from toxiproxy.api import APIConsumer

from bstar_testing.processes import environment, wait_until
from chaos.history import Note, Writer, read
from chaos.needs import CHAOS, need_toxiproxy
from chaos.toxics import DOWN, UP, Link, Links, ToxicError
from chaos.toxiproxy import Server

pytestmark = CHAOS


@pytest.fixture
def server_address() -> Iterator[str]:
    """The address of a server that lets everybody connect and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    need_toxiproxy()
    with Writer(tmp_path / "notes.jsonl") as journal, Server(tmp_path, journal) as server:
        made = Links(server, journal)
        yield made
        made.close()


@pytest.fixture
def link(links: Links, server_address: str) -> Link:
    links.route("one", server_address)
    return links["one"]


def notes(folder: Path) -> list[str]:
    return [line.what for line in read(folder / "notes.jsonl") if isinstance(line, Note)]


def connects(link: Link) -> bool:
    host, port = link.listen.split(":")
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_toxic_lasts_as_long_as_its_block(link: Link) -> None:
    with link.latency(ms=100, jitter_ms=10, stream=DOWN), link.stall(stream=UP):
        toxics = link._look().toxics()
        assert {name: toxic.attributes for name, toxic in toxics.items()} == {
            "latency_downstream": {"latency": 100, "jitter": 10},
            "bandwidth_upstream": {"rate": 0},
        }
    assert link._look().toxics() == {}


def test_a_link_that_is_down_refuses_and_comes_back_on_the_same_port(link: Link) -> None:
    listen = link.listen
    assert connects(link)
    with link.down():
        assert not connects(link)
    assert connects(link)
    assert link.listen == listen


def test_a_control_call_that_hangs_ends_with_the_proxy_made_anew(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(self: Proxy, name: str) -> None:
        raise requests.Timeout("it hangs")

    with monkeypatch.context() as patch, link.latency(ms=100):
        patch.setattr(Proxy, "destroy_toxic", hang)

    assert "recreate" in notes(tmp_path)
    assert link._look().toxics() == {}
    assert connects(link)


def test_a_server_that_hangs_is_started_anew_with_all_its_links(
    links: Links, link: Link, server_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links.route("two", server_address)

    def hang(self: Proxy, *arguments: object) -> None:
        raise requests.Timeout("it hangs")

    with monkeypatch.context() as patch, link.latency(ms=100), links["two"].latency(ms=100):
        patch.setattr(Proxy, "destroy_toxic", hang)
        patch.setattr(Proxy, "destroy", hang)

    assert "restart" in notes(tmp_path)
    assert connects(link)
    assert connects(links["two"])
    assert link._look().toxics() == links["two"]._look().toxics() == {}


def test_a_toxic_that_the_server_does_not_take_is_an_error(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proxy, "add_toxic", lambda self, **options: None)
    with pytest.raises(ToxicError, match="told otherwise"), link.latency(ms=100):
        pytest.fail("the block must not run")


def test_an_error_of_the_server_is_an_error_here(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = requests.Response()
    answer.status_code = 500
    monkeypatch.setattr(requests.Session, "request", lambda self, *_, **__: answer)
    with pytest.raises(ToxicError, match="500"):
        APIConsumer.get("/proxies")


def test_the_environments_proxy_is_not_asked(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with link.latency(ms=100):
        assert len(link._look().toxics()) == 2


def test_what_a_harness_has_started_ends_even_if_the_harness_is_killed(tmp_path: Path) -> None:
    """A process that does not look at its input is ended by the reaper."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from bstar_testing.processes import Process\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "argv = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        "process = Process('sleeper', argv, folder=folder)\n"
        "process.start()\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    harness = subprocess.run(
        (sys.executable, "-c", script), env=environment(), stdout=subprocess.PIPE, timeout=60, check=False
    )
    pid = int(harness.stdout)

    wait_until(lambda: not _lives(pid), "the sleeper has ended")


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
