"""Which requests a journal records, when it does not record all of them.

The choice depends on the request's identity alone, so both nodes, the client and every worker that sees a
request choose alike, and what they recorded of it can be joined. A smaller share chooses a part of what a
larger one does.
"""

from zlib import crc32

EVERYTHING = 1 << 32
"""The limit above every request."""


def limit_of(share: float) -> int:
    """What ``is_sampled`` compares with, for a share of requests from 0 to 1."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share is from 0 to 1, not {share!r}")
    return round(share * EVERYTHING)


def is_sampled(identity: bytes, limit: int) -> bool:
    """Whether the request of this identity (24 octets) is recorded.

    A checksum spreads the numbers of one client evenly: of any 256 in a row it takes the same share.
    """
    return crc32(identity) < limit
