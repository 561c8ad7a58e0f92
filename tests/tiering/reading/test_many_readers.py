"""Many sequential readers of the tier at once: bytes fetched from the store per byte served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tests.tiering.builders import PARTITION
from tests.tiering.world import NOW_MS, World, last_offset
from tidemark.records import Record, encode_batch
from tidemark.types import TopicIdPartition

BATCH_BYTES = 60_000
MIB = 1 << 20


class CountingStorage:
    """A storage that counts the bytes of logs that it gives."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.fetched_bytes = 0

    def fetch_log_segment(self, metadata: Any, start: int, end: int) -> bytes:
        content: bytes = self.inner.fetch_log_segment(metadata, start, end)
        self.fetched_bytes += len(content)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Cold:
    """A node whose partitions each have a segment in the tier, one batch per offset."""

    def __init__(self, path: Path, partitions: int, batches: int, **settings: object) -> None:
        settings["remote_log_reader_max_pending_tasks"] = 1000
        self.world = World(path, settings=settings, segment_bytes=64 * MIB)
        self.storage = self.world.storage = CountingStorage(self.world.storage)
        self.logs: dict[TopicIdPartition, Log] = {}
        self.manager = self.world.new_manager()
        data = encode_batch([Record(0, NOW_MS, None, bytes(BATCH_BYTES))])
        for number in range(partitions):
            partition = PARTITION._replace(partition=number)
            log = open_log(
                OsDirectory(path / f"flights-{number}"),
                partition.topic_partition,
                self.world.topic_config,
                topic_id=partition.topic_id,
                now_ms=NOW_MS,
            )
            for _ in range(batches):
                log.append_as_leader(data, 0, NOW_MS)
            log.roll(NOW_MS)
            log.append_as_leader(data, 0, NOW_MS)
            log.update_high_watermark(log.log_end_offset)
            self.logs[partition] = log
        asyncio.run(self._copy())

    async def _copy(self) -> None:
        self.manager.on_leadership_change({one: (log, 0) for one, log in self.logs.items()}, {})
        for partition in self.logs:
            await self.manager.run_once(partition)

    def consume(self, *parts: tuple[TopicIdPartition, range]) -> int:
        """Reads parts of partitions at once, each in sequence; returns the bytes served."""
        served = 0

        async def consume(partition: TopicIdPartition, offsets: range) -> None:
            nonlocal served
            offset = offsets.start
            while offset < offsets.stop:
                log = self.logs[partition]
                records = await self.manager.read(partition, log, offset, 2 * BATCH_BYTES)
                served += len(records)
                offset = last_offset(records) + 1

        async def scenario() -> None:
            await asyncio.gather(*(consume(*part) for part in parts))
            await self.manager.stop()

        asyncio.run(scenario())
        return served


@pytest.mark.parametrize(
    ("readers", "cache_bytes", "threads"), [(16, 16 * MIB, 10), (100, 64 * MIB, 250)]
)
def test_what_is_fetched_is_read_before_it_is_evicted(
    tmp_path: Path, readers: int, cache_bytes: int, threads: int
) -> None:
    batches = 2400 // readers
    cold = Cold(
        tmp_path,
        readers,
        batches,
        remote_log_reader_chunk_bytes=2 * MIB,
        remote_log_reader_chunk_cache_total_size_bytes=cache_bytes,
        remote_log_reader_threads=threads,
    )
    served = cold.consume(*((partition, range(batches)) for partition in cold.logs))
    assert served > 130 * MIB
    assert cold.manager.metrics.chunk_prefetches
    assert cold.storage.fetched_bytes < 1.1 * served


@pytest.mark.parametrize("readers", [16, 100])
def test_readers_of_partitions_of_their_own_fetch_each_byte_once_by_default(
    tmp_path: Path, readers: int
) -> None:
    batches = 2400 // readers
    cold = Cold(tmp_path, readers, batches)
    served = cold.consume(*((partition, range(batches)) for partition in cold.logs))
    assert served > 130 * MIB
    assert cold.storage.fetched_bytes < 1.1 * served


def test_a_hundred_readers_of_parts_of_one_partition_fetch_each_byte_once_by_default(
    tmp_path: Path,
) -> None:
    batches, part = 4800, 48
    cold = Cold(tmp_path, 1, batches)
    (partition,) = cold.logs
    parts = [range(first, first + part) for first in range(0, batches, part)]
    served = cold.consume(*((partition, offsets) for offsets in parts))
    assert served > 2 * cold.world.config.remote_log_reader_chunk_cache_total_size_bytes
    assert cold.storage.fetched_bytes < 1.1 * served


def test_requests_far_ahead_of_one_reader_leave_room_for_the_next_one_of_another(
    tmp_path: Path,
) -> None:
    """Half of the cache is for two requests: one reader's second one does not take all of it."""
    cold = Cold(
        tmp_path,
        2,
        40,
        remote_log_reader_chunk_bytes=MIB,
        remote_log_reader_chunk_cache_total_size_bytes=4 * MIB,
    )
    begun: list[int] = []

    async def scenario() -> None:
        for partition, log in cold.logs.items():
            await cold.manager.read(partition, log, 0, 2 * BATCH_BYTES)
            begun.append(cold.manager.metrics.chunk_prefetches - sum(begun))
        await cold.manager.stop()

    asyncio.run(scenario())
    assert begun == [2, 1]


def test_a_request_ahead_for_which_there_is_no_room_is_not_begun(tmp_path: Path) -> None:
    """Half of the cache has room for the chunk that was asked for, and for one ahead."""
    chunk = MIB // 4
    cold = Cold(
        tmp_path,
        1,
        40,
        remote_log_reader_chunk_bytes=chunk,
        remote_log_reader_chunk_cache_total_size_bytes=5 * chunk,
        remote_log_reader_prefetch_chunks=4,
    )
    ((partition, log),) = cold.logs.items()

    async def scenario() -> None:
        await cold.manager.read(partition, log, 0, 2 * BATCH_BYTES)
        await cold.manager.stop()

    asyncio.run(scenario())
    assert cold.manager.metrics.chunk_prefetches == 1
