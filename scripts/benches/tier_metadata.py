"""The tier's metadata at scale: passes with nothing to do, and memory of the remote segments.

100,000 remote segments are spread over 1, 100 and 1,000 partitions that this node leads; each makes
a pass every `remote.log.manager.task.interval.ms` (30 s). The first pass of a leadership compares
the tier with the leader epochs. The ceiling is 1 % of a core. Memory is
that of 2.6 million segments (the figure of KIP-405); TIER_METADATA_BENCH_SEGMENTS changes it. Times
are CPU seconds of the process.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from commitlog.disk.os_files import OsDirectory
from commitlog.log import opening
from commitlog.log.restart import Restart
from commitlog.segment.producer_state import encode_snapshot
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicIdPartition
from tiering.manager import RemoteLogManager
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.memory import MemoryRemoteLogMetadataManager
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tiering.store.directory import DirectoryRemoteStorageManager

SEGMENTS = 100_000
IN_MEMORY = int(os.environ.get("TIER_METADATA_BENCH_SEGMENTS", "2600000"))
SEGMENT_BYTES = 1 << 30
NOW_MS = 1_700_000_000_000
BYTES_LIMIT = 125

Rows = list[dict[str, Any]]


def row(name: str, value: float, unit: str, ceiling: float | None) -> dict[str, Any]:
    return {
        "name": f"tier_metadata/{name}",
        "value": value,
        "unit": unit,
        "ceiling": ceiling,
        "ratio": None if ceiling is None else value / ceiling,
    }


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill(cache: RemoteLogMetadataCache, partition: TopicIdPartition, count: int) -> None:
    """Adds segments of ten records, with a new leader epoch after each hundred of them."""
    rng = random.Random(1)
    for number in range(count):
        start = number * 10
        cache.restore(
            RemoteLogSegmentMetadata(
                RemoteLogSegmentId(partition, UUID(int=rng.getrandbits(128), version=4)),
                start,
                start + 9,
                NOW_MS,
                1,
                NOW_MS,
                SEGMENT_BYTES,
                (EpochEntry(number // 100, start),),
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                bytes(12),
            )
        )


def led(path: Path, partitions: int) -> tuple[RemoteLogManager, list[TopicIdPartition]]:
    """Makes a tier whose partitions lead: all their records but the last one are remote."""
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(path),
        "remote.log.storage.system.enable": "true",
    }
    metadata = MemoryRemoteLogMetadataManager()
    store = DirectoryRemoteStorageManager(OsDirectory(path / "tier"))
    manager = RemoteLogManager(parse_server_config(values), store, metadata, lambda: NOW_MS)
    topic = TopicConfig(remote_storage_enable=True, retention_bytes=1 << 50)
    count, ids = SEGMENTS // partitions, []
    for index in range(partitions):
        partition = TopicIdPartition(UUID(int=1), "flights", index)
        log = opening.open_log(
            OsDirectory(path / f"flights-{index}"),
            partition.topic_partition,
            topic,
            topic_id=partition.topic_id,
            now_ms=NOW_MS,
        )
        epochs = tuple((epoch, epoch * 1000) for epoch in range(-(-count // 100)))
        log.truncate_fully_and_start_at(
            count * 10, NOW_MS, Restart(count * 10, 0, epochs, encode_snapshot([]))
        )
        record = Record(offset=0, timestamp_ms=NOW_MS, key=None, value=b"value")
        log.append_as_leader(encode_batch([record]), count // 100, NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        fill(
            metadata.history.caches.setdefault(partition, RemoteLogMetadataCache()),
            partition,
            count,
        )
        manager.on_leadership_change({partition: (log, count // 100)}, {})
        ids.append(partition)
    return manager, ids


def passes(partitions: int) -> Rows:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory:
        manager, ids = led(Path(directory), partitions)

        async def all_once() -> float:
            began_s = time.process_time()
            for partition in ids:
                await manager.run_once(partition)
            return time.process_time() - began_s

        async def measure() -> tuple[float, float]:
            first_s = await all_once()
            return first_s, min([await all_once() for _ in range(3)])

        first_s, later_s = asyncio.run(measure())
    name = f"{partitions}_partitions"
    interval_s = 30
    each_us, limit_us = later_s / partitions * 1e6, interval_s * 1e4 / partitions
    return [
        row(f"pass/{name}", later_s / interval_s * 100, "% of a core", 1),
        row(f"pass/{name}/each", each_us, "us CPU", limit_us),
        row(f"first_pass/{name}", first_s * 1000, "ms CPU", None),
    ]


def memory() -> Rows:
    cache, partition = RemoteLogMetadataCache(), TopicIdPartition(UUID(int=1), "flights", 0)
    before, began_s = resident_bytes(), time.process_time()
    fill(cache, partition, IN_MEMORY)
    took_s = time.process_time() - began_s
    grown = resident_bytes() - before
    return [
        row(f"memory/{IN_MEMORY}_segments", grown / IN_MEMORY, "bytes each", BYTES_LIMIT),
        row("fold", took_s / IN_MEMORY * 1e6, "us CPU each", 100),
    ]


def run() -> Rows:
    rows = memory()
    for partitions in (1, 100, 1000):
        rows += passes(partitions)
    return rows
