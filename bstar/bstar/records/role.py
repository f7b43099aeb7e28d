"""A change of a node's role, as the node's own history keeps it."""

import msgspec


class RoleChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node went from state ``old`` to ``new``. The fields are those of ``StateChanged`` in the journal.

    ``node`` is "primary" or "backup". ``at``: microseconds since 1970 (UTC). ``epoch``: of the node's last
    activation. ``waited_us``: for how long requests waited. A node that took over knows for how long it had
    not heard its peer. A node that gave the role up by a switchover knows for how long it dispatched nothing
    until its peer served. None elsewhere.
    """

    at: int
    node: str
    old: str
    new: str
    event: str
    text: str
    epoch: int
    waited_us: int | None = None
