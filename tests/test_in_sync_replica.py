"""The replicas of a pair with an arbiter: who commits alone and who leads, as the arbiter's set says."""

from __future__ import annotations

from typing import Literal

from bstar.star.arbiter import Reply
from bstar.star.in_sync import InSyncSets
from bstar.wire.arbiter import Question, SetAnswer, SetClaim
from bstar_broker.core.outputs import Output
from bstar_broker.store.core.entries import START, Position
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    AskArbiter,
    Mark,
    Opened,
    ToPeer,
    Write,
    Written,
)
from bstar_broker.store.core.in_sync import InSync
from bstar_broker.store.core.peer import Hello, Part, decode, encode
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.replica import Replica, ReplicaSettings

SETTINGS = ReplicaSettings(heartbeat_s=0.25, peer_timeout_s=2.0, has_arbiter=True)
Role = Literal["primary", "backup"]


class Node:
    """A replica with a disk that syncs at once, beside the arbiter ``sets``; ``asked`` waits for it."""

    def __init__(self, role: Role, sets: InSyncSets, mark: Mark | None = None, last: int = 0) -> None:
        self.role: Role = role
        self.sets = sets
        self.replica = Replica(pair="p", role=role, settings=SETTINGS, new_store=role.encode() * 2, now=0.0)
        self.outbox: list[list[bytes]] = []
        self.orders: list[Write] = []
        self.asked: list[AskArbiter] = []
        # Its disk takes orders and syncs nothing.
        self.is_held = False
        at = Position(1, last) if last else START
        epochs = [Position(1, 1)] if last else []
        self.do(self.replica.opened(Opened(mark, at, 1, last, 0, epochs, Totals(), {}), 0.0), 0.0)

    def do(self, outputs: list[Output], now: float) -> None:
        for output in outputs:
            if isinstance(output, Write):
                self.orders.append(output)
            elif isinstance(output, ToPeer):
                self.outbox.append(output.frames)
            elif isinstance(output, AskArbiter):
                self.asked.append(output)
        if not self.is_held:
            self.release(now)

    def release(self, now: float) -> None:
        """The disk syncs what was ordered."""
        self.is_held = False
        while self.orders:
            order = self.orders.pop(0)
            for number in range(self.replica.applied_to + 1, order.apply_to + 1):
                self.do(self.replica.applied(Applied(number, [], Totals()), now), now)
            self.do(self.replica.written(Written(self.replica.last, order.order), now), now)

    def hear_arbiter(self, now: float) -> None:
        """Let the arbiter answer."""
        while self.asked:
            asked = self.asked.pop(0)
            question = Question("look", "p", self.role, "run", asked.number, 2_000, asked.claim)
            reply = self.sets.receive(question, asked.claim, now)[-1]
            assert isinstance(reply, Reply)
            self.do(self.replica.arbiter_said(ArbiterSaid(asked.number, reply.answer.store), now), now)

    def wait(self, now: float) -> None:
        """Let the timer find that it is so late."""
        self.do(self.replica.handle_timer(now), now)


def talk(one: Node, two: Node, now: float = 0.0) -> None:
    """Let all messages arrive."""
    while one.outbox or two.outbox:
        for sender, reader in ((one, two), (two, one)):
            while sender.outbox:
                reader.do(reader.replica.receive(sender.outbox.pop(0), now), now)


def pair() -> tuple[Node, Node]:
    """A new pair in sync, whose primary leads."""
    sets = InSyncSets({}, now=0.0)
    primary, backup = Node("primary", sets), Node("backup", sets)
    primary.do(primary.replica.lead(1, 0.0), 0.0)
    for _ in range(3):
        talk(primary, backup)
        primary.hear_arbiter(0.0)
    assert primary.replica.copies == 2
    return primary, backup


def leads(node: Node) -> bool:
    return node.replica.is_leading


def members(node: Node) -> list[list[str]]:
    return [sorted(known.in_sync) for known in node.sets.all.values()]


