"""What a broker gives to a worker, for tests of what goes over the wire."""

from bstar.wire.messages import Request


def asked(body: list[bytes], *, sender: bytes = b"", extensions: bytes = b"") -> Request:
    """A request that a worker is given."""
    return Request(sender, 3, (), b"", body, extensions=extensions)
