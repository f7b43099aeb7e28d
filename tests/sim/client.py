"""A client process: the production session, and what its shell does (client.py, link.py)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Protocol

import msgspec

from bstar.errors import BstarError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.counters import Counters
from bstar_client.core.fleet_session import FleetSession
from bstar_client.core.native.session import Session
from bstar_client.core.outputs import Deliver, DeliverAll, Fail, Output, Reset, Send
from bstar_client.core.plain.attempt_session import AttemptSession, Mdp01Session, Mdp02Session
from bstar_client.core.session_settings import SessionSettings
from sim.dialects import ONE_REPLY, Dialect, body_of, from_wire, to_wire
from sim.network import Frames, Link, LinkOwner
from sim.world import World

OUTSTANDING_MAX = 40
# Callers of a native client that leave before the end.
_LEAVING = 0.06
# Some calls are begun several at a time, and travel together where they may.
BURSTS = 0.2
BURST_MAX = 6
_CALLS_AT_ONCE = 1 + BURSTS * ((2 + BURST_MAX) / 2 - 1)


class Issued(msgspec.Struct, eq=False):
    """One call as the simulator sees it. ``token`` begins its body, and so must every reply to it."""

    token: str
    client: str
    kind: str
    submitted_at: float
    deadline_at: float
    is_bound: bool
    dialect: Dialect
    service: str
    is_once: bool  # its caller forbids a second execution
    worker: str = ""  # the one worker that is asked
    asks_names: bool = False  # it asks for the workers' names; each of them is asked then
    outcome: str = ""
    ended_at: float = 0.0
    parts: int = 0
    call: Call | None = None


class CallWatcher(Protocol):
    """Who is told what becomes of calls."""

    def call_made(self, issued: Issued) -> None:
        """A call was accepted from its caller."""

    def call_partial(self, issued: Issued, reply: Reply) -> None:
        """A part of a stream was handed out."""

    def call_answered(self, issued: Issued, reply: Reply) -> None:
        """Its reply was handed out."""

    def call_failed(self, issued: Issued, error: BstarError) -> None:
        """It ended with an error."""

    def call_left(self, issued: Issued) -> None:
        """Its caller is about to leave."""


class Load(msgspec.Struct, frozen=True):
    """What a client asks for: calls per second, their deadlines in seconds, and how often a native client
    also asks each worker of a service.
    """

    calls_per_s: float
    deadline_min_s: float
    deadline_max_s: float
    ask_all: float = 0.0


class SimClient(LinkOwner):
    """One client over all its runs; each has an identity of its own. ``watchers`` are those of each pair, and
    ``places`` says to which of them a service belongs.
    """

    _death = "dies"
    kinds: ClassVar = {"echo": 80, "stream": 6, "parts": 6, "mmi": 4, "fail": 4}
    """What it asks for, and how often."""

    def __init__(
        self,
        world: World,
        name: str,
        load: Load,
        watchers: Sequence[CallWatcher],
        *,
        dialect: Dialect,
        settle_s: float,
        places: Mapping[str, int],
    ) -> None:
        super().__init__(world, name)
        self.load = load
        self.dialect = dialect
        self.core: Session | AttemptSession | FleetSession
        self._watchers = watchers
        self._settle_s = settle_s
        self._places = places
        self._services = list(places)
        self._is_fleet = len(watchers) > 1
        self.outstanding_max = OUTSTANDING_MAX * len(watchers)
        # Of each pair, how many calls of this run have not ended.
        self._open = [0] * len(watchers)
        self._leaving = world.rng(f"{name} leaves")
        self._all = world.rng(f"{name} asks all workers")
        self._numbers = 0
        self._asking = 0  # loads before this one are void

    def start(self) -> None:
        """A new run: a new client object."""
        self.boot()
        self._open = [0] * len(self._watchers)
        if self._is_fleet:
            # It connects to a pair with the first call that belongs there.
            nodes = len(self.links) // len(self._watchers)
            self.core = FleetSession([nodes] * len(self._watchers), self._begin_session)
        else:
            self.core = self._begin_session(0, self.clock())
            for link in self.links:
                link.open()
        self._ask_later()
        self.arrange()

    def _begin_session(
        self, place: int, now: float, counters: Counters | None = None
    ) -> Session | AttemptSession:
        count = len(self.links) // len(self._watchers)
        endpoints = [link.node.name for link in self.links[place * count :][:count]]
        if self.dialect == "native":
            settings = SessionSettings(outstanding_max=OUTSTANDING_MAX)
            client_id = self.rng.randbytes(16)
            return Session(endpoints, client_id=client_id, now=now, settings=settings, counters=counters)
        plain = SessionSettings(outstanding_max=OUTSTANDING_MAX, settle_delay_s=self._settle_s)
        kind = Mdp01Session if self.dialect == "mdp01" else Mdp02Session
        return kind(endpoints, now=now, settings=plain, counters=counters)

    def close(self) -> None:
        """The program closes its client in good order."""
        if self.is_awake:
            self._do(self.core.close(self.clock()))
            self.die()

    # --- calls --------------------------------------------------------------------------------------------

    def ask_for(self, load: Load) -> None:
        """Ask for this from now on."""
        self.load = load
        self._asking += 1
        if self.is_alive:
            self._ask_later()

    def _ask_later(self) -> None:
        pause_s = self.rng.expovariate(self.load.calls_per_s / _CALLS_AT_ONCE)
        self.world.after(pause_s, partial(self._ask, self.runs, self._asking))

    def _ask(self, run: int, asking: int) -> None:
        if run != self.runs or asking != self._asking or not self.is_alive:
            return
        self._ask_later()
        if self.is_frozen or (not self._is_fleet and self._is_full(0)):
            return
        now = self.clock()
        count = self.rng.randint(2, BURST_MAX) if self.rng.random() < BURSTS else 1
        calls = [call for _ in range(count) if (call := self._make_call(now)) is not None]
        if self.dialect == "native" and self._all.random() < self.load.ask_all:
            asked = self._all.choice(self._services)
            if not self._is_full(self._places[asked]):
                calls.append(self._ask_names(asked, now))
                count += 1
        if calls:
            self._do(self.core.submit_all(calls, now) if count > 1 else self.core.submit(calls[0], now))
        self.arrange()

    def _is_full(self, place: int) -> bool:
        return self._open[place] >= OUTSTANDING_MAX // 2

    def _make_call(self, now: float) -> Call | None:
        """One of chance. None if it were for a pair that owes too many: others get no more for that."""
        rng = self.rng
        asked = rng.choice(self._services) if len(self._services) > 1 else self._services[0]
        place = self._places[asked]
        if self._is_fleet and self._is_full(place):
            return None
        kind = rng.choices(tuple(self.kinds), tuple(self.kinds.values()))[0]
        if kind == "fail" and self.dialect != "native":
            # Plain MDP has no word for it: the client would wait, and everything behind that call with it.
            kind = "echo"
        elif kind == "stream" and self.dialect in ONE_REPLY:
            kind = "parts"
        elif kind == "mmi" and self.dialect == "ppp":
            kind = "echo"  # its protocol has no names of services
        is_idempotent = rng.random() < 0.8
        timeout_s = rng.uniform(self.load.deadline_min_s, self.load.deadline_max_s)
        issued = self._issue(kind, asked, now, timeout_s, is_idempotent=is_idempotent)
        service, body = asked.encode(), [body_of(issued.token, kind)]
        if kind == "mmi":
            service, body = b"mmi.service", [service]
        return self._begin_call(issued, service, body, now + timeout_s)

    def _issue(self, kind: str, asked: str, now: float, timeout_s: float, *, is_idempotent: bool) -> Issued:
        self._numbers += 1
        begin = f"{asked}/" if len(self._services) > 1 else ""
        return Issued(
            f"{begin}{self.name}.{self._numbers}",
            self.name,
            kind,
            self.world.now,
            self.true_time(now + timeout_s),
            kind == "stream" or not is_idempotent,
            self.dialect,
            asked,
            not is_idempotent,
        )

    def _begin_call(self, issued: Issued, service: bytes, body: list[bytes], deadline: float) -> Call:
        now, place = self.clock(), self._places[issued.service]
        timeout_s = deadline - now
        issued.call = Call(
            service,
            body,
            deadline,
            not issued.is_once,
            issued.kind == "stream",
            sink=issued,
            begun_at=now,
            pair=place,
            is_directed=bool(issued.worker),
        )
        self._open[place] += 1
        self._watchers[place].call_made(issued)
        if self.dialect == "native" and self._leaving.random() < _LEAVING:
            self.world.after(timeout_s * self._leaving.random() ** 2, partial(self._leave, self.runs, issued))
        return issued.call

    def _ask_names(self, asked: str, now: float) -> Call:
        """Ask for the workers of a service; ``_ask_each`` asks these."""
        timeout_s = self._all.uniform(self.load.deadline_min_s, self.load.deadline_max_s)
        issued = self._issue("mmi", asked, now, timeout_s, is_idempotent=True)
        issued.asks_names = True
        return self._begin_call(issued, b"mmi.names", [asked.encode()], now + timeout_s)

    def _ask_each(self, names: Issued, reply: Reply) -> None:
        """The names are there: ask each worker."""
        now, asked = self.clock(), names.service
        calls = []
        for name in json.loads(reply.frames[1]) if reply.frames[0] == b"200" else ():
            timeout_s = self._all.uniform(self.load.deadline_min_s, self.load.deadline_max_s)
            issued = self._issue("echo", asked, now, timeout_s, is_idempotent=self._all.random() < 0.8)
            issued.worker = name
            body = [name.encode(), body_of(issued.token, "echo")]
            calls.append(self._begin_call(issued, asked.encode(), body, now + timeout_s))
        self._do(self.core.submit_all(calls, now))

    def _leave(self, run: int, issued: Issued) -> None:
        """The caller gives up, or had its outcome before."""
        if run != self.runs or not self.is_awake or issued.call is None:
            return
        call = issued.call
        self._open[call.pair] -= 1
        self._watchers[call.pair].call_left(issued)
        self._abandon(call)
        self.arrange()

    def _abandon(self, call: Call) -> None:
        self._do(self.core.abandon(call, self.clock()))

    # --- the loop -----------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """One turn of HAClient._loop: messages, changes of connections, what was due before."""
        now = self.clock()
        due = self.core.next_deadline()
        messages, self._messages = self._messages, deque()
        changes, self._changes = self._changes, deque()
        for node, frames in sorted(messages, key=lambda entry: entry[0]):
            self._receive(node, frames, now)
        for node, is_up in changes:
            self._change(node, is_up, now)
        if due is not None and now >= due:
            self._do(self.core.handle_timer(now))

    def _receive(self, node: int, frames: Frames, now: float) -> None:
        super()._receive(node, from_wire(self.dialect, frames), now)

    def _do(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            kind = type(output)
            if kind is Send:
                frames = output.frames  # type: ignore[union-attr]
                self.links[output.node].send(to_wire(self.dialect, frames))  # type: ignore[union-attr]
            elif kind is Deliver:
                assert isinstance(output, Deliver)
                issued: Issued = output.call.sink
                watcher = self._watchers[output.call.pair]
                if output.reply.is_final:
                    self._open[output.call.pair] -= 1
                    watcher.call_answered(issued, output.reply)
                    if issued.asks_names:
                        self._ask_each(issued, output.reply)
                else:
                    watcher.call_partial(issued, output.reply)
            elif kind is DeliverAll:
                assert isinstance(output, DeliverAll)
                for call, reply in output.outcomes:
                    self._open[call.pair] -= 1
                    self._watchers[call.pair].call_answered(call.sink, reply)
            elif kind is Fail:
                assert isinstance(output, Fail)
                self._open[output.call.pair] -= 1
                self._watchers[output.call.pair].call_failed(output.call.sink, output.error)
            elif kind is Reset:
                assert isinstance(output, Reset)
                self.links[output.node].open()

    @property
    def outstanding(self) -> int:
        """Calls that have not ended."""
        return self.core.outstanding

    @property
    def links_open(self) -> list[Link]:
        """The links that have a connection."""
        return [link for link in self.links if link.connection is not None]