def mark(role: Role, *, is_in_sync: bool = True, is_alone: bool = False, is_doubtful: bool = False) -> Mark:
    return Mark("p", role, b"store" * 2, is_in_sync, is_alone, "primary", is_doubtful)


def doubtful(role: Role) -> Mark:
    """A copy that was in sync, and whose leader may have gone on alone."""
    return mark(role, is_in_sync=False, is_doubtful=True)


def register(sets: InSyncSets, role: Role, in_sync: list[Role], epoch: int = 1) -> None:
    """What an earlier leader claimed."""
    claim = SetClaim((b"store" * 2).hex(), epoch, in_sync)
    sets.receive(Question("look", "p", role, "former", 1, 2_000, claim), claim, 0.0)


def test_a_pair_in_sync_is_registered() -> None:
    primary, _ = pair()
    assert members(primary) == [["backup", "primary"]]


def test_a_leader_commits_alone_only_when_the_arbiter_grants_it() -> None:
    primary, _ = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    primary.outbox.clear()
    primary.wait(2.5)
    assert primary.replica.copies == 1
    assert primary.replica.committed == 1
    kept = primary.replica.mark
    assert kept is not None
    assert not kept.is_alone
    primary.hear_arbiter(2.5)
    assert primary.replica.committed == 2
    assert members(primary) == [["primary"]]


def test_the_peer_is_in_the_set_only_after_the_leaders_mark_is_taken_back() -> None:
    primary, backup = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    primary.outbox.clear()
    primary.wait(2.5)
    primary.hear_arbiter(2.5)
    primary.do(primary.replica.peer_lost(2.6), 2.6)
    backup.do(backup.replica.peer_lost(2.6), 2.6)
    for now in (2.6, 3.0, 3.3, 3.6):
        for node in (primary, backup):
            node.wait(now)
        while primary.outbox or backup.outbox:
            for sender, reader in ((primary, backup), (backup, primary)):
                if sender.outbox:
                    reader.do(reader.replica.receive(sender.outbox.pop(0), now), now)
                kept = primary.replica.mark
                assert kept is not None
                is_claimed = any(len(asked.claim.in_sync) > 1 for asked in primary.asked)
                assert is_claimed == (not kept.is_alone)
    primary.hear_arbiter(3.6)
    assert members(primary) == [["backup", "primary"]]


def test_a_leader_without_the_arbiter_says_why_it_does_not_go_on() -> None:
    primary, _ = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    for now in (2.5, 3.0, 5.0):
        primary.wait(now)
    assert primary.replica.committed == 1
    assert "the arbiter does not answer" in primary.replica.trouble


def test_an_arbiter_of_an_earlier_release_is_named() -> None:
    primary, _ = pair()
    primary.wait(2.5)
    asked = primary.asked.pop()
    primary.do(primary.replica.arbiter_said(ArbiterSaid(asked.number, None), 2.5), 2.5)
    assert "of a release that keeps no in-sync sets" in primary.replica.trouble


def test_a_grant_of_an_earlier_claim_does_not_count() -> None:
    """The set of two was granted late; the set of one that was claimed meanwhile is not."""
    primary, backup = pair()
    late = primary.asked
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    primary.wait(1.1)
    assert [asked.claim.in_sync for asked in late] == [["primary", "backup"]]
    backup.outbox.clear()
    primary.outbox.clear()
    primary.wait(2.5)
    two, one = primary.asked[0], primary.asked[-1]
    assert one.claim.in_sync == ["primary"]
    primary.asked.clear()
    primary.asked.append(two)
    primary.hear_arbiter(2.5)
    assert primary.replica.committed == 1


def test_a_follower_that_was_counted_out_does_not_lead() -> None:
    """Both links are cut, the leader goes on alone and dies: the case that marks alone cannot prove."""
    primary, backup = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    primary.outbox.clear()
    primary.wait(2.5)
    primary.hear_arbiter(2.5)
    assert primary.replica.committed == 2
    backup.do(backup.replica.peer_lost(3.0), 3.0)
    backup.do(backup.replica.lead(2, 3.0), 3.0)
    backup.hear_arbiter(3.0)
    for now in (5.0, 7.0, 9.0):
        backup.wait(now)
        backup.hear_arbiter(now)
    assert not leads(backup)
    assert "the arbiter counts the primary's copy alone" in backup.replica.trouble
    assert members(primary) == [["primary"]]


