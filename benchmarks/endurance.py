"""Does memory grow, and do thousands of idle peers hold a broker up? Curves, not verdicts of a second.

    python benchmarks/endurance.py requests     RSS over 2 million requests of HAClient.map; 1 minute
    python benchmarks/endurance.py clients      RSS over 10,000 clients that come, ask and leave; 20 seconds
    python benchmarks/endurance.py idle         5,000 workers and 5,000 clients at once, 60 seconds; 2 minutes

A broker as ``bstar serve`` runs it, on loopback. RSS is the kernel's VmRSS, in MiB; "grown" compares the
median of the last quarter with that of the first, of which the first tenth is left out: by then tables and
allocator have their size. ``idle`` takes the profile ``guide``: a worker's heartbeat each way every 2.5 s
and, as every client waits for a reply, a PING and a PONG twice a second, 24,000 messages per second together.
``--resting``: the clients have nothing outstanding, and ask once in 5 s. ``--profile lan``: heartbeats are
ten times as frequent, PINGs seven times.

Status 0: flat within 5 %; ``idle``: nobody was dropped and the loop's lag p99 is below 100 ms; 1: not so.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import zmq

from bstar.net.sockets import receive, send
from bstar.settings import ProfileName
from bstar.settings.timing import PROFILES, timing_of
from bstar.wire import native
from bstar_broker.core.snapshot import NodeState
from bstar_cli.bench.plan import EchoPlan
from bstar_client import HAClient, node_states
from bstar_client.core.nodes import IDLE_PING_INTERVAL_S, PINGS_PER_SILENCE
from run import bstar_server, child, cpu_seconds

HERE = Path(__file__).parent
GROWTH_MAX = 0.05
LAG_P99_S_MAX = 0.1
# Ten thousand peers have just come, and the machine may have other things to do.
LOOK_S_MAX = 60.0
SERVICE = "echo"


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    requests_verb = verbs.add_parser("requests")
    requests_verb.add_argument("--millions", type=float, default=2.0)
    requests_verb.add_argument("--window", type=int, default=1000)
    clients_verb = verbs.add_parser("clients")
    clients_verb.add_argument("--count", type=int, default=10_000)
    idle_verb = verbs.add_parser("idle")
    idle_verb.add_argument("--workers", type=int, default=5_000)
    idle_verb.add_argument("--clients", type=int, default=5_000)
    idle_verb.add_argument("--seconds", type=float, default=60.0)
    idle_verb.add_argument("--profile", choices=sorted(PROFILES), default="guide")
    idle_verb.add_argument("--resting", action="store_true", help="clients without outstanding requests")
    asked = parser.parse_args()
    if asked.verb == "requests":
        return requests(int(min(asked.millions, 1_000.0) * 1e6), asked.window)
    if asked.verb == "clients":
        return clients(min(asked.count, 1_000_000))
    worker_s, client_s = intervals_of(asked.profile, is_resting=asked.resting)
    return idle(
        {"workers": (min(asked.workers, 9_000), worker_s), "clients": (min(asked.clients, 9_000), client_s)},
        min(asked.seconds, 3600.0),
        asked.profile,
    )


def requests(total: int, window: int) -> int:
    """RSS of broker, worker and client while requests pass."""
    with ExitStack() as stack:
        pid, endpoint = stack.enter_context(bstar_server())
        worker = stack.enter_context(echo_worker(endpoint))
        client = stack.enter_context(HAClient([endpoint]))
        pids = {"broker": pid, "worker": worker.pid, "client": os.getpid()}
        curves: dict[str, list[float]] = {name: [] for name in pids}
        print(f"{'requests':>12} {'per second':>12} {'CPU µs/req':>12}" + _headings(pids), flush=True)
        step = max(1, total // 20)
        for done in range(step, total + 1, step):
            began_at, cpu_before = time.monotonic(), cpu_seconds(pid)
            replies = client.map(SERVICE, itertools.repeat(b"x" * 16, step), window=window, ordered=False)
            assert sum(1 for _ in replies) == step
            rate = step / (time.monotonic() - began_at)
            cpu_us = (cpu_seconds(pid) - cpu_before) / step * 1e6
            for name, each in pids.items():
                curves[name].append(rss_mib(each))
            print(f"{done:>12,} {rate:>12,.0f} {cpu_us:>12.1f}" + _cells(curves), flush=True)
    return _judge(curves)


def clients(total: int) -> int:
    """RSS of the broker while clients come and leave, native and MDP/0.2 in turn."""
    with ExitStack() as stack:
        pid, endpoint = stack.enter_context(bstar_server())
        stack.enter_context(echo_worker(endpoint))
        with HAClient([endpoint]) as client:
            # A plain client's first request to a node that is not active yet would be dropped.
            client.request(SERVICE, b"active?")
        curves: dict[str, list[float]] = {"broker": []}
        print(f"{'clients':>12} {'per second':>12}" + _headings(curves), flush=True)
        context = zmq.Context()
        at_once, step = 20, max(20, total // 20)
        began_at, reported = time.monotonic(), 0
        for done in range(at_once, total + 1, at_once):
            _visit(context, endpoint, at_once)
            if done - reported >= step:
                curves["broker"].append(rss_mib(pid))
                rate = (done - reported) / (time.monotonic() - began_at)
                print(f"{done:>12,} {rate:>12,.0f}" + _cells(curves), flush=True)
                began_at, reported = time.monotonic(), done
        context.destroy(linger=0)
        state = look(endpoint)
        print(f"requests still here: {state.broker.in_flight + state.broker.queued}; {state.broker.drops}")
    return _judge(curves)


def _visit(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, count: int) -> None:
    """So many clients at once: connect, ask, take the reply, leave."""
    sockets = []
    for number in range(count):
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(endpoint)
        if number % 2:
            send(socket, native.encode_request(native.identity(os.urandom(16), 1), SERVICE.encode(), [b"x"]))
        else:
            send(socket, [b"MDPC02", b"\x01", SERVICE.encode(), b"x"])
        sockets.append(socket)
    for socket in sockets:
        if not socket.poll(10_000):
            raise SystemExit("a client was not answered within 10 s")
        receive(socket)
        socket.close()


def intervals_of(profile: ProfileName, *, is_resting: bool) -> tuple[float, float]:
    """How often our worker sends HEARTBEAT and our client PING to each node, in seconds."""
    timing = timing_of(profile)
    pinging_s = min(timing.heartbeat_interval_s, timing.failover_timeout_s / PINGS_PER_SILENCE)
    return timing.worker_heartbeat_interval_s, IDLE_PING_INTERVAL_S if is_resting else pinging_s


def idle(crowd_of: dict[str, tuple[int, float]], seconds: float, profile: ProfileName) -> int:
    """Lag, CPU and who is still there, while peers heartbeat: so many of a kind, so often each."""
    workers = crowd_of["workers"][0]
    rate = sum(2 * count / interval_s for count, interval_s in crowd_of.values())
    print(f"profile {profile}: {rate:,.0f} messages per second to and from the broker", flush=True)
    with ExitStack() as stack:
        pid, endpoint = stack.enter_context(bstar_server(profile))
        stack.enter_context(echo_worker(endpoint))
        client = stack.enter_context(HAClient([endpoint]))
        client.request(SERVICE, b"active?")
        crowds = []
        for kind, (count, interval_s) in crowd_of.items():
            command = [sys.executable, str(HERE / "crowd.py"), endpoint, kind, str(count), str(interval_s)]
            crowd = stack.enter_context(child([*command, *(["idle"] if kind == "workers" else [])]))
            assert crowd.stdout is not None
            if crowd.stdout.readline() != b"ready\n":
                raise SystemExit(f"the {kind} did not come")
            crowds.append((kind, crowd))
        print(
            f"{'s':>6} {'workers':>8} {'lag p50':>9} {'lag p99':>9} {'lag max':>9} {'CPU':>7} "
            f"{'call p50':>9} {'call max':>9} {'RSS MiB':>8}",
            flush=True,
        )
        began_at = time.monotonic()
        first = before = look(endpoint)
        cpu_before, at_before = cpu_seconds(pid), began_at
        is_whole = True
        while time.monotonic() - began_at < seconds:
            calls = list(_calls(client, min(5.0, seconds)))
            now = time.monotonic()
            state, cpu = look(endpoint), cpu_seconds(pid)
            is_whole &= state.broker.workers == workers + 1
            print(
                f"{now - began_at:>6.0f} {state.broker.workers:>8,} {_lag(before, state, 0.5):>9} "
                f"{_lag(before, state, 0.99):>9} {_lag(before, state, 1.0):>9} "
                f"{(cpu - cpu_before) / (now - at_before):>7.0%} {statistics.median(calls) * 1e3:>6.1f} ms "
                f"{max(calls) * 1e3:>6.1f} ms {rss_mib(pid):>8.1f}",
                flush=True,
            )
            before, cpu_before, at_before = state, cpu, now
        p99_s = lag_of(first, before, 0.99)
        dropped = 0
        for kind, crowd in crowds:
            assert crowd.stdin is not None
            assert crowd.stdout is not None
            crowd.stdin.close()
            told = json.loads(crowd.stdout.readline())
            dropped += told["dropped"]
            print(f"{kind}: {told}", flush=True)
    print(f"loop lag p99 over all: below {p99_s * 1e3:g} ms; dropped: {dropped}")
    return 0 if is_whole and not dropped and p99_s <= LAG_P99_S_MAX else 1


def _calls(client: HAClient, seconds: float) -> Iterator[float]:
    """Seconds of each of some twenty calls per second, at no fixed distance: nothing may fall into step."""
    until = time.monotonic() + seconds
    while (began_at := time.monotonic()) < until:
        client.request(SERVICE, b"x")
        yield time.monotonic() - began_at
        time.sleep(random.uniform(0.02, 0.08))


def lag_of(before: NodeState, after: NodeState, share: float) -> float:
    """The bucket's bound that this share of the deadlines between two looks was not later than, seconds."""
    assert before.loop is not None
    assert after.loop is not None
    counts = [b - a for a, b in zip(before.loop.lag_counts, after.loop.lag_counts, strict=True)]
    wanted, seen = share * sum(counts), 0
    for bound, count in zip([*after.loop.lag_bounds_s, float("inf")], counts, strict=True):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")


