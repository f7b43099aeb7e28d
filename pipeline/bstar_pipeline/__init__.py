"""The room for Spark: reading from, and calling services of, a pair from a Spark job.

It is the only package that may import pyspark (extra ``spark``), and it reaches the brokers through
``bstar_client`` only. Nothing lives here yet: data sources and bulk calls are added as modules of this
package.
"""

__all__: list[str] = []
