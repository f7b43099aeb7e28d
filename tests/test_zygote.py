"""What ``subprocess`` shows of a process that the zygote forked is what it shows of one that was executed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.loopback

COMMAND = (sys.executable, "-m", "bstar_cli")


@pytest.mark.parametrize("arguments", [("version",), ("call",), ("check-config", "missing.yaml")])
def test_output_and_exit_status_are_those_of_an_exec(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    def run(**extra: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            (*COMMAND, *arguments), cwd=tmp_path, env=os.environ | extra, capture_output=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert run() == run(BSTAR_TEST_EXEC="1")


def test_the_process_is_our_child_in_a_session_of_its_own_and_a_signal_ends_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        (*COMMAND, "worker", "--service", "x", "--endpoints", "tcp://127.0.0.1:1"),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
        is_there = Path(f"/proc/{process.pid}/cwd").samefile(tmp_path)
        process.kill()
    assert "zygote" in command
    assert [int(each) for each in stat[1:4]] == [os.getpid(), process.pid, process.pid]
    assert (is_there, process.returncode) == (True, -signal.SIGKILL)
