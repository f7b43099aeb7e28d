"""The benchmarks: growth of a curve, percentiles of a node's loop lag, and a crowd that is there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from bstar.settings import ProfileName
from bstar_broker.core.snapshot import NodeState
from endurance import echo_worker, growth_of, intervals_of, lag_of, look
from plain import PlainClient
from run import bstar_server, child, echo_workers, floor_server
from scaling_core import ROWS, Core
from support.node_states import node_state

ROOT = Path(__file__).parents[1]


def state(*counts: int) -> NodeState:
    whole = node_state()
    assert whole.loop is not None
    loop = msgspec.structs.replace(whole.loop, lag_bounds_s=[0.001, 0.01], lag_counts=list(counts))
    return msgspec.structs.replace(whole, loop=loop)


def test_the_lag_of_a_while_is_that_of_its_own_deadlines() -> None:
    before, after = state(1_000, 0, 0), state(1_098, 1, 1)
    assert lag_of(before, after, 0.5) == 0.001
    assert lag_of(before, after, 0.99) == 0.01
    assert lag_of(before, after, 1.0) == float("inf")


@pytest.mark.parametrize(
    ("curve", "growth"),
    [
        ([10.0] * 20, 0.0),
        ([1.0, 1.0, *[10.0] * 13, *[11.0] * 5], 0.1),
        ([10.0] * 10 + [99.0] + [10.0] * 9, 0.0),
        ([10.0] * 15 + [5.0] * 5, -0.5),
        ([3.0], 0.0),
    ],
)
def test_growth_is_of_the_end_over_the_beginning_without_its_first_tenth(
    curve: list[float], growth: float
) -> None:
    assert growth_of(curve) == pytest.approx(growth)


@pytest.mark.loopback
def test_a_crowd_is_as_many_peers_as_it_says() -> None:
    with bstar_server("guide") as (_, endpoint), echo_worker(endpoint):
        for kind, *name in (("workers", "idle"), ("clients",), ("services", "other")):
            command = [sys.executable, str(ROOT / "benchmarks/crowd.py"), endpoint, kind, "40", "0.2", *name]
            with child(command) as crowd:
                assert crowd.stdout is not None
                assert crowd.stdout.readline() == b"ready\n"
                workers = {each.service: each.workers for each in look(endpoint).broker.services}
            # Those of the crowd before may still be on the list: nobody has missed them yet.
            here = [count for service, count in workers.items() if name and service.startswith(name[0])]
            assert here == {"workers": [40], "services": [1] * 40, "clients": []}[kind]


# --- the core's cost ------------------------------------------------------------------------------------


def calls_of(dialect: str, **size: int) -> float:
    """Calls of functions, Python's and C's, per request: a measure of work that no busy machine changes."""
    core = Core(dialect, **size)
    core.cost_us(500)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        core.cost_us(1_000)
    finally:
        sys.setprofile(before)
    return calls / 1_000


@pytest.mark.parametrize("dialect", ["mdp02", "native"])
@pytest.mark.parametrize(
    ("few", "many"),
    [
        ({"services": 10}, {"services": 1_000}),
        ({"workers": 10}, {"workers": 1_000}),
        ({"queued": 100}, {"queued": 10_000}),
    ],
)
def test_a_request_costs_no_more_calls_when_there_is_more_of_everything(
    dialect: str, few: dict[str, int], many: dict[str, int]
) -> None:
    # A tenth is for the timers, which look at each worker now and then.
    assert calls_of(dialect, **many) < 1.1 * calls_of(dialect, **few)


def test_a_batch_costs_no_more_calls_when_more_wait() -> None:
    assert calls_of("batches", queued=10_000) < 1.1 * calls_of("batches", queued=100)


def test_a_batch_that_is_spread_row_by_row_costs_less_than_as_many_requests_however_many_workers() -> None:
    alone = calls_of("native", workers=1_000)
    assert calls_of("batches", workers=ROWS) < 0.6 * alone
    assert calls_of("batches", workers=1_000) < 0.6 * alone


# --- plain MDP beside the floor ---------------------------------------------------------------------------


@pytest.mark.loopback
@pytest.mark.parametrize("dialect", ["mdp01", "mdp02"])
@pytest.mark.parametrize("server", ["floor", "bstar"])
def test_floor_and_broker_route_requests_to_several_workers_and_replies_back(
    server: str, dialect: str
) -> None:
    serving = floor_server(dialect) if server == "floor" else bstar_server()
    with (
        serving as (_, endpoint),
        echo_workers(endpoint, 3, dialect),
        PlainClient(endpoint, dialect=dialect) as client,
    ):
        client.wait_ready()
        kept = client.keep(7, 0.05, b"x" * 16)
    # Each of the window was answered, unless the machine was too busy for the node to serve on.
    assert len(kept.latencies) >= 7 or kept.silences


# --- a plain client -------------------------------------------------------------------------------------


@contextmanager
def forgetful(*, forgets: int) -> Iterator[str]:
    """A server that echoes, but lets the first ``forgets`` of the requests for work vanish."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        left = forgets
        try:
            while True:
                sender, *_, service, body = router.recv_multipart()
                if body == b"work" and left:
                    left -= 1
                    continue
                router.send_multipart([sender, b"MDPC02", b"\x03", service, body])
        except zmq.ContextTerminated:
            router.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        context.term()
        thread.join()


@pytest.mark.loopback
def test_what_a_node_let_go_of_is_asked_again_and_its_silence_is_not_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with forgetful(forgets=3) as endpoint, PlainClient(endpoint, silence_s=1.0) as client:
        client.wait_ready()
        kept = client.keep(3, 2.0, b"work")
    assert kept.silences == 1
    assert kept.latencies
    assert max(kept.latencies) < kept.elapsed_s
    assert "owes 3 replies" in capsys.readouterr().err


@pytest.mark.loopback
def test_a_server_that_stays_silent_is_not_measured() -> None:
    with forgetful(forgets=10**9) as endpoint, PlainClient(endpoint, silence_s=0.05) as client:
        client.wait_ready()
        with pytest.raises(SystemExit, match="owes 1 replies and is silent"):
            client.keep(1, 60.0, b"work")


@pytest.mark.parametrize(
    ("profile", "is_resting", "intervals"),
    [("guide", False, (2.5, 0.5)), ("lan", False, (0.25, 0.075)), ("lan", True, (0.25, 5.0))],
)
def test_a_crowd_is_as_lively_as_our_clients_and_workers(
    profile: ProfileName, is_resting: bool, intervals: tuple[float, float]
) -> None:
    assert intervals_of(profile, is_resting=is_resting) == pytest.approx(intervals)
