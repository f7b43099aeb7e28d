"""A backup that is alone since it started serves when the operator vouches that its primary is dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.pairs import Pair, standing_pair

# --- the command ------------------------------------------------------------------------------------------


def promote(pair: Pair, *options: str) -> tuple[int, str]:
    """Its exit status, and what it says."""
    command = [
        sys.executable,
        "-m",
        "bstar_cli",
        "promote",
        "--config",
        str(pair.backup.config_path),
        *options,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def lone_backup() -> Iterator[Pair]:
    """A pair whose primary was killed and whose backup has been restarted since."""
    with standing_pair() as pair:
        pair.primary.kill()
        pair.backup.kill()
        pair.backup.start()
        pair.backup.wait_for("without its peer", lambda state: state.pair.peer_age_s is None)
        yield pair


@pytest.mark.loopback
def test_a_lone_backup_serves_after_the_command_and_the_primary_stands_by_when_it_returns(
    lone_backup: Pair,
) -> None:
    pair = lone_backup
    with pair.load() as load:
        while (answer := promote(pair))[0] and "about to speak" in answer[1]:
            pass
        assert answer == (0, "the backup of the pair tests serves\n")
        load.wait_for_replies()
        assert promote(pair) == answer, "twice is fine"
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        load.wait_for_replies()
        assert promote(pair) == answer, "and so it is beside a primary that lives"
        assert load.failed == []
    log = pair.backup.log()
    assert log.count("BACKUP -> ACTIVE on PROMOTE") == 1
    assert log.count("bstar promote: the primary's state endpoint refuses connections") == 1
    assert "--force" not in log


@pytest.mark.loopback
def test_nobody_is_promoted_while_something_listens_at_the_primarys_endpoint(lone_backup: Pair) -> None:
    pair = lone_backup
    host, _, port = pair.backup.peer_state_endpoint.removeprefix("tcp://").rpartition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        status, text = promote(pair)
        while "about to speak" in text:
            status, text = promote(pair)
        assert (status, "refused: a process listens at" in text) == (1, True), text
        assert pair.backup.state().pair.state == "BACKUP"
        # The operator knows better: it is no node. The backup itself must still hear nobody.
        while (answer := promote(pair, "--force"))[0] and "about to speak" in answer[1]:
            pass
        assert answer[0] == 0, answer
    pair.backup.wait_for_state("ACTIVE")
    assert "bstar promote --force: the operator alone says" in pair.backup.log()
    assert "state endpoint refuses connections" not in pair.backup.log()
