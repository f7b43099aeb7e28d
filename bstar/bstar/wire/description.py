"""What a worker says of its service: a version, a description, the JSON schemas of bodies (BSN-W-21).

It is a frame behind the header of READY. Brokers that do not know it ignore it (BSN-G-11).

    {"version": "1.4", "description": "Price of an item.", "request": {…}, "reply": {…}, "part": {…}}
"""

from typing import Any

import msgspec

from bstar.base.printable import printable
from bstar.base.undecodable import UNDECODABLE
from bstar.wire.limits import DESCRIPTION_BYTES_MAX, DESCRIPTION_CHARS_MAX, SERVICE_VERSION_CHARS_MAX

Schema = dict[str, Any]


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """``version`` and ``description`` are one line each, for people. ``request``, ``reply`` and ``part`` are
    JSON schemas (2020-12) of a request's body, of its FINAL and of each PARTIAL; None: not known.
    """

    version: str = ""
    description: str = ""
    request: Schema | None = None
    reply: Schema | None = None
    part: Schema | None = None


NO_DESCRIPTION = Description()


class Offer(Description, frozen=True, omit_defaults=True):
    """An entry of the answer to ``mmi.descriptions`` with a name: ``workers`` describe the service so."""

    workers: int = 0


class ServiceLimits(msgspec.Struct, frozen=True):
    """The limits that an operator sets a service (``services`` of the configuration); None: no limit of its
    own.
    """

    running_max: int | None = None
    requests_per_s: float | None = None
    queue_length_max: int | None = None
    expires_s: float | None = None


class LimitsInUse(ServiceLimits, frozen=True, kw_only=True):
    """The same, and what is used of them: ``running`` requests count against ``running_max``, and ``queued``
    against ``queue_length_max``. ``bound``: what bounds the service now, for people; "" if nothing does.
    """

    running: int
    queued: int
    bound: str


class ServiceSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the answer to ``mmi.descriptions`` without a name.

    ``versions`` counts the workers of each version, those without one under ""; empty if none has one.
    ``description``: how most workers describe it. ``limits``: None if it has none, or if this node does not
    serve.
    """

    service: str
    workers: int
    versions: dict[str, int] = {}
    description: str = ""
    limits: LimitsInUse | None = None


def encode_description(description: Description) -> bytes:
    """The frame; empty if nothing is said. Its length may be beyond the bound."""
    return b"" if description == NO_DESCRIPTION else msgspec.json.encode(description)


def read_description(frame: bytes) -> Description:
    """What a worker's frame says, fit for listings; nothing if it is malformed or beyond its bound."""
    if len(frame) > DESCRIPTION_BYTES_MAX:
        return NO_DESCRIPTION
    try:
        said = msgspec.json.decode(frame, type=Description)
    except UNDECODABLE:
        return NO_DESCRIPTION
    return msgspec.structs.replace(
        said,
        version=printable(said.version, SERVICE_VERSION_CHARS_MAX),
        description=printable(said.description, DESCRIPTION_CHARS_MAX),
    )
