"""The tier beside its ceilings, on one MinIO server (`minio` binary): each pair in the same run.

The remote log manager is measured in this process. `raw put` and `raw get` move the same bytes with
the same client library. Parts, ranges and requests at once are those of the copier and reader.
Then clusters of real processes are measured (`_tier_cluster`), and what clients notice of a store
that is away (`_tier_outages`). BENCH_TIER_PARTS chooses among copy, readers, cluster, outages;
BENCH_TIER_SCALE scales the sizes.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch, iter_batches
from tidemark.types import TopicIdPartition
from tiering.manager import RemoteLogManager
from tiering.metadata.memory import MemoryRemoteLogMetadataManager
from tiering.store.s3 import S3RemoteStorageManager

Row = dict[str, Any]
T = TypeVar("T")

SCALE = float(os.environ.get("BENCH_TIER_SCALE", "1"))
PARTS = os.environ.get("BENCH_TIER_PARTS", "copy,readers,cluster,outages").split(",")
SEGMENT_BYTES = 32 << 20
SEGMENTS = max(2, int(12 * SCALE))
BACKLOG_PARTITIONS = 8
RECORD_BYTES = 1000
FETCH_BYTES = 1 << 20
ROUNDS = 3
NOW_MS = 1_700_000_000_000


def run() -> list[Row]:
    """The rows of this bench: name, value, unit, ceiling, ratio."""
    from tests.minio_fixture import MinioServer

    rows: list[Row] = []
    parts: dict[str, Callable[[Any, Path], list[Row]]] = {"copy": _one_log, "readers": _readers}
    for name, part in parts.items():
        if name in PARTS:
            with MinioServer() as store, tempfile.TemporaryDirectory(prefix="bench-tier-") as path:
                rows += part(store, Path(path))
    if "cluster" in PARTS:
        import _tier_cluster

        rows += _tier_cluster.run(SCALE)
    if "outages" in PARTS:
        import _tier_outages

        rows += _tier_outages.run(SCALE)
    return rows


def row(name: str, value: float, unit: str, ceiling: float | None) -> Row:
    """A figure beside its ceiling."""
    ratio = None if not ceiling else round(value / ceiling, 3)
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


class RawStore:
    """Puts and gets of a bucket with nothing around them; same client library as the tier's."""

    def __init__(self, store: Any) -> None:
        self._client, self._bucket = store.client(), store.bucket
        self.part_bytes = S3RemoteStorageManager().settings.part_size_bytes

    def put(self, name: str, content: bytes) -> None:
        """Puts an object, in parts one after the other."""
        self._client.put_object(
            self._bucket,
            name,
            BytesIO(content),
            len(content),
            part_size=self.part_bytes,
            num_parallel_uploads=1,
        )

    def get(self, name: str, start: int = 0, size: int = 0) -> bytes:
        """Gets a range of an object."""
        answer = self._client.get_object(self._bucket, name, start, size)
        try:
            return bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()

    def names(self, suffix: str) -> dict[str, int]:
        """Sizes of the objects with this suffix."""
        found = self._client.list_objects(self._bucket, recursive=True)
        return {one.object_name: one.size for one in found if one.object_name.endswith(suffix)}


def at_once(calls: Sequence[Callable[[], T]], threads: int) -> float:
    """Seconds of all calls, so many at once."""
    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        for _ in pool.map(lambda call: call(), calls):
            pass
        return time.perf_counter() - begun


def raw_gets(raw: RawStore, objects: dict[str, int]) -> float:
    """Seconds of all bytes in ranges of a chunk's size.

    As many are under way at once as a reader has: the requested range and those read ahead.
    """
    config = server_config("unused")
    chunk = config.remote_log_reader_chunk_bytes
    calls = [
        partial(raw.get, name, start, min(chunk, size - start))
        for name, size in objects.items()
        for start in range(0, size, chunk)
    ]
    return at_once(calls, 1 + config.remote_log_reader_prefetch_chunks)


def server_config(directory: str, **settings: str) -> Any:
    return parse_server_config(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:1",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory,
            **settings,
        }
    )


