"""Errors travel between processes; clients and workers do not."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from bstar import errors
from bstar.errors import BstarError, DeclinedError
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, LazyPirateClient, Worker

NODES = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
# What the constructors want beside a text.
OTHERS: dict[str, dict[str, Any]] = {
    "RemoteProtocolError": {"reason": "odd", "from_worker": True},
    "CallError": {"may_have_executed": True},
    "BusyError": {"reason": "queue-full", "retry_after_s": 0.5},
    "RejectedError": {"code": 6},
    "CallTimeoutError": {"may_have_executed": True},
    "NoActiveNodeError": {"unreached": {NODES[0]: "refused"}},
    "DeclinedError": {"code": "no-such-sku", "data": {"near": [6, 8]}},
    "DurableError": {"request_id": "ab"},
    "DeadLetterError": {"request_id": "ab", "cause": "failed", "said": "no", "attempts": 5},
    "RequestCancelledError": {"request_id": "ab"},
    "UnknownRequestError": {"request_id": "ab"},
}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BstarError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("travel", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_arrives_as_it_left(kind: Callable[..., BstarError], travel: Callable[[Any], Any]) -> None:
    error = kind(text="no", **OTHERS[kind.__name__]) if kind.__name__ in OTHERS else kind("no")
    error.add_note("body 3 of map()")
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args, vars(arrived)) == (str(error), error.args, vars(error))


DECLINES = (
    "from bstar.errors import DeclinedError\nraise DeclinedError('no-such-sku', 'we sell none', [6, 8])"
)


def test_an_error_in_a_pool_of_processes_reaches_its_parent_and_leaves_the_pool_whole() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(DeclinedError, match="we sell none") as caught:
                pool.submit(exec, DECLINES).result()
            assert caught.value.data == [6, 8]


@pytest.mark.parametrize(
    "make",
    [
        lambda: HAClient(NODES),
        lambda: AsyncHAClient(NODES),
        lambda: LazyPirateClient(NODES),
        lambda: Worker(NODES, "echo", lambda request: request.body),
        lambda: AsyncWorker(NODES, "echo"),
    ],
)
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, pickle.dumps])
def test_clients_and_workers_are_of_one_process(
    make: Callable[[], object], travel: Callable[[object], object]
) -> None:
    made = make()
    try:
        with pytest.raises(TypeError, match=r"^\w+ cannot be copied or pickled: make one in each process$"):
            travel(made)
    finally:
        if isinstance(made, HAClient | LazyPirateClient):
            made.close()
