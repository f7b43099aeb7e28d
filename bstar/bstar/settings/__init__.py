"""A node's settings: one frozen object, built once, checked as a whole.

``load`` reads a YAML file, lays ``BSTAR_…`` environment variables and explicit options over it (in this order
of strength) and returns :class:`Settings`. Whatever is wrong is reported in one
:class:`~bstar.errors.ConfigurationError`: every unknown key, wrong value and broken relation with the place
it came from and what to do about it. ``check_pair`` says whether two configurations belong together. The
schema is the one source of the documentation: the sample configurations are written from it. ``load_fleet``
reads the settings of clients and workers: where the pairs are.

An application that gets its endpoints elsewhere needs nothing of this package, which reads YAML.
"""

try:
    import yaml as _yaml  # noqa: F401 - the first import tells what is missing
except ModuleNotFoundError as error:
    text = "a configuration needs PyYAML, which is not installed: pip install '.[server]' in a clone of bstar"
    raise ModuleNotFoundError(text, name="yaml") from error

from bstar.settings.client import load_fleet, sample_client_configuration
from bstar.settings.fields import flatten
from bstar.settings.load import from_mapping, load, variable_of
from bstar.settings.relations import check_pair, node_warnings, pair_problems, pair_warnings
from bstar.settings.sample import sample_configuration, sample_settings
from bstar.settings.schema import (
    RESERVED_VARIABLES,
    Endpoints,
    Hooks,
    Http,
    Journal,
    Limits,
    Log,
    RoleName,
    Settings,
)
from bstar.settings.timing import PROFILES, ProfileName, Timing

__all__ = [
    "PROFILES", "RESERVED_VARIABLES", "Endpoints", "Hooks", "Http", "Journal", "Limits", "Log", "ProfileName",
    "RoleName", "Settings", "Timing", "check_pair", "flatten", "from_mapping", "load", "load_fleet",
    "node_warnings", "pair_problems", "pair_warnings", "sample_client_configuration", "sample_configuration",
    "sample_settings", "variable_of",
]  # fmt: skip
