"""A node's history of its role: bounded, kept across restarts, and no longer than its last whole line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bstar.records.role import RoleChange
from bstar.star import Role, StarMachine, StarSettings, State, StateChanged, Tick, Vote
from bstar.star.rules import Event, PeerMessage
from bstar.wire.peer import PeerState
from bstar_broker.core.parting import Switchover
from bstar_broker.operate.role_history import CHANGES_MAX, LATEST_MAX, RoleHistory, history_path, read_history
from bstar_cli import exits
from bstar_cli.history import history_table
from bstar_cli.main import main
from bstar_cli.terminal import print_tables
from support.pairs import standing_pair

WALL_S = 1_700_000_000.0
GAVE_UP = StateChanged(State.ACTIVE, State.PASSIVE, Event.HANDOVER, "An operator moves the role.")


@pytest.fixture
def machine() -> StarMachine:
    """A passive backup that heard its active peer at 1.0."""
    made = StarMachine(StarSettings(pair="test", role=Role.BACKUP), node="we", epoch=4, now=0.0)
    made.step(PeerMessage(PeerState(State.ACTIVE, "test", "primary", "they", 1, 5, 1000, 2000)), 1.0)
    assert made.state is State.PASSIVE
    return made


def kept(machine: StarMachine, folder: Path | None, now: float = 0.0) -> RoleHistory:
    return RoleHistory(folder, machine, lambda: now, lambda: WALL_S)


def change(number: int = 1, **changes: Any) -> RoleChange:
    made = RoleChange(number, "primary", "PASSIVE", "ACTIVE", "CLIENT_REQUEST", "why", number)
    return msgspec.structs.replace(made, **changes)


def store(folder: Path, *lines: bytes) -> None:
    history_path(folder).write_bytes(b"".join(lines))


def line(number: int) -> bytes:
    return msgspec.json.encode(change(number)) + b"\n"


def test_it_keeps_what_the_node_hears_of_its_peer_and_no_more_than_a_page_shows(machine: StarMachine) -> None:
    with kept(machine, None) as history:
        for now in (1.0, 2.0, 10.0, 11.0):
            history.note_peer(now)
        heard = [(each.at, each.state) for each in history.peer_changes]
        assert heard == [(WALL_S * 1e6, "ACTIVE"), (WALL_S * 1e6, "SILENT")]
        for number in range(2 * LATEST_MAX):
            at = 20.0 + 10.0 * number
            said = PeerState(State.ACTIVE, "test", "primary", "they", 2 + number, 5, 1000, 2000)
            machine.step(PeerMessage(said), at)
            history.note_peer(at)
            history.note_peer(at + 9.0)
        assert len(history.peer_changes) == LATEST_MAX


def test_a_takeover_says_since_when_the_peer_was_not_heard(machine: StarMachine) -> None:
    with kept(machine, None, now=4.5) as history:
        for tenth in range(10, 45):
            machine.step(Tick(), tenth / 10)
        for output in machine.step(Vote(), 4.5):
            history.observe(output)
        assert history.latest() == [
            RoleChange(
                at=round(WALL_S * 1e6),
                node="backup",
                old="PASSIVE",
                new="ACTIVE",
                event="CLIENT_REQUEST",
                text=history.latest()[0].text,
                epoch=machine.epoch,
                waited_us=3_500_000,
            )
        ]


def test_a_switchover_adds_how_long_requests_waited_once_it_has_ended(machine: StarMachine) -> None:
    move = Switchover(asked_at=10.0, drain_until=20.0)
    with kept(machine, None) as history:
        history.observe(GAVE_UP)
        history.note_switchover(move)
        assert history.latest()[-1].waited_us is None
        move.ended_at = 10.25
        history.note_switchover(move)
        assert history.latest()[-1].waited_us == 250_000


def test_a_refused_switchover_changes_nothing(machine: StarMachine) -> None:
    with kept(machine, None) as history:
        history.observe(GAVE_UP)
        history.note_switchover(Switchover(1.0, 2.0, ended_at=1.0, refusal="the peer is silent"))
        assert history.latest()[-1].waited_us is None


def test_changes_outlive_the_process(machine: StarMachine, tmp_path: Path) -> None:
    for _ in range(2):
        with kept(machine, tmp_path) as history:
            history.observe(GAVE_UP)
    assert [each.event for each in read_history(tmp_path)[0]] == ["HANDOVER", "HANDOVER"]


def test_the_file_and_what_the_status_shows_are_bounded(machine: StarMachine, tmp_path: Path) -> None:
    store(tmp_path, *(line(number) for number in range(CHANGES_MAX + 7)))
    with kept(machine, tmp_path) as history:
        history.observe(GAVE_UP)
        assert len(history.latest()) == LATEST_MAX
    changes, _ = read_history(tmp_path)
    assert (len(changes), changes[0].at, changes[-1].event) == (CHANGES_MAX, 8, "HANDOVER")


@pytest.mark.parametrize("torn", [line(2)[:20], b"\xff\xfe\x00", b"{}"])
def test_a_torn_last_line_costs_only_itself(machine: StarMachine, tmp_path: Path, torn: bytes) -> None:
    store(tmp_path, line(1), torn)
    assert read_history(tmp_path) == ([change(1)], 1)
    with kept(machine, tmp_path) as history:
        history.observe(GAVE_UP)
    changes, damaged = read_history(tmp_path)
    assert ([each.event for each in changes], damaged) == (["CLIENT_REQUEST", "HANDOVER"], 0)


def test_a_folder_that_is_gone_is_logged_and_costs_nothing(
    machine: StarMachine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level("ERROR"), kept(machine, blocked) as history:
        history.observe(GAVE_UP)
        assert len(history.latest()) == 1
    assert "could not be stored" in caplog.text


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_reads_both_nodes_files_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        store(folder, line(5 - number))
    assert main(["history", "--json", *map(str, folders)]) == exits.OK
    assert [json.loads(each)["at"] for each in capsys.readouterr().out.splitlines()] == [4, 5]


def test_each_change_is_a_line_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    long = change(waited_us=1_250_000, epoch=12_345, event="CLIENTS_CUT_OFF")
    print_tables(history_table([long, long]), titles=3, pipe_columns=80)
    _, shown, _ = capsys.readouterr().out.splitlines()
    assert len(shown) <= 80
    for word in ("primary", "passive -> active", "clients_cut_off", "12345", "1.250 s"):
        assert word in shown


def test_lines_that_cannot_be_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, line(1), b"{\n", line(10**18), line(10**400))
    assert main(["history", str(tmp_path)]) == exits.FAILED
    assert "3 lines cannot be read" in capsys.readouterr().err


@pytest.mark.loopback
def test_a_running_pair_tells_its_history() -> None:
    with standing_pair() as pair:
        history = pair.primary.state().history
        assert [(each.node, each.new) for each in history][-1:] == [("primary", "ACTIVE")]
