"""The classes that Spark calls: data source `tidemark`, batch reader, slices as input partitions.

Everything here must pickle, because Spark plans in one process and reads in others. Nothing holds a
connection: planning opens a client for one plan, and each task opens its own. Facts of the Python
Data Source API that shape it:

- Options are case-insensitive.
- The engine requires a real list of partitions; an empty list arrives as one partition without a
  value.
- Arrow batches must have exactly Spark's schema.
- A reader must not define `pushFilters` unless push-down is switched on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemark.errors import ConfigError
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def source_schema(include_headers: bool) -> StructType:
    """The columns of Spark's Kafka source, in its order."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", ArrayType(_HEADER)))
    return StructType(fields)


@dataclass
class SlicePartition(InputPartition):  # type: ignore[misc]
    """One task's work: a range of offsets of one partition."""

    offsets: OffsetRange


class TidemarkReader(DataSourceReader):  # type: ignore[misc]
    """Reads topics once, from their starting to their ending offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[SlicePartition]:
        """One slice per topic partition, or more if minPartitions or a similar option requires it.

        Raises ConfigError, DataLossError, and the client's errors if the cluster cannot be reached
        or does not know a topic.
        """
        from tidemark.spark.planning import plan

        return [SlicePartition(offsets) for offsets in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of exactly the slice's offsets; runs in a task. Raises DataLossError."""
        if not isinstance(partition, SlicePartition):
            return iter(())  # nothing to read: Spark 4.1 passes None, 4.3 InputPartition(None)
        from pyspark.sql.pandas.types import to_arrow_schema

        from tidemark.spark.slices import read_slice

        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_slice(self._options, partition.offsets, schema)


class TidemarkDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("tidemark")`; the options are in `tidemark.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> StructType:
        """The columns. Raises ConfigError for wrong options."""
        return source_schema(parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> TidemarkReader:
        """A batch reader. Raises ConfigError for a schema that is not the source's own."""
        options = parse_options(self.options)
        own = source_schema(options.include_headers)
        if schema.simpleString() != own.simpleString():
            raise ConfigError(
                "the source has a fixed schema; read it as it is and select or cast the columns: "
                f"{own.simpleString()}"
            )
        return TidemarkReader(options, own)
