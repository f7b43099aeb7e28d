"""Selects the requests that a journal records when it records a sample.

The choice depends on the request's identity alone. So both nodes, the client and the workers choose the same
requests, and their records can be joined. A smaller share selects a part of a larger one.
"""

from zlib import crc32

EVERYTHING = 1 << 32
"""The limit above every request."""


def limit_of(share: float) -> int:
    """The limit for ``is_sampled``, for a share of requests from 0 to 1."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share is from 0 to 1, not {share!r}")
    return round(share * EVERYTHING)


def is_sampled(identity: bytes, limit: int) -> bool:
    """True if the journal records the request with this identity (24 bytes).

    A checksum spreads the numbers of one client evenly: of any 256 in a row it takes the same share.
    """
    return crc32(identity) < limit
