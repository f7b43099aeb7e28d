"""The broker's tables: its role, services, workers, requests and clients.

The parts of the broker (admission, dispatch, replies, worker registry, endings) share one ledger. They read
and change it. No part knows the ``Broker``, which routes messages to them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import inf

from bstar.wire import durable, mmi, native
from bstar.wire.messages import NodeStatus
from bstar_broker.core.limits import Throttle, limits_of
from bstar_broker.core.mailbox import Mailbox
from bstar_broker.core.observer import Observer, Outcome
from bstar_broker.core.outputs import Notice, Output, Send
from bstar_broker.core.quotas import Account
from bstar_broker.core.records import Accepted, Held, ServiceRecord, WorkerRecord
from bstar_broker.core.services import ServiceTable
from bstar_broker.core.settings import BrokerSettings
from bstar_broker.core.waiting import Waiting

# So many principals with a reason each are named in the log.
_DENIED_MAX = 1_000


class Ledger:
    """The tables of one broker. Parts may keep a reference to a table, because no table is ever replaced."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        node_id: bytes,
        status: Callable[[float], NodeStatus],
        observer: Observer | None,
        now: float,
    ) -> None:
        assert len(node_id) == 16
        self.settings = settings
        self.status = status
        self.observer = observer
        # The epoch of this node's last activation.
        self.epoch = 0
        self.is_serving = False
        # No worker gets another request: this node is about to stop.
        self.is_draining = False
        # No node is known to serve, and this one may soon: plain requests wait, since ``suspended_at``.
        self.is_suspended = False
        self.suspended_at = now
        self.services = ServiceTable(settings.service_ttl_s, now)
        # When the workers of a node that has just started have registered (``Throttle``).
        self._settled_at = now + settings.worker_heartbeat_interval_s * settings.worker_liveness
        # When services may go on whose limits hold requests back, by the time alone. ``wake_at``: the
        # first of these times, or when the broker tidies.
        self.opens_at: dict[ServiceRecord, float] = {}
        self.wake_at = inf
        # By routing id.
        self.workers: dict[bytes, WorkerRecord] = {}
        # By their names in listings. Of two with one name it is the later one: the other's connection ended.
        self.named: dict[bytes, WorkerRecord] = {}
        # Single requests that have an identity, to recognise a repetition. Bundles have a table of their own.
        self.by_identity: dict[bytes, Accepted] = {}
        # How many requests each client has here. A client with none has no entry.
        self.requests_of: dict[bytes, int] = {}
        # The accounts of clients whose principals may have so many requests outstanding (``quotas``).
        self.accounts: dict[bytes, Account] = {}
        self.waiting = Waiting(settings)
        # What becomes of the requests of the durable store.
        self.mailbox = Mailbox()
        # Services whose names begin so are the broker's own.
        self.reserved: tuple[bytes, ...] = (mmi.PREFIX, durable.PREFIX)
        self.own_services: frozenset[bytes] = frozenset()
        # How many workers have registered so far.
        self.registrations = 0
        # How many bytes requests may still take. The shell sets it; each accepted request lowers it.
        self.memory_left = 1 << 62
        # Where the message in hand comes from, for listings. The shell knows it.
        self.address: Callable[[], str] = str
        # Dropped messages, by reason.
        self.drops: Counter[str] = Counter()
        # Principals, each with a reason for which a message of theirs was dropped.
        self._denied: set[tuple[str, str]] = set()
        self._node_id = node_id
        # Names for requests whose clients have no request numbers.
        self.identities: Iterator[bytes] = (native.identity(node_id, number) for number in count(1))

    def add_service(self, name: bytes, now: float) -> ServiceRecord:
        """Add an unknown service, with its limits."""
        service = self.services.add(name, now)
        self.limit(service, now)
        return service

    def limit(self, service: ServiceRecord, now: float) -> bool:
        """Give the service the limits of the configuration; False if it has them already."""
        limits = limits_of(service.name, self.settings.services)
        if limits == service.limits:
            return False
        service.limits, service.throttle = limits, None
        if limits.running_max is not None or limits.requests_per_s is not None:
            service.throttle = Throttle(limits, self._settled_at, now)
        service.set_gate()
        return True

    def offers(self, name: bytes, service: ServiceRecord) -> bool:
        """True if a worker of this service has this name."""
        worker = self.named.get(name)
        return worker is not None and worker.service is service

    def hold_back(self, service: ServiceRecord, until: float) -> None:
        """Its limits hold its requests back until then."""
        self.opens_at[service] = until
        self.wake_at = min(self.wake_at, until)

    def held(self, now: float) -> defaultdict[ServiceRecord, Held]:
        """The requests that the workers of each service hold."""
        held: defaultdict[ServiceRecord, Held] = defaultdict(Held)
        for worker in self.workers.values():
            of_service = held[worker.service]
            of_service.credit += worker.credit
            of_service.count += worker.held
            for bundle in worker.bundles:
                of_service.add(bundle.dispatched_at, bundle.left, now)
            for request in worker.in_flight.values():
                of_service.add(request.dispatched_at, 1, now)
        return held

    def drop(self, reason: str) -> None:
        """Count a dropped message. ``reason`` is one of our own words, never text from the wire."""
        self.drops[reason] += 1

    def note(self, reason: str, text: str) -> list[Output]:
        """Count a drop. The first of each reason goes to the log: its sender may get no other sign."""
        self.drop(reason)
        if self.drops[reason] > 1:
            return []
        return [Notice(f"dropped, {reason}: {text}; the next ones of this kind are only counted")]

    def note_denied(self, reason: str, text: str, who: str) -> list[Output]:
        """Before a drop is counted: the first of each principal goes to the log, too."""
        if not who or (who, reason) in self._denied or len(self._denied) >= _DENIED_MAX:
            return []
        self._denied.add((who, reason))
        return [Notice(f"dropped, {reason}: {text}")] if self.drops[reason] else []

    def identify(self, request: Accepted) -> bytes:
        """Name a request whose client has no numbers. Its codec ignores the name."""
        request.identity = next(self.identities)
        return request.identity

    def has_named(self, identity: bytes) -> bool:
        """True if this is a name that this node gave to a request."""
        return identity.startswith(self._node_id)

    def report(self, request: Accepted, outcome: Outcome, reply: Sequence[bytes], now: float) -> None:
        """Tell the observer, if there is one, how a request ended."""
        if self.observer is not None:
            if not request.identity:
                self.identify(request)
            self.observer.ended(request, outcome, self.epoch, reply, now)

    def count_ended(self, client: bytes, ended: int) -> None:
        """``ended`` requests of this client have ended."""
        held = self.requests_of.get(client, 0)
        if held > ended:
            self.requests_of[client] = held - ended
        else:
            self.requests_of.pop(client, None)
        if self.accounts:
            self.charge(client, -ended)

    def charge(self, client: bytes, count: int) -> None:
        """Its principal has so many outstanding requests more, or fewer."""
        account = self.accounts.get(client)
        if account is not None:
            account.held += count

    def tidy_accounts(self) -> None:
        """Forget the accounts of clients without a request."""
        for client in [each for each in self.accounts if each not in self.requests_of]:
            del self.accounts[client]

    def forget(self, request: Accepted) -> None:
        """A request has ended: remove it from the tables."""
        held = self.requests_of.get(request.lane, 0)  # as ``count_ended``, without the call: 2 % of a request
        if held > 1:
            self.requests_of[request.lane] = held - 1
        else:
            self.requests_of.pop(request.lane, None)
        if self.accounts:
            self.charge(request.lane, -1)
        if request.identity:
            self.by_identity.pop(request.identity, None)
        # The deadline line may keep the record until its time to live ends.
        request.body = []
        if request.held is not None:
            request.held = None

    @staticmethod
    def answer(request: Accepted, frames: list[bytes] | None, outputs: list[Output]) -> None:
        """Send to every client that waits for this request. None: their dialect cannot say it."""
        if frames is not None:
            outputs.append(Send(frames))
            if request.askers is not None:
                outputs += [Send([asker, *frames[1:]]) for asker in request.askers]
