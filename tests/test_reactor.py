"""The reactor: deadlines in a time of our own, sockets, signals and threads as they are."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from bstar.errors import ClosedError
from bstar.net import reactor as reactor_module
from bstar.net.agenda import LAG_BOUNDS_S, Lag
from bstar.net.reactor import Reactor
from bstar.net.sockets import is_readable

LIMIT_S = 30.0


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reactor(clock: Clock) -> Iterator[Reactor]:
    """A reactor whose clock stands still; a byte in its pipe keeps a turn from sleeping."""
    with Reactor(clock=clock) as reactor:
        yield reactor


def turn(reactor: Reactor) -> None:
    """One turn that does not sleep: it finds its own wake-up."""
    reactor.call_threadsafe(lambda: None)
    reactor.turn()


# --- deadlines --------------------------------------------------------------------------------------------


def test_the_default_clock_is_monotonic_and_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """BST-R-03."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "time", lambda: pytest.fail("the wall clock may jump"))
    with Reactor() as reactor:
        before = time.clock_gettime(clock_id)
        assert before <= reactor.now() <= time.clock_gettime(clock_id)


def test_a_call_comes_once_and_not_before_its_time(reactor: Reactor, clock: Clock) -> None:
    calls: list[float] = []
    reactor.call_at(101.0, calls.append)
    turn(reactor)
    clock.now = 100.999
    turn(reactor)
    assert calls == []
    clock.now = 101.0
    turn(reactor)
    turn(reactor)
    assert calls == [101.0]


def test_a_timer_keeps_its_beat_when_a_turn_is_late(reactor: Reactor, clock: Clock) -> None:
    calls: list[float] = []
    reactor.add_timer(1.0, calls.append)
    for now in (101.3, 102.0, 103.0):
        clock.now = now
        turn(reactor)
    assert calls == [101.3, 102.0, 103.0]


def test_a_timer_fires_once_after_a_long_absence(reactor: Reactor, clock: Clock) -> None:
    calls: list[float] = []
    reactor.add_timer(1.0, calls.append)
    clock.now = 110.5
    turn(reactor)
    turn(reactor)
    assert calls == [110.5]
    clock.now = 111.5
    turn(reactor)
    assert calls == [110.5, 111.5]


def test_a_cancelled_timer_is_silent(reactor: Reactor, clock: Clock) -> None:
    calls: list[float] = []
    timer = reactor.add_timer(1.0, calls.append)
    timer.cancel()
    timer.cancel()
    clock.now = 105.0
    turn(reactor)
    assert calls == []


def test_a_timer_may_cancel_itself(reactor: Reactor, clock: Clock) -> None:
    calls: list[float] = []

    def once(now: float) -> None:
        calls.append(now)
        timer.cancel()

    timer = reactor.add_timer(1.0, once)
    for now in (101.0, 102.0):
        clock.now = now
        turn(reactor)
    assert calls == [101.0]


