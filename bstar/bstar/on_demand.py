"""Names of a package that are loaded when they are first asked for (PEP 562): its import stays light."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``; ``modules`` names the module that each such name comes from.

    A name that was loaded is an ordinary attribute of the package from then on.
    """

    def load(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
