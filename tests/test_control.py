"""The socket on which a node takes an operator's requests."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import zmq

from bstar.reactor import Reactor
from bstar_broker import control

pytestmark = pytest.mark.loopback


def removed_by_another(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Another node of this user ends in the worst moment, so often."""
    make, left = control._make_private, [None] * times

    def make_and_lose(folder: Path) -> None:
        make(folder)
        if left:
            left.pop()
            folder.rmdir()

    monkeypatch.setattr(control, "_make_private", make_and_lose)


def listens(path: Path) -> bool:
    with zmq.Context() as context:
        reactor = Reactor()
        socket = control.ControlSocket(context, reactor, path, lambda *, is_trial: None, str)
        is_there = path.is_socket()
        socket.close()
        reactor.close()
    assert not path.parent.exists()
    return is_there


def test_a_folder_that_another_node_removes_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed_by_another(monkeypatch, 1)
    assert listens(tmp_path / "control" / "node")


def test_a_node_that_cannot_listen_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    removed_by_another(monkeypatch, 10)
    with caplog.at_level(logging.WARNING):
        assert not listens(tmp_path / "control" / "node")
    assert "bstar promote will not reach this node" in caplog.text


def test_a_promotion_is_told_once_however_often_it_is_asked_for_while_it_claims(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ["", "it hears its primary", "", "", None, "", ""]
    with zmq.Context() as context, caplog.at_level(logging.INFO, "bstar_broker.control"):
        reactor = Reactor()
        path = tmp_path / "control" / "node"
        socket = control.ControlSocket(context, reactor, path, lambda *, is_trial: answers.pop(0), str)
        asked = (control.QUESTION, *[control.PROMOTE] * 4, control.QUESTION, control.FORCE)
        told = [socket._answer(request) for request in asked]
        assert socket._answer(b"demote") == "this node knows no such request"
        socket.close()
        reactor.close()
    claiming = control.CLAIMING
    assert told == ["may", "it hears its primary", claiming, claiming, "serves", "may", claiming]
    assert [text.partition(":")[0] for text in caplog.messages] == ["bstar promote", "bstar promote --force"]


@pytest.mark.parametrize(
    ("why", "told"), [("", control.LEADS), ("the peer's store leads", "the peer's store leads")]
)
def test_an_operator_hears_whether_the_store_leads(tmp_path: Path, why: str, told: str) -> None:
    with zmq.Context() as context:
        reactor = Reactor()
        path = tmp_path / "control" / "node"
        socket = control.ControlSocket(context, reactor, path, lambda *, is_trial: None, lambda: why)
        assert socket._answer(control.FORCE_STORE) == told
        socket.close()
        reactor.close()
