"""Publications: what publishers send with PUBLISH goes out through the subscribers' door, a PUB socket.

To the broker the door is a worker of the service ``emq.publish``, and a PUBLISH is a request to it. So a
PUBLISH is a vote, the passive node refuses it, and peers of every dialect publish by a request with the body
``[topic] [message]``. A subscriber connects to both nodes and gets each publication once, because one node
serves.

The worker answers when the publication was handed to the socket. The answer does not say that a subscriber
got it: PUB drops for subscribers that are absent or behind (T-10), and nothing is kept for them.
"""

from bstar.errors import RemoteProtocolError
from bstar.security.principals import Principal
from bstar.wire import emq
from bstar.wire.dialect import Dialect
from bstar.wire.emq_jobs import encode_result
from bstar.wire.front import Order, Verb, peer_id
from bstar.wire.messages import NEVER_MS, Disconnect, ErrorCode, Failure, Final, Ready
from bstar_broker.core.authority import OWN
from bstar_broker.core.outputs import FrontSend, Output
from bstar_broker.fronts.emq.desk import NAME, SUBSCRIBERS, Desk
from bstar_broker.fronts.emq.managers import Managers

SERVICE = b"emq.publish"
# A subscriber may be so many publications behind.
QUEUE_MAX = 1_000
# No service, but a right: a principal whose ``calls`` match it may subscribe.
_SUBSCRIBE = b"emq.subscribe"
_DONE = encode_result(True)


def may_subscribe(principal: Principal) -> bool:
    """The rule of the subscribers' door."""
    return principal.calls.match(_SUBSCRIBE)


class Publications:
    """The worker that is the subscribers' door. ``managers`` is the way to the broker."""

    def __init__(self, desk: Desk, managers: Managers) -> None:
        self._inlet = desk.inlet
        self._desk = desk
        self._receive = managers.receive
        self._peer = peer_id(NAME, SUBSCRIBERS, b"")
        self._is_open = desk.settings.has_subscribers
        self.subscribers = 0
        self.published = 0

    def offer(self, now: float) -> list[Output]:
        """Register the worker if it is not: at the start, and after the broker has sent it away."""
        if not self._is_open or self._peer in self._inlet.workers:
            return []
        ready = Ready(self._peer, Dialect.FRONT, (), SERVICE, heartbeat_ms=NEVER_MS, expiry_ms=NEVER_MS)
        return self._receive(ready, now, OWN)

    def close(self, now: float) -> list[Output]:
        """Publish nothing more."""
        self._is_open = False
        if self._peer not in self._inlet.workers:
            return []
        return self._receive(Disconnect(self._peer, Dialect.FRONT), now, OWN)

    def deliver(self, order: Order, now: float) -> list[Output]:
        """Publish what a request says, and answer it."""
        if order.verb is not Verb.REQUEST:
            return []
        try:
            frames = emq.publication(list(map(bytes, order.body)))
        except RemoteProtocolError as error:
            text = error.text.encode()
            failure = Failure(self._peer, order.identity, ErrorCode.INVALID.value, text, b"")
            return self._receive(failure, now, OWN)
        self.published += 1
        done = Final(self._peer, Dialect.FRONT, (), order.identity, [_DONE])
        return [FrontSend(NAME, SUBSCRIBERS, frames), *self._receive(done, now, OWN)]

    def missed(self) -> list[Output]:
        """The queue of a subscriber was full: it does not get the publication, all others do."""
        return self._desk.note("slow-subscriber", "a subscriber reads too slowly, and misses publications")
