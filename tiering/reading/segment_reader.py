"""Reads within one remote segment: chunks of its log, its indexes, and reading ahead.

The log is read in big ranges (chunks) that a bounded cache keeps. Bytes from the store are checked
against the checksums of the segment's sidecar and, batch by batch, for possible headers. What fails
is dropped from the caches, so that a retry fetches it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from tidemark.config import ServerConfig
from tidemark.errors import CorruptMessageError
from tidemark.records.extent import Extent
from tidemark.records.header import HEADER_BYTES, BatchHeader, read_header, verify_crc
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics
from tiering.reading.calls import StorageCalls
from tiering.reading.chunk_cache import ChunkCache, retrieve
from tiering.reading.disk_cache import DiskChunkCache
from tiering.reading.failures import naming
from tiering.reading.fetch_quota import FetchQuota
from tiering.reading.index_cache import CheckedIndexes, RemoteIndexCache
from tiering.reading.order import checked_extent, damaged
from tiering.reading.remote_indexes import RemoteIndexes
from tiering.store.sidecar import CHUNK_BYTES

T = TypeVar("T")

logger = logging.getLogger(__name__)

_EXPECTED_MAX = 1024  # next positions of sequential readers, and where each began
_CHUNKS_PER_REQUEST = 16
_SHORTENED_MOST = 4  # to a quarter: small requests cost a store and a reader most


class SegmentReader:
    """Reads of all segments, on one event loop. Blocking calls run in the reader's own pool, where
    no hot read waits.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_disk: DiskChunkCache,
        index_cache: RemoteIndexCache,
        metrics: RemoteMetrics,
    ) -> None:
        self._on_disk = on_disk
        self._index_cache = index_cache
        self._metrics = metrics
        self.quota = FetchQuota(config, metrics)
        self._request_bytes = config.remote_log_reader_chunk_bytes
        self._chunk_bytes = max(
            min(self._request_bytes, CHUNK_BYTES), self._request_bytes // _CHUNKS_PER_REQUEST
        )
        self._run_max = self._request_bytes // self._chunk_bytes
        self._prefetch_requests = config.remote_log_reader_prefetch_chunks
        self._loads_max = config.remote_log_reader_threads
        self._chunks = ChunkCache(config.remote_log_reader_chunk_cache_total_size_bytes, metrics)
        self._calls = StorageCalls(config.remote_log_reader_threads)
        self._opening: asyncio.Task[None] | None = None
        self._loading: dict[UUID, asyncio.Task[CheckedIndexes]] = {}
        self._expected: OrderedDict[tuple[int, int], int] = OrderedDict()

    def start(self) -> None:
        """Starts to take over the chunks on disk."""
        self._opening = asyncio.ensure_future(self._calls.run(self._on_disk.open))
        self._opening.add_done_callback(retrieve)

    async def close(self) -> None:
        """Cancels the work under way."""
        loads = list(self._loading.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self._chunks.close()
        self._calls.close()

    async def run(
        self, call: Callable[[], T], segment: RemoteLogSegmentMetadata | None = None
    ) -> T:
        """Runs a blocking call of the storage in a thread.

        That for a segment is in the share of its partition, and its errors name the segment.
        """
        if segment is None:
            return await self._calls.run(call)
        return await self._calls.run(naming(segment, call), segment.topic_id_partition)

    async def indexes(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """Returns the segment's indexes, through the index cache. Raises CorruptMessageError."""
        return (await self._checked_indexes(segment)).indexes

    async def _checked_indexes(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes:
        """Loads indexes once, however many wait; a load outlives its reader."""
        found = self._index_cache.peek(segment)
        if found is not None:
            return found
        task = self._loading.get(segment.id)
        if task is None:
            task = asyncio.ensure_future(self._load(segment))
            task.add_done_callback(retrieve)
            self._loading[segment.id] = task
        return await asyncio.shield(task)

    async def _load(self, segment: RemoteLogSegmentMetadata) -> CheckedIndexes:
        try:
            return await self.run(lambda: self._index_cache.load(segment), segment)
        finally:
            del self._loading[segment.id]

    async def read(
        self, segment: RemoteLogSegmentMetadata, offset: int, end_offset: int, max_bytes: int
    ) -> tuple[memoryview, int]:
        """Reads whole batches from the one with `offset` on, none that begins at or after
        `end_offset`.

        Returns at least one batch, else at most `max_bytes`; and the position after them.
        """
        indexes = await self.indexes(segment)
        if end_offset > segment.end_offset:
            # The first batch is looked for in the first chunk of the request for all of the read.
            near = indexes.entry_at(offset)[1]
            wanted = min(near + max(max_bytes, HEADER_BYTES), segment.segment_size_bytes)
            self._start(segment, self._numbers(near, wanted))
        start, first = await self.find(segment, indexes, offset)
        position = start + first.size_bytes
        limit = min(start + max_bytes, segment.segment_size_bytes)
        if end_offset > segment.end_offset:
            self._start(segment, self._numbers(start, max(position, limit)))
        if end_offset > segment.end_offset and position < limit:
            # All of it belongs to the lineage: the index leads close to the read's end.
            position = indexes.last_position_within(position, limit)
        with suppress(CorruptMessageError):  # sound batches before the damage are served
            while position + HEADER_BYTES <= limit:
                batch = await self.header(segment, position)
                if position + batch.size_bytes > limit or batch.base_offset >= end_offset:
                    break
                position += batch.size_bytes
        # The header behind the last batch confirms where it ends.
        size = min(position + HEADER_BYTES, segment.segment_size_bytes) - start
        data = await self.slice(segment, start, size)
        extent = self._checked(segment, data, start, position - start)
        topic = segment.topic_id_partition.topic
        self._metrics.count("remote_fetch_bytes", topic, extent.size_bytes)
        return memoryview(data)[: extent.size_bytes], start + extent.size_bytes

    async def batch(
        self, segment: RemoteLogSegmentMetadata, position: int, header: BatchHeader
    ) -> bytes:
        """Returns the batch at `position`. Its CRC is checked, and the header behind it confirms
        its offsets. Raises CorruptMessageError.
        """
        wanted = header.size_bytes
        size = min(wanted + HEADER_BYTES, segment.segment_size_bytes - position)
        data = await self.slice(segment, position, max(size, wanted))
        extent = self._checked(segment, data, position, wanted)
        try:
            verify_crc(data, 0, header)
        except CorruptMessageError:
            self._chunks.drop(segment.id)
            raise
        return data[: extent.size_bytes]

    def _checked(
        self, segment: RemoteLogSegmentMetadata, data: bytes, position: int, wanted: int
    ) -> Extent:
        try:
            return checked_extent(segment, data, position, wanted)
        except CorruptMessageError:
            self._chunks.drop(segment.id)
            raise

    async def find(
        self, segment: RemoteLogSegmentMetadata, indexes: RemoteIndexes, offset: int
    ) -> tuple[int, BatchHeader]:
        """Returns position and header of the first batch whose last offset is >= `offset`.

        An index that does not fit the log is dropped, and the log searched from its beginning.
        Raises CorruptMessageError for a damaged log.
        """
        last_offset, position = indexes.entry_at(offset)
        if position:
            with suppress(CorruptMessageError):
                first = await self.header(segment, position)
                if first.last_offset == last_offset:
                    return await self._scan(segment, position, first.base_offset, offset)
            logger.warning("the index of %s does not fit its log", segment.remote_log_segment_id)
            await self.run(lambda: self._index_cache.remove(segment.id), segment)
        return await self._scan(segment, 0, segment.start_offset, offset)

    async def _scan(
        self, segment: RemoteLogSegmentMetadata, position: int, floor: int, offset: int
    ) -> tuple[int, BatchHeader]:
        while position < segment.segment_size_bytes:
            batch = await self.header(segment, position)
            if batch.base_offset < floor or batch.last_offset > segment.end_offset:
                raise damaged(segment, position, f"offset {batch.base_offset} can not be there")
            if batch.last_offset >= offset:
                return position, batch
            position, floor = position + batch.size_bytes, batch.next_offset
        raise damaged(segment, position, f"it ends before offset {offset}")

    async def header(self, segment: RemoteLogSegmentMetadata, position: int) -> BatchHeader:
        """Returns the header of the batch at `position`."""
        number, at = divmod(position, self._chunk_bytes)
        chunk = self._chunks.peek((segment.id.int, number))
        if chunk is None:
            chunk = await self._chunk(segment, number)
        try:
            if at + HEADER_BYTES <= len(chunk):
                return read_header(chunk, at, position - at)
            return read_header(await self.slice(segment, position, HEADER_BYTES), 0, position)
        except CorruptMessageError:
            self._chunks.drop(segment.id)
            raise

    async def slice(self, segment: RemoteLogSegmentMetadata, position: int, size: int) -> bytes:
        """Returns `size` bytes from `position`. Raises CorruptMessageError if the log ends
        before.
        """
        end = position + size
        if end > segment.segment_size_bytes:
            self._chunks.drop(segment.id)
            raise CorruptMessageError(
                f"a batch reaches behind the end of {segment.remote_log_segment_id}"
            )
        numbers, identity = self._numbers(position, end), segment.id.int
        kept = (self._chunks.peek((identity, number)) for number in numbers)
        chunks = [chunk for chunk in kept if chunk is not None]
        if len(chunks) < len(numbers):
            self._start(segment, numbers)  # all ranges of one read are fetched at the same time
            # Each is held from its load on: many readers evict it before its turn.
            chunks = await asyncio.gather(*(self._chunk(segment, number) for number in numbers))
        pieces = []
        for number, chunk in zip(numbers, chunks, strict=True):
            begin = number * self._chunk_bytes
            pieces.append(memoryview(chunk)[max(0, position - begin) : end - begin])
        return b"".join(pieces)

    def continues(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> bool:
        """Notes `end` as the next position of a reader, who has passed the chunks before; returns
        whether to read ahead of it.

        A reader that began within the segment may have a part of it to read. So it first reads as
        much as is read ahead: what that wastes at its end is less than what it read.
        """
        identity = segment.id.int
        begun = self._expected.pop((identity, start), start)
        behind = end if end < segment.segment_size_bytes else end + self._chunk_bytes
        for number in range(start // self._chunk_bytes, behind // self._chunk_bytes):
            whole = begun <= number * self._chunk_bytes
            self._chunks.passed((identity, number), whole)
        self._expected[identity, end] = begun
        while len(self._expected) > _EXPECTED_MAX:
            self._expected.popitem(last=False)
        return begun == 0 or end - begun >= self._prefetch_requests * self._request_bytes

    def read_ahead(self, segment: RemoteLogSegmentMetadata, position: int) -> int:
        """Starts to load the rest of the request at `position`, and the requests ahead of it;
        returns how many lie beyond the segment's end.

        The further ahead a request is, the more room it leaves: one reader's far requests do not
        take the room of another's next one. A request is shortened to the room that is left.
        """
        if self.quota.is_exceeded():
            return 0
        request, size = position // self._request_bytes, segment.segment_size_bytes
        last = max(0, size - 1) // self._request_bytes
        identity, beyond = segment.id.int, 0
        for ahead in range(1 + self._prefetch_requests):
            wanted = request + ahead
            if wanted > last:
                beyond += 1
                continue
            start = max(position, wanted * self._request_bytes)
            numbers = self._numbers(start, min((wanted + 1) * self._request_bytes, size))
            missing = [number for number in numbers if (identity, number) not in self._chunks]
            if not missing or self._chunks.loads >= self._loads_max:
                continue
            share = 1 - ahead / (2 + 2 * self._prefetch_requests)
            room = self._chunks.room_ahead(self._chunk_bytes, share)
            if room >= min(len(missing), max(1, self._run_max // _SHORTENED_MOST)):
                self._metrics.chunk_prefetches += 1
                self._start(segment, missing[:room])
        return beyond

    def forget(self, segment: RemoteLogSegmentMetadata) -> Callable[[], None]:
        """Drops the parts of a segment in memory, which was deleted; returns a blocking call that
        drops those on disk.
        """
        self._chunks.drop(segment.id)

        def forget_on_disk() -> None:
            self._on_disk.drop(segment.id)
            self._index_cache.remove(segment.id)

        return forget_on_disk

    def _numbers(self, start: int, end: int) -> range:
        """Returns the numbers of the chunks with bytes of [start, end)."""
        return range(start // self._chunk_bytes, max(0, end - 1) // self._chunk_bytes + 1)

    def _start(self, segment: RemoteLogSegmentMetadata, numbers: Iterable[int]) -> None:
        """Starts to load the chunks that are not there: neighbours in one request, up to the size
        of a request.
        """
        run: list[int] = []
        identity = segment.id.int
        for number in numbers:
            if (identity, number) in self._chunks:
                continue
            if run and (number != run[-1] + 1 or len(run) == self._run_max):
                self._start_run(segment, run)
                run = []
            run.append(number)
        if run:
            self._start_run(segment, run)

    def _start_run(self, segment: RemoteLogSegmentMetadata, run: list[int]) -> None:
        keys = [(segment.id.int, number) for number in run]
        self._chunks.start(keys, lambda: self._fetch(segment, run[0], len(run)))

    async def _chunk(self, segment: RemoteLogSegmentMetadata, number: int) -> bytes:
        key = (segment.id.int, number)
        return await self._chunks.get(key, lambda: self._fetch(segment, number, 1))

    async def _fetch(
        self, segment: RemoteLogSegmentMetadata, number: int, count: int
    ) -> list[bytes]:
        """Fetches and verifies chunks; twice if the transport may have damaged them."""
        table = (await self._checked_indexes(segment)).table
        start = number * self._chunk_bytes
        end = min(start + count * self._chunk_bytes, segment.segment_size_bytes)
        first, last = table.aligned(start, end)
        missing, end_of_missing = self._on_disk.missing(segment, table, first, last)
        self.quota.record(end_of_missing - missing)

        def fetch() -> list[bytes]:
            content = self._on_disk.fetch(segment, table, first, last)
            edges = range(start - first, end - first, self._chunk_bytes)
            return [content[at : min(at + self._chunk_bytes, end - first)] for at in edges]

        try:
            return await self.run(fetch, segment)
        except CorruptMessageError as error:
            logger.warning("%s; fetching again", error)
        try:
            return await self.run(fetch, segment)
        except CorruptMessageError:
            self._metrics.remote_fetch_corrupt += 1
            raise
