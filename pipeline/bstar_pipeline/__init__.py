"""The room for Spark: what the journals of a pair tell, and calls of its services from a Spark job.

It is the only package that may import pyspark (extra ``spark``), and it reaches the brokers through
``bstar_client`` only. Spark is loaded when something that needs it is first asked for (PEP 562): Spark's own
workers import this package too, and a task that calls a service needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bstar_pipeline.calls import call
    from bstar_pipeline.source import BstarDataSource

__all__ = ["BstarDataSource", "call"]

_LOADED_WHEN_ASKED_FOR = {"BstarDataSource": "bstar_pipeline.source", "call": "bstar_pipeline.calls"}


def __getattr__(name: str) -> object:
    """Load a name on its first use."""
    module = _LOADED_WHEN_ASKED_FOR.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
