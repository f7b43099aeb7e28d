"""Fuzz the codecs: a message comes out or RemoteProtocolError, and nothing else, whatever the bytes are.

    python tests/fuzz/fuzz_wire.py --runs 1000000 --seed 7    by a seeded generator of our own; needs nothing
    python tests/fuzz/fuzz_wire.py --coverage [for libFuzzer] guided by coverage; needs the package atheris

Both start from the valid messages in wire_corpus.txt and break them. A failure prints the frames as the
corpus writes them and, from the seeded generator, the command that repeats it. What a codec accepts is
checked as well: the fields keep the bounds that everything behind the codec relies on.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bstar import wire
from bstar.errors import RemoteProtocolError
from bstar.wire import arbiter, batches, emq, emq_jobs, limits, messages, native, native_broker, peer
from bstar.wire.extensions import headers_extensions, headers_of
from bstar.wire.mdp import MDP01, MDP02, WorkerCommand, WorkerVerb

Frames = list[bytes]

CORPUS = Path(__file__).with_name("wire_corpus.txt")

# Bytes that mean something to some codec; a generator that draws evenly would hardly ever meet them.
TOKENS = (
    b"", b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06", b"\x07", b"1", b"4", b"5",
    MDP01.client, MDP01.worker, MDP02.client, MDP02.worker, b"MDPC0X", native.MAGIC, b"\xb5\x02", peer.HEADER,
    arbiter.HEADER, b"BSTA02", emq.VERSION, b"KBYE", b"-1", b"timeout:1",
    b"mmi.service", b"x" * limits.SERVICE_BYTES_MAX, b"x" * (limits.SERVICE_BYTES_MAX + 1),
    b"\xff" * native.HEADER_BYTES, native.MAGIC + b"\xff" * (native.HEADER_BYTES - 2),
    b"{}", b"[" * 4_000, b"\xff\xfe",
)  # fmt: skip


def read_corpus(path: Path = CORPUS) -> dict[str, list[tuple[str, Frames]]]:
    """Who reads it, to its (name, frames)."""
    corpus: dict[str, list[tuple[str, Frames]]] = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        title, _, text = line.partition(": ")
        target, name = title.split()
        frames = [b"" if word == "-" else bytes.fromhex(word.replace(".", "")) for word in text.split()]
        corpus.setdefault(target, []).append((name, frames))
    return corpus


def describe(frames: Frames) -> str:
    """The frames in the corpus's notation."""
    return " ".join(frame.hex() or "-" for frame in frames)


# The targets: decode, and check what was accepted ---------------------------------------------------------


def _fuzz_broker(frames: Frames) -> None:
    asker = native_broker.asker_of(frames)
    assert asker is None or len(asker.identity) == native.IDENTITY_BYTES
    message = wire.decode(frames)
    assert message.sender == frames[0]
    match message:
        case messages.Request():
            assert 0 < len(message.service) <= limits.SERVICE_BYTES_MAX
            assert message.body
            assert message.body == frames[-len(message.body) :]
            assert len(message.identity) == (native.IDENTITY_BYTES if message.dialect == 3 else 0)
            assert len(message.envelope) <= limits.ENVELOPE_FRAMES_MAX + 1
            assert not message.envelope or not message.envelope[-1]
            assert 0 <= message.ttl_ms <= messages.NEVER_MS
        case messages.Ready():
            assert 0 < len(message.service) <= limits.SERVICE_BYTES_MAX
            assert 0 < message.credit <= limits.CREDIT_MAX
        case messages.Partial() | messages.Final():
            assert message.body
            assert message.body == frames[-len(message.body) :]
            if message.header:
                # It is passed on to a client as it is, so a client must be able to read it.
                native.decode([message.header, *message.body])
        case messages.Requests() | messages.Finals():
            assert 0 < len(message.numbers) == len(message.lengths) <= limits.BATCH_ROWS_MAX
            assert sum(message.lengths) == len(message.blob) <= limits.BATCH_BYTES_MAX
            assert len(set(message.numbers)) == len(message.numbers)
            assert max(message.numbers) < batches.KEYED_NUMBER_MIN
            if isinstance(message, messages.Finals):
                native.decode([message.header, message.table, message.blob])
            else:
                assert 0 < len(message.service) <= limits.SERVICE_BYTES_MAX
                assert len(message.ttls_ms) == len(message.numbers)
        case messages.Failure():
            assert len(message.text) <= limits.TEXT_BYTES_MAX
        case _:
            pass


