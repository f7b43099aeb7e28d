"""The reasons why the broker refuses a request, one entry for each.

A new reason is an entry here, the rule that returns it in ``admission``, and a row in docs/operations.md
("Refusals"). One that is ``is_of_service`` is in ``bstar_pipeline.slo``, too; tests compare all three. The
metric ``bstar_drops_total`` and the journal carry ``reason``; the client's error and the log carry ``text``.
"""

import msgspec

from bstar.wire.dialect import Asker, ClientCodec
from bstar.wire.messages import ErrorCode

# A full queue has room again after about this time.
QUEUE_RETRY_MS = 50
# Memory takes longer to become free.
_MEMORY_RETRY_MS = 1_000


class Refusal(msgspec.Struct, frozen=True):
    """One reason. Without a ``code`` the client gets BUSY and may send it again after ``retry_after_ms``.

    With a ``code`` it gets ERROR. ``is_of_service``: it counts among the requests of the service, and the
    service's objective with it.
    """

    reason: str
    text: str
    code: ErrorCode | None = None
    retry_after_ms: int = QUEUE_RETRY_MS
    is_of_service: bool = True

    def frames(self, codec: ClientCodec, asker: Asker, epoch: int) -> list[bytes] | None:
        """The message to the client; None if its dialect cannot say it."""
        text = self.text.encode()
        if self.code is None:
            return codec.busy(asker, epoch, self.retry_after_ms, text)
        return codec.failure(asker, epoch, self.code, text)


# The table has no room for the service, so there is no record that could count it.
SERVICES_FULL = Refusal("services-full", "too many services", is_of_service=False)
CLIENT_FULL = Refusal("client-full", "this client has too many requests here")
QUEUE_FULL = Refusal("queue-full", "the service's queue is full")
BYTES_FULL = Refusal("bytes-full", "the queues hold too many octets")
MEMORY_FULL = Refusal("memory-full", "the node's memory is used up")
MEMORY_UNREAD = Refusal(
    "memory-full",
    "the node has no memory for this request",
    retry_after_ms=_MEMORY_RETRY_MS,
    is_of_service=False,  # its service was not read
)
ASKERS_FULL = Refusal("askers-full", "too many callers wait for this key")
ASKERS_LATE = Refusal("askers-late", "the reply for this key has begun")
OTHER_BODY = Refusal(
    "other-body",
    "its key or identity belongs to a request with another body or another value of idempotent",
    ErrorCode.INVALID,
    is_of_service=False,  # the caller's mistake
)
# This node does not have the earlier attempt, so nobody knows whether it was executed (BSN-B-22).
ONCE_REPEATED = Refusal(
    "once-repeated",
    "an earlier attempt may have been executed, and it must not be executed twice",
    ErrorCode.WORKER_LOST,
    is_of_service=False,  # the earlier attempt counts
)
NO_STORE = Refusal(
    "no-store",
    "this node keeps no durable requests: its configuration has no store.directory",
    ErrorCode.INVALID,
    is_of_service=False,  # the store's services are no services
)

REFUSALS = tuple(value for value in list(vars().values()) if isinstance(value, Refusal))
