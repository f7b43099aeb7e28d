"""The room for Spark: what the journals of a pair tell, and calls of its services from a Spark job.

It is the only package that may import pyspark (extra ``spark``), and it reaches the brokers through
``bstar_client`` only. Spark is loaded when something that needs it is first asked for (PEP 562): Spark's own
workers import this package too, and a task that calls a service needs none of it.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand

if TYPE_CHECKING:
    from bstar_pipeline.calls import call

__all__ = ["call"]

__getattr__ = on_demand(__name__, {"bstar_pipeline.calls": ["call"]})
