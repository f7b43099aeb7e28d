"""The budget of handshakes, the kernel's filter, and a listener that uses both."""

from __future__ import annotations

import socket as tcp
import sys
from collections.abc import Iterator

import pytest
import zmq

from bstar import Reactor
from bstar.base.token_bucket import TokenBucket
from bstar.net.connections import ListenerFilter, network_of
from bstar.net.handshakes import (
    ALL_BURST,
    HANDSHAKE_S_MAX,
    HELD_S_MAX,
    NETWORK_BURST,
    NETWORK_RATE_S,
    NETWORK_UNDER_WAY,
    HandshakeBudget,
)
from bstar.net.listener import Listener
from support.waiting import LIMIT_S

HERE, THERE = b"\x0a\0\0\1", b"\x0a\0\0\2"


def accept(budget: HandshakeBudget, network: bytes | None, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        budget.accepted(network, now)


def fail(budget: HandshakeBudget, network: bytes | None, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        budget.accepted(network, now)
        budget.ended(network, now, now)


def test_a_bucket_fills_to_its_capacity_and_its_debt_is_bounded() -> None:
    bucket = TokenBucket(10, 0.0, capacity=20, debt_max=5)
    assert [bucket.take(20, 0.0), bucket.take(1, 0.0), bucket.take(1, 0.1)] == [0, 1, 0]
    bucket.spend(100, 0.1)
    assert bucket.wait_ms(0.1) == 500
    assert bucket.level(100.0) == 20


def test_an_address_whose_handshakes_fail_is_held_off_and_no_other_one() -> None:
    budget = HandshakeBudget(0.0)
    fail(budget, HERE, NETWORK_BURST - 1)
    fail(budget, THERE, 5)
    assert not budget.held
    fail(budget, HERE, 1)
    assert budget.held == {HERE}
    assert not budget.is_all_held


def test_an_address_has_so_many_handshakes_under_way() -> None:
    budget = HandshakeBudget(0.0)
    accept(budget, HERE, NETWORK_UNDER_WAY - 1)
    assert not budget.held
    accept(budget, HERE, 1)
    assert budget.held == {HERE}
    for _ in range(NETWORK_UNDER_WAY // 2 - 1):
        budget.authenticated(HERE)
    budget.look(0.1)
    assert budget.held == {HERE}, "more than half are still under way"
    budget.authenticated(HERE)
    budget.look(0.1)
    assert not budget.held


def test_clients_pay_nothing_however_many_come_and_go() -> None:
    budget = HandshakeBudget(0.0)
    for _ in range(5):
        accept(budget, HERE, 3_000)
        for _ in range(3_000):
            budget.authenticated(HERE)
        for _ in range(3_000):
            budget.ended(HERE, 0.0, 1.0)
    assert (budget.held, budget.is_all_held) == (frozenset(), False)


def test_a_client_that_ends_while_another_one_shakes_hands_pays_nothing() -> None:
    budget = HandshakeBudget(0.0)
    for _ in range(3 * NETWORK_BURST):
        accept(budget, HERE, 2)
        budget.authenticated(HERE)
        budget.ended(HERE, 0.0, 0.0)
        budget.authenticated(HERE)
        budget.ended(HERE, 0.0, 0.0)
    assert not budget.held


def test_what_ends_after_a_long_time_had_shaken_hands() -> None:
    budget = HandshakeBudget(0.0)
    for _ in range(3 * NETWORK_BURST):
        accept(budget, HERE, 1, 20.0)
        budget.ended(HERE, 0.0, 20.0)
        budget.authenticated(HERE)
    assert not budget.held


def test_an_old_connection_that_ends_fails_no_handshake_of_another() -> None:
    budget = HandshakeBudget(0.0)
    accept(budget, HERE, NETWORK_BURST, 2 * HANDSHAKE_S_MAX)
    for _ in range(NETWORK_BURST):
        budget.ended(HERE, 0.0, 2 * HANDSHAKE_S_MAX)
    assert not budget.held
    for _ in range(NETWORK_BURST):
        budget.ended(HERE, 2 * HANDSHAKE_S_MAX, 3 * HANDSHAKE_S_MAX)
    assert budget.held == {HERE}, "those that are not older than a handshake may be do"


def test_an_address_comes_in_again_with_tokens_for_a_second() -> None:
    budget = HandshakeBudget(0.0)
    fail(budget, HERE, NETWORK_BURST)
    budget.look(0.9)
    assert budget.held == {HERE}
    budget.look(1.0)
    assert not budget.held
    fail(budget, HERE, NETWORK_RATE_S + 10, 1.0)
    assert budget.held == {HERE}


def test_nobody_is_held_off_for_long_after_the_flood() -> None:
    budget = HandshakeBudget(0.0)
    fail(budget, HERE, 10 * ALL_BURST)
    assert budget.is_all_held
    budget.look(HELD_S_MAX + 0.1)
    assert (budget.held, budget.is_all_held) == (frozenset(), False)


def test_handshakes_whose_end_nobody_told_are_forgotten() -> None:
    budget = HandshakeBudget(0.0)
    accept(budget, HERE, 2 * NETWORK_UNDER_WAY)
    budget.look(HANDSHAKE_S_MAX + 0.1)
    assert (budget.held, budget.is_all_held) == (frozenset(), False)


def test_strangers_of_many_addresses_are_held_off_together() -> None:
    budget = HandshakeBudget(0.0)
    for number in range(ALL_BURST):
        fail(budget, number.to_bytes(4, "big"), 1)
    assert (budget.held, budget.is_all_held) == (frozenset(), True)


def test_without_keys_there_is_one_budget() -> None:
    budget = HandshakeBudget(0.0)
    fail(budget, None, ALL_BURST - 1)
    accept(budget, None, 1)
    budget.authenticated(None)
    budget.ended(None, 0.0, 0.0)
    assert not budget.is_all_held
    fail(budget, None, 1)
    assert budget.is_all_held


def test_accounts_of_addresses_are_bounded_and_forgotten() -> None:
    budget = HandshakeBudget(0.0)
    for number in range(10_000):
        fail(budget, number.to_bytes(4, "big"), 1)
    assert len(budget._accounts) <= 4_096
    budget.look(10.0)
    assert not budget._accounts


def test_a_network_is_an_ipv4_address_or_the_half_of_an_ipv6_one() -> None:
    assert network_of("10.0.0.1") == network_of("::ffff:10.0.0.1") == b"\x0a\0\0\1"
    assert network_of("2001:db8::1") == network_of("2001:db8::2") == bytes.fromhex("20010db800000000")
    assert network_of("fe80::1%eth0") == bytes.fromhex("fe80000000000000")
    assert network_of("/run/bstar.sock") is None


# --- on sockets ---------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel cannot hold connections off elsewhere")


def comes_in(port: int, source: str, target: str = "127.0.0.1") -> bool:
    """True if the kernel lets a connection from ``source`` in; a second attempt comes after one second."""
    with tcp.socket(tcp.AF_INET6 if ":" in target else tcp.AF_INET) as client:
        client.settimeout(0.5)
        client.bind((source, 0))
        try:
            client.connect((target, port))
        except TimeoutError:
            return False
        return True


@pytest.fixture
def listener() -> Iterator[tcp.socket]:
    with tcp.create_server(("::", 0), family=tcp.AF_INET6, dualstack_ipv6=True, backlog=50) as made:
        yield made


@linux
@pytest.mark.loopback
def test_the_kernel_drops_the_connections_of_a_network_and_counts_them(listener: tcp.socket) -> None:
    port = listener.getsockname()[1]
    held = ListenerFilter(listener.fileno())
    numbered = (b"\x0a\0" + number.to_bytes(2, "big") for number in range(200))
    held.hold(frozenset([b"\x7f\0\0\2", bytes.fromhex("20010db800000000"), *numbered]))
    assert comes_in(port, "127.0.0.1")
    assert comes_in(port, "::1", "::1")
    assert held.dropped() == 0
    assert not comes_in(port, "127.0.0.2")
    assert held.dropped() == 1
    held.hold(frozenset([b"\x7f\0\0\1", bytes(8)]))
    assert not comes_in(port, "127.0.0.1")
    assert not comes_in(port, "::1", "::1")
    assert comes_in(port, "127.0.0.2")
    held.hold(frozenset())
    assert comes_in(port, "127.0.0.1")


@linux
@pytest.mark.loopback
def test_everybody_is_held_off_until_the_last_who_wanted_it_gives_in(listener: tcp.socket) -> None:
    port = listener.getsockname()[1]
    held = ListenerFilter(listener.fileno())
    held.hold(frozenset([b"\x7f\0\0\2"]))
    for holder in ("one", "other"):
        held.hold_all(holder, is_held=True)
    held.hold_all("one", is_held=False)
    assert not comes_in(port, "127.0.0.1")
    held.hold_all("other", is_held=False)
    assert comes_in(port, "127.0.0.1")
    assert not comes_in(port, "127.0.0.2"), "the networks are still held off"


@linux
@pytest.mark.loopback
def test_a_listener_holds_an_address_off_that_only_connects(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bstar.net.handshakes.NETWORK_BURST", 100)
    with zmq.Context() as context, Reactor() as reactor, context.socket(zmq.ROUTER) as router:
        _, router.curve_secretkey = zmq.curve_keypair()
        router.curve_server, router.linger = True, 0
        listener = Listener(reactor, router, "tcp://127.0.0.1:*", is_keyed=True)
        endpoint = router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        port = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        connections: list[tcp.socket] = []
        try:
            connections += [
                tcp.create_connection(("127.0.0.1", port), LIMIT_S, ("127.0.0.2", 0)) for _ in range(200)
            ]
            until = reactor.now() + LIMIT_S
            while listener.accepted < 200:
                assert reactor.now() < until
                reactor.turn()
            for connection in connections:
                connection.close()
            while not listener.budget.held:
                assert reactor.now() < until
                reactor.turn()
            assert listener.budget.held == {b"\x7f\0\0\2"}
            assert not comes_in(port, "127.0.0.2")
            assert comes_in(port, "127.0.0.1")
            assert "127.0.0.2" in caplog.text
            while listener.budget.held:
                assert reactor.now() < until
                reactor.turn()
            assert comes_in(port, "127.0.0.2")
        finally:
            for connection in connections:
                connection.close()
            listener.close()
            listener.close()


def test_a_handshake_whose_end_nobody_noted_is_forgotten() -> None:
    """Else the accounts of addresses that came once would fill the table."""
    budget = HandshakeBudget(0.0)
    budget.authenticated(HERE)
    accept(budget, HERE, 1)
    budget.look(HANDSHAKE_S_MAX + 1)
    assert not budget._accounts
