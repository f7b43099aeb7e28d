"""What a client's session has put out, sorted: for tests in virtual time."""

from collections.abc import Sequence

from bstar.errors import BstarError
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Event
from bstar_client.core.outputs import Announce, Deliver, DeliverAll, Fail, Output, Reset, Send


class ClientOutputs:
    """Every output so far, each kind in its order."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes]]] = []
        self.resets: list[int] = []
        self.replies: list[tuple[Call, Reply]] = []
        self.errors: list[tuple[Call, BstarError]] = []
        self.events: list[Event] = []

    def take(self, outputs: Sequence[Output]) -> None:
        """Sort these."""
        for output in outputs:
            if isinstance(output, Send):
                self.sent.append((output.node, output.frames))
            elif isinstance(output, Reset):
                self.resets.append(output.node)
            elif isinstance(output, Deliver):
                self.replies.append((output.call, output.reply))
            elif isinstance(output, DeliverAll):
                self.replies += output.outcomes
            elif isinstance(output, Fail):
                self.errors.append((output.call, output.error))
            elif isinstance(output, Announce):
                self.events.append(output.event)
