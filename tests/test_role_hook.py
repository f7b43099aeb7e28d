"""The operator's program at a change of state: it runs beside the node, in order, and not for ever."""

from __future__ import annotations

import errno
import logging
import os
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from bstar.errors import ConfigurationError
from bstar.settings import Hooks, Settings, sample_settings
from bstar.star import Event, State, StateChanged
from bstar_broker.operate.role_hook import RoleHook
from bstar_testing.processes import wait_until

pytestmark = pytest.mark.loopback

TAKEN_OVER = StateChanged(State.PASSIVE, State.ACTIVE, Event.CLIENT_REQUEST, "a client's vote")
STEPPED_DOWN = StateChanged(State.ACTIVE, State.PASSIVE, Event.PEER_ACTIVE, "the peer serves")


def hooked(program: Path | str, timeout_s: float = 60.0) -> Settings:
    hooks = Hooks(on_role_change=str(program), timeout_s=timeout_s)
    return msgspec.structs.replace(sample_settings("backup"), hooks=hooks)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def made(text: str) -> Path:
        program = tmp_path / "hook"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return program

    return made


def test_changes_come_in_order_with_all_that_is_known(write: Callable[[str], Path], tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = write(f'echo "$BSTAR_PAIR $BSTAR_ROLE|$1|$2|$3|$4" >> {told}')
    epoch = 3
    with RoleHook(hooked(program), lambda: epoch) as hook:
        hook.observe(TAKEN_OVER)
        epoch = 4
        hook.observe(STEPPED_DOWN)
    assert told.read_text().splitlines() == [
        "bstar backup|passive|active|3|a client's vote",
        "bstar backup|active|passive|4|the peer serves",
    ]


def test_a_program_that_fails_is_logged_with_its_output(
    write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with RoleHook(hooked(write("echo no address >&2; exit 3")), int) as hook:
        hook.observe(TAKEN_OVER)
    assert "ended with 3: no address" in caplog.text


def test_a_program_that_hangs_is_killed_with_what_it_started(
    write: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child = tmp_path / "child"
    program = write(f"sleep 1000 & echo $! > {child}; wait")
    with RoleHook(hooked(program, timeout_s=0.5), int) as hook:
        hook.observe(TAKEN_OVER)
        wait_until(lambda: "was stopped after 0.5 s" in caplog.text, "the program is killed")
    if child.exists():  # a busy machine may kill the program before it has begun
        stat = Path(f"/proc/{child.read_text().strip()}/stat")
        wait_until(lambda: not stat.exists() or ") Z" in stat.read_text(), "its child is gone")


def test_a_program_may_leave_another_one_behind(
    write: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one holds the output of the first open, in a session of its own."""
    caplog.set_level(logging.INFO)
    left = tmp_path / "left"
    behind = f"setsid sh -c 'echo $$ > {left}; exec sleep 600' &"
    program = write(f'echo "$2"; test "$2" = passive || {{ {behind} }}')
    with RoleHook(hooked(program, 1.0), int) as hook:
        hook.observe(TAKEN_OVER)
        hook.observe(STEPPED_DOWN)
        wait_until(lambda: "active -> passive" in caplog.text, "the next one has run")
    assert "passive -> active was stopped after 1 s" in caplog.text
    if left.exists():  # a busy machine may kill the program before it has begun
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_what_a_program_writes_is_not_kept_beyond_what_is_shown(
    write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    tracemalloc.start()
    try:
        with RoleHook(hooked(write("echo begun; head -c 50000000 /dev/zero; exit 3")), int) as hook:
            hook.observe(TAKEN_OVER)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "ended with 3: begun" in caplog.text
    assert peak_bytes < 5_000_000


def test_a_program_that_writes_without_end_is_stopped(
    write: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with RoleHook(hooked(write("exec yes"), timeout_s=0.5), int) as hook:
        hook.observe(TAKEN_OVER)
    assert "was stopped after 0.5 s" in caplog.text


def test_a_program_that_may_not_be_killed_does_not_end_the_hook(
    write: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It runs as another user, as sudo does. The next change does not wait for its end."""
    caplog.set_level(logging.INFO)
    may_not = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    monkeypatch.setattr(os, "killpg", Mock(side_effect=may_not))
    script = f'test "$1" = active || {{ echo $$ > {tmp_path}/pid; exec sleep 1000; }}'
    with RoleHook(hooked(write(script), timeout_s=0.5), int) as hook:
        hook.observe(TAKEN_OVER)
        hook.observe(STEPPED_DOWN)
        wait_until(lambda: "active -> passive" in caplog.text, "the next one has run")
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        hook.observe(STEPPED_DOWN)
    assert "passive -> active runs on as another user (Operation not permitted)" in caplog.text


@pytest.mark.parametrize("name", ["no-such-program", "not-executable"])
def test_a_program_that_cannot_run_stops_the_start(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    if name == "not-executable":
        program.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigurationError, match=r"hooks\.on_role_change: .* is no program .*chmod"):
        RoleHook(hooked(program), int)
