"""What the owner of a connection may do here: one rule for each kind of message.

A connection bears the user id that ZAP gave it. Its routing id proves nothing, because a connection may claim
any (ZMTP, Identity). So the first user id that a message from a routing id bears owns that routing id; a
message of another user id shows that libzmq gave the routing id to another connection (ROUTER_HANDOVER). The
broker then forgets what it held for the first owner.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from bstar.base.printable import printable
from bstar.security.principals import Principal
from bstar.wire import mmi
from bstar.wire.messages import Cancel, Directed, FromPeer, Heartbeat, Ping, Ready, Request, Requests
from bstar.wire.refusals import CALL_NOT_ALLOWED
from bstar_broker.core.ledger import Ledger
from bstar_broker.core.quotas import WITHDRAWN, Denial, Nowhere, Origin, Quotas
from bstar_broker.core.records import WorkerRecord

OWN: Final = "\0front"
"""The user id of what a front says in its own name: it may do all. ZAP gives none that begins so."""

# A generation of owners of routing ids ends after this time or with so many of them.
_GENERATION_S = 3_600.0
_OWNERS_MAX = 200_000


class Authority:
    """Asks the principals. ``find`` returns the principal of a user id, None if its key is not listed now."""

    def __init__(
        self, find: Callable[[str], Principal | None], ledger: Ledger, origin: Origin | None = None
    ) -> None:
        self._find = find
        self._origin = origin or Nowhere()
        self._ledger = ledger
        self._workers, self._requests_of = ledger.workers, ledger.requests_of
        self.quotas = Quotas(self._origin, ledger.accounts, ledger.requests_of)
        # User id and address. Two generations: an owner that is not heard for one of them is forgotten with
        # the next, unless a worker or a request of it is still here.
        self._owners: dict[bytes, tuple[str, str]] = {}
        self._older_owners: dict[bytes, tuple[str, str]] = {}
        self._generation_ends_at = -inf

    def is_new_owner(self, routing_id: bytes, user_id: str, now: float) -> bool:
        """True if the routing id was another's until now; from now on it belongs to ``user_id``."""
        owner = self._owners.get(routing_id)
        if owner is not None and owner[0] == user_id:
            return False
        if owner is None:
            owner = self._older_owners.pop(routing_id, None)
        if len(self._owners) >= _OWNERS_MAX or now >= self._generation_ends_at:
            self._begin_generation(now)
        self._owners[routing_id] = user_id, self._origin.address()
        return owner is not None and owner[0] != user_id

    def _begin_generation(self, now: float) -> None:
        self._generation_ends_at = now + _GENERATION_S
        older, owners = self._older_owners, self._owners
        kept = (routing_id for table in (self._workers, self._requests_of) for routing_id in table)
        self._owners = {each: owner for each in kept if (owner := owners.get(each) or older.get(each))}
        self._older_owners = owners

    def describe(self, user_id: str) -> str:
        """Who sent the message in hand, for the log."""
        name, _, key = user_id.partition(" ")
        return f"{name} (key {key}, from {self._origin.address()})"

    def judge_worker(self, worker: WorkerRecord) -> Denial | None:
        """Why the owner of its connection may not offer its service now; None if it may."""
        routing_id = worker.routing_id
        owner = self._owners.get(routing_id) or self._older_owners.get(routing_id)
        if owner is None:
            return None  # forgotten in a flood of routing ids; its next heartbeat tells
        user_id, address = owner
        if user_id == OWN:
            return None
        principal = self._find(user_id)
        if principal is None:
            return _unlisted(user_id, address)
        return _judge_offer(worker.service.name, principal, user_id, lambda: address)

    def principal(self, user_id: str) -> Principal | None:
        """The principal of a connection, None if its key is not listed any more."""
        return self._find(user_id)

    def judge(self, message: FromPeer, user_id: str, now: float) -> Denial | None:
        """Why this message may not be acted upon; None if it may."""
        principal = self._find(user_id)
        if principal is None:
            return self._judge_withdrawn(user_id, now)
        if principal.quota is not None and (denial := self.quotas.judge_message(principal, now)) is not None:
            return denial
        kind = type(message)
        if kind is Request or kind is Requests or kind is Directed:
            denial = self._judge_call(message.service, principal)  # type: ignore[union-attr]
            if denial is None and principal.quota is not None:
                return self.quotas.judge_requests(message, principal, now)  # type: ignore[arg-type]
            return denial
        if kind is Ready:
            return _judge_offer(message.service, principal, user_id, self._origin.address)  # type: ignore[union-attr]
        if kind is Heartbeat and (worker := self._workers.get(message.sender)) is not None:
            return _judge_offer(worker.service.name, principal, user_id, self._origin.address)
        if kind is not Ping and kind is not Cancel and not principal.offers:
            return Denial("no-worker", f"{principal.name} is no worker: its entry has no offers")
        return None

    def judge_unread(self, user_id: str, now: float) -> Denial | None:
        """As ``judge``, for a message that no codec could read."""
        match self._find(user_id):
            case None:
                return self._judge_withdrawn(user_id, now)
            case Principal(quota=None):
                return None
            case principal:
                return self.quotas.judge_message(principal, now)

    def judge_split(self, request: Request, user_id: str, now: float) -> Denial | None:
        """As ``judge``, for one request of a batch that was judged."""
        principal = self._find(user_id)
        assert principal is not None
        return self.quotas.judge_requests(request, principal, now)

    def _judge_withdrawn(self, user_id: str, now: float) -> Denial | None:
        if user_id == OWN:
            return None
        beyond = self.quotas.judge_message(WITHDRAWN, now)
        return _unlisted(user_id, self._origin.address()) if beyond is None else beyond

    def _judge_call(self, service: bytes, principal: Principal) -> Denial | None:
        if service.startswith(mmi.PREFIX):
            if service == mmi.ORDER:
                return None  # ``NetworkOrders`` decides, and the journal has its refusals
            if principal.is_operator or (principal.calls and service != mmi.Service.STATE.value):
                return None
            text = f'{principal.name} may not ask for "{printable(service)}"'
            needs = "operator: true" if service == mmi.Service.STATE.value else "calls, or operator: true"
            return Denial(CALL_NOT_ALLOWED.reason, f"{text}: its entry needs {needs}", who=principal.name)
        if service.startswith(self._ledger.reserved):
            # The store asks for the service that is to do the work.
            if principal.calls or principal.is_operator:
                return None
            text = f'{principal.name} may not ask for "{printable(service)}"'
            text = f"{text}: its entry needs calls, or operator: true"
            return Denial(CALL_NOT_ALLOWED.reason, text, who=principal.name)
        if principal.calls.match(service):
            return None
        text = (
            f'{principal.name} may not call service "{printable(service)}": no pattern of its calls matches'
        )
        return Denial(CALL_NOT_ALLOWED.reason, text, who=principal.name)


def _judge_offer(
    service: bytes, principal: Principal, user_id: str, address: Callable[[], str]
) -> Denial | None:
    if principal.offers.match(service):
        return None
    name, _, key = user_id.partition(" ")
    text = f'{name} may not offer service "{printable(service)}": no pattern of its offers matches'
    return Denial("offer-not-allowed", f"{text} (key {key}, from {address()})", who=name)


def _unlisted(user_id: str, address: str) -> Denial:
    name, _, key = user_id.partition(" ")
    text = f"{name} is not in the list of principals with its key {key} any more; it asks from {address}"
    return Denial("key-not-listed", text, who=name)
