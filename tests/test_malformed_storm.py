"""A storm of bad messages against a live broker: it serves on, and what it remembers is bounded.

100,000 messages from several peers: random bytes, valid messages of every dialect cut short, valid messages
with frames flipped, lost, doubled, swapped or blown up, and a few entirely valid ones that build up the state
which the others then meet. A run is repeated by its seed, which is printed:

    STORM_SEED=12345 pytest -m storm tests/test_malformed_storm.py -s

STORM_MESSAGES sets another length.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.brokers import Profile, Timing, lone_broker
from support.rawpeers import EMPTY, Peer, Peers, ZmtpPeer

pytestmark = [pytest.mark.loopback, pytest.mark.storm]

Frames = list[bytes]

MESSAGES = int(os.environ.get("STORM_MESSAGES", "100000"))
SEED = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(2**32))

# What the broker may hold at most is small, so that growth beyond it shows.
PROFILE = Profile(
    Timing(request_ttl_s=3.0, service_ttl_s=2.5),
    limits={
        "services_max": 200,
        "workers_max": 100,
        "queue_length_max": 200,
        "queue_bytes_max": 4_000_000,
        "requests_per_client_max": 500,
        "message_bytes_max": 100_000,
        "partials_buffer_bytes_max": 100_000,
    },
)
GROWTH_MAX_BYTES = 48 * 1024 * 1024


class Storm:
    """Makes messages. The same seed makes the same ones in the same order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.services = [b"storm-%d" % number for number in range(20)]
        self.addresses = [b"storm peer %d" % number for number in range(6)]

    def message(self) -> Frames:
        """Return the next message. It has at least one frame."""
        chance = self.random.random()
        if chance < 0.15:
            return self.noise()
        frames = self.valid()
        if chance < 0.35:
            return self.cut(frames)
        if chance < 0.90:
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                frames = self.mutate(frames)
        return frames

    def octets(self, size_max: int) -> bytes:
        return self.random.randbytes(self.random.randint(0, size_max))

    def noise(self) -> Frames:
        return [self.octets(64) for _ in range(self.random.randint(1, 8))]

    def valid(self) -> Frames:
        make: Callable[[], Frames] = self.random.choice(
            (self.client01, self.client02, self.worker01, self.worker02, self.native)
        )
        return make()

    def body(self) -> Frames:
        return [self.octets(100) for _ in range(self.random.randint(1, 3))]

    def service(self) -> bytes:
        if self.random.random() < 0.1:
            return self.random.choice(
                (b"mmi.service", b"mmi.state", b"mmi.workers", b"mmi.descriptions", b"mmi.services", b"mmi.x")
            )
        return self.random.choice(self.services)

    def address(self) -> bytes:
        return self.random.choice(self.addresses)

    def client01(self) -> Frames:
        return [b"", b"MDPC01", self.service(), *self.body()]

    def client02(self) -> Frames:
        return [b"MDPC02", b"\x01", self.service(), *self.body()]

    def worker01(self) -> Frames:
        return [
            b"",
            b"MDPW01",
            *self.random.choice(
                (
                    [b"\x01", self.service()],
                    [b"\x03", self.address(), b"", *self.body()],
                    [b"\x04"],
                    [b"\x05"],
                )
            ),
        ]

    def worker02(self) -> Frames:
        return [
            b"MDPW02",
            *self.random.choice(
                (
                    [b"\x01", self.service()],
                    [b"\x03", self.address(), b"", *self.body()],
                    [b"\x04", self.address(), b"", *self.body()],
                    [b"\x05"],
                    [b"\x06"],
                )
            ),
        ]

    def native(self) -> Frames:
        """The native dialect's header: magic, command, flags, identity, epoch, value, service, extensions."""
        service = self.service()
        header = struct.pack(
            "!2sBB24sQIB",
            b"\xb5\x01",
            self.random.randint(0, 16),
            self.random.choice((0, 0, 0, 1, 2, 255)),
            self.address().ljust(16, b".") + struct.pack("!Q", self.random.randint(0, 50)),
            self.random.choice((0, 1, 1, 1, 2**63, 2**64 - 1)),
            # A time to live, a credit or an index. Flipped bits make the large ones.
            self.random.choice((0, 1, 10, 1000)),
            len(service),
        )
        extensions = self.octets(20) if self.random.random() < 0.2 else b""
        return [header + service + extensions, *(self.body() if self.random.random() < 0.8 else [])]

    def cut(self, frames: Frames) -> Frames:
        """Lose frames at the end, or bytes at the end of the last frame left."""
        kept = frames[: self.random.randint(1, len(frames))]
        if self.random.random() < 0.5:
            kept[-1] = kept[-1][: self.random.randint(0, len(kept[-1]))]
        return kept

    def mutate(self, frames: Frames) -> Frames:
        """Change one thing about a message."""
        frames = list(frames)
        at = self.random.randrange(len(frames))
        match self.random.randrange(9):
            case 0 if frames[at]:
                octets = bytearray(frames[at])
                octets[self.random.randrange(len(octets))] ^= 1 << self.random.randrange(8)
                frames[at] = bytes(octets)
            case 1 if len(frames) > 1:
                del frames[at]
            case 2:
                frames.insert(at, frames[at])
            case 3:
                other = self.random.randrange(len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            case 4:
                frames[at] = b""
            case 5:
                frames[at] = self.octets(300)
            case 6:
                frames.insert(at, b"")
            case 7:
                frames[at] += self.octets(8)
            case _:
                # Rarely large, or the storm would measure the loopback device.
                frames[at] = bytes(120_000 if self.random.random() < 0.01 else 1_000)
        return frames


def read_up_to_here(peer: Peer, number: int) -> None:
    """Wait until the broker has read everything this peer has sent; throw away what it said meanwhile.

    A message too large ends its connection, and with it goes what was under way: so the question is repeated.
    """
    answer = [EMPTY, b"MDPC01", b"mmi.storm-%d" % number, b"501"]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        peer.send(EMPTY, b"MDPC01", answer[2], b"?")
        repeat_at = time.monotonic() + 1
        while (left := repeat_at - time.monotonic()) > 0:
            if peer.try_recv(left) == answer:
                return
    raise AssertionError(f"the broker no longer reads\n{peer.peers.on_trouble()}")


def is_forgotten(state: dict[str, Any]) -> bool:
    """Whether nothing is left but requests whose own header says that their client waits longer."""
    workers, in_flight, queued = int(state["workers"]), int(state["in_flight"]), int(state["queued"])
    return workers == 0 and in_flight == 0 and queued <= MESSAGES // 1000


def assert_serves_on(peers: Peers) -> None:
    """Serve every dialect on, from a client that asks until it is answered, as clients of MDP must."""
    for client, worker in (
        (peers.client01(), peers.worker02(b"after the storm")),
        (peers.client02(), peers.worker01(b"after the storm")),
    ):
        worker.answer = b"yes"
        until = time.monotonic() + 60
        client.request(b"after the storm", b"still there?")
        while (frames := client.try_recv(0.2)) is None:
            assert time.monotonic() < until, peers.on_trouble()
            client.request(b"after the storm", b"still there?")
        assert frames[-3:] == [b"after the storm", b"yes", b"still there?"]
        worker.disconnect()


@pytest.mark.timeout(180)
@pytest.mark.requirement("MDP1-R-01")
@pytest.mark.requirement("MDP1-R-05")
@pytest.mark.requirement("MDP2-R-04")
def test_a_storm_of_bad_messages_leaves_a_broker_that_serves_and_forgets(tmp_path: Path) -> None:
    print(f"\nSTORM_SEED={SEED} STORM_MESSAGES={MESSAGES}")
    storm = Storm(SEED)
    with lone_broker(tmp_path, PROFILE) as broker, broker.peers() as peers:
        rough = [peers.dealer(identity=address) for address in storm.addresses]
        raw = [peers.zmtp(identity=b"plain %d" % number) for number in range(2)]
        before = broker.rss_bytes()
        for number in range(MESSAGES):
            frames = storm.message()
            if number % 50 == 0:
                throw(peers, raw, storm, frames)
            else:
                rough[number % len(rough)].send(*frames)
            if number % 3_000 == 0:
                for peer in rough:
                    read_up_to_here(peer, number)
                assert broker.is_running, broker.trouble()
            if number == MESSAGES // 5:
                # By now every table and buffer has been filled once; from here on it may not grow.
                before = broker.rss_bytes()
        for peer in rough:
            read_up_to_here(peer, MESSAGES)
        growth = broker.rss_bytes() - before
        assert growth < GROWTH_MAX_BYTES, f"grew by {growth} bytes"

        asker = peers.client01()

        def state() -> dict[str, Any]:
            document: dict[str, Any] = json.loads(asker.mmi(b"mmi.state", EMPTY)[1])["broker"]
            return document

        peers.wait_until(lambda: is_forgotten(state()), "what the storm left is forgotten")
        # The reasons under which drops are counted are words of ours: no storm makes new ones without end.
        assert len(state()["drops"]) < 50
        assert_serves_on(peers)


def throw(peers: Peers, raw: list[ZmtpPeer], storm: Storm, frames: Frames) -> None:
    """Send a message over plain TCP, sometimes with bytes that are no ZMTP; then connect anew."""
    at = storm.random.randrange(len(raw))
    octets = raw[at].message(*frames)
    is_broken = storm.random.random() < 0.3
    with contextlib.suppress(ConnectionError):
        raw[at].send_octets(storm.octets(40) + octets if is_broken else octets)
    if is_broken or storm.random.random() < 0.1:
        raw[at].reset() if storm.random.random() < 0.5 else raw[at].close()
        raw[at] = peers.zmtp(identity=raw[at].identity)
