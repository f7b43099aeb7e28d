"""The store's shell when its directory is gone, its disk hangs, or what hears the disk fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from bstar.net.reactor import Reactor
from bstar.settings import sample_settings
from bstar_broker.core.outputs import StoreInput
from bstar_broker.store import disk as disk_module
from bstar_broker.store.core.events import Write, Written
from bstar_broker.store.shell import StoreShell
from support.store_disk import HangingCommits, mark
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

Hear = Callable[[StoreInput, float], object]
Make = Callable[[Hear], tuple[StoreShell, Reactor]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(hear: Hear) -> tuple[StoreShell, Reactor]:
            settings = sample_settings("primary")
            store = msgspec.structs.replace(
                settings.store, directory=str(tmp_path / "store"), link="tcp://127.0.0.1:*"
            )
            context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
            reactor = stack.enter_context(Reactor())
            shell = StoreShell(
                msgspec.structs.replace(settings, store=store),
                hear,
                reactor=reactor,
                context=context,
                gate=None,
            )
            return stack.enter_context(shell), reactor

        yield made


def test_a_directory_that_is_gone_does_not_end_the_loop_that_asks_how_it_stands(
    make: Make, tmp_path: Path
) -> None:
    shell, _ = make(lambda given, now: None)
    shutil.rmtree(tmp_path / "store")
    assert shell.disk_state().free_bytes == 0


def test_what_fails_at_an_answer_of_the_disk_ends_the_loop(make: Make) -> None:
    """Otherwise the answers that came with it would be lost, and all would wait for them."""

    def fail(given: StoreInput, now: float) -> None:
        raise MemoryError("no memory for an answer")

    _, reactor = make(fail)
    reactor.call_at(reactor.now() + LIMIT_S, lambda now: reactor.stop())
    with pytest.raises(MemoryError, match="for an answer"):
        reactor.run()


def test_the_loop_hears_that_the_disk_hangs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "_HANGS_AFTER_S", 0.5)
    heard: list[Written] = []

    def hear(given: StoreInput, now: float) -> None:
        if isinstance(given, Written):
            heard.append(given)
            reactor.stop()

    shell, reactor = make(hear)
    commits = HangingCommits(monkeypatch)
    shell.perform(Write(mark=mark(), order=1))
    shell.hand_over()
    reactor.call_at(reactor.now() + LIMIT_S, lambda now: reactor.stop())
    reactor.run()
    commits.answer()
    assert [written.order for written in heard] == [0]
    assert "has not answered" in heard[0].error
