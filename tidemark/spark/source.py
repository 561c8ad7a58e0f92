"""The classes that Spark calls: data source `tidemark`, batch reader, slices as input partitions.

Everything here must pickle, because Spark plans in one process and reads in others. Nothing holds a
connection: planning opens a client for one plan, and workers have their own. Facts of the Python
Data Source API that shape it:

- Options are case-insensitive.
- The engine requires a real list of partitions; an empty list arrives as one partition without a
  value.
- Arrow batches must have exactly Spark's schema, which is the source's own or that of `.schema`.
  There is no other pruning of columns.
- A reader must not define `pushFilters` unless push-down is switched on, so `portable` has two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from tidemark.spark.options import (
    COLUMNS,
    SourceOptions,
    checked_columns,
    parse_columns,
    parse_options,
    wants_typed_values,
)
from tidemark.spark.pushdown import Restriction, accepted
from tidemark.spark.tables import (
    is_table,
    kept_in,
    options_of,
    plain_options,
    sink_options_of,
)
from tidemark.spark.topic_values import (
    decoded,
    described,
    plain_schema,
    settings_of_topics,
    typed_schema,
)
from tidemark.spark.worker import in_one_line, keep_memory

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.spark.sink.writers import TidemarkStreamWriter, TidemarkWriter
    from tidemark.spark.stream import TidemarkStreamReader

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


_TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def source_schema(columns: Sequence[str] = COLUMNS[:-1]) -> StructType:
    """These columns, by default all but headers, with the types of Spark's Kafka source."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


@dataclass
class SlicePartition(InputPartition):  # type: ignore[misc]
    """One task's work: a range of offsets of one partition."""

    offsets: OffsetRange


class TidemarkReader(DataSourceReader):  # type: ignore[misc]
    """Reads topics once, from their starting to their ending offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Raises ConfigError for push-down that this Spark does not have."""
        if options.push_down and not hasattr(DataSourceReader, "pushFilters"):
            raise ConfigError("pushDown needs Spark 4.1: leave it out, or upgrade")
        self._options = options
        self._schema = schema
        self.restrictions: tuple[Restriction, ...] = ()

    @property
    def takes_filters(self) -> bool:
        return self._options.push_down

    def partitions(self) -> list[SlicePartition]:
        """One slice per topic partition, or more if minPartitions or a similar option requires it.

        Raises ConfigError, DataLossError, and the client's errors if the cluster cannot be reached
        or does not know a topic.
        """
        from tidemark.spark.planning import plan

        with in_one_line():
            slices = plan(self._options, self.restrictions)
            return [SlicePartition(offsets) for offsets in slices]

    def take(self, filters: Iterable[Any]) -> list[Any]:
        """Cuts the plan by Spark's filters. Returns those that Spark has to apply itself."""
        self.restrictions, left = accepted(filters)
        return left

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of exactly the slice's offsets; runs in a task. Raises DataLossError."""
        return read_partition(self._options, self._schema, partition)


def read_partition(
    options: SourceOptions, schema: StructType, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of exactly the slice's offsets. Raises DataLossError."""
    if not isinstance(partition, SlicePartition):
        return  # nothing to read: Spark 4.1 passes None, 4.3 InputPartition(None)
    from tidemark.spark.slices import read_slice
    from tidemark.spark.versions import arrow_schema

    keep_memory()
    with in_one_line():
        plain, settings = plain_schema(schema)
        batches = read_slice(options, partition.offsets, arrow_schema(plain))
        if settings is None:
            yield from batches
            return
        decoder, typed = settings.decoder(), arrow_schema(schema)
        for batch in batches:
            yield decoded(batch, decoder, typed)


class TidemarkDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("tidemark")`; the options are in `tidemark.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> StructType:
        """The columns. Raises ConfigError for wrong options."""
        with in_one_line():
            given = plain_options(self.options)
            schema = source_schema(parse_columns(given))
            if wants_typed_values(given) and "value" in schema.fieldNames():
                schema = typed_schema(schema, settings_of_topics(given, described))
            return kept_in(schema, given) if is_table(self.options) else schema

    def reader(self, schema: StructType) -> TidemarkReader:
        """A batch reader of the columns of `schema`.

        Raises ConfigError for a column that the source does not have, or of another type.
        """
        with in_one_line():
            options = parse_options(options_of(self.options, schema))
            return TidemarkReader(options, checked_schema(schema, options.are_values_typed))

    def streamReader(self, schema: StructType) -> TidemarkStreamReader:
        """A stream reader of the columns of `schema`. Raises ConfigError as `reader`."""
        from tidemark.spark.stream import TidemarkStreamReader

        with in_one_line():
            options = parse_options(options_of(self.options, schema), is_stream=True)
            return TidemarkStreamReader(options, checked_schema(schema, options.are_values_typed))

    def writer(self, schema: StructType, overwrite: bool) -> TidemarkWriter:
        """A writer of a DataFrame of this schema. Raises ConfigError for wrong options, columns,
        and the mode overwrite.
        """
        from tidemark.spark.sink.options import parse_sink_options
        from tidemark.spark.sink.writers import TidemarkWriter, checked_columns

        with in_one_line():
            if overwrite:
                raise ConfigError(
                    "a topic is not overwritten: write with mode('append'), or INSERT INTO"
                )
            options = parse_sink_options(sink_options_of(self.options, schema), is_stream=False)
            checked_columns(schema, options.topic)
            return TidemarkWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidemarkStreamWriter:
        """A writer of a query's batches, of which the output mode complete (`overwrite`) writes all
        rows each time. Raises ConfigError for wrong options and columns.
        """
        from tidemark.spark.sink.options import parse_sink_options
        from tidemark.spark.sink.writers import TidemarkStreamWriter, checked_columns

        with in_one_line():
            options = parse_sink_options(plain_options(self.options), is_stream=True)
            checked_columns(schema, options.topic)
            return TidemarkStreamWriter(options, schema)


def checked_schema(schema: StructType, are_values_typed: bool = False) -> StructType:
    """Raises ConfigError unless each column is one of the source, with its type or decoded."""
    plain, settings = plain_schema(schema)
    if are_values_typed and settings is None and "value" in plain.fieldNames():
        raise ConfigError(
            "values=typed takes the type of value from the topic: leave the schema out, and name"
            " columns by the option columns"
        )
    names = checked_columns("schema", plain.fieldNames())
    for field, own in zip(plain.fields, source_schema(names).fields, strict=True):
        if field.dataType.simpleString() != own.dataType.simpleString():
            raise ConfigError(
                f"schema: {own.name} is of type {own.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading"
            )
    return schema
