"""Properties of the broker core, sans-I/O.

test_broker_scripts.py has what it tells whom, test_conformance_mdp.py what plain clients and workers see of
it in the same virtual time.
"""

import json
from hashlib import blake2b

import pytest

from bstar.wire import batches, native
from bstar_broker.core import BrokerSettings, NodeState
from bstar_broker.core.management import Management, Pictures, broker_state
from bstar_broker.core.records import Bundle
from support.desk import Desk, heard, ident

HEARTBEAT02 = [b"MDPW02", b"\x05"]


def no_state(now: float) -> NodeState:
    raise AssertionError("nobody asked for mmi.state")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("dialect", ["native", "mdp02"])
def test_workers_that_come_at_once_are_not_due_at_once(dialect: str) -> None:
    desk = Desk()
    names = [b"w%d" % number for number in range(200)]
    beat = native.encode_heartbeat(0) if dialect == "native" else HEARTBEAT02
    for name in names:
        _ = desk.ready(name) if dialect == "native" else desk.ready02(name)
    settings = desk.ledger.settings
    interval_s = (
        settings.worker_heartbeat_interval_s if dialect == "native" else settings.mdp_heartbeat_interval_s
    )
    beats: list[list[bytes]] = []
    while desk.now < 3 * interval_s:
        beats.append([frames[0] for frames in desk.wait(desk.broker.next_deadline() - desk.now)])
        for name in names:
            desk.send(name, *beat)
    assert max(map(len, beats)) <= 50, "a quarter at most"
    # And each hears its broker once per interval, as before.
    assert {sum(name in some for some in beats) for name in names} <= {2, 3, 4}


@pytest.mark.parametrize(
    ("bytes_max", "parts"),
    [(10, [[b"x" * 11]]), (BrokerSettings().partials_buffer_bytes_max, [[b""] * 1_000] * 101)],
    ids=["bytes", "frames"],
)
def test_too_many_held_partials_are_given_up_without_harm_to_the_worker(
    bytes_max: int, parts: list[list[bytes]]
) -> None:
    desk = Desk(partials_buffer_bytes_max=bytes_max)
    desk.ready02(b"w")
    desk.request01(b"c")
    for frames in parts:
        desk.send(b"w", b"MDPW02", b"\x03", b"c", b"", *frames)
    assert desk.final02(b"w", b"c") == []
    assert (desk.ledger.services[b"echo"].tally.lost, desk.ledger.drops["partials-overflow"]) == (1, 1)
    assert desk.request01(b"c")[0][0] == b"w"


KEYED = native.keyed_identity(b"echo", b"order 7")


def test_a_keyed_identity_fits_into_63_bits_and_is_no_counted_number() -> None:
    assert native.is_keyed(KEYED)
    assert not native.is_keyed(ident(1))
    number = int.from_bytes(KEYED[16:], "big")
    assert batches.KEYED_NUMBER_MIN <= number < 1 << 63
    assert native.keyed_identity(b"echo", b"order 8") != KEYED != native.keyed_identity(b"ech", b"oorder 7")


def test_nothing_is_left_of_clients_that_were_answered() -> None:
    desk = Desk(b"w")
    for number in range(1, 1000):
        client = b"client-%d" % number
        desk.request(client, number)
        desk.final(b"w", number)
    assert desk.ledger.requests_of == {}
    assert desk.ledger.by_identity == {}
    assert broker_state(desk.ledger, desk.now).clients == 0


@pytest.mark.parametrize("is_batch", [False, True])
def test_the_bodies_of_ended_requests_are_not_kept_until_their_time_is_over(is_batch: bool) -> None:
    desk = Desk()
    desk.ready(b"w", credit=3, takes_batches=is_batch)
    for first in range(1, 101, 5):
        numbers = range(first, first + 5)
        if is_batch:
            desk.requests(b"c", numbers, [bytes(10_000)] * 5, ttls_ms=[30_000] * 5)
        else:
            for number in numbers:
                desk.request(b"c", number, bytes(100_000), ttl_ms=30_000)
    for number in range(1, 101):
        desk.finals(b"w", [number])
    remembered = list(desk.ledger.waiting.deadlines)
    assert remembered
    assert not any(each.blob if isinstance(each, Bundle) else each.body for each in remembered)
    assert any(isinstance(each, Bundle) for each in remembered) == is_batch
    assert (len(desk.broker.bundles), desk.ledger.requests_of) == (0, {})


def test_a_services_workers_are_listed_however_many_others_there_are(desk: Desk) -> None:
    for number in range(1_001):
        desk.ready(b"w%d" % number, b"common")
    desk.ready(b"late", b"rare")
    management = Management(desk.ledger, no_state)
    _, listed = management.answer(b"mmi.workers", [b"rare"], Pictures(), desk.now)
    digest = blake2b(b"late", digest_size=8).hexdigest()
    assert [worker["worker"] for worker in json.loads(listed)] == [digest]


def test_a_worker_that_has_closed_keeps_its_requests_while_messages_are_unread() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    desk.broker.unreachable(b"w1", desk.now)
    for _ in range(10):
        assert desk.broker.unread(desk.now, is_any=True)
        assert not given(desk.wait(0.1))
    (frames,) = desk.final(b"w1", 1)
    assert (frames[0], heard(frames).command) == (b"c", native.FINAL)
    assert not desk.broker.unread(desk.now, is_any=True)


def test_a_worker_that_has_closed_is_lost_at_its_expiry_although_messages_are_unread() -> None:
    desk = Desk(b"w1", b"w2")
    desk.request(b"c", 1)
    expires_at = desk.ledger.workers[b"w1"].expires_at
    desk.broker.unreachable(b"w1", desk.now)
    while desk.broker.unread(desk.now, is_any=True):
        desk.send(b"w2", *native.encode_heartbeat(0))
        desk.wait(0.01)
    assert expires_at <= desk.now < expires_at + 0.2


def given(frames: list[list[bytes]]) -> list[bytes]:
    return [each[0] for each in frames if heard(each).command == native.REQUEST]
