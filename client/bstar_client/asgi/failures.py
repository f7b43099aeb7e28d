"""What an HTTP caller gets that gets no reply: one status for each code, and a JSON body.

    {"code": "busy", "text": "…", "may_have_executed": false}

``may_have_executed`` false means that no worker began the request: asking again is safe. The table is that of
docs/http.md.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bstar.errors import (
    BstarError,
    BusyError,
    CallError,
    CallTimeoutError,
    ClosedError,
    DeadLetterError,
    DeclinedError,
    HandlerError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RejectedError,
    RequestCancelledError,
    StreamInterruptedError,
    UnknownRequestError,
)
from bstar.wire.messages import ErrorCode

STATUSES: Final[Mapping[str, int]] = {
    "bad-request": HTTPStatus.BAD_REQUEST,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "not-allowed": HTTPStatus.FORBIDDEN,
    "not-found": HTTPStatus.NOT_FOUND,
    "unknown-request": HTTPStatus.NOT_FOUND,
    "method-not-allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "slow-body": HTTPStatus.REQUEST_TIMEOUT,
    "dead-letter": HTTPStatus.GONE,
    "cancelled": HTTPStatus.GONE,
    "too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "declined": HTTPStatus.UNPROCESSABLE_ENTITY,
    "handler-failed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "outcome-unknown": HTTPStatus.BAD_GATEWAY,
    "stream-interrupted": HTTPStatus.BAD_GATEWAY,
    "busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "no-active-node": HTTPStatus.SERVICE_UNAVAILABLE,
    "passive": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
}
"""The status of each code."""

# The first that fits counts: an error of a kind comes before its base.
_CODES: Final[tuple[tuple[type[BstarError], str], ...]] = (
    (DeclinedError, "declined"),
    (HandlerError, "handler-failed"),
    (BusyError, "busy"),
    (RejectedError, "bad-request"),
    (NoActiveNodeError, "no-active-node"),
    (CallTimeoutError, "timeout"),
    (StreamInterruptedError, "stream-interrupted"),
    (OutcomeUnknownError, "outcome-unknown"),
    (DeadLetterError, "dead-letter"),
    (RequestCancelledError, "cancelled"),
    (UnknownRequestError, "unknown-request"),
    (LocalProtocolError, "bad-request"),
    (ClosedError, "stopping"),
)
# After a failover, or when a queue has room again: both take less.
_RETRY_AFTER: Final = {"Retry-After": "1"}


class FrontError(Exception):
    """The front itself refuses a request. ``more`` are further fields of the JSON body."""

    def __init__(
        self, code: str, text: str, *, headers: Mapping[str, str] | None = None, **more: object
    ) -> None:
        super().__init__(text)
        self.code = code
        self.more = more
        self.headers = dict(headers or {})


def code_of(error: BstarError) -> str:
    """The code of an error of a call."""
    if isinstance(error, RejectedError) and error.code == ErrorCode.NOT_ALLOWED:
        return "not-allowed"
    # What no caller caused, such as an answer that cannot be read: nobody knows what was done.
    return next((code for kind, code in _CODES if isinstance(error, kind)), "outcome-unknown")


def body_of(error: BstarError | FrontError) -> dict[str, Any]:
    """The JSON body of an error."""
    if isinstance(error, FrontError):
        return {"code": error.code, "text": str(error), "may_have_executed": False, **error.more}
    code = code_of(error)
    may_have = error.may_have_executed if isinstance(error, CallError) else code == "outcome-unknown"
    body: dict[str, Any] = {"code": code, "text": str(error), "may_have_executed": may_have}
    if isinstance(error, DeclinedError):
        body["declined"] = {"code": error.code, "text": error.text, "data": error.data}
    elif isinstance(error, DeadLetterError):
        body |= {"cause": error.cause, "said": error.text, "attempts": error.attempts}
    return body


def response_of(error: BstarError | FrontError) -> Response:
    """The HTTP response of an error."""
    body = body_of(error)
    status = STATUSES[body["code"]]
    headers = dict(error.headers) if isinstance(error, FrontError) else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers |= _RETRY_AFTER
    return json_response(body, status, headers)


def json_response(
    body: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON value as a response."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
