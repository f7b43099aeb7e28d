"""What the sections of the configuration share."""

import msgspec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of keys."""
