"""The bar of ``map(progress=True)``: on a terminal, with Rich and without it, and nowhere else."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator

import pytest

from bstar.errors import LocalProtocolError
from bstar_client import CallFailed, HandlerError, Request
from bstar_client.calls.bar import MapBar
from bstar_client.core.calls import Reply
from bstar_testing import fake


class Terminal(io.StringIO):
    """A standard error that is one."""

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes standard error a terminal. In the test's own body: pytest sets it anew before that."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)


def half(request: Request) -> bytes:
    if int(request.body) % 2:
        raise ValueError("odd")
    return b""


BODIES = [b"%d" % number for number in range(10)]


@pytest.mark.usefixtures("no_rich")
def test_without_rich_a_line_is_written_over_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with fake({"half": half}) as client:
        outcomes = list(client.map("half", BODIES, errors="return", progress=True))
    assert sum(isinstance(outcome, CallFailed) for outcome in outcomes) == 5
    written = terminal.getvalue()
    assert written.startswith("\rhalf: 1 of 10")
    assert written.endswith("\rhalf, 5 failed: 10 of 10\n")
    assert written.count("\n") == 1


def test_with_rich_it_is_a_bar_that_stays_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with fake({"half": half}) as client:
        for _ in client.map("half", BODIES, errors="return", progress=True):
            pass
    last = [line for line in terminal.getvalue().splitlines() if "half" in line][-1]
    assert "half, 5 failed" in last
    assert "10/10" in last


@pytest.mark.usefixtures("no_rich")
def test_the_line_ends_where_map_does_whatever_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with fake({"half": half}) as client:
        with pytest.raises(HandlerError):
            list(client.map("half", BODIES, progress=True))
        left = client.map("half", [b"2"] * 10, progress=True)
        next(left)
        left.close()
    assert terminal.getvalue().splitlines()[-1].endswith("half: 1 of 10")
    assert terminal.getvalue().count("\n") == 2


@pytest.mark.usefixtures("no_rich")
def test_what_has_no_length_has_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)

    def bodies() -> Iterator[bytes]:
        yield from (b"2", b"4")

    with fake({"half": half}) as client:
        list(client.map("half", bodies(), progress=True))
    assert terminal.getvalue().endswith("\rhalf: 2\n")


@pytest.mark.usefixtures("no_rich")
def test_asyncio_draws_it_too_and_replies_are_decoded_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)

    async def scene() -> list[int]:
        async def double(number: int) -> int:
            return number * 2

        async with fake({"double": double}) as client:
            found = client.map("double", [b"1", b"2"], reply=int, progress=True)
            return [each async for each in found]

    assert asyncio.run(scene()) == [2, 4]
    assert terminal.getvalue().endswith("\rdouble: 2 of 2\n")


def test_nothing_is_written_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with fake({"half": half}) as client:
        list(client.map("half", [b"2"], progress=True))
    assert capsys.readouterr() == ("", "")


def test_nothing_is_written_if_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    bar = MapBar("half", BODIES)
    bar.begin()
    bar.count(Reply((b"",)))
    bar.end()
    assert bar.done == 1


def test_a_name_that_a_terminal_would_obey_is_written_as_escapes() -> None:
    assert MapBar("a\x1b[2J", ()).text == "a\\x1b[2J"


def test_progress_is_true_or_false() -> None:
    with fake({"half": half}) as client:
        with pytest.raises(TypeError, match="progress is True or False, not function"):
            client.map("half", BODIES, progress=lambda: None)  # type: ignore[call-overload]
        with pytest.raises(LocalProtocolError):
            client.map("half", BODIES, window=0, progress=True)
