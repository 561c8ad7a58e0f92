"""Differences between the versions of PySpark that the source works with: 4.0 to 4.3.

Each name answers one question, and asks the installed PySpark, not its number.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before Spark 4.2
    limits = None

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_schema", "limits"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of batches that Spark takes for `schema`: times are in us, of UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # Spark 4.0 and 4.1, whose default is the same
