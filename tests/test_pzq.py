"""PZQ's machine on a node with a durable store, in virtual time."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import ConfigurationError, RemoteProtocolError
from bstar.security.principals import Patterns, Principal
from bstar.settings import from_mapping
from bstar.settings.fields import nested
from bstar.wire import durable, native, pzq
from bstar_broker.core.outputs import FrontSend
from bstar_broker.fronts.plans import plans_of
from bstar_broker.fronts.pzq.deliveries import Deliveries
from bstar_broker.fronts.pzq.front import PzqSettings
from bstar_broker.store.core.settings import StoreSettings
from support.pzq_stage import Stage
from support.solo_store import DAY_MS

requirement = pytest.mark.requirement
COUNT = 20_000


def test_a_message_is_stored_delivered_acknowledged_and_leaves_nothing_behind() -> None:
    stage = Stage()
    assert stage.produce(b"id1", b"", b"body1", b"body1b") == [[b"id1", b"1", b""]]
    [[key, sent, timeout, empty, *body]] = stage.heard
    assert (timeout, empty, body) == (b"5000000", b"", [b"body1", b"body1b"])
    assert 1_000 * DAY_MS <= int(sent) <= stage.wall_us()
    stored_us, _, name = key.decode().partition("|")
    assert int(stored_us) == 1_000 * DAY_MS
    assert str(uuid.UUID(name)) == name
    assert stage.kept == 1
    stage.ack(key, b"1")
    assert stage.kept == 0
    assert stage.front.counts["done"] == 1
    assert stage.front.levels["in_flight"] == 0


@requirement("PZQ-B-02")
def test_headers_before_the_empty_frame_are_skipped() -> None:
    stage = Stage()
    assert stage.produce(b"id2", b"hdr", b"x", b"", b"b2") == [[b"id2", b"1", b""]]
    assert stage.bodies == [[b"b2"]]


@requirement("PZQ-B-03")
def test_a_producer_hears_nothing_before_its_message_is_stored() -> None:
    stage = Stage()
    stage.is_held = True
    assert stage.produce(b"id", b"", b"body") == []
    stage.release()
    assert [output.frames for output in stage.left if output.door == "producers"] == [
        [b"p1", b"id", b"1", b""]
    ]


def test_a_late_acknowledgement_counts_although_the_message_is_about_to_be_delivered_again() -> None:
    stage = Stage()
    stage.produce(b"id", b"", b"body")
    [[key, *_]] = stage.heard
    stage.is_held = True
    stage.wait(5.5)
    assert stage.front.counts["expired"] == 1
    stage.ack(key, b"1")
    stage.release()
    stage.wait(6.0)
    assert len(stage.heard) == 1
    assert stage.kept == 0


@requirement("PZQ-B-04")
def test_bodies_are_passed_on_unmodified() -> None:
    """PZQ-B-04: empty frames and every byte are kept."""
    stage = Stage()
    bodies = [[b"", b"body"], [b"body", b"", b""], [b""], [bytes(range(256)), b"\0"]]
    for body in bodies:
        assert stage.produce(b"", b"", *body) == [[b"", b"1", b""]]
    assert stage.bodies == bodies


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ((b"id4", b"nodelim"), b"no empty frame"),
        ((b"id5", b""), b"an empty message"),
        ((b"id3",), b"no empty"),
    ],
)
@requirement("PZQ-R-05")
def test_a_producer_of_what_is_no_message_hears_why(frames: tuple[bytes, ...], text: bytes) -> None:
    """PZQ-R-05: also one with a single frame."""
    stage = Stage()
    [[message_id, status, empty, why]] = stage.produce(*frames)
    assert (message_id, status, empty) == (frames[0], b"0", b"")
    assert why.startswith(text)
    assert stage.kept == 0
    assert stage.node.state(0.0).broker.drops["pzq-producers"] == 1


def test_the_same_id_twice_is_two_messages() -> None:
    stage = Stage()
    for _ in range(2):
        stage.produce(b"id", b"", b"body")
    assert stage.kept == 2
    assert stage.heard[0][0] != stage.heard[1][0]


@requirement("PZQ-B-05")
def test_what_is_not_acknowledged_comes_again_and_a_refusal_at_once() -> None:
    """PZQ-B-05: the same key, a new sent time."""
    stage = Stage()
    stage.produce(b"id", b"", b"body")
    stage.ack(stage.heard[0][0], b"0")
    assert len(stage.heard) == 2
    stage.ack(stage.heard[0][0], b"2")
    assert len(stage.heard) == 3
    stage.wait(4.9)
    assert len(stage.heard) == 3
    stage.wait(0.2)
    assert len(stage.heard) == 4
    assert {frames[0] for frames in stage.heard} == {stage.heard[0][0]}
    assert int(stage.heard[3][1]) >= int(stage.heard[2][1]) + 5_000_000
    stage.ack(stage.heard[0][0], b"1")
    assert stage.kept == 0
    stage.wait(11.0)
    assert len(stage.heard) == 4
    assert stage.front.counts == {
        "stored": 1,
        "refused": 0,
        "done": 1,
        "requeued": 2,
        "expired": 1,
        "unread": 0,
    }
    assert stage.front.levels == {"in_flight": 0, "held": 0}


def test_no_number_of_attempts_and_no_age_ends_a_message() -> None:
    store = StoreSettings(attempts_max=2, expires_s=10.0)
    stage = Stage(store=store)
    stage.produce(b"id", b"", b"body")
    for _ in range(50):
        stage.ack(stage.heard[-1][0], b"0")
    stage.wait(100.0)
    assert len(stage.heard) > 51
    assert stage.kept == 1
    assert stage.table.totals.dead == 0


@requirement("PZQ-R-01")
def test_an_acknowledgement_after_the_timeout_deletes_the_message_all_the_same() -> None:
    """PZQ-R-01: while it is pending, and by a node that never delivered it."""
    stage = Stage()
    stage.produce(b"id", b"", b"body")
    key = stage.heard[0][0]
    stage.connect(0)
    stage.wait(5.1)
    assert stage.front.levels["in_flight"] == 0
    assert stage.kept == 1
    stage.ack(key, b"1")
    assert stage.kept == 0
    stage.connect(1)
    stage.wait(1.0)
    assert len(stage.heard) == 1


@requirement("PZQ-R-03")
def test_an_empty_frame_before_the_key_is_tolerated() -> None:
    stage = Stage()
    stage.produce(b"id", b"", b"body")
    stage.ack(b"", stage.heard[0][0], b"1")
    assert stage.kept == 0


def test_bad_acknowledgements_are_counted() -> None:
    stage = Stage()
    for frames in ((b"key",), (b"",), (b"no key", b"1"), (b"1|" + b"0" * 36, b"1")):
        stage.ack(*frames)
    assert stage.node.state(0.0).broker.drops == {"pzq-consumers": 4}


def test_consumers_have_no_more_than_in_flight_max_at_once() -> None:
    stage = Stage()
    for number in range(10):
        stage.produce(b"", b"", b"%d" % number)
    assert len(stage.heard) == 4
    stage.ack(stage.heard[0][0], b"1")
    assert [body for [body] in stage.bodies] == [b"0", b"1", b"2", b"3", b"4"]


def test_what_finds_no_room_waits_and_is_never_lost() -> None:
    stage = Stage(settings=PzqSettings(ack_timeout_s=5.0, in_flight_max=8))
    stage.room = 1
    for number in range(6):
        stage.produce(b"", b"", b"%d" % number)
    assert len(stage.heard) == 1
    stage.wait(4.0)
    assert stage.front.levels["held"] == 5
    assert stage.front.counts["expired"] == 0
    stage.room = 100
    stage.wait(1.0)
    assert [body for [body] in stage.bodies][:6] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for frames in stage.heard[:6]:
        stage.ack(frames[0], b"1")
    assert stage.kept == 0


def test_without_consumers_messages_wait_and_others_may_take_them() -> None:
    stage = Stage(consumers=0)
    stage.produce(b"", b"", b"one")
    stage.wait(1.0)
    assert stage.heard == []
    stage.connect(1)
    assert stage.bodies == [[b"one"]]
    # What waits for room goes back when the last consumer leaves.
    stage.room = 0
    stage.produce(b"", b"", b"two")
    assert stage.front.levels["held"] == 1
    stage.connect(0)
    assert stage.front.levels["held"] == 0
    stage.say(b"", b"MDPW01", b"\x01", b"pzq", sender=b"w1")
    assert [frames[-1] for frames in stage.sent if frames[0] == b"w1" and frames[3] == b"\x02"] == [b"two"]


def test_without_consumers_the_service_has_no_worker() -> None:
    stage = Stage(consumers=0)

    def offered() -> bytes:
        stage.say(b"", b"MDPC01", b"mmi.service", b"pzq", sender=b"c1")
        return stage.sent[-1][-1]

    assert offered() == b"404"
    stage.connect(1)
    assert offered() == b"200"
    stage.connect(0)
    assert offered() == b"404"
    stage.connect(1)
    stage.produce(b"", b"", b"one")
    [frames] = stage.heard
    stage.connect(0)
    assert offered() == b"200", "a consumer that comes back may still acknowledge"
    stage.ack(frames[0], b"1")
    assert offered() == b"404"
    stage.connect(1)
    stage.produce(b"", b"", b"two")
    stage.connect(0)
    stage.wait(5.1)
    assert offered() == b"404", "what is late is pending again"
    stage.connect(1)
    assert stage.bodies[-1] == [b"two"]
    assert offered() == b"200"


def test_a_client_of_another_dialect_is_answered_by_the_acknowledgement() -> None:
    stage = Stage()
    stage.say(b"", b"MDPC01", b"pzq", b"hello", sender=b"c1")
    stage.pump()
    [[key, *_, body]] = stage.heard
    assert body == b"hello"
    assert len(key.partition(b"|")[2]) == 36
    stage.ack(key, b"1")
    [answer] = [frames for frames in stage.sent if frames[0] == b"c1"]
    assert answer == [b"c1", b"", b"MDPC01", b"pzq", b""]


def test_a_native_client_gets_the_acknowledgement_as_its_reply() -> None:
    stage = Stage()
    stage.say(*native.encode_request(native.identity(bytes(16), 1), b"pzq", [b"hello"]), sender=b"c1")
    stage.pump()
    [[key, *_]] = stage.heard
    stage.ack(key, b"1")
    [answer] = [frames for frames in stage.sent if frames[0] == b"c1"]
    reply = native.decode(answer[1:])
    assert (reply.command, reply.body) == (native.FINAL, [b""])


def test_a_request_with_the_key_of_another_one_waits_for_it() -> None:
    """A client may choose an id that the identity of another request hashes to."""
    stage = Stage()
    stage.say(b"", b"MDPC01", b"pzq", b"plain", sender=b"c1")
    stage.pump()
    [[key, *_]] = stage.heard
    stage.submit(pzq.request_of(key), b"pzq", b"stored")
    stage.pump()
    assert len(stage.heard) == 1
    stage.ack(key, b"1")
    stage.wait(1.5)
    assert stage.bodies == [[b"plain"], [b"stored"]]


@requirement("PZQ-B-06")
def test_a_monitor_gets_the_figures_in_one_frame() -> None:
    """PZQ-B-06, and PZQ-R-02: both spellings."""
    stage = Stage()
    for _ in range(6):
        stage.produce(b"", b"", b"12345")
    routing_id, empty, text = stage.monitor(b"", b"MONITOR")
    assert (routing_id, empty) == (b"m", b"")
    assert text.endswith(b"\n")
    assert pzq.read_figures(text) == {
        "messages": 6, "messages_inflight": 4, "messages_in_flight": 4, "db_size": 0,
        "inflight_db_size": 20, "in_flightdb_size": 20, "syncs": 0, "expired_messages": 0,
    }  # fmt: skip
    assert stage.monitor(b"MONITOR")[:2] == [b"m", b""]
    assert stage.monitor(b"1234", b"", b"MONITOR")[:3] == [b"m", b"1234", b""]


@requirement("PZQ-R-02")
def test_both_spellings_of_the_figures_are_read_and_sent() -> None:
    assert pzq.read_figures(b"messages_inflight: 1\nin_flightdb_size: 2\n") == {
        "messages_inflight": 1,
        "in_flightdb_size": 2,
    }
    with pytest.raises(RemoteProtocolError):
        pzq.read_figures(b"error: nothing\n")


@requirement("PZQ-R-04")
def test_a_monitor_that_asks_for_something_else_hears_an_error() -> None:
    stage = Stage()
    assert stage.monitor(b"", b"STOP\n") == [
        b"m", b"", b'error: no command "STOP\\n": the only one is MONITOR\n'
    ]  # fmt: skip


def test_after_a_failover_what_was_in_flight_is_pending_and_producers_hear_where_to_go() -> None:
    stage = Stage()
    stage.produce(b"", b"", b"one")
    key = stage.heard[0][0]
    stage.step_down()
    assert not stage.node.is_active
    assert stage.kept == 1
    stage.ack(key, b"1")
    assert stage.kept == 1
    [[message_id, status, empty, text]] = stage.produce(b"id", b"", b"two")
    assert (message_id, status, empty) == (b"id", b"0", b"")
    assert b"failover" in text
    stage.wait(10.0)
    assert len(stage.heard) == 1


@pytest.mark.storm
def test_many_messages_leave_nothing_behind() -> None:
    stage = Stage(settings=PzqSettings(in_flight_max=512))
    stage.room = 1 << 60
    left = 0
    for number in range(COUNT):
        stage.front_hears("pzq", "producers", b"p", b"", b"", b"%d" % number)
        stage.pump()
        for frames in stage.heard:
            stage.ack(frames[0], b"1")
            left += 1
        stage.heard.clear()
        stage.sent.clear()
    assert left == COUNT
    assert stage.kept == 0
    assert stage.front.levels["in_flight"] == 0


@pytest.mark.storm
def test_no_input_ends_the_node_or_reaches_others() -> None:
    stage = Stage()
    stage.say(b"", b"MDPW01", b"\x01", b"echo", sender=b"w1")
    before = len(stage.sent)
    chance = random.Random(11)
    doors = ["producers", "consumers", "monitor"]
    pool = [b"", b"1", b"0", b"MONITOR", b"\0\xff", b"x" * 300]
    for number in range(100_000):
        if stage.heard and chance.random() < 0.3:
            pool = [*pool[:6], stage.heard[-1][0], chance.choice(stage.heard)[0][:-1]]
        frames = [chance.choice(pool) for _ in range(chance.randrange(1, 6))]
        stage.front_hears("pzq", chance.choice(doors), chance.choice((b"a", b"b")), *frames)
        stage.pump()
        del stage.heard[:-50]
        if number % 500 == 0:
            for message in list(stage.heard):
                stage.ack(message[0], b"1")
            stage.wait(0.05)
    # The worker hears heartbeats and nothing else.
    assert {tuple(frames) for frames in stage.sent[before:]} <= {(b"w1", b"", b"MDPW01", b"\x04")}
    for frames in list(stage.heard):
        stage.ack(frames[0], b"1")
    stage.heard.clear()
    stage.wait(6.0)
    assert stage.produce(b"id", b"", b"end") == [[b"id", b"1", b""]]


def test_a_key_names_its_request_only() -> None:
    request = durable.new_id(DAY_MS, bytes(range(10)))
    key = pzq.key_of(request)
    assert pzq.request_of(key) == request
    for other in (key[:-1], b"1" + key, key.upper(), key.replace(b"|", b""), b"", b"|"):
        with pytest.raises(RemoteProtocolError):
            pzq.request_of(other)


def test_the_configuration_says_what_pzq_needs() -> None:
    base = {
        "role": "primary",
        "endpoints": {
            "clients": "tcp://127.0.0.1:5001",
            "state": "tcp://127.0.0.1:5003",
            "peer_state": "tcp://127.0.0.1:5004",
        },
    }
    doors = {"producers": "tcp://127.0.0.1:11131"}
    with pytest.raises(ConfigurationError, match=r"needs the durable store.*set store\.directory"):
        from_mapping({**base, "fronts": {"pzq": doors}}, source="node.yaml")
    store = {"directory": "store", "link": "tcp://127.0.0.1:5005"}
    with pytest.raises(ConfigurationError, match="no name of a worker's service"):
        from_mapping({**base, "fronts": {"pzq": {"service": "store.submit"}}}, source="node.yaml")
    settings = from_mapping({**base, "store": store, "fronts": {"pzq": doors}}, source="node.yaml")
    [plan] = plans_of(settings)
    assert [(door.name, door.kind) for door in plan.doors] == [("producers", "router")]


def test_with_keys_consumers_offer_the_service_and_monitors_are_operators() -> None:
    given = {
        "role": "primary",
        "endpoints.clients": "tcp://127.0.0.1:5001",
        "endpoints.state": "tcp://127.0.0.1:5003",
        "endpoints.peer_state": "tcp://127.0.0.1:5004",
        "store.directory": "store",
        "store.link": "tcp://127.0.0.1:5005",
        "security.key": "node.key",
        "security.principals": "principals.yaml",
        "fronts.pzq.producers": "tcp://127.0.0.1:11131",
        "fronts.pzq.consumers": "tcp://127.0.0.1:11132",
        "fronts.pzq.monitor": "tcp://127.0.0.1:11133",
    }
    [plan] = plans_of(from_mapping(nested(given), source="node.yaml"))
    rules = {door.name: door.may_enter for door in plan.doors}
    assert rules.pop("producers") is None  # each of their messages is judged
    principals = (
        Principal("packer", (), offers=Patterns(["pz*"])),
        Principal("other", (), offers=Patterns(["price"])),
        Principal("shop", (), calls=Patterns(["*"])),
        Principal("ops", (), is_operator=True),
    )
    may = {
        name: [principal.name for principal in principals if rule(principal)]
        for name, rule in rules.items()
        if rule is not None
    }
    assert may == {"consumers": ["packer"], "monitor": ["ops"]}


def test_sends_are_frames_of_the_front() -> None:
    stage = Stage(consumers=0)
    stage.front_hears("pzq", "producers", b"p", b"id", b"", b"body")
    [output] = stage.left
    assert output == FrontSend("pzq", "producers", [b"p", b"id", b"1", b""])


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"", b"1", b"messages: 1\n", b"x: " + b"9" * 5_000]))
)
def test_garbage_raises_remote_protocol_error_and_nothing_else(frames: list[bytes]) -> None:
    readers: tuple[Callable[[list[bytes]], object], ...] = (
        pzq.read_ack,
        lambda given: pzq.read_message([b"id", *given]),
        lambda given: pzq.read_command([*given, b"MONITOR"]),
        lambda given: [pzq.request_of(frame) for frame in given],
        lambda given: [pzq.read_figures(frame) for frame in given],
    )
    for read in readers:
        with suppress(RemoteProtocolError):
            read(frames)


def test_the_octets_of_what_has_ended_are_given_back() -> None:
    deliveries = Deliveries()
    deliveries.add(b"a", b"id", [b"xx"])
    deliveries.add(b"b", b"id", [b"y", b"yy"])
    assert deliveries.take(5.0) is not None
    deliveries.end(b"a")
    assert (deliveries.size_bytes, deliveries.late_at(), len(deliveries)) == (3, None, 1)
    deliveries.end(b"b")
    assert deliveries.end(b"b") is None
    assert (deliveries.size_bytes, deliveries.held, len(deliveries)) == (0, 0, 0)


def test_a_message_that_comes_again_with_its_key_has_a_turn_of_its_own() -> None:
    deliveries = Deliveries()
    deliveries.add(b"a", b"id", [b"first"])
    deliveries.add(b"b", b"id", [b"other"])
    deliveries.end(b"a")
    deliveries.add(b"a", b"id", [b"again"])
    taken = [deliveries.take(5.0) for _ in range(3)]
    assert [None if each is None else each.body for each in taken] == [[b"other"], [b"again"], None]
