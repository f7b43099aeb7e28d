"""A real pair with a store and an arbiter that keeps the in-sync set; nodes and arbiter are killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bstar.pair.arbiter import ArbiterServer
from bstar.pair.in_sync_file import InSyncFile
from bstar.wire.arbiter import Question, SetClaim, decode_answer
from bstar_broker.core.snapshot import NodeState
from bstar_cli import exits
from bstar_cli.main import main
from bstar_client import HAClient
from bstar_testing import LoopbackHost, wait_until
from bstar_testing.nodes import Node
from support.brokers import BrokerPair

pytestmark = pytest.mark.loopback

LIMIT_S = 120.0


def trouble_of(state: NodeState) -> str:
    return "" if state.store is None else state.store.trouble


def members(folder: Path) -> list[list[str]]:
    sets = json.loads((folder / "arbiter-state" / "in-sync.json").read_bytes())
    return [known["in_sync"] for known in sets.values()]


def wait_for_copies(node: Node, copies: int) -> None:
    node.wait_for(
        f"{copies} copies",
        lambda state: state.store is not None and state.store.is_leading and state.store.copies == copies,
    )


def test_a_node_that_the_arbiter_counts_out_does_not_lead(tmp_path: Path) -> None:
    """The backup goes on alone and dies, and the arbiter is killed, too."""
    settings = {"store.when_alone": "accept"}
    with BrokerPair(tmp_path, has_arbiter=True, has_store=True, settings=settings) as pair:
        pair.start()
        assert pair.arbiter is not None
        wait_for_copies(pair.primary, 2)
        pair.primary.kill()
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            alone = client.submit("price", b"alone")
            wait_for_copies(pair.backup, 1)
            assert members(tmp_path) == [["backup"]]
            pair.arbiter.kill()
            pair.arbiter.start()
            pair.backup.kill()
            pair.primary.start()
            pair.primary.activate()
            pair.primary.wait_for(
                "counted out", lambda state: "counts the backup's copy alone" in trouble_of(state)
            )
            pair.backup.start()
            assert client.status_of(alone, timeout=LIMIT_S).state == "pending"
            wait_for_copies(pair.primary, 2)
            # It is claimed after the mark that the primary was not alone is stored.
            wait_until(lambda: members(tmp_path) == [["backup", "primary"]], "both copies are in the set")


def test_an_operator_overrules_the_arbiter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The backup goes on alone and its disk is lost: ``bstar store force`` gives up what only that had."""
    settings = {"store.when_alone": "accept"}
    with BrokerPair(tmp_path, has_arbiter=True, has_store=True, settings=settings) as pair:
        pair.start()
        wait_for_copies(pair.primary, 2)
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            both = client.submit("price", b"on both disks")
            pair.primary.kill()
            alone = client.submit("price", b"on the backup's disk")
            pair.backup.kill()
            shutil.rmtree(pair.backup.config["store"]["directory"])
            pair.primary.start()
            pair.primary.activate()
            pair.primary.wait_for("counted out", lambda state: "store force" in trouble_of(state))
            force = ["store", "force", "--config", str(pair.primary.config_path)]
            assert main(force) == exits.FAILED
            assert "say --give-up-the-other" in capsys.readouterr().err
            assert main([*force, "--give-up-the-other"]) == exits.OK
            assert capsys.readouterr().out == "the primary of the pair tests leads the store\n"
            wait_for_copies(pair.primary, 1)
            assert members(tmp_path) == [["primary"]]
            assert client.status_of(both).state == "pending"
            assert client.status_of(alone).state == "unknown"
            pair.backup.start()
            wait_for_copies(pair.primary, 2)


def test_an_old_copy_waits_beside_a_new_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an arbiter: the primary goes on alone, dies, and its disk is lost."""
    with BrokerPair(tmp_path, has_store=True, settings={"store.when_alone": "accept"}) as pair:
        pair.start()
        wait_for_copies(pair.primary, 2)
        with HAClient(pair.endpoints, timeout=LIMIT_S) as client:
            both = client.submit("price", b"on both disks")
            pair.backup.kill()
            alone = client.submit("price", b"on the primary's disk")
            pair.primary.kill()
            shutil.rmtree(pair.primary.config["store"]["directory"])
            pair.start()
            active = pair.active()
            active.wait_for("in doubt", lambda state: "is new, and" in trouble_of(state))
            if active is pair.primary:
                force = ["store", "force", "--give-up-the-other", "--config", str(pair.primary.config_path)]
                assert main(force) == exits.FAILED
                assert "make the backup active" in capsys.readouterr().err
                assert main(["switchover", "--config", str(pair.primary.config_path)]) == exits.OK
            pair.backup.wait_for("in doubt", lambda state: "the peer's disk is new" in trouble_of(state))
            force = ["store", "force", "--give-up-the-other", "--config", str(pair.backup.config_path)]
            assert main(force) == exits.OK
            wait_for_copies(pair.backup, 2)
            assert client.status_of(both).state == "pending"
            assert client.status_of(alone).state == "unknown"


def test_a_set_that_cannot_be_stored_is_not_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    sent: list[list[bytes]] = []
    claim = SetClaim("0a" * 16, 1, ["primary", "backup"])

    def ask(number: int) -> None:
        question = Question("look", "p", "primary", "run", number, 2_000, claim)
        server._carry_out_sets(server.sets.receive(question, claim, 0.0), b"peer")

    with LoopbackHost() as host:
        endpoint = f"tcp://{host.address}:{host.ports(1)[0]}"
        with ArbiterServer(endpoint, None, InSyncFile(tmp_path)) as server:
            monkeypatch.setattr(server, "_send", sent.append)
            with monkeypatch.context() as patch:
                patch.setattr("bstar.pair.in_sync_file.write_whole", fail)
                ask(1)
                ask(2)
            assert sent == []
            ask(3)
    (frames,) = sent
    answer = decode_answer(frames[1:]).store
    assert answer is not None
    assert (answer.is_granted, answer.is_kept) == (True, True)
