"""Replication of the store, where scripts do not show it (test_replica_scripts.py)."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from bstar_broker.store.core.entries import START, Entry, History, Position
from bstar_broker.store.core.events import Damaged, Mark, Opened, Written
from bstar_broker.store.core.leader import Copies
from bstar_broker.store.core.log import Log
from bstar_broker.store.core.peer import Ack, Entries, Hello, Source, Standing, decode, encode, source
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.replica import Replica, ReplicaSettings
from support.replica_stage import Node, pair, settle, talk

SETTINGS = ReplicaSettings(heartbeat_s=0.25, peer_timeout_s=2.0)


def test_nodes_that_begin_at_once_found_one_store() -> None:
    primary, backup = Node("primary"), Node("backup")
    talk(primary, backup)
    primary.do(primary.replica.lead(1, 0.0))
    backup.do(backup.replica.lead(2, 0.0))
    primary.do(primary.replica.force(0.0))
    backup.do(backup.replica.force(0.0))
    marks = [node.replica.mark for node in (primary, backup)]
    assert [mark.store for mark in marks if mark is not None] == [b"primary" * 2] * 2


def test_an_empty_node_does_not_lead_unheard_and_says_what_to_do() -> None:
    node = Node("primary")
    node.do(node.replica.lead(1, 0.0))
    node.do(node.replica.handle_timer(100.0))
    assert node.replica.epoch == 0
    assert "start the other node's store" in node.replica.trouble
    node.do(node.replica.force(100.0))
    assert node.replica.is_leading
    assert not node.replica.trouble


def test_histories_part_at_the_last_common_entry() -> None:
    one = History([Position(1, 1), Position(3, 5)], Position(3, 9))
    two = History([Position(1, 1), Position(2, 4)], Position(2, 6))
    assert one.common(two) == two.common(one) == Position(1, 3)
    assert one.common(History()) == START
    one.keep_to(4)
    assert one.last == Position(1, 4)


def goes_alone(node: Node, now: float) -> None:
    """Its peer is silent for so long that it commits alone."""
    node.do(node.replica.handle_timer(now))
    node.outbox.clear()
    node.sync(now)
    assert node.replica.copies == 1


def test_the_mark_stays_until_the_peer_has_stored_that_it_is_in_sync() -> None:
    primary, backup = pair()
    goes_alone(primary, 2.5)
    primary.do(primary.replica.propose(b"x", 1, 2.5))
    primary.sync(2.5)
    primary.outbox.clear()
    assert primary.replica.committed == 2
    backup.do(backup.replica.handle_timer(2.6))
    talk(primary, backup, 2.6)
    while primary.replica.copies == 1:
        backup.sync(2.6)
        talk(primary, backup, 2.6)
    told = [order.mark for order in backup.orders if order.mark is not None]
    assert [mark.is_in_sync for mark in told] == [True]
    assert not [order for order in primary.orders if order.mark is not None]
    backup.sync(2.6)
    talk(primary, backup, 2.6)
    assert [order.mark.is_alone for order in primary.orders if order.mark is not None] == [False]


def test_a_peer_that_comes_back_empty_does_not_count() -> None:
    primary, _ = pair()
    assert primary.replica.copies == 2
    empty = Node("backup")
    primary.outbox.clear()
    primary.do(primary.replica.receive(empty.outbox.pop(0), 1.0))
    assert primary.replica.copies == 1
    primary.do(primary.replica.propose(b"x", 1, 1.0))
    primary.sync(1.0)
    assert primary.replica.committed == 1


def test_an_ack_of_an_earlier_run_commits_nothing() -> None:
    primary, _ = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0))
    primary.sync()
    ack = Ack(b"earlier run.", 1, 2, 99, True)
    primary.do(primary.replica.receive(encode(ack), 0.1))
    assert primary.replica.committed == 1


def test_what_replaces_unsynced_entries_is_not_synced_by_their_order() -> None:
    log = Log(Opened(None, START, 1, 0, 0, [], Totals(), {}))
    first = [Entry.of(Position(1, number), 0, b"x") for number in (1, 2, 3)]
    log.write(first)
    log.write([Entry.of(Position(2, 2), 0, b"y"), Entry.of(Position(2, 3), 0, b"z")], keep_to=1)
    log.written(Written(Position(1, 3), 1))
    assert log.synced == 1
    log.written(Written(Position(2, 3), 2))
    assert log.synced == 3


def test_an_epoch_is_above_all_that_the_log_has() -> None:
    opened = Opened(
        Mark("p", "primary", b"s" * 16, True, True, "primary"),
        Position(6, 9),
        1,
        9,
        0,
        [Position(5, 1), Position(6, 4)],
        Totals(),
        {},
    )
    replica = Replica(pair="p", role="primary", settings=SETTINGS, new_store=b"r" * 16, now=0.0)
    replica.opened(opened, 0.0)
    replica.lead(3, 0.0)
    replica.handle_timer(2.5)
    assert replica.epoch == 7


def hello(role: Literal["primary", "backup"], **fields: object) -> Hello:
    known = Hello(
        "p",
        role,
        role.encode() * 2,
        b"s" * 16,
        True,
        False,
        0,
        True,
        False,
        Position(1, 5),
        5,
        5,
        [Position(1, 1)],
    )
    return msgspec.structs.replace(known, **fields)


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ({"is_alone": True}, {"last": Position(2, 9)}, Source.OWN),
        ({"last": Position(2, 9)}, {"is_alone": True}, Source.PEER),
        ({"is_alone": True}, {"is_alone": True, "last": Position(2, 4)}, Source.PEER),
        ({"is_in_sync": False, "last": Position(2, 9)}, {}, Source.PEER),
        ({"last": Position(1, 6)}, {}, Source.OWN),
        ({}, {}, Source.OWN),
        ({"wants": False}, {}, Source.PEER),
        ({"is_in_sync": False}, {"store": b"", "is_in_sync": False, "last": START}, Source.NEITHER),
        ({"is_in_sync": False}, {"is_in_sync": False}, Source.NEITHER),
        ({"store": b"", "last": START}, {"store": b"", "last": START}, Source.OWN),
    ],
)
def test_the_better_copy_is_the_source(
    own: dict[str, object], peer: dict[str, object], expected: Source
) -> None:
    assert source(hello("primary", **own), hello("backup", **peer)) == expected
    mirror = {Source.OWN: Source.PEER, Source.PEER: Source.OWN, Source.NEITHER: Source.NEITHER}
    assert source(hello("backup", **peer), hello("primary", **own)) == mirror[expected]


def test_a_leader_that_is_alone_goes_on_when_a_later_one_is_not() -> None:
    primary, _ = pair()
    goes_alone(primary, 2.5)
    later = hello("backup", leads=2, last=Position(2, 2), epochs=[Position(1, 1), Position(2, 2)])
    primary.do(primary.replica.receive(encode(msgspec.structs.replace(later, store=b"primary" * 2)), 2.6))
    assert primary.replica.is_leading
    alone = msgspec.structs.replace(later, store=b"primary" * 2, is_alone=True, leads=4)
    primary.do(primary.replica.receive(encode(alone), 2.7))
    assert not primary.replica.is_leading


def test_a_leader_that_is_alone_gives_way_to_a_later_epoch_that_was_alone() -> None:
    primary, _ = pair()
    goes_alone(primary, 2.5)
    later = hello("backup", last=Position(2, 9), epochs=[Position(1, 1), Position(2, 2)], is_alone=True)
    later = msgspec.structs.replace(later, store=b"primary" * 2, synced=9, applied=9)
    primary.do(primary.replica.receive(encode(later), 2.6))
    assert primary.replica.epoch == 0
    assert "takes over what the peer's has" in primary.replica.trouble


def test_disks_of_two_stores_never_mix() -> None:
    primary, _ = pair()
    primary.outbox.clear()
    outputs = primary.replica.receive(encode(hello("backup", leads=8, is_alone=True)), 0.1)
    assert "two stores" in str(outputs)
    assert primary.replica.is_leading
    assert primary.replica.refused["store-mismatch"] == 1


def entry_of_the_backup(*, is_alone: bool) -> list[bytes]:
    entry = Entry.of(Position(2, 2), 0, b"y")
    message = Entries(
        b"backup" * 2, 2, Position(1, 1), [entry], 1, 2, Standing.BEHIND, 0, is_alone
    )  # fmt: skip
    return encode(message)


def meets_a_later_leader(primary: Node, *, is_alone: bool) -> None:
    """It does not lead, and hears one entry of a leader that parted from it at entry 1."""
    later = hello("backup", leads=2, last=Position(2, 2), epochs=[Position(1, 1), Position(2, 2)])
    later = msgspec.structs.replace(later, store=b"primary" * 2, is_alone=is_alone)
    primary.do(primary.replica.follow(2.6))
    primary.do(primary.replica.receive(encode(later), 2.7))
    primary.do(primary.replica.receive(entry_of_the_backup(is_alone=is_alone), 2.7))


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_node_that_is_alone_gives_its_entries_up_only_to_one_that_is_too(is_alone: bool) -> None:
    primary, _ = pair()
    goes_alone(primary, 2.5)
    primary.do(primary.replica.propose(b"x", 1, 2.5))
    meets_a_later_leader(primary, is_alone=is_alone)
    assert primary.replica.last == (Position(2, 2) if is_alone else Position(1, 2))


def test_what_was_applied_stays_until_the_table_comes() -> None:
    primary, _ = pair()
    goes_alone(primary, 2.5)
    primary.do(primary.replica.propose(b"x", 1, 2.5))
    primary.sync(2.5)
    assert primary.replica.applied_to == 2
    primary.outbox.clear()
    meets_a_later_leader(primary, is_alone=True)
    assert primary.replica.last == Position(1, 2)
    assert [type(decode(frames)) for frames in primary.outbox][-1] is Hello


# --- what counts as a copy ----------------------------------------------------------------------------------


def copies_of(log_to: int, *, is_alone: bool = False) -> Copies:
    """The peer's copy beside a log of so many entries."""
    known = Mark("p", "primary", b"s" * 16, True, is_alone, "primary")
    opened = Opened(known, Position(1, log_to), 1, log_to, 0, [Position(1, 1)], Totals(), {})
    return Copies(Log(opened), SETTINGS.peer_timeout_s)