def _lag(before: NodeState, after: NodeState, share: float) -> str:
    return f"≤{lag_of(before, after, share) * 1e3:g} ms"


def look(endpoint: str) -> NodeState:
    """The node's state. SystemExit if it does not tell it within a minute."""
    [report] = node_states([endpoint], LOOK_S_MAX)
    if report.state is None:
        raise SystemExit(f"{endpoint}: {report.error}")
    return msgspec.convert(report.state, NodeState)


@contextmanager
def echo_worker(endpoint: str) -> "Iterator[subprocess.Popen[bytes]]":
    """One of our workers in a process of its own, registered."""
    plan = msgspec.json.encode(EchoPlan([endpoint], SERVICE, "native", "sync", 1000)).decode()
    with child([sys.executable, "-m", "bstar_cli.bench.echo", plan]) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the worker did not start")
        yield process


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no memory: it is gone")


def growth_of(curve: list[float]) -> float:
    """How much the median of the last quarter lies above that of the first, whose first tenth is left out.

    Single values go up and down with what is in flight at that moment.
    """
    tenth, quarter = len(curve) // 10, max(1, len(curve) // 4)
    return statistics.median(curve[-quarter:]) / statistics.median(curve[tenth : tenth + quarter]) - 1


def _headings(names: Iterable[str]) -> str:
    return "".join(f"{f'{name} MiB':>14}" for name in names)


def _cells(curves: dict[str, list[float]]) -> str:
    return "".join(f"{curve[-1]:>14.1f}" for curve in curves.values())


def _judge(curves: dict[str, list[float]]) -> int:
    for name, curve in curves.items():
        print(f"{name}: grown by {growth_of(curve):.1%}; highest {max(curve):.1f} MiB")
    return 0 if all(growth_of(curve) <= GROWTH_MAX for curve in curves.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
