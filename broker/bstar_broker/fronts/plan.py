"""What a front brings to the node: how it is made, and where it listens."""

from collections.abc import Callable
from typing import Literal

import msgspec

from bstar.security.zap import Rule
from bstar_broker.core.front import Front, Inlet


class Door(msgspec.Struct, frozen=True):
    """A socket that a front binds.

    ``key`` is the configuration's, for errors. ``queue_max``: messages that wait for a peer (0: no
    bound). A message of a ROUTER begins with its peer's routing id.

    ``may_enter``: who may connect, with keys. Who uses services at all may enter a door without such a rule:
    each message is judged by itself.
    """

    name: str
    key: str
    endpoint: str
    kind: Literal["router", "dealer", "pub"] = "router"
    queue_max: int = 10_000
    may_enter: Rule | None = None


class Plan(msgspec.Struct, frozen=True):
    """A front that the configuration switches on."""

    name: str
    make: Callable[[Inlet], Front]
    doors: tuple[Door, ...]