def standing(copies: Copies) -> Standing:
    return copies.standing


def test_a_node_that_leads_again_waits_until_its_peer_cannot_be_sure_of_its_copy() -> None:
    """The peer heard in the last leadership that it is in sync: until then it may lead with what it has."""
    copies = copies_of(5)
    copies.lead(5, 0.0, is_heard=True)
    copies.check(5, 5, 0.0, is_heard=True, is_sent=True)
    copies.note_ack(Ack(b"r" * 12, 1, 1, 5, True), 1.0)
    copies.leave()
    copies.lead(6, 1.1, is_heard=False)
    for now in (1.1, 2.9):
        copies.check(5, 0, now, is_heard=False, is_sent=False)
        assert standing(copies) == Standing.JOINING, now
    copies.check(5, 0, 3.0, is_heard=False, is_sent=False)
    assert standing(copies) == Standing.BEHIND


def test_a_peer_that_is_silent_does_not_join_with_what_it_had() -> None:
    copies = copies_of(5)
    copies.lead(5, 0.0, is_heard=True)
    assert not copies.check(5, 5, 0.5, is_heard=False, is_sent=True)
    assert standing(copies) == Standing.JOINING
    assert copies.check(5, 5, 0.6, is_heard=True, is_sent=True)
    assert standing(copies) == Standing.IN_SYNC


