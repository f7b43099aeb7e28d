"""What a registered plain worker may not say ends its registration, once; and what is read all the same."""

import pytest

from bstar.star import Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_broker.core import BrokerSettings, Node, Notice
from bstar_broker.core.registry import Outcasts
from support.desk import Desk, heard, ident, sent

requirement = pytest.mark.requirement

HEADS = {"01": [b"", b"MDPW01"], "02": [b"MDPW02"]}
DISCONNECT = {"01": [b"", b"MDPW01", b"\x05"], "02": [b"MDPW02", b"\x06"]}
HEARTBEAT = {"01": b"\x04", "02": b"\x05"}
REPLY = {"01": b"\x03", "02": b"\x04"}
WORDS = {
    "unknown": [b"\x09", b"what?"],
    "empty": [b""],
    "long": [b"\x01\x01"],
    "REQUEST": [b"\x02", b"client", b"", b"body"],
    "header-alone": [],
}
EXPIRY_S = 7.5


def desk(version: str) -> Desk:
    """A broker with two workers; the first has a request."""
    it = Desk()
    for worker in (b"w", b"v"):
        it.send(worker, *HEADS[version], b"\x01", b"echo")
    assert it.request02(b"c")[0][0] == b"w"
    return it


@pytest.mark.parametrize("version", ["01", "02"])
@pytest.mark.parametrize("word", WORDS)
@requirement("MDP1-B-04")
@requirement("MDP2-B-04")
def test_a_worker_that_was_sent_away_is_told_once(version: str, word: str) -> None:
    it = desk(version)
    it.send(b"w", *HEADS[version], *WORDS[word])
    assert it.send(b"w", *HEADS[version], *WORDS[word]) == []
    assert it.send(b"w", *HEADS[version], HEARTBEAT[version]) == []
    assert it.send(b"w", *HEADS[version], REPLY[version], b"c", b"", b"late") == []


@pytest.mark.parametrize("version", ["01", "02"])
def test_a_stranger_is_told_once_to_register_and_then_may(version: str) -> None:
    it = Desk()
    heartbeat = [b"w", *HEADS[version], HEARTBEAT[version]]
    assert it.send(*heartbeat) == [[b"w", *DISCONNECT[version]]]
    assert it.send(*heartbeat) == []
    it.send(b"w", *HEADS[version], b"\x01", b"echo")
    assert it.request02(b"c")[0][0] == b"w"
    # A second READY is unexpected: it is sent away anew, and told so.
    assert it.send(b"w", *HEADS[version], b"\x01", b"echo") == [[b"w", *DISCONNECT[version]]]


def test_a_worker_that_missed_it_is_told_again_after_an_expiry() -> None:
    it = Desk()
    heartbeat = [b"w", b"MDPW02", b"\x05"]
    assert it.send(*heartbeat) != []
    it.wait(EXPIRY_S - 1)
    assert it.send(*heartbeat) == []
    it.wait(3)
    assert it.send(*heartbeat) != []


def test_those_who_were_told_are_bounded() -> None:
    outcasts = Outcasts(quiet_s=5.0, count_max=3)
    for number in range(10):
        outcasts.add(b"%d" % number, 0.0)
    assert [b"%d" % number in outcasts for number in range(10)] == [False] * 7 + [True] * 3
    outcasts.tidy(5.0)
    assert b"9" not in outcasts


@pytest.mark.parametrize("version", ["01", "02"])
def test_a_reply_without_the_empty_frame_reaches_its_client(version: str) -> None:
    it = Desk()
    it.send(b"w", *HEADS[version], b"\x01", b"echo")
    it.request(b"c", 1)
    address = it.ledger.workers[b"w"].in_flight
    (reply,) = it.send(b"w", *HEADS[version], REPLY[version], next(iter(address)), b"done", b"well")
    assert (heard(reply).identity, heard(reply).body) == (ident(1), [b"done", b"well"])


def test_a_reply_that_could_be_meant_otherwise_is_invalid() -> None:
    it = desk("02")
    disconnect, _ = it.send(b"w", b"MDPW02", b"\x04", b"c", b"second address", b"", b"body")
    assert disconnect == [b"w", *DISCONNECT["02"]]


# --- messages of many frames --------------------------------------------------------------------------------


def test_a_message_of_thousands_of_frames_passes() -> None:
    it = Desk()
    it.ready02(b"w")
    body = [b"%d" % number for number in range(10_000)]
    (request,) = it.send(b"c", b"MDPC02", b"\x01", b"echo", *body)
    assert request[5:] == body
    (reply,) = it.send(b"w", b"MDPW02", b"\x04", b"c", b"", *body)
    assert reply[4:] == body


def node(frames_max: int) -> Node:
    machine = StarMachine(
        StarSettings(pair="pair", role=Role.PRIMARY, heartbeat_interval_s=0.1, failover_timeout_s=0.3),
        node="00",
        epoch=0,
        now=0.0,
    )
    settings = BrokerSettings(message_frames_max=frames_max)
    return Node(machine, settings, node_id=bytes(16), drain_timeout_s=1.0, version="0", now=0.0)


def test_the_limit_of_frames_is_that_of_the_configuration_and_named_in_the_log() -> None:
    it = node(20)
    fits = [b"c", b"MDPC02", b"\x01", b"echo", *[b"x"] * 16]
    it.receive_frames(fits, 0.0)
    assert it.broker.ledger.drops == {"not-active": 1}
    (notice,) = (each for each in it.receive_frames([*fits, b"x"], 0.0) if isinstance(each, Notice))
    assert "limits.message_frames_max" in notice.text
    assert it.broker.ledger.drops["invalid-frames"] == 1


def test_a_native_client_is_told_that_its_message_has_too_many_frames() -> None:
    outputs = node(20).receive_frames([b"c", *native.encode_request(ident(1), b"echo", [b"x"] * 30)], 0.0)
    (error,) = (heard(frames) for frames in sent(outputs))
    assert (error.command, error.value) == (native.ERROR, ErrorCode.INVALID)
