"""Those who are sent away are bounded, and so are the frames of a message."""

from bstar.star import Role, StarMachine, StarSettings
from bstar.wire import native
from bstar.wire.messages import ErrorCode
from bstar_broker.core import BrokerSettings, Node, Notice
from bstar_broker.core.registry import Outcasts
from support.desk import Desk, heard, ident, sent


def test_those_who_were_told_are_bounded() -> None:
    outcasts = Outcasts(quiet_s=5.0, count_max=3)
    for number in range(10):
        outcasts.add(b"%d" % number, 0.0)
    assert [b"%d" % number in outcasts for number in range(10)] == [False] * 7 + [True] * 3
    outcasts.tidy(5.0)
    assert b"9" not in outcasts


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
