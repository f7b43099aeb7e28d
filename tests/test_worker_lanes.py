"""What waits in a worker is fair between clients: one with hundreds waiting does not hold up another."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.wire import native, native_broker
from bstar_client.core.worker.dialects import Job, NativeWorker
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.lanes import Lanes
from bstar_client.core.worker.outputs import Begin
from bstar_client.core.worker.session import WorkerCore
from bstar_client.sync.mailboxes import Inbox, Word
from support.work import asked


def job(client: str, number: int) -> Job:
    return Job(0, 1, native.identity(client.encode() * 16, number), [b"%s%d" % (client.encode(), number)])


def bodies(jobs: list[Job]) -> list[str]:
    return [each.body[0].decode() for each in jobs]


def drained(lanes: Lanes) -> list[Job]:
    jobs = []
    while lanes:
        jobs.append(lanes.pop())
    return jobs


@pytest.mark.requirement("BSN-W-11")
def test_clients_take_turns_and_each_keeps_its_order() -> None:
    lanes = Lanes()
    lanes.push([job("a", number) for number in range(3)])
    lanes.push([job("b", 0)])
    assert bodies([lanes.pop()]) == ["a0"]
    lanes.push([job("c", 0), job("c", 1)])
    assert bodies(list(lanes)) == ["b0", "c0", "c1", "a1", "a2"]
    assert bodies(drained(lanes)) == ["b0", "c0", "a1", "c1", "a2"]
    lanes.push([job("a", 3)])
    lanes.clear()
    assert not lanes


def test_a_newcomer_is_next_and_who_comes_back_at_once_waits_for_its_turn() -> None:
    lanes = Lanes()
    lanes.push([job(client, number) for number in range(100) for client in "abc"])
    served = bodies([lanes.pop() for _ in range(4)])
    assert served == ["a0", "b0", "c0", "a1"]
    lanes.push([job("q", 0)])
    assert bodies([lanes.pop()]) == ["q0"]
    served = []
    for number in range(100):
        if number == 0 or served[-1][0] == "q":
            lanes.push([job("q", number + 1)])
        served += bodies([lanes.pop()])
    assert sum(body[0] == "q" for body in served) == 25


def test_newcomers_do_not_starve_those_who_wait() -> None:
    lanes = Lanes()
    lanes.push([job("a", number) for number in range(5)])
    served = bodies([lanes.pop(), lanes.pop()])
    for number in range(100):
        lanes.push([Job(0, 1, native.identity(b"%016d" % number, 1), [b"n%d" % number])])
        served += bodies([lanes.pop()])
    assert served[:2] == ["a0", "a1"]
    assert sum(body[0] == "a" for body in served) >= 4


def test_a_stream_of_clients_leaves_nothing_behind() -> None:
    lanes = Lanes()
    lanes.push([job("a", number) for number in range(300)])
    for number in range(200):
        lanes.push([Job(0, 1, native.identity(b"%016d" % number, 1), [b"n"])])
        lanes.pop()
        lanes.pop()
    assert len(lanes._lanes) <= 32
    assert len(drained(lanes)) == 100
    assert not lanes._lanes


def test_requests_with_keys_are_together_one_clients() -> None:
    """Their identities differ in every byte, and would otherwise be as many clients."""
    lanes = Lanes()
    keyed = [
        Job(0, 1, native.keyed_identity(b"echo", b"%d" % number), [b"k%d" % number]) for number in range(3)
    ]
    lanes.push([*keyed, job("a", 0), Job(0, 1, b"mdp-client", [b"m0"])])
    assert bodies(drained(lanes)) == ["k0", "a0", "m0", "k1", "k2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60))
def test_everything_comes_out_once_and_in_the_order_of_its_client(steps: list[tuple[str, int]]) -> None:
    lanes, waiting, out = Lanes(), 0, []
    for number, (client, pops) in enumerate(steps):
        lanes.push([job(client, number)])
        waiting += 1
        for _ in range(min(pops, waiting)):
            out.append(lanes.pop())
            waiting -= 1
    out += drained(lanes)
    assert len(out) == len(steps)
    for client in "abc":
        numbers = [int(body[1:]) for body in bodies(out) if body[0] == client]
        assert numbers == [number for number, (each, _) in enumerate(steps) if each == client]


def test_words_and_jobs_go_to_the_threads_that_wait_and_none_is_lost() -> None:
    inbox = Inbox()
    got: list[str] = []

    def take() -> None:
        while isinstance(taken := inbox.get(), Job):
            got.append(taken.body[0].decode())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(500):
        inbox.put([job(client, number) for client in "abc"])
    for _ in threads:
        inbox.tell(Word.END)
    for thread in threads:
        thread.join()
    got += bodies(inbox.take_all())
    assert sorted(got) == sorted(f"{client}{number}" for client in "abc" for number in range(500))


def test_all_that_waits_can_be_taken_and_words_are_forgotten() -> None:
    inbox = Inbox()
    inbox.put([job("a", 0), job("a", 1), job("b", 0)])
    inbox.tell(Word.LEAD)
    assert bodies(inbox.take_all()) == ["a0", "b0", "a1"]
    assert inbox.take_all() == []


def test_what_waits_in_the_core_is_fair_as_well() -> None:
    """With a limit to a handler's time the shell has no more than it runs."""
    limits = WorkerLimits(credit=100, running_max=1, handler_timeout_s=10.0)
    core = WorkerCore(["tcp://one"], b"echo", NativeWorker(), limits=limits, jitter=lambda: 0.5)
    core.connected(0, 0.0)
    begun: list[Job] = []

    def hear(frames: list[bytes]) -> None:
        for output in core.receive(0, frames[1:], 0.0):
            begun.extend(output.jobs if isinstance(output, Begin) else ())

    table, blob = native.encode_requests(
        b"g" * 16, b"echo", range(1, 51), [0] * 50, [b"g%d" % number for number in range(1, 51)]
    )[1:]
    hear(native_broker.CODEC.requests(b"w", b"g" * 16, table, blob, 0, 1, False))
    hear(native_broker.CODEC.request(b"w", (), asked([b"q1"]), native.identity(b"q" * 16, 1), 0, 1, False))
    for _ in range(3):
        for output in core.finished(begun[-1], [b"done"], 0.0):
            begun.extend(output.jobs if isinstance(output, Begin) else ())
    assert bodies(begun) == ["g1", "q1", "g2", "g3"]
