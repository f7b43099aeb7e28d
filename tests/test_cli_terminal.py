"""What people and terminals get to see: foreign text with escapes, colours where they are wanted, tables that
fit.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec
import pytest
from rich.table import Table

from bstar.base.printable import lines
from bstar_broker.core.snapshot import FrontState
from bstar_cli import exits, logs
from bstar_cli.diagnosis import Seen
from bstar_cli.logs import EventLog, has_colours
from bstar_cli.main import main
from bstar_cli.status import _fronts_table, _nodes_table, _room, _services_table, _stores_table
from bstar_cli.terminal import json_line, print_tables
from bstar_client import BstarError, HAClient, Worker
from support.brokers import lone_broker
from support.node_states import disk_state, node_state, service_state, store_state

# A title for the window, red, a new line that looks like ours, the 8-bit CSI, and a change of direction.
EVIL = "\x1b]0;owned\x07\x1b[31mred\nbstar: all is well\x9b2J\u202edone"
OBEYED = {char for char in EVIL if not char.isprintable()} - {"\n"}


def is_harmless(shown: str) -> bool:
    return not OBEYED & set(shown)


# --- the forms ----------------------------------------------------------------------------------------------


def test_lines_keep_line_breaks_and_tabs_and_escape_the_rest() -> None:
    assert lines("a\tb\nc\n") == "a\tb\nc\n"
    assert lines(EVIL) == r"\x1b]0;owned\x07\x1b[31mred" + "\n" + r"bstar: all is well\x9b2J\u202edone"
    assert lines(b"\xff\x00z\r\n") == r"\xff\x00z\r" + "\n"
    assert lines("x" * 10_000) == "x" * 10_000


def test_a_json_line_means_the_same_and_moves_no_terminal() -> None:
    value = {"text": EVIL + "\U000e0001 ünï", EVIL: [1, None]}
    told = json_line(value)
    assert json.loads(told) == value
    assert is_harmless(told)
    assert "\n" not in told
    assert json_line({"a": "ünï"}) == '{"a":"ünï"}'


# --- tables -------------------------------------------------------------------------------------------------


def tables(name: str = "a.rather.long.service.name.of.a.team") -> list[Table]:
    services = [service_state("echo", workers=2, queued=3, answered=123_456), service_state(name, answered=7)]
    active = node_state(
        *services,
        role="primary",
        state="ACTIVE",
        is_active=True,
        epoch=12,
        peer_state="PASSIVE",
        store=store_state(copies=1, catch_up=0.25, oldest_pending_s=7.0),
    )
    front = FrontState("ppp", {"clients": 3, "paranoid_workers": 2}, error="a door is closed")
    active = msgspec.structs.replace(active, fronts=[front])
    nodes = [
        Seen("tcp://10.0.0.1:5001", active),
        Seen("tcp://broker-backup.example.com:5002", None, "connection refused"),
    ]
    views = [seen.view for seen in nodes]
    services_table = _services_table(["#1", "#1"], views)
    stores_table = _stores_table(["#1", "#1"], views)
    assert services_table is not None
    assert stores_table is not None
    fronts_table = _fronts_table(["#1", "#1"], views)
    assert fronts_table is not None
    return [_nodes_table(["#1", "#1"], nodes), stores_table, fronts_table, services_table]


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_tables_show_every_word_at_any_width(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(*tables(), pipe_columns=columns)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    for word in (
        *("tcp://10.0.0.1:5001", "tcp://broker-backup.example.com:5002", "primary", "ACTIVE", "no answer"),
        *(
            "leads",
            "25%",
            "64.0 GiB",
            "3 clients, 2 paranoid workers",
            "a door is closed",
            "PASSIVE",
            "0.050 s",
            "echo",
            "a.rather.long.service.name.of.a.team",
            "123456",
        ),
    ):
        assert word in shown


@pytest.mark.parametrize(("free", "shown"), [(3 << 30, "3.0 GiB"), (7 << 20, "7 MiB"), (0, "0 MiB")])
def test_the_last_of_a_disk_is_told_in_mebibytes(free: int, shown: str) -> None:
    assert _room(disk_state(free_bytes=free)) == shown


def test_a_table_that_does_not_fit_is_a_paragraph_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(*tables(), pipe_columns=60)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "tcp://10.0.0.1:5001",
        "  role primary  state ACTIVE  epoch 12  peer PASSIVE",
        "  peer age 0.050 s  services 2  workers 2  queued 3",
        "tcp://broker-backup.example.com:5002",
        "  role -  state no answer",
        "",
        "primary",
        "  plays leads  copies 1  lag 25%  pending 4  oldest 7 s",
        "  running 2  answered 3  dead 2  disk free 64.0 GiB",
        "",
        "ppp",
        "  on primary  peers 3 clients, 2 paranoid workers",
        "  error a door is closed",
        "",
        "a.rather.long.service.name.of.a.team",
        "  on primary  workers 0  idle 0  in flight 0  queued 0",
        "  answered 7",
        "echo",
        "  on primary  workers 2  idle 0  in flight 0  queued 3",
        "  answered 123456",
    ]


def test_names_in_tables_move_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(*tables(EVIL + "[bold]"))
    shown = capsys.readouterr().out
    assert is_harmless(shown)
    assert r"\x1b[31mred\nbstar: all is well" in shown
    assert "[bold]" in shown


# --- logs ---------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before


@pytest.mark.parametrize(
    ("variables", "is_terminal", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
    ],
)
@pytest.mark.usefixtures("_own_logging")
def test_logs_have_colours_on_a_terminal_that_wants_them(
    variables: dict[str, str], is_terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = Terminal() if is_terminal else io.StringIO()
    assert has_colours(out) is wanted
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure_logs("info", "console")
    EventLog("bstar").info("ready", pid=1)
    assert ("\x1b[" in out.getvalue()) is wanted
    assert "ready" in out.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.usefixtures("_own_logging")
def test_a_log_line_with_foreign_text_is_one_line_and_moves_no_terminal(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure_logs("info", form)
    EventLog("bstar").warning(EVIL, service=EVIL, bare="\x1bc")
    logging.getLogger("bstar_client").warning("failed: %s", EVIL)
    shown = out.getvalue()
    assert is_harmless(shown)
    assert shown.count("\n") == 2


@pytest.mark.usefixtures("_own_logging")
def test_an_event_has_its_fields_and_those_of_an_applications_own_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: dict[str, list[str]] = {}
    for form in ("console", "json"):
        monkeypatch.setattr(sys, "stderr", out := io.StringIO())
        logs.configure_logs("info", form, process="2")
        EventLog("bstar.run").warning("a process ended", pid=7, name="a b", args=None)
        logging.getLogger("shop").info("%d orders", 3, extra={"customer": 4})
        shown[form] = out.getvalue().splitlines()
    first, second = (json.loads(line) for line in shown["json"])
    assert first.pop("timestamp") <= second.pop("timestamp")
    assert first == {
        "level": "warning",
        "logger": "bstar.run",
        "event": "a process ended",
        "process": "2",
        "pid": 7,
        "name": "a b",
        "args": None,
    }
    assert second == {"level": "info", "logger": "shop", "event": "3 orders", "process": "2", "customer": 4}
    assert [line.partition(" ")[2] for line in shown["console"]] == [
        "[warning  ] a process ended [bstar.run] args=None name='a b' pid=7 process=2",
        "[info     ] 3 orders [shop] customer=4 process=2",
    ]


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.usefixtures("_own_logging")
def test_a_traceback_in_the_log_moves_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure_logs("info", "console")
    logging.getLogger("bstar_client").error("failed", exc_info=raised(RuntimeError(EVIL)))
    assert is_harmless(out.getvalue())
    assert "Traceback (most recent call last):\n" in out.getvalue()
    assert r"RuntimeError: \x1b]0;owned\x07" in out.getvalue()


# --- commands -----------------------------------------------------------------------------------------------


@contextmanager
def terminal() -> Iterator[tuple[TextIO, Any]]:
    """A pseudo terminal to print on, and a function that reads what was printed."""
    head, tail = os.openpty()
    os.set_blocking(head, False)

    def read() -> str:
        read_octets = b""
        try:
            while octets := os.read(head, 65_536):
                read_octets += octets
        except OSError:  # nothing more
            pass
        return read_octets.decode(errors="replace")

    try:
        with os.fdopen(tail, "w", encoding="utf-8") as out:
            yield out, read
    finally:
        os.close(head)


@pytest.mark.loopback
def test_a_call_shows_a_terminal_escapes_and_a_pipe_the_octets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = EVIL.encode() + b"\xff"
    file = tmp_path / "body"
    file.write_bytes(body)
    with lone_broker(tmp_path) as node, Worker(node.endpoint, "echo", lambda request: request.frames):
        call = ["call", "echo", f"@{file}", "--endpoints", node.endpoint]
        with terminal() as (out, read):
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stdout", out)
                assert main(call) == exits.OK
            shown = read()
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stdout", out)
                assert main([*call, "--raw"]) == exits.OK
            asked_for = read()
        assert is_harmless(shown)
        assert shown.count("\n") == 2
        assert r"\x1b]0;owned" in shown
        assert "\x1b]0;owned\x07" in asked_for
        assert main(call) == exits.OK
        assert capfdbinary.readouterr().out == body
        assert main([*call, "second"]) == exits.OK
        assert capfdbinary.readouterr().out == body + b"\nsecond\n"
        assert main([*call, "--stream"]) == exits.OK
        assert capfdbinary.readouterr().out == body + b"\n"
        assert main([*call, "second", "--raw"]) == exits.OK
        assert capfdbinary.readouterr().out == body + b"second"
        assert main([*call, "--json"]) == exits.OK
        assert is_harmless(capfdbinary.readouterr().out.decode())


@pytest.mark.loopback
def test_errors_and_services_of_others_move_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> bytes:
        raise RuntimeError(EVIL)

    with lone_broker(tmp_path) as node, Worker(node.endpoint, EVIL, fail):
        where = ["--endpoints", node.endpoint]
        assert main(["call", EVIL, "x", *where]) == exits.FAILED
        assert main(["call", EVIL, "x", *where, "--json"]) == exits.FAILED
        assert main(["load", EVIL, *where, "--seconds", "0.3"]) == exits.FAILED
        with HAClient(node.endpoint) as client:
            for _ in range(3):
                with pytest.raises(BstarError):
                    client.request(EVIL + "?", b"x", timeout=0.3)
        assert main(["status", *where]) == exits.SERVICE_TROUBLE
        assert main(["status", *where, "--json"]) == exits.SERVICE_TROUBLE
    shown = capsys.readouterr()
    assert is_harmless(shown.out + shown.err)
    assert r"HandlerError: RuntimeError: \x1b]0;owned\x07\x1b[31mred\nbstar: all is well" in shown.err
    assert "\nbstar: all is well" not in shown.out + shown.err
    assert r"\nbstar: all is well\x9b2J\u202edone?: it has no worker" in shown.err
