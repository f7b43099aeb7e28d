"""Damage to the files of one node's store beside a whole copy: nothing acknowledged is lost or changed, and
the node says what is damaged.

``make chaos SCENARIO=damage ROUNDS=100`` plays so many random rounds, each with a seed of its own, from SEED
on: SEED=40 goes on with round 40.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from bstar_broker.store.check import check
from bstar_broker.store.wal_file import scan
from bstar_testing.nodes import Node
from bstar_testing.processes import wait_until
from chaos.damage import Damage
from chaos.durable_stage import DurableStage, durable_stage
from chaos.toxiproxy import say

_ASKED = os.environ.get("ROUNDS")
ROUNDS = int(_ASKED or 4)
SEED = int(os.environ.get("SEED") or 1)
pytestmark = pytest.mark.timeout(420 + 60 * ROUNDS)

PAGE = 4096
HTTP_S = 60.0


def repeat(scenario: str) -> str:
    return f"repeat: make chaos SCENARIO={scenario}" + (f" ROUNDS={ROUNDS} SEED={SEED}" if _ASKED else "")


def is_damaged(run: DurableStage, node: Node) -> bool:
    """True if the node names damage to its store, or has repaired it."""
    state = run.store(node)
    return state is not None and state.disk is not None and bool(state.disk.damage or state.disk.repairs)


def is_waiting(run: DurableStage, node: Node) -> bool:
    """True if the node is active, does not lead the store and says that it is damaged."""
    state = run.store(node)
    return state is not None and not state.is_leading and "is damaged" in state.trouble


def test_random_damage_to_one_node_loses_nothing_and_is_named() -> None:
    with durable_stage("damage", seed=SEED, repeat=repeat("damage")) as run:
        named = 0
        for number in range(SEED, SEED + ROUNDS):
            began_at = time.monotonic()
            what, is_named = damage_round(run, number)
            named += is_named
            say(f"round {number}: {what}; whole again after {time.monotonic() - began_at:.1f} s")
        say(f"{ROUNDS} rounds, {named} with damage that a check finds, each named by its node")


def damage_round(run: DurableStage, seed: int) -> tuple[str, bool]:
    """Damage one node's store while it is down, let it start, and wait until both copies are one again."""
    chance = random.Random(seed)
    victim = chance.choice(run.cluster.nodes)
    peer = run.cluster.peer_of(victim)
    how = chance.choice(("kill", "kill both", "kill both", "stop"))
    if how == "stop":
        victim.terminate()
        victim.wait_exit()
    run.kill(victim, *([peer] if how == "kill both" else []))
    directory = run.disks[victim.role].directory
    assert check(directory).findings == []
    damage = Damage(chance, run.folder / "kept")
    if not (run.folder / "kept" / victim.role).exists():
        damage.keep(victim.role, directory)
    what = damage.spoil(victim.role, directory)
    if chance.random() < 0.5:
        damage.keep(peer.role, run.disks[peer.role].directory)
    is_found = not _is_whole(directory)
    run.note("damage", victim.name, what)
    victims = [victim, peer] if how == "kill both" else [victim]
    is_alone = how == "kill both" and is_found and chance.random() < 0.5
    if is_alone:
        run.restart(victim)
        wait_until(lambda: is_damaged(run, victim), f"the {victim.role} names its damage: {what}")
        state = run.store(victim)
        assert state is not None
        assert not state.is_leading, f"the {victim.role} leads the store alone with a damaged copy: {what}"
        victims = [peer]
    elif chance.random() < 0.5:
        victims.reverse()
    run.restart(*victims)
    if is_found:
        wait_until(lambda: is_damaged(run, victim), f"the {victim.role} names its damage: {what}")
    run.in_sync()
    run.progress()
    return f"{victim.role}, {how}{', alone first' if is_alone else ''}: {what}", is_found


def _is_whole(directory: Path) -> bool:
    """What a check of a copy says: it must not change the files."""
    try:
        return check(directory).is_whole
    except Exception:  # noqa: BLE001  # a store so damaged that no check can read it
        return False


def spoil_wal(directory: Path) -> None:
    """Flip one bit in the first half of the WAL."""
    wal = directory / "store.db-wal"
    content = bytearray(wal.read_bytes())
    content[32 + scan(wal).frames // 2 * (24 + PAGE) + 24 + 50] ^= 1
    wal.write_bytes(content)


@pytest.mark.parametrize("has_arbiter", [True, False], ids=["arbiter", "accept"])
def test_a_primary_with_a_damaged_wal_does_not_lead_alone_and_takes_the_peers_copy(has_arbiter: bool) -> None:
    settings = {} if has_arbiter else {"store.when_alone": "accept"}
    with durable_stage(
        "damaged-wal", settings=settings, has_arbiter=has_arbiter, repeat=repeat("damaged_wal")
    ) as run:
        primary, backup = run.cluster.nodes
        run.progress(20)
        run.kill(primary, backup)
        spoil_wal(run.disks["primary"].directory)
        found = check(run.disks["primary"].directory).findings
        assert any("synced transactions are missing" in finding.text for finding in found)
        run.restart(primary)
        wait_until(lambda: is_waiting(run, primary), "the primary says that its copy is damaged")
        with urllib.request.urlopen(f"{primary.http_url}/metrics", timeout=HTTP_S) as answer:
            metrics = answer.read().decode()
        assert re.search(r"^bstar_store_damaged\S* 1\.0$", metrics, re.MULTILINE)
        assert "synced transactions are missing" in primary.log_since_start()
        run.recover(backup)
        assert is_damaged(run, primary)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_damage_in_the_index_of_ids_is_found_and_the_peers_copy_taken(who: str) -> None:
    with durable_stage(f"damaged-index-{who}", repeat=repeat("index_of_ids")) as run:
        run.progress(20)
        node = run.leader() if who == "leader" else run.follower()
        node.terminate()  # closed well: no check at opening looks for this
        node.wait_exit()
        spoil_index(run.disks[node.role].directory)
        run.restart(node)
        wait_until(lambda: is_damaged(run, node), f"the {node.role} names its damage")
        run.in_sync()
        # From now on it alone has the answers.
        run.kill(run.cluster.peer_of(node))
        run.disks[node.role].begin()
        run.recover(run.cluster.peer_of(node))


def spoil_index(directory: Path) -> None:
    """Change an id in each leaf of the index of ids."""
    path = directory / "store.db"
    with closing(sqlite3.connect(path)) as database:
        ids = [request for (request,) in database.execute("SELECT id FROM records")]
    content = bytearray(path.read_bytes())
    spoiled = 0
    for begin in range(PAGE, len(content), PAGE):
        page = content[begin : begin + PAGE]
        found = next((page.find(each) for each in ids if page[0] == 10 and page.find(each) >= 0), None)
        if found is not None:
            content[begin + found + 15] ^= 0xFF
            spoiled += 1
    assert spoiled, "no leaf of the index was found"
    path.write_bytes(content)
