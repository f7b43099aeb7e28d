"""The socket on which a node takes an operator's requests."""

from __future__ import annotations

import io
import logging
import os
import socket as socket_module
import tempfile
from errno import ENOSPC
from pathlib import Path
from typing import NoReturn

import pytest
import zmq

from bstar.net.reactor import Reactor
from bstar.settings.sample import sample_settings
from bstar_broker.operate import control
from bstar_cli import orders
from bstar_cli.orders import NoAnswerError, node_at

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
        socket = control.ControlSocket(context, reactor, path, lambda word, argument: b"{}")
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
    assert "no order reaches this node" in caplog.text


def test_a_node_of_a_unit_listens_in_its_runtime_folder_and_operators_find_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node with the sample's names may run on this machine.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
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
        socket = control.ControlSocket(context, reactor, path, lambda word, argument: b"{}")
        assert control.find_control(settings) == path
        socket.close()
        reactor.close()
    assert control.find_control(settings) == usual


def test_a_full_disk_does_not_lead_an_operator_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order said that no node answers, and a node did not start where nothing can be written."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def is_full(*_: object) -> NoReturn:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", is_full)
    monkeypatch.setattr(io, "open", is_full)
    assert control.control_path(sample_settings("primary")).parent.parent == tmp_path


def test_a_socket_that_a_killed_node_left_is_nobody_and_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    settings = sample_settings("primary")
    path = control.control_path(settings)
    path.parent.mkdir()
    with socket_module.socket(socket_module.AF_UNIX) as left:
        left.bind(str(path))
    with node_at(settings) as ask, pytest.raises(NoAnswerError, match="no node answers") as caught:
        ask("pause", {})
    assert not caught.value.was_sent


def test_a_node_that_listens_and_is_silent_is_not_said_to_be_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(orders, "_ANSWER_S", 0.2)
    settings = sample_settings("primary")
    path = control.control_path(settings)
    path.parent.mkdir()
    with socket_module.socket(socket_module.AF_UNIX) as frozen:
        frozen.bind(str(path))
        frozen.listen()
        said = "the primary has not answered for 0.2 s at .*: it is frozen, hangs or is busy"
        with node_at(settings) as ask, pytest.raises(NoAnswerError, match=said) as caught:
            ask("pause", {})
    assert caught.value.was_sent