def test_a_follower_in_the_set_takes_over_alone() -> None:
    primary, backup = pair()
    backup.do(backup.replica.peer_lost(1.0), 1.0)
    backup.do(backup.replica.lead(2, 1.0), 1.0)
    backup.hear_arbiter(1.0)
    assert leads(backup)
    assert backup.replica.committed == backup.replica.last.number
    assert members(primary) == [["backup"]]


def test_a_member_that_starts_alone_leads() -> None:
    """Both nodes were down and one comes back: its mark alone would not do."""
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary", "backup"])
    backup = Node("backup", sets, mark("backup"), last=5)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    backup.wait(2.5)
    assert not leads(backup)
    backup.hear_arbiter(2.5)
    backup.hear_arbiter(2.5)
    assert backup.replica.committed == 6


def test_a_member_whose_disk_is_new_does_not_lead_alone() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary", "backup"])
    backup = Node("backup", sets)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    for now in (2.5, 3.0):
        backup.wait(now)
        backup.hear_arbiter(now)
    assert not leads(backup)


def test_a_node_that_was_alone_and_was_overruled_does_not_lead_by_its_mark() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "backup", ["backup"], epoch=2)
    primary = Node("primary", sets, mark("primary", is_alone=True), last=5)
    primary.do(primary.replica.lead(3, 0.0), 0.0)
    primary.hear_arbiter(0.0)
    primary.wait(2.5)
    assert not leads(primary)
    assert "the arbiter counts the backup's copy alone" in primary.replica.trouble


def meet(primary: Node, backup: Node) -> None:
    for now in (0.0, 0.5, 1.0, 1.5):
        for node in (primary, backup):
            node.wait(now)
        talk(primary, backup, now)
        for node in (primary, backup):
            node.hear_arbiter(now)


def test_a_copy_in_sync_does_not_lead_beside_a_new_disk_that_may_have_had_more() -> None:
    """The primary was alone and lost its disk."""
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary"])
    primary, backup = Node("primary", sets), Node("backup", sets, mark("backup"), last=5)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    talk(primary, backup)
    assert not leads(backup)
    meet(primary, backup)
    assert not leads(backup)
    assert backup.replica.trouble
    backup.do(backup.replica.force(2.0), 2.0)
    for now in (2.0, 2.5, 3.0):
        backup.hear_arbiter(now)
        talk(primary, backup, now)
    assert leads(backup)
    assert backup.replica.committed >= 6


def test_a_new_disk_does_not_take_over_a_copy_that_may_lack_something() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary"])
    primary, backup = Node("primary", sets), Node("backup", sets, mark("backup"), last=5)
    primary.do(primary.replica.lead(3, 0.0), 0.0)
    meet(primary, backup)
    assert not leads(primary)
    assert "the disk of this node is new" in primary.replica.trouble


def test_a_doubtful_copy_in_the_set_is_taken_over() -> None:
    """Its leader was not granted to go on alone: neither mark vouches for anything, and the set decides."""
    sets = InSyncSets({}, now=0.0)
    register(sets, "backup", ["backup"])
    primary = Node("primary", sets, doubtful("primary"), last=5)
    backup = Node("backup", sets, doubtful("backup"), last=5)
    primary.do(primary.replica.lead(3, 0.0), 0.0)
    meet(primary, backup)
    assert leads(primary)
    assert primary.replica.committed == 6


def test_a_doubtful_copy_in_the_set_leads_beside_one_outside_of_it() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "backup", ["backup"])
    primary = Node("primary", sets, mark("primary"), last=7)
    backup = Node("backup", sets, doubtful("backup"), last=5)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    meet(primary, backup)
    assert leads(backup)
    assert backup.replica.committed == 6


