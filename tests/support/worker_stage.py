"""A worker's core between its nodes: one line of a script each.

``worker`` is a native one that knows ``primary`` and ``backup``; limits follow, and ``holds`` if it begins
what it is given when the script says ``claim``. ``registered`` is one that both have welcomed; ``mdp02``,
``mdp01``, ``paranoid`` and ``simple`` are plain ones with a ``broker``, which has ``accepted`` them or does
so later. A node ``connects`` and welcomes the worker (``epoch=``, ``expiry=`` in milliseconds) or
``accepts`` the connection alone. It ``asks`` for numbers of a client or ``batches`` them (``epoch=``,
``ttl=``, ``age=``, ``again``, ``key=``, ``progress``, ``extensions=``), ``beats`` with its state and epoch;
``says`` is any other message. A handler is ``done``, ``fails`` or returns a ``part``; ``all-done`` ends
several in one turn.

Seen: ``->`` is sent, ``begin`` goes to a handler, ``*`` is for observers; like heartbeats are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bstar.star import State
from bstar.wire import messages as wire
from bstar.wire import native, native_broker
from bstar.wire.batches import bodies_of, final_rows, pack_requests
from bstar.wire.extensions import PROGRESS_EXTENSION, elsewhere_of, wants_progress
from bstar.wire.messages import NodeStatus, Reason
from bstar.wire.progress import Progress, unpack_progress
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import (
    Job,
    Mdp01Worker,
    Mdp02Worker,
    NativeWorker,
    ParanoidWorker,
    SimpleWorker,
    WorkerDialect,
)
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_client.core.worker.outputs import (
    Abandon,
    Begin,
    Cancel,
    Close,
    Ended,
    Fenced,
    KeepAlive,
    Open,
    WorkerOutput,
)
from bstar_client.core.worker.progress import Latest
from support.stage import Stage, frame_of, numbers_of, options_of, text_of
from support.work import asked
from support.worker_bench import CoreBench

CODEC = native_broker.CODEC
CLIENT_ID = b"c" * 16
_TOLD = ("PROGRESS", "PARTIAL", "FINAL", "ERROR", "READY", "HEARTBEAT", "DISCONNECT", "STALE_EPOCH", "FINALS")
_NAMES = {getattr(native, name): name for name in _TOLD}
_READY = {"batches": native.FLAG_BATCHES, "extended": native.FLAG_EXTENDED}
# What stands before the address of a request that a plain worker is given.
_LEADS = {"mdp02": ("MDPW02", "\\x02"), "mdp01": ("", "MDPW01", "\\x02"), "paranoid": (), "simple": ("",)}
_HEARTBEATS = ([b"MDPW02", b"\x05"], [b"", b"MDPW01", b"\x04"], [b"\x02"])
# What every script sees anyway.
_DULL = ("requests", "finished", "registrations")


class _Bench(CoreBench):
    """A bench that shows all that its core puts out, in order."""

    show: Callable[[WorkerOutput], None]

    def take(self, outputs: list[WorkerOutput]) -> None:
        super().take(outputs)
        for output in outputs:
            self.show(output)


class WorkerStage(Stage):
    """A worker and its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._bench: _Bench
        self._nodes: tuple[str, ...] = ()
        self._jobs: dict[str, Job] = {}
        self._names: dict[bytes, str] = {}
        self._holds = self._is_waiting = False
        self._lead: tuple[str, ...] = ()

    def peer_of(self, name: str) -> int:
        return self._nodes.index(name)

    # --- the worker -----------------------------------------------------------------------------------------

    def do_worker(self, words: list[str]) -> None:
        self._make(words, ("primary", "backup"), NativeWorker())

    def do_mdp02(self, words: list[str]) -> None:
        self._make_plain("mdp02", Mdp02Worker(1.0, 3.0), words)

    def do_mdp01(self, words: list[str]) -> None:
        self._make_plain("mdp01", Mdp01Worker(1.0, 3.0), words)

    def do_paranoid(self, words: list[str]) -> None:
        self._make_plain("paranoid", ParanoidWorker(1.0, 3.0), words)

    def do_simple(self, words: list[str]) -> None:
        self._make_plain("simple", SimpleWorker(), words)

    def _make_plain(self, kind: str, dialect: WorkerDialect, words: list[str]) -> None:
        self._lead = _LEADS[kind]
        nodes = ("one", "two") if "two" in words else ("broker",)
        self._make([word for word in words if word not in ("two", "accepted")], nodes, dialect)
        if "accepted" in words:
            self.peer_accepts(0, [])
            self.begin()

    def _make(self, words: list[str], nodes: tuple[str, ...], dialect: WorkerDialect) -> None:
        options = options_of(words)
        self._holds = options.pop("holds", None) is not None
        limits = {name: msgspec.json.decode(value) for name, value in options.items()}
        self._nodes = nodes
        self._bench = _Bench(
            msgspec.convert(limits, WorkerLimits), tuple(f"tcp://{name}" for name in nodes), dialect
        )
        self._bench.show = self._show
        self._began_at = self._bench.now
        self._jobs.clear()
        self._names.clear()
        self.begin()

    def do_registered(self, words: list[str]) -> None:
        welcome = [word for word in words if word.startswith("expiry=")]
        self.do_worker([word for word in words if word not in welcome])
        for node in (0, 1):
            self.peer_connects(node, welcome)
        self.begin()

    def do_watch(self, words: list[str]) -> None:
        """The shell begins: from now on the worker warns."""
        self._bench.core.begin(self._bench.now)

    def do_stop(self, words: list[str]) -> None:
        self._take(self._bench.core.stop(self._bench.now))

    def do_end(self, words: list[str]) -> None:
        self._take(self._bench.core.end(self._bench.now))

    def do_wait(self, words: list[str]) -> None:
        self._is_waiting = True
        self._bench.wait(float(words[0]))
        self._is_waiting = False

    def _take(self, outputs: list[WorkerOutput]) -> None:
        self._bench.take(outputs)

    # --- handlers -------------------------------------------------------------------------------------------

    def do_claim(self, names: list[str]) -> None:
        for name in names:
            is_claimed = self._bench.core.claim(self._jobs[name])
            self.seen.append(f"{name} {'is' if is_claimed else 'may not be'} begun")

    def do_done(self, words: list[str]) -> None:
        name, *body = words
        frames = [frame_of(each) for each in body or ["done"]]
        self._take(self._bench.core.finished(self._jobs[name], frames, self._bench.now))

    def do_all_done(self, words: list[str]) -> None:
        """``2=B 1=A``; frames with commas between."""
        results = [
            (self._jobs[name], [frame_of(each) for each in body.split(",")])
            for name, body in options_of(words).items()
        ]
        self._take(self._bench.core.finished_all(results, self._bench.now))

    def do_part(self, words: list[str]) -> None:
        name, *body = words
        frames = [frame_of(each) for each in body or ["part"]]
        self._take(self._bench.core.partial(self._jobs[name], frames, self._bench.now))

    def do_report(self, words: list[str]) -> None:
        """How far the handler of this request is."""
        job = self._jobs[words[0]]
        assert job.latest is not None
        job.latest.put(job, Progress(float(words[1])))

    def do_fails(self, words: list[str]) -> None:
        name, text = words
        self._take(self._bench.core.failed(self._jobs[name], [frame_of(text)], self._bench.now))

    def do_expired(self, words: list[str]) -> None:
        """The time of this request was over when its handler was to be called."""
        self._take(self._bench.core.expired(self._jobs[words[0]], self._bench.now))

    # --- nodes ----------------------------------------------------------------------------------------------

    def peer_accepts(self, node: int, words: list[str]) -> None:
        self._take(self._bench.core.connected(node, self._bench.now))

    def peer_connects(self, node: int, words: list[str]) -> None:
        self.peer_accepts(node, [])
        self.peer_welcomes(node, words)

    def peer_welcomes(self, node: int, words: list[str]) -> None:
        options = options_of(words)
        state, epoch = State[options.get("state", "ACTIVE")], int(options.get("epoch", 1))
        told = NodeStatus(state, epoch, 0, 0, 0, 100, 300)
        if "lacks" in options:
            features = wire.ALL_FEATURES & ~getattr(wire, options["lacks"])
            told = msgspec.structs.replace(told, features=features)
        expiry_ms = int(options.get("expiry", 1000))
        self._hear(node, CODEC.welcome(b"", (), told, expiry_ms // 4, expiry_ms))

    def peer_breaks(self, node: int, words: list[str]) -> None:
        self._take(self._bench.core.disconnected(node, self._bench.now))

    def peer_asks(self, node: int, words: list[str]) -> None:
        options = options_of(words)
        for number in [0] if "key" in options else numbers_of(words):
            identity = native.identity(CLIENT_ID, number)
            if "key" in options:
                identity = native.keyed_identity(b"echo", options["key"].encode())
                self._names[identity] = options["key"]
            ttl_ms, epoch = int(options.get("ttl", 0)), int(options.get("epoch", 1))
            extensions = frame_of(options.get("extensions", ""))
            if "progress" in options:
                extensions += PROGRESS_EXTENSION
            body = asked([options.get("body", f"{number}").encode()], extensions=extensions)
            self._hear(node, CODEC.request(b"", (), body, identity, ttl_ms, epoch, "again" in options))

    def peer_batches(self, node: int, words: list[str]) -> None:
        options, numbers = options_of(words), numbers_of(words)
        ttls_ms = [int(options.get("ttl", 0))] * len(numbers)
        table, blob = pack_requests(numbers, ttls_ms, [b"%d" % number for number in numbers])
        age_ms, epoch = int(options.get("age", 0)), int(options.get("epoch", 1))
        self._hear(node, CODEC.requests(b"", CLIENT_ID, table, blob, age_ms, epoch, False))

    def peer_beats(self, node: int, words: list[str]) -> None:
        state, epoch = words
        self._hear(node, CODEC.heartbeat(b"", (), State[state], int(epoch)))

    def peer_disconnects(self, node: int, words: list[str]) -> None:
        self._hear(node, CODEC.disconnect(b"", (), Reason[words[0]], 1))

    def peer_cancels(self, node: int, words: list[str]) -> None:
        cancel = native.encode_cancel(native.identity(CLIENT_ID, int(words[0])), 1)
        self._take(self._bench.core.receive(node, cancel, self._bench.now))

    def peer_says(self, node: int, words: list[str]) -> None:
        frames = [frame_of(each) for each in words]
        self._take(self._bench.core.receive(node, frames, self._bench.now))

    def peer_gives(self, node: int, words: list[str]) -> None:
        """A request to a plain worker, for the client with this address."""
        self.peer_says(node, [*self._lead, words[0], "", "body"])

    def _hear(self, node: int, frames: list[bytes]) -> None:
        self._take(self._bench.core.receive(node, frames[1:], self._bench.now))

    # --- what is seen ---------------------------------------------------------------------------------------

    def _show(self, output: WorkerOutput) -> None:
        now = f"{round(self._bench.now - self._began_at, 3):g}: " if self._is_waiting else ""
        for text in self._texts_of(output):
            if "HEARTBEAT" in text and self._is_waiting:
                self.counted[text] += 1
            else:
                self.seen.append(f"{now}{text}")

    def _texts_of(self, output: WorkerOutput) -> Iterator[str]:
        match output:
            case Send(node, frames):
                yield f"-> {self._nodes[node]} {self._told(frames)}"
            case Open(node) | Close(node):
                yield f"{type(output).__name__.lower()} {self._nodes[node]}"
            case KeepAlive(node, _, interval_ms, ttl_ms):
                yield f"keepalive to {self._nodes[node]} every {interval_ms} of {ttl_ms} ms"
            case Begin(jobs):
                yield from map(self._begun, jobs)
                if not self._holds:
                    assert all(self._bench.core.claim(job) for job in jobs)
            case Abandon(job) | Cancel(job):
                yield f"{type(output).__name__.lower()} {self._name(job.identity)}"
            case Fenced(job, epoch_seen):
                yield f"* Fenced {self._name(job.identity)} by {epoch_seen}"
            case Ended(error):
                yield f"* Ended {type(error).__name__ if error else 'well'}"
            case _:
                words = (
                    " ".join(each) if isinstance(each, tuple) else str(each)
                    for each in msgspec.structs.astuple(output)
                )
                yield f"* {type(output).__name__} {' '.join(words).replace('tcp://', '')}"

    def _begun(self, job: Job) -> str:
        name = self._name(job.identity)
        self._jobs[name] = job
        if wants_progress(job.extensions):
            job.latest = Latest(lambda job: self._take(self._bench.core.progress(job, self._bench.now)))
        body = " ".join(map(text_of, job.body))
        until = "" if job.deadline is None else f", {job.deadline - self._bench.now:.3g} s"
        headers = "".join(f", {header}={text}" for header, text in (job.headers or {}).items())
        return f"begin {name}: {body}, in {job.epoch}{until}{', again' * job.is_redelivered}{headers}"

    def _told(self, frames: list[bytes]) -> str:
        head, *body = frames
        if not head.startswith(b"\xb5"):
            name = " HEARTBEAT" if frames in _HEARTBEATS else ""
            return " ".join(map(text_of, frames)) + name
        command, flags = head[2], head[3]
        epoch, value = int.from_bytes(head[28:36], "big"), int.from_bytes(head[36:40], "big")
        about: list[str] = [] if head[4:28] == native.NO_IDENTITY else [self._name(head[4:28])]
        match command:
            case native.READY:
                elsewhere = elsewhere_of(head[41 + head[40] :])
                about = [f"credit {value}", *(name for name, flag in _READY.items() if flags & flag)]
                about += [f"elsewhere {elsewhere}"] if elsewhere else []
            case native.HEARTBEAT:
                about = [f"elsewhere {value}"] if value else []
            case native.DISCONNECT:
                about = [Reason(value).name, *(["unbegun"] if flags & native.FLAG_UNBEGUN else [])]
            case native.ERROR:
                about += [wire.ErrorCode(value).name, *map(text_of, body)]
            case native.FINALS:
                numbers, lengths = final_rows(frames, 1)
                about = [*map(str, numbers), *map(text_of, bodies_of(frames[2], lengths))]
            case native.PROGRESS:
                about += [f"{unpack_progress(body)}"]
            case native.PARTIAL:
                about += [f"#{value}", *map(text_of, body)]
            case native.FINAL:
                about += [*map(text_of, body), *([f"after {value}"] if value else [])]
        return " ".join([_NAMES[command], *about, f"in {epoch}"])

    def _name(self, identity: bytes) -> str:
        if len(identity) != len(native.NO_IDENTITY):
            return text_of(identity)
        return self._names.get(identity, f"{int.from_bytes(identity[16:], 'big')}")

    def do_look(self, words: list[str]) -> None:
        core = self._bench.core
        due = core.next_deadline()
        when = "nothing is due" if due is None else f"due in {due - self._bench.now:.3g} s"
        held = sum(len(part) for job in self._jobs.values() for part in job.held or ())
        parts = f", {held} bytes of parts" if held else ""
        self.seen.append(f"epoch {core.epoch}, {core.running} running, {when}{parts}")

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._bench.core.counters).items() if name not in _DULL}