@pytest.mark.parametrize("interval_s", [0, -1.0])
def test_a_timer_without_an_interval_is_refused(reactor: Reactor, interval_s: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        reactor.add_timer(interval_s, lambda now: None)


def test_a_machine_is_fired_at_its_deadline(reactor: Reactor, clock: Clock) -> None:
    deadlines = [101.0]
    fired: list[float] = []

    def fire(now: float) -> None:
        fired.append(now)
        deadlines[0] = now + 1.0

    reactor.add_machine(lambda: deadlines[0], fire)
    reactor.add_machine(lambda: None, lambda now: pytest.fail("it has no deadline"))
    for now in (100.5, 101.0, 101.5, 102.1):
        clock.now = now
        turn(reactor)
    assert fired == [101.0, 102.1]


def test_lag_is_what_deadlines_were_late(reactor: Reactor, clock: Clock) -> None:
    reactor.call_at(101.0, lambda now: None)
    reactor.call_at(101.0, lambda now: None)
    clock.now = 101.25
    turn(reactor)
    reactor.call_at(102.0, lambda now: None)
    clock.now = 102.0
    turn(reactor)
    lag = reactor.lag
    assert (lag.last_s, lag.max_s, lag.sum_s) == (0.0, 0.25, 0.5)
    assert sum(lag.counts) == 3
    assert lag.counts[LAG_BOUNDS_S.index(0.25)] == 2
    assert (lag.take_peak_s(), lag.take_peak_s()) == (0.25, 0.0)
    assert lag.max_s == 0.25


def test_a_deadline_that_is_set_into_the_past_is_as_late_as_the_loop(reactor: Reactor, clock: Clock) -> None:
    """A store that begins to lead finds a deadline of the time in which it had none."""
    deadlines = [1_000.0]
    fired: list[float] = []

    def fire(now: float) -> None:
        fired.append(now)
        deadlines[0] = 1_000.0

    def lead(now: float) -> None:
        clock.now = 146.25  # its handler takes a quarter of a second
        deadlines[0] = 100.0

    reactor.add_machine(lambda: deadlines[0], fire)
    turn(reactor)
    clock.now = 146.0  # idle until then
    reactor.call_threadsafe(lambda: lead(clock.now))
    reactor.turn()
    turn(reactor)
    assert fired == [146.25]
    assert reactor.lag.max_s == 0.25


def test_a_sleep_that_lasts_too_long_is_late(reactor: Reactor, clock: Clock) -> None:
    """The process stood still while it slept: it had to do what became due meanwhile."""
    reactor.add_timer(1.0, lambda now: None)
    turn(reactor)
    clock.now = 105.0
    turn(reactor)
    assert reactor.lag.max_s == 4.0


def test_the_last_bucket_takes_what_is_above_every_bound() -> None:
    lag = Lag()
    lag.observe(LAG_BOUNDS_S[-1] + 1)
    lag.observe(0.0)
    assert lag.counts == [1, *([0] * (len(LAG_BOUNDS_S) - 1)), 1]


def test_an_exception_of_a_handler_ends_the_loop(reactor: Reactor, clock: Clock) -> None:
    def fail(now: float) -> None:
        raise ZeroDivisionError

    reactor.call_at(100.0, fail)
    with pytest.raises(ZeroDivisionError):
        reactor.run()


# --- stalls -----------------------------------------------------------------------------------------------


def test_a_stall_is_told_before_timers_and_messages_that_became_due(reactor: Reactor, clock: Clock) -> None:
    events: list[str] = []
    reactor.on_stall(0.5, lambda gap_s, now: events.append(f"stall {gap_s:.1f}"))
    reactor.call_at(101.0, lambda now: events.append("timer"))
    reactor.call_threadsafe(lambda: events.append("message"))
    clock.now = 100.0
    poll = reactor._poll

    def away(timeout: int | None = None) -> list[tuple[Any, int]]:
        clock.now = 105.0
        return poll(timeout)

    reactor._poll = away
    reactor.turn()
    assert events == ["stall 4.5", "timer", "message"]


def test_a_slow_handler_is_a_stall_before_the_next_message(reactor: Reactor, clock: Clock) -> None:
    events: list[str] = []
    reactor.on_stall(0.5, lambda gap_s, now: events.append(f"stall {gap_s:.1f}"))
    reactor.call_at(100.0, lambda now: setattr(clock, "now", 103.0))
    reactor.call_threadsafe(lambda: events.append("message"))
    reactor.turn()
    assert events == ["stall 3.0", "message"]


def test_whoever_tolerates_more_is_not_told(reactor: Reactor, clock: Clock) -> None:
    told: list[str] = []
    reactor.on_stall(0.5, lambda gap_s, now: told.append("impatient"))
    reactor.on_stall(5.0, lambda gap_s, now: told.append("patient"))
    clock.now = 101.0
    turn(reactor)
    assert told == ["impatient"]
    clock.now = 110.0
    turn(reactor)
    assert told == ["impatient", "impatient", "patient"]


def test_sleeping_as_long_as_meant_is_no_stall(reactor: Reactor, clock: Clock) -> None:
    told: list[float] = []
    sleeps: list[int] = []
    reactor.on_stall(0.5, lambda gap_s, now: told.append(gap_s))

    def poll(timeout_ms: int) -> list[object]:
        sleeps.append(timeout_ms)
        clock.now += timeout_ms / 1000
        return []

    reactor._poll = poll  # type: ignore[assignment]
    for _ in range(10):
        reactor.turn()
    assert told == []
    # Only what lies beyond the end of a sleep can be told from sleeping, so sleeps are short.
    assert max(sleeps) <= 501


# --- sockets ----------------------------------------------------------------------------------------------


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def pipe(context: zmq.Context[zmq.Socket[bytes]], name: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Two connected sockets; what one sends is there for the other at once."""
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (here, there):
        socket.linger = 0
    here.bind(f"inproc://{name}")
    there.connect(f"inproc://{name}")
    return here, there


def test_messages_are_handed_over_whole_and_in_order(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        seen: list[list[bytes]] = []
        reactor.add_reader(here, lambda frames, now: seen.append(frames))
        there.send_multipart([b"a", b"", b"b"])
        there.send(b"c")
        reactor.turn()
        assert seen == [[b"a", b"", b"b"], [b"c"]]


def test_a_socket_has_its_turn_at_most_drain_max_times(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    busy, busy_peer = pipe(context, "busy")
    calm, calm_peer = pipe(context, "calm")
    with Reactor(drain_max=3) as reactor, busy, busy_peer, calm, calm_peer:
        seen: list[bytes] = []
        reactor.add_reader(busy, lambda frames, now: seen.append(frames[0]))
        reactor.add_reader(calm, lambda frames, now: seen.append(frames[0]))
        for number in range(4):
            busy_peer.send(b"busy %d" % number)
        calm_peer.send(b"calm")
        reactor.turn()
        assert seen == [b"busy 0", b"busy 1", b"busy 2", b"calm"]
        reactor.turn()
        assert seen[4:] == [b"busy 3"]


def test_what_is_due_is_served_between_two_messages_of_a_burst(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """A node that cannot publish in time must notice it before it serves the rest of a burst."""
    clock = Clock()
    here, there = pipe(context, "a")
    with Reactor(clock=clock) as reactor, here, there:
        events: list[str] = []
        reactor.call_at(101.5, lambda now: events.append("due"))

        def slow(frames: list[bytes], now: float) -> None:
            events.append(frames[0].decode())
            clock.now += 1.0

        reactor.add_reader(here, slow)
        for name in (b"a", b"b", b"c", b"d"):
            there.send(name)
        while "d" not in events:
            reactor.turn()
        assert events == ["a", "b", "due", "c", "d"]


def test_a_reader_may_be_removed_by_its_own_handler(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        seen: list[bytes] = []

        def handler(frames: list[bytes], now: float) -> None:
            seen.append(frames[0])
            reactor.remove(here)

        reactor.add_reader(here, handler)
        there.send(b"a")
        there.send(b"b")
        reactor.turn()
        turn(reactor)
        assert seen == [b"a"]


def test_a_source_removed_in_the_same_turn_is_not_served(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    first, first_peer = pipe(context, "first")
    second, second_peer = pipe(context, "second")
    with Reactor() as reactor, first, first_peer, second, second_peer:
        reactor.add_reader(first, lambda frames, now: reactor.remove(second))
        reactor.add_reader(second, lambda frames, now: pytest.fail("it was removed"))
        second_peer.send(b"x")
        first_peer.send(b"x")
        reactor.turn()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reactor], object]:
    """Makes a reactor fail that waits for a message which is there; it looks up for no other reason."""
    monkeypatch.setattr("bstar.net.reactor._SLEEP_MAX_S", 10 * LIMIT_S)
    return lambda reactor: reactor.call_at(
        reactor.now() + LIMIT_S, lambda now: pytest.fail("a message was not found")
    )


def polls_of(reactor: Reactor) -> list[int]:
    """The timeouts of each poll that asks all sockets, as they come."""
    polls: list[int] = []
    poll = reactor._poll

    def counted(timeout_ms: int) -> list[tuple[Any, int]]:
        polls.append(timeout_ms)
        return poll(timeout_ms)

    reactor._poll = counted  # type: ignore[assignment]
    return polls


def test_after_a_long_burst_a_reader_does_not_ask_whether_there_is_more(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def ask(socket: zmq.Socket[bytes]) -> bool:
        asked.append(is_readable(socket))
        return asked[-1]

    monkeypatch.setattr(reactor_module, "is_readable", ask)
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        seen: list[list[bytes]] = []
        reactor.add_reader(here, lambda frames, now: seen.append(frames))
        for length, questions in ((1, 1), (5, 2), (5, 0), (1, 0), (1, 1)):
            asked.clear()
            seen.clear()
            for _ in range(length):
                there.send(b"")
            reactor.turn()
            assert (len(seen), len(asked)) == (length, questions)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no epoll")
def test_readers_that_use_only_their_own_sockets_spare_asking_the_others(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    left, left_peer = pipe(context, "left")
    right, right_peer = pipe(context, "right")
    with Reactor() as reactor, left, left_peer, right, right_peer:
        polls = polls_of(reactor)
        seen: list[bytes] = []

        def answer_through(peer: zmq.Socket[bytes], frames: list[bytes]) -> bool:
            seen.append(frames[0])
            peer.send(b"%d" % len(seen))
            if len(seen) == 20:
                reactor.end()
            return True

        reactor.add_reader(left, lambda frames, now: answer_through(right_peer, frames), keeps_to_itself=True)
        reactor.add_reader(right, lambda frames, now: answer_through(left_peer, frames), keeps_to_itself=True)
        impatient(reactor)
        left_peer.send(b"0")
        reactor.run()
        assert seen == [b"%d" % number for number in range(20)]
        assert len(polls) == 1


def test_what_a_reader_kept_back_leaves_after_the_first_message_and_at_the_end_of_a_burst(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """A single message is answered at once; many wake the other side once."""
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        events: list[str] = []

        def handle(frames: list[bytes], now: float) -> bool:
            events.append(frames[0].decode())
            return True

        def flush() -> bool:
            events.append("flush")
            return True

        reactor.add_reader(here, handle, keeps_to_itself=True, flush=flush)
        for name in (b"a", b"b", b"c"):
            there.send(name)
        reactor.turn()
        assert events == ["a", "flush", "b", "c", "flush"]
        events.clear()
        for name in (b"d", b"e"):
            there.send(name)
        reactor.turn()
        # It could have been as long as the one before.
        assert events == ["d", "e", "flush"]
        events.clear()
        for name in (b"f", b"g"):
            there.send(name)
        reactor.turn()
        assert events == ["f", "flush", "g", "flush"]


def test_what_a_reader_kept_back_leaves_although_its_handler_fails(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        kept: list[bytes] = []
        left: list[bytes] = []

        def handle(frames: list[bytes], now: float) -> bool:
            if frames == [b"bad"]:
                raise ZeroDivisionError
            kept.append(frames[0])
            return True

        def flush() -> bool:
            left.extend(kept)
            kept.clear()
            return True

        reactor.add_reader(here, handle, keeps_to_itself=True, flush=flush)
        for name in (b"a", b"b", b"bad"):
            there.send(name)
        with pytest.raises(ZeroDivisionError):
            reactor.turn()
        assert left == [b"a", b"b"]


@pytest.mark.parametrize(
    ("results", "is_asked"),
    [([True, True], False), ([False, True], True), ([True, False], True)],
    ids=["neither", "after the first message", "at the end"],
)
def test_a_flush_that_uses_other_sockets_makes_the_loop_ask_them(
    context: zmq.Context[zmq.Socket[bytes]], results: list[bool], is_asked: bool
) -> None:
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        left = list(results)
        reactor.add_reader(here, lambda frames, now: True, keeps_to_itself=True, flush=lambda: left.pop(0))
        there.send(b"a")
        reactor.turn()
        assert left == []
        assert reactor._sources.is_stirred is is_asked


def test_a_message_whose_sign_another_handler_swallowed_is_found(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    first, first_peer = pipe(context, "first")
    second, second_peer = pipe(context, "second")
    with Reactor() as reactor, first, first_peer, second, second_peer:
        seen: list[bytes] = []

        def on_first(frames: list[bytes], now: float) -> bool | None:
            seen.append(frames[0])
            if frames[0] == b"calm":
                second_peer.send(b"calm")
                return True
            second_peer.send(b"x")
            # Whatever is done with a socket takes what its descriptor tells.
            assert second.get(zmq.EVENTS)
            return None

        def on_second(frames: list[bytes], now: float) -> bool:
            seen.append(frames[0])
            if frames[0] == b"calm":
                first_peer.send(b"stir")
            else:
                reactor.end()
            return True

        reactor.add_reader(first, on_first, keeps_to_itself=True)
        reactor.add_reader(second, on_second, keeps_to_itself=True)
        impatient(reactor)
        first_peer.send(b"calm")
        reactor.run()
        assert seen == [b"calm", b"calm", b"stir", b"x"]


def test_a_message_whose_sign_a_timer_swallowed_is_found(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    here, there = pipe(context, "a")
    with Reactor() as reactor, here, there:
        seen: list[bytes] = []

        def swallow(now: float) -> None:
            there.send(b"x")
            assert here.get(zmq.EVENTS)

        def on_message(frames: list[bytes], now: float) -> bool:
            seen.append(frames[0])
            if frames[0] == b"x":
                reactor.end()
            else:
                reactor.call_at(reactor.now() + 0.02, swallow)
            return True

        reactor.add_reader(here, on_message, keeps_to_itself=True)
        impatient(reactor)
        there.send(b"calm")
        reactor.run()
        assert seen == [b"calm", b"x"]


def test_the_order_of_turns_is_the_same_when_only_descriptors_are_watched(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    first, first_peer = pipe(context, "first")
    second, second_peer = pipe(context, "second")
    third, third_peer = pipe(context, "third")
    with Reactor() as reactor, first, first_peer, second, second_peer, third, third_peer:
        seen: list[bytes] = []

        def on_third(frames: list[bytes], now: float) -> bool:
            if frames[0] == b"ready":
                first_peer.send(b"set")
                return True
            second_peer.send(b"second")
            first_peer.send(b"first")
            return True

        def note(frames: list[bytes], now: float) -> bool:
            if frames[0] == b"set":
                third_peer.send(b"go")
                return True
            seen.append(frames[0])
            if len(seen) == 2:
                reactor.end()
            return True

        reactor.add_reader(first, note, keeps_to_itself=True)
        reactor.add_reader(second, note, keeps_to_itself=True)
        reactor.add_reader(third, on_third, keeps_to_itself=True)
        impatient(reactor)
        third_peer.send(b"ready")
        reactor.run()
        assert seen == [b"first", b"second"]


def test_what_exceeds_a_turn_is_not_forgotten_by_a_reader_that_uses_its_own_socket_only(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    here, there = pipe(context, "a")
    with Reactor(drain_max=3) as reactor, here, there:
        seen: list[bytes] = []

        def note(frames: list[bytes], now: float) -> bool:
            seen.append(frames[0])
            if len(seen) == 10:
                reactor.end()
            return True

        reactor.add_reader(here, note, keeps_to_itself=True)
        impatient(reactor)
        for number in range(10):
            there.send(b"%d" % number)
        reactor.run()
        assert seen == [b"%d" % number for number in range(10)]


@pytest.mark.loopback
def test_frames_of_a_router_are_those_that_were_sent(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    with Reactor() as reactor, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.setsockopt(zmq.ROUTING_ID, b"me")
        dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        seen: list[list[bytes]] = []

        def note(frames: list[bytes], now: float) -> bool:
            seen.append(frames)
            if len(seen) == 3:
                reactor.end()
            return True

        reactor.add_reader(router, note, keeps_to_itself=True)
        impatient(reactor)
        for frames in ([b""], [b"", b"a", b"b" * 100_000], [b"c"]):
            dealer.send_multipart(frames)
        reactor.run()
        assert seen == [[b"me", b""], [b"me", b"", b"a", b"b" * 100_000], [b"me", b"c"]]


def test_what_a_handler_returns_by_chance_does_not_count(
    context: zmq.Context[zmq.Socket[bytes]], impatient: Callable[[Reactor], object]
) -> None:
    first, first_peer = pipe(context, "first")
    second, second_peer = pipe(context, "second")
    with Reactor() as reactor, first, first_peer, second, second_peer:

        def on_first(frames: list[bytes], now: float) -> bool:
            second_peer.send(b"x")
            return bool(second.get(zmq.EVENTS))

        reactor.add_reader(first, on_first)
        reactor.add_reader(second, lambda frames, now: reactor.end())
        impatient(reactor)
        first_peer.send(b"x")
        reactor.run()


def test_a_plain_descriptor_can_be_served() -> None:
    read_fd, write_fd = os.pipe()
    with Reactor() as reactor:
        seen: list[bytes] = []
        reactor.add_source(read_fd, lambda now: seen.append(os.read(read_fd, 10)))
        os.write(write_fd, b"abc")
        reactor.turn()
        assert seen == [b"abc"]
        reactor.remove(read_fd)
    os.close(read_fd)
    os.close(write_fd)


# --- stopping ---------------------------------------------------------------------------------------------


def test_a_stop_without_anybody_to_wait_for_ends_the_loop(reactor: Reactor) -> None:
    reactor.stop()
    reactor.stop()
    reactor.run()


def test_a_stop_lets_everyone_finish(reactor: Reactor, clock: Clock) -> None:
    begun: list[float] = []
    done: list[bool] = []
    reactor.on_stop(begun.append, lambda now: bool(done))
    reactor.on_stop(lambda now: None, lambda now: True)
    reactor.stop()
    for _ in range(3):
        turn(reactor)
    assert begun == [100.0]
    assert not reactor._stop.is_over
    done.append(True)
    turn(reactor)
    assert reactor._stop.is_over


def test_a_stop_is_bounded(clock: Clock) -> None:
    with Reactor(clock=clock, stop_timeout_s=2.0) as reactor:
        reactor.on_stop(lambda now: None, lambda now: False)
        reactor.stop()
        turn(reactor)
        clock.now = 101.999
        turn(reactor)
        assert not reactor._stop.is_over
        clock.now = 102.0
        reactor.run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_to_stop(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Reactor() as reactor:
        begun: list[float] = []
        reactor.on_stop(begun.append, lambda now: True)
        reactor.call_threadsafe(lambda: os.kill(os.getpid(), number))
        reactor.run()
        assert len(begun) == 1
    assert signal.getsignal(number) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_second_signal_ends_at_once() -> None:
    with Reactor(stop_timeout_s=LIMIT_S) as reactor:
        reactor.on_stop(lambda now: os.kill(os.getpid(), signal.SIGTERM), lambda now: False)
        reactor.call_threadsafe(lambda: os.kill(os.getpid(), signal.SIGTERM))
        started_at = time.monotonic()
        reactor.run()
        assert time.monotonic() - started_at < LIMIT_S


def test_a_signal_while_the_loop_is_being_woken_does_not_lock_it_up() -> None:
    with Reactor() as reactor:

        def call() -> None:
            with reactor._calls.lock:
                os.kill(os.getpid(), signal.SIGTERM)

        reactor.call_threadsafe(call)
        reactor.run()


def test_handlers_are_restored_when_the_loop_ends_by_an_exception(reactor: Reactor) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def fail(now: float) -> None:
        raise ZeroDivisionError

    reactor.call_at(0.0, fail)
    with pytest.raises(ZeroDivisionError):
        reactor.run()
    assert signal.getsignal(signal.SIGTERM) is before


# --- other threads ----------------------------------------------------------------------------------------


def test_a_call_from_another_thread_runs_in_the_loops_thread() -> None:
    with Reactor() as reactor:
        loop = threading.Thread(target=reactor.run)
        loop.start()
        assert reactor.call_threadsafe(threading.get_ident).result(LIMIT_S) == loop.ident
        reactor.stop()
        loop.join(LIMIT_S)
        assert not loop.is_alive()


def test_an_exception_of_a_call_belongs_to_its_caller() -> None:
    with Reactor() as reactor:
        future = reactor.call_threadsafe(lambda: 1 / 0)
        reactor.turn()
        with pytest.raises(ZeroDivisionError):
            future.result(0)


def test_a_cancelled_call_is_not_made(reactor: Reactor) -> None:
    future = reactor.call_threadsafe(lambda: pytest.fail("it was cancelled"))
    assert future.cancel()
    turn(reactor)


def test_a_call_that_comes_too_late_gets_an_answer() -> None:
    reactor = Reactor()
    future = reactor.call_threadsafe(lambda: 1)
    reactor.close()
    reactor.close()
    with pytest.raises(ClosedError):
        future.result(0)
    with pytest.raises(ClosedError):
        reactor.call_threadsafe(lambda: 1)
    # Whoever only wants it to stop need not know that it has.
    reactor.stop()
