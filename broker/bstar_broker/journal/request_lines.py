"""The journal's records of requests, made as lines of JSON at once.

Filling a prepared line takes a third of the time that a record and its encoding take.
"""

import copy
import struct
from binascii import hexlify
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from bstar.journal import Journal
from bstar.wire import front, native
from bstar.wire.messages import Finals
from bstar_broker.core.observer import Outcome
from bstar_broker.core.records import Accepted, Bundle, ServiceRecord

# Readers of a number have a signed one of 64 bits; an identity's second part could be larger.
_NUMBER_MAX = (1 << 63) - 1
_identity = struct.Struct(">16sQ").unpack
# Names of services that are kept as JSON.
_NAMES_MAX = 10_000
_US = 1e6
# Stands where the lines of a batch differ. JSON has no such byte.
_GAP = b"\0"


class _Rest(msgspec.Struct, omit_defaults=True):
    """The fields that an ordinary request's line leaves out."""

    deliveries: int = 1
    is_repeated: bool = False
    partials: int = 0


class RequestLines:
    """Offers a line for each request that ends, or for each that the sample has.

    ``node_id`` names this run of the node.
    """

    def __init__(self, journal: Journal, node_id: bytes) -> None:
        self._journal = journal
        self._node_id = node_id
        self._offer = journal.offer
        self._is_sampled = journal.is_sampled
        self._is_everything = journal.options.sample == 1
        self._lines = {outcome: self._template(outcome) for outcome in get_args(Outcome)}
        line = self._lines["answered"]
        for field in (b'"seq":', b'"number":', b'"bytes_in":', b'"bytes_out":'):
            line = line.replace(field + b"%d", field + _GAP, 1)
        self._batch_line = line
        self._quoted: dict[bytes, bytes] = {}

    def ended(
        self, request: Accepted, outcome: Outcome, epoch: int, reply: Sequence[bytes], now: float
    ) -> None:
        """An accepted request has ended at this node."""
        if self._is_everything or self._is_sampled(request.identity):
            if outcome in ("returned", "cancelled"):
                # A worker may still have it, and it changes then.
                request = copy.copy(request)
            size = len(reply[0]) if len(reply) == 1 else sum(map(len, reply))
            self._offer(now, self._line, request, outcome, epoch, size, now)

    def answered(self, bundles: Sequence[Bundle], replies: Finals, epoch: int, now: float) -> None:
        """Requests that came and were answered in batches."""
        numbers, sizes = replies.numbers, replies.lengths
        if not self._is_everything:
            sampled = [
                row
                for row in zip(bundles, numbers, sizes, strict=True)
                if self._is_sampled(native.identity(replies.client_id, row[1]))
            ]
            if not sampled:
                return
            bundles, numbers, sizes = zip(*sampled, strict=True)
        self._journal.offer_all(len(numbers), now, self._answered_lines, bundles, numbers, sizes, epoch, now)

    def _answered_lines(
        self,
        stamp: dict[str, Any],
        bundles: Sequence[Bundle],
        numbers: Sequence[int],
        sizes: Sequence[int],
        epoch: int,
        now: float,
    ) -> tuple[bytes, int]:
        """Their lines, joined; most of each is the same for all that came and went together."""
        texts: list[bytes] = []
        seq, count = stamp["seq"], len(numbers)
        begin = 0
        while begin < count:
            bundle = bundles[begin]
            end = begin + 1
            if bundles.count(bundle) == count:
                end = count
            while end < count and bundles[end] is bundle:
                end += 1
            of_run = numbers[begin:end]
            lengths = bundle.lengths
            if of_run != bundle.numbers:
                lengths = tuple(map(dict(zip(bundle.numbers, lengths, strict=True)).__getitem__, of_run))
            pieces = self._row(stamp, bundle, epoch, now).split(_GAP)
            seqs = range(seq + begin, seq + end)
            texts.append(_filled(pieces, seqs, of_run, lengths, sizes[begin:end]))
            begin = end
        return b"\n".join(texts), count

    def _row(self, stamp: dict[str, Any], bundle: Bundle, epoch: int, now: float) -> bytes:
        """The line of a request of this bundle, with gaps for its sequence number, number and sizes."""
        total_us = int((now - bundle.accepted_at) * _US)
        queued_us = int((bundle.dispatched_at - bundle.accepted_at) * _US)
        service = bundle.service
        quoted = self._quoted.get(service.name) or self._quote(service)
        line = self._batch_line
        if bundle.is_repeated:
            line = line[:-1] + b',"is_repeated":true}'
        return line % (
            stamp["at"],
            stamp["mono"],
            hexlify(bundle.client_id),
            quoted,
            hexlify(bundle.sender),
            epoch,
            total_us,
            queued_us,
            total_us - queued_us,
            hexlify(bundle.worker),
        )

    def _line(
        self,
        stamp: dict[str, Any],
        request: Accepted,
        outcome: Outcome,
        epoch: int,
        bytes_out: int,
        now: float,
    ) -> bytes:
        client, number = _identity(request.identity)
        deliveries = request.deliveries
        total_us = int((now - request.accepted_at) * _US)
        queued_us = int((request.dispatched_at - request.accepted_at) * _US) if deliveries else total_us
        service = request.service
        line = self._lines[outcome] % (
            stamp["seq"],
            stamp["at"],
            stamp["mono"],
            # A plain client has no numbers: its requests have this node's identities.
            hexlify(client) if client != self._node_id else _plain(request.sender),
            number & _NUMBER_MAX,
            self._quoted.get(service.name) or self._quote(service),
            hexlify(request.sender),
            epoch,
            total_us,
            queued_us,
            total_us - queued_us,
            hexlify(request.worker) if deliveries else b"",
            request.size,
            bytes_out + request.sent_bytes,
        )
        if deliveries == 1 and not request.is_repeated and not request.partials:
            return line
        rest = msgspec.json.encode(_Rest(deliveries, request.is_repeated, request.partials))
        return line[:-1] + b"," + rest[1:]

    def _template(self, outcome: Outcome) -> bytes:
        """The line of a request that ended so, for the ``%`` operator."""
        who = msgspec.json.encode(self._journal.who)[1:-1].replace(b"%", b"%%")
        weight = b"" if self._journal.weight == 1 else b',"weight":%r' % self._journal.weight
        return (
            b'{"kind":"request",%b,"seq":%%d,"at":%%d,"mono":%%d,"client":"%%b","number":%%d,"service":%%b,'
            b'"sender":"%%b","outcome":"%b","epoch":%%d,"total_us":%%d,"queued_us":%%d,"busy_us":%%d,'
            b'"worker":"%%b","bytes_in":%%d,"bytes_out":%%d%b}' % (who, outcome.encode(), weight)
        )

    def _quote(self, service: ServiceRecord) -> bytes:
        """A service's name as JSON, kept because few names make many records."""
        if len(self._quoted) >= _NAMES_MAX:
            self._quoted.clear()
        quoted = self._quoted[service.name] = msgspec.json.encode(service.label)
        return quoted


def _filled(
    pieces: list[bytes], seqs: range, numbers: Sequence[int], lengths: Sequence[int], sizes: Sequence[int]
) -> bytes:
    """The joined lines of a batch. To format a whole line takes twice the time."""
    head, to_number, to_length, to_size, tail = pieces
    if len(set(lengths)) == len(set(sizes)) == 1:
        tail = b"%b%d%b%d%b" % (to_length, lengths[0], to_size, sizes[0], tail)
        lines = [b"%d%b%d" % (seq, to_number, number) for seq, number in zip(seqs, numbers, strict=True)]
    else:
        lines = [
            b"%d%b%d%b%d%b%d" % (seq, to_number, number, to_length, length, to_size, size)
            for seq, number, length, size in zip(seqs, numbers, lengths, sizes, strict=True)
        ]
    return head + (tail + b"\n" + head).join(lines) + tail


def _plain(sender: bytes) -> bytes:
    """The name of a client without request numbers."""
    if not front.is_behind_front(sender):
        return b"mdp-" + hexlify(sender)
    name, _, routing_id = front.split_peer_id(sender)
    return b"mdp-%b-%b" % (name.encode(), hexlify(routing_id))
