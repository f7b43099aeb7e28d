"""The replicated log of the durable store: one node leads and appends, the other follows.

The machine is sans-I/O. An entry is *committed* when it is on every disk that counts; only then both nodes
apply it. Two nodes are no majority, so their disks keep marks that prove which copy has everything
(docs/adr/0023-replicated-store.md; docs/durable.md has the losses under each failure). The invariants:

1. *Log matching.* In one epoch one node appends, in one run, to one log. So an epoch and a number name one
   entry, and logs that have it are the same up to it. An epoch has the parity of its role and is above all
   that this log or the peer's last Hello has, and its first entry is synced before anything of it is sent.
   So no epoch is used twice.
2. *A committed entry is on both disks, or the leader's disk says that it is alone.* ``Copies`` commits
   without the peer only while the mark ``is_alone`` is stored, and the mark is taken back only after the peer
   has stored that it is in sync.
3. *A follower in sync has all that is committed.* The leader says so only after each further commit waits for
   its disk and its disk has what was committed before.
4. *Who leads has all that was acknowledged, as far as any disk or message can tell.* A node leads if it was
   sure of its copy since it followed (``Follower``), if its mark says that it is alone and the peer does not
   answer, or after it compared with the peer and took over what the better copy has. Alone is better than in
   sync, in sync better than neither; of two that are equal, the greater last position is better. Beside a new
   disk, a copy in sync counts only if its node was sure of it: the disk before may have been alone. Neither:
   no copy is known to be whole, and only ``force`` begins.
5. *What was applied is never dropped from a log.* A copy that applied what the leader never had is replaced
   by the leader's table. That happens only to the lesser of two nodes that were both alone, and after
   ``force``: it is counted and reported.
6. *A node that is alone gives its entries up only to a log that has them, or to one that is alone, too.* The
   mark goes in the same order to the disk as the entries.

Liveness: whatever was lost on the link, the side that misses something says Hello, and the other compares
the histories of the logs and sends from the last common entry on.
"""

from collections import Counter
from functools import partial
from math import inf
from typing import Final

from msgspec.structs import replace

from bstar.base.printable import printable
from bstar.errors import RemoteProtocolError
from bstar_broker.core.findings import START_OR_FORCE
from bstar_broker.core.outputs import Notice, Output
from bstar_broker.store.core.entries import START, Position
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    Damaged,
    Exported,
    LogRead,
    Mark,
    Opened,
    Rebuild,
    Written,
)
from bstar_broker.store.core.follower import Follower
from bstar_broker.store.core.leader import Leader
from bstar_broker.store.core.peer import (
    NO_GROUPS,
    Ack,
    Entries,
    Hello,
    Part,
    Source,
    Standing,
    decode,
    groups_of,
    has_all_of,
    mismatch,
    source,
)
from bstar_broker.store.core.records import Totals
from bstar_broker.store.core.site import ReplicaSettings, Role, Site

__all__ = ["Replica", "ReplicaSettings"]


_UNREAD: Final = Opened(None, START, 1, 0, 0, [], Totals(), {})


