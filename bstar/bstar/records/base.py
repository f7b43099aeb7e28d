"""What the records of every kind share."""

import msgspec

VERSION = 1


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """What every record has.

    ``pair`` names the pair, ``node`` the process in it: "primary" or "backup" for a broker, its own name for
    a client or a worker. ``boot`` (32 hex digits) is new at every start of the process. ``seq`` counts the
    process's records from 1. ``at``: microseconds since 1970 (UTC). ``mono``: microseconds of the machine's
    monotonic clock, which goes on while the machine sleeps.
    """

    v: int
    pair: str
    node: str
    boot: str
    seq: int
    at: int
    mono: int
