"""The errors of calls without a reply: what happened, to which service, and whether it may have executed."""

import contextlib

import msgspec

from bstar.base.printable import printable
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    DeclinedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RemoteProtocolError,
    StreamInterruptedError,
)
from bstar.wire import durable
from bstar.wire.declined import data_behind, read_declined
from bstar.wire.messages import ErrorCode
from bstar_client.core.calls import Call

INTERRUPTED = "the client was interrupted at work (by Ctrl-C, a signal) while the request was outstanding"


def _waited(call: Call, now: float) -> str:
    waited_s = now - call.begun_at
    seconds = f"{waited_s:.1f} s" if waited_s >= 1 else f"{waited_s:.3f} s"
    return f"timed out after {seconds}"


def _service(call: Call) -> str:
    """Whom the call asked, in the words of its caller. A durable operation is a call to the store."""
    if call.service.startswith(durable.PREFIX):
        with contextlib.suppress(RemoteProtocolError, IndexError):
            return f"the durable store ({_operation(call)})"
    return f'service "{printable(call.service)}"' if call.service else "the server"


def _operation(call: Call) -> str:
    """RemoteProtocolError or IndexError if it did not come from one of our clients."""
    frame, verb = call.body[0], printable(call.service.removeprefix(durable.PREFIX))
    if call.service in _SUBMITS:
        read = durable.decode(frame, _SUBMITS[call.service])
        submit = read.submit if isinstance(read, durable.Schedule) else read
        return f'{verb} to service "{printable(submit.service)}"'
    if call.service in _FETCHES:
        frame = durable.decode(frame, durable.Fetch).id
    return f"{verb} of request {frame.hex()}" if len(frame) == durable.ID_BYTES else verb


_SUBMITS: dict[bytes, type[durable.Submit] | type[durable.Schedule]] = {
    durable.Service.SUBMIT.value: durable.Submit,
    durable.Service.SCHEDULE.value: durable.Schedule,
}
_FETCHES = {durable.Service.RESULT.value, durable.Service.STATUS.value}


def attempts(count: int) -> str:
    """``1 attempt``, ``2 attempts``."""
    return "1 attempt" if count == 1 else f"{count} attempts"


def overdue(
    call: Call,
    sent: Call,
    nodes: str,
    now: float,
    unreached: dict[str, str] | None = None,
    *,
    is_followed: bool = True,
) -> BstarError:
    """The deadline passed at the client. ``sent``: the call, or the call with its key that was sent.

    ``unreached``: the endpoints without a connection, as ``nodes`` describes them. ``is_followed``: a node
    has said that it serves.
    """
    begin, service = _waited(call, now), _service(call)
    if sent.may_have_executed:
        tried = attempts(sent.attempts)
        text = f"{begin}: {service} has not answered; {tried}, it may have been executed. Nodes: {nodes}"
        return CallTimeoutError(text, may_have_executed=True)
    if is_followed and sent.sent_to:
        text = f"{begin}: {service} has not answered; no worker executes it. Nodes: {nodes}"
        return CallTimeoutError(text, may_have_executed=False)
    if sent.busy_count:
        busy = printable(sent.busy_text)
        text = f"{begin}: the broker was busy for {service} until then ({busy}). Nodes: {nodes}"
        return BusyError(text, reason=busy, retry_after_s=sent.busy_pause_s)
    lack = f"no node was active for {service}" if call.service else "no server could be asked"
    return NoActiveNodeError(f"{begin}: {lack}; it was not executed. Nodes: {nodes}", unreached=unreached)


def handler_error(code: int, frames: list[bytes]) -> HandlerError:
    """The handler failed, or declined the request (BSN-C-16). ``frames``: the text, and what is behind it."""
    text = frames[0] if frames else b""
    declined = read_declined(text) if code == ErrorCode.HANDLER_FAILED else None
    if declined is not None:
        return DeclinedError(*declined, _read_data(data_behind(frames[1:])))
    return HandlerError(text.decode("utf-8", "replace") or "the handler failed and said nothing")


def _read_data(frame: bytes) -> object:
    """None without data, and for what is no JSON."""
    if frame:
        with contextlib.suppress(*UNDECODABLE):
            return msgspec.json.decode(frame)
    return None


def not_begun(call: Call, nodes: str, now: float) -> NoActiveNodeError:
    """The deadline passed while other calls were before this one."""
    return NoActiveNodeError(
        f"{_waited(call, now)}: {_service(call)}: other calls were before it; it was not sent. Nodes: {nodes}"
    )


def expired(call: Call, endpoint: str, why: str, now: float) -> CallTimeoutError:
    """A broker or worker reports that the request expired before a handler had it, and why."""
    may_have_executed = call.may_have_executed
    note = "an earlier attempt may have been executed" if may_have_executed else "it was not executed"
    why = printable(why) or _service(call)
    text = f"{_waited(call, now)} in the queue of {endpoint}: {why}; {note}"
    return CallTimeoutError(text, may_have_executed=may_have_executed)


def too_late(call: Call, now: float) -> CallTimeoutError | BusyError:
    """The deadline passed before the session had the call. ``busy_text``: the client was full."""
    text = f"{_waited(call, now)}: the request for {_service(call)} had not been sent"
    if call.busy_text:
        return BusyError(f"{text}; {call.busy_text}")
    return CallTimeoutError(text, may_have_executed=False)


def broken(call: Call, text: str) -> OutcomeUnknownError | StreamInterruptedError:
    """The attempt is lost, and it is unknown whether it was executed."""
    if call.is_stream and call.partials_count:
        return StreamInterruptedError(f"{text}; {call.partials_count} PARTIAL(s) had been delivered")
    return OutcomeUnknownError(text)


def closed(call: Call) -> BstarError:
    """The client was closed while the call was outstanding."""
    if call.may_have_executed:
        return OutcomeUnknownError("the client was closed while the request was outstanding")
    return ClosedError("the client was closed; no node had accepted the request: it was not executed")


def already_closed() -> ClosedError:
    """The call came after the client was closed."""
    return ClosedError("the client is closed; the request was not sent")


def waits_for_itself() -> LocalProtocolError:
    """A thread in the middle of the client's work asks the client for a reply."""
    return LocalProtocolError(
        "an observer, a callback or a signal handler cannot wait for a reply here: the client waits for it; "
        "begin() a call and add a callback to it, or wait in another thread"
    )


def too_many_outstanding(outstanding: int) -> BusyError:
    """The client has ``outstanding_max`` calls."""
    return BusyError(f"{outstanding} requests are outstanding (outstanding_max); wait for replies first")


def too_many_partials(partials_max: int) -> OutcomeUnknownError:
    """A reply has more than ``partials_max`` PARTIALs."""
    return OutcomeUnknownError(
        f"the reply has more than {partials_max} PARTIALs (partials_max): use stream()"
    )
