"""Names of a package that load on first use (PEP 562), so that its import stays light."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def on_demand(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``; ``names`` lists such names by the module that they come from.

    A loaded name is an ordinary attribute of the package.
    """

    modules = {name: module for module, of_module in names.items() for name in of_module}

    def load(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
