"""A node's memory: a warning at its start, and the bytes that requests may still take.

Between two looks at the process's size the broker counts the bytes that it accepts. So a burst cannot take
more than was left. The next look comes when much of what was left is taken, or may be.
"""

import logging
from collections.abc import Callable

from bstar.base.closing import Closing
from bstar.host.memory import Memory, give_back, return_large
from bstar.settings import Settings
from bstar_broker.core.admission import REQUEST_BYTES
from bstar_broker.core.ledger import Ledger

_log = logging.getLogger("bstar.broker")

LOOK_INTERVAL_S = 0.25
# A look is left out while requests have taken less than this part of what the last one found,
_PART_TAKEN = 16
# and while all that the broker does not count (replies, queues of libzmq, connections, the store) cannot have
# taken half of it: loopback brings some 2 GiB a second. An operator may lower a limit, so every 5 s at least.
_GROWTH_BYTES_PER_S = 4 << 30
_LOOK_INTERVAL_MAX_S = 5.0
# A node with less memory than it is configured for returns freed blocks of this size to the system at once.
_RETURNED_BYTES = 128 << 10
# To return freed memory takes some 50 ms for a heap of 1 GiB, so it is done at most this often.
_GIVE_BACK_INTERVAL_S = 5.0
# A node at its limit logs a warning at most this often.
_WARNING_INTERVAL_S = 60.0
# An idle node, its libraries and its threads.
_NODE_BYTES = 64 << 20
# How many messages of the largest size are in memory beside the queues: one that arrives, one at a worker,
# one that leaves, and a reply.
_MESSAGES_BESIDE = 4
# A store in memory takes so much for each byte of its bodies and answers (pages are not full), and the log.
_TABLE_TIMES = 2
# It takes all of that once more while the peer takes a copy.
_STORE_TIMES = 2

_MIB = 1 << 20
# Requests that wait in one connection's pipe before TCP pushes back on the client: enough that libzmq's
# thread and the loop need not wait for each other, and no more than this part of the memory if each has a
# mebibyte.
_RECEIVE_QUEUE_MAX = 10_000
_RECEIVE_QUEUE_MIN = 16
_RECEIVE_QUEUE_PART = 16
# A node always reads frames of this size: batches, and requests for its state.
_FRAME_BYTES_MIN = 2 * _MIB


def bytes_needed(settings: Settings) -> int:
    """What a node may hold at most: full queues in bytes, one full queue in requests, and large messages."""
    limits = settings.limits
    return (
        _NODE_BYTES
        + _store_bytes(settings)
        + limits.queue_bytes_max
        + _MESSAGES_BESIDE * limits.message_bytes_max
        + limits.queue_length_max * REQUEST_BYTES
    )


def _store_bytes(settings: Settings) -> int:
    store = settings.store
    if not store.is_in_memory:
        return 0
    return _STORE_TIMES * (_TABLE_TIMES * store.bytes_max + store.log_bytes)


class MemoryWatch(Closing):
    """Call ``look`` every ``LOOK_INTERVAL_S`` seconds: it sets what the broker may still take, and what of it
    may wait in queues and at clients that do not read.
    """

    def __init__(self, ledger: Ledger, memory: Memory, *, give_back: Callable[[], None] = give_back) -> None:
        self._ledger = ledger
        self._memory = memory
        self._give_back = give_back
        # What the last look gave the broker, and until when that holds.
        self._given = 0
        self._look_at = self._looked_at = float("-inf")
        self._gave_back_at = float("-inf")
        self._warned_at = float("-inf")

    def begin(self, settings: Settings) -> None:
        """If the limits allow more than the machine has, log a warning, and keep no freed memory."""
        least, needed = self._memory.least(), bytes_needed(settings)
        if needed <= least.size_bytes:
            return
        return_large(_RETURNED_BYTES)
        limits, in_store = settings.limits, _store_bytes(settings)
        _log.warning(
            "memory: this node may use %d MiB (%s), but its configuration allows it to hold %d MiB: "
            "limits.queue_bytes_max %d MiB, limits.message_bytes_max %d MiB times %d, "
            "limits.queue_length_max %d requests of %d bytes beside their bodies, %sand %d MiB for itself. "
            "Before it is used up, requests are refused as busy, and replies dropped that a client does not "
            "read; lower these keys or raise the limit",
            least.size_bytes // _MIB,
            least.where,
            needed // _MIB,
            limits.queue_bytes_max // _MIB,
            limits.message_bytes_max // _MIB,
            _MESSAGES_BESIDE,
            limits.queue_length_max,
            REQUEST_BYTES,
            f"{in_store // _MIB} MiB for the store in memory (store.bytes_max times {_TABLE_TIMES} and "
            f"store.log_bytes, times {_STORE_TIMES}), "
            if in_store
            else "",
            _NODE_BYTES // _MIB,
        )

    def frame_bytes_max(self, wanted: int) -> int:
        """The largest frame to receive: half of what is left, so that one alone cannot end the node.

        The sender of a larger one is disconnected before any memory is taken for it, here and at the peer.
        """
        left = self._memory.left()
        return wanted if left is None else min(wanted, max(left // 2, _FRAME_BYTES_MIN))

    def receive_queue(self) -> int:
        """How many messages of one connection libzmq may hold before the loop has read them.

        It fills these queues while the loop is busy, and what is in them cannot be refused any more.
        """
        left = self._memory.left()
        fits = _RECEIVE_QUEUE_MAX if left is None else left // _RECEIVE_QUEUE_PART // _MIB
        return min(max(fits, _RECEIVE_QUEUE_MIN), _RECEIVE_QUEUE_MAX)

    def arrived(self, now: float) -> None:
        """A large message came: what the last look found holds for ``LOOK_INTERVAL_S`` at most."""
        if now - self._looked_at >= LOOK_INTERVAL_S:
            self._look_at = now
        self.look(now)

    def look(self, now: float) -> None:
        """Set what requests may take until the next look, unless the last look's figure still holds."""
        taken = self._given - self._ledger.memory_left
        if now < self._look_at and taken * _PART_TAKEN < self._given:
            return
        self._looked_at = now
        left = self._memory.left()
        if left is None:
            return
        if left <= 0 and now - self._gave_back_at >= _GIVE_BACK_INTERVAL_S:
            # Memory that the queues freed still counts as used. Without this the node would refuse for ever.
            self._gave_back_at = now
            self._give_back()
            left = self._memory.left() or 0
        self._ledger.waiting.fit(left)
        # A half, as in ``fit``: each byte may be in memory twice.
        self._given = self._ledger.memory_left = left // 2
        self._look_at = now + min(left / _GROWTH_BYTES_PER_S, _LOOK_INTERVAL_MAX_S)
        if left <= 0 and now - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = now
            _log.warning("memory is used up except for a reserve: new requests get BUSY until some is free")

    def close(self) -> None:
        """Close the files of the system. Idempotent."""
        self._memory.close()
