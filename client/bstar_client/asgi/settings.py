"""What an HTTP front is told."""

import msgspec


class FrontSettings(msgspec.Struct, frozen=True):
    """``timeout_s``: the deadline of a call whose caller names none; ``timeout_max_s``: the longest.

    ``body_bytes_max`` bounds a request's body, ``slow_s`` the time in which it has to come,
    ``socket_calls_max`` the calls under way of one WebSocket. ``origins``: the web pages that may call;
    ``"*"`` stands for all.

    ``local``: the endpoint of the node that this is the front of. While the pair's other node serves, calls
    are refused; ``peer`` is then the address of its front. None: calls go to the node that serves.
    """

    timeout_s: float = 30.0
    timeout_max_s: float = 300.0
    body_bytes_max: int = 1 << 20
    slow_s: float = 30.0
    socket_calls_max: int = 100
    origins: tuple[str, ...] = ()
    local: str | None = None
    peer: str | None = None
