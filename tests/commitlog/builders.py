"""Builders of batches and logs for the tests of the log."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings

from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log import opening
from commitlog.log.log import Log
from tidemark.config import TopicConfig
from tidemark.records import Record, decode_batch, encode_batch, iter_batches
from tidemark.types import TopicPartition

TP = TopicPartition("events", 0)
NOW = 1_700_000_000_000


def config(**settings: Any) -> TopicConfig:
    """Returns topic settings with small segments and dense indexes, so that a test rolls and
    indexes.
    """
    small: dict[str, Any] = {
        "segment_bytes": 2000,
        "index_interval_bytes": 300,
        "file_delete_delay_ms": 1000,
        "retention_ms": -1,
    }
    return TopicConfig(**{**small, **settings})


def model_settings(examples: int = 60) -> hypothesis_settings:
    """Returns the settings of the state machines: `examples` histories, the same in each run.

    With TIDEMARK_SOAK=1 each run has new histories, TIDEMARK_EXAMPLES of them (2,000 by default),
    and a failing one is shrunk.
    """
    soak = os.environ.get("TIDEMARK_SOAK") == "1"
    return hypothesis_settings(
        max_examples=int(os.environ.get("TIDEMARK_EXAMPLES", "2000")) if soak else examples,
        phases=(Phase.generate, Phase.shrink) if soak else (Phase.generate,),
        report_multiple_bugs=False,
        stateful_step_count=40,
        deadline=None,
        derandomize=not soak,
        suppress_health_check=list(HealthCheck),
    )


def batch(
    count: int = 1, *, timestamp: int = NOW, step: int = 1, size: int = 20, **options: Any
) -> bytes:
    """Returns a batch of `count` records whose timestamps begin at `timestamp`."""
    records = [
        Record(0, timestamp + i * step, f"k{i}".encode(), bytes([65 + i % 26]) * size, ())
        for i in range(count)
    ]
    return encode_batch(records, **options)


def open_log(
    directory: Directory | None = None, settings: TopicConfig | None = None, **options: Any
) -> Log:
    """Opens a log; by default a new one in memory, as after an unclean stop."""
    where = MemoryDirectory() if directory is None else directory
    options.setdefault("now_ms", NOW)
    options.setdefault("recovery_point", 0)  # as if it was never flushed; None: unknown
    return opening.open_log(where, TP, settings or config(), **options)


def filled(
    directory: Directory | None = None,
    batches: int = 30,
    settings: TopicConfig | None = None,
    **options: Any,
) -> Log:
    """Returns a log of `batches` batches of three records, one per 10 ms, all below the high
    watermark.
    """
    log = open_log(directory, settings, **options)
    for number in range(batches):
        log.append_as_leader(batch(3, timestamp=NOW + number * 10), 1, NOW)
    log.update_high_watermark(log.log_end_offset)
    return log


def records_of(log: Log, max_bytes: int = 500) -> list[Record]:
    """Returns all local records, read in small pieces."""
    found: list[Record] = []
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes)
        if not result.records:
            break
        for position, _ in iter_batches(result.records):
            found += decode_batch(result.records, position)
        offset = result.next_offset
    return [record for record in found if record.offset >= log.local_log_start_offset]


def offsets_of(log: Log) -> list[int]:
    """Returns the offsets of all local records."""
    return [record.offset for record in records_of(log)]
