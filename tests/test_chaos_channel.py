"""What the wire of the chaos tests does to packets: its pure part; time is a variable, chance has a seed."""

from __future__ import annotations

import socket

import pytest

from chaos.channel import QUEUE_PACKETS_MAX, Counts, Quality, Switch

A, B, C = "198.18.0.1", "198.18.0.2", "198.18.0.3"
HOSTS = {"a": A, "b": B, "c": C}


def packet(to: str, number: int = 0, size: int = 100) -> bytes:
    """As much of an IPv4 packet as a switch looks at."""
    header = b"\x45" + bytes(15) + socket.inet_aton(to)
    return header + number.to_bytes(4, "big") + bytes(size - len(header) - 4)


def number_of(octets: bytes) -> int:
    return int.from_bytes(octets[20:24], "big")


class Bench:
    """A switch, and a flow of numbered packets from a to b, one each millisecond."""

    def __init__(self, seed: int = 1, **quality: float | bool) -> None:
        self.switch = Switch({name: socket.inet_aton(address) for name, address in HOSTS.items()}, seed=seed)
        self.set(**quality)
        self.sent_at: dict[int, float] = {}

    def set(self, **quality: float | bool) -> None:
        self.switch.set_quality("a", "b", Quality(**quality))  # type: ignore[arg-type]  # by name

    def flow(self, count: int, *, at: float = 0.0, interval_s: float = 0.001, size: int = 100) -> None:
        for number in range(len(self.sent_at), len(self.sent_at) + count):
            self.sent_at[number] = at
            self.switch.receive("a", packet(B, number, size), at)
            at += interval_s

    def arrivals(self, until: float = 1e9) -> list[tuple[float, int]]:
        """When each number arrives, looking at the moments that the switch asks for."""
        came = []
        while (now := self.switch.next_deadline()) is not None and now <= until:
            came += [(now, number_of(octets)) for _, octets in self.switch.take_due(now)]
        return came

    def numbers(self) -> list[int]:
        return [number for _, number in self.arrivals()]

    @property
    def counts(self) -> Counts:
        return self.switch.counts()["a", "b"]


def test_a_good_channel_hands_everything_on_at_once_and_in_order() -> None:
    bench = Bench()
    bench.flow(100)
    assert [(at, number) for number, at in bench.sent_at.items()] == bench.arrivals()


def test_a_packet_goes_to_its_destination_and_nobody_else() -> None:
    bench = Bench()
    bench.switch.receive("a", packet(C), 0.0)
    bench.switch.receive("b", packet(A), 0.0)
    assert [to for to, _ in bench.switch.take_due(0.0)] == ["c", "a"]


@pytest.mark.parametrize("octets", [b"", b"\x45", b"\x60" + bytes(47), packet("198.18.0.9"), packet(A)])
def test_what_is_for_no_other_host_is_counted_and_dropped(octets: bytes) -> None:
    bench = Bench()
    bench.switch.receive("a", octets, 0.0)
    assert (bench.switch.foreign, bench.switch.next_deadline()) == (1, None)


@pytest.mark.parametrize("percent", [0.0, 5.0, 20.0, 100.0])
def test_as_many_are_lost_as_were_asked_for(percent: float) -> None:
    bench = Bench(loss_percent=percent)
    bench.flow(900)
    numbers = bench.numbers()
    assert bench.counts.lost == 900 - len(numbers)
    assert bench.counts.lost == pytest.approx(9 * percent, abs=40 if 0 < percent < 100 else 0)
    assert numbers == sorted(numbers)


def test_the_seed_decides_who_is_lost() -> None:
    def lost(seed: int) -> list[int]:
        bench = Bench(seed, loss_percent=50)
        bench.flow(200)
        return bench.numbers()

    assert lost(1) == lost(1) != lost(2)


def test_the_fate_of_a_packet_depends_on_its_number_in_its_channel_alone() -> None:
    quiet, busy = Bench(loss_percent=50), Bench(loss_percent=50)
    for bench in (quiet, busy):
        bench.flow(100)
        bench.set(delay_ms=3, duplicate_percent=30, reorder_percent=10, jitter_ms=1)
        bench.flow(100)
        if bench is busy:
            for _ in range(33):
                bench.switch.receive("a", packet(C), 0.0)
                bench.switch.receive("b", packet(A), 0.0)
        bench.set(loss_percent=50)
        bench.flow(100)
    for bench in (quiet, busy):
        bench.switch.set_quality("a", "c", Quality(is_cut=True))
        bench.switch.set_quality("b", "a", Quality(is_cut=True))
    assert quiet.numbers() == busy.numbers()


