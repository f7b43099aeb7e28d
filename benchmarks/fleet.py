"""What several pairs bring: how services spread over them, what moves when one is added, and throughput.

    python benchmarks/fleet.py                           balance and movement, 10,000 services, to 100 pairs
    python benchmarks/fleet.py --pairs 1,2               requests per second of 1 and of 2 pairs, 5 rounds
    python benchmarks/fleet.py --pairs 1,2 --share 0.08  the same, each broker with 8 % of a core

Balance is computed and takes no network. For throughput each pair is one active node in a process of its
own (a passive node costs heartbeats only). The same number of services, of echo workers (a process each)
and of client processes (``HAClient.map`` over all of the fleet's services) stand ready for each number of
pairs, and the numbers take turns. Each client keeps ``window`` requests in flight for each pair. Bodies
have two frames, so that every request travels alone: together they cost a broker a fifth, but how many go
together depends on what else the machine does, and the numbers of pairs could not be compared.

All of them share the machine's cores: more pairs can bring more only as far as there is an idle core for
each, so look at ``busiest``, the share of a core that the busiest broker had, and at the bound, which is
what the brokers could switch with a core for each of them. ``--share 0.08`` gives each broker that share of
a core and no more (it is stopped and continued, as cpulimit does), so that it is the brokers that limit, as
they do on a machine with cores enough for everybody.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, cycle

from bstar.fleet import Fleet, Pair
from bstar_client import Ask, AsyncWorker, HAClient, Request, Worker, WorkerHooks
from run import BODY, bstar_server, child, cpu_seconds

PAIRS = (2, 3, 5, 10, 30, 100)
SERVICES = 10_000
TIMEOUT_S = 30.0
# More than is ever in flight for one service, so that no broker has to wait for a worker.
CREDIT = 5_000
# Far shorter than a failover timeout, far longer than the switch of a process.
LIMITER_PERIOD_S = 0.005


def main() -> int:
    """Print one of the two tables; status 0 if everything could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", help="numbers of pairs whose throughput is measured, such as 1,2")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median is printed")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--services", type=int, default=4, help="services, each with one worker process")
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--window", type=int, default=200, help="in flight of each client at each pair")
    parser.add_argument("--share", type=float, help="the share of a core that each broker gets")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        return be_client(json.loads(asked.client))
    if asked.worker:
        return be_worker(json.loads(asked.worker))
    if asked.pairs is None:
        balance()
    else:
        throughput([int(number) for number in asked.pairs.split(",")], asked)
    return 0


# --- balance ----------------------------------------------------------------------------------------------


def balance() -> None:
    """Spread of services over pairs, and what moves when a pair comes or goes."""
    services = [b"service-%d" % number for number in range(SERVICES)]
    print(
        f"{SERVICES:,} services by rendezvous hashing; chi² beside what is expected, the degrees of freedom;"
    )
    print("what moves when a pair is added or removed, and which share of that is to it or from it")
    columns = (
        "max/mean",
        "min/mean",
        "chi²",
        "df",
        "added",
        "1/(n+1)",
        "to it",
        "removed",
        "1/n",
        "from it",
        "µs",
    )
    print(f"{'pairs':>5} " + "".join(f"{name:>9}" for name in columns), flush=True)
    for number in PAIRS:
        pairs = [Pair((f"tcp://node-{n}:5001",), f"pair-{n}") for n in range(number + 1)]
        began_at = time.perf_counter()
        before = places(pairs[:-1], services)
        each_us = (time.perf_counter() - began_at) / SERVICES * 1e6
        added = places(pairs, services)
        removed = places(pairs[1:-1], services)
        counts = [Counter(before.values())[pair.identity] for pair in pairs[:-1]]
        mean = SERVICES / number
        came = [service for service in services if before[service] != added[service]]
        went = [service for service in services if before[service] != removed[service]]
        figures = (
            max(counts) / mean,
            min(counts) / mean,
            sum((found - mean) ** 2 / mean for found in counts),
            number - 1,
            len(came) / SERVICES,
            1 / (number + 1),
            sum(added[service] == pairs[-1].identity for service in came) / len(came),
            len(went) / SERVICES,
            1 / number,
            sum(before[service] == pairs[0].identity for service in went) / len(went),
            each_us,
        )
        print(f"{number:>5} " + "".join(f"{figure:>9.4g}" for figure in figures), flush=True)


def places(pairs: list[Pair], services: list[bytes]) -> dict[bytes, str]:
    """The identity of each service's pair."""
    fleet = Fleet(pairs)
    return {service: fleet.pair_of(service).identity for service in services}


# --- throughput -------------------------------------------------------------------------------------------


