"""A change of a node's role, as the node's own history keeps it."""

from typing import Annotated

import msgspec

# Until the end of the year 9999: no calendar of Python has a later time.
_Microseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000_000)]


class RoleChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node went from state ``old`` to ``new``. The fields are those of ``StateChanged`` in the journal.

    ``node`` is "primary" or "backup". ``at``: microseconds since 1970 (UTC). ``epoch``: of the node's last
    activation. ``waited_us``: for how long requests waited at most. On a node that took over: the time since
    it last heard its peer. On a node that gave the role up by a switchover: the time in which it dispatched
    nothing, until its peer served. None elsewhere.
    """

    at: _Microseconds
    node: str
    old: str
    new: str
    event: str
    text: str
    epoch: int
    waited_us: _Microseconds | None = None
