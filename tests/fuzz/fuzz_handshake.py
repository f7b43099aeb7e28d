"""Fuzz the handshake of a node with keys: broken greetings and CURVE commands on its real socket.

    python tests/fuzz/fuzz_handshake.py --runs 20000 --seed 7      against a pair of its own, on loopback

A listed client shakes hands through a recorder. What it sent is cut, changed, repeated, put in another order
or sent again as it is (26/CURVEZMQ: a cookie and a nonce are good once), or the greeting says another
mechanism or version. None of that may be admitted, and the node must go on serving. A failure prints the
seed that repeats the run.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket as tcp
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zmq

from bstar.security import Security
from bstar.wire import native
from bstar_testing import Pair

GREETING_BYTES = 64
LIMIT_S = 60.0
# Handshakes under way at once.
OPEN_MAX = 50
MECHANISMS = (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"curve", b"", b"\xff" * 20)
# Commands of other mechanisms, and of nobody.
STRAYS = (
    b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0",
    b"\x04\x0b\x05HELLO\1a\1b\0",
    b"\x04\x0b\x05ERROR\x04nope",
    b"\x06\0\0\0\0\xff\xff\xff\xff",
    b"\x06\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\5hello",
    b"\4\0",
    b"\4\1\xff",
)


def record(endpoint: str, security: Security, server_key: bytes) -> list[bytes]:
    """What a listed client sends until it has its first answer: the greeting, and each command or message."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    sent = bytearray()
    with (
        tcp.create_server(("127.0.0.1", 0)) as door,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as client,
    ):
        client.linger = 0
        client.curve_publickey, client.curve_secretkey = security.key.public, security.key.secret
        client.curve_serverkey = server_key
        client.connect(f"tcp://127.0.0.1:{door.getsockname()[1]}")
        client.send_multipart(native.encode_ping())
        ours, _ = door.accept()
        with ours, tcp.create_connection((host, int(port)), LIMIT_S) as theirs:
            back = threading.Thread(target=_pass_on, args=(theirs, ours, bytearray()))
            forth = threading.Thread(target=_pass_on, args=(ours, theirs, sent))
            back.start()
            forth.start()
            assert client.poll(int(LIMIT_S * 1_000)), "the node answers a listed client"
            for side in (ours, theirs):
                side.shutdown(tcp.SHUT_RDWR)
            back.join()
            forth.join()
    return list(_parts(bytes(sent)))


def _pass_on(source: tcp.socket, target: tcp.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while octets := source.recv(65_536):
            seen += octets
            target.sendall(octets)


def _parts(sent: bytes) -> Iterator[bytes]:
    yield sent[:GREETING_BYTES]
    at = GREETING_BYTES
    while at < len(sent):
        is_long = sent[at] & 2
        size = int.from_bytes(sent[at + 1 : at + 9], "big") if is_long else sent[at + 1]
        end = at + (9 if is_long else 2) + size
        yield sent[at:end]
        at = end


class Mutator:
    """Broken handshakes, from one seed and the parts of a good one."""

    def __init__(self, parts: Sequence[bytes], seed: int) -> None:
        assert len(parts) >= 3, "a greeting, HELLO and INITIATE"
        self._parts = parts
        self._random = random.Random(seed)

    def next(self) -> list[bytes]:
        """What one stranger sends, in pieces."""
        draw = self._random
        parts = list(self._parts)
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
            draw.choice(self._STEPS)(self, parts)
        octets = b"".join(parts)
        cuts = sorted(draw.randrange(len(octets) + 1) for _ in range(draw.choice((0, 0, 1, 5))))
        return [octets[a:b] for a, b in zip([0, *cuts], [*cuts, len(octets)], strict=True)]

    def _greet(self, parts: list[bytes]) -> None:
        greeting = bytearray(parts[0].ljust(GREETING_BYTES, b"\0"))
        greeting[12:32] = self._random.choice(MECHANISMS).ljust(20, b"\0")
        greeting[10] = self._random.choice((0, 1, 2, 3, 3, 4, 255))
        greeting[32] = self._random.choice((0, 1, 255))
        parts[0] = bytes(greeting) if self._random.random() < 0.8 else self._random.randbytes(GREETING_BYTES)

    def _cut(self, parts: list[bytes]) -> None:
        at = self._random.randrange(len(parts))
        parts[at] = parts[at][: self._random.randrange(len(parts[at]) + 1)]

    def _flip(self, parts: list[bytes]) -> None:
        at = self._random.randrange(len(parts))
        if octets := bytearray(parts[at]):
            octets[self._random.randrange(len(octets))] ^= 1 << self._random.randrange(8)
            parts[at] = bytes(octets)

    def _repeat(self, parts: list[bytes]) -> None:
        at = self._random.randrange(len(parts))
        parts[at:at] = [parts[at]] * self._random.choice((1, 2, 20))

    def _shuffle(self, parts: list[bytes]) -> None:
        commands = parts[1:]
        self._random.shuffle(commands)
        parts[1:] = commands

    def _stray(self, parts: list[bytes]) -> None:
        parts.insert(self._random.randrange(len(parts) + 1), self._random.choice(STRAYS))

    _STEPS: tuple[Callable[[Mutator, list[bytes]], None], ...] = (
        _greet, _cut, _flip, _flip, _repeat, _shuffle, _stray,
    )  # fmt: skip


def attack(endpoint: str, mutator: Mutator, runs: int) -> int:
    """So many strangers send what the mutator says, and read what comes. How many the node hung up on.

    They come from several addresses, so that none is held off.
    """
    port = int(endpoint.rpartition(":")[2])
    strangers: list[tcp.socket] = []
    ended = 0
    for number in range(runs):
        source = f"127.0.2.{1 + number % 100}"
        stranger = tcp.create_connection(("127.0.0.1", port), LIMIT_S, (source, 0))
        strangers.append(stranger)
        with contextlib.suppress(OSError):
            for piece in mutator.next():
                stranger.sendall(piece)
        if len(strangers) >= OPEN_MAX:
            ended += _end(strangers.pop(0))
    return ended + sum(map(_end, strangers))


def _end(stranger: tcp.socket) -> bool:
    """True if the node has ended this connection, or does so once nothing more comes."""
    with stranger:
        try:
            stranger.shutdown(tcp.SHUT_WR)
            while stranger.recv(65_536):
                pass
        except TimeoutError:
            return False
        except OSError:  # it was reset
            return True
        return True


def main(arguments: Sequence[str]) -> None:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Fuzz the handshake of a node with keys.")
    parser.add_argument("--runs", type=int, default=20_000, help="handshakes to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new one, printed)")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, Pair(Path(folder), is_secure=True) as pair:
        pair.start()
        pair.start_workers(1, "echo", service="echo")
        assert pair.keys is not None
        security, node = pair.keys.security("client"), pair.active()
        server_key = security.servers[pair.nodes.index(node)]
        mutator = Mutator(record(node.endpoint, security, server_key), seed)
        ended = 0
        for done in range(0, options.runs, 500):
            ended += attack(node.endpoint, mutator, min(500, options.runs - done))
            with pair.client() as client:
                assert client.request("echo", b"x", timeout=LIMIT_S).frames == (b"x",)
        print(f"{options.runs} handshakes, seed {seed}: the node ended {ended} of them and serves")


if __name__ == "__main__":
    main(sys.argv[1:])
