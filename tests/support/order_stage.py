"""A node with clients, a worker and a peer in memory, and an operator who runs ``bstar`` at it: one line of a
script each. What ``bstar`` waits for passes on the stage's clock.
"""

from __future__ import annotations

import io
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bstar.settings import Settings
from bstar.star import (
    Handover,
    HandoverRefused,
    Leave,
    PeerMessage,
    Promotion,
    Publish,
    Role,
    Stall,
    StarMachine,
    StarSettings,
    State,
    Tick,
)
from bstar.wire import native
from bstar.wire.description import Description, encode_description
from bstar.wire.dialect import Dialect
from bstar.wire.messages import ErrorCode, Process, Ready, Request
from bstar.wire.peer import PeerState
from bstar_broker.core import BrokerSettings, Node, Notice, Output, Send
from bstar_broker.core.mailbox import STORE
from bstar_broker.core.records import peer_label
from bstar_broker.core.snapshot import ShellState
from bstar_broker.operate.orders import Operator
from bstar_cli import orders
from bstar_cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = {
    getattr(native, name): name
    for name in ("REQUEST", "REQUESTS", "PARTIAL", "FINAL", "ERROR", "BUSY", "NOT_ACTIVE")
}
STEP_S = 0.5
# Who asks in batches.
BATCHER = bytes(15) + b"\x01"


