"""Peers behind fronts with keys: the core asks their principals, as it does for every message."""

import pytest

from bstar.security import Principal, Principals, new_key
from bstar.star import PeerMessage, Role, StarMachine, StarSettings, State
from bstar.wire import emq
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings
from bstar_broker.core.authority import OWN
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import Output
from bstar_broker.fronts.emq.desk import Desk, EmqSettings
from bstar_broker.fronts.emq.front import EmqFront
from bstar_broker.fronts.pzq.front import PzqFront, PzqSettings
from support.house import PRINCIPALS, Origin
from support.plain_front import PlainFront, sent


def node_with_keys() -> FrontedNode:
    node = FrontedNode(
        StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0),
        BrokerSettings(),
        node_id=bytes(16),
        drain_timeout_s=5.0,
        version="test",
        now=0.0,
        find_principal=PRINCIPALS.get,
        origin=Origin(),
        make_fronts=lambda inlet: [
            PlainFront(inlet, service=b"price"),
            PzqFront(inlet, PzqSettings(service=b"price"), wall_us=lambda: 0, random=bytes),
            EmqFront(Desk(inlet, EmqSettings(may_disconnect=True), lambda: b"id", lambda: 0.0), bytes(16)),
        ],
    )
    for number, state in enumerate((State.BACKUP, State.PASSIVE)):
        said = PeerState(state, "test", "backup", "they", number, 0, heartbeat_ms=1000, timeout_ms=2000)
        node.step(PeerMessage(said), 0.0)
    assert node.is_active
    return node


def heard(node: FrontedNode, user: str, door: str, *frames: bytes) -> list[Output]:
    return node.receive_front("plain", door, list(frames), 0.0, user)


def test_a_principal_that_may_offer_and_one_that_may_call_meet_behind_a_front() -> None:
    node = node_with_keys()
    heard(node, "worker", "workers", b"w", b"work", b"1")
    [request] = sent(heard(node, "shop", "clients", b"c", b"ask", b"x"))
    assert request[:2] == [b"w", b"REQUEST"]


def test_a_worker_behind_a_front_may_offer_what_its_entry_says() -> None:
    node = node_with_keys()
    [told] = sent(heard(node, "shop", "workers", b"w", b"work", b"1"))
    assert told[:2] == [b"w", b"DISCONNECT"]
    assert node.broker.ledger.workers == {}
    assert dict(node.broker.ledger.drops) == {"offer-not-allowed": 1}


def test_a_client_behind_a_front_may_call_what_its_entry_says() -> None:
    node = node_with_keys()
    heard(node, "worker", "workers", b"w", b"work", b"1")
    [told] = sent(heard(node, "worker", "clients", b"c", b"ask", b"x"))
    assert told[:2] == [b"c", b"FAILURE"]
    assert dict(node.broker.ledger.drops) == {"call-not-allowed": 1}


def test_a_routing_id_that_another_principal_had_brings_nothing_of_its_former_owner() -> None:
    """The reply goes to nobody."""
    node = node_with_keys()
    heard(node, "worker", "workers", b"w", b"work", b"1")
    [request] = sent(heard(node, "shop", "clients", b"c", b"ask", b"x"))
    heard(node, "bank", "clients", b"c", b"ask", b"y")
    told = sent(heard(node, "worker", "workers", b"w", b"done", request[2], b"for shop"))
    assert [frames[:2] for frames in told] == [[b"w", b"REQUEST"]]
    assert told[0][3:] == [b"y"]


# --- what a front says in its own name ------------------------------------------------------------------


def node_with_a_message_at_consumers() -> tuple[FrontedNode, bytes]:
    """The node, and the key of the message that consumers have."""
    node = node_with_keys()
    node.front_connected("pzq", "consumers", 1, 0.0)
    [delivery] = sent(heard(node, "shop", "clients", b"c", b"ask", b"x"))
    assert delivery[-1] == b"x"
    return node, delivery[0]


def told(node: FrontedNode, user: str, door: str, *frames: bytes) -> list[list[bytes]]:
    return sent(node.receive_front("pzq", door, list(frames), 0.0, user))


def test_the_worker_that_stands_for_all_consumers_may_offer_their_service() -> None:
    node, _ = node_with_a_message_at_consumers()
    assert len(node.broker.ledger.workers) == 1
    node.principals_changed(0.0)
    assert len(node.broker.ledger.workers) == 1
    assert dict(node.broker.ledger.drops) == {}


def test_a_consumer_that_may_offer_the_service_acknowledges() -> None:
    node, key = node_with_a_message_at_consumers()
    [answer] = told(node, "worker", "consumers", key, b"1")
    assert answer[:2] == [b"c", b"FINAL"]


def test_an_acknowledgement_counts_only_from_who_may_offer_the_service() -> None:
    node, key = node_with_a_message_at_consumers()
    assert told(node, "shop", "consumers", key, b"1") == []
    assert told(node, "withdrawn", "consumers", key, b"1") == []
    assert dict(node.broker.ledger.drops) == {"offer-not-allowed": 1, "key-not-listed": 1}
    assert len(told(node, "worker", "consumers", key, b"1")) == 1


def test_a_monitor_is_an_operators() -> None:
    node = node_with_keys()
    for user in ("shop", "worker"):
        assert told(node, user, "monitor", b"m", b"", b"MONITOR") == []
    assert dict(node.broker.ledger.drops) == {"call-not-allowed": 2}
    [figures] = told(node, "ops", "monitor", b"m", b"", b"MONITOR")
    assert figures[-1].startswith(b"messages: ")


@pytest.mark.requirement("EMQ-G-06")
@pytest.mark.parametrize("door", ["clients", "workers", "admin"])
def test_an_operators_disconnect_alone_ends_eventmq(door: str) -> None:
    node = node_with_keys()
    frames = emq.encode(emq.Disconnect(b"d"))
    for user in ("shop", "worker"):
        assert sent(node.receive_front("emq", door, [user.encode(), *frames], 0.0, user)) == []
    assert dict(node.broker.ledger.drops) == {"call-not-allowed": 2}
    [said] = sent(node.receive_front("emq", door, [b"ops", *frames], 0.0, "ops"))
    assert said[:4] == [b"ops", b"", b"eMQP/1.0", b"ACK" if door == "admin" else b"KBYE"]


def test_nobody_can_prove_the_user_id_of_the_fronts() -> None:
    """ZAP makes user ids of a listed name, a space and a key of 40 characters."""
    assert " " not in OWN
    assert Principals([Principal(OWN, (new_key("a").public.decode(),))]).of_user(OWN) is None
