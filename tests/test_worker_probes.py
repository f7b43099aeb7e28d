"""Health, readiness and metrics of workers, clients and arbiters: what each says, and when it says no."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from bstar.errors import ConfigurationError
from bstar.net.http_endpoint import HttpPlace
from bstar.pair.arbiter import ArbiterServer
from bstar_cli import exits
from bstar_cli.main import main
from bstar_client import AsyncWorker, HAClient, HandlerError, Request, Worker, WorkerHooks, metrics
from bstar_client.core.counters import ENDS
from bstar_client.core.events import Connected, FailedOver
from bstar_client.core.figures import ClientFigures
from bstar_client.core.worker.handler_times import BOUNDS_S, HandlerTimes
from bstar_testing import wait_until
from support.brokers import Broker
from support.waiting import LIMIT_S

ANYWHERE = "127.0.0.1:0"
NOWHERE = "tcp://127.0.0.1:1"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def probe(worker: Worker | AsyncWorker, path: str) -> tuple[int, dict[str, Any]]:
    code, body = get(f"{worker.http_url}{path}")
    return code, json.loads(body)


def series(families: Iterable[Metric]) -> dict[tuple[str, frozenset[str]], float]:
    """Each series by its name and the values of its labels that are not empty."""
    return {
        (sample.name, frozenset(filter(None, sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, *values: str) -> tuple[str, frozenset[str]]:
    return name, frozenset(values)


def echo(request: Request) -> bytes:
    return request.body


class Served(WorkerHooks):
    def __init__(self) -> None:
        self.registered_at_a_node = threading.Event()
        self.is_stuck = threading.Event()

    def registered(self, worker: Any, endpoint: str) -> None:
        self.registered_at_a_node.set()

    def handler_stuck(self, worker: Any, identity: bytes) -> None:
        self.is_stuck.set()


class FakeClient:
    """A client as the metrics see it."""

    def __init__(self) -> None:
        self.observers: list[Any] = []

    def figures(self) -> ClientFigures:
        counters = dict.fromkeys((*ENDS, *metrics.CLIENT_EVENTS), 0)
        return ClientFigures(counters | {"requests": 7, "replies": 5}, 2, {"bstar": True})

    def observe(self, observer: Any) -> None:
        self.observers.append(observer)


def shown(registry: CollectorRegistry) -> dict[tuple[str, frozenset[str]], float]:
    return series(registry.collect())


# --- without sockets --------------------------------------------------------------------------------------


def test_a_handler_is_counted_in_the_bucket_that_holds_its_time() -> None:
    times = HandlerTimes()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[-1] + 1):
        times.add(seconds)
    assert (times.counts[0], times.counts[-1], sum(times.counts)) == (2, 1, 3)
    assert times.sum_s == pytest.approx(BOUNDS_S[0] + BOUNDS_S[-1] + 1)


def test_a_registered_client_shows_calls_and_outages() -> None:
    client, registry = FakeClient(), CollectorRegistry()
    metrics.register(client, name="checkout", registry=registry)
    client.observers[0](FailedOver("a", "b", "silent", 2, 1, 0.3))
    client.observers[0](Connected("a"))
    found = shown(registry)
    assert found[key("bstar_client_requests_total", "checkout")] == 7
    assert found[key("bstar_client_in_flight", "checkout")] == 2
    assert found[key("bstar_client_following", "checkout", "bstar")] == 1
    assert found[key("bstar_client_outage_seconds_count", "checkout")] == 1
    assert found[key("bstar_client_outage_seconds_sum", "checkout")] == pytest.approx(0.3)


def test_each_metric_is_told_once_for_all_clients_of_a_registry() -> None:
    clients, registry = [FakeClient(), FakeClient()], CollectorRegistry()
    for name, client in zip("ab", clients, strict=True):
        metrics.register(client, name=name, registry=registry)
    names = [family.name for family in registry.collect()]
    assert len(names) == len(set(names))


def test_two_clients_of_a_registry_need_two_names() -> None:
    client, registry = FakeClient(), CollectorRegistry()
    metrics.register(client, registry=registry)
    with pytest.raises(ConfigurationError, match="give it another name"):
        metrics.register(FakeClient(), registry=registry)
    metrics.register(client, registry=CollectorRegistry())


def test_a_client_that_is_gone_is_not_shown_and_leaves_its_name() -> None:
    registry = CollectorRegistry()
    metrics.register(FakeClient(), registry=registry)
    assert shown(registry) == {}
    living = FakeClient()
    metrics.register(living, registry=registry)
    assert shown(registry)


@pytest.mark.parametrize(
    ("place", "why"), [("0.0.0.0:9411", "others can reach"), ("here", "is not ADDRESS:PORT")]
)
def test_a_place_that_cannot_work_is_a_configuration_error(place: str | HttpPlace, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Worker(NOWHERE, "echo", echo, http=place)


def test_a_place_for_everybody_needs_a_word() -> None:
    assert HttpPlace.of(HttpPlace(bind="0.0.0.0:9411", allow_remote=True)).bind == "0.0.0.0:9411"


# --- workers ----------------------------------------------------------------------------------------------


@pytest.mark.loopback
def test_a_worker_without_a_node_is_healthy_and_not_ready() -> None:
    with Worker(NOWHERE, "echo", echo, http=ANYWHERE) as worker:
        assert probe(worker, "/healthz")[0] == 200
        code, body = probe(worker, "/readyz")
    assert (code, body["why"]) == (503, "no node has registered this worker of echo")


@pytest.mark.loopback
def test_a_registered_worker_is_ready_and_counts_what_it_does(broker: Broker, service: bytes) -> None:
    hooks = Served()
    with (
        Worker(broker.endpoint, service, echo, http=ANYWHERE, hooks=hooks) as worker,
        HAClient(broker.endpoint, timeout=LIMIT_S) as client,
    ):
        assert hooks.registered_at_a_node.wait(LIMIT_S)
        assert probe(worker, "/readyz")[1]["nodes"] == [broker.endpoint]
        for _ in range(3):
            client.request(service, b"x")
        found = series(text_string_to_metric_families(get(f"{worker.http_url}/metrics")[1]))
    name = service.decode()
    assert found[key("bstar_worker_requests_total", name, "finished")] == 3
    assert found[key("bstar_worker_handler_seconds_count", name)] == 3
    assert found[key("bstar_worker_registered", name, broker.endpoint)] == 1


@pytest.mark.loopback
def test_a_worker_with_a_stuck_handler_is_not_healthy(broker: Broker, service: bytes) -> None:
    may_end, hooks = threading.Event(), Served()

    def hang(request: Request) -> bytes:
        may_end.wait(LIMIT_S)
        return b""

    with (
        Worker(broker.endpoint, service, hang, http=ANYWHERE, hooks=hooks, handler_timeout_s=0.05) as worker,
        HAClient(broker.endpoint, timeout=LIMIT_S) as client,
    ):
        asking = threading.Thread(target=_ask, args=(client, service))
        asking.start()
        assert hooks.is_stuck.wait(LIMIT_S)
        wait_until(lambda: probe(worker, "/healthz")[0] == 503, "the handler is stuck")
        may_end.set()
        wait_until(lambda: probe(worker, "/healthz")[0] == 200, "the handler has returned")
        asking.join(LIMIT_S)


def _ask(client: HAClient, service: bytes) -> None:
    with pytest.raises(HandlerError, match="did not return"):
        client.request(service, b"x")


@pytest.mark.loopback
def test_a_worker_whose_loop_hangs_is_not_healthy() -> None:
    async def run() -> int:
        async def never(request: Request) -> bytes:
            return b""

        async with AsyncWorker(NOWHERE, "echo", never, http=ANYWHERE) as worker:
            assert (await asyncio.to_thread(probe, worker, "/healthz"))[0] == 200
            codes: list[int] = []
            prober = threading.Thread(target=lambda: codes.append(probe(worker, "/healthz")[0]))
            prober.start()
            # It blocks the loop until the probe has its answer.
            prober.join(LIMIT_S)
            return codes[0]

    assert asyncio.run(run()) == 503


@pytest.mark.loopback
def test_the_pages_end_with_the_worker() -> None:
    with Worker(NOWHERE, "echo", echo, http=ANYWHERE) as worker:
        url = worker.http_url
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/healthz", timeout=LIMIT_S)


@pytest.mark.loopback
def test_without_prometheus_client_the_page_of_metrics_says_what_to_install() -> None:
    program = f"""