def test_a_peer_joins_with_the_first_entry_of_the_leadership_and_not_before() -> None:
    copies = copies_of(5)
    copies.lead(6, 0.0, is_heard=True)
    assert not copies.check(5, 5, 0.1, is_heard=True, is_sent=True)
    assert copies.check(5, 6, 0.2, is_heard=True, is_sent=True)
    assert standing(copies) == Standing.IN_SYNC


def test_the_log_keeps_what_a_peer_that_catches_up_has_yet_to_get() -> None:
    primary, backup = pair()
    goes_alone(primary, 2.5)
    for number in range(3_000):
        primary.do(primary.replica.propose(b"x", number, 2.5))
    primary.sync(2.5)
    assert primary.replica.applied_to == 3_001
    primary.trims.clear()
    primary.outbox.clear()
    backup.outbox.clear()
    backup.do(backup.replica.handle_timer(2.6))
    talk(primary, backup, 2.6)
    primary.do(primary.replica.handle_timer(2.9))
    assert primary.replica.lag == 3_000
    assert primary.trims == [], "its disk has none of them yet"
    settle(primary, backup, 2.9)
    assert backup.replica.last == primary.replica.last
    primary.do(primary.replica.handle_timer(3.2))
    assert primary.trims == [primary.replica.applied_to - 1_000], "it has; the last thousand stay"


def test_what_the_peer_stored_in_an_earlier_leadership_does_not_count_in_the_next() -> None:
    """Its mark of then may be gone: the leader's own stays until the peer has stored it again."""
    copies = copies_of(5, is_alone=True)
    copies.lead(5, 0.0, is_heard=True)
    copies.note_ack(Ack(b"r" * 12, 1, 1, 5, True), 0.5)
    before = (copies.is_marked, copies.heard)
    copies.leave()
    copies.lead(6, 1.0, is_heard=True)
    assert (before, (copies.is_marked, copies.heard)) == ((True, 5), (False, 0))


