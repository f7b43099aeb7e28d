"""The seam between the node and its fronts, with a front that speaks nobody's protocol."""

from bstar.star import PeerMessage, Role, StarMachine, StarSettings, State, Tick
from bstar.wire import front as wire
from bstar.wire import native
from bstar.wire.front import peer_id, split_peer_id
from bstar.wire.messages import NEVER_MS
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings
from bstar_broker.core.fronted import FrontedNode
from bstar_broker.core.outputs import FrontSend, Output, Send
from bstar_broker.core.snapshot import FrontState
from bstar_broker.operate.orders import Operator
from support.plain_front import PlainFront, sent


def serving() -> tuple[FrontedNode, PlainFront]:
    """A node that serves, and its front."""
    node = FrontedNode(
        StarMachine(StarSettings(pair="test", role=Role.PRIMARY), node="we", epoch=0, now=0.0),
        BrokerSettings(),
        node_id=bytes(16),
        drain_timeout_s=1.0,
        version="test",
        now=0.0,
        make_fronts=lambda inlet: [PlainFront(inlet)],
    )
    peer_says(node, 1, State.BACKUP)
    peer_says(node, 2, State.PASSIVE)
    front = node.fronts.all["plain"]
    assert isinstance(front, PlainFront)
    assert node.is_active
    return node, front


def peer_says(node: FrontedNode, seq: int, state: State, epoch: int = 0, *, at: float = 0.0) -> list[Output]:
    said = PeerState(state, "test", "backup", "they", seq, epoch, heartbeat_ms=1000, timeout_ms=2000)
    return node.step(PeerMessage(said), 0.0)


def pass_time(node: FrontedNode, since: float, until: float) -> None:
    now = since
    while now < until:
        now = min(until, now + 0.2)
        node.step(Tick(), now)


def test_a_client_behind_a_front_is_served_by_a_worker_behind_it() -> None:
    node, _ = serving()
    [welcome] = sent(node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1))
    assert welcome[:2] == [b"w1", b"WELCOME"]
    [request] = sent(node.receive_front("plain", "clients", [b"c1", b"ask", b"one", b"two"], 0.2))
    assert request[:2] == [b"w1", b"REQUEST"]
    assert request[3:] == [b"one", b"two"]
    done = [b"w1", b"done", request[2], b"three"]
    [answer] = sent(node.receive_front("plain", "workers", done, 0.3))
    assert (answer[:2], answer[3:]) == ([b"c1", b"FINAL"], [b"my", b"envelope", b"three"])


