"""Reads a node's answers to requests and decides what they mean for the calls.

An attempt that was refused was certainly not executed; one that was lost may have been. The identity matches
a reply to its request. So a late FINAL of the old node is as good as one of its successor. PARTIALs count
only if all of them came from one execution.
"""

from bstar.errors import BstarError, RejectedError, RemoteProtocolError
from bstar.wire import native
from bstar.wire.batches import FINAL_ROW_BYTES, final_rows
from bstar.wire.messages import ErrorCode
from bstar.wire.progress import unpack_progress
from bstar_client.core.call_errors import broken, expired, handler_error, too_many_partials
from bstar_client.core.calls import Call, Reply
from bstar_client.core.native.outstanding import Outstanding
from bstar_client.core.native.sender import ttl_margin_s
from bstar_client.core.nodes import Node
from bstar_client.core.outputs import Deliver, DeliverAll, Output, Report

# The pause that BUSY asks for grows by this factor with each BUSY for the same request, up to the limit.
_BUSY_GROWTH = 1.5
_BUSY_PAUSE_MIN_S = 0.005
_BUSY_PAUSE_MAX_S = 5.0
# These say that this attempt was not executed, and that another one would not be either.
_REJECTIONS = (ErrorCode.INVALID, ErrorCode.NOT_ALLOWED, ErrorCode.WORKER_GONE)
# The pause before the client asks a node again that says ACTIVE and refuses.
REFUSED_PAUSE_S = 0.05


