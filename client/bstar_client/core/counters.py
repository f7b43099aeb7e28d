"""What happened in a client, as plain integers."""

ENDS = ("replies", "declined", "failures", "abandoned")
"""How calls end."""


class Counters:
    """Plain integers that only grow; any thread may read them at any time."""

    def __init__(self) -> None:
        self.requests = 0
        self.replies = 0
        self.declined = 0
        self.failures = 0
        self.abandoned = 0
        self.resends = 0
        self.votes = 0
        self.failovers = 0
        self.busy = 0
        self.refusals = 0
        self.refusals_stale = 0
        self.joined = 0
        self.replies_unmatched = 0
        self.partials_unmatched = 0
        self.messages_invalid = 0