def test_a_worker_behind_a_front_serves_a_client_of_the_broker() -> None:
    node, _ = serving()
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    identity = native.identity(b"c" * 16, 1)
    asked = native.encode_request(identity, b"sum", [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
    [request] = sent(node.receive_frames([b"client", *asked], 0.2))
    assert request == [b"w1", b"REQUEST", identity, b"x"]
    [answer] = node.receive_front("plain", "workers", [b"w1", b"done", identity, b"y"], 0.3)
    assert isinstance(answer, Send)
    assert answer.frames[0] == b"client"


def test_what_a_worker_did_not_get_goes_to_the_next_one() -> None:
    node, _ = serving()
    for name in (b"w1", b"w2"):
        node.receive_front("plain", "workers", [name, b"work", b"1"], 0.1)
    [output] = node.receive_front("plain", "clients", [b"c1", b"ask", b"x"], 0.2)
    assert isinstance(output, FrontSend)
    assert output.frames[0] == b"w1"
    again = sent(node.front_unsent(output, 0.3, is_gone=True))
    assert [frames[:2] for frames in again] == [[b"w2", b"REQUEST"]]


def test_a_worker_with_credit_0_gets_nothing() -> None:
    node, _ = serving()
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    node.receive_front("plain", "workers", [b"w1", b"credit", b"0"], 0.1)
    assert sent(node.receive_front("plain", "clients", [b"c1", b"ask", b"x"], 0.2)) == []
    given = sent(node.receive_front("plain", "workers", [b"w1", b"credit", b"2"], 0.3))
    assert [frames[:2] for frames in given] == [[b"w1", b"REQUEST"]]
    given = sent(node.receive_front("plain", "clients", [b"c1", b"ask", b"y"], 0.4))
    assert [frames[:2] for frames in given] == [[b"w1", b"REQUEST"]]


def test_a_worker_whose_connection_ended_is_lost_at_once() -> None:
    node, front = serving()
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    assert list(front.inlet.workers) == [peer_id("plain", "workers", b"w1")]
    node.front_peer_gone("plain", "workers", b"w1", 0.2)
    assert not front.inlet.workers


def test_short_heartbeats_of_a_front_have_sweeps_of_their_own() -> None:
    node, front = serving()
    front.heartbeat_ms, front.expiry_ms = 40, 120
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    beats = []
    for step in range(30):
        now = 0.11 + step / 100
        beats += [now for frames in sent(node.step(Tick(), now)) if frames[1] == b"HEARTBEAT"]
    assert len(beats) == 2
    assert not front.inlet.workers


def test_a_worker_that_never_expires_is_lost_when_it_keeps_a_request_for_too_long() -> None:
    node, front = serving()
    front.heartbeat_ms = front.expiry_ms = NEVER_MS
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    pass_time(node, 0.1, 100.0)
    assert front.inlet.workers
    node.receive_front("plain", "clients", [b"c1", b"ask", b"x"], 100.0)
    pass_time(node, 100.0, 99.0 + BrokerSettings().busy_timeout_s)
    assert front.inlet.workers
    pass_time(node, 99.0 + BrokerSettings().busy_timeout_s, 101.0 + BrokerSettings().busy_timeout_s)
    assert not front.inlet.workers


def test_fronts_follow_the_role_and_a_passive_node_says_so() -> None:
    node, front = serving()
    peer_says(node, 3, State.ACTIVE, epoch=node.machine.epoch + 1)
    assert front.heard == ["active in 1", "passive"]
    [refused] = sent(node.receive_front("plain", "clients", [b"c1", b"ask", b"x"], 0.2))
    assert refused[:2] == [b"c1", b"NOT_ACTIVE"]


def test_bad_input_at_a_front_is_counted() -> None:
    node, _ = serving()
    node.receive_front("plain", "clients", [b"c1", b"what"], 0.2)
    assert node.state(0.2).broker.drops == {"plain-word": 1}
    assert node.state(0.2).fronts == [FrontState("plain", {"all": 0})]


def test_ids_of_peers_keep_every_octet() -> None:
    assert split_peer_id(peer_id("ppp", "workers", b"\0 a b\n ")) == ("ppp", "workers", b"\0 a b\n ")
    assert wire.is_behind_front(peer_id("ppp", "workers", b""))
    assert not wire.is_behind_front(b"\0abcd")


def test_a_worker_may_begin_paused() -> None:
    node, _ = serving()
    node.receive_front("plain", "clients", [b"c1", b"ask", b"x"], 0.1)
    assert [
        frames[1] for frames in sent(node.receive_front("plain", "workers", [b"w1", b"work", b"0"], 0.1))
    ] == [b"WELCOME"]
    given = sent(node.receive_front("plain", "workers", [b"w1", b"credit", b"1"], 0.2))
    assert [frames[1] for frames in given] == [b"REQUEST"]


def test_a_front_knows_what_is_offered_and_whether_the_peer_serves() -> None:
    node, front = serving()
    assert not front.inlet.is_offered(b"sum")
    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    assert front.inlet.is_offered(b"sum")
    assert not front.inlet.is_peer_serving(0.1)
    peer_says(node, 3, State.ACTIVE, epoch=node.machine.epoch + 1)
    assert front.inlet.is_peer_serving(0.1)
    assert not front.inlet.is_peer_serving(1_000.0)


def test_an_order_of_an_operator_goes_to_the_peers_behind_a_front_in_its_frames() -> None:
    node, _ = serving()
    carried: list[Output] = []
    operator = Operator(node, carried.extend, lambda: 0.2, lambda is_trial: None)

    def order(word: bytes) -> list[list[bytes]]:
        carried.clear()
        operator.answer(word, b'{"service": "sum", "why": "mia: its database is ill"}')
        assert not [each for each in carried if type(each) is Send]
        return sent([each for each in carried if isinstance(each, FrontSend)])

    node.receive_front("plain", "workers", [b"w1", b"work", b"1"], 0.1)
    assert order(b"service-pause") == []
    for client in (b"c1", b"c2"):
        assert node.receive_front("plain", "clients", [client, b"ask", b"x"], 0.2) == []
    assert [frames[:2] for frames in order(b"service-resume")] == [[b"w1", b"REQUEST"]]
    assert [frames[:2] for frames in order(b"service-purge")] == [[b"c2", b"FAILURE"]]
