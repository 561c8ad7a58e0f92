"""A log's move between two directories beside a raw copy of the same files, in the same run.

The time is that of a whole move. Each piece is read, checked (each batch's CRC) and written, with
one sync per segment. Indexes, checkpoints, renames and the swap are included. The ceiling copies
the log's files 4 MiB at a time with an fsync for each. Batches have 1 MiB and 1 KiB. Unit: MB of
log per second of CPU, without waits for the disk, and per second of wall time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commitlog.disk.os_files import OsDirectory
from commitlog.manager.manager import LogManager
from tidemark.config import TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOTAL_BYTES = 128 << 20
ROUNDS = 3
NOW_MS = 1_700_000_000_000
COPY_BYTES = 4 << 20
TOPIC = TopicConfig(segment_bytes=32 << 20, max_message_bytes=2 << 20)
SERVER = parse_server_config(
    {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@localhost:1"}
)
PARTITION = TopicPartition("bench", 0)


def _fill(root: Path, batch_bytes: int) -> LogManager:
    homes = [OsDirectory(root / name) for name in "ab"]
    manager = LogManager(homes, SERVER, now_ms=lambda: NOW_MS)
    manager.open()
    log = manager.get_or_create(PARTITION, None, TOPIC)
    batch = encode_batch([Record(0, NOW_MS, b"key", os.urandom(batch_bytes - 100))])
    while log.size_bytes < TOTAL_BYTES:
        log.append_as_leader(batch, 1, NOW_MS)
    log.flush()
    return manager


def _move(manager: LogManager) -> None:
    log = manager.get(PARTITION)
    assert log is not None
    home = manager.directory_of(PARTITION)
    future = manager.moves.begin(log, next(d for d in manager.directories if d is not home))
    while (piece := future.next_piece()) is not None:
        future.take(piece, piece.run())
    manager.moves.swap(PARTITION)


def _copy(manager: LogManager, target: Path) -> None:
    """Copies the same files as bytes."""
    log = manager.get(PARTITION)
    assert log is not None
    target.mkdir()
    for name in log.directory.list():
        source = os.open(f"{log.directory.path}/{name}", os.O_RDONLY)
        copy = os.open(target / name, os.O_WRONLY | os.O_CREAT)
        while data := os.read(source, COPY_BYTES):
            os.write(copy, data)
        os.fsync(copy)
        os.close(source)
        os.close(copy)


def _seconds(work: Callable[[], None]) -> tuple[float, float]:
    """(CPU seconds, wall seconds)"""
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - clock


def _rows(name: str, size_bytes: int, taken: list[tuple[float, float]]) -> tuple[float, float]:
    cpu, clock = (statistics.median(column) for column in zip(*taken, strict=True))
    return size_bytes / cpu / 1e6, size_bytes / clock / 1e6


def run() -> list[dict[str, Any]]:
    """Two rows for each batch size."""
    rows: list[dict[str, Any]] = []
    for label, batch_bytes in (("1 MiB", 1 << 20), ("1 KiB", 1 << 10)):
        root = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
        try:
            manager = _fill(root, batch_bytes)
            log = manager.get(PARTITION)
            assert log is not None
            moved, copied = [], []
            for number in range(ROUNDS):
                moved.append(_seconds(partial(_move, manager)))
                manager.purge_deleted(NOW_MS)
                target = root / f"copy-{number}"
                copied.append(_seconds(partial(_copy, manager, target)))
                shutil.rmtree(target)
            values = _rows("move", log.size_bytes, moved)
            ceilings = _rows("copy", log.size_bytes, copied)
            for unit, value, ceiling in zip(("MB/CPU s", "MB/s"), values, ceilings, strict=True):
                rows.append(
                    {
                        "name": f"move of a log to another directory, batches of {label}",
                        "value": value,
                        "unit": unit,
                        "ceiling": ceiling,
                        "ratio": value / ceiling,
                    }
                )
            manager.close(clean=False)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return rows