class Node:
    """The remote log manager of a node with filled logs that it leads; counts what it fetches."""

    def __init__(
        self, path: Path, store: Any, partitions: int, segments: int, segment_bytes: int
    ) -> None:
        self.storage = Counting()
        self.storage.configure(store.rsm_config(f"bench/{random.getrandbits(32):x}/"))
        self.logs = {}
        for number in range(partitions):
            partition = TopicIdPartition(UUID(int=77), "bench", number)
            self.logs[partition] = _filled_log(path, partition, segments, segment_bytes)
        config = server_config(
            str(path / "node"), **{"remote.log.reader.max.pending.tasks": "1000"}
        )
        self.metadata = MemoryRemoteLogMetadataManager()
        self.manager = RemoteLogManager(config, self.storage, self.metadata, lambda: NOW_MS)
        self.threads = config.remote_log_manager_copier_thread_pool_size
        self.contents = [
            segment.file.pread(segment.size_bytes, 0)
            for log in self.logs.values()
            for segment in log.segments[:-1]
        ]
        self.total_bytes = sum(map(len, self.contents))

    def lead(self) -> None:
        self.manager.on_leadership_change({one: (log, 0) for one, log in self.logs.items()}, {})

    async def copy(self) -> float:
        """Seconds of a pass of all partitions, at once."""
        begun = time.perf_counter()
        await asyncio.gather(*(self.manager.run_once(one) for one in self.logs))
        seconds = time.perf_counter() - begun
        assert not sum(self.manager.copy_lag(one).segments for one in self.logs)
        return seconds

    async def read(self, partition: TopicIdPartition, fetch_bytes: int = FETCH_BYTES) -> int:
        """Reads all of a partition that is in the tier; returns the bytes."""
        log, offset, read = self.logs[partition], 0, 0
        while offset <= log.highest_remote_offset:
            records = await self.manager.read(partition, log, offset, fetch_bytes)
            read += len(records)
            for _, header in iter_batches(records):
                offset = header.last_offset + 1
        return read

    async def close(self) -> None:
        await self.manager.stop()
        for log in self.logs.values():
            log.close(clean=False)


