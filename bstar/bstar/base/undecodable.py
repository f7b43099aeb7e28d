"""What bytes from a network or a file raise that cannot be decoded."""

from typing import Final

import msgspec

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder of msgspec raises: malformed, text that is not UTF-8, brackets that are too deep."""
