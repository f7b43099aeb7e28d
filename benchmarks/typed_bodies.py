"""What a typed body costs, beside msgspec alone; and what a body of bytes costs, to compare two releases.

    python benchmarks/typed_bodies.py [--rounds 40]

No sockets and no threads: a call is made and its frames are encoded (``client``), a handler is executed and
its reply is encoded (``worker``). Microseconds of CPU for each, the best of many rounds. To compare with
another checkout, run this file with its packages on PYTHONPATH; what it does not have is left out.
"""

# ruff: noqa: SLF001 - it measures what is inside

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

import bstar_client
from bstar.wire import native
from bstar_client import HAClient, Request, Worker
from bstar_client.core.worker.dialects import Job

NODES = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
_CALLS = 2_000
_IDENTITY = native.identity(b"c" * 16, 1)


class Order(msgspec.Struct):
    """A body."""

    sku: int
    count: int
    name: str


class Price(msgspec.Struct):
    """A reply."""

    cents: int
    currency: str


ORDER = Order(7, 3, "a chair")
PRICE = Price(1250, "EUR")


def octets(request: Request) -> bytes:
    """The untyped handler."""
    return request.body


def typed(order: Order) -> Price:
    """The typed one."""
    return PRICE


def client_of(client: HAClient, body: Any, **options: Any) -> Callable[[], object]:
    """Makes one call and its frames."""
    ask, make = bstar_client.Ask(body, service="echo", **options), client._requests.call

    def step() -> object:
        call = make(ask, None, idempotent=True)
        return native.encode_request(_IDENTITY, call.service, call.body, extensions=call.extensions)

    return step


def worker_of(handler: Callable[[Any], Any], body: bytes, headers: dict[str, str]) -> Callable[[], object]:
    """Executes one request in the way of the worker's threads."""
    loop = Worker(NODES, "echo", handler)._loop
    execute, results = loop._executor.execute, loop._outbox.results
    loop._outbox.is_asleep = False

    def step() -> object:
        job = Job(0, 1, _IDENTITY, [body])
        if headers:
            job.headers = headers
        execute(job)
        return results.popleft()

    return step


def best_us(step: Callable[[], object], rounds: int) -> float:
    """Microseconds of CPU for one step, the best round."""
    found = []
    for _ in range(rounds):
        began_at = time.process_time()
        for _ in range(_CALLS):
            step()
        found.append((time.process_time() - began_at) / _CALLS * 1e6)
    return min(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    json, decode = msgspec.json.encode(ORDER), msgspec.json.Decoder(Order).decode
    encode = msgspec.json.Encoder().encode
    client = HAClient(NODES)
    steps = {"client, bytes": client_of(client, json), "worker, bytes": worker_of(octets, json, {})}
    if "codec" in bstar_client.Ask.__struct_fields__:
        headers = {"content-type": "application/json"}
        steps |= {
            "client, typed": client_of(client, ORDER),
            "worker, typed": worker_of(typed, json, headers),
            "msgspec alone, encode a body": lambda: encode(ORDER),
            "msgspec alone, decode a body, encode a reply": lambda: (decode(json), encode(PRICE)),
        }
    for name, step in steps.items():
        sys.stdout.write(f"{name:46} {best_us(step, rounds):7.3f} us\n")
    client.close()


if __name__ == "__main__":
    main()
