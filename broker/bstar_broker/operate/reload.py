"""A configuration that a running node reads again (SIGHUP): what takes effect, and what needs a restart."""

import msgspec

from bstar.settings import Settings, flatten
from bstar.settings.fields import nested
from bstar_broker.core.settings import RELOADABLE, BrokerSettings

# The list of principals is a file of its own, and the node follows it by itself.
RELOADED_KEYS = frozenset({"log.level", "log.format", *(f"limits.{name}" for name in RELOADABLE)})


class Reload(msgspec.Struct, frozen=True):
    """``settings`` are in force now. Of the keys that differ in the new configuration, ``applied`` are, and
    ``waiting`` take a restart.
    """

    settings: Settings
    applied: list[str]
    waiting: list[str]


def reload(now: Settings, new: Settings, core: BrokerSettings) -> Reload:
    """Let the running ``core`` follow the new limits. Whoever calls this sets the log."""
    values, wanted = flatten(now), flatten(new)
    changed = [path for path in values if values[path] != wanted[path]]
    applied = [path for path in changed if path in RELOADED_KEYS]
    values |= {path: wanted[path] for path in applied}
    settings = msgspec.convert(nested(values), Settings)
    for name in RELOADABLE:
        setattr(core, name, getattr(settings.limits, name))
    return Reload(settings, applied, [path for path in changed if path not in RELOADED_KEYS])
