"""The durable store of one node: replication, the desk for clients and the runner as one sans-I/O machine.

``Node`` hands it the operations of clients and tells it when the node serves. The shell hands it what disk
and peer say (``hear``) and carries out its orders to them. All that changes the table goes one way:

    client or worker -> Order -> entry (propose) -> disks -> Applied -> answer to the client, work for the
    runner

Orders wait while a few entries are under way, and then leave as one entry: one message to the peer, one sync.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from bstar.base.printable import counted
from bstar.security.principals import Principal
from bstar.wire import durable
from bstar.wire.durable import Service, State, Submit
from bstar.wire.messages import Request, Requests
from bstar_broker.core.broker import Broker
from bstar_broker.core.outputs import Output, StoreInput
from bstar_broker.core.snapshot import DiskState, StoreState
from bstar_broker.store.core import commands, schedules, titanic
from bstar_broker.store.core.commands import Answered, Failed, Swept
from bstar_broker.store.core.desk import ENTRY_BYTES_MAX, Desk, Order, rows_of
from bstar_broker.store.core.events import (
    Applied,
    ArbiterSaid,
    Change,
    Damaged,
    DueFound,
    Exported,
    Found,
    LogRead,
    Opened,
    PeerLost,
    PeerSaid,
    Replaced,
    Written,
)
from bstar_broker.store.core.replica import Replica
from bstar_broker.store.core.runner import Runner
from bstar_broker.store.core.schedules import Schedules
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.tally import StoreObserver, Tally
from bstar_broker.store.core.titanic import Titanic

# Entries under way at once: the next one is made while disk and peer work on the one before.
_UNDER_WAY_MAX = 2
# An entry takes orders until it has so many rows.
_ENTRY_ROWS_MAX = 4_096
_SWEEP_INTERVAL_S = 60.0
_SWEEP_LIMIT = 1_000
# Seconds that are remembered, in some 10 MB.
_SECONDS_MAX = 100_000
_TICK_S = 0.1

# A clock that was set ahead makes no answer old until it has stayed ahead for so long.
_LEAP_MS = 60_000
_LEAP_S = 3_600.0


class Age:
    """Unix time by which answers and dead letters are old, in milliseconds: the wall clock's. If that was set
    ahead, by mistake or after one, it counts when it has stayed ahead for an hour.
    """

    def __init__(self) -> None:
        # A moment, and the node's clock then.
        self._ms, self._at = 0, 0.0
        self._leapt_at = inf

    def begin(self, ms: int, now: float) -> None:
        """It is this now."""
        self._ms, self._at, self._leapt_at = ms, now, inf

    def ms(self, wall_ms: int, now: float) -> int:
        """The time."""
        ms = self._ms + int((now - self._at) * 1000)
        if wall_ms > ms + _LEAP_MS:
            self._leapt_at = min(self._leapt_at, now)
            if now < self._leapt_at + _LEAP_S:
                return ms
        self.begin(wall_ms, now)
        return wall_ms


class Sweeps:
    """When to propose the next sweep: every minute, and in the seconds (Unix time) in which requests expire,
    as far as they are remembered.

    ``at`` is on the node's clock.
    """

    def __init__(self) -> None:
        self.at = inf
        self._seconds: list[int] = []
        self._known: set[int] = set()

    def add(self, expires_ms: int) -> None:
        """A request expires at this time."""
        second = -(-expires_ms // 1000)
        if second not in self._known and len(self._known) < _SECONDS_MAX:
            self._known.add(second)
            heappush(self._seconds, second)

    def is_due(self, now_ms: int, now: float) -> bool:
        """True if it is time; the next one is a minute away then."""
        seconds = self._seconds
        if now < self.at and not (seconds and now_ms >= 1000 * seconds[0]):
            return False
        while seconds and now_ms >= 1000 * seconds[0]:
            self._known.remove(heappop(seconds))
        self.at = now + _SWEEP_INTERVAL_S
        return True


class DurableStore:
    """A ``bstar_broker.core.store.Store``.

    ``wall_ms`` returns Unix time in milliseconds, ``random`` so many unguessable bytes.
    """

    services = (*(service.value for service in Service), *titanic.SERVICES)
    prefixes: tuple[bytes, ...] = (durable.PREFIX, titanic.PREFIX)

    def __init__(
        self,
        broker: Broker,
        settings: StoreSettings,
        replica: Replica,
        *,
        wall_ms: Callable[[], int],
        random: Callable[[int], bytes],
        disk_state: Callable[[], DiskState] | None = None,
        now: float,
    ) -> None:
        self.replica = replica
        self._settings = settings
        self._wall_ms = wall_ms
        self._disk_state = disk_state
        self._desk = Desk(broker.ledger, settings, why_no_submit=self._why_no_submit, wall_ms=wall_ms)
        self._titanic = Titanic(self._desk, lambda: durable.new_id(wall_ms(), random(10)))
        self._runner = Runner(broker)
        self._schedules = Schedules()
        # The orders of each entry that is under way, by its number.
        self._under_way: dict[int, list[Order]] = {}
        self._tally = Tally()
        # The number of the first entry of its own epoch; it serves once that one is applied.
        self._began = 0
        self._is_ready = False
        self._tick_at = now + _TICK_S
        self._sweeps = Sweeps()
        self._age = Age()
        # A moment of the store's time, and the node's clock then.
        self._time_then_ms, self._time_at = 0, now

    def _time_ms(self, now: float) -> int:
        """The store's time: Unix time that never goes back, as that of the log does not, nor stands still.

        The wall clock may be set back, or that of the node that led before may be ahead.
        """
        time_ms = self._time_then_ms + int((now - self._time_at) * 1000)
        ahead_ms = max(self._wall_ms(), self.replica.at_ms)
        if ahead_ms < time_ms:
            return time_ms
        self._time_then_ms, self._time_at = ahead_ms, now
        return ahead_ms

    # --- clients --------------------------------------------------------------------------------------------

    def receive(self, message: Request | Requests, principal: Principal | None, now: float) -> list[Output]:
        """Handle an operation, or a batch of submits."""
        if not isinstance(message, Requests):
            return self._receive(message, principal, now)
        if self._is_ready and message.service == Service.SUBMIT.value:
            return self._desk.receive_batch(message, principal)
        outputs: list[Output] = []
        for request in rows_of(message):
            outputs += self._receive(request, principal, now)
        return outputs

    def _receive(self, message: Request, principal: Principal | None, now: float) -> list[Output]:
        is_titanic = message.service.startswith(titanic.PREFIX)
        if self._is_ready:
            return (self._titanic if is_titanic else self._desk).receive(message, principal, now)
        if is_titanic:
            # The vote itself may be such an operation, and published clients end at 500.
            is_kept = not self.trouble and self._desk.keep(message, principal)
            return [] if is_kept else self._titanic.refuse(message)
        return self._desk.refuse_waiting(message, self.trouble or "the store of this node begins to lead")

    def forget(self, request: bytes) -> bool:
        """See ``Store``."""
        return self._is_ready and self._desk.forget(request)

    @property
    def trouble(self) -> str:
        """Why it does not lead although the node serves; "" otherwise."""
        return self.replica.trouble

    @property
    def is_storing(self) -> bool:
        """True while the ends of attempts are on their way to the disks."""
        return self._runner.is_storing

    def _why_no_submit(self, submit: Submit) -> str:
        if self._settings.when_alone == "refuse" and self.replica.copies < 2:
            return "the peer's disk cannot be reached, so the request would be on one disk only (when_alone)"
        return self.trouble or self._why_full() or (self.replica.why_no_groups if submit.group else "")

    def _why_full(self) -> str:
        settings, totals = self._settings, self._tally.totals
        if totals.count_all >= settings.requests_max:
            requests = counted(totals.count_all, "request")
            held = f"{requests} (store.requests_max), {totals.pending} of them pending"
        elif totals.size_bytes >= settings.bytes_max:
            held = (
                f"{totals.size_bytes} bytes (store.bytes_max), {counted(totals.pending, 'request')} pending"
            )
        else:
            return ""
        return f"the store holds {held}: start workers for these, close what was fetched, or raise the bound"

    # --- disk and peer --------------------------------------------------------------------------------------

    def hear(self, given: StoreInput, now: float) -> list[Output]:
        """Handle what disk or peer say."""
        replica = self.replica
        match given:
            case Applied():
                outputs = replica.applied(given, now)
                outputs += self._apply(given, now)
            case Written():
                outputs = replica.written(given, now)
            case PeerSaid():
                outputs = replica.receive(given.frames, now)
            case Found(token=schedules.TOKEN):
                outputs = self._schedules.found(given) if self._is_ready else []
            case Found():
                outputs = self._desk.found(given, now)
            case DueFound():
                outputs = self._runner.found(given, self._time_ms(now), now)
            case LogRead():
                outputs = replica.log_read(given, now)
            case Exported():
                outputs = replica.exported(given, now)
            case PeerLost() | Damaged():
                outputs = (
                    replica.damaged(given, now) if isinstance(given, Damaged) else replica.peer_lost(now)
                )
            case ArbiterSaid():
                outputs = replica.arbiter_said(given, now)
            case Opened() | Replaced():
                self._tally.totals = given.totals
                self._runner.services.update(given.due)
                outputs = replica.opened(given, now) if isinstance(given, Opened) else []
            case _:
                raise TypeError(f"no input of the store: {given!r}")
        return outputs

    def _apply(self, applied: Applied, now: float) -> list[Output]:
        """An entry has been applied: first its effects, then the answers to those who wait for them."""
        self._tally.applied(applied, self.replica.last.epoch, now)
        outputs: list[Output] = []
        now_ms = self._time_ms(now)
        for change in applied.changes:
            self._take_in(change, now_ms, now, outputs)
        orders = self._under_way.pop(applied.number, ())
        is_kept = self._settings.when_alone == "accept" or self.replica.copies_of(applied.number) > 1
        acknowledged = self._desk.acknowledged
        at = 0
        for order in orders:
            if order.done is not None:
                outputs += order.done(applied.changes[at : at + order.changes], is_kept)
            at += order.changes
            self._desk.waiting_bytes -= order.size_bytes
        if self.replica.copies < 2:
            self._tally.acknowledged_alone += self._desk.acknowledged - acknowledged
        if len(applied.changes) >= _SWEEP_LIMIT and isinstance(applied.changes[-1].command, Swept):
            self._sweeps.at = now  # there is more
        if not self._is_ready and self.replica.is_leading and applied.number >= self._began > 0:
            outputs += self._begin(applied.number, now)
        return outputs

    def _take_in(self, change: Change, now_ms: int, now: float, outputs: list[Output]) -> None:
        old, new = change.old, change.new
        if old is not None and old.group and new is not old:
            self._runner.note_due(old.service)
        if new is None:
            outputs += self._runner.ended(change.id, now)
            self._schedules.forget(change.id)
            outputs += self._desk.closed(change.id)
        elif new is old:
            if isinstance(change.command, Answered | Failed):
                outputs += self._runner.ended(change.id, now)
        elif new.repeat is not None:
            if self._is_ready:
                self._schedules.note(new)
        elif new.state == State.PENDING:
            if new.expires_ms:
                self._sweeps.add(new.expires_ms)
            outputs += self._runner.ended(change.id, now)
            outputs += self._runner.pending(new, now_ms, now)
        else:
            outputs += self._runner.ended(change.id, now)
            outputs += self._desk.ended(new)

    def observe(self, observer: StoreObserver) -> None:
        """Report to it from now on."""
        self._tally.observer = self._desk.observer = observer

    # --- the role -------------------------------------------------------------------------------------------

    def lead(self, epoch: int, now: float) -> list[Output]:
        """The node serves, in this epoch."""
        self._age.begin(self.replica.at_ms or self._wall_ms(), now)
        return self.replica.lead(epoch, now) + self._follow_replica(now)

    def follow(self, now: float) -> list[Output]:
        """The node serves no more."""
        return self._stop(now) + self.replica.follow(now)

    def peer_serves(self, now: float) -> list[Output]:
        """The peer says that it serves."""
        return self.replica.peer_serves(now)

    def force(self, now: float) -> list[Output]:
        """An operator says that the store goes on from this copy (``Replica.force``)."""
        return self.replica.force(now) + self._follow_replica(now)

    def _follow_replica(self, now: float) -> list[Output]:
        """The replica may lead later than the node serves, and may cease to while it does."""
        if not self.replica.is_leading:
            return self._stop(now) if self._began else []
        if not self._began:
            self._began = self.replica.last.number
            # After its disk has failed it leads again in the same epoch, and no entry is to come.
            if self.replica.applied_to >= self._began:
                return self._begin(self._began, now)
        return []

    def _stop(self, now: float) -> list[Output]:
        """What was asked here and has no answer may be done or not: clients ask again."""
        self._is_ready = False
        self._began = self._tally.copies = 0
        self._sweeps.at = inf
        self._runner.stop(now)
        self._schedules.stop()
        orders = [order for under_way in self._under_way.values() for order in under_way]
        self._under_way.clear()
        return self._desk.leave(orders, now)

    def _begin(self, applied: int, now: float) -> list[Output]:
        self._is_ready = True
        self._runner.begin((applied + 1) << 20)
        self._sweeps.at = now
        outputs = self._schedules.begin()
        for message, principal in self._desk.kept():
            outputs += self._titanic.receive(message, principal, now)
        return outputs

    # --- after each input -----------------------------------------------------------------------------------

    def settle(self, now: float) -> list[Output]:
        """Read what has become of requests at the broker, look for work, and propose what waits."""
        outputs: list[Output] = []
        if self.replica.is_leading != (self._began > 0):
            outputs += self._follow_replica(now)
        runner, orders = self._runner, self._desk.orders
        is_news = runner.collect(now)
        if not self._is_ready:
            return outputs
        if is_news:
            for command in runner.commands:
                size_bytes = sum(map(len, command.frames)) if isinstance(command, Answered) else 0
                self._desk.take(Order(command, 1, size_bytes=size_bytes))
            runner.commands.clear()
        if runner.is_stirred:
            outputs += runner.look_again(self._time_ms(now), now)
        while orders and len(self._under_way) < _UNDER_WAY_MAX and self.replica.is_leading:
            outputs += self._propose(self._take_orders(), now)
        return outputs

    def _take_orders(self) -> list[Order]:
        orders, rows, size_bytes, count = self._desk.orders, 0, 0, 0
        for order in orders:
            is_much = (
                rows + order.changes > _ENTRY_ROWS_MAX or size_bytes + order.size_bytes > ENTRY_BYTES_MAX
            )
            if count and is_much:
                break
            rows += order.changes
            size_bytes += order.size_bytes
            count += 1
        taken = orders[:count]
        del orders[:count]
        return taken

    def _propose(self, orders: list[Order], now: float) -> list[Output]:
        encoded = commands.encode([order.command for order in orders])
        outputs = self.replica.propose(encoded, self._time_ms(now), now)
        self._under_way[self.replica.last.number] = orders
        return outputs

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The next tick, or what is due sooner."""
        due = self.replica.next_deadline()
        if not self._is_ready:
            return due
        return self._tick_at if due is None else min(due, self._tick_at)

    def handle_timer(self, now: float) -> list[Output]:
        """Replication, requests that become due, waits that end, and the sweep."""
        due = self.replica.next_deadline()
        outputs = self.replica.handle_timer(now) if due is not None and now >= due else []
        if not self._is_ready or now < self._tick_at:
            return outputs
        self._tick_at = now + _TICK_S
        self._tally.lag_s(self.replica.last.number, self.replica.lag, now)
        is_refusing = self._settings.when_alone == "refuse"
        copies, is_peer_heard = self.replica.copies, self.replica.is_peer_heard
        outputs += self._tally.tell_copies(copies, is_peer_heard=is_peer_heard, is_refusing=is_refusing)
        outputs += self._desk.expire(now)
        now_ms = self._time_ms(now)
        outputs += self._runner.look(now_ms, now)
        if not self._why_full():
            room = self._settings.requests_max - self._tally.totals.count_all
            for fired, size_bytes in self._schedules.due(self._wall_ms(), room, ENTRY_BYTES_MAX):
                self._desk.take(Order(fired, 1 + len(fired.runs_ms), size_bytes=size_bytes))
        if self._sweeps.is_due(now_ms, now) and self.replica.is_leading:
            keep_ms = round(self._settings.keep_answers_s * 1000)
            keep_dead_ms = round(self._settings.keep_dead_s * 1000)
            age_ms = self._age.ms(self._wall_ms(), now)
            swept = Swept(age_ms - keep_ms, age_ms - keep_dead_ms, _SWEEP_LIMIT)
            outputs += self._propose([Order(swept, 0)], now)
        return outputs

    # --- for people and monitors ----------------------------------------------------------------------------

    def state(self, now: float) -> StoreState:
        """A snapshot."""
        replica, totals = self.replica, self._tally.totals
        disk = None if self._disk_state is None else self._disk_state()
        # The disk looks now and then, and what it saw may have ended since.
        waiting_since_ms = 0 if disk is None or not totals.pending else disk.oldest_due_ms
        return StoreState(
            is_leading=self._is_ready,
            trouble=replica.trouble,
            copies=replica.copies,
            epoch=replica.last.epoch,
            last=replica.last.number,
            committed=replica.committed,
            applied=replica.applied_to,
            lag_entries=replica.lag,
            is_peer_heard=replica.is_peer_heard,
            catch_up=replica.catch_up,
            pending=totals.pending,
            answered=totals.answered,
            dead=totals.dead,
            cancelled=totals.cancelled,
            scheduled=totals.scheduled,
            octets=totals.size_bytes,
            requests_max=self._settings.requests_max,
            octets_max=self._settings.bytes_max,
            running=len(self._runner.running),
            waiting_fetches=self._desk.waiting,
            acknowledged=self._desk.acknowledged,
            attempts=dict(self._runner.attempts),
            oldest_pending_s=max(0, self._wall_ms() - waiting_since_ms) / 1000 if waiting_since_ms else 0.0,
            disk=disk,
            lag_s=self._tally.lag_s(replica.last.number, replica.lag, now),
            ended=dict(self._tally.ended),
            acknowledged_alone=self._tally.acknowledged_alone,
            progress=self._runner.progress(),
        )
