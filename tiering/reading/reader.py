"""Reads of the tier: by offset and by timestamp.

A read by offset takes four steps. The local lineage gives the leader epoch of the offset, and the
metadata the finished segment with it. The segment's offset index gives a position, and the log a
big range of bytes. A sequential reader has the next chunks read ahead, also those of the next
segment. The result is whole batches, the very bytes of the local log (RULES.md I10).

A read has its own deadline (remote.log.reader.timeout.ms). A caller that is cancelled earlier does
not stop the load, whose result stays in the cache. Beyond remote.log.reader.max.pending.tasks reads
are refused, not queued without end. Half as many look-ups by time are under way, beside the reads;
partitions share their places, and as many as reads wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from commitlog.disk.files import Directory
from commitlog.log.log import Log
from commitlog.types import AbortedTransaction, TimestampOffset
from tidemark.config import ServerConfig
from tidemark.errors import ApiError, OffsetOutOfRangeError, RequestTimedOutError
from tidemark.records import decode_batch
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteReadBusyError,
    RemoteResourceNotFoundError,
    RemoteStorageNotReadyError,
    RetriableRemoteStorageError,
)
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.metrics import RemoteMetrics
from tiering.reading.disk_cache import DiskChunkCache
from tiering.reading.failures import Failures
from tiering.reading.index_cache import DIRECTORY_NAME, RemoteIndexCache
from tiering.reading.places import FairPlaces
from tiering.reading.segment_reader import SegmentReader
from tiering.reading.transactions import RemoteTransactions
from tiering.store.manager import RemoteStorageManager
from tiering.tasks import planner

T = TypeVar("T")


def lineage(log: Log) -> tuple[EpochEntry, ...]:
    """Returns the leader epochs of a log, oldest first."""
    return tuple(EpochEntry(epoch, start) for epoch, start in log.epochs.entries())


class RemoteReader:
    """All reads of one node's tier; used on one event loop. Its caches on disk are directories in
    `directory`; those in `former` are not used any more.
    """

    def __init__(
        self,
        config: ServerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        directory: Directory,
        metrics: RemoteMetrics,
        former: Sequence[Directory] = (),
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._metrics = metrics
        self._timeout_ms = config.remote_log_reader_timeout_ms
        self._pending_max = config.remote_log_reader_max_pending_tasks
        self._reading = 0
        self._look_ups = FairPlaces(max(1, self._pending_max // 2), self._pending_max)
        on_disk = DiskChunkCache(
            *(directory, config.remote_log_reader_chunk_cache_disk_size_bytes, storage, metrics),
            former=former,
        )
        index_cache = RemoteIndexCache(
            directory.subdirectory(DIRECTORY_NAME),
            config.remote_log_index_file_cache_total_size_bytes,
            *(storage, metrics),
        )
        self.segments = SegmentReader(config, on_disk, index_cache, metrics)
        self._failures = Failures(metrics)
        self._transactions = RemoteTransactions(storage, metadata, self.segments.run)

    async def close(self) -> None:
        """Cancels the work under way."""
        self._look_ups.close()
        await self.segments.close()

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> memoryview:
        """Reads whole batches from the one with `offset` on; see `RemoteLogManager.read`."""
        what = f"remote read of {partition} at {offset}"
        return await self._as_read(
            what, lambda: self._read(partition, log, offset, max_bytes), partition, log, offset
        )

    async def aborted_transactions(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Finds the aborted transactions with records in [start, end)."""
        what = f"aborted transactions of {partition} at {start_offset}"
        return await self._as_read(
            what,
            lambda: self._transactions.aborted(partition, log, start_offset, end_offset),
            partition,
            log,
            start_offset,
        )

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None:
        """Finds the first record below the local start with this timestamp or a later one."""
        what = f"remote look-up of {partition} by time"
        work = self._search_in_turn(partition, log, timestamp_ms)
        return await self._bounded(what, work, partition, log, log.log_start_offset)

    async def guarded(
        self, what: str, work: Awaitable[T], partition: TopicIdPartition, log: Log, offset: int
    ) -> T:
        """Runs other work on the tier with the deadline and the typed errors of a read."""
        return await self._bounded(what, work, partition, log, offset)

    def _gone(
        self, partition: TopicIdPartition, log: Log, offset: int, error: ApiError
    ) -> ApiError:
        """Returns the error of a read whose object is gone: it expired under the reader, or the
        store lacks what the metadata has.
        """
        if offset < log.log_start_offset or self._segment_at(partition, log, offset) is None:
            return OffsetOutOfRangeError(f"offset {offset} of {partition} expired in the tier")
        return RetriableRemoteStorageError(f"the remote storage lacks an object: {error}")

    async def _as_read(
        self,
        what: str,
        work: Callable[[], Awaitable[T]],
        partition: TopicIdPartition,
        log: Log,
        offset: int,
    ) -> T:
        """Runs `work` as one of a bounded number of reads."""
        if self._reading >= self._pending_max:
            self._metrics.remote_fetch_busy += 1
            raise RemoteReadBusyError
        self._reading += 1
        try:
            return await self._bounded(what, work(), partition, log, offset)
        finally:
            self._reading -= 1

    async def _bounded(
        self, what: str, work: Awaitable[T], partition: TopicIdPartition, log: Log, offset: int
    ) -> T:
        """Runs `work` with the deadline. Its errors are typed."""
        self._metrics.reader_pending_tasks += 1
        self._metrics.count("remote_fetch_requests", partition.topic)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await work
        except TimeoutError:
            self._metrics.remote_fetch_timeouts += 1
            late = RequestTimedOutError(f"{what} took longer than {self._timeout_ms} ms")
            raise self._failed(partition, what, late) from None
        except OffsetOutOfRangeError:
            raise
        except RemoteResourceNotFoundError as error:
            gone = self._gone(partition, log, offset, error)
            known = isinstance(gone, OffsetOutOfRangeError)
            raise gone if known else self._failed(partition, what, gone) from error
        except RemoteStorageNotReadyError:
            raise
        except RemoteReadBusyError:
            self._metrics.remote_fetch_busy += 1
            raise
        except Exception as error:  # of the metadata's plug-in, too
            failed = self._failed(partition, what, error)
            if failed is error:
                raise
            raise failed from error
        finally:
            self._metrics.reader_pending_tasks -= 1

    def _failed(self, partition: TopicIdPartition, what: str, error: Exception) -> ApiError:
        now_s = asyncio.get_running_loop().time()
        return self._failures.typed(what, error, now_s, partition.topic)

    async def _read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> memoryview:
        if not self._metadata.is_ready(partition):
            raise RemoteStorageNotReadyError
        segment = self._segment_at(partition, log, offset)
        if segment is None:
            if offset >= log.log_start_offset and log.epochs.epoch_for_offset(offset) is None:
                raise RemoteStorageNotReadyError  # its leader rebuilds the lineage from the tier
            raise OffsetOutOfRangeError(f"offset {offset} of {partition} is not in the tier")
        end_offset = planner.coverage(segment, lineage(log), log.log_end_offset).stop
        records, end = await self.segments.read(segment, offset, end_offset, max_bytes)
        if self.segments.continues(segment, end - len(records), end):
            beyond = self.segments.read_ahead(segment, end)
            following = self._segment_at(partition, log, segment.next_offset) if beyond else None
            if following is not None:
                self.segments.read_ahead(following, 0)
        return records

    def _segment_at(
        self, partition: TopicIdPartition, log: Log, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Returns the finished segment that holds `offset` on this log's lineage."""
        epoch = log.epochs.epoch_for_offset(offset)
        if epoch is None:
            return None
        return self._metadata.remote_log_segment_metadata(partition, epoch, offset)

    async def _search_in_turn(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None:
        """Look-ups of a partition whose store hangs take no place of a read, and leave places of
        look-ups to other partitions.
        """
        await self._look_ups.take(partition)
        try:
            return await self._search_timestamp(partition, log, timestamp_ms)
        finally:
            self._look_ups.free(partition)

    async def _search_timestamp(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None:
        if not self._metadata.is_ready(partition):
            raise RemoteStorageNotReadyError
        epochs, first = lineage(log), log.log_start_offset
        for segment in self._metadata.list_remote_log_segments(partition):
            if (
                segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                and segment.max_timestamp_ms >= timestamp_ms
                and segment.end_offset >= first
                and segment.start_offset < log.local_log_start_offset
            ):
                own = planner.coverage(segment, epochs, log.log_end_offset)
                own = range(max(own.start, first), min(own.stop, log.local_log_start_offset))
                found = await self._search_segment(segment, timestamp_ms, own) if own else None
                if found is not None:
                    return found
        return None

    async def _search_segment(
        self, segment: RemoteLogSegmentMetadata, timestamp_ms: int, offsets: range
    ) -> TimestampOffset | None:
        """Finds the first record at `offsets` that is not older (KIP-33's rules)."""
        indexes = await self.segments.indexes(segment)
        offset = max(offsets.start, indexes.offset_before(timestamp_ms))
        if offset >= offsets.stop:
            return None
        position, batch = await self.segments.find(segment, indexes, offset)
        while True:
            # Also of a batch to pass over: a wrong length or time in it would hide the answer.
            records = await self.segments.batch(segment, position, batch)
            if batch.max_timestamp_ms >= timestamp_ms and not batch.is_control:
                for record in decode_batch(records, check_crc=False):
                    if record.timestamp_ms >= timestamp_ms and record.offset in offsets:
                        return TimestampOffset(
                            record.timestamp_ms, record.offset, batch.partition_leader_epoch
                        )
            position += batch.size_bytes
            if position >= segment.segment_size_bytes or batch.last_offset + 1 >= offsets.stop:
                return None
            batch = await self.segments.header(segment, position)
