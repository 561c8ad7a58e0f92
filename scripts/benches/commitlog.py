"""The log on disk, one core: appends, sequential reads and recovery, each beside what the
file system does with the same bytes in the same run.

Nothing is synced: the log acknowledges from the page cache, and so does the ceiling. Append's
ceiling is one raw pwrite per batch, the read's is one raw pread per fetch, recovery's is a
raw read with a CRC-32C over it. Unit: MB/s (10^6 bytes).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from commitlog.files import OsDirectory
from commitlog.log import Log
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOTAL_BYTES = 256 << 20
ROUNDS = 3
LOOKUPS = 20_000
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=128 << 20, max_message_bytes=2 << 20)
MIB = 1 << 20


def _batch(size: int) -> bytes:
    """One batch of about `size` bytes, ten records."""
    value = os.urandom(size // 10 - 20)
    return encode_batch([Record(0, NOW_MS + i, b"key", value) for i in range(10)])


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _open(path: Path) -> Log:
    return Log.open(OsDirectory(path), TopicPartition("bench", 0), CONFIG, now_ms=NOW_MS)


def _append(path: Path, batch: bytes, count: int) -> float:
    log = _open(path)

    def work() -> None:
        for _ in range(count):
            log.append_as_leader(batch, 1, NOW_MS)

    seconds = _seconds(work)
    log.close(clean=False)
    return seconds


def _raw_write(path: Path, batch: bytes, count: int) -> float:
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


def _raw_read(paths: list[Path], fetch: int, check: bool = False) -> float:
    def work() -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            position = 0
            while data := os.pread(fd, fetch, position):
                position += len(data)
                if check:
                    crc32c(data)
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
    """Rows for append (1 MiB, 16 KiB), sequential read (1 MiB, 64 KiB) and recovery."""
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
    rows = []
    try:
        for label, size in (("1 MiB", MIB), ("16 KiB", 16 << 10)):
            batch = _batch(size)
            count = TOTAL_BYTES // len(batch)
            own = raw = float("inf")
            for number in range(ROUNDS):  # alternately, so that both see the same machine
                for kind, measure in (("log", _append), ("raw", _raw_write)):
                    path = root / f"{kind}-{size}-{number}"
                    seconds = measure(path, batch, count)
                    own, raw = (
                        (min(own, seconds), raw) if kind == "log" else (own, min(raw, seconds))
                    )
                    if number or kind == "raw":
                        shutil.rmtree(path)
            rows.append(_row(f"log append {label}", count * len(batch), own, raw))
        path = root / f"log-{16 << 10}-0"
        rows += _read_rows(path)
    finally:
        shutil.rmtree(root)
    return rows


def _read_rows(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.log"))
    total = sum(file.stat().st_size for file in files)
    ceiling = min(_raw_read(files, 4 << 20, check=True) for _ in range(ROUNDS))
    opened: list[Log] = []
    recovery = min(_seconds(lambda: opened.append(_open(path))) for _ in range(ROUNDS))
    rows = [_row("log recovery", total, recovery, ceiling)]
    for label, fetch in (("1 MiB", MIB), ("64 KiB", 64 << 10)):
        raw = min(_raw_read(files, fetch) for _ in range(ROUNDS))
        own = min(_read(opened[-1], fetch) for _ in range(ROUNDS))
        rows.append(_row(f"log read {label}", total, own, raw))
    rows += _lookup_rows(opened[-1])
    for log in opened:
        log.close(clean=False)
    return rows


def _lookup_rows(log: Log) -> list[dict[str, Any]]:
    """Random look-ups of offsets (position of the batch) and timestamps (the record), warm."""
    rng = random.Random(1)
    offsets = [rng.randrange(log.log_end_offset) for _ in range(LOOKUPS)]
    times = [NOW_MS + rng.randrange(10) for _ in range(LOOKUPS // 10)]

    def by_offset() -> None:
        for offset in offsets:
            segment = log.segment_for(offset)
            assert segment is not None
            segment.position_of(offset)

    def by_time() -> None:
        for time_ms in times:
            log.offset_for_timestamp(time_ms)

    rows = []
    for name, work, count in (("offset", by_offset, LOOKUPS), ("timestamp", by_time, len(times))):
        seconds = min(_seconds(work) for _ in range(ROUNDS))
        rows.append({"name": f"log look-up by {name}", "value": round(count / seconds)})
        rows[-1] |= {"unit": "1/s", "ceiling": None, "ratio": None}
    return rows
