"""Which pair a service belongs to: the hash, pins, what is refused, and what moves when the fleet changes."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import ConfigurationError
from bstar.fleet import Fleet, Pair, weight

EAST = ("tcp://east1:5001", "tcp://east2:5001")
WEST = ("tcp://west1:5001", "tcp://west2:5001")
NAMED = {"east": EAST, "west": WEST}
# As many as the claims below are made for.
PAIRS = 100
SERVICES = [b"service-%d" % number for number in range(10_000)]
# The 0.001 quantile of chi-square with 99 degrees of freedom, below it, and the 0.999 quantile, above it.
CHI_SQUARE_MIN, CHI_SQUARE_MAX = 61.1, 148.2


def pairs(numbers: Iterable[int]) -> list[Pair]:
    return [Pair((f"tcp://p{number}:5001", f"tcp://b{number}:5001"), f"pair-{number}") for number in numbers]


def homes(fleet: Fleet) -> dict[bytes, str]:
    return {service: fleet.pair_of(service).identity for service in SERVICES}


@cache
def homes_at_100_pairs() -> dict[bytes, str]:
    """A million hashes: once is enough."""
    return homes(Fleet(pairs(range(PAIRS))))


# --- the hash ---------------------------------------------------------------------------------------------


def test_the_weight_is_what_b2sum_says() -> None:
    # printf 'east\0echo' | b2sum -l 64
    assert weight("east", b"echo") == 0x34F6AC8547E68587
    assert weight("west", b"echo") == 0xEAC10F987C8ADCD1
    assert Fleet.of(NAMED).pair_of("echo").name == "west"


def test_a_pair_without_a_name_is_known_by_its_sorted_endpoints() -> None:
    pair = Pair(("tcp://b:1", "tcp://a:1"))
    assert pair.identity == "tcp://a:1,tcp://b:1"
    # printf 'tcp://a:1,tcp://b:1\0echo' | b2sum -l 64
    assert weight(pair.identity, b"echo") == 0x91D89414DEB14A69


def test_text_and_octets_name_the_same_service() -> None:
    fleet = Fleet.of(NAMED)
    assert all(fleet.pair_of(name) == fleet.pair_of(name.encode()) for name in ("echo", "größe", "a b"))


@given(st.permutations(range(7)), st.permutations(range(3)))
def test_neither_the_order_of_pairs_nor_that_of_nodes_moves_a_service(
    order: list[int], nodes: list[int]
) -> None:
    endpoints = [[f"tcp://n{pair}{node}:1" for node in range(3)] for pair in range(7)]
    fleet = Fleet.of(endpoints)
    mixed = Fleet.of([[endpoints[pair][node] for node in nodes] for pair in order])
    for service in SERVICES[:50]:
        assert mixed.pair_of(service).identity == fleet.pair_of(service).identity


def test_a_pair_with_a_name_may_move_to_another_machine() -> None:
    moved = Fleet.of(NAMED | {"east": ("tcp://elsewhere:1", "tcp://elsewhere:2")})
    assert homes(moved) == homes(Fleet.of(NAMED))


def test_names_and_endpoints_cannot_be_taken_for_each_other() -> None:
    # One long service at one pair is not another service at a pair with a longer name: a zero is between.
    fleet = Fleet([Pair(("tcp://a:1",), "a"), Pair(("tcp://b:1",), "ab")])
    assert len({fleet.pair_of(f"b{number}").name for number in range(100)}) == 2


@pytest.mark.storm
def test_services_are_spread_evenly_over_100_pairs() -> None:
    counts = Counter(homes_at_100_pairs().values())
    mean = len(SERVICES) / PAIRS
    chi_square = sum((counts[pair.identity] - mean) ** 2 / mean for pair in pairs(range(PAIRS)))
    assert len(counts) == PAIRS
    assert max(counts.values()) < 1.5 * mean
    assert min(counts.values()) > 0.5 * mean
    assert CHI_SQUARE_MIN < chi_square < CHI_SQUARE_MAX


@pytest.mark.storm
def test_a_pair_that_is_added_takes_its_share_and_nothing_else_moves() -> None:
    before = homes_at_100_pairs()
    after = homes(Fleet(pairs(range(PAIRS + 1))))
    moved = [service for service in SERVICES if before[service] != after[service]]
    assert {after[service] for service in moved} == {f"pair-{PAIRS}"}
    share = len(SERVICES) / (PAIRS + 1)
    assert 0.6 * share < len(moved) < 1.4 * share
    # And it takes from nearly everybody: at 99 services of 100 pairs no pair gives more than a few.
    assert max(Counter(before[service] for service in moved).values()) <= 8


@pytest.mark.storm
def test_a_pair_that_is_removed_gives_its_services_to_all_others_and_nothing_else_moves() -> None:
    gone = "pair-42"
    before = homes_at_100_pairs()
    after = homes(Fleet(pair for pair in pairs(range(PAIRS)) if pair.name != gone))
    moved = {service for service in SERVICES if before[service] != after[service]}
    assert moved == {service for service in SERVICES if before[service] == gone}
    assert len({after[service] for service in moved}) > len(moved) / 2


@pytest.mark.storm
@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_growing_and_shrinking_back_leaves_everything_where_it_was(count: int, rng: random.Random) -> None:
    some = rng.sample(SERVICES, 40)
    small, large = Fleet(pairs(range(count))), Fleet(pairs(range(count + 1)))
    for service in some:
        home = large.pair_of(service)
        assert home.name == f"pair-{count}" or home == small.pair_of(service)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bstar.fleet._REMEMBERED_MAX", 10)
    fleet = Fleet.of(NAMED)
    first = homes(fleet)
    assert homes(fleet) == first
    assert len(fleet._places) <= 10


def test_a_fleet_can_be_sent_to_another_process() -> None:
    fleet = Fleet.of(NAMED, {"billing": "east"})
    copied = pickle.loads(pickle.dumps(fleet))
    assert homes(copied) == homes(fleet)
    assert copied.pins == {"billing": "east"}


# --- pins -------------------------------------------------------------------------------------------------


def test_a_pin_is_stronger_than_the_hash() -> None:
    for target in ("east", "west"):
        assert Fleet.of(NAMED, {"echo": target}).pair_of("echo").name == target


def test_a_pair_without_a_name_is_pinned_to_by_any_of_its_endpoints() -> None:
    for endpoint in EAST:
        assert Fleet.of([EAST, WEST], {"echo": endpoint}).pair_of("echo").endpoints == EAST


def test_a_pin_with_a_star_is_for_all_that_begin_so_and_the_longest_wins() -> None:
    pins = {"eu.*": "east", "eu.west.*": "west", "eu.west.bank": "east"}
    fleet = Fleet.of(NAMED, pins)
    assert {fleet.pair_of(f"eu.{number}").name for number in range(50)} == {"east"}
    assert {fleet.pair_of(f"eu.west.{number}").name for number in range(50)} == {"west"}
    assert fleet.pair_of("eu.west.bank").name == "east"
    assert fleet.pair_of("eu.").name == "east"
    assert homes(fleet) == homes(Fleet.of(NAMED))


def test_pins_move_nothing_else() -> None:
    assert homes(Fleet.of(NAMED, {"billing": "east"})) == homes(Fleet.of(NAMED))


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "pins", "word"),
    [
        ([], None, "no pair"),
        ({}, None, "no pair"),
        ([[]], None, "one or more"),
        ([EAST, []], None, "number 2"),
        ({"east": EAST, "west": []}, None, "'west'"),
        ([""], None, "one or more"),
        ([EAST[0], EAST[0]], None, "stands twice"),
        ([EAST, [WEST[0], EAST[1]]], None, EAST[1]),
        ([EAST, EAST], None, EAST[0]),
        ([EAST, "tcp://alone:1"], None, "mixture"),
        ({"a,b": EAST}, None, "'a,b'"),
        ({"": EAST}, None, "1 to 64"),
        (NAMED, {"billing": "north"}, "'north'"),
        (NAMED, {"billing": "north"}, "east, west"),
        (["tcp://a:1"], {"billing": "tcp://b:1"}, "tcp://a:1"),
        (Fleet.of(NAMED), {"billing": "east"}, "pins of its own"),
    ],
)
def test_what_cannot_be_a_fleet_is_refused(endpoints: object, pins: dict[str, str] | None, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Fleet.of(endpoints, pins)  # type: ignore[arg-type]  # some are of wrong shapes, too
    assert word in str(caught.value)


def test_a_flat_list_is_one_pair_and_a_text_one_node() -> None:
    assert Fleet.of(list(EAST)).pairs == (Pair(EAST),)
    assert Fleet.of(EAST[0]).pairs == (Pair(EAST[:1]),)
    assert Fleet.of([EAST, list(WEST)]).pairs == (Pair(EAST), Pair(WEST))
    assert Fleet.of(NAMED).endpoints == EAST + WEST
