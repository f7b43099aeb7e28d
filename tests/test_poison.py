"""Requests that kill workers end; requests that only share workers with them are answered.

Workers execute what they hold in order, and end at the first poison. Time is a variable.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from bstar.wire import emq, native
from bstar.wire.batches import final_rows, request_rows
from bstar.wire.dialect import Dialect
from bstar.wire.front import peer_id
from bstar.wire.messages import NEVER_MS, Disconnect, ErrorCode, Ready
from bstar_broker.core.records import Accepted
from support.desk import Desk, heard, ident
from support.emq import EmqStage, job, requests

DELIVERIES_MAX = 3
# A request among 1,000 is alone after four losses: 1,000, 1,000, 125, 15.
CROWDED_LOSSES_MAX = 4


class Mill:
    """One service with workers of this credit that are replaced when they end."""

    def __init__(
        self, poison: Iterable[int], *, workers: int, credit: int, takes_batches: bool = True
    ) -> None:
        self.desk = Desk(deliveries_max=DELIVERIES_MAX, request_ttl_s=100_000, worker_liveness=100_000)
        self.poison = set(poison)
        self.credit, self.takes_batches = credit, takes_batches
        self.held: dict[bytes, list[int]] = {}
        self.answered: set[int] = set()
        self.poisoned: set[int] = set()
        # How many requests each ended worker held, by the poison that it began.
        self.deaths: dict[int, list[int]] = {}
        self.started = 0
        for _ in range(workers):
            self.start()

    def start(self) -> None:
        self.started += 1
        name = b"w%d" % self.started
        self.held[name] = []
        self.note(self.desk.ready(name, credit=self.credit, takes_batches=self.takes_batches))

    def note(self, told: list[list[bytes]]) -> None:
        for frames in told:
            message = heard(frames)
            number = int.from_bytes(message.identity[16:], "big")
            if message.command == native.REQUEST:
                self.held[frames[0]].append(number)
            elif message.command == native.REQUESTS:
                self.held[frames[0]] += request_rows(frames, 2)[0]
            elif message.command == native.FINALS:
                self.answered.update(final_rows(frames, 2)[0])
            elif message.command == native.FINAL:
                self.answered.add(number)
            elif message.command == native.ERROR:
                assert message.value == ErrorCode.POISON
                self.poisoned.add(number)

    def end(self, name: bytes) -> None:
        """This worker is gone with all it holds."""
        del self.held[name]
        self.note(self.desk.send(name, *native.encode_disconnect()))
        self.start()

    def work(self, name: bytes, count: int) -> None:
        """Execute the next ``count`` requests."""
        for number in self.held[name][:count]:
            if number in self.poison:
                deaths = self.deaths.setdefault(number, [])
                deaths.append(len(self.held[name]))
                assert len(deaths) <= CROWDED_LOSSES_MAX + DELIVERIES_MAX
                self.end(name)
                return
            self.held[name].remove(number)
            self.note(self.desk.final(name, number))

    def run(self) -> None:
        """Work until nothing is held."""
        while any(self.held.values()):
            for name in list(self.held):
                if name in self.held:
                    self.work(name, 1_000_000)
            self.note(self.desk.wait(0.1))


@pytest.mark.parametrize("takes_batches", [True, False])
@pytest.mark.parametrize(("workers", "credit"), [(1, 1), (1, 10), (3, 10), (2, 100), (1, 1_000), (3, 1_000)])
@pytest.mark.parametrize("poison", [[], [1], [500], [1, 2, 500, 999]])
def test_poison_ends_after_a_bounded_number_of_losses_and_all_else_is_answered(
    poison: list[int], workers: int, credit: int, takes_batches: bool
) -> None:
    mill = Mill(poison, workers=workers, credit=credit, takes_batches=takes_batches)
    mill.note(mill.desk.requests(b"c", range(1, 1_001)))
    mill.run()
    assert mill.poisoned == set(poison)
    assert mill.answered == set(range(1, 1_001)) - set(poison)
    assert all(deaths[-1] == 1 for deaths in mill.deaths.values()), "the last one was lost with it alone"


@pytest.mark.parametrize("seed", range(20))
def test_no_request_ends_as_poison_because_of_others(seed: int) -> None:
    """Workers are killed from outside, too, each request with fewer of them than the limit."""
    dice = random.Random(seed)
    poison = dice.sample(range(1, 401), 3)
    mill = Mill(poison, workers=dice.randint(1, 4), credit=dice.choice((2, 7, 40, 300)))
    mill.note(mill.desk.requests(b"c1", range(1, 201)))
    mill.note(mill.desk.requests(b"c2", range(201, 401)))
    kills = DELIVERIES_MAX - 1
    while any(mill.held.values()):
        name = dice.choice([each for each, held in mill.held.items() if held])
        if kills and dice.random() < 0.1:
            kills -= 1
            mill.end(name)
        else:
            mill.work(name, dice.randint(1, 60))
        mill.note(mill.desk.wait(0.02))
    assert mill.poisoned == set(poison)
    assert mill.answered == set(range(1, 401)) - set(poison)


def test_a_worker_that_is_lost_with_many_is_charged_to_none_of_them() -> None:
    """So no number of such losses ends a request: here one that always has company in time."""
    mill = Mill([], workers=1, credit=2)
    mill.note(mill.desk.requests(b"c", [1, 2]))
    for _ in range(2):
        [name] = mill.held
        assert mill.held[name] == [1, 2]
        mill.end(name)
    [name] = mill.held
    assert mill.held[name] == [1], "suspects go one at a time"
    mill.run()
    assert (mill.answered, mill.poisoned) == ({1, 2}, set())


def test_a_suspect_is_alone_and_what_comes_meanwhile_waits_until_it_has_ended() -> None:
    mill = Mill([1], workers=1, credit=5)
    mill.note(mill.desk.requests(b"c", range(1, 6)))
    for _ in range(2):
        mill.end(*mill.held)
    mill.note(mill.desk.requests(b"c", [6]))
    assert list(mill.held.values()) == [[1]]
    mill.note(mill.desk.request(b"d", 7))
    assert list(mill.held.values()) == [[1]]
    mill.run()
    assert (mill.answered, mill.poisoned) == ({2, 3, 4, 5, 6, 7}, {1})
    [worker] = mill.desk.ledger.workers.values()
    assert (worker.crowd_max, list(worker.service.idle)) == (0, [worker])


def test_a_worker_whose_fellow_is_lost_alone_with_a_suspect_gets_requests_again() -> None:
    desk = Desk(b"w1")
    desk.request(b"c", 1)
    for worker, successor in ((b"w1", b"w2"), (b"w2", b"w3")):
        desk.send(worker, *native.encode_disconnect())
        desk.ready(successor)
    desk.send(b"w3", *native.encode_disconnect())
    one, other = (
        Ready(
            peer_id("emq", "workers", name),
            Dialect.FRONT,
            (),
            b"echo",
            heartbeat_ms=NEVER_MS,
            expiry_ms=NEVER_MS,
            group=b"both",
        )
        for name in (b"1", b"2")
    )
    for ready in (one, other):
        desk.broker.receive(ready, desk.now)
    held, idle = desk.ledger.workers.values()
    assert (held.held, held.crowd_max, idle.crowd_max) == (1, 1, 1), "neither gets more"
    desk.broker.receive(Disconnect(held.routing_id, Dialect.FRONT), desk.now)
    assert idle.held == 1, "the suspect"
    desk.broker.receive(Disconnect(idle.routing_id, Dialect.FRONT), desk.now)


def test_the_loss_of_a_fellow_does_not_count_at_a_later_loss() -> None:
    desk = Desk()
    one, other = (peer_id("emq", "workers", name) for name in (b"1", b"2"))
    for peer, service in ((one, b"echo"), (other, b"poison")):
        ready = Ready(
            peer,
            Dialect.FRONT,
            (),
            service,
            credit=2,
            heartbeat_ms=NEVER_MS,
            expiry_ms=NEVER_MS,
            group=b"both",
        )
        desk.broker.receive(ready, desk.now)
    for number in (1, 2):
        desk.request(b"c", number)
    desk.request(b"c", 3, service=b"poison")
    desk.broker.receive(Disconnect(one, Dialect.FRONT), desk.now)
    desk.wait(1.0)
    desk.broker.receive(Disconnect(other, Dialect.FRONT), desk.now)
    losses = [desk.ledger.by_identity[ident(number)].losses for number in (1, 2, 3)]
    assert losses == [0, 0, 1], "the third one was alone"


def test_a_suspect_goes_to_an_empty_worker_and_the_others_go_on() -> None:
    mill = Mill([], workers=1, credit=2)
    mill.note(mill.desk.requests(b"c", [1, 2]))
    mill.end(*mill.held)
    mill.start()
    busy, empty = mill.held
    mill.end(busy)
    held = sorted(mill.held.values())
    assert held == [[1], [2]], "each has a worker of its own"
    mill.note(mill.desk.requests(b"c", [3, 4]))
    assert sorted(mill.held.values()) == held
    mill.work(empty, 1)
    assert sorted(map(len, mill.held.values())) == [1, 2]


def test_a_suspect_waits_for_an_empty_worker_for_ten_seconds_and_not_longer() -> None:
    """A handler that takes an hour must not hold its service up."""
    mill = Mill([], workers=1, credit=2)
    mill.note(mill.desk.requests(b"c", [1, 2]))
    mill.end(*mill.held)
    mill.start()
    first, second = mill.held
    mill.note(mill.desk.request(b"c", 3))
    assert mill.held == {first: [1, 2], second: [3]}
    mill.end(first)
    [third] = mill.held.keys() - {second}
    assert mill.held == {second: [3], third: [1]}, "the second suspect finds no worker"
    mill.note(mill.desk.request(b"c", 4))
    mill.note(mill.desk.wait(9.5))
    assert mill.held == {second: [3], third: [1]}
    mill.note(mill.desk.wait(1.0))
    assert mill.held == {second: [3, 2], third: [1]}, "and the third worker keeps to its suspect"


def test_a_second_worker_of_a_request_needs_more_than_one_delivery() -> None:
    """``deliveries_max`` 1 never gives a request to a second worker, whatever else the first one held."""
    desk = Desk(deliveries_max=1)
    desk.ready(b"w1", credit=2)
    desk.ready(b"w2", credit=2)
    for number in (1, 2, 3, 4):
        desk.request(b"c", number)
    told = desk.send(b"w1", *native.encode_disconnect())
    assert [heard(frames).value for frames in told] == [ErrorCode.POISON] * 2


def test_what_a_worker_has_not_begun_is_not_charged() -> None:
    desk = Desk(deliveries_max=2)
    for number in range(6):
        desk.ready(b"w%d" % number)
    desk.request(b"c", 1)
    for number in range(5):
        [frames] = desk.send(b"w%d" % number, *native.encode_disconnect(is_unbegun=True))
        assert frames[0] == b"w%d" % (number + 1)
    assert desk.ledger.by_identity[ident(1)].losses == 0


# --- job managers of EventMQ: one process, several queues ---------------------------------------------------


def test_jobs_of_one_job_manager_are_lost_together() -> None:
    """Each of its queues is a worker of the broker. None of them was alone when the process ended."""
    stage = EmqStage(deliveries_max=2)
    queues = [(10, "a"), (10, "b"), (10, "c")]
    for number, queue in enumerate("abc"):
        stage.asks(b"q%d" % number, "reply-requested", queue=queue)
    for turn in range(2):
        name = b"m%d" % turn
        stage.manager(name, *queues, slots=3)
        stage.says("workers", name, emq.Goodbye(b"k"))
    told = stage.manager(b"last", *queues, slots=3)
    assert len(requests(told)) == 1, "one job at a time is under way"
    done = []
    while given := requests(told):
        [(_, msgid)] = given
        done.append(msgid)
        told = stage.ends(msgid, name=b"last") + stage.ready(b"last")
    assert sorted(done) == [b"q0", b"q1", b"q2"]
    assert stage.front.state(stage.now).levels["free_slots"] == 3


def test_a_job_that_ends_its_manager_ends_and_the_others_are_done() -> None:
    stage = EmqStage(deliveries_max=2)
    for number in range(8):
        stage.asks(b"q%d" % number, "reply-requested", message=job(number))
    done: set[bytes] = set()
    for turn in range(10):
        name = b"m%d" % turn
        told = stage.manager(name, slots=4)
        held = [msgid for _, msgid in requests(told)]
        while held and b"q3" not in held:
            msgid = held.pop(0)
            done.add(msgid)
            told = stage.ends(msgid, name=name) + stage.ready(name)
            held += [msgid for _, msgid in requests(told)]
        stage.says("workers", name, emq.Goodbye(b"k"))
    assert done == {b"q%d" % number for number in range(8)} - {b"q3"}
    assert stage.node.broker.ledger.services[b"default"].tally.poisoned == 1


def test_a_job_that_waited_for_a_slot_of_a_lost_manager_is_not_charged() -> None:
    stage = EmqStage()
    queues = [(10, "a"), (10, "b")]
    stage.manager(b"m1", *queues, slots=2)
    for queue in "ab":
        stage.asks(queue.encode(), "reply-requested", queue=queue)
    stage.manager(b"m2", *queues, slots=1)
    given = requests(stage.says("workers", b"m1", emq.Goodbye(b"k")))
    assert len(given) == 1, "the other one waits for its second slot"
    stage.says("workers", b"m2", emq.Goodbye(b"k"))
    services = stage.node.broker.ledger.services
    heads = [services[queue].queue.head() for queue in (b"a", b"b")]
    charges = {(head.deliveries, head.losses, head.crowd_max) for head in heads if isinstance(head, Accepted)}
    assert charges == {(1, 0, 0), (2, 1, 1)}, "the one that began was alone"
