"""Named points between the steps of the durable store, at which a test may end the process.

``reach`` does nothing in a node: it compares a name of this module with None. No setting, argument or
environment variable changes that; the program never assigns ``watcher``. The chaos tests start nodes through
a module of their own, which sets it before it runs the command.
"""

import enum
from collections.abc import Callable


class Point(enum.Enum):
    """The steps, in the order in which a request goes through them. Values are for people and tests."""

    BEFORE_SEND = "before a message goes to the peer: proposed entries, or that they are synced"
    AFTER_SEND = "after a message went to the peer"
    BEFORE_ORDER = "before orders go to the disk: what was proposed or received is in memory alone"
    BEFORE_APPLY = "in a transaction, before an entry is applied"
    AFTER_APPLY = "in a transaction, after an entry was applied, before its results are handed out"
    BEFORE_APPEND = "in a transaction, before entries are appended"
    AFTER_APPEND = "in a transaction, after entries were appended"
    MARK = "in a transaction, before the node's mark is stored"
    TRIM = "in a transaction, before the log is trimmed"
    IMPORT = "in a transaction, after part of the peer's table was stored"
    SWAP = "in a transaction, after the peer's table took the place of the old one"
    BEFORE_COMMIT = "before a transaction is committed"
    AFTER_COMMIT = "after a transaction was committed, before any answer"
    PEER_HEARD = "a message of the peer has come, and is not read yet"
    BEFORE_ANSWER = "an entry was applied, and no client has heard of it"
    AFTER_ANSWER = "after clients were answered"


watcher: Callable[[Point], object] | None = None
"""Called at each point. Tests set it."""


def reach(point: Point) -> None:
    """The process has come to this point."""
    if watcher is not None:
        watcher(point)
