"""The replicas of a pair with an arbiter, where scripts do not show it (test_replica_scripts.py)."""

from __future__ import annotations

from bstar.wire.arbiter import SetAnswer
from bstar_broker.store.core.events import ArbiterSaid
from bstar_broker.store.core.in_sync import InSync
from bstar_broker.store.core.peer import Hello, Part, decode, encode
from support.replica_stage import Node, Role, pair


def members(node: Node) -> list[list[str]]:
    assert node.sets is not None
    return [sorted(known.in_sync) for known in node.sets.all.values()]


def test_the_peer_is_in_the_set_only_after_the_leaders_mark_is_taken_back() -> None:
    primary, backup = pair(has_arbiter=True)
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


def test_a_grant_of_an_earlier_claim_does_not_count() -> None:
    """The set of two was granted late; the set of one that was claimed meanwhile is not."""
    primary, backup = pair(has_arbiter=True)
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


def test_a_follower_is_doubtful_when_its_leader_may_go_on_alone_and_not_when_its_content_is_replaced() -> (
    None
):
    primary, backup = pair(has_arbiter=True)
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


def test_late_and_foreign_answers_change_nothing() -> None:
    primary, _ = pair(has_arbiter=True)
    assert primary.replica.arbiter_said(ArbiterSaid(99, None), 0.0) == []
    assert primary.replica.arbiter_said(ArbiterSaid(0, None), 0.0) == []
    assert primary.replica.trouble == ""


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


def test_an_answer_to_a_question_that_was_not_asked_is_none() -> None:
    part = InSync(is_on=True, heartbeat_s=0.25, timeout_s=2.0)
    [asked] = part.look(b"store", 0.0)
    assert not part.hear(ArbiterSaid(asked.number + 1, SetAnswer(epoch=9, in_sync=["backup"])), 0.1)
    assert part.epoch == 0
    assert part.hear(ArbiterSaid(asked.number, SetAnswer(epoch=1, in_sync=["primary"])), 0.2)
    assert part.is_member("primary", b"store")
