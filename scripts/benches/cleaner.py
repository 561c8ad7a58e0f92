"""Compaction of 1 KiB records beside raw copies of the same files, in the same run.

Half of the records are obsolete; batches of 16 records (16 KiB) and of 1,000 (1 MiB). What is
timed is a whole cleaning: reading the dirty part for the map of keys with every CRC checked,
reading all of it again, writing what stays, fsyncs and the swap. The ceiling is a raw copy of the
segments' files, read and written 512 KiB at a time; once with an fsync per file as the cleaner
does it, once without any (the cleaner then without them, too). Unit: MB of log cleaned per second.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from commitlog.cleaner.manager import LogCleaner
from commitlog.files import File, OsDirectory, OsFile
from commitlog.log_manager import LogManager
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOTAL_BYTES = 192 << 20
ROUNDS = 3
NOW_MS = 1_700_000_000_000
COPY_BYTES = 512 << 10
TOPIC = TopicConfig(cleanup_policy=("compact",), segment_bytes=64 << 20, max_message_bytes=2 << 20)
SERVER = parse_server_config(
    {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@localhost:1"}
)
PARTITION = TopicPartition("bench", 0)


class _UnsyncedDirectory(OsDirectory):
    """Leaves fsyncs out, to see what the work itself costs."""

    def open(self, name: str, *, create: bool = False) -> File:
        return _UnsyncedFile(self.path_of(name), os.O_RDWR | (os.O_CREAT if create else 0))

    def fsync(self) -> None:
        return

    def subdirectory(self, name: str, *, create: bool = True) -> OsDirectory:
        return _UnsyncedDirectory(self.path_of(name), create=create)


class _UnsyncedFile(OsFile):
    def fsync(self) -> None:
        return


def _fill(path: Path, records_per_batch: int) -> int:
    """A log whose keys occur twice on average; its bytes."""
    rng = random.Random(7)
    manager = LogManager([_UnsyncedDirectory(path)], SERVER, now_ms=lambda: NOW_MS)
    manager.open()
    log = manager.get_or_create(PARTITION, None, TOPIC)
    records = TOTAL_BYTES >> 10
    keys = max(1, records // 2)
    offset = 0
    while offset < records:
        batch = [
            Record(0, NOW_MS + offset + i, b"key-%016d" % rng.randrange(keys), rng.randbytes(1000))
            for i in range(records_per_batch)
        ]
        log.append_as_leader(encode_batch(batch), 1, NOW_MS)
        offset += records_per_batch
    log.roll()
    size = log.size_bytes
    manager.close()
    return size


def _clean(path: Path, directory: OsDirectory) -> float:
    manager = LogManager([directory], SERVER, now_ms=lambda: NOW_MS)
    manager.open()
    log = manager.get_or_create(PARTITION, None, TOPIC)
    log.update_high_watermark(log.log_end_offset)
    cleaner = LogCleaner(manager, SERVER, now_ms=lambda: NOW_MS)
    cleaner.start()
    import commitlog.cleaner.cleaning  # noqa: F401  not part of a cleaning

    begin = time.perf_counter()
    done = cleaner.clean_once()
    seconds = time.perf_counter() - begin
    assert done is not None
    assert not cleaner.uncleanable, cleaner.uncleanable
    manager.close(clean=False)
    return seconds


def _copy(path: Path, target: Path, *, sync: bool) -> float:
    target.mkdir()
    begin = time.perf_counter()
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
    return time.perf_counter() - begin


def run() -> list[dict[str, Any]]:
    """Rows for both sizes of batches, with and without fsync."""
    rows = []
    for label, count in (("16 KiB", 16), ("1 MiB", 1000)):
        root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
        try:
            total = _fill(root / "log", count)
            for sync in (False, True):
                own = raw = float("inf")
                for number in range(ROUNDS):  # alternately, so that both see the same machine
                    copy = root / f"copy-{number}"
                    raw = min(raw, _copy(root / "log", copy, sync=sync))
                    shutil.rmtree(copy)
                    shutil.copytree(root / "log", copy)
                    os.sync()
                    directory = OsDirectory(copy) if sync else _UnsyncedDirectory(copy)
                    own = min(own, _clean(copy, directory))
                    shutil.rmtree(copy)
                rows.append(
                    {
                        "name": f"clean, {label} batches{', fsync' if sync else ''}",
                        "value": round(total / own / 1e6, 1),
                        "unit": "MB/s",
                        "ceiling": round(total / raw / 1e6, 1),
                        "ratio": round(raw / own, 3),
                    }
                )
        finally:
            shutil.rmtree(root)
    return rows