import sys; sys.modules["prometheus_client"] = None
import urllib.error, urllib.request
from bstar_client import Worker
with Worker({NOWHERE!r}, "echo", lambda request: b"", http={ANYWHERE!r}) as worker:
    try:
        urllib.request.urlopen(worker.http_url + "/metrics")
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
try:
    import bstar_client.metrics
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("501 ")
    assert done.stdout.count("pip install '.[server]'") == 2


# --- the arbiter and the command --------------------------------------------------------------------------


@pytest.mark.loopback
def test_an_arbiter_serves_its_health_and_its_counters() -> None:
    with ArbiterServer("tcp://127.0.0.1:*") as server:
        url = server.serve_http(HttpPlace(bind=ANYWHERE))
        assert get(f"{url}/healthz")[0] == 503, "its loop does not run yet"
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            assert get(f"{url}/healthz")[0] == 200
            found = series(text_string_to_metric_families(get(f"{url}/metrics")[1]))
            assert get(f"{url}/nowhere")[0] == 404
        finally:
            server.stop()
            thread.join(LIMIT_S)
    assert found[key("bstar_arbiter_questions_total")] == 0


@pytest.mark.parametrize("command", [["worker", "--service", "x"], ["arbiter"]])
def test_an_option_about_http_needs_http(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--http-allow-remote"]) == exits.USAGE
    assert "add --http ADDRESS:PORT" in capsys.readouterr().err
