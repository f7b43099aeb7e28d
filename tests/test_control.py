"""The socket on which a node takes an operator's requests."""

from __future__ import annotations

import logging
import socket as socket_module
import tempfile
from pathlib import Path

import pytest
import zmq

from bstar.net.reactor import Reactor
from bstar.settings.sample import sample_settings
from bstar_broker.operate import control
from bstar_cli.node_control import NobodyError, control_of

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


def test_a_node_of_a_unit_listens_in_its_runtime_folder_and_operators_find_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sample_settings("primary")
    usual = control.control_path(settings)
    monkeypatch.setattr(control, "RUNTIME_FOLDER", tmp_path / "run")
    with monkeypatch.context() as unit:
        unit.setenv("RUNTIME_DIRECTORY", f"{tmp_path / 'run'}:{tmp_path / 'other'}")
        path = control.control_path(settings)
    assert path == tmp_path / "run" / usual.name
    assert control.find_control(settings) == usual
    with zmq.Context() as context:
        reactor = Reactor()
        socket = control.ControlSocket(context, reactor, path, lambda *, is_trial: None, str)
        assert control.find_control(settings) == path
        socket.close()
        reactor.close()
    assert control.find_control(settings) == usual


def test_a_socket_that_a_killed_node_left_is_nobody_and_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = sample_settings("primary")
    path = control.control_path(settings)
    path.parent.mkdir()
    with socket_module.socket(socket_module.AF_UNIX) as left:
        left.bind(str(path))
    with control_of(settings) as ask, pytest.raises(NobodyError, match="no node answers") as caught:
        ask(control.QUESTION)
    assert not caught.value.was_sent


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
