"""What a node makes of PUBLISH: one node publishes, and says so to who asks."""

from __future__ import annotations

import pytest

from bstar.security import Principal
from bstar.security.principals import Patterns
from bstar.wire import emq, native
from bstar.wire.emq import Wire
from bstar.wire.emq_jobs import Headers
from bstar.wire.messages import ErrorCode
from bstar_broker.fronts.emq.desk import EmqSettings
from bstar_broker.fronts.emq.publications import SERVICE, may_subscribe
from support.emq import EmqStage, Told, replies, result

CONFIRM = Headers(reply_requested=True)
DOOR = EmqSettings(has_subscribers=True)
NEWS = [b"news", b'"hello"']


@pytest.fixture
def stage() -> EmqStage:
    stage = EmqStage(DOOR)
    stage.waits(1.0)
    return stage


def publish(stage: EmqStage, headers: Headers = CONFIRM) -> list[Told]:
    return stage.says("clients", b"publisher", emq.Publish(b"p1", NEWS[0], NEWS[1], headers))


@pytest.mark.requirement("EMQ-P-02")
def test_a_publication_has_topic_and_message_and_no_answer_as_published(stage: EmqStage) -> None:
    """EMQ-P-02."""
    frames = [b"", b"eMQP/1.0", b"PUBLISH", b"5f0c-6c3e", b"topic", b'["update", "1"]']
    assert stage.sends("clients", b"publisher", *frames) == []
    assert stage.published() == [[b"topic", b'["update", "1"]']]


@pytest.mark.requirement("EMQ-P-04")
@pytest.mark.parametrize("wire", Wire)
def test_who_asks_gets_a_reply_after_the_publication_went_out(wire: Wire) -> None:
    """EMQ-P-04: the REPLY is that of the specification for a request without information, ``true``."""
    stage = EmqStage(EmqSettings(has_subscribers=True, wire=wire))
    stage.waits(1.0)
    [(peer, msgid, value)] = replies(publish(stage))
    assert (peer, msgid, value) == (b"publisher", b"p1", result(True))
    assert [output.door for output in stage.left] == ["subscribers", "clients"]
    assert stage.published() == [NEWS]


@pytest.mark.requirement("EMQ-P-03")
def test_a_node_that_does_not_serve_publishes_nothing_and_gives_the_message_back(stage: EmqStage) -> None:
    """EMQ-P-03: a KBYE with the msgid sends the publisher to the other node, whether it asked or not."""
    stage.step_down()
    for headers in (Headers(), CONFIRM):
        assert publish(stage, headers=headers) == [(b"publisher", emq.Goodbye(b"p1"))]
    assert stage.published() == []


@pytest.mark.requirement("EMQ-P-03")
def test_a_publication_is_a_vote(stage: EmqStage) -> None:
    """EMQ-P-03."""
    stage.step_down()
    stage.miss_peer()
    assert publish(stage)
    assert stage.published() == [NEWS]


def test_peers_of_other_dialects_publish_by_a_request(stage: EmqStage) -> None:
    def ask(number: int, *body: bytes) -> native.Message:
        identity = native.identity(b"h" * 16, number)
        asked = native.encode_request(identity, SERVICE, list(body), ttl_ms=0, epoch=0, is_repeated=False)
        [answer] = stage.say(*asked, sender=b"native")
        return native.decode(answer[1:])

    assert ask(1, *NEWS).body == [result(True)]
    assert stage.published() == [NEWS]
    large = [b"news", b"a" * (emq.PUBLICATION_BYTES_MAX - 3)]
    for number, body in enumerate(([b"one"], [b"1", b"2", b"3"], [b"news", b"\xff"], large), start=2):
        refused = ask(number, *body)
        assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)
    assert stage.published() == [NEWS]


def test_without_a_door_for_subscribers_a_publication_is_refused() -> None:
    stage = EmqStage()
    [(_, msgid, value)] = replies(publish(stage))
    assert msgid == b"p1"
    assert value == result("refused: this node has no fronts.emq.subscribers")
    assert stage.drops() == {"emq-publish": 1}


@pytest.mark.requirement("EMQ-G-06")
def test_after_a_disconnect_nothing_is_published() -> None:
    """EMQ-G-06: of no dialect."""
    stage = EmqStage(EmqSettings(has_subscribers=True, may_disconnect=True))
    stage.waits(1.0)
    stage.says("admin", b"ops", emq.Disconnect(b"d"))
    assert publish(stage) == [(b"publisher", emq.Goodbye(b"p1"))]
    stage.waits(2.0)
    assert stage.node.broker.ledger.workers == {}


def test_a_door_that_the_broker_sent_away_comes_back(stage: EmqStage) -> None:
    [worker] = stage.node.broker.ledger.workers.values()
    stage.carry_out(stage.node.act(lambda now: stage.node.broker.send_away(worker, now), stage.now))
    assert stage.node.broker.ledger.workers == {}
    publish(stage)
    assert stage.published() == []
    stage.waits(1.0)
    assert stage.published() == [NEWS]


def test_the_state_counts_subscribers_publications_and_those_that_are_behind(stage: EmqStage) -> None:
    stage.carry_out(stage.node.front_connected("emq", "subscribers", 3, stage.now))
    publish(stage)
    [sent] = [output for output in stage.left if output.door == "subscribers"]
    stage.carry_out(stage.node.front_unsent(sent, stage.now, is_gone=False))
    [front] = stage.node.state(stage.now).fronts
    assert front.peers["subscribers"] == 3
    assert front.counts["published"] == 1
    assert stage.drops() == {"emq-slow-subscriber": 1}


def test_to_subscribe_is_a_right_of_its_own() -> None:
    publisher, both = (Principal("p", (), calls=Patterns([text])) for text in ("emq.publish", "emq.*"))
    assert not may_subscribe(publisher)
    assert may_subscribe(both)
    assert not may_subscribe(Principal("p", (), offers=Patterns(["*"])))
