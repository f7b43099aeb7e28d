"""A store without a disk: both nodes keep it in memory, and no node leads with less than its peer has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bstar.errors import UnknownRequestError
from bstar.settings import Settings, from_mapping, node_warnings, pair_problems, sample_configuration
from bstar.settings.store import MEMORY
from bstar_broker.bounds.memory import bytes_needed
from bstar_broker.core.snapshot import NodeState
from bstar_broker.store.core.entries import START
from bstar_broker.store.core.events import Export, Exported, Opened, Rebuild, Write, Written
from bstar_cli.main import main
from bstar_client import HAClient, Worker
from support.brokers import BrokerPair
from support.entries import entry, name, submit, submitted
from support.store_disk import Platter, decoded, mark

LIMIT_S = 120.0
KILLS = 4

# --- in place of a disk -------------------------------------------------------------------------------------


@pytest.fixture
def platter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    monkeypatch.chdir(tmp_path)
    with Platter(MEMORY) as platter:
        yield platter
    assert list(tmp_path.iterdir()) == []


def test_it_holds_what_a_disk_holds_and_the_next_one_holds_nothing(platter: Platter) -> None:
    platter.carry_out(1, submitted(submit(1), submit(2)))
    platter.put(Write(mark=mark()))
    platter.wait(Written)
    found = platter.find(name(1))
    assert found is not None
    assert found.body == [b"body"]
    with Platter(MEMORY) as other:
        assert (other.opened.mark, other.opened.last) == (None, START)
        assert other.find(name(1)) is None


def test_a_failed_transaction_is_taken_back(platter: Platter) -> None:
    platter.append(entry(1, submitted(submit(1))))
    platter.disk._file.database.execute("ALTER TABLE records RENAME TO away")
    platter.put(Write((entry(2, submitted(submit(2))),), apply_to=1))
    assert platter.wait(Written).error.startswith("the store in memory has failed: no such table")
    platter.disk._file.database.execute("ALTER TABLE away RENAME TO records")
    platter.wait(Written, lambda written: written.error == "" and written.last == (1, 2))


def test_a_copy_for_the_peer_is_the_table_of_one_moment(platter: Platter) -> None:
    platter.carry_out(1, submitted(*[submit(number, b"x" * 1_000) for number in range(1, 20)]))
    platter.put(Export(0, 5_000))
    first = platter.wait(Exported)
    platter.carry_out(2, submitted(submit(50)))
    platter.put(Export(first.after, 1 << 20))
    rest = platter.wait(Exported)
    assert rest.is_last
    assert (first.applied, rest.applied) == ((1, 1), (1, 1))
    assert [each.id for part in (first, rest) for each in decoded(part)] == [name(n) for n in range(1, 20)]


def test_a_copy_that_is_rebuilt_is_empty_until_it_is_in_sync(platter: Platter) -> None:
    platter.carry_out(1, submitted(submit(1)))
    platter.disk._file.note_damage("a test", START)
    platter.put(Rebuild(mark(is_in_sync=False)))
    opened = platter.wait(Opened)
    assert (opened.last, opened.mark) == (START, mark(is_in_sync=False))
    platter.put(Write((entry(1, submitted(submit(9))),), mark=mark()))
    platter.wait(Written)
    assert (platter.disk.damage, platter.disk.repairs) == ("", 1)


# --- what a configuration says ------------------------------------------------------------------------------


def settings(role: str, **store: object) -> Settings:
    document: dict[str, Any] = yaml.safe_load(sample_configuration(role))  # type: ignore[arg-type]
    document["store"] = {"directory": MEMORY, "link": "tcp://127.0.0.1:5005"} | store
    return from_mapping(document)


def test_serve_and_check_config_say_what_is_lost_and_when() -> None:
    (warning,) = node_warnings(settings("primary"))
    assert "lost when both have ended" in warning
    assert any(
        "if that node ends" in each for each in node_warnings(settings("primary", when_alone="accept"))
    )
    assert node_warnings(settings("primary", directory="./memory")) == []


def test_both_nodes_of_a_pair_keep_it_in_memory_or_none() -> None:
    assert pair_problems(settings("primary"), settings("backup")) == []
    (problem,) = pair_problems(settings("primary"), settings("backup", directory="/var/lib/bstar/store"))
    assert problem.startswith("store.directory: memory on primary, /var/lib/bstar/store on backup")


def test_what_it_may_take_counts_as_memory_of_the_node() -> None:
    mebibyte = 1 << 20
    bounds = {"bytes_max": 100 * mebibyte, "log_bytes": 10 * mebibyte}
    on_disk = bytes_needed(settings("primary", directory="/var/lib/bstar/store", **bounds))
    assert bytes_needed(settings("primary", **bounds)) == on_disk + 420 * mebibyte


# --- a pair -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[BrokerPair]:
    with BrokerPair(tmp_path, has_store=True, settings={"store.directory": MEMORY}) as pair:
        pair.start()
        yield pair


def is_whole(state: NodeState) -> bool:
    return state.store is not None and state.store.is_leading and state.store.copies == 2


@pytest.mark.loopback
@pytest.mark.requirement("TSP-R-07")
def test_without_a_disk_requests_survive_the_end_of_one_node_after_the_other(pair: BrokerPair) -> None:
    with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        ids = []
        for kill in range(KILLS):
            ids += list(client.submit_many("price", [b"%d.%d" % (kill, number) for number in range(100)]))
            titanic = client.request("titanic.request", [b"price", b"%d" % kill], timeout=LIMIT_S).frames
            assert titanic[0] == b"200"
            ids.append(titanic[1].decode())
            killed = pair.active() if kill % 2 == 0 else pair.peer_of(pair.active())
            killed.kill()
            killed.start()
            pair.active().wait_for("both copies", is_whole)
        assert client.status_of(ids[0]).state == "pending"
        with Worker(pair.endpoints, "price", lambda request: b"cost " + request.body, credit=100):
            answers = [client.result(each).body for each in ids]
    bodies = [[b"%d.%d" % (kill, number) for number in range(100)] + [b"%d" % kill] for kill in range(KILLS)]
    assert answers == [b"cost " + body for of_one in bodies for body in of_one]


@pytest.mark.loopback
@pytest.mark.requirement("TSP-R-07")
def test_without_a_disk_the_end_of_both_nodes_loses_all_and_they_say_so(
    pair: BrokerPair, capfd: pytest.CaptureFixture[str]
) -> None:
    with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
        lost = client.submit("price", b"apple")
        for node in pair.nodes:
            node.kill()
        pair.primary.start()
        # Alone and empty: its peer may have what it lacks.
        pair.primary.activate()
        waiting = pair.primary.wait_for(
            "it waits", lambda state: state.store is not None and state.store.trouble
        )
        assert waiting.store is not None
        assert not waiting.store.is_leading
        pair.backup.start()
        active = pair.active()
        active.wait_for("both copies", is_whole)
        with pytest.raises(UnknownRequestError):
            client.result(lost)
        assert "a new store begins, and it is empty" in active.log_since_start()
        assert "lost when both have ended" in active.log_since_start()
        assert client.status_of(client.submit("price", b"pear")).state == "pending"
        # A busy machine may find more to say, with another exit code.
        main(["status", "--endpoints", ",".join(pair.endpoints)])
    out, err = capfd.readouterr()
    assert "in memory" in out
    assert "the store is in memory: what it holds is lost when both nodes have ended" in err
