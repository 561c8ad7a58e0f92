"""The classes that Spark calls to write: one for batch jobs, one for streams.

A writer pickles, and holds no connection. Facts of the Python Data Source API that shape it:

- `write` runs in a task. `commit` and `abort` of a stream run in a new process of the driver, with
  a writer of their own. The messages of tasks tell them all that they need.
- The query's id and the batch's number are local properties of the task. The latter is the same
  when a batch is replayed.
- A stage without partitions runs one task without rows, so there is a message always.
- Streams write Arrow from Spark 4.1 on; before it, rows come as Python objects.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemark.errors import ConfigError
from tidemark.spark.sink.decision import Attempt, Decision, SinkError, sink_name, slots
from tidemark.spark.sink.options import SinkOptions
from tidemark.spark.worker import in_one_line, keep_memory

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

STREAM_WRITER: type[Any] = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)
TAKES_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")

_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_IGNORED = ("offset", "timestampType")  # columns of the source, so that a topic can be copied
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The message of a task to the driver. `attempt` is None without rows, and all but `records`
    is empty with at-least-once."""

    records: int
    sink_id: str = ""
    batch: int = 0
    run: str = ""
    query: str = ""
    attempt: Attempt | None = None


Messages = Sequence[Written | None]


def checked_columns(schema: StructType, topic: str | None) -> None:
    """Raises ConfigError unless the rows can be written."""
    names = schema.fieldNames()
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name not in _TYPES and field.name not in _IGNORED:
            raise ConfigError(
                f"column {field.name!r} can not be written: the sink takes"
                f" {', '.join(_TYPES)}; put others into value, as by to_json(struct(...))"
            )
        if found not in _TYPES.get(field.name, (found,)):
            raise ConfigError(
                f"column {field.name} is of type {found}, not"
                f" {' or '.join(_TYPES[field.name])}: cast it before writing"
            )
    if "value" not in names:
        raise ConfigError("the rows have no column value, of type binary or string")
    if topic is None and "topic" not in names:
        raise ConfigError("give the option topic, or the rows a column topic")


class TidemarkWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame once, as a whole or not at all."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self.run = uuid.uuid4().hex

    def check(self) -> None:
        """Asks for the topic, before tasks wait for it. Raises UnknownTopicOrPartitionError soon,
        and the client's errors if the cluster can not be reached.
        """
        _check_topic(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends the rows of a partition; runs in a task. Raises the producer's errors."""
        sink_id = self._options.sink_id or self.run
        return _write(self._options, sink_id, self._options.batch_id or 0, self.run, "", iterator)

    def commit(self, messages: Messages) -> None:
        """Makes the rows visible. Raises SinkError and ConfigError."""
        with in_one_line():
            _commit(self._options, messages)

    def abort(self, messages: Messages) -> None:
        """Aborts what tasks have written."""
        options = self._options
        with in_one_line():
            if options.exactly_once:
                sink_id = options.sink_id or self.run
                _abort(options, sink_id, options.batch_id or 0, self.run, messages)


class TidemarkStreamWriter(STREAM_WRITER):  # type: ignore[misc]
    """Writes each batch of a query once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.run = uuid.uuid4().hex

    def check(self) -> None:
        """As that of `TidemarkWriter`."""
        _check_topic(self._options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Sends the rows of a partition; runs in a task. Raises the producer's errors."""
        query, batch = _of_task(_QUERY), _of_task(_BATCH)
        sink_id = self._options.sink_id or query
        rows = iterator
        if not TAKES_ARROW:
            from tidemark.spark.sink.rows import arrow_batches

            rows = arrow_batches(iterator, self._schema)
        return _write(self._options, sink_id, int(batch), self.run, query, rows)

    def commit(self, messages: Messages, batchId: int) -> None:
        """Makes the batch visible, unless it is. Raises SinkError and ConfigError."""
        with in_one_line():
            _commit(self._options, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Aborts what tasks have written of the batch, unless it was decided."""
        first = next((each for each in messages if each is not None), None)
        with in_one_line():
            if self._options.exactly_once and first is not None:
                _abort(self._options, first.sink_id, batchId, first.run, messages)


def _check_topic(options: SinkOptions) -> None:
    from tidemark.spark.lookups import Lookups
    from tidemark.spark.options import parse_options

    if options.topic is None:
        return
    asked = parse_options({"bootstrap.servers": options.bootstrap_servers, "subscribe": "-"})
    asked = replace(asked, security=options.security)
    with in_one_line(), Lookups(asked) as lookups:
        lookups.topics([options.topic])


def _of_task(name: str) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    if not found:
        raise SinkError(f"Spark does not tell a task {name}, which names the batch")
    return str(found)


def _write(
    options: SinkOptions,
    sink_id: str,
    batch: int,
    run: str,
    query: str,
    batches: Iterable[pa.RecordBatch],
) -> Written:
    from pyspark import TaskContext

    from tidemark.spark.sink.tasks import write_attempt, write_plainly

    keep_memory()
    with in_one_line():
        if not options.exactly_once:
            return Written(write_plainly(options, batches))
        context = TaskContext.get()
        if context is None:
            raise SinkError("rows are written by a task of Spark, and this is none")
        ids = slots(sink_name(sink_id), context.partitionId(), context.attemptNumber())
        attempt, records = write_attempt(options, ids, batches)
        return Written(records, sink_id, batch, run, query, attempt)


def _commit(options: SinkOptions, messages: Messages) -> None:
    from tidemark.spark.sink.coordinators import with_coordinators
    from tidemark.spark.sink.core import commit_batch

    written = [each for each in messages if each is not None]
    if not options.exactly_once or not written:
        return
    if len({(each.sink_id, each.batch, each.run) for each in written}) > 1:
        raise SinkError("Spark commits tasks of several batches at once")
    first = written[0]
    winners = tuple(each.attempt for each in written if each.attempt is not None)
    wanted = Decision(first.batch, first.run, first.query, winners)
    with_coordinators(
        sink_name(first.sink_id),
        options.bootstrap_servers,
        lambda coordinators: commit_batch(coordinators, wanted),
        options.security,
    )


def _abort(options: SinkOptions, sink_id: str, batch: int, run: str, written: Messages) -> None:
    from tidemark.spark.sink.coordinators import with_coordinators
    from tidemark.spark.sink.core import abort_run

    attempts = [each.attempt for each in written if each is not None and each.attempt is not None]
    with_coordinators(
        sink_name(sink_id),
        options.bootstrap_servers,
        lambda coordinators: abort_run(coordinators, batch, run, attempts),
        options.security,
    )
