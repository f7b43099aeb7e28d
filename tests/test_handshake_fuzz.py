"""Garbage for ZAP and for the handshake: the one always answers by its rule, the other admits nobody."""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from zmq.utils import z85

from bstar.security import Principal, Principals, new_key
from bstar.security.principals import Patterns
from bstar.security.zap import CLIENTS, CURVE, PEERS, VERSION, Doorkeeper
from bstar_testing import Node, Pair, wait_until
from fuzz.fuzz_handshake import LIMIT_S, Mutator, attack, record

RUNS = 500
KEY = new_key("shop")
LISTED = z85.decode(KEY.public)
words = st.sampled_from(
    [VERSION, b"2.0", CLIENTS, PEERS, CURVE, b"NULL", b"PLAIN", b"", b"10.0.0.1", LISTED, bytes(32)]
)
requests = st.builds(
    lambda head, domain, address, mechanism, credentials: [
        *head,
        domain,
        address,
        b"",
        mechanism,
        *credentials,
    ],
    st.tuples(st.just(VERSION), st.binary(max_size=5)),
    words,
    st.binary(max_size=100),
    words,
    st.lists(st.just(LISTED) | st.binary(max_size=40) | st.binary(min_size=32, max_size=32), max_size=3),
)


@given(requests | st.lists(words | st.binary(max_size=300), max_size=12))
@example([VERSION, b"1", CLIENTS, b"\xff" * 300, b"", CURVE, LISTED])
def test_zap_answers_whatever_it_is_asked_by_its_rule_and_counts_it(frames: list[bytes]) -> None:
    shop = Principal("shop", (KEY.public.decode(),), calls=Patterns(["*"]))
    told: list[tuple[str, str, str]] = []
    door = Doorkeeper(
        Principals([shop]), lambda raw: z85.encode(raw).decode(), lambda *what: told.append(what)
    )
    reply = door.answer(list(frames))
    assert door.admitted.total() + door.refusals.total() == 1
    assert len(told) == door.refusals.total()
    if len(frames) < 6 or frames[0] != VERSION:
        assert reply is None, "libzmq gives the handshake up"
        return
    assert reply is not None
    version, request_id, status, text, user_id, metadata = reply
    assert (version, request_id, metadata) == (VERSION, frames[1], b"")
    may_enter = frames[2] == CLIENTS and frames[5:] == [CURVE, LISTED]
    assert (status, bool(user_id)) == ((b"200", True) if may_enter else (b"300", False))
    assert text


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("fuzzed"), is_secure=True) as made:
        made.start()
        made.start_workers(1, "echo", service="echo")
        yield made
        assert not made.odd_ends


def admitted(node: Node) -> int:
    with urllib.request.urlopen(node.http_url + "/metrics", timeout=LIMIT_S) as response:
        lines = response.read().decode().splitlines()
    return int(
        float(next(line for line in lines if line.startswith("bstar_connections_admitted_total")).split()[1])
    )


def descriptors(node: Node) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def resident_bytes(node: Node) -> int:
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * 4_096


@pytest.mark.loopback
def test_a_node_survives_broken_handshakes_and_admits_none(pair: Pair) -> None:
    assert pair.keys is not None
    node, client, security = pair.active(), pair.client(), pair.keys.security("client")
    assert client.request("echo", b"1", timeout=LIMIT_S).frames == (b"1",)
    parts = record(node.endpoint, security, security.servers[pair.nodes.index(node)])
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    mutator = Mutator(parts, seed)
    attack(node.endpoint, mutator, 100)  # what libzmq and malloc keep from then on
    before, open_before, size_before = admitted(node), descriptors(node), resident_bytes(node)
    assert attack(node.endpoint, mutator, RUNS) == RUNS, "the node has ended each of them"
    assert client.request("echo", b"2", timeout=LIMIT_S).frames == (b"2",)
    assert admitted(node) == before, f"nobody is admitted by a handshake of another (seed {seed})"
    wait_until(lambda: descriptors(node) <= open_before + 5, "the descriptors come back")
    assert resident_bytes(node) < size_before + 16 * 2**20, "and the memory"
    assert pair.client().request("echo", b"3", timeout=LIMIT_S).frames == (b"3",), "new clients come in"
