"""What the broker core asks its shell to do, in order.

Outputs of the Binary Star machine travel in the same lists (see ``node``); the shell hands those to the pair.
"""

import msgspec

from bstar import star


class Send(msgspec.Struct, gc=False):
    """Send these frames through the ROUTER; the first is the routing id.

    If the peer cannot be reached the shell tells the core (``Node.unreachable``).
    """

    frames: list[bytes]


class Dispatch(Send, gc=False):
    """A Send that gives a request to a worker; if it fails, the delivery did not happen
    (``Node.undelivered``).
    """


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Something that an operator should read: the first of its kind, the others are only counted."""

    text: str


Output = Send | Dispatch | Notice | star.Output
