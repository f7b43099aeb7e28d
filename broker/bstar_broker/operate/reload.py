"""A configuration that a running node reads again (SIGHUP): what takes effect, and what needs a restart."""

import msgspec

from bstar.errors import ConfigurationError
from bstar.settings import Settings, flatten
from bstar.settings.fields import nested
from bstar.settings.relations import node_problems
from bstar_broker.core.settings import RELOADABLE, BrokerSettings, services_of

# The list of principals is a file of its own, and the node follows it by itself.
RELOADED_KEYS = frozenset({"log.level", "log.format", "services", *(f"limits.{name}" for name in RELOADABLE)})


class Reload(msgspec.Struct, frozen=True):
    """``settings`` are in force now. Of the keys that differ in the new configuration, ``applied`` are, and
    ``waiting`` take a restart.
    """

    settings: Settings
    applied: list[str]
    waiting: list[str]


def reload(now: Settings, new: Settings, core: BrokerSettings) -> Reload:
    """Give the running ``core`` the new limits. The caller sets the log and tells the node.

    ConfigurationError, and nothing changes, if the new limits do not fit the keys that take a restart.
    """
    values, wanted = flatten(now), flatten(new)
    changed = [path for path in values if values[path] != wanted[path]]
    applied = [path for path in changed if path in RELOADED_KEYS]
    values |= {path: wanted[path] for path in applied}
    settings = msgspec.convert(nested(values), Settings)
    for problem in node_problems(settings):
        raise ConfigurationError(f"{problem.paths[0]} beside keys that take a restart: {problem.text}")
    for name in RELOADABLE:
        setattr(core, name, getattr(settings.limits, name))
    core.services = services_of(settings.services)
    return Reload(settings, applied, [path for path in changed if path not in RELOADED_KEYS])
