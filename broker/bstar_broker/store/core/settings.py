"""The store core's settings: one frozen object, made by the shell of the node's configuration."""

from typing import Literal

import msgspec

WhenAlone = Literal["refuse", "accept"]


class StoreSettings(msgspec.Struct, frozen=True):
    """Times in seconds, bounds in counts and bytes; configs/primary.yaml tells operators more."""

    when_alone: WhenAlone = "refuse"
    requests_max: int = 10_000_000
    bytes_max: int = 64 << 30
    keep_answers_s: float = 604_800.0
    keep_dead_s: float = 2_592_000.0
    attempts_max: int = 5
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    expires_s: float = 0.0
