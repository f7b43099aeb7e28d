"""The packages themselves: what they export exists, and importing one loads no more than it needs."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ["bstar", "bstar_broker", "bstar_client", "bstar_pipeline", "bstar_cli"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_resolves(package: str) -> None:
    module = import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_it_is_for(package: str) -> None:
    assert import_module(package).__doc__


def test_every_error_class_is_exported_at_the_top() -> None:
    errors, top = import_module("bstar.errors"), import_module("bstar")
    assert set(errors.__all__) <= set(top.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Unheard"):
        _ = import_module("bstar").Unheard


@pytest.mark.parametrize(
    ("package", "must_not_load"),
    [
        ("bstar", ["zmq", "transitions", "yaml", "prometheus_client", "asyncio"]),
        ("bstar_client", ["transitions", "yaml", "prometheus_client", "pyspark"]),
        ("bstar_pipeline", ["pyspark"]),
    ],
)
def test_importing_a_package_loads_no_more_than_it_needs(package: str, must_not_load: list[str]) -> None:
    program = f"import sys, {package}; print(*(set(sys.modules) & set({must_not_load!r})))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