def test_duplicates_follow_their_originals() -> None:
    bench = Bench(duplicate_percent=30)
    bench.flow(500)
    numbers = bench.numbers()
    assert len(numbers) == 500 + bench.counts.duplicated
    assert bench.counts.duplicated == pytest.approx(150, abs=40)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(500))


def test_a_delay_varies_within_its_jitter_and_keeps_the_order() -> None:
    bench = Bench(delay_ms=50, jitter_ms=20)
    bench.flow(500)
    arrivals = bench.arrivals()
    assert [number for _, number in arrivals] == list(range(500))
    took_ms = [(at - bench.sent_at[number]) * 1000 for at, number in arrivals]
    assert 30 <= min(took_ms) < 45
    assert 60 < max(took_ms) <= 70.001


def test_a_jitter_above_the_delay_never_sends_into_the_past() -> None:
    bench = Bench(delay_ms=1, jitter_ms=20)
    bench.flow(200)
    assert all(at >= bench.sent_at[number] for at, number in bench.arrivals())


def test_those_held_back_are_overtaken_and_the_others_keep_their_order() -> None:
    bench = Bench(reorder_percent=10, hold_ms=5)
    bench.flow(500)
    bench.set()
    bench.flow(10, at=0.5)
    arrivals = bench.arrivals()
    held = {number for at, number in arrivals if at > bench.sent_at[number]}
    assert len(held) == bench.counts.held == pytest.approx(50, abs=20)
    numbers = [number for _, number in arrivals]
    assert all(any(later > number for later in numbers[: numbers.index(number)]) for number in held)
    rest = [number for number in numbers if number not in held]
    assert rest == sorted(rest)


def test_a_narrow_channel_sends_one_after_the_other() -> None:
    bench = Bench(rate_kbit_s=80)
    bench.flow(5, interval_s=0.0, size=100)
    assert [at for at, _ in bench.arrivals()] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])


def test_a_queue_is_bounded_and_what_is_beyond_it_is_counted() -> None:
    bench = Bench(delay_ms=1000)
    bench.flow(QUEUE_PACKETS_MAX + 7, interval_s=0.0)
    assert bench.counts.overflowed == 7
    assert bench.numbers() == list(range(QUEUE_PACKETS_MAX))
    bench.flow(1)
    assert bench.numbers() == [QUEUE_PACKETS_MAX + 7]


def test_a_cut_loses_what_is_sent_and_what_is_on_the_way_in_its_direction_only() -> None:
    bench = Bench(delay_ms=100)
    bench.flow(10, interval_s=0.0)
    bench.set(is_cut=True)
    bench.flow(10, interval_s=0.0)
    bench.switch.receive("b", packet(A), 0.0)
    assert [to for to, _ in bench.switch.take_due(1.0)] == ["a"]
    assert bench.counts == Counts(received=20, cut=20)
    bench.set()
    bench.flow(1, at=2.0)
    assert bench.numbers() == [20]


def test_every_packet_is_counted_once() -> None:
    bench = Bench(
        loss_percent=20, duplicate_percent=20, delay_ms=800, jitter_ms=10, reorder_percent=10, hold_ms=9
    )
    bench.flow(2000)
    bench.set(is_cut=True)
    bench.flow(10, at=5.0)
    bench.arrivals()
    counts = bench.counts
    ends = counts.delivered + counts.lost + counts.cut + counts.overflowed
    assert counts.received + counts.duplicated == ends
    assert min(counts.lost, counts.cut, counts.duplicated, counts.held) > 0


def test_faults_add_up() -> None:
    both = Quality(loss_percent=50, delay_ms=10, rate_kbit_s=800).combined(
        Quality(loss_percent=50, delay_ms=5, rate_kbit_s=80, is_cut=True)
    )
    assert both == Quality(loss_percent=75, delay_ms=15, rate_kbit_s=80, is_cut=True)
    assert Quality().combined(both) == both


@pytest.mark.parametrize("wrong", [{"loss_percent": 101.0}, {"duplicate_percent": -1.0}, {"delay_ms": -1.0}])
def test_a_quality_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"percentage|below 0"):
        Quality(**wrong)  # type: ignore[arg-type]  # by name
