"""What a handler raises to decline a request."""

import msgspec

from bstar.errors import LocalProtocolError
from bstar.wire.declined import CODE, declined_text
from bstar.wire.limits import DECLINED_DATA_BYTES_MAX


class Declined(Exception):  # noqa: N818 - an answer, not an error of the service
    """A handler raises it to decline a request: it is answered, and the service works.

    The caller gets DeclinedError with ``code`` (1 to 64 letters, digits, ``.``, ``_`` and ``-``), for
    programs, ``text``, for people, and ``data``: what JSON can hold, 64 KiB at most. A durable request that
    is declined is a dead letter at once. A client of plain MDP gets two frames, ``500`` and code and text.

    TypeError or LocalProtocolError if they cannot be sent.
    """

    def __init__(self, code: str, text: str = "", data: object = None) -> None:
        super().__init__(code, text)
        for name, value in (("code", code), ("text", text)):
            if not isinstance(value, str):
                raise TypeError(f"the {name} of Declined is a text, not {type(value).__name__}")
        if CODE.fullmatch(code) is None:
            raise LocalProtocolError(
                f"a code of Declined is 1 to 64 letters, digits, '.', '_' and '-', not {code!r}"
            )
        self.code = code
        self.text = text
        self.data = data
        self._frames = [declined_text(code, text), *([] if data is None else [_encode(data)])]
        if len(self._frames[-1]) > DECLINED_DATA_BYTES_MAX:
            raise LocalProtocolError(f"the data of Declined has more than {DECLINED_DATA_BYTES_MAX} bytes")

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


def _encode(data: object) -> bytes:
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the data of Declined is what JSON can hold: {error}") from error


def frames_of(error: BaseException) -> list[bytes] | None:
    """The text on the wire, and the data as JSON if there is any; None of any other exception."""
    # A subclass may not have called ``__init__``.
    return vars(error).get("_frames") if isinstance(error, Declined) else None
