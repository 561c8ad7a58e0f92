"""A log with a tier, in verbs: produce, roll, pass, read; time is a number that the test moves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

from commitlog.disk.files import Directory
from commitlog.disk.os_files import OsDirectory
from commitlog.log import opening
from commitlog.log.log import Log
from tests.tiering.builders import PARTITION, server_config
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicIdPartition, TopicPartition
from tiering.manager import RemoteLogManager
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentState
from tiering.store.directory import DirectoryRemoteStorageManager

NOW_MS = 1_700_000_000_000


def batch(first: int, count: int = 5, *, timestamp_ms: int | None = None, size: int = 40) -> bytes:
    """Encodes a batch of records whose values contain their numbers."""
    return encode_batch(
        [
            Record(
                offset=number,
                timestamp_ms=NOW_MS + number if timestamp_ms is None else timestamp_ms,
                key=None,
                value=b"%0*d" % (size, first + number),
            )
            for number in range(count)
        ]
    )


class World:
    """One broker's view of one partition, its tier in a directory, its metadata in memory."""

    def __init__(
        self,
        path: Path,
        *,
        broker_id: int = 1,
        history: MemoryHistory | None = None,
        storage: Any = None,
        metadata: Any = None,
        log_directory: Directory | None = None,
        settings: dict[str, object] | None = None,
        **topic: Any,
    ) -> None:
        self.path = path
        self.now_ms = NOW_MS
        self.clock_jump_ms = 0
        self.config = server_config(
            str(path / f"node-{broker_id}"), node_id=broker_id, **(settings or {})
        )
        defaults: dict[str, Any] = {
            "remote_storage_enable": True,
            "retention_ms": -1,
            "index_interval_bytes": 256,
            "segment_bytes": 1 << 20,
        }
        self.topic_config = TopicConfig(**{**defaults, **topic})
        self.directory = log_directory or OsDirectory(path / f"node-{broker_id}" / "flights-3")
        self.log = self.open_log()
        self.storage = storage or DirectoryRemoteStorageManager(OsDirectory(path / "tier"))
        self.metadata = metadata or MemoryRemoteLogMetadataManager(history)
        self.epoch = 0
        self.next = 0
        self.leads_metadata = False
        self.metadata_offset = 1
        self.manager = self.new_manager()

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int]:
        return (self.config.node_id if self.leads_metadata else 99), 0

    def topic_name(self, topic_id: UUID) -> str | None:
        return PARTITION.topic if topic_id == PARTITION.topic_id else None

    def open_log(self) -> Log:
        return opening.open_log(
            self.directory,
            PARTITION.topic_partition,
            self.topic_config,
            topic_id=PARTITION.topic_id,
            now_ms=self.now_ms,
        )

    def new_manager(self) -> RemoteLogManager:
        return RemoteLogManager(
            self.config,
            self.storage,
            self.metadata,
            lambda: self.now_ms + self.clock_jump_ms,
            mono_ms=lambda: self.now_ms,
            cluster=self,
            cache_directory=OsDirectory(self.path / f"cache-{self.config.node_id}"),
            rng=random.Random(1),
        )

    def lead(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.manager.on_leadership_change({PARTITION: (self.log, epoch)}, {})

    def follow(self) -> None:
        self.manager.on_leadership_change({}, {PARTITION: self.log})

    def produce(self, batches: int = 4, count: int = 5, *, commit: bool = True, **how: Any) -> None:
        for _ in range(batches):
            info = self.log.append_as_leader(
                batch(self.next, count, **how), self.epoch, self.now_ms
            )
            self.next = info.last_offset + 1
        if commit:
            self.log.update_high_watermark(self.log.log_end_offset)

    def produce_segment(self, batches: int = 4, count: int = 5, **how: Any) -> None:
        self.produce(batches, count, **how)
        self.log.roll(self.now_ms)

    async def once(self) -> None:
        await self.manager.run_once(PARTITION)

    async def read_all(self, start: int, end: int, max_bytes: int = 700) -> bytes:
        """Reads everything in [start, end) through the tier, in answers of `max_bytes`."""
        parts, offset = [], start
        while offset < end:
            records = await self.manager.read(PARTITION, self.log, offset, max_bytes)
            assert records, offset
            parts.append(records)
            offset = last_offset(records) + 1
        return b"".join(parts)

    def local_bytes(self, start: int, end: int) -> bytes:
        """Reads the same from the local log."""
        parts, offset = [], start
        while offset < end:
            result = self.log.read(offset, 1 << 20)
            parts.append(bytes(result.records))
            offset = result.next_offset
        return b"".join(parts)

    def states(self) -> list[tuple[int, int, RemoteLogSegmentState]]:
        """Returns (start, end, state) of the remote segments."""
        cache = self.metadata.history.caches.get(PARTITION)
        return (
            []
            if cache is None
            else [(s.start_offset, s.end_offset, s.state) for s in cache.segments()]
        )

    def tier_logs(self, partition: TopicIdPartition = PARTITION) -> list[int]:
        """Returns the start offsets of the log files in the tier."""
        names = DirectoryRemoteStorageManager(OsDirectory(self.path / "tier")).list_files(partition)
        return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def last_offset(records: bytes) -> int:
    from tidemark.records import iter_batches

    return max(header.last_offset for _, header in iter_batches(records))
