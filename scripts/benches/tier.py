"""The tier beside its ceiling: copying segments against raw object puts, reading them against raw
gets.

Everything runs over one MinIO server (TIDEMARK_S3_ENDPOINT, or a `minio` binary), then over a plain
directory, in one run. The ceilings move the same bytes. `raw put` puts the log files with the same
client. `raw get` reads ranges of the reader's chunk size, with as many requests at once.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch, iter_batches
from tidemark.types import TopicIdPartition
from tiering.manager import RemoteLogManager
from tiering.metadata.memory import MemoryRemoteLogMetadataManager
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import IndexType, LogSegmentData, RemoteStorageManager
from tiering.store.s3 import S3RemoteStorageManager

Row = dict[str, Any]

SEGMENT_BYTES = 32 << 20
SEGMENTS = 6
RECORD_BYTES = 1000
FETCH_BYTES = 1 << 20
NOW_MS = 1_700_000_000_000
PARTITION = TopicIdPartition(UUID(int=77), "bench", 0)


def run() -> list[Row]:
    """The rows of this bench: name, value, unit, ceiling, ratio."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-tier-") as path:
        rows += _measure("directory", Path(path), _directory_storage(Path(path)))
    server = _object_store()
    if server is not None:
        with server as store, tempfile.TemporaryDirectory(prefix="tidemark-bench-tier-") as path:
            storage = S3RemoteStorageManager()
            storage.configure(store.rsm_config(f"bench/{random.getrandbits(32):x}/"))
            rows += _measure("minio", Path(path), storage)
    return rows


def _object_store() -> Any:
    from tests.minio_fixture import MinioServer, minio_binary

    return MinioServer() if minio_binary() is not None else None


def _directory_storage(path: Path) -> RemoteStorageManager:
    storage = DirectoryRemoteStorageManager()
    storage.configure({"dir": str(path / "tier")})
    return storage


def _measure(name: str, path: Path, storage: RemoteStorageManager) -> list[Row]:
    log = _filled_log(path)
    contents = [segment.file.pread(segment.size_bytes, 0) for segment in log.segments[:-1]]
    total = sum(map(len, contents))
    put_s, raw = _raw_put(storage, contents)
    copy_s, manager = asyncio.run(_copy(path, storage, log))
    get_s = _raw_get(storage, raw)
    read_s = asyncio.run(_read(manager, log))
    for metadata in raw:
        storage.delete_log_segment_data(metadata)
    log.close(clean=False)
    return [
        _row(f"tier copy to {name}", total, copy_s, put_s),
        _row(f"tier read from {name}", total, read_s, get_s),
    ]


def _row(name: str, total_bytes: int, seconds: float, ceiling_seconds: float) -> Row:
    value, ceiling = total_bytes / seconds / 1e6, total_bytes / ceiling_seconds / 1e6
    return {
        "name": name,
        "value": round(value, 1),
        "unit": "MB/s",
        "ceiling": round(ceiling, 1),
        "ratio": round(value / ceiling, 2),
    }


def _filled_log(path: Path) -> Log:
    config = TopicConfig(
        segment_bytes=SEGMENT_BYTES, remote_storage_enable=True, local_retention_bytes=-1
    )
    directory = OsDirectory(path / "log")
    log = open_log(
        directory, PARTITION.topic_partition, config, topic_id=PARTITION.topic_id, now_ms=NOW_MS
    )
    rng = random.Random(1)
    batch = encode_batch([Record(n, NOW_MS, None, rng.randbytes(RECORD_BYTES)) for n in range(100)])
    while len(log.segments) <= SEGMENTS:
        log.append_as_leader(batch, 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    return log


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    def pread(self, position: int, size: int) -> bytes:
        return self._content[position : position + size]


def _raw_put(
    storage: RemoteStorageManager, contents: list[bytes]
) -> tuple[float, list[RemoteLogSegmentMetadata]]:
    """Puts the log files alone, one after the other, from memory."""
    made = [_raw_metadata(number, len(content)) for number, content in enumerate(contents)]
    no_indexes: dict[IndexType, bytes] = {}
    begun = time.perf_counter()
    for metadata, content in zip(made, contents, strict=True):
        storage.copy_log_segment_data(metadata, LogSegmentData(_Bytes(content), no_indexes))
    return time.perf_counter() - begun, made


def _raw_metadata(number: int, size_bytes: int) -> RemoteLogSegmentMetadata:
    partition = PARTITION._replace(topic="raw")
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(int=number + 1)),
        number,
        number,
        NOW_MS,
        1,
        NOW_MS,
        size_bytes,
        (EpochEntry(0, number),),
    )


def _raw_get(storage: RemoteStorageManager, objects: list[RemoteLogSegmentMetadata]) -> float:
    """Gets ranges of a chunk's size, three at once: the requested one and two read ahead."""
    chunk = _config("unused").remote_log_reader_chunk_bytes
    calls: list[Callable[[], bytes]] = []
    for metadata in objects:
        for start in range(0, metadata.segment_size_bytes, chunk):
            end = min(start + chunk, metadata.segment_size_bytes)
            calls.append(lambda m=metadata, s=start, e=end: storage.fetch_log_segment(m, s, e))  # type: ignore[misc]
    with ThreadPoolExecutor(3) as pool:
        begun = time.perf_counter()
        for content in pool.map(lambda call: call(), calls):
            assert content
        return time.perf_counter() - begun


def _config(directory: str) -> Any:
    return parse_server_config(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:1",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory,
        }
    )


async def _copy(
    path: Path, storage: RemoteStorageManager, log: Log
) -> tuple[float, RemoteLogManager]:
    manager = RemoteLogManager(
        _config(str(path / "node")), storage, MemoryRemoteLogMetadataManager(), lambda: NOW_MS
    )
    manager.on_leadership_change({PARTITION: (log, 0)}, {})
    begun = time.perf_counter()
    await manager.run_once(PARTITION)
    seconds = time.perf_counter() - begun
    assert manager.copy_lag(PARTITION).segments == 0
    return seconds, manager


async def _read(manager: RemoteLogManager, log: Log) -> float:
    """A consumer that reads the whole tier in answers of 1 MiB."""
    end, offset = log.highest_remote_offset + 1, 0
    begun = time.perf_counter()
    while offset < end:
        records = await manager.read(PARTITION, log, offset, FETCH_BYTES)
        for _, header in iter_batches(records):
            offset = header.last_offset + 1
    return time.perf_counter() - begun


if __name__ == "__main__":
    for row in run():
        print(row)
