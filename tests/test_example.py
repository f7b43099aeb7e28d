"""The example as users run it: two server processes, and a client of the published kind.

A client here does what the published pattern asks of it, and its requests are the votes: it knows both
addresses (BST-C-01), notices that no answer comes (BST-C-02), goes to the other server and gives it the
time to notice as well (BST-C-03), and sends again what was not answered (BST-C-04).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bstar import Role
from support.star_nodes import Places
from support.talking import Program

pytestmark = pytest.mark.loopback

EXAMPLES = Path(__file__).parents[1] / "examples"
SERVER, CLIENT = EXAMPLES / "echo_server.py", EXAMPLES / "echo_client.py"


@pytest.fixture
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


def server(places: Places, role: Role) -> Program:
    return Program(str(SERVER), role.value, places.clients[role], places.state[role], places.state[role.peer])


def client(places: Places) -> Program:
    return Program(str(CLIENT), places.clients[Role.PRIMARY], places.clients[Role.BACKUP])


@contextmanager
def settled(places: Places) -> Iterator[tuple[Program, Program]]:
    with server(places, Role.PRIMARY) as primary, server(places, Role.BACKUP) as backup:
        primary.wait_for(lambda line: "PRIMARY -> ACTIVE" in line)
        backup.wait_for(lambda line: "BACKUP -> PASSIVE" in line)
        yield primary, backup


def is_from(places: Places, role: Role, line: str) -> bool:
    return re.fullmatch(rf"\d+ from {re.escape(places.clients[role])}", line) is not None


def test_the_server_fits_on_a_page() -> None:
    assert len(SERVER.read_text(encoding="utf-8").splitlines()) <= 40


def test_the_backup_answers_when_the_active_server_is_killed(places: Places) -> None:
    """BST-C-01, BST-C-02, BST-C-03, BST-C-04, BST-S-05."""
    with settled(places) as (primary, backup), client(places) as asking:
        asking.wait_for(lambda line: is_from(places, Role.PRIMARY, line))
        primary.kill()
        asking.wait_for(lambda line: is_from(places, Role.BACKUP, line))
        # The client can be faster than the thread that reads the server's log.
        backup.wait_for(lambda line: "CLIENT_REQUEST" in line)
        # No request is left out on the way.
        answered = [int(line.split()[0]) for line in asking.lines if " from " in line]
        assert answered == list(range(1, len(answered) + 1))
        # The primary comes back and stands by: moving the role back is the operator's business.
        with server(places, Role.PRIMARY) as primary_again:
            primary_again.wait_for(lambda line: "PRIMARY -> PASSIVE" in line)
            asking.wait_for(lambda line: is_from(places, Role.BACKUP, line), after=len(asking.lines))


def test_a_server_that_was_frozen_does_not_wake_up_serving(places: Places) -> None:
    """The published examples do: after SIGSTOP, a vote and SIGCONT both of them go on serving."""
    with settled(places) as (primary, backup), client(places) as asking:
        asking.wait_for(lambda line: is_from(places, Role.PRIMARY, line))
        primary.freeze()
        asking.wait_for(lambda line: is_from(places, Role.BACKUP, line))
        woken_at = len(primary.lines)
        primary.thaw()
        primary.wait_for(lambda line: "ACTIVE -> PASSIVE on STALL" in line, after=woken_at)
        asking.wait_for(lambda line: is_from(places, Role.BACKUP, line), after=len(asking.lines))
        assert not any("ACTIVE ->" in line for line in backup.lines)
        assert not any("-> ACTIVE" in line for line in primary.lines[woken_at:])


def test_a_server_that_is_told_to_stop_hands_over(places: Places) -> None:
    with settled(places) as (primary, backup):
        assert primary.terminate() == 0
        backup.wait_for(lambda line: "PASSIVE -> ACTIVE on PEER_PASSIVE" in line)


def test_two_servers_of_the_same_role_end_with_a_status_of_their_own(places: Places) -> None:
    """BST-R-04."""
    wrong = [places.clients[Role.BACKUP], places.state[Role.BACKUP], places.state[Role.PRIMARY]]
    with server(places, Role.PRIMARY) as one, Program(str(SERVER), "primary", *wrong) as other:
        for program in (one, other):
            assert program.wait_for_exit() == 72
            program.wait_for(lambda line: "role is primary on both nodes" in line)


def test_every_requirement_of_the_published_pattern_is_named_by_a_test() -> None:
    wanted = {
        f"BST-{kind}-0{number}"
        for kind, last in (("S", 6), ("C", 4), ("R", 5))
        for number in range(1, last + 1)
    }
    named = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for docstring in re.findall(r'"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL):
            named |= set(re.findall(r"BST-[SCR]-0\d", docstring))
    named |= set(
        re.findall(r"BST-[SCR]-0\d", (Path(__file__).parent / "golden/machine.txt").read_text("utf-8"))
    )
    assert wanted - named == set()