def test_a_doubtful_member_that_starts_alone_leads() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary", "backup"])
    backup = Node("backup", sets, doubtful("backup"), last=5)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    for now in (2.5, 3.0):
        backup.wait(now)
        backup.hear_arbiter(now)
    assert leads(backup)


def test_of_two_doubtful_members_the_one_with_more_entries_is_the_source() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary", "backup"])
    primary = Node("primary", sets, doubtful("primary"), last=5)
    backup = Node("backup", sets, doubtful("backup"), last=7)
    primary.do(primary.replica.lead(3, 0.0), 0.0)
    meet(primary, backup)
    # This backup has no disk to read its entries from.
    assert "this copy takes over what the peer's has" in primary.replica.trouble
    primary.do(primary.replica.follow(2.0), 2.0)
    backup.do(backup.replica.lead(4, 2.0), 2.0)
    meet(primary, backup)
    assert leads(backup)


def test_two_doubtful_copies_wait_for_an_operator_where_the_arbiter_knows_nothing() -> None:
    sets = InSyncSets({}, now=0.0)
    primary = Node("primary", sets, doubtful("primary"), last=5)
    backup = Node("backup", sets, doubtful("backup"), last=5)
    primary.do(primary.replica.lead(3, 0.0), 0.0)
    meet(primary, backup)
    assert not leads(primary)
    assert "neither this copy nor the peer's" in primary.replica.trouble


def test_a_new_disk_in_the_set_is_no_doubtful_one() -> None:
    """The arbiter counts the node, and the disk that it had is lost."""
    sets = InSyncSets({}, now=0.0)
    register(sets, "backup", ["backup"])
    primary = Node("primary", sets, doubtful("primary"), last=5)
    backup = Node("backup", sets, mark("backup", is_in_sync=False), last=3)
    for node, epoch in ((primary, 3), (backup, 4)):
        node.do(node.replica.lead(epoch, 0.0), 0.0)
        meet(primary, backup)
        assert not leads(node)
        node.do(node.replica.follow(2.0), 2.0)


def test_a_follower_is_doubtful_when_its_leader_may_go_on_alone_and_not_when_its_content_is_replaced() -> (
    None
):
    primary, backup = pair()
    backup.do(backup.replica.peer_serves(5.0), 5.0)
    kept = backup.replica.mark
    assert kept is not None
    assert (kept.is_in_sync, kept.is_doubtful) == (False, True)
    hello = decode(primary.replica._site.say_hello(asks=False).frames)
    assert isinstance(hello, Hello)
    part = Part(hello.run, hello.leads, 0, False, [], None)
    backup.do(backup.replica.receive(encode(part), 5.0), 5.0)
    kept = backup.replica.mark
    assert kept is not None
    assert (kept.is_in_sync, kept.is_doubtful) == (False, False)


def test_a_new_disk_joins_only_a_leader_that_is_granted_to_be_alone() -> None:
    """The disk before it may have gone on alone, and this leader does not know."""
    primary, _ = pair()
    primary.hear_arbiter(0.0)
    # The backup led in between, alone, and lost its disk.
    claim = SetClaim(_store(primary), 2, ["backup"])
    primary.sets.receive(Question("look", "p", "backup", "former", 9, 2_000, claim), claim, 0.0)
    primary.do(primary.replica.peer_lost(3.0), 3.0)
    new = Node("backup", primary.sets)
    for now in (3.0, 3.5, 4.0):
        for node in (primary, new):
            node.wait(now)
        talk(primary, new, now)
    assert leads(primary)
    assert primary.replica.copies == 1
    primary.do(primary.replica.propose(b"x", 1, 4.0), 4.0)
    talk(primary, new, 4.0)
    assert primary.replica.committed == 1
    primary.hear_arbiter(4.0)
    assert not leads(primary)


def _store(node: Node) -> str:
    kept = node.replica.mark
    assert kept is not None
    return kept.store.hex()


