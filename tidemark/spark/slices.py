"""Reading one slice within a Spark task: record batches in, Arrow batches in Spark's schema out.

The kernels of `tidemark.records` decode the bytes. The rows are cut to exactly [start, end), and
Spark receives them without a Python object per record. While Spark processes one batch, a thread
fetches and decodes the next ones, at most `_READY_MAX` ahead.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from tidemark.client import Consumer, LogTruncationError, RawBatches, TopicRecreatedError
from tidemark.client.records import without_aborted
from tidemark.errors import (
    ApiError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import iter_batches
from tidemark.spark.clients import CLIENTS
from tidemark.spark.columns import SliceColumns
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.options import SourceOptions

T = TypeVar("T")

logger = logging.getLogger(__name__)

_READY_MAX = 2
_POLL_MS = 1_000
_SILENT_MS = 1_500  # after which the metadata is asked whether the topic is still there
_GONE_MS = 3_000


def read_slice(
    options: SourceOptions, offsets: OffsetRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the records in the range, in order, with the columns of `schema`.

    Raises DataLossError, and RequestTimedOutError if nothing comes for kafkaConsumer.pollTimeoutMs.
    """
    if offsets.direct is not None:
        from tidemark.spark.direct.reading import read_direct

        yield from read_direct(options, offsets, schema)
        return
    with CLIENTS.borrowed(options) as consumer:
        yield from ahead(slice_batches(consumer, options, offsets, schema))


def slice_batches(
    consumer: Consumer, options: SourceOptions, offsets: OffsetRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """As `read_slice`, with an existing client."""
    tp, position = offsets.topic_partition, offsets.start
    columns = SliceColumns(offsets, schema)
    consumer.assign([tp])
    consumer.seek(tp, position, topic_id=offsets.topic_id)
    progress_ms = _now_ms()
    while position < offsets.end:
        try:
            fetched = consumer.fetch_batches(timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError as error:
            fetched = []
            position = _after_loss(consumer, options, offsets, position, error)
            if position < offsets.end:
                consumer.seek(tp, position, topic_id=offsets.topic_id)
        except TopicRecreatedError:
            _lose_topic(options, offsets, "was deleted, and another one has its name")
            return
        for raw in fetched:
            if options.fail_on_data_loss and offsets.leader_epoch >= 0:
                _check_epochs(raw, offsets)
            yield from columns.batches(memoryview(without_aborted(raw)), position)
            position, progress_ms = max(position, raw.next_offset), _now_ms()
            if position >= offsets.end:
                return
        idle_ms = _now_ms() - progress_ms
        if idle_ms > options.poll_timeout_ms:
            raise RequestTimedOutError(
                f"{tp}: nothing came at offset {position} for {options.poll_timeout_ms} ms; is its "
                "leader up? kafkaConsumer.pollTimeoutMs sets how long to wait"
            )
        if not fetched and idle_ms > _SILENT_MS and _is_gone(consumer, tp.topic):
            _lose_topic(options, offsets, "was deleted")
            return


def _now_ms() -> float:
    return time.monotonic() * 1000


def _is_gone(consumer: Consumer, topic: str) -> bool:
    """Whether all nodes say for `_GONE_MS` that there is no such topic; one may lag behind."""
    try:
        consumer.partitions_for(topic, timeout_ms=_GONE_MS)
    except UnknownTopicOrPartitionError:
        return True
    except ApiError as error:  # of the nodes: the poll has its own limit
        logger.debug("%s: %s", topic, error)
    return False


def _lose_topic(options: SourceOptions, offsets: OffsetRange, what: str) -> None:
    """Raises DataLossError for a topic that is not the planned one, unless that is tolerated."""
    loss = (
        f"{offsets.topic_partition}: the topic {what} after the read was planned; its offsets "
        f"{offsets.start} to {offsets.end - 1} are gone"
    )
    if options.fail_on_data_loss:
        raise DataLossError(f"{loss}; failOnDataLoss=false reads what there is")
    logger.warning("%s", loss)


def _after_loss(
    consumer: Consumer,
    options: SourceOptions,
    offsets: OffsetRange,
    position: int,
    error: OffsetOutOfRangeError,
) -> int:
    """The position to continue from after the log has lost `position`.

    A new leader may not know the end of its log yet; a position within the log is kept. Raises
    DataLossError if the loss is not tolerated.
    """
    tp = offsets.topic_partition
    if isinstance(error, LogTruncationError) and options.fail_on_data_loss:
        raise DataLossError(
            f"{error}; records of {offsets.start} to {offsets.end - 1} that were read are no longer"
            " in the log; failOnDataLoss=false reads what there is"
        ) from error
    first, last = consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
    if first <= position < last:
        return position
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{tp}: offset {position} of {offsets.start} to {offsets.end - 1} is not in the log, "
            f"which has {first} to {last - 1}; failOnDataLoss=false reads what there is"
        ) from error
    return first if position < first else offsets.end


def _check_epochs(raw: RawBatches, offsets: OffsetRange) -> None:
    """Raises DataLossError for records that are newer than the plan.

    The log had all records below the planned end, of epochs up to that of its leader then. A later
    epoch in their place means that the log was truncated and written again.
    """
    for _, header in iter_batches(raw.buffer):
        if header.base_offset >= offsets.end:
            return
        if header.partition_leader_epoch > offsets.leader_epoch:
            raise DataLossError(
                f"{offsets.topic_partition}: offset {header.base_offset} is of leader epoch "
                f"{header.partition_leader_epoch}, and the read was planned in epoch "
                f"{offsets.leader_epoch}: the log was truncated since, and written again; "
                "failOnDataLoss=false reads what there is"
            )


class _Ended:
    """The end of the stream that `ahead` reads, with the error that ended it, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(batches: Iterable[T], abort: Callable[[], None] = lambda: None) -> Generator[T]:
    """The same batches, made in a thread up to `_READY_MAX` ahead of the consumer.

    An error is raised after the batches before it. The thread ends if the consumer stops early:
    `abort` ends a wait of the thread.
    """
    ready: queue.Queue[T | _Ended] = queue.Queue(_READY_MAX)
    stopped = threading.Event()

    def make() -> None:
        ended = _Ended(None)
        try:
            for batch in batches:
                ready.put(batch)
                if stopped.is_set():
                    return
        except BaseException as error:  # raised again by the consumer
            ended = _Ended(error)
        ready.put(ended)

    thread = threading.Thread(target=make, name="tidemark-slice", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _Ended):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        abort()
        while thread.is_alive():
            with suppress(queue.Empty):
                ready.get_nowait()  # makes room for a batch that the thread holds
            thread.join(0.02)