class Replica:
    """Replication for one node of ``pair``. ``new_store``: 16 random bytes, new for each run of the process.

    Every input returns outputs, to be carried out in sequence. Until the disk was read it only remembers.
    """

    def __init__(
        self, *, pair: str, role: Role, settings: ReplicaSettings, new_store: bytes, now: float
    ) -> None:
        self._is_open = False
        self._open = partial(Site, pair, role, settings, new_store)
        self._build(_UNREAD, now)
        self._tell_at = inf
        # Messages that were refused, by their reasons.
        self.refused: Counter[str] = Counter()

    def _build(self, opened: Opened, now: float) -> None:
        self._site = site = self._open(opened, now)
        self._leader = Leader(site)
        self._follower = Follower(site)

    # --- for status, metrics and refusals -------------------------------------------------------------------

    @property
    def is_leading(self) -> bool:
        """True if commands may be proposed."""
        return self._site.epoch > 0 and not self._site.log.error

    @property
    def epoch(self) -> int:
        """The epoch of the log in which it leads; 0 if it does not. What was proposed in one that is over may
        be lost.
        """
        return self._site.epoch

    @property
    def trouble(self) -> str:
        """Why it does not lead although its node serves, or cannot go on alone, and what to do; or ""."""
        site = self._site
        if site.wanted is None:
            return ""
        if site.log.error:
            return f"the store fails: {site.log.error}"
        if not self._is_open:
            return "the store is being read"
        if site.epoch:
            return "" if self.copies == 2 else site.missing_proof
        return self._why_not()

    def _why_not(self) -> str:
        peer, log = self._site.peer, self._site.log
        if log.damage:
            return (
                f"this copy is damaged ({log.damage}) and waits for the peer's, which takes its place: "
                f"{START_OR_FORCE}"
            )
        if peer.mismatch:
            return f"the peer's store cannot be used: {peer.mismatch}"
        if text := self._site.missing_proof:
            return text
        if not peer.is_heard or peer.hello is None:
            return (
                "nothing proves that this copy has all that was acknowledged, and the peer's store is not "
                f"heard: {START_OR_FORCE}"
            )
        if peer.hello.leads:
            return f"the peer leads the store in epoch {peer.hello.leads}"
        if self._site.better() == Source.NEITHER:
            return self._site.why_neither(peer.hello)
        return f"this copy takes over what the peer's has: {self.catch_up:.0%} are there"

    @property
    def copies(self) -> int:
        """On how many disks an entry is when it is committed now."""
        return 2 if self._site.epoch and self._leader.copies.standing == Standing.IN_SYNC else 1

    def copies_of(self, number: int) -> int:
        """On how many disks this entry of the leader's log is for certain."""
        return (number <= self._site.log.synced) + (number <= self._leader.feeder.acked)

    @property
    def is_peer_whole(self) -> bool:
        """True if this node leads, and both disks and the arbiter say that the peer's copy has all."""
        return self._site.epoch > 0 and self._site.peer.is_heard and self._leader.is_peer_whole

    @property
    def mark(self) -> Mark | None:
        """The mark that was ordered last from the disk."""
        return self._site.log.mark

    @property
    def last(self) -> Position:
        """The last entry of this node's log."""
        return self._site.log.last

    @property
    def at_ms(self) -> int:
        """The time of the last entry."""
        return self._site.log.at_ms

    @property
    def committed(self) -> int:
        """The number of the last entry that may be applied here."""
        return self._site.committed

    @property
    def applied_to(self) -> int:
        """The number of the last entry that was applied."""
        return self._site.log.applied

    @property
    def is_peer_heard(self) -> bool:
        """True if the peer's store speaks."""
        return self._site.peer.is_heard

    @property
    def lag(self) -> int:
        """Entries that the follower's disk lacks, as far as this node knows."""
        log, follower = self._site.log, self._follower
        if self._site.epoch:
            return max(0, log.last.number - self._leader.feeder.acked)
        return max(0, follower.peer_last - min(follower.matched, log.synced))

    @property
    def why_no_groups(self) -> str:
        """Why no request of a serial group may be stored; "" if it may, or the peer is not known."""
        hello = self._site.peer.hello
        return NO_GROUPS if hello is not None and not hello.groups else ""

    @property
    def catch_up(self) -> float:
        """The part of the log that the copy which lags has, from 0.0 to 1.0."""
        last = self._site.log.last.number if self._site.epoch else self._follower.peer_last
        return 1.0 - self.lag / max(last, 1)

    # --- damage ---------------------------------------------------------------------------------------------

    def damaged(self, given: Damaged, now: float) -> list[Output]:
        """Something of this copy is damaged. A node that leads goes on until the peer's copy is whole."""
        site = self._site
        if not self._is_open:
            return []
        site.log.damage = given.text
        site.is_sure = False
        return [site.say_hello(asks=True), *self._rebuild(now)]

    def _rebuild(self, now: float) -> list[Output]:
        """Begin an empty copy if this one is damaged and the peer has all that it had."""
        site = self._site
        if not site.log.damage or not self._is_peer_better():
            return []
        gave_up = None
        if site.epoch:
            gave_up = Position(site.log.history.epoch_at(site.committed), site.committed)
            self._leave()
        mark = replace(site.mark(is_in_sync=False, is_alone=False, is_replaced=True), gave_up=gave_up)
        wanted, epoch_max = site.wanted, site.epoch_max
        self._is_open = False
        self._build(_UNREAD, now)
        self._site.wanted, self._site.epoch_max = wanted, epoch_max
        text = (
            f"this copy is damaged ({site.log.damage}): the peer's has all that it had, and takes its place"
        )
        return [Notice(text), Rebuild(mark)]

    def _is_peer_better(self) -> bool:
        site, hello = self._site, self._site.peer.hello
        if site.epoch:
            return self.is_peer_whole
        if hello is None or not site.peer.is_fresh or hello.must is not None:
            return False
        if hello.leads:
            return has_all_of(site.hello(asks=False), hello)
        return site.better() == Source.PEER

    # --- the node's role ------------------------------------------------------------------------------------

    def opened(self, given: Opened, now: float) -> list[Output]:
        """The disk was read."""
        before = self._site
        self._is_open = True
        self._build(given, now)
        self._site.wanted, self._site.epoch_max = before.wanted, before.epoch_max
        self._tell_at = now + self._site.settings.heartbeat_s
        return [self._site.say_hello(asks=True), *self._decide(now)]

    def lead(self, epoch: int, now: float) -> list[Output]:
        """The node serves, in this epoch. It leads the store at once if it is sure of its copy, otherwise as
        soon as it has compared with the peer.
        """
        site = self._site
        site.wanted = epoch
        site.in_sync.forget()
        if not self._is_open:
            return []
        if site.epoch:
            return self._leader.begin(now) if epoch > site.epoch else []
        if site.is_sure:
            return self._begin(now)
        site.peer.is_fresh = False
        return [site.say_hello(asks=True), *site.ask_arbiter(now), *self._decide(now)]

    def follow(self, now: float) -> list[Output]:
        """The node serves no more."""
        site = self._site
        site.wanted = None
        if not self._is_open:
            return []
        if site.epoch:
            self._leave()
        return [site.say_hello(asks=True)]

    def force(self, now: float) -> list[Output]:
        """An operator says that the store goes on from this copy: what only others have is given up.

        Nothing happens if the node does not serve, or leads the store, or has a new disk beside a peer with a
        copy.
        """
        site = self._site
        if not self._is_open or site.wanted is None or site.epoch or (site.is_new and site.peer.is_heard):
            return []
        return self._begin(now, is_alone=True)

    def peer_serves(self, now: float) -> list[Output]:
        """The peer's node says that it serves. If its store was not heard for long, that may commit alone."""
        site = self._site
        if not self._is_open:
            return []
        if not site.epoch:
            return self._follower.note_life(now)
        is_unproved = self._leader.copies.standing == Standing.JOINING and not self._leader.was_alone
        if not is_unproved or self._follower.is_leased(now):
            return []
        # It took over because it heard nothing, and has not committed anything yet: compare first.
        self._leave()
        return [site.say_hello(asks=True)]

    def _decide(self, now: float) -> list[Output]:
        """May a node that serves lead, by what is known now?"""
        site, peer = self._site, self._site.peer
        if site.wanted is None or site.epoch or site.log.damage:
            return []
        if peer.is_heard and peer.hello is not None and peer.hello.leads:
            is_next = site.is_sure and site.wanted > peer.hello.leads
            return self._begin(now) if is_next else []
        if site.is_sure:
            return self._begin(now)
        if not peer.is_heard:
            # The peer may be alone, too, in a later epoch: give it the time to say so.
            is_silent = now >= peer.heard_at + site.settings.peer_timeout_s
            return self._begin(now) if is_silent and site.may_lead_unheard else []
        if not peer.is_fresh or peer.hello is None:
            return []
        return self._begin(now) if site.better() == Source.OWN else []

    def _begin(self, now: float, *, is_alone: bool = False) -> list[Output]:
        self._follower.leave()
        return self._leader.begin(now, is_alone=is_alone)

    def _leave(self) -> None:
        self._leader.leave()
        self._follower.leave()
        self._site.peer.is_fresh = False

    # --- commands -------------------------------------------------------------------------------------------

    def propose(self, commands: bytes, at_ms: int, now: float) -> list[Output]:
        """Append an entry; it becomes ``last``. Only while ``is_leading``. ``Applied`` with its number tells
        that it is committed; if ``epoch`` changes before, nothing is known of it.
        """
        return self._leader.propose(commands, at_ms, now)

    # --- from the disk --------------------------------------------------------------------------------------

    def written(self, given: Written, now: float) -> list[Output]:
        """Orders are synced, or fail."""
        self._site.log.written(given)
        if self._site.epoch:
            return self._leader.written(now)
        return [*self._follower.written(now), *self._finish(now)]

    def applied(self, given: Applied, now: float) -> list[Output]:
        """An entry was applied."""
        self._site.log.applied = given.number
        self._site.groups = groups_of(given.totals)
        return []

    def log_read(self, given: LogRead, now: float) -> list[Output]:
        """Entries that the peer lacks."""
        return self._leader.log_read(given, now)

    def exported(self, given: Exported, now: float) -> list[Output]:
        """A part of the table for the peer."""
        return self._leader.exported(given, now)

    # --- from the peer --------------------------------------------------------------------------------------

    def receive(self, frames: list[bytes], now: float) -> list[Output]:
        """Handle a message of the peer's store."""
        if not self._is_open:
            return []
        try:
            message = decode(frames)
        except RemoteProtocolError as error:
            return self._refuse(error.reason, error.text)
        site = self._site
        if isinstance(message, Hello):
            return [*self._meet(message, now), *self._rebuild(now)]
        if site.peer.hello is None or message.run != site.peer.hello.run:
            return list(site.ask(now))
        site.peer.note(now)
        match message:
            case Entries() | Part():
                return self._take(message, now)
            case Ack() if self._leader.feeder.is_on and message.epoch == site.epoch:
                return self._leader.acknowledge(message, now)
        return []

    def _refuse(self, reason: str, text: str) -> list[Output]:
        self.refused[reason] += 1
        return [Notice(f"{reason}: {printable(text)}")]

    def _take(self, message: Entries | Part, now: float) -> list[Output]:
        site, hello = self._site, self._site.peer.hello
        assert hello is not None
        if site.log.damage and not site.epoch:
            # This copy is set aside first.
            return list(site.ask(now))
        if site.epoch:
            if not self._outranks(message.is_alone, message.epoch):
                return list(site.ask(now))
            self._leave()
        if message.epoch == 0 and (site.wanted is None or hello.leads or site.better() != Source.PEER):
            # Of a source, without a request for it.
            return []
        if isinstance(message, Part):
            return self._follower.part(message, now)
        return [*self._follower.entries(message, now), *self._finish(now)]

    def _finish(self, now: float) -> list[Output]:
        """A node that serves leads when it has taken over what it lacked."""
        follower = self._follower
        if self._site.wanted is None or self._site.epoch or not follower.is_on:
            return []
        if follower.epoch == 0 and follower.has_all:
            return self._begin(now)
        return self._decide(now)

    def _outranks(self, is_alone: bool, epoch: int) -> bool:
        """Of two nodes that lead, one that is alone goes on; of two, that in the later epoch."""
        return epoch > 0 and (is_alone, epoch) > (self._site.is_alone, self._site.epoch)

    def _meet(self, hello: Hello, now: float) -> list[Output]:
        """The peer says what it has: compare, and let the better copy go on."""
        site, peer = self._site, self._site.peer
        peer.mismatch = mismatch(site.hello(asks=False), hello)
        if peer.mismatch:
            # Nothing that it says counts.
            peer.hello, peer.is_fresh = None, False
            return self._refuse("store-mismatch", peer.mismatch)
        peer.hello, peer.is_fresh = hello, True
        peer.error = ""
        peer.note(now)
        outputs: list[Output] = [site.say_hello(asks=False)] if hello.asks else []
        if site.epoch:
            if not self._knows_more(hello):
                return [*outputs, *self._serve(hello, now)]
            self._leave()
            peer.is_fresh = True
            outputs.append(site.say_hello(asks=True))
        if hello.leads:
            outputs += self._follower.note_life(now)
        elif hello.wants and site.wanted is None and self._may_be_better(hello):
            return [*outputs, *self._leader.feed(hello, now)]
        else:
            self._leader.feeder.stop()
        return [*outputs, *self._decide(now)]

    def _may_be_better(self, hello: Hello) -> bool:
        """True if the peer, which is to lead, may go on from this copy."""
        own = self._site.hello(asks=False)
        whose = source(own, hello)
        return whose == Source.OWN or (whose == Source.NEITHER and (own.is_doubtful or own.is_in_sync))

    def _knows_more(self, hello: Hello) -> bool:
        """True if a leader must give way to the peer."""
        if self._outranks(hello.is_alone, hello.leads):
            return True
        site = self._site
        if not hello.is_alone or site.log.history.has(hello.must or hello.last):
            return False
        # Both alone: the later epoch goes on, also if its node does not lead at this moment.
        return not site.is_alone or hello.last.epoch > site.epoch

    def _serve(self, hello: Hello, now: float) -> list[Output]:
        """Send the peer what it lacks. Above the epochs that it has seen, or it takes nothing."""
        if hello.last.epoch > self._site.epoch:
            return self._leader.begin(now)
        return self._leader.feed(hello, now)

    def peer_lost(self, now: float) -> list[Output]:
        """The connection broke. Both sides say Hello on the next one."""
        if not self._is_open:
            return []
        self._site.peer.lose()
        self._leader.feeder.stop()
        return self._leader.advance(now)

    # --- from the arbiter -----------------------------------------------------------------------------------

    def arbiter_said(self, given: ArbiterSaid, now: float) -> list[Output]:
        """The arbiter says which copies are in sync, and whether a claim is granted."""
        site = self._site
        if not self._is_open or not site.in_sync.hear(given, now):
            return []
        if site.epoch and not site.in_sync.is_refused(site.role):
            return self._leader.advance(now)
        outputs: list[Output] = []
        if site.epoch:
            # Another leader was granted what excludes this one.
            site.epoch_max = max(site.epoch_max, site.in_sync.epoch)
            self._leave()
            outputs.append(site.say_hello(asks=True))
        mark = site.log.mark
        if site.wanted is not None and mark is not None and mark.is_in_sync and site.is_outside:
            outputs.append(site.log.write(mark=site.mark(is_in_sync=False, is_alone=mark.is_alone)))
        return [*outputs, *self._decide(now)]

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` is due."""
        if not self._is_open:
            return None
        pace_at = self._leader.deadline()
        return self._tell_at if pace_at is None else min(self._tell_at, pace_at)

    def handle_timer(self, now: float) -> list[Output]:
        """Heartbeats, silence, and what waits for its time."""
        if not self._is_open:
            return []
        outputs = self._leader.pump(now)
        if now < self._tell_at:
            return outputs
        site, peer = self._site, self._site.peer
        self._tell_at = now + site.settings.heartbeat_s
        outputs += site.in_sync.repeat(now) if site.epoch else site.ask_arbiter(now)
        if peer.is_heard and now >= peer.heard_at + site.settings.peer_timeout_s:
            peer.lose()
            self._leader.feeder.stop()
        outputs += self._leader.advance(now)
        if rebuilt := self._rebuild(now):
            return [*outputs, *rebuilt]
        outputs += self._decide(now)
        outputs += self._leader.trim()
        if self._leader.feeder.is_on:
            return [*outputs, *self._leader.heartbeat()]
        is_content = peer.is_fresh and not site.log.damage and (self._follower.is_on or site.wanted is None)
        return outputs if is_content else [*outputs, *site.ask(now)]
