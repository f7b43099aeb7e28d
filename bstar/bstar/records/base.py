"""What the records of every kind share."""

import msgspec

VERSION = 1


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """What every record has.

    ``pair`` names the pair, ``node`` the process in it: "primary" or "backup", or the name of a client or
    worker. ``boot`` (32 hex digits) is new at every start. ``seq`` counts the process's records from 1.
    ``at``: microseconds since 1970 (UTC). ``mono``: microseconds of the machine's CLOCK_BOOTTIME. Some have
    ``weight``, for how many requests they stand (sampling), and ``reply_crc``, the CRC-32 of the frames of
    the reply joined.
    """

    v: int
    pair: str
    node: str
    boot: str
    seq: int
    at: int
    mono: int
