"""Makes messages of calls: which requests share a batch, and the time to live of each.

Requests for one service that leave at the same moment share a message (docs/protocol/native.md, 3.8). A large
or urgent request, a stream, one of several frames and one with a key travel alone. Requests for one service
keep their order.
"""

import math
from collections.abc import Sequence

from bstar.errors import BstarError, RejectedError
from bstar.wire import native
from bstar.wire.limits import BATCH_BYTES_MAX, BATCH_ROWS_MAX, BATCHED_BODY_BYTES_MAX, TTL_MS_MAX
from bstar.wire.messages import OBEYS_ONCE, READS_BATCHES, READS_DIRECTED, READS_EXTENDED, ErrorCode
from bstar.wire.mmi import PREFIX
from bstar_client.core.call_errors import broken
from bstar_client.core.calls import Call
from bstar_client.core.native.outstanding import Outstanding
from bstar_client.core.nodes import Node
from bstar_client.core.outputs import Output, Send

# A request expires at the broker before its caller's deadline: by this share of the time that is left, up to
# the maximum. So the caller learns that it was not executed, also if busy machines deliver the answer late.
_TTL_MARGIN = 0.05
_TTL_MARGIN_MAX_S = 0.25
_LONG_TTL_S = _TTL_MARGIN_MAX_S / _TTL_MARGIN


def ttl_margin_s(remaining_s: float) -> float:
    """How long before its caller's deadline a request expires that is sent with so much time left."""
    return min(remaining_s * _TTL_MARGIN, _TTL_MARGIN_MAX_S)


class Sender:
    """Sends the calls of one client. ``epoch`` is the highest that a node has sent."""

    def __init__(self, client_id: bytes, calls: Outstanding) -> None:
        self._client_id = client_id
        self._calls = calls
        self.epoch = 0

    def send(self, call: Call, node: Node, outputs: list[Output], now: float) -> None:
        """Send one request, in a message of its own."""
        is_idempotent, is_directed = call.is_idempotent, call.is_directed
        if (is_directed or not is_idempotent) and self.refuses(call, node, outputs):
            return
        is_repeated = call.may_have_executed
        [ttl_ms] = self._begin_attempts((call,), node, now)
        request = native.encode_request(
            call.identity,
            call.service,
            call.body,
            ttl_ms=ttl_ms,
            epoch=self.epoch,
            is_repeated=is_repeated,
            is_urgent=call.is_urgent,
            is_once=not is_idempotent,
            is_whole=not call.is_stream,
            extensions=call.extensions,
            is_directed=is_directed,
        )
        outputs.append(Send(node.index, request))

    def send_all(self, calls: Sequence[Call], node: Node, outputs: list[Output], now: float) -> None:
        """Send several requests in as few messages as possible."""
        if len(calls) < 2 or not node.can(READS_BATCHES):
            for call in calls:
                self.send(call, node, outputs, now)
            return
        groups: dict[bytes, list[Call]] = {}
        # A batch has one flag for "repeated" and one for "may be repeated", so all its requests must agree.
        marks: dict[bytes, int] = {}
        for call in calls:
            body, service = call.body, call.service
            group = groups.get(service)
            if (
                call.key is not None
                or call.is_urgent
                or call.is_stream
                or (call.extensions and not node.can(READS_EXTENDED))
                or len(body) != 1
                or len(body[0]) > BATCHED_BODY_BYTES_MAX
                or (group is None and service.startswith(PREFIX))
            ):
                self._send_group(groups.pop(service, ()), node, outputs, now)
                self.send(call, node, outputs, now)
                continue
            mark = 2 * call.is_idempotent + (call.attempts > 0 and call.may_have_executed)
            if group is not None and marks[service] == mark:
                group.append(call)
                continue
            if group is not None:
                self._send_group(group, node, outputs, now)
            groups[service] = [call]
            marks[service] = mark
        for group in groups.values():
            self._send_group(group, node, outputs, now)

    def _send_group(self, calls: Sequence[Call], node: Node, outputs: list[Output], now: float) -> None:
        """Send requests for one service, with the same flags."""
        if calls and not calls[0].is_idempotent and all(self.refuses(each, node, outputs) for each in calls):
            return
        rows: list[Call] = []
        size_bytes = 0
        for call in calls:
            size = len(call.body[0])
            if call.extensions:
                size += 2 + len(call.extensions)
            if len(rows) == BATCH_ROWS_MAX or size_bytes + size > BATCH_BYTES_MAX:
                outputs.append(self._batch(rows, node, now))
                rows = []
                size_bytes = 0
            rows.append(call)
            size_bytes += size
        if len(rows) == 1:
            self.send(rows[0], node, outputs, now)
        elif rows:
            outputs.append(self._batch(rows, node, now))

    def _batch(self, calls: Sequence[Call], node: Node, now: float) -> Send:
        first = calls[0]
        is_repeated = first.may_have_executed
        ttls_ms = self._begin_attempts(calls, node, now)
        extensions = [call.extensions for call in calls]
        requests = native.encode_requests(
            self._client_id,
            first.service,
            [call.number for call in calls],
            ttls_ms,
            [call.body[0] for call in calls],
            epoch=self.epoch,
            is_repeated=is_repeated,
            is_once=not first.is_idempotent,
            is_whole=True,
            extensions=extensions if any(extensions) else None,
        )
        return Send(node.index, requests)

    def _begin_attempts(self, calls: Sequence[Call], node: Node, now: float) -> list[int]:
        """Note that the calls go to this node now; returns their times to live in milliseconds."""
        connection, index = node.connection, node.index
        ttls_ms = []
        # One loop without a call in it, min() and max() neither: 0.15 µs less for each request of a batch.
        for call in calls:
            if call.attempts:
                self._calls.counters.resends += 1
            call.attempts += 1
            call.sent_to = connection
            call.node = index
            ttl_ms = 0
            if call.deadline is not None:
                remaining_s = call.deadline - now
                # ttl_margin_s inlined, see above.
                margin_s = _TTL_MARGIN_MAX_S if remaining_s > _LONG_TTL_S else remaining_s * _TTL_MARGIN
                ttl_ms = math.ceil((remaining_s - margin_s) * 1000)
                if not 1 <= ttl_ms <= TTL_MS_MAX:
                    ttl_ms = 1 if ttl_ms < 1 else TTL_MS_MAX
            ttls_ms.append(ttl_ms)
        return ttls_ms

    def refuses(self, call: Call, node: Node, outputs: list[Output]) -> bool:
        """True if the node is of a release that would not do what the call needs. The call has failed then.

        It would dispatch the request to a second worker (BSN-C-11), or drop it (BSN-C-18).
        """
        if not (call.is_idempotent or node.can(OBEYS_ONCE)):
            kind = "requests that must not be executed twice (idempotent=False)"
        elif call.is_directed and not node.can(READS_DIRECTED):
            kind = "requests for one worker alone (ask_all)"
        else:
            return False
        text = f"{node.endpoint} does not know {kind}; it was not sent: upgrade the node"
        if call.may_have_executed:
            error: BstarError = broken(call, f"{text}. An earlier attempt may have been executed")
        else:
            error = RejectedError(text, code=ErrorCode.INVALID)
        self._calls.fail(call, error, outputs)
        return True
