"""The test kit that users get: what it starts serves, what it breaks is broken, what goes wrong is told."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bstar_client import Request
from bstar_testing import HarnessError, LoopbackHost, Pair, Process, pair, wait_until
from bstar_testing.processes import stopped
from bstar_testing.reaper import REAPER

pytestmark = pytest.mark.loopback


def shout(request: Request) -> bytes:
    """A handler that workers find because this module can be imported here."""
    return request.body.upper()


def test_a_pair_answers_whatever_happens_to_its_active_node() -> None:
    with pair(workers=2) as p:
        client = p.client()
        assert client.request("echo", b"a").body == b"a"
        killed = p.kill_active()
        assert killed is p.primary
        assert client.request("echo", b"b").body == b"b"
        assert p.active() is p.backup
        killed.start()
        p.settled()
        with p.backup.frozen():
            assert client.request("echo", b"c").body == b"c"
        p.workers[0].kill()
        assert client.request("echo", b"d").body == b"d"
        assert p.workers[1].stop() == 0
        p.primary.wait_for_workers(0)
        folder = p.folder
    assert not folder.exists()
    assert not any(process.is_running for process in p.processes)


def test_workers_run_a_handler_of_the_test() -> None:
    with pair(workers=0, settings={"limits.queue_length_max": 3}) as p:
        p.start_workers(1, f"{__name__.rpartition('.')[2]}:shout", service="shout")
        assert p.client(timeout=20).request("shout", b"x").body == b"X"


def test_a_process_finds_the_pair_and_has_the_variables_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BSTAR_KEY", "the user's own")
    ask = "import os, bstar_client; print(bstar_client.HAClient().request('echo', os.environb[b'BSTAR_X']))"
    with pair() as p:
        asker = p.start_process("asker", [sys.executable, "-c", ask], {"BSTAR_X": "as given"})
        assert asker.wait_exit() == 0, asker.trouble()
        assert "as given" in asker.log()


def test_an_unknown_option_of_a_pair_names_those_that_there_are() -> None:
    with (
        pytest.raises(TypeError, match=r"pair\(\) has no option 'worker'; its options: workers, handler, "),
        pair(worker=2),
    ):
        pass


def test_a_process_that_ends_by_itself_fails_the_block_and_its_log_is_kept() -> None:
    with pytest.raises(HarnessError, match="ended by themselves: stray") as caught:  # noqa: PT012, SIM117 - it fails at its end
        with pair(workers=0) as p:
            p.start_process("stray", [sys.executable, "-c", "raise SystemExit('lost its way')"])
            wait_until(lambda: p.odd_ends, "the stray ends")
    notes = "\n".join(caught.value.__notes__)
    assert str(p.folder) in notes
    assert "stray ended with 1" in notes
    assert "lost its way" in (p.folder / "stray.log").read_text()


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    settings = {"timing.failover_timeout_s": -1.0}
    with (
        Pair(tmp_path, settings=settings) as p,
        pytest.raises(HarnessError, match="primary ended with 2") as caught,
    ):
        p.primary.start()
    assert "timing.failover_timeout_s" in "\n".join(caught.value.__notes__)


def test_a_wait_for_a_process_that_has_ended_is_over_at_once(tmp_path: Path) -> None:
    process = Process("short", [sys.executable, "-c", "print('said'); raise SystemExit(3)"], folder=tmp_path)
    with process:
        process.wait_for_log("said")
        assert process.wait_exit() == 3
        with pytest.raises(HarnessError, match="short ended with 3; expected: writes 'more'"):
            process.wait_for_log("more")
        with pytest.raises(HarnessError, match="terminate: short has ended already"):
            process.terminate()


STOPPING = """
import subprocess, sys
from bstar_testing.processes import stopped
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with stopped(child.pid):
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_what_stands_still_is_ended_with_the_harness() -> None:
    argv = [sys.executable, "-c", STOPPING]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        stat = Path(f"/proc/{int(harness.stdout.readline())}/stat")
        harness.kill()

    def has_ended() -> bool:
        return not stat.exists() or ") Z " in stat.read_text()

    wait_until(has_ended, "the group was killed")


def test_a_harness_that_ends_leaves_no_warning(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from bstar_testing.processes import Process\n"
        "with Process('short', ['cat'], folder=pathlib.Path(sys.argv[1])): pass"
    )
    argv = [sys.executable, "-W", "default", "-c", program, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_pair_ends_every_process_although_something_else_does_not_end(tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError("no end")

    made = Pair(tmp_path)
    first, second = (made.start_process(f"process{each}", ["cat"]) for each in range(2))
    client = made.client()
    with pytest.MonkeyPatch.context() as patch:
        for each in (client, first):
            patch.setattr(each, "close", refuse)
        with pytest.raises(OSError, match="no end"):
            made.close()
    assert not second.is_running
    made.close()
    assert not first.is_running


def test_a_group_that_cannot_be_stopped_is_not_left_to_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(REAPER, "_tell", told.append)
    with subprocess.Popen(["true"], start_new_session=True) as ended:
        pass
    with pytest.raises(ProcessLookupError), stopped(ended.pid):
        pytest.fail("it has ended")
    assert told == [f"+{ended.pid}\n", f"-{ended.pid}\n"]


def test_a_key_that_no_configuration_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"timing\.nonsense"):
        Pair(tmp_path, settings={"timing.nonsense": 1})


def test_ports_of_a_host_stay_its_own_until_it_is_closed() -> None:
    with LoopbackHost() as host:
        [port] = host.ports(1)
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
