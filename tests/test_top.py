"""``bstar top``: rates and latencies between two looks, in an order, within 80 columns."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from bstar_cli import exits
from bstar_cli.diagnosis import Seen
from bstar_cli.main import main
from bstar_cli.terminal import print_tables
from bstar_cli.top import Sample, SortBy, rows, tables
from bstar_client.calls.status import NodeReport
from bstar_testing import LoopbackHost
from support.node_states import node_state, service_state

A = "tcp://a:5001"
# In the buckets up to 1 ms and up to 10 ms.
QUICK, SLOW = 1, 4


def counts(quick: int, slow: int) -> list[int]:
    made = [0] * 16
    made[QUICK], made[SLOW] = quick, slow
    return made


def sample(at: float, *services: Any) -> Sample:
    state = node_state(*services, role="primary", state="ACTIVE", is_active=True)
    return Sample([Seen.of(NodeReport(A, msgspec.to_builtins(state), None))], at)


BEFORE = sample(
    10.0,
    service_state("echo", answered=1000, latency_counts=counts(1000, 0)),
    service_state("idle", answered=5, queued=9),
)
NOW = sample(
    12.0,
    service_state("echo", answered=1100, latency_counts=counts(1090, 10)),
    service_state("idle", answered=5, queued=9),
)


def test_rates_and_latencies_are_those_between_two_looks() -> None:
    echo, idle = rows(BEFORE, NOW, SortBy.RATE)
    assert (echo.rate, echo.latency_s(0.5), echo.latency_s(0.99)) == (50.0, 0.001, 0.01)
    assert (idle.rate, idle.latency_s(0.5)) == (0.0, None)


@pytest.mark.parametrize(
    ("by", "first"), [(SortBy.RATE, "echo"), (SortBy.QUEUED, "idle"), (SortBy.NAME, "echo")]
)
def test_services_are_sorted(by: SortBy, first: str) -> None:
    assert rows(BEFORE, NOW, by)[0].service.service == first


def test_a_node_that_started_again_has_no_negative_rate() -> None:
    assert [row.rate for row in rows(NOW, BEFORE, SortBy.NAME)] == [0.0, 0.0]


def test_the_picture_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(*tables(BEFORE, NOW, SortBy.RATE), pipe_columns=80)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:4] for line in lines if line.startswith("echo")] == [["echo", "50.0/s", "1", "ms"]]


@pytest.mark.parametrize(("is_denied", "word"), [(False, "no answer"), (True, "not allowed")])
def test_a_node_that_refuses_this_key_has_answered(
    is_denied: bool, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = Sample([Seen(A, None, "why", is_denied)], 10.0)
    print_tables(*tables(silent, silent, SortBy.RATE), pipe_columns=80)
    assert f"{A}  {word} " in capsys.readouterr().out


def test_without_a_terminal_it_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == exits.USAGE
    assert "use --once" in capsys.readouterr().err


@pytest.mark.loopback
def test_once_it_says_why_a_node_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.1", "--endpoints", "tcp://127.0.0.1:1"]) == exits.FAILED
    assert capsys.readouterr().err == "tcp://127.0.0.1:1: connection refused: no process listens there\n"


@pytest.mark.loopback
def test_on_a_terminal_it_goes_on_until_q_is_pressed() -> None:
    host = LoopbackHost()
    ours, theirs = os.openpty()
    nobody = f"tcp://127.0.0.1:{host.ports(1)[0]}"
    command = [sys.executable, "-m", "bstar_cli", "top", "--interval", "0.1", "--endpoints", nobody]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment) as running:
        os.close(theirs)
        shown = b""
        while b"no answer" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        # A terminal without a process is an error to its reader.
        with suppress(OSError):
            while os.read(ours, 4096):
                pass
        assert running.wait() == exits.OK
    os.close(ours)
    host.close()