def _fuzz_native(frames: Frames) -> None:
    message = native.decode(frames)
    assert len(message.identity) == native.IDENTITY_BYTES
    if message.command == native.WELCOME:
        welcome = native.decode_welcome(message)
        assert 0 < welcome.heartbeat_ms <= welcome.expiry_ms
    elif message.command in (native.PONG, native.NOT_ACTIVE):
        status = native.decode_status(message)
        assert status.state in range(1, 6)
        assert status.heartbeat_ms
        assert status.failover_timeout_ms
    elif message.command == native.REQUEST:
        read = headers_of(message.extensions)
        assert headers_of(headers_extensions(read)) == read
    elif message.command == native.REQUESTS:
        numbers, ttls_ms, lengths, is_extended = batches.request_rows(message.body, 0)
        bodies = batches.bodies_of(message.body[1], lengths)
        assert len(numbers) == len(ttls_ms) == len(bodies)
        taken = batches.take_extensions(bodies, message.body[0], 0, is_extended=is_extended)
        assert any(taken) <= is_extended
        assert sum(map(len, bodies)) + sum(map(len, taken)) <= len(message.body[1])
    elif message.command == native.FINALS:
        numbers, lengths = batches.final_rows(message.body, 0)
        assert b"".join(batches.bodies_of(message.body[1], lengths)) == message.body[1]


def _fuzz_mdp01_client(frames: Frames) -> None:
    assert MDP01.decode_for_client(frames).body


def _fuzz_mdp02_client(frames: Frames) -> None:
    assert MDP02.decode_for_client(frames).body


def _fuzz_mdp01_worker(frames: Frames) -> None:
    _check_command(MDP01.decode_for_worker(frames))


def _fuzz_mdp02_worker(frames: Frames) -> None:
    _check_command(MDP02.decode_for_worker(frames))


def _check_command(command: WorkerCommand) -> None:
    is_request = command.verb is WorkerVerb.REQUEST
    assert bool(command.client) is is_request
    assert bool(command.body) is is_request


def _fuzz_peer(frames: Frames) -> None:
    message = peer.decode(frames)
    assert message.state in range(1, 5)
    for number in (message.seq, message.epoch, message.asks, message.answers):
        assert number is None or 0 <= number < 2**63


def _fuzz_arbiter(frames: Frames) -> None:
    """What an arbiter reads."""
    question = arbiter.decode_question(frames)
    assert 0 < len(question.pair) <= 64
    assert 0 < len(question.node) <= 64
    assert 0 < question.ttl_ms <= 3_600_000
    assert 0 <= question.number < 2**63


def _fuzz_node(frames: Frames) -> None:
    """What a node reads from its arbiter."""
    answer = arbiter.decode_answer(frames)
    assert 0 <= answer.free_in_ms < 2**32
    assert 0 <= answer.number < 2**63


def _fuzz_emq(frames: Frames) -> None:
    """What any side of EventMQ reads."""
    message = emq.decode(frames)
    assert 0 < len(message.msgid) <= emq.MSGID_BYTES_MAX
    assert emq.decode(emq.encode(message)) == message
    if isinstance(message, emq.Request | emq.Schedule | emq.Unschedule):
        # A name that is no service's is the receiver's to refuse, with a word for its client.
        is_name = 1 <= len(message.queue.encode()) <= limits.SERVICE_BYTES_MAX
        assert (emq.queue_trouble(message.queue) is None) == is_name
        emq_jobs.schedule_id(emq_jobs.decode_job(message.message))
    elif isinstance(message, emq.Inform):
        assert len(message.queues) <= emq.QUEUES_MAX


TARGETS: dict[str, Callable[[Frames], None]] = {
    "broker": _fuzz_broker,
    "native": _fuzz_native,
    "mdp01-client": _fuzz_mdp01_client,
    "mdp01-worker": _fuzz_mdp01_worker,
    "mdp02-client": _fuzz_mdp02_client,
    "mdp02-worker": _fuzz_mdp02_worker,
    "peer": _fuzz_peer,
    "arbiter": _fuzz_arbiter,
    "node": _fuzz_node,
    "emq": _fuzz_emq,
}


def check(target: str, frames: Frames) -> bool:
    """Was it accepted? Anything raised but RemoteProtocolError is the fault of the codec and propagates."""
    try:
        TARGETS[target](frames)
    except RemoteProtocolError:
        return False
    return True


# A generator of our own -----------------------------------------------------------------------------------


