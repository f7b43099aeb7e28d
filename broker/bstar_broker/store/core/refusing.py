"""Why the store refuses what a client asks (docs/operations.md, "Refusals")."""

from bstar.wire.messages import ErrorCode
from bstar_broker.core.refusals import Refusal
from bstar_broker.store.core.events import Change

DESK_REASONS = frozenset(
    ("store-waits", "store-refuses", "store-busy", "invalid-durable", "record-damaged", "unread-replies")
)

_RETRY_MS = 1_000


def never(reason: str, text: str, code: ErrorCode = ErrorCode.INVALID) -> Refusal:
    """It will never be taken."""
    assert reason in DESK_REASONS or reason in ("other-body", "call-not-allowed")
    return Refusal(reason, text, code, is_of_service=False)


def later(reason: str, text: str) -> Refusal:
    """It may be taken later."""
    assert reason in DESK_REASONS
    return Refusal(reason, text, None, _RETRY_MS, is_of_service=False)


def why_not_kept(change: Change, is_kept: bool) -> Refusal | None:
    """Why a request that was applied is not acknowledged; None if it is."""
    if change.is_other:
        return never(
            "other-body", "its key or id belongs to a request with another service, body, owner or schedule"
        )
    if not is_kept:
        text = "the request is on one disk only; submit it again (store.when_alone: refuse)"
        return later("store-refuses", text)
    return None