class ReplyReader:
    """Reads the answers to calls. ``partials_max``: how many a request collects."""

    def __init__(self, calls: Outstanding, partials_max: int) -> None:
        self._calls = calls
        self._partials_max = partials_max

    def receive_final(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        """The request was executed: its call and the followers have their reply."""
        calls = self._calls
        call = calls.by_identity.get(message.identity)
        if call is None:
            calls.counters.replies_unmatched += 1
            return
        count = message.value
        if count or call.partials_count:
            if not self._are_partials_whole(call, node, count):
                self._receive_incomplete(call, node, outputs)
                return
            partials = tuple(call.partials)
        else:
            partials = ()
        followers = call.followers
        frames = tuple(message.body)
        for each in (call,) if followers is None else (call, *followers):
            calls.counters.replies += 1
            each.attempts = call.attempts
            calls.forget(each)
            index = count if each.is_stream else each.index
            elapsed_s = now - each.begun_at
            reply = Reply(
                frames, partials, index, call.attempts, message.epoch, node.endpoint, True, elapsed_s
            )
            outputs.append(Deliver(each, reply))

    def receive_finals(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        """Many requests were executed."""
        table, blob = message.body[:2]
        counters = self._calls.counters
        try:
            _, lengths = final_rows(message.body, 0)
        except RemoteProtocolError:
            counters.messages_invalid += 1
            return
        client_id, epoch, endpoint = message.identity[:16], message.epoch, node.endpoint
        calls = self._calls.by_identity
        outcomes: list[tuple[Call, Reply]] = []
        end = 0
        for at, length in zip(range(0, len(table), FINAL_ROW_BYTES), lengths, strict=True):
            begin, end = end, end + length
            identity = client_id + table[at : at + 8]
            call = calls.get(identity)
            if call is None:
                counters.replies_unmatched += 1
                continue
            body = blob[begin:end]
            if call.partials_count or call.followers is not None or call.is_stream:
                single = native.Message(native.FINAL, 0, identity, epoch, 0, b"", b"", [body])
                self.receive_final(node, single, outputs, now)
                continue
            # ``forget`` inlined: a method call costs 5 % of a batch's time.
            del calls[identity]
            call.is_done = True
            reply = Reply((body,), (), call.index, call.attempts, epoch, endpoint, True, now - call.begun_at)
            outcomes.append((call, reply))
        counters.replies += len(outcomes)
        if outcomes:
            outputs.append(DeliverAll(outcomes))

    @staticmethod
    def _are_partials_whole(call: Call, node: Node, count: int) -> bool:
        if count == 0:
            # The collected PARTIALs are of another execution; this one had none.
            if call.is_stream and call.partials_count:
                return False
            call.partials = []
            return True
        return call.partials_from == node.connection and call.partials_count == count

    def _receive_incomplete(self, call: Call, node: Node, outputs: list[Output]) -> None:
        if call.sent_to and call.sent_to != node.connection:
            # A FINAL of an earlier execution; the current one is in flight.
            self._calls.counters.replies_unmatched += 1
            return
        text = f"{node.endpoint} executed the request, but some of its PARTIALs were lost on the way"
        self._calls.fail(call, broken(call, text), outputs)

    def receive_partial(self, node: Node, message: native.Message, outputs: list[Output]) -> None:
        """A part of the reply, or how far the handler is."""
        if message.command == native.PROGRESS:
            self._receive_progress(node, message, outputs)
            return
        counters = self._calls.counters
        call = self._calls.by_identity.get(message.identity)
        if call is None:
            counters.partials_unmatched += 1
            return
        index = message.value
        connection = node.connection
        count = call.partials_count
        if index == 0 and (count == 0 or (connection == call.sent_to and not call.is_stream)):
            # The first PARTIAL of an execution. A request starts its collection over; a stream cannot.
            call.partials_from = connection
            call.partials_count = 0
            call.partials = []
        if call.partials_from != connection:
            counters.partials_unmatched += 1
            return
        if index != call.partials_count:
            self._receive_incomplete(call, node, outputs)
            return
        if call.is_stream:
            outputs.append(stream_partial(call, tuple(message.body), message.epoch, node.endpoint))
        elif not collect_partial(call, tuple(message.body), self._partials_max):
            self._calls.fail(call, too_many_partials(self._partials_max), outputs)

    def _receive_progress(self, node: Node, message: native.Message, outputs: list[Output]) -> None:
        """The handler says how far it is. An execution at a node that the client has left counts no more."""
        try:
            progress = unpack_progress(message.body)
        except RemoteProtocolError:
            self._calls.counters.messages_invalid += 1
            return
        call = self._calls.by_identity.get(message.identity)
        if call is None or call.sent_to != node.connection:
            return
        askers = [call, *(call.followers or ())]
        outputs += [Report(each, progress) for each in askers if each.on_progress is not None]

    def receive_error(self, node: Node, message: native.Message, outputs: list[Output], now: float) -> None:
        """The request ended without a reply. The code says whether it was executed."""
        call = self._calls.by_identity.get(message.identity)
        if call is None:
            self._calls.counters.replies_unmatched += 1
            return
        code = message.value
        text = message.body[0].decode("utf-8", "replace") if message.body else ""
        if code in (ErrorCode.HANDLER_FAILED, ErrorCode.HANDLER_TIMEOUT, ErrorCode.RETRY):
            error: BstarError = handler_error(code, message.body)
            self._calls.fail(call, error, outputs)
            return
        never_executed = code == ErrorCode.EXPIRED or code in _REJECTIONS
        if not call.end_attempt(node.connection, was_dispatched=not never_executed):
            # It ends an earlier attempt; the current one is in flight.
            return
        if code == ErrorCode.EXPIRED:
            if call.key is not None and _is_early(call, now):
                # The deadline of another caller with the same key has passed.
                self._calls.retry_later(call, REFUSED_PAUSE_S, now)
                return
            error = expired(call, node.endpoint, text, now)
        elif code in _REJECTIONS:
            text = f"{node.endpoint} rejects the request: {text}"
            if call.may_have_executed:
                error = broken(call, f"{text}; an earlier attempt may have been executed")
            else:
                error = RejectedError(text, code=code)
        elif code == ErrorCode.POISON:
            error = broken(call, f"every worker that was given the request was lost (poison): {text}")
        elif code == ErrorCode.WORKER_LOST:
            error = broken(call, f"{node.endpoint} gave the request up: {text}")
        else:
            error = broken(call, f"{node.endpoint} answered with the unknown error code {code}: {text}")
        self._calls.fail(call, error, outputs)

    def receive_busy(self, node: Node, message: native.Message, now: float) -> None:
        """The node is BUSY: send the request again after a pause."""
        self._calls.counters.busy += 1
        call = self._calls.by_identity.get(message.identity)
        if call is None or not call.end_attempt(node.connection, was_dispatched=False):
            return
        call.busy_count += 1
        call.busy_text = message.body[0].decode("utf-8", "replace") if message.body else "no reason given"
        growth = _BUSY_GROWTH ** min(call.busy_count - 1, 16)
        hint_s = max(message.value / 1000, _BUSY_PAUSE_MIN_S)
        call.busy_pause_s = min(hint_s * growth, _BUSY_PAUSE_MAX_S)
        self._calls.retry_later(call, call.busy_pause_s, now)


def _is_early(call: Call, now: float) -> bool:
    """True if the call's own time cannot have ended at a node yet."""
    return call.deadline is None or call.deadline - now > 2 * ttl_margin_s(call.deadline - call.begun_at)


def stream_partial(call: Call, frames: tuple[bytes, ...], epoch: int, endpoint: str) -> Deliver:
    """Deliver a stream's next PARTIAL."""
    index = call.partials_count
    call.partials_count += 1
    return Deliver(call, Reply(frames, (), index, call.attempts, epoch, endpoint, False))


def collect_partial(call: Call, frames: tuple[bytes, ...], partials_max: int) -> bool:
    """Keep a request's next PARTIAL for its reply. False: it has ``partials_max`` already."""
    call.partials_count += 1
    if call.partials_count > partials_max:
        return False
    assert isinstance(call.partials, list), "made for the first of them"
    call.partials.append(frames)
    return True
