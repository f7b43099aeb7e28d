"""A pair with keys, and those who want too much of it: listed keys beyond their bounds, and strangers."""

from __future__ import annotations

import contextlib
import http
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from bstar.net.handshakes import NETWORK_BURST
from bstar.wire import native
from bstar_client import HAClient
from bstar_testing import Node, Pair, wait_until
from bstar_testing.strangers import KINDS, Flood

pytestmark = pytest.mark.loopback

REPLY_S = 60.0
BOUNDS = {"few": "connections: 2", "busy": "messages_per_s: 50", "slow": "outstanding: 3"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("bounds"), is_secure=True) as made:
        assert made.keys is not None
        for name, bounds in BOUNDS.items():
            made.keys.add(name, "calls:*", bounds=bounds)
        made.start()
        made.start_workers(1, "echo", service="echo")
        yield made
        assert not made.odd_ends


def metric(node: Node, name: str, **labels: str) -> float:
    pages: list[str] = []

    def is_answered() -> bool:
        try:
            with urllib.request.urlopen(node.http_url + "/metrics", timeout=REPLY_S) as response:
                pages.append(response.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise
        return bool(pages)

    wait_until(is_answered, "the loop has time for a page of metrics")
    [text] = pages
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    found = [sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)]
    return found[0] if found else 0.0


@contextlib.contextmanager
def dealer(pair: Pair, name: str, node: Node) -> Iterator[zmq.Socket[bytes]]:
    assert pair.keys is not None
    security = pair.keys.security(name)
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.linger, bare.reconnect_ivl = 0, 100
        bare.curve_publickey, bare.curve_secretkey = security.key.public, security.key.secret
        bare.curve_serverkey = security.servers[pair.nodes.index(node)]
        bare.connect(node.endpoint)
        yield bare


def answers(bare: zmq.Socket[bytes], limit_s: float = REPLY_S) -> bool:
    """True if the node answers a PING within this time."""
    bare.send_multipart(native.encode_ping())
    if not bare.poll(int(limit_s * 1_000)):
        return False
    bare.recv_multipart()
    return True


def test_a_principal_has_as_many_connections_as_its_entry_says(pair: Pair) -> None:
    node = pair.active()
    with dealer(pair, "few", node) as first:
        assert answers(first)
        with dealer(pair, "few", node) as second:
            assert answers(second)
            with dealer(pair, "few", node) as third:
                third.send_multipart(native.encode_ping())
                wait_until(
                    lambda: (
                        metric(node, "bstar_connections_refused_total", reason="too-many-connections") > 0
                    ),
                    "ZAP refuses the third connection",
                )
                assert answers(first)
                second.close()
                assert third.poll(int(REPLY_S * 1_000)), "it comes in once another one has ended"
    assert pair.client().request("echo", b"x", timeout=REPLY_S).frames == (b"x",)


def test_a_principal_that_sends_too_many_messages_is_cut_off_and_others_are_not(pair: Pair) -> None:
    node = pair.active()
    with dealer(pair, "busy", node) as bare:
        assert answers(bare)
        before = metric(node, "bstar_connections_hung_up_total")
        bare.sndtimeo = int(REPLY_S * 1_000)

        def is_cut_off() -> bool:
            for _ in range(100):
                bare.send_multipart(native.encode_ping())
            return metric(node, "bstar_connections_hung_up_total") > before

        wait_until(is_cut_off, "the node has ended its connection")
        assert metric(node, "bstar_drops_total", reason="too-many-messages") >= 1
    assert pair.client().request("echo", b"x", timeout=REPLY_S).frames == (b"x",)


def test_a_client_with_few_requests_outstanding_gets_all_of_its_many(pair: Pair) -> None:
    assert pair.keys is not None
    with HAClient(pair.endpoints, security=pair.keys.security("slow")) as client:
        bodies = [b"%d" % number for number in range(200)]
        replies = client.map("echo", bodies, window=50, timeout=REPLY_S)
        assert sorted(reply.frames[0] for reply in replies) == sorted(bodies)
    assert metric(pair.active(), "bstar_drops_total", reason="outstanding") > 0


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_authenticated_calls_succeed_while_strangers_flood(pair: Pair, kind: str) -> None:
    """From an address of their own, which the node holds off once it has used its budget up."""
    node = pair.active()
    source = f"127.0.1.{2 + sorted(KINDS).index(kind)}"
    port = int(node.endpoint.rpartition(":")[2])
    dropped = metric(node, "bstar_connection_attempts_dropped_total")
    flood = Flood(port, KINDS[kind], source=source)
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            flood.open(1_000 - len(flood))
            flood.turn(stay_s=REPLY_S)
        flood.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        client = pair.client()

        def is_held_off() -> bool:
            assert client.request("echo", b"x", timeout=REPLY_S).frames == (b"x",)
            return metric(node, "bstar_connection_attempts_dropped_total") > dropped

        wait_until(is_held_off, "the kernel drops what comes from there")
        # What the kernel dropped may have come from the address of the flood before.
        wait_until(lambda: source in node.log(), "the node says whom it holds off")
        # Clients of other addresses come in meanwhile.
        for number in range(20):
            with HAClient(pair.endpoints, security=pair.keys.security("client")) as other:  # type: ignore[union-attr]
                assert other.request("echo", b"%d" % number, timeout=REPLY_S).frames == (b"%d" % number,)
    finally:
        is_over.set()
        thread.join()
    assert flood.attempts > NETWORK_BURST
    wait_until(lambda: metric(node, "bstar_networks_held_off") == 0, "they may come in again")
    settled = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
    assert settled < 300, "the strangers' descriptors have come back"
