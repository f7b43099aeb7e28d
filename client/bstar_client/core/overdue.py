"""What a caller is told whose deadline has passed: which service, after how long, and what is known of it."""

from bstar.errors import BstarError, BusyError, CallTimeoutError, NoActiveNodeError
from bstar.printable import printable
from bstar_client.core.calls import Call

__all__ = ["expired", "overdue", "seconds", "title", "too_late"]


def seconds(call: Call, now: float) -> str:
    """How long its caller has waited."""
    waited_s = now - call.begun_at
    return f"{waited_s:.1f} s" if waited_s >= 1 else f"{waited_s:.3f} s"


def title(call: Call) -> str:
    """The service it is for."""
    return f'service "{printable(call.service)}"'


def overdue(call: Call, sent: Call, nodes: str, now: float) -> BstarError:
    """The deadline passed here. ``sent``: the call itself, or the one with its key that was sent for it."""
    begin = f"timed out after {seconds(call, now)}: "
    if sent.may_have_executed:
        attempts = "1 attempt" if sent.attempts == 1 else f"{sent.attempts} attempts"
        text = f"{begin}{title(call)} has not answered; {attempts}, it may have been executed. Nodes: {nodes}"
        return CallTimeoutError(text, may_have_executed=True)
    if sent.busy_count:
        busy = printable(sent.busy_text)
        return BusyError(f"{begin}the broker was busy for {title(call)} until then ({busy}). Nodes: {nodes}")
    text = f"{begin}no node was active for {title(call)}; it was not executed. Nodes: {nodes}"
    return NoActiveNodeError(text)


def expired(call: Call, endpoint: str, why: str, now: float) -> CallTimeoutError:
    """A broker or worker says that its time to live ended before a handler had it, and why."""
    may_have_executed = call.may_have_executed
    note = "an earlier attempt may have been executed" if may_have_executed else "it was not executed"
    why = printable(why) or title(call)
    text = f"timed out after {seconds(call, now)} in the queue of {endpoint}: {why}; {note}"
    return CallTimeoutError(text, may_have_executed=may_have_executed)


def too_late(call: Call, now: float) -> CallTimeoutError:
    """The deadline passed before the session had the call."""
    text = f"timed out after {seconds(call, now)}: the request for {title(call)} had not been sent"
    return CallTimeoutError(text, may_have_executed=False)