class Stage:
    """``run`` carries one line out and returns what is seen of it. At first there is no node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.peer: tuple[State, int] | None = None
        self.probe = ("refuses", "")
        self.later: list[tuple[float, list[str]]] = []
        self.seen: list[str] = []
        self.workers: set[bytes] = set()
        self._monkeypatch = monkeypatch
        self._seq = 0
        self._published = ""
        handler = logging.Handler()
        handler.emit = lambda record: self.seen.append(f"log: {record.getMessage()}")  # type: ignore[method-assign]
        log = logging.getLogger("bstar_broker.orders")
        log.setLevel(logging.INFO)
        monkeypatch.setattr(log, "handlers", [handler])
        monkeypatch.setattr(orders, "node_at", self._node_at)
        monkeypatch.setattr(orders, "time", self)
        monkeypatch.setattr(orders, "probe", lambda endpoint: self.probe)
        monkeypatch.setattr(orders, "who", lambda reason: f"mia@host: {reason}" if reason else "mia@host")
        monkeypatch.setattr(orders, "datetime", SimpleNamespace(now=self._today))

    def run(self, line: str) -> list[str]:
        """Carry the line out; what is seen."""
        self.seen = []
        if line.startswith("raw "):
            self.raw(*line.split(" ", 2)[1:])
        else:
            self._do(shlex.split(line))
        return self.seen

    def _do(self, words: Sequence[str]) -> None:
        word, *rest = words
        getattr(self, word.replace("-", "_"))(*rest)

    # --- the clock, as ``bstar`` has it -------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.wait(str(seconds))

    def _wall_s(self) -> float:
        return 1_800_000_000 + self.now

    def _today(self) -> datetime:
        return datetime.fromtimestamp(self._wall_s(), UTC)

    # --- the node and its peers ---------------------------------------------------------------------------

    def node(self, kind: str, role: str = "primary", *limits: str) -> None:
        """``active`` with a passive peer, ``passive`` with an active one, or ``alone`` since its start."""
        bounds: dict[str, Any] = {name: float(n) for name, n in (each.split("=") for each in limits)}
        machine = StarMachine(StarSettings(pair="bstar", role=Role(role)), node="we", epoch=0, now=self.now)
        self.it = Node(
            machine,
            BrokerSettings(**bounds),
            node_id=bytes(16),
            drain_timeout_s=5.0,
            version="test",
            now=self.now,
        )
        self._monkeypatch.setenv("BSTAR_CONFIG", str(CONFIGS / f"{role}.yaml"))
        if kind == "active":
            self.peer_is("BACKUP" if role == "primary" else "PRIMARY", "0")
            self.peer_is("PASSIVE", "0")
            if not self.it.is_active:
                raise AssertionError("the node does not serve")
        elif kind == "passive":
            self.peer_is("ACTIVE", "2")
        else:
            machine.publisher.published_at = self.now
        self.seen = []
        self.operator = Operator(self.it, self.carry_out, self.monotonic, self._promote, self._wall_s)

    def peer_is(self, state: str, epoch: str = "0", leaving: str = "") -> None:
        """The peer says so from now on; ``silent``: nothing."""
        self.peer = None if state == "silent" else (State[state], int(epoch))
        self._hear_peer(is_leaving=bool(leaving))

    def _hear_peer(self, *, is_leaving: bool = False) -> None:
        if self.peer is not None:
            self._seq += 1
            state, epoch = self.peer
            role = self.it.machine.settings.role.peer.value
            said = PeerState(state, "bstar", role, "they", self._seq, epoch, 1000, 2000, leaving=is_leaving)
            pause = self.it.machine.pause
            if pause.number:
                rest_ms = int(1000 * pause.rest_s(self.now))
                said = msgspec.structs.replace(
                    said, pause=pause.number, paused_ms=rest_ms, pause_why=pause.why
                )
            self.carry_out(self.it.step(PeerMessage(said), self.now))

    def worker(
        self, name: str = "w1", service: str = "echo", credit: str = "1", batches: str = "", version: str = ""
    ) -> None:
        self.workers.add(name.encode())
        process = Process("shop-3", 4711, "0.1.0")
        ready = Ready(
            name.encode(),
            Dialect.NATIVE,
            (),
            service.encode(),
            credit=int(credit),
            takes_batches=bool(batches),
            process=process,
            description=encode_description(Description(version)),
        )
        self.it.broker.ledger.address = lambda: "10.0.0.7"
        self.carry_out(self.it.act(partial(self.it.broker.receive, ready), self.now))

    def plain_worker(self, name: str) -> None:
        """A worker of MDP/0.2."""
        self._hear(name, b"MDPW02", b"\x01", b"echo")

    def worker_gone(self, name: str) -> None:
        self.workers.discard(name.encode())
        self._hear(name, *native.encode_disconnect())

    def credit(self, name: str, count: str) -> None:
        """A front gives its worker so much room."""
        act = partial(self.it.broker.set_credit, name.encode(), int(count))
        self.carry_out(self.it.act(act, self.now))

    def _hear(self, sender: str, *frames: bytes) -> None:
        self.carry_out(self.it.receive_frames([sender.encode(), *frames], self.now))

    def ask(self, number: str, service: str = "echo", ttl_ms: str = "0") -> None:
        """A native client asks."""
        identity = int(number).to_bytes(24, "big")
        frames = native.encode_request(identity, service.encode(), [b"x"], ttl_ms=int(ttl_ms), epoch=0)
        self._hear("c1", *frames)

    def ask_batch(self, *numbers: str) -> None:
        """Another client asks several at once."""
        count = len(numbers)
        batch = native.encode_requests(BATCHER, b"echo", [*map(int, numbers)], [0] * count, [b"x"] * count)
        self._hear("c2", *batch)

    def plain_ask(self) -> None:
        """A client of MDP/0.2 asks."""
        self._hear("plain", b"MDPC02", b"\x01", b"echo", b"x")

    def plain_reply(self, worker: str) -> None:
        self._hear(worker, b"MDPW02", b"\x04", b"plain", b"", b"y")

    def store_asks(self, number: str) -> None:
        """The durable store asks, as the broker's client in the process."""
        request = Request(STORE, Dialect.STORE, (), b"echo", [b"x"], int(number).to_bytes(24, "big"))
        self.carry_out(self.it.act(partial(self.it.broker.receive, request), self.now))

    def reply(self, number: str, worker: str = "w1") -> None:
        """``b1`` is the first of a batch."""
        client = BATCHER if number[0] == "b" else bytes(16)
        identity = native.identity(client, int(number.lstrip("b")))
        self._hear(worker, *native.encode_final(identity, 1, 0, [b"y"]))

    def leave(self) -> None:
        """SIGTERM."""
        self.carry_out(self.it.step(Leave(), self.now))

    def hand_over(self) -> None:
        self.carry_out(self.it.step(Handover(), self.now))

    def stall(self, seconds: str) -> None:
        """The process stands still."""
        self.now += float(seconds)
        self.carry_out(self.it.step(Stall(float(seconds)), self.now))

    def store(self, *trouble: str) -> None:
        """The node has a durable store that leads, or does not because of this."""
        self.it.store = PlayedStore(self, " ".join(trouble))  # type: ignore[assignment]  # what an order needs

    def epoch_error(self, *words: str) -> None:
        self.it._shell = lambda now: ShellState(epoch_error=" ".join(words))

    def primary_endpoint(self, verdict: str, why: str = "") -> None:
        """What ``bstar`` finds at the endpoint of the primary."""
        self.probe = (verdict, why)

    def wait(self, seconds: str) -> None:
        """Let time pass, with signs of life of the workers and of a peer that is not silent."""
        end = self.now + float(seconds)
        while self.now < end:
            due = [at for at, _ in self.later]
            self.now = min(end, self.now + STEP_S, *due)
            while self.later and self.later[0][0] <= self.now:
                self._do(self.later.pop(0)[1])
            self._hear_peer()
            for worker in self.workers & self.it.broker.ledger.workers.keys():
                self.carry_out(self.it.receive_frames([worker, *native.encode_heartbeat(0)], self.now))
            self.carry_out(self.it.step(Tick(), self.now))

    def after(self, seconds: str, *words: str) -> None:
        """Do this then, while something waits."""
        self.later.append((self.now + float(seconds), list(words)))

    def show(self, name: str) -> None:
        """A part of the node's state: ``active``, or a field of its pair or its readiness."""
        state = self.it.state(self.now)
        self.seen.append(str(getattr(state.readiness if name in ("reason", "why") else state.pair, name)))

    # --- the operator -------------------------------------------------------------------------------------

    def bstar(self, *arguments: str) -> None:
        """Run the command; what it prints, and its exit code if that is not 0."""
        out, err = io.StringIO(), io.StringIO()
        given = [peer_label(each[1:].encode()) if each.startswith("%") else each for each in arguments]
        with redirect_stdout(out), redirect_stderr(err):
            code = main(given)
        printed = [*out.getvalue().splitlines(), *(f"! {line}" for line in err.getvalue().splitlines())]
        self.seen += [*(line.rstrip() for line in printed), *([f"exit {code}"] if code else [])]

    def raw(self, word: str, argument: str = "") -> None:
        """A message to the control socket as it is."""
        self.seen.append(self.operator.answer(word.encode(), argument.encode()).decode())

    @contextmanager
    def _node_at(self, settings: Settings) -> Iterator[Callable[[str, Mapping[str, object]], bytes]]:
        def ask(word: str, arguments: Mapping[str, object]) -> bytes:
            return self.operator.answer(word.encode(), msgspec.json.encode(arguments))

        yield ask

    def _promote(self, is_trial: bool) -> str | None:
        outputs = self.it.step(Promotion(is_trial), self.now)
        self.carry_out([each for each in outputs if not isinstance(each, HandoverRefused)])
        refusals = [each.why for each in outputs if isinstance(each, HandoverRefused)]
        return None if self.now < self.it.serve_until else "".join(refusals)

    def carry_out(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Publish):
                message = output.message
                said = "leaving" if message.leaving else "released" if message.released else ""
                if said and (said == "leaving" or said != self._published):
                    self.seen.append(f"-> peer {said}")
                self._published = said
            elif line := _line(output):
                self.seen.append(line)


class PlayedStore:
    """A store that leads once it is forced, unless it cannot."""

    def __init__(self, stage: Stage, trouble: str) -> None:
        self._stage = stage
        self.trouble = trouble

    def force(self, now: float) -> list[Output]:
        self._stage.seen.append("forced")
        self.trouble = self.trouble if "disk" in self.trouble else ""
        return []

    def settle(self, now: float) -> list[Output]:
        return []


def _line(output: Any) -> str:
    """What people would see of an output; "" of the others."""
    if isinstance(output, Send):
        to, *frames = output.frames
        if frames[0][:4] == b"MDPW" or frames[0][:4] == b"MDPC":
            return "" if frames[1] == b"\x05" else f"-> {to.decode()} {b' '.join(frames).decode()!r}"
        message = native.decode(frames)
        number = int.from_bytes(message.identity[-8:], "big")
        text = ""
        if message.command == native.ERROR:
            text = f" {ErrorCode(message.value).name}: {message.body[0].decode()}"
        name = NAMES.get(message.command)
        return "" if name is None else f"-> {to.decode()} {name} {number}{text}"
    if isinstance(output, Notice):
        return f"log: {output.text}"
    if isinstance(output, HandoverRefused):
        return f"log: the role stays: {output.why}"
    return ""
