"""The log on disk, on one core: appends, sequential reads, recovery and look-ups.

Each alternates with raw file operations on the same bytes in the same run. Nothing is synced: the
log acknowledges from the page cache, and so does the ceiling. Unit: MB/s (10^6 bytes).

The ceiling of appends is one raw pwrite per batch, that of reads one raw pread per fetch. That of
recovery is a raw read with a CRC-32C over it. It reads 1 MiB at a time into one buffer: the fastest
of the sizes tried. A look-up by offset returns the position of its batch, one by time the record.
Their ceilings are raw preads at the position of the answer: of the batch's header, and of the whole
batch with a CRC over it.

The look-ups' log has TIDEMARK_BENCH_LOG_GIB GiB (default 1; the project's aim is stated for 10), in
segments of 1 GiB as Kafka has them. It is recovered, too.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tidemark.config import TopicConfig
from tidemark.records import HEADER_BYTES, Record, encode_batch
from tidemark.records.arrow import warm_up
from tidemark.records.header import ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CRC_AT
from tidemark.types import TopicPartition

TOTAL_BYTES = 256 << 20
ROUNDS = 4
LOOKUPS = 20_000
LOOKUP_LOG_BYTES = int(float(os.environ.get("TIDEMARK_BENCH_LOG_GIB", "1")) * (1 << 30))
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=128 << 20, max_message_bytes=2 << 20)
LOOKUP_CONFIG = TopicConfig(segment_bytes=1 << 30, max_message_bytes=2 << 20)
MIB = 1 << 20
SIZES = (("1 MiB", MIB), ("16 KiB", 16 << 10))


def _batch(size: int) -> bytes:
    """One batch of about `size` bytes, ten records."""
    value = os.urandom(size // 10 - 20)
    return encode_batch([Record(0, NOW_MS + i, b"key", value) for i in range(10)])


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _alternately(own: Callable[[], float], raw: Callable[[], float]) -> tuple[float, float]:
    """The best seconds of both, run in turns so that both see the same machine."""
    seconds = [(own(), raw()) for _ in range(ROUNDS)]
    return min(pair[0] for pair in seconds), min(pair[1] for pair in seconds)


def _open(path: Path, config: TopicConfig = CONFIG) -> Log:
    return open_log(OsDirectory(path), TopicPartition("bench", 0), config, now_ms=NOW_MS)


def _append(path: Path, batch: bytes, count: int) -> float:
    shutil.rmtree(path, ignore_errors=True)
    log = _open(path)

    def work() -> None:
        for _ in range(count):
            log.append_as_leader(batch, 1, NOW_MS)

    seconds = _seconds(work)
    log.close(clean=False)
    return seconds


def _raw_write(path: Path, batch: bytes, count: int) -> float:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    fd = os.open(path / "raw", os.O_RDWR | os.O_CREAT)

    def work() -> None:
        position = 0
        for _ in range(count):
            position += os.pwrite(fd, batch, position)

    seconds = _seconds(work)
    os.close(fd)
    return seconds


def _read(log: Log, fetch: int) -> float:
    def work() -> None:
        offset = 0
        while offset < log.log_end_offset:
            offset = log.read(offset, fetch).next_offset

    return _seconds(work)


def _raw_read(paths: list[Path], fetch: int) -> float:
    def work() -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            position = 0
            while data := os.pread(fd, fetch, position):
                position += len(data)
            os.close(fd)

    return _seconds(work)


def _raw_check(paths: list[Path]) -> float:
    """Reads all files and computes a CRC over them."""
    buffer = memoryview(bytearray(MIB))

    def work() -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            position = 0
            while size := os.preadv(fd, (buffer,), position):
                position += size
                crc32c(buffer[:size])
            os.close(fd)

    return _seconds(work)


def _row(name: str, total: int, seconds: float, ceiling_seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(total / seconds / 1e6, 1),
        "unit": "MB/s",
        "ceiling": round(total / ceiling_seconds / 1e6, 1),
        "ratio": round(ceiling_seconds / seconds, 3),
    }


def run() -> list[dict[str, Any]]:
    """Rows for append and recovery (1 MiB, 16 KiB), sequential read (1 MiB, 64 KiB), look-ups."""
    warm_up()
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    rows = []
    try:
        for label, size in SIZES:
            batch = _batch(size)
            count = TOTAL_BYTES // len(batch)
            path, raw_path = root / f"log-{size}", root / "raw"
            own, raw = _alternately(
                lambda p=path, b=batch, c=count: _append(p, b, c),
                lambda p=raw_path, b=batch, c=count: _raw_write(p, b, c),
            )
            shutil.rmtree(raw_path)
            rows.append(_row(f"log append {label}", count * len(batch), own, raw))
        rows.append(_recovery_row("1 MiB", root / f"log-{MIB}", CONFIG))
        rows += _read_rows(root / f"log-{16 << 10}")
        for _, size in SIZES:
            shutil.rmtree(root / f"log-{size}")
        rows += _lookup_rows(root / "look-up")
    finally:
        shutil.rmtree(root)
    return rows


def _recovery_row(label: str, path: Path, config: TopicConfig) -> dict[str, Any]:
    """The row of a recovery after an unclean stop: it checks every batch and rebuilds the
    indexes.
    """
    files = sorted(path.glob("*.log"))

    def recover() -> float:
        opened: list[Log] = []
        seconds = _seconds(lambda: opened.append(_open(path, config)))
        opened[0].close(clean=False)
        return seconds

    os.sync()  # writes back now, so that recovery's fsyncs have no work
    own, raw = _alternately(recover, lambda: _raw_check(files))
    return _row(f"log recovery {label}", sum(f.stat().st_size for f in files), own, raw)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.log"))
    total = sum(file.stat().st_size for file in files)
    log = _open(path)
    rows = []
    for label, fetch in (("1 MiB", MIB), ("64 KiB", 64 << 10)):
        own, raw = _alternately(lambda f=fetch: _read(log, f), lambda f=fetch: _raw_read(files, f))
        rows.append(_row(f"log read {label}", total, own, raw))
    log.close(clean=False)
    return rows


def _fill(path: Path, records: int) -> Log:
    """A log of batches of `records` 1 KiB records, one record a millisecond."""
    batch = bytearray(
        encode_batch(
            [Record(0, NOW_MS + i, b"k%03d" % i, os.urandom(1000)) for i in range(records)]
        )
    )
    body = memoryview(batch)[ATTRIBUTES_AT:]
    log = _open(path, LOOKUP_CONFIG)
    for first_ms in range(NOW_MS, NOW_MS + LOOKUP_LOG_BYTES // len(batch) * records, records):
        struct.pack_into(">qq", batch, BASE_TIMESTAMP_AT, first_ms, first_ms + records - 1)
        struct.pack_into(">I", batch, CRC_AT, crc32c(body))
        log.append_as_leader(batch, 1, first_ms)
    return log


def _lookup_rows(path: Path) -> list[dict[str, Any]]:
    """Random look-ups of offsets (position of the batch) and timestamps (the record), warm."""
    log = _fill(path, records=16)
    rng = random.Random(1)
    offsets = [rng.randrange(log.log_end_offset) for _ in range(LOOKUPS)]
    segments = log.segments
    bases = [segment.base_offset for segment in segments]

    def by_offset() -> None:
        for offset in offsets:
            segments[bisect_right(bases, offset) - 1].position_of(offset)

    def by_time() -> None:
        for offset in offsets:
            found = log.offset_for_timestamp(NOW_MS + offset)
            assert found is not None
            assert found.offset == offset

    places = []
    for offset in offsets:
        segment = segments[bisect_right(bases, offset) - 1]
        position = segment.position_of(offset)
        places.append((segment, position, segment.header_at(position).size_bytes))
    files = {segment: os.open(path / segment.log_file, os.O_RDONLY) for segment in log.segments}

    def raw_headers() -> None:
        for segment, position, _ in places:
            os.pread(files[segment], HEADER_BYTES, position)

    def raw_batches() -> None:
        for segment, position, size in places:
            crc32c(os.pread(files[segment], size, position))

    rows = []
    pairs = (("offset", by_offset, raw_headers), ("timestamp", by_time, raw_batches))
    gib = round(log.size_bytes / (1 << 30), 1)
    for name, own_work, raw_work in pairs:
        own, raw = _alternately(
            lambda work=own_work: _seconds(work), lambda work=raw_work: _seconds(work)
        )
        row = _row(f"log look-up by {name}, {gib} GiB", LOOKUPS, own, raw)
        rate = {"value": round(LOOKUPS / own), "ceiling": round(LOOKUPS / raw), "unit": "1/s"}
        rows.append(row | rate)
    for fd in files.values():
        os.close(fd)
    log.close(clean=False)
    rows.append(_recovery_row(f"16 KiB, {gib} GiB", path, LOOKUP_CONFIG))
    return rows
