"""The questions of a node that was away, and its answers to the peer's questions.

The question is a fresh token, the answer its echo, and both travel in the state messages. Only a message that
echoes the token is certainly younger than the question. Until then every message counts as backlog, except a
better claim to be active. ``rules`` says when to ask and what follows.
"""

from zlib import crc32

from bstar.star.epochs import is_better_claim
from bstar.wire.peer import PeerState


class Questions:
    """Our question (``asking``, 0: none) and the peer's that we answer (``answers``, 0: none)."""

    def __init__(self, node: str) -> None:
        self.asking = 0
        self.answers = 0
        self.answers_told = 0  # the last that was published
        # Tokens differ between runs as well, or the echo of an earlier run's question would answer ours.
        self.token = crc32(node.encode()) << 16

    def ask(self) -> None:
        """Ask a new question. An answer to an earlier one answers nothing."""
        self.token += 1
        self.asking = self.token

    def settle(self) -> None:
        """Withdraw the question."""
        self.asking = 0

    def hear(self, message: PeerState) -> None:
        """Remember what the peer asks."""
        if message.asks:
            self.answers = message.asks

    def forget(self) -> None:
        """A new run of the peer has asked nothing. It does not know our question, which stays open."""
        self.answers = self.answers_told = 0

    def is_answered_by(self, message: PeerState) -> bool:
        """True if the message echoes our question."""
        return self.asking != 0 and message.answers == self.asking

    def is_backlog(self, message: PeerState, epoch: int) -> bool:
        """True if the message may be older than the question whose answer we await."""
        if not self.asking or message.answers == self.asking:
            return False
        return not is_better_claim(message, epoch)
