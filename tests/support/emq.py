"""The EventMQ front of a node in memory, with its peers in the test's hands, in virtual time."""

from __future__ import annotations

import itertools
import json
from typing import Any

from bstar.wire import emq
from bstar.wire.emq import Kind, Queue
from bstar.wire.emq_jobs import Headers, Job, encode_job, parse_headers
from bstar_broker.core.front import Front, Inlet
from bstar_broker.fronts.emq.desk import Desk, EmqSettings
from bstar_broker.fronts.emq.front import EmqFront
from support.solo_store import SoloStore

Told = tuple[bytes, emq.Message]


def job(*args: Any, name: str = "add") -> bytes:
    """A job message."""
    return encode_job(Job("shop.jobs", name, list(args)))


def result(value: object) -> bytes:
    """A result's JSON."""
    return json.dumps({"value": value}).encode()


class EmqStage(SoloStore):
    """A node that serves, with this front. Every ``…_says`` returns what its peers were told since."""

    def __init__(self, settings: EmqSettings | None = None, **limits: Any) -> None:
        numbers = itertools.count(1)
        self.emq = settings or EmqSettings(has_store=True)

        def make(inlet: Inlet) -> list[Front]:
            desk = Desk(inlet, self.emq, lambda: b"id-%d" % next(numbers), lambda: self.wall_ms() / 1000)
            return [EmqFront(desk, b"r" * 16)]

        super().__init__(make_fronts=make, **limits)

    @property
    def front(self) -> EmqFront:
        front = self.node.fronts.all["emq"]
        assert isinstance(front, EmqFront)
        return front

    def told(self, since: int = 0) -> list[Told]:
        """What left through the front's doors: routing id and message."""
        return [
            (output.frames[0], emq.decode(output.frames, 1, wire=self.emq.wire))
            for output in self.left[since:]
            if output.door != "subscribers"
        ]

    def published(self) -> list[list[bytes]]:
        """What left through the subscribers' door."""
        return [output.frames for output in self.left if output.door == "subscribers"]

    def says(self, door: str, peer: bytes, message: emq.Message) -> list[Told]:
        """A peer sends this message."""
        return self.sends(door, peer, *emq.encode(message, wire=self.emq.wire))

    def sends(self, door: str, peer: bytes, *frames: bytes) -> list[Told]:
        """A peer sends these frames."""
        before = len(self.left)
        self.front_hears("emq", door, peer, *frames)
        return self.told(before)

    def waits(self, seconds: float) -> list[Told]:
        """What peers are told while time passes."""
        before = len(self.left)
        self.wait(seconds)
        return self.told(before)

    # --- peers ----------------------------------------------------------------------------------------------

    def manager(self, name: bytes = b"m1", *queues: tuple[int, str], slots: int = 0) -> list[Told]:
        """A job manager registers and has free slots."""
        listed = tuple(Queue(weight, queue) for weight, queue in queues)
        told = self.says("workers", name, emq.Inform(b"i", Kind.WORKER, listed))
        for _ in range(slots):
            told += self.ready(name)
        return told

    def ready(self, name: bytes = b"m1") -> list[Told]:
        """READY."""
        return self.says("workers", name, emq.Ready(b"r"))

    def ends(self, msgid: bytes, value: object = 1, name: bytes = b"m1") -> list[Told]:
        """A manager sends the result of a job."""
        return self.says("workers", name, emq.Reply(b"e", msgid, result(value)))

    def asks(
        self,
        msgid: bytes,
        headers: str = "",
        queue: str = "default",
        message: bytes | None = None,
        client: bytes = b"c1",
    ) -> list[Told]:
        """A client sends a REQUEST."""
        parsed = parse_headers(headers)
        asked = emq.Request(msgid, queue, job(1) if message is None else message, parsed)
        return self.says("clients", client, asked)

    def schedules(
        self,
        headers: str = "",
        interval_s: int = emq.NO_INTERVAL,
        cron: str = "",
        message: bytes | None = None,
        msgid: bytes = b"s1",
    ) -> list[Told]:
        """A client sends a SCHEDULE."""
        body = job(1) if message is None else message
        parsed: Headers = parse_headers(headers)
        return self.says("clients", b"c1", emq.Schedule(msgid, "default", body, parsed, interval_s, cron))

    def drops(self) -> dict[str, int]:
        """What the node has counted."""
        return self.node.state(self.now).broker.drops


def requests(told: list[Told]) -> list[tuple[bytes, bytes]]:
    """Managers and msgids of the jobs among these."""
    return [(peer, message.msgid) for peer, message in told if isinstance(message, emq.Request)]


def replies(told: list[Told]) -> list[tuple[bytes, bytes, bytes | None]]:
    """Peers, msgids and results of the REPLYs among these."""
    return [(peer, message.about, message.value) for peer, message in told if isinstance(message, emq.Reply)]


def words(told: list[Told], msgid: bytes | None = None) -> str:
    """The only result among these, which is a text; of this request, if one is given."""
    [(_, about, value)] = replies(told)
    assert value is not None
    assert msgid in (None, about)
    return str(json.loads(value)["value"])


def kinds(told: list[Told]) -> list[str]:
    """The names of the messages."""
    return [type(message).__name__ for _, message in told]