def test_a_new_disk_takes_over_from_a_member() -> None:
    sets = InSyncSets({}, now=0.0)
    register(sets, "primary", ["primary", "backup"])
    primary, backup = Node("primary", sets), Node("backup", sets, mark("backup"), last=5)
    backup.do(backup.replica.lead(2, 0.0), 0.0)
    meet(primary, backup)
    assert leads(backup)


def test_late_and_foreign_answers_change_nothing() -> None:
    primary, _ = pair()
    assert primary.replica.arbiter_said(ArbiterSaid(99, None), 0.0) == []
    assert primary.replica.arbiter_said(ArbiterSaid(0, None), 0.0) == []
    assert primary.replica.trouble == ""


def test_the_set_of_two_is_claimed_when_the_leaders_mark_is_on_its_disk() -> None:
    """A crash before that brings back a node that was alone: the peer must not count as in the set."""
    primary, backup = pair()
    primary.do(primary.replica.propose(b"x", 1, 0.0), 0.0)
    primary.outbox.clear()
    primary.wait(2.5)
    primary.hear_arbiter(2.5)
    primary.do(primary.replica.peer_lost(2.6), 2.6)
    backup.do(backup.replica.peer_lost(2.6), 2.6)
    primary.is_held = True
    for now in (2.6, 3.0, 3.3, 3.6):
        for node in (primary, backup):
            node.wait(now)
        talk(primary, backup, now)
        primary.hear_arbiter(now)
    ordered = primary.replica.mark
    assert ordered is not None
    assert not ordered.is_alone, "it is ordered"
    assert members(primary) == [["primary"]], "and not on the disk"
    primary.release(3.7)
    primary.hear_arbiter(3.7)
    assert members(primary) == [["backup", "primary"]]


def test_a_late_answer_of_the_arbiter_says_nothing_of_a_later_question() -> None:
    part = InSync(is_on=True, heartbeat_s=0.25, timeout_s=2.0)
    [first] = part.look(b"old", 0.0)
    [second] = part.look(b"new", 0.1)
    both: list[Role] = ["primary", "backup"]
    assert part.hear(ArbiterSaid(first.number, SetAnswer(epoch=3, in_sync=both)), 0.2)
    assert not part.is_answered(b"new")
    assert part.is_member("primary", b"new") is None
    assert part.hear(ArbiterSaid(second.number, SetAnswer(epoch=4, in_sync=["backup"])), 0.3)
    assert part.is_answered(b"new")
    assert part.is_member("primary", b"new") is False
    assert not part.hear(ArbiterSaid(first.number, SetAnswer(epoch=3, in_sync=both)), 0.4)
    assert part.is_member("primary", b"new") is False


def test_a_new_leader_claims_the_set_of_two_when_its_peer_has_its_first_entry() -> None:
    primary, backup = pair()
    primary.wait(0.25)
    talk(primary, backup, 0.25)
    backup.do(backup.replica.lead(2, 0.5), 0.5)
    assert backup.replica.is_leading
    assert [len(asked.claim.in_sync) for asked in backup.asked] == []
    backup.outbox.clear()
    primary.do(primary.replica.follow(0.6), 0.6)
    for now in (0.75, 1.0, 1.25):
        for node in (primary, backup):
            node.wait(now)
        talk(primary, backup, now)
    assert backup.replica.copies == 2
    assert [sorted(asked.claim.in_sync) for asked in backup.asked][-1:] == [["backup", "primary"]]


def test_an_answer_to_a_question_that_was_not_asked_is_none() -> None:
    part = InSync(is_on=True, heartbeat_s=0.25, timeout_s=2.0)
    [asked] = part.look(b"store", 0.0)
    assert not part.hear(ArbiterSaid(asked.number + 1, SetAnswer(epoch=9, in_sync=["backup"])), 0.1)
    assert part.epoch == 0
    assert part.hear(ArbiterSaid(asked.number, SetAnswer(epoch=1, in_sync=["primary"])), 0.2)
    assert part.is_member("primary", b"store")
