"""Compaction of 1 KiB records beside raw copies of the same files, in the same run.

Half of the records are obsolete; batches have 16 records (16 KiB) or 1,000 (1 MiB). The time is
that of a whole cleaning. It reads the dirty part for the map of keys, with every CRC checked.
Then it reads all of it again, writes the retained records, syncs, and swaps the segments.

The ceiling is a raw copy of the segments' files, read and written 512 KiB at a time. It is measured
once with an fsync per file, as the cleaner does it, and once without any (the cleaner then without
them, too). Unit: MB of log cleaned per second.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.files import File
from commitlog.disk.os_files import OsDirectory, OsFile
from commitlog.manager.manager import LogManager
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOTAL_BYTES = 192 << 20
ROUNDS = 3
NOW_MS = 1_700_000_000_000
COPY_BYTES = 512 << 10
TOPIC = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=64 << 20,
    max_message_bytes=2 << 20,
    min_cleanable_dirty_ratio=0.3,
)
SERVER = parse_server_config(
    {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@localhost:1"}
)
PARTITION = TopicPartition("bench", 0)


class _UnsyncedDirectory(OsDirectory):
    """A directory without fsyncs, to measure the cost of the work itself."""

    def open(self, name: str, *, create: bool = False) -> File:
        return _UnsyncedFile(self.path_of(name), os.O_RDWR | (os.O_CREAT if create else 0))

    def fsync(self) -> None:
        return

    def subdirectory(self, name: str, *, create: bool = True) -> OsDirectory:
        return _UnsyncedDirectory(self.path_of(name), create=create)


class _UnsyncedFile(OsFile):
    def fsync(self) -> None:
        return


@dataclass(frozen=True)
class Case:
    """A log: its batches, and whether its first half is already clean."""

    name: str
    records_per_batch: int
    compression: str = "none"
    half_clean: bool = False

    def key(self, rng: random.Random, offset: int) -> int:
        """A random key that occurs twice on average.

        If half of the log is clean, the keys of that half are unique, and a fifth of the others are
        among them.
        """
        records = TOTAL_BYTES >> 10
        if not self.half_clean:
            return rng.randrange(records // 2)
        return offset if offset < records // 2 or rng.random() > 0.2 else rng.randrange(offset)

    def value(self, rng: random.Random) -> bytes:
        if self.compression == "none":
            return rng.randbytes(1000)
        return rng.randbytes(250).hex().encode() * 2  # a quarter of it is random


CASES = (
    Case("16 KiB batches", 16),
    Case("1 MiB batches", 1000),
    Case("16 KiB batches, half clean", 16, half_clean=True),
    Case("16 KiB batches, lz4", 16, "lz4"),
    Case("16 KiB batches, zstd", 16, "zstd"),
)


def _fill(path: Path, case: Case) -> None:
    rng = random.Random(7)
    manager = LogManager([_UnsyncedDirectory(path)], SERVER, now_ms=lambda: NOW_MS)
    manager.open()
    log = manager.get_or_create(PARTITION, None, TOPIC)
    records = TOTAL_BYTES >> 10
    for offset in range(0, records, case.records_per_batch):
        if case.half_clean and offset == records // 2:
            log.roll(NOW_MS)
            log.update_high_watermark(log.log_end_offset)
            assert LogCleaner(manager, SERVER, now_ms=lambda: NOW_MS).clean_once() is not None
        batch = [
            Record(0, NOW_MS + at, b"key-%016d" % case.key(rng, at), case.value(rng))
            for at in range(offset, offset + case.records_per_batch)
        ]
        log.append_as_leader(encode_batch(batch, compression=case.compression), 1, NOW_MS)
    log.roll(NOW_MS)
    manager.close()


def _clean(path: Path, directory: OsDirectory) -> tuple[float, float]:
    """Seconds of wall time and of processor time."""
    manager = LogManager([directory], SERVER, now_ms=lambda: NOW_MS)
    manager.open()
    log = manager.get_or_create(PARTITION, None, TOPIC)
    log.update_high_watermark(log.log_end_offset)
    cleaner = LogCleaner(manager, SERVER, now_ms=lambda: NOW_MS)
    cleaner.start()
    import commitlog.cleaner.cleaning  # noqa: F401  not part of a cleaning

    begin, cpu = time.perf_counter(), time.process_time()
    done = cleaner.clean_once()
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    assert done is not None
    assert not cleaner.uncleanable, cleaner.uncleanable
    manager.close(clean=False)
    return seconds, cpu_seconds


def _copy(path: Path, target: Path, *, sync: bool) -> tuple[float, float]:
    """As `_clean`, for the raw copy."""
    target.mkdir()
    begin, cpu = time.perf_counter(), time.process_time()
    for file in sorted(path.glob("*/*.log")):
        source = os.open(file, os.O_RDONLY)
        copy = os.open(target / file.name, os.O_RDWR | os.O_CREAT)
        position = 0
        while data := os.pread(source, COPY_BYTES, position):
            os.pwrite(copy, data, position)
            position += len(data)
        if sync:
            os.fdatasync(copy)
        os.close(source)
        os.close(copy)
    return time.perf_counter() - begin, time.process_time() - cpu


def _row(name: str, unit: str, total: int, own: float, raw: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(total / own / 1e6, 1),
        "unit": unit,
        "ceiling": round(total / raw / 1e6, 1),
        "ratio": round(raw / own, 3),
    }


def _measure(root: Path, case: Case, *, sync: bool) -> list[dict[str, Any]]:
    """Cleans and copies in turns, so that both see the same machine; the best of each counts."""
    total = sum(file.stat().st_size for file in (root / "log").glob("*/*.log"))
    own, raw = [], []
    for number in range(ROUNDS):
        log, target = root / f"log-{number}", root / f"copy-{number}"
        shutil.copytree(root / "log", log)  # both read this file, which the page cache holds
        os.sync()
        raw.append(_copy(log, target, sync=sync))
        shutil.rmtree(target)
        own.append(_clean(log, OsDirectory(log) if sync else _UnsyncedDirectory(log)))
        shutil.rmtree(log)
    (own_s, own_cpu_s), (raw_s, raw_cpu_s) = (map(min, zip(*t, strict=True)) for t in (own, raw))
    name = f"clean, {case.name}{', fsync' if sync else ''}"
    rows = [_row(name, "MB/s", total, own_s, raw_s)]
    if not sync:
        rows.append(_row(f"{name}, CPU", "MB/CPU s", total, own_cpu_s, raw_cpu_s))
    return rows


def run() -> list[dict[str, Any]]:
    """Rows for all cases; those with an aim are also measured with fsyncs."""
    rows = []
    for number, case in enumerate(CASES):
        root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
        try:
            _fill(root / "log", case)
            for sync in (False, True) if number < 2 else (False,):
                rows += _measure(root, case, sync=sync)
        finally:
            shutil.rmtree(root)
    return rows
