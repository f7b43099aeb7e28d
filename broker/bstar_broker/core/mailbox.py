"""The broker's client in its own process: the durable store.

Its requests have the dialect STORE. Its codec sends nothing: it keeps what becomes of each request in a
mailbox, which ``Node`` empties after each input.
"""

import msgspec

from bstar.wire.dialect import Asker, Dialect, Frames
from bstar.wire.messages import ErrorCode, NodeStatus

# The routing id of no peer: libzmq makes ids of 5 bytes that begin with a zero, and lets no peer choose one
# that does.
STORE = b"\0store"


class Ending(msgspec.Struct, gc=False):
    """What became of a request: ``body`` is the answer, None without one.

    ``code`` is an ErrorCode, 0 where the request was not executed and may be given to the broker again.
    ``is_declined``: no further attempt would end otherwise.
    """

    identity: bytes
    body: Frames | None
    code: int = 0
    text: str = ""
    retry_ms: int = -1
    is_declined: bool = False


class Mailbox:
    """The codec of the dialect STORE. ``endings`` are what the store has not read yet."""

    dialect = Dialect.STORE
    label = "store"
    is_streaming = False
    gets_not_active = True

    def __init__(self) -> None:
        self.endings: list[Ending] = []

    def take(self) -> list[Ending]:
        """What has ended since the last call."""
        endings = self.endings[:]
        self.endings.clear()
        return endings

    def final(
        self, asker: Asker, service: bytes, epoch: int, partials: int, body: Frames, header: bytes
    ) -> Frames | None:
        """An answer."""
        self.endings.append(Ending(asker.identity, body))
        return None

    def failure(self, asker: Asker, epoch: int, code: int, text: bytes) -> Frames | None:
        """An attempt has failed, or the request expired in the queue."""
        code = 0 if code == ErrorCode.EXPIRED else code
        self.endings.append(Ending(asker.identity, None, code, bytes(text).decode("utf-8", "replace")))
        return None

    def declined(self, asker: Asker, service: bytes, epoch: int, text: bytes, data: bytes) -> Frames | None:
        """The last attempt: its handler declines it."""
        said = bytes(text).decode("utf-8", "replace")
        self.endings.append(Ending(asker.identity, None, ErrorCode.HANDLER_FAILED, said, is_declined=True))
        return None

    def retry_after(self, retry_ms: int) -> None:
        """The failure that came last asks for its next attempt after this time."""
        self.endings[-1].retry_ms = retry_ms

    def busy(self, asker: Asker, epoch: int, retry_after_ms: int, text: bytes) -> Frames | None:
        """The broker did not take it."""
        self.endings.append(Ending(asker.identity, None, retry_ms=retry_after_ms))
        return None

    def not_active(self, asker: Asker, status: NodeStatus, was_dispatched: bool) -> Frames | None:
        """The node stops serving: whoever leads next gives it to a worker again."""
        self.endings.append(Ending(asker.identity, None))
        return None

    def partial(
        self, asker: Asker, service: bytes, epoch: int, index: int, body: Frames, header: bytes
    ) -> Frames | None:
        """Nothing: the broker holds PARTIALs until the final reply."""
        return None