class Counting(S3RemoteStorageManager):
    """Counts the bytes of logs that it fetches."""

    fetched_bytes = 0

    def fetch_log_segment(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        content = super().fetch_log_segment(metadata, start, end)
        self.fetched_bytes += len(content)
        return content


def _filled_log(path: Path, partition: TopicIdPartition, segments: int, segment_bytes: int) -> Log:
    config = TopicConfig(
        segment_bytes=segment_bytes, remote_storage_enable=True, local_retention_bytes=-1
    )
    log = open_log(
        OsDirectory(path / f"log-{partition.partition}"),
        partition.topic_partition,
        config,
        topic_id=partition.topic_id,
        now_ms=NOW_MS,
    )
    rng = random.Random(1)
    batch = encode_batch([Record(n, NOW_MS, None, rng.randbytes(RECORD_BYTES)) for n in range(100)])
    while len(log.segments) <= segments:
        log.append_as_leader(batch, 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    return log


def _one_log(store: Any, path: Path) -> list[Row]:
    """Copies and reads of one partition, then a backlog of several; index loads apart."""
    raw = RawStore(store)
    node = Node(path / "one", store, 1, SEGMENTS, SEGMENT_BYTES)
    node.lead()
    put_s = at_once(_puts(raw, "one", node.contents), 1)
    rows = asyncio.run(_measured(node, raw, put_s))
    node = Node(path / "many", store, BACKLOG_PARTITIONS, max(1, SEGMENTS // 4), SEGMENT_BYTES)
    node.lead()
    put_s = at_once(_puts(raw, "many", node.contents), node.threads)

    async def drain() -> float:
        seconds = await node.copy()
        await node.close()
        return seconds

    name = f"tier: backlog of {BACKLOG_PARTITIONS} partitions drained beside raw put"
    return [*rows, _rate(name, node.total_bytes, asyncio.run(drain()), put_s)]


def _puts(raw: RawStore, name: str, contents: list[bytes]) -> list[Callable[[], None]]:
    return [partial(raw.put, f"raw/{name}-{n}", one) for n, one in enumerate(contents)]


async def _measured(node: Node, raw: RawStore, put_s: float) -> list[Row]:
    copy_s = await node.copy()
    (partition,) = node.logs
    objects = raw.names(".log")
    get_s = min([await asyncio.to_thread(raw_gets, raw, objects) for _ in range(ROUNDS)])
    took = []
    segments = list(node.metadata.list_remote_log_segments(partition))
    for _ in range(ROUNDS):
        for segment in segments:
            node.manager._reader.segments.forget(segment)()
        begun = time.perf_counter()
        read = await node.read(partition)
        took.append(time.perf_counter() - begun)
        assert read == node.total_bytes
    rows = [
        _rate("tier: copy of one partition beside raw put", node.total_bytes, copy_s, put_s),
        _rate("tier: cold read in the broker beside raw get", read, min(took), get_s),
        *await _index_rows(node, raw, partition, segments),
    ]
    await node.close()
    return rows


async def _index_rows(
    node: Node, raw: RawStore, partition: TopicIdPartition, segments: list[Any]
) -> list[Row]:
    """First fetches in the middle of a segment: without its indexes, and with them."""
    names = raw.names(".sidecar")
    logs = raw.names(".log")
    reader = node.manager._reader.segments
    cold, warm, least = list[float](), list[float](), list[float]()
    for segment, sidecar, log in zip(segments, names, logs, strict=True):
        for times in (cold, warm):
            if times is cold:
                reader.forget(segment)()
            reader._chunks.drop(segment.id)
            middle = (segment.start_offset + segment.end_offset) // 2
            begun = time.perf_counter()
            await node.manager.read(partition, node.logs[partition], middle, FETCH_BYTES)
            times.append(1000 * (time.perf_counter() - begun))
        begun = time.perf_counter()
        await asyncio.to_thread(raw.get, sidecar)
        await asyncio.to_thread(raw.get, log, logs[log] // 2, FETCH_BYTES)
        least.append(1000 * (time.perf_counter() - begun))
    raw_ms, cold_ms, warm_ms = map(statistics.median, (least, cold, warm))
    return [
        row("tier: first fetch, no index cached (ceiling: raw gets)", cold_ms, "ms", raw_ms),
        row("tier: first fetch, index cached (ceiling: not cached)", warm_ms, "ms", cold_ms),
    ]


def _readers(store: Any, path: Path) -> list[Row]:
    """Many sequential cold readers at once, each of its own partition."""
    rows = []
    for readers in (16, 100):
        segment_bytes = max(2 << 20, int((400 << 20) * SCALE) // readers // 2)
        node = Node(path / str(readers), store, readers, 2, segment_bytes)
        node.lead()

        async def read_all(node: Node = node) -> tuple[int, float]:
            await node.copy()
            node.storage.fetched_bytes = 0
            begun = time.perf_counter()
            read = await asyncio.gather(*(node.read(one) for one in node.logs))
            seconds = time.perf_counter() - begun
            await node.close()
            return sum(read), seconds

        served, seconds = asyncio.run(read_all())
        objects = dict(list(RawStore(store).names(".log").items())[-2 * readers :])
        get_s = raw_gets(RawStore(store), objects) * served / sum(objects.values())
        name = f"tier: {readers} cold readers"
        fetched = node.storage.fetched_bytes / served
        rows.append(row(f"{name}: fetched per byte served (ceiling: goal)", fetched, "", 1.1))
        rows.append(_rate(f"{name} beside raw get", served, seconds, get_s))
    return rows


def _rate(name: str, total_bytes: int, seconds: float, ceiling_seconds: float) -> Row:
    return row(name, total_bytes / seconds / 1e6, "MB/s", total_bytes / ceiling_seconds / 1e6)


if __name__ == "__main__":
    for one in run():
        print(one)
