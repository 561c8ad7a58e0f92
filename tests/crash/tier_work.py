"""Work for the tier's crash tests: copying rolled segments, local deletion, remote expiration.

Log, tier and the records of the metadata topic are in directories of the harness, so every file
operation of all three is a point. `append:.meta:1` is COPY_SEGMENT_STARTED of the first segment,
`append:.tmp:5` the upload of its log, and so on.
"""

from __future__ import annotations

import asyncio
import random
import struct

from commitlog.disk.files import Directory
from commitlog.log.opening import open_log
from tests.crash.harness import Ack
from tests.tiering.builders import PARTITION, server_config
from tests.tiering.world import batch
from tidemark.config import TopicConfig
from tiering.manager import RemoteLogManager
from tiering.metadata.codec import decode, encode
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogMetadata
from tiering.store.directory import DirectoryRemoteStorageManager

NOW_MS = 1_700_000_000_000
SEGMENTS, BATCHES, RECORDS = 2, 3, 4
END_OFFSET = (SEGMENTS * BATCHES + 1) * RECORDS
HISTORY_FILE = "topic.meta"
LENGTH = struct.Struct(">i")


class DurableHistory(MemoryHistory):
    """The metadata topic as a file of length-prefixed records; a torn last one was never
    acknowledged.
    """

    def __init__(self, directory: Directory) -> None:
        super().__init__()
        self._file = directory.open(HISTORY_FILE, create=True)
        content, position = self._file.pread(self._file.size, 0), 0
        while position + 4 <= len(content):
            (size,) = LENGTH.unpack_from(content, position)
            value = content[position + 4 : position + 4 + size]
            if len(value) < size:
                break
            super().append(decode(value))
            position += 4 + size
        self._file.truncate(position)

    def append(self, record: RemoteLogMetadata) -> None:
        value = encode(record)
        self._file.append(LENGTH.pack(len(value)), value)
        self._file.fsync()
        super().append(record)

    def close(self) -> None:
        self._file.close()


class Node:
    """One broker's log and tier in a directory; opened again after a kill."""

    def __init__(self, directory: Directory, retention_bytes: int = -1) -> None:
        self.now_ms = NOW_MS
        config = TopicConfig(
            remote_storage_enable=True,
            retention_ms=-1,
            retention_bytes=retention_bytes,
            local_retention_bytes=1,
            index_interval_bytes=100,
            file_delete_delay_ms=0,
        )
        self.log = open_log(
            directory.subdirectory("log"),
            PARTITION.topic_partition,
            config,
            topic_id=PARTITION.topic_id,
            now_ms=NOW_MS,
        )
        self.history = DurableHistory(directory)
        self.storage = DirectoryRemoteStorageManager(directory.subdirectory("tier"))
        metadata = MemoryRemoteLogMetadataManager(self.history)
        self.manager = RemoteLogManager(
            server_config(),
            self.storage,
            metadata,
            lambda: self.now_ms,
            mono_ms=lambda: self.now_ms,
            cache_directory=directory.subdirectory("cache"),
            rng=random.Random(1),
        )

    def lead(self, epoch: int) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)
        self.manager.on_leadership_change({PARTITION: (self.log, epoch)}, {})

    async def once(self) -> None:
        await self.manager.run_once(PARTITION)
        self.log.deleted_files.purge(self.now_ms)

    async def close(self) -> None:
        await self.manager.stop()
        self.log.close(clean=False)
        self.history.close()


def fill(node: Node) -> None:
    """Makes two rolled segments and an active one, all durable."""
    for number in range(SEGMENTS * BATCHES + 1):
        node.log.append_as_leader(batch(number * RECORDS, RECORDS), 0, NOW_MS)
        if number % BATCHES == BATCHES - 1:
            node.log.roll(NOW_MS)
    node.log.flush()


def copy_to_tier(directory: Directory, ack: Ack) -> None:
    """Copies both rolled segments and has local retention delete them."""
    node = Node(directory)
    fill(node)
    node.lead(0)
    ack("filled")
    asyncio.run(node.once())
    ack("copied")


def expire_from_tier(directory: Directory, ack: Ack) -> None:
    """Copies everything, then deletes the older segment from the tier by retention.bytes."""
    node = Node(directory, retention_bytes=600)
    fill(node)
    node.lead(0)
    ack("filled")
    asyncio.run(node.once())
    ack(f"log start {node.log.log_start_offset}")
