"""What a node counts for its state document and its metrics. Nothing is decided by it."""

from collections import Counter

from bstar.star.peer import Ignored
from bstar.star.rules import State


class Counters:
    """``votes`` and ``requests_refused`` are the client requests that came while the node was not active."""

    def __init__(self) -> None:
        self.transitions: Counter[tuple[State, State]] = Counter()
        self.votes = 0
        self.requests_refused = 0
        self.peer_messages = 0
        self.peer_ignored: Counter[Ignored] = Counter()
        self.peers_gone = 0
        self.stalls = 0
        self.majorities_lost = 0
        self.arbiter_answers = 0
