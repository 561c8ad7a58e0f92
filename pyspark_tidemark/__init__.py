"""Registers the format `tidemark`: Spark looks for `DefaultSource` in modules named `pyspark_*`.

It is imported wherever Spark plans a query, so it loads no more than Spark has loaded already.
"""

from tidemark.spark.source import TidemarkDataSource as DefaultSource

__all__ = ["DefaultSource"]
