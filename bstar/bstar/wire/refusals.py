"""The reasons why a node refuses a request, one entry for each: a row of docs/operations.md ("Refusals").

A new reason is an entry here and the rule that returns it. The metric ``bstar_drops_total`` and the journal
carry ``reason``, the client's error and the log carry ``text``, and the pipeline's objectives count what
``is_of_service``. Where a refusal depends on more than its reason, its rule fills the text in (``saying``).
"""

import msgspec

from bstar.wire.dialect import Asker, ClientCodec
from bstar.wire.messages import ErrorCode

# A full queue has room again after about this time.
QUEUE_RETRY_MS = 50
# Memory takes longer to become free, and so do the disks of the store.
_SLOW_RETRY_MS = 1_000


class Refusal(msgspec.Struct, frozen=True):
    """One reason. Without a ``code`` the client gets BUSY and may send it again after ``retry_after_ms``.

    With a ``code`` it gets ERROR. ``do``: what a person does about it, as Markdown. ``is_of_service``: it
    counts among the requests of the service, and the service's objective with it.
    """

    reason: str
    text: str
    do: str
    code: ErrorCode | None = None
    retry_after_ms: int = QUEUE_RETRY_MS
    is_of_service: bool = False

    @property
    def may_have_run(self) -> bool:
        """True if an earlier attempt may have been executed. This attempt was not."""
        return self.code is ErrorCode.WORKER_LOST

    def saying(self, text: str) -> "Refusal":
        """The same refusal with a text of this case."""
        return msgspec.structs.replace(self, text=text)

    def frames(self, codec: ClientCodec, asker: Asker, epoch: int) -> list[bytes] | None:
        """The message to the client; None if its dialect cannot say it."""
        text = self.text.encode()
        if self.code is None:
            return codec.busy(asker, epoch, self.retry_after_ms, text)
        return codec.failure(asker, epoch, self.code, text)