class Mutator:
    """Valid messages, broken a little, from one seed."""

    def __init__(self, corpus: dict[str, list[tuple[str, Frames]]], seed: int) -> None:
        self._random = random.Random(seed)
        self._corpus = corpus
        self._all = [frames for entries in corpus.values() for _, frames in entries]

    def __iter__(self) -> Iterator[tuple[str, Frames]]:
        names = sorted(TARGETS)
        while True:
            target = self._random.choice(names)
            yield target, self.mutate(target)

    def mutate(self, target: str) -> Frames:
        """Another message for this target; seldom valid, never far from valid."""
        draw = self._random
        source = self._all if draw.random() < 0.1 else [frames for _, frames in self._corpus[target]]
        frames = list(draw.choice(source))
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 8))):
            draw.choice(self._STEPS)(self, frames)
        return frames

    def _at(self, frames: Frames) -> int:
        if not frames:
            frames.append(b"")
        return self._random.randrange(len(frames))

    def _replace(self, frames: Frames) -> None:
        frames[self._at(frames)] = self._random.choice(TOKENS)

    def _insert(self, frames: Frames) -> None:
        frames.insert(self._at(frames), self._random.choice(TOKENS))

    def _delete(self, frames: Frames) -> None:
        del frames[self._at(frames)]

    def _repeat(self, frames: Frames) -> None:
        at = self._at(frames)
        frames[at:at] = [frames[at]] * self._random.choice((1, 2, 9, limits.FRAMES_MAX))

    def _cut_message(self, frames: Frames) -> None:
        del frames[self._at(frames) :]

    def _cut_frame(self, frames: Frames) -> None:
        at = self._at(frames)
        frames[at] = frames[at][: self._random.randrange(len(frames[at]) + 1)]

    def _grow_frame(self, frames: Frames) -> None:
        at = self._at(frames)
        frames[at] += self._random.choice(
            (self._random.choice(TOKENS), self._random.randbytes(20), bytes(9_000))
        )

    def _change_octet(self, frames: Frames) -> None:
        at = self._at(frames)
        if frame := bytearray(frames[at]):
            frame[self._random.randrange(len(frame))] = self._random.choice(
                (0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256))
            )
            frames[at] = bytes(frame)

    def _splice(self, frames: Frames) -> None:
        frames[self._at(frames) :] = self._random.choice(self._all)[self._random.randrange(3) :]

    _STEPS: tuple[Callable[[Mutator, Frames], None], ...] = (
        _replace, _insert, _delete, _repeat, _cut_message, _cut_frame, _grow_frame,
        _change_octet, _change_octet, _splice,
    )  # fmt: skip


def run(runs: int, seed: int) -> int:
    """How many of ``runs`` messages were accepted; raises on the first that a codec does not survive."""
    accepted = 0
    for number, (target, frames) in enumerate(Mutator(read_corpus(), seed), start=1):
        try:
            accepted += check(target, frames)
        except BaseException:
            again = f"python tests/fuzz/fuzz_wire.py --runs {number} --seed {seed}"
            print(
                f"run {number} breaks the codec:\n{target} found: {describe(frames)}\nagain: {again}",
                file=sys.stderr,
            )
            raise
        if number >= runs:
            break
    return accepted


# Guided by coverage ---------------------------------------------------------------------------------------


def frames_from(octets: bytes) -> tuple[str, Frames]:
    """A flat input as (target, frames): one byte for the target, then the frames, each behind its length."""
    names = sorted(TARGETS)
    target = names[octets[0] % len(names)] if octets else names[0]
    frames: Frames = []
    at = 1
    while at + 2 <= len(octets):
        size = int.from_bytes(octets[at : at + 2], "big")
        frames.append(octets[at + 2 : at + 2 + size])
        at += 2 + size
    return target, frames


def _flat(target: str, frames: Frames) -> bytes:
    return bytes([sorted(TARGETS).index(target)]) + b"".join(len(f).to_bytes(2, "big") + f for f in frames)


def _run_with_coverage(arguments: Sequence[str]) -> None:
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        sys.exit("--coverage needs the package atheris in this environment; without it use --runs and --seed")

    def target(octets: bytes) -> None:
        check(*frames_from(octets))

    seeds = Path(tempfile.mkdtemp(prefix="fuzz-wire-"))
    print(f"the growing corpus is in {seeds}")
    for reader, entries in read_corpus().items():
        for name, frames in entries:
            (seeds / f"{reader}.{name}").write_bytes(_flat(reader, frames))
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], str(seeds), *arguments], target)
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> None:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(description="Fuzz bstar's codecs.")
    parser.add_argument("--runs", type=int, default=100_000, help="messages to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run (default: a new one, printed)")
    parser.add_argument(
        "--coverage", action="store_true", help="use atheris; further arguments are libFuzzer's"
    )
    options, rest = parser.parse_known_args(arguments)
    if options.coverage:
        _run_with_coverage(rest)
        return
    if rest:
        parser.error(f"unknown: {' '.join(rest)}")
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    accepted = run(options.runs, seed)
    print(f"{options.runs} messages, seed {seed}: {accepted} accepted, the others refused, nothing broke")


if __name__ == "__main__":
    main(sys.argv[1:])