def test_a_peer_that_did_not_join_in_time_waits_before_it_may_again() -> None:
    """Commits wait for a peer that joins: one that cannot keep up must not hold them up all the time."""
    copies = copies_of(5, is_alone=True)
    copies.lead(5, 0.0, is_heard=True)
    assert copies.check(5, 0, 0.0, is_heard=True, is_sent=True)
    assert standing(copies) == Standing.JOINING
    assert copies.check(5, 0, 2.0, is_heard=True, is_sent=True)
    assert standing(copies) == Standing.BEHIND
    assert not copies.check(5, 0, 2.1, is_heard=True, is_sent=True)
    assert copies.check(5, 0, 100.0, is_heard=True, is_sent=True)
    assert standing(copies) == Standing.JOINING


def test_a_silent_peer_does_not_begin_to_join() -> None:
    copies = copies_of(5, is_alone=True)
    copies.lead(5, 0.0, is_heard=False)
    assert not copies.check(5, 5, 1.0, is_heard=False, is_sent=True)
    assert standing(copies) == Standing.BEHIND


# --- damage -------------------------------------------------------------------------------------------------


def damaged(*, is_alone: bool) -> Node:
    """A primary whose log ended with entry 9 and can be read up to entry 2."""
    node = Node("primary")
    mark = Mark("p", "primary", b"s" * 16, False, is_alone, "primary")
    opened = Opened(
        mark, Position(1, 2), 1, 2, 0, [Position(1, 1)], Totals(), {}, "its WAL is damaged", Position(1, 9)
    )
    node.do(node.replica.opened(opened, 0.0))
    node.outbox.clear()
    return node


def of_the_backup(**fields: object) -> list[bytes]:
    return encode(
        hello(
            "backup",
            **{"last": Position(1, 9), "synced": 9, "applied": 9, "epochs": [Position(1, 1)], **fields},
        )
    )


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_damaged_copy_does_not_lead_unheard_and_says_why(is_alone: bool) -> None:
    node = damaged(is_alone=is_alone)
    node.do(node.replica.lead(3, 1.0))
    for now in range(2, 60):
        node.do(node.replica.handle_timer(float(now)))
    assert not node.replica.is_leading
    assert "this copy is damaged (its WAL is damaged)" in node.replica.trouble


def test_a_damaged_copy_gives_way_to_one_that_has_all() -> None:
    node = damaged(is_alone=False)
    node.do(node.replica.lead(3, 1.0))
    node.do(node.replica.receive(of_the_backup(), 1.0))
    assert [(mark.is_in_sync, mark.is_alone) for mark in node.rebuilt] == [(False, False)]
    assert not node.replica.is_leading
    said = decode(node.outbox[-1])
    assert isinstance(said, Hello)
    assert (said.last, said.must, said.wants) == (START, None, True)


@pytest.mark.parametrize(("last", "is_given_up"), [(9, True), (8, False)])
def test_a_damaged_copy_that_was_alone_gives_way_only_to_a_log_that_has_its_last_entry(
    last: int, is_given_up: bool
) -> None:
    node = damaged(is_alone=True)
    node.do(node.replica.lead(3, 1.0))
    node.do(node.replica.receive(of_the_backup(last=Position(1, last), synced=last, applied=last), 1.0))
    assert bool(node.rebuilt) is is_given_up
    assert not node.replica.is_leading
    node.do(node.replica.force(2.0))
    assert node.replica.epoch
    assert is_given_up or any(order.is_mended for order in node.orders)


def test_a_damaged_copy_takes_nothing_before_it_is_set_aside() -> None:
    """Its peer leads and is damaged, too: an operator chooses between them."""
    node = damaged(is_alone=False)
    node.do(node.replica.receive(of_the_backup(leads=2, must=Position(1, 9)), 1.0))
    entry = Entry.of(Position(1, 3), 0, b"\x90")
    message = Entries(b"backup" * 2, 2, Position(1, 2), [entry], 3, 3, Standing.BEHIND, 0, False)
    node.do(node.replica.receive(encode(message), 1.0))
    taken = [order for order in node.orders if order.entries or order.keep_to is not None]
    assert (taken, node.rebuilt, node.replica.last) == ([], [], Position(1, 2))


def test_a_leader_feeds_no_damaged_copy() -> None:
    primary, backup = pair()
    backup.do(backup.replica.damaged(Damaged("a record"), 0.0))
    said = next(each for frames in backup.outbox if isinstance(each := decode(frames), Hello))
    assert said.must == Position(1, 1)
    assert not said.is_in_sync
    backup.outbox.clear()
    primary.do(primary.replica.receive(encode(said), 0.0))
    assert primary.replica.copies == 1
    assert not any(isinstance(decode(frames), Entries) for frames in primary.outbox)


def test_two_damaged_copies_found_no_new_store() -> None:
    own, peer = (hello(role, store=b"", must=START) for role in ("primary", "backup"))
    assert source(own, peer) is Source.NEITHER
