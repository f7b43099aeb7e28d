"""The journal of a client of several pairs: one for each pair, since a journal is about one.

What happened to a call goes into the journal of its pair, a change of a node into that of the node's. The
journals bear the pairs' names, by which they are joined to what the nodes recorded, so the pairs need names.
"""

from collections.abc import Sequence

from bstar.errors import BstarError, ConfigurationError
from bstar.fleet import Fleet
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Event, FailedOver
from bstar_client.journal import CallJournal, JournalPlace, named_after, open_journal

__all__ = ["FleetJournal", "open_call_journal"]


class FleetJournal:
    """``CallJournal``'s words for a fleet: ``journals`` by pair, as ``fleet`` has them."""

    def __init__(self, journals: Sequence[CallJournal], fleet: Fleet) -> None:
        self._journals = journals
        self._by_endpoint = {
            endpoint: journal
            for pair, journal in zip(fleet.pairs, journals, strict=True)
            for endpoint in pair.endpoints
        }

    def replied(self, call: Call, reply: Reply) -> None:
        """A PARTIAL of a stream, or the end of a call that was answered."""
        self._journals[call.pair].replied(call, reply)

    def failed(self, call: Call, error: BstarError) -> None:
        """The end of a call with an error."""
        self._journals[call.pair].failed(call, error)

    def abandoned(self, call: Call) -> None:
        """Nobody waits for this call any more."""
        self._journals[call.pair].abandoned(call)

    def announced(self, event: Event) -> None:
        """The client's view of a pair has changed."""
        endpoint = event.to_endpoint if isinstance(event, FailedOver) else event.endpoint
        self._by_endpoint[endpoint].announced(event)

    def close(self) -> None:
        """Write what there is, and the end. Idempotent."""
        for journal in self._journals:
            journal.close()


def open_call_journal(place: JournalPlace, fleet: Fleet, *, is_plain: bool) -> CallJournal | FleetJournal:
    """Begin a client's journal. ConfigurationError as of ``open_journal``, and for pairs without names."""
    is_fleet = len(fleet.pairs) > 1
    if is_fleet and any(pair.name is None for pair in fleet.pairs):
        raise ConfigurationError(
            "a journal tells of its pair by name: give the pairs names, as {name: [primary, backup], …}"
        )
    journals: list[CallJournal] = []
    try:
        for pair in fleet.pairs:
            opened = open_journal(named_after(place, pair), "client", pair.endpoints)
            journals.append(CallJournal(opened, pair.endpoints, is_plain=is_plain))
    except ConfigurationError:
        for journal in journals:
            journal.close()
        raise
    return FleetJournal(journals, fleet) if is_fleet else journals[0]