def throughput(numbers: list[int], asked: argparse.Namespace) -> None:
    """Requests per second for each number of pairs, in turns."""
    most = max(numbers)
    if most > asked.services or asked.services % most:
        raise SystemExit(f"{asked.services} services cannot be spread evenly over {most} pairs")
    print(
        f"native, {len(BODY)} bytes, {asked.services} services with a worker each, {asked.clients} "
        f"clients with a window of {asked.window} a pair, {os.cpu_count()} cores, "
        f"median of {asked.rounds} rounds"
        + (f", {asked.share:.0%} of a core for each broker" if asked.share else "")
    )
    rows: dict[int, list[tuple[float, ...]]] = {number: [] for number in numbers}
    with ExitStack() as stack:
        servers = [stack.enter_context(bstar_server()) for _ in range(most)]
        if asked.share is not None:
            for pid, _ in servers:
                stack.enter_context(limited(pid, asked.share))
        stands = {number: stack.enter_context(stand(servers[:number], asked)) for number in numbers}
        for measured in stands.values():
            measured.measure(0.5)  # warm
        for _ in range(asked.rounds):
            for number, measured in stands.items():
                rows[number].append(measured.measure(asked.seconds))
    columns = ("req/s", "ratio", "broker µs", "busiest", "others µs", "bound req/s")
    print(f"{'pairs':>5} " + "".join(f"{name:>12}" for name in columns))
    first = None
    for number in numbers:
        rate, broker_us, busiest, others_us = (
            statistics.median(column) for column in zip(*rows[number], strict=True)
        )
        first = first or rate
        figures = f"{rate:>12,.0f}{rate / first:>12.2f}{broker_us:>12.1f}{busiest:>12.0%}{others_us:>12.1f}"
        print(f"{number:>5} {figures}{number * 1e6 / broker_us:>12,.0f}")


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """Let a process have this share of a core only, for the length of the block."""
    is_over = threading.Event()

    def limit() -> None:
        # What it did not use is not saved up for later: its budget is that of the last periods.
        spent, budget = cpu_seconds(pid), 0.0
        at = time.monotonic()
        while not is_over.wait(LIMITER_PERIOD_S):
            now, spent_now = time.monotonic(), cpu_seconds(pid)
            budget = min(budget + share * (now - at) - (spent_now - spent), share * LIMITER_PERIOD_S)
            at, spent = now, spent_now
            os.kill(pid, signal.SIGCONT if budget > 0 else signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)

    limiter = threading.Thread(target=limit)
    limiter.start()
    try:
        yield
    finally:
        is_over.set()
        limiter.join()


class Stand:
    """A fleet with its workers and clients, ready to be measured."""

    def __init__(self, servers: list[tuple[int, str]], clients: list, workers: list) -> None:
        self._brokers = [pid for pid, _ in servers]
        self._clients = clients
        self._others = [process.pid for process in (*clients, *workers)]

    def measure(self, seconds: float) -> tuple[float, float, float, float]:
        """Requests per second, brokers' CPU in µs per request, the busiest one's load, others' µs."""
        brokers, others = self._spent()
        began_at = time.perf_counter()
        for client in self._clients:
            client.stdin.write(b"%f\n" % seconds)
            client.stdin.flush()
        told = [client.stdout.readline() for client in self._clients]
        elapsed_s = time.perf_counter() - began_at
        if not all(told):
            raise SystemExit("a client ended")
        brokers_after, others_after = self._spent()
        spent = [after - before for before, after in zip(brokers, brokers_after, strict=True)]
        answered = sum(map(int, told))
        return (
            answered / elapsed_s,
            sum(spent) / answered * 1e6,
            max(spent) / elapsed_s,
            (others_after - others) / answered * 1e6,
        )

    def _spent(self) -> tuple[list[float], float]:
        return [cpu_seconds(pid) for pid in self._brokers], sum(cpu_seconds(pid) for pid in self._others)


@contextmanager
def stand(servers: list[tuple[int, str]], asked: argparse.Namespace) -> Iterator[Stand]:
    """Workers and clients for these brokers, each of which gets as many services as the others."""
    nodes = {f"pair-{number}": [endpoint] for number, (_, endpoint) in enumerate(servers)}
    fleet = Fleet.of(nodes)
    services: list[str] = []
    room = Counter(dict.fromkeys(nodes, asked.services // len(servers)))
    for number in count():
        service = f"fleet-of-{len(servers)}-{number}"
        home = fleet.pair_of(service).identity
        if room[home]:
            room[home] -= 1
            services.append(service)
        if len(services) == asked.services:
            break
    with ExitStack() as stack:
        workers = []
        for service in services:
            command = [sys.executable, __file__, "--worker", json.dumps({"nodes": nodes, "service": service})]
            workers.append(stack.enter_context(child(command)))
        for worker in workers:
            if worker.stdout.readline() != b"ready\n":
                raise SystemExit("a worker did not start")
        plan_of_client = json.dumps(
            {"nodes": nodes, "services": services, "window": asked.window * len(servers)}
        )
        command = [sys.executable, __file__, "--client", plan_of_client]
        clients = [stack.enter_context(child(command)) for _ in range(asked.clients)]
        yield Stand(servers, clients, workers)


def be_worker(plan: dict) -> int:
    """Echo until SIGTERM; say when the node has it on its list."""

    async def echo(request: Request) -> tuple[bytes, ...]:
        return request.frames

    asyncio.run(AsyncWorker(plan["nodes"], plan["service"], echo, credit=CREDIT, hooks=Told()).run())
    return 0


class Told(WorkerHooks):
    """Says when a worker is registered."""

    def registered(self, worker: Worker, endpoint: str) -> None:
        """A node has it on its list."""
        print("ready", flush=True)


def be_client(plan: dict) -> int:
    """Read how many seconds, call all services in turn for so long, tell how many were answered; again."""
    with HAClient(plan["nodes"], timeout=TIMEOUT_S) as client:
        for line in sys.stdin:
            asks = asks_for(plan["services"], time.monotonic() + float(line))
            replies = client.map(plan["services"][0], asks, window=plan["window"], ordered=False)
            print(sum(1 for _ in replies), flush=True)
    return 0


def asks_for(services: list[str], until: float) -> Iterator[Ask]:
    """The services in turn, until then."""
    for service in cycle(services):
        if time.monotonic() >= until:
            return
        yield Ask((BODY, b""), service=service)


if __name__ == "__main__":
    sys.exit(main())
