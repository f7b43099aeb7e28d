"""The frames of Lazy Pirate and of the three models of Freelance, for both sides. No broker reads them.

    Lazy Pirate, Freelance model 1    request [""] [body…]              reply [""] [body…]
    Freelance model 2                 request [""] [sequence] [body…]   reply [""] [sequence] [body…]
    Freelance model 3 (10/FLP)        request [control] [body…]         reply [control] [body…]
                                      ping    ["PING"]                  pong  ["PONG"]

A sequence is a decimal number in ASCII. A control frame is the client's own, 0 bytes or more. Every body has
one frame or more. Sources: zguide chapter 4; 10/FLP.
"""

from collections.abc import Collection

from bstar.errors import RemoteProtocolError
from bstar.wire.limits import FRAMES_MAX
from bstar.wire.mdp import ClientReply, check_body

PING = b"PING"
PONG = b"PONG"

Frames = list[bytes]


class Plain:
    """What a REQ sends and gets, delimiter included: Lazy Pirate and Freelance model 1."""

    def encode_request(self, service: bytes, body: Frames) -> Frames:
        """A request; nothing names a service."""
        check_body(body)
        return [b"", *body]

    def decode_for_client(self, frames: Frames) -> ClientReply:
        """Read a reply. RemoteProtocolError without the delimiter or without a body."""
        if len(frames) < 2 or frames[0]:
            raise RemoteProtocolError("server-frames", 'a server answers [""] [body…]')
        return ClientReply(is_final=True, service=b"", body=frames[1:])


PLAIN = Plain()


def encode_numbered(number: bytes, body: Frames) -> Frames:
    """A request or a reply of model 2."""
    check_body(body)
    return [b"", number, *body]


def decode_numbered(frames: Frames) -> tuple[bytes, Frames]:
    """The sequence and the body of a request or a reply of model 2. RemoteProtocolError if it is invalid."""
    if len(frames) < 3 or frames[0]:
        raise RemoteProtocolError("server-frames", 'a server answers [""] [sequence] [body…]')
    return frames[1], frames[2:]


def encode_controlled(control: bytes, body: Frames) -> Frames:
    """A request or a reply of model 3."""
    check_body(body)
    return [control, *body]


def decode_controlled(frames: Frames) -> tuple[bytes, Frames]:
    """The control frame and the body of a request or a reply of model 3, of PONG its frame and no body.

    RemoteProtocolError if it is invalid.
    """
    if len(frames) < 2 and frames != [PONG]:
        raise RemoteProtocolError("server-frames", 'a server answers [control] [body…] or ["PONG"]')
    return frames[0], frames[1:]


def read_request(frames: Frames, models: Collection[int]) -> tuple[Frames, Frames]:
    """The frames that stand before the reply, and the request's body; of a PING ``["PONG"]`` and no body.

    ``models`` are those that the server serves; their frames differ. ``["PING"]`` alone is a
    ping (FLP-R-01). After an empty frame, one frame is the body of model 1; of two or more the first is the
    sequence of model 2. Anything else is a control frame and the body of model 3. Where a model is not
    served, its frames belong to the one that is next like it: without model 2, every body after an empty
    frame is of model 1; without models 1 and 2, an empty frame is a control frame.

    RemoteProtocolError for what is no request, or has more than ``FRAMES_MAX`` frames.
    """
    is_flp = 3 in models
    if frames == [PING] and is_flp:
        return [PONG], []
    if len(frames) > FRAMES_MAX:
        raise RemoteProtocolError("too-many-frames", f"a request has at most {FRAMES_MAX} frames")
    if len(frames) < 2:
        raise RemoteProtocolError("no-body", "a request has a frame before its body, and a body")
    is_delimited = not frames[0]
    if is_delimited and len(frames) > 2 and 2 in models:
        return frames[:2], frames[2:]
    if is_flp or (is_delimited and 1 in models):
        return frames[:1], frames[1:]
    raise RemoteProtocolError("other-model", "a request of a model that is not served here")