QUEUE_FULL = Refusal(
    "queue-full",
    "the service's queue is full",
    "more workers, or raise `limits.queue_length_max`, or the service's [own](#limits-of-a-service)",
    is_of_service=True,
)
BYTES_FULL = Refusal(
    "bytes-full",
    "the queues hold too many bytes",
    "smaller bodies, or raise `limits.queue_bytes_max`",
    is_of_service=True,
)
CLIENT_FULL = Refusal(
    "client-full",
    "this client has too many requests here",
    "a smaller window, or raise `limits.requests_per_client_max`; also said if the answers to one batch of "
    "`mmi.` requests are above 16 MiB",
    is_of_service=True,
)
MEMORY_FULL = Refusal(
    "memory-full", "the node's memory is used up", "see [Memory](#memory)", is_of_service=True
)
MEMORY_UNREAD = Refusal(
    "memory-full",
    "the node has no memory for this request",
    "see [Memory](#memory); its service was not read",
    retry_after_ms=_SLOW_RETRY_MS,
)
ASKERS_FULL = Refusal(
    "askers-full", "too many callers wait for this key", "fewer callers with one key", is_of_service=True
)
ASKERS_LATE = Refusal(
    "askers-late",
    "the reply for this key has begun",
    "nothing: the next attempt is a request of its own",
    is_of_service=True,
)
# The table has no room for the service, so there is no record that could count it.
SERVICES_FULL = Refusal(
    "services-full", "too many services", "look for misspelt names, or raise `limits.services_max`"
)
WORKER_GONE = Refusal(
    "worker-gone",
    "the one worker that the request is for is not registered",
    "ask the workers that are registered now (`client.ask_all`)",
    ErrorCode.WORKER_GONE,
)
OTHER_BODY = Refusal(
    "other-body",
    "its key or identity belongs to a request with another body or another value of idempotent",
    "make the key depend on all that is asked",
    ErrorCode.INVALID,
)
# This node does not have the earlier attempt, so it cannot know whether that was executed (BSN-B-22).
ONCE_REPEATED = Refusal(
    "once-repeated",
    "an earlier attempt may have been executed, and it must not be executed twice",
    "find out whether it was executed",
    ErrorCode.WORKER_LOST,
)
CALL_NOT_ALLOWED = Refusal(
    "call-not-allowed",
    "no pattern of its entry's calls matches the service",
    "correct the client, or `calls` of its [entry](security.md#roles)",
    ErrorCode.NOT_ALLOWED,
)
OUTSTANDING = Refusal(
    "outstanding",
    "its entry has as many requests outstanding as its [bound](security.md#bounds) allows",
    "a smaller window, or raise `outstanding` of the entry",
)
RATE_LIMITED = Refusal(
    "rate-limited",
    "its entry sends more requests or bytes a second than its [bound](security.md#bounds) allows",
    "send less, or raise `requests_per_s` or `bytes_per_s` of the entry",
)
ORDER_NOT_ALLOWED = Refusal(
    "order-not-allowed",
    "its entry lacks `orders: true`, or the node's configuration `security.orders: true`",
    "give the order on the node's machine, or see [Orders from elsewhere](security.md#orders-from-elsewhere)",
    ErrorCode.NOT_ALLOWED,
)
ORDER_STALE = Refusal(
    "order-stale",
    "the order is for another epoch of the pair, or for another run of the node",
    "look at `bstar status`, and give the order again if it is still what you want",
    ErrorCode.INVALID,
)
ORDER_REPEATED = Refusal(
    "order-repeated",
    "this order came before, and is not carried out twice",
    "look at `bstar status` and the journal for what became of it",
    ErrorCode.WORKER_LOST,
)
ORDER_INVALID = Refusal(
    "order-invalid",
    "the order cannot be read, or this node takes it on its own machine only",
    "use a `bstar` of the node's release",
    ErrorCode.INVALID,
)
NO_STORE = Refusal(
    "no-store",
    "this node keeps no durable requests: its configuration has no store.directory",
    "set `store.directory` and `store.link` on both nodes, or call a service that a worker offers",
    ErrorCode.INVALID,
)
STORE_WAITS = Refusal(
    "store-waits",
    "why the [durable store](durable.md) of this node does not lead",
    "see [BstarStoreNotLeading](#bstarstorenotleading)",
    retry_after_ms=_SLOW_RETRY_MS,
)
STORE_REFUSES = Refusal(
    "store-refuses",
    "only one disk can be reached (`store.when_alone`), or the store is full",
    "start the other node; start workers for what is pending, close what was fetched, or raise "
    "`store.requests_max` or `store.bytes_max`",
    retry_after_ms=_SLOW_RETRY_MS,
)
STORE_BUSY = Refusal(
    "store-busy",
    "too many durable operations wait, or 64 MiB of submits",
    "fewer durable operations at once",
    retry_after_ms=_SLOW_RETRY_MS,
)
UNREAD_REPLIES = Refusal(
    "unread-replies",
    "32 MiB of replies wait for this client to read them",
    "a client that reads what it asked for, or asks for fewer answers at once",
    retry_after_ms=_SLOW_RETRY_MS,
)
INVALID_DURABLE = Refusal(
    "invalid-durable", "what is wrong with the durable operation", "mend the program", ErrorCode.INVALID
)
RECORD_DAMAGED = Refusal(
    "record-damaged",
    "which record of the store is damaged",
    "see [BstarStoreDamaged](#bstarstoredamaged)",
    ErrorCode.INVALID,
)

REFUSALS = tuple(value for value in list(vars().values()) if isinstance(value, Refusal))

QUOTAS = frozenset((OUTSTANDING.reason, RATE_LIMITED.reason))
"""Reasons of what may come again, and which the node may have already."""

OF_SERVICE = tuple(dict.fromkeys(each.reason for each in REFUSALS if each.is_of_service))
"""Reasons that count among the requests of a service."""
