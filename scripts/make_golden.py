"""Writes the golden files of this version: logs of every kind, and summaries of their contents.

    .venv/bin/python scripts/make_golden.py tests/golden/tidemark-0.1

Run once per release that changes a format. The files of earlier releases are never written again:
`tests/commitlog/log/test_own_golden.py` proves that they stay readable. Everything is fixed: the
same program writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from uuid import UUID

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    MetaProperties,
    OffsetCheckpoint,
)
from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from commitlog.types import AppendOrigin
from tidemark.config import TopicConfig
from tidemark.records import (
    EndTransactionMarker,
    Record,
    decode_batch,
    encode_batch,
    encode_control_batch,
    iter_batches,
)
from tidemark.types import TopicPartition

NOW_MS = 1_790_000_000_000
CONFIG = TopicConfig(segment_bytes=6000, index_interval_bytes=600, retention_ms=-1)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def records(rng: random.Random, count: int, first: int) -> list[Record]:
    """Records with nulls, empty values, headers, and times out of order."""
    return [
        Record(
            0,
            NOW_MS + (first + i) * 10 + rng.randrange(-300, 300),
            None if rng.random() < 0.1 else f"key-{rng.randrange(20)}".encode(),
            None if rng.random() < 0.05 else rng.randbytes(rng.randrange(60)),
            (("trace", b""), ("none", None)) if (first + i) % 7 == 0 else (),
        )
        for i in range(count)
    ]


def codec_log(log: Log, rng: random.Random, codec: str) -> None:
    """Appends 300 records in batches of 1 to 40, over several segments."""
    while log.log_end_offset < 300:
        count = min(rng.randrange(1, 40), 300 - log.log_end_offset)
        batch = encode_batch(records(rng, count, log.log_end_offset), compression=codec)
        log.append_as_leader(batch, log.log_end_offset // 100, NOW_MS)


def transactional_log(log: Log, rng: random.Random) -> None:
    """Appends the transactions of two interleaved producers; half of them are aborted."""
    sequences = {7: 0, 8: 0}
    for round_number in range(8):
        for producer in sequences:
            batch = encode_batch(
                records(rng, 5, log.log_end_offset),
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[producer],
                transactional=True,
            )
            sequences[producer] += 5
            log.append_as_leader(batch, 0, NOW_MS, verified=True)
        for producer in sequences:
            marker = encode_control_batch(
                [EndTransactionMarker((round_number + producer) % 2 == 0, 3)],
                base_offset=0,
                timestamp_ms=NOW_MS + round_number,
                partition_leader_epoch=0,
                producer_id=producer,
                producer_epoch=0,
            )
            log.append_as_leader(marker, 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
        if round_number % 3 == 2:
            log.roll(NOW_MS)


def summary(log: Log) -> dict[str, object]:
    """The expected contents: a digest of the records, look-ups, epochs, aborted transactions."""
    digest, times, offset = hashlib.sha256(), [], 0
    while offset < log.log_end_offset:
        result = log.read(offset, 1500)
        for position, _ in iter_batches(result.records):
            for record in decode_batch(result.records, position):
                digest.update(repr(record).encode())
                times.append(record.timestamp_ms)
        offset = result.next_offset
    hits = {str(time): log.offset_for_timestamp(time) for time in times[::29]}
    return {
        "records": digest.hexdigest(),
        "log_end_offset": log.log_end_offset,
        "segments": [segment.base_offset for segment in log.segments],
        "epochs": log.epochs.entries(),
        "times": {time: hit and hit.offset for time, hit in hits.items()},
        "aborted": [
            (a.producer_id, a.first_offset, a.last_offset)
            for a in log.aborted_transactions(0, log.log_end_offset)
        ],
        "producers": sorted(log.producers.producers),
    }


def main(target: Path) -> None:
    root = OsDirectory(target)
    found, offsets = {}, {}
    for number, name in enumerate((*CODECS, "transactional")):
        partition = TopicPartition(f"codec-{name}" if name in CODECS else name, 0)
        log = open_log(
            root.subdirectory(str(partition)),
            partition,
            CONFIG,
            topic_id=UUID(int=number + 1),
            now_ms=NOW_MS,
        )
        rng = random.Random(number)
        if name in CODECS:
            codec_log(log, rng, name)
        else:
            transactional_log(log, rng)
        log.update_high_watermark(log.log_end_offset)
        found[str(partition)] = summary(log)
        offsets[partition] = log.log_end_offset
        log.close()
    MetaProperties("golden-cluster-0000001", 1, UUID(int=99)).write(root)
    OffsetCheckpoint(root, RECOVERY_POINT_CHECKPOINT).write(offsets)
    OffsetCheckpoint(root, HIGH_WATERMARK_CHECKPOINT).write(offsets)
    OffsetCheckpoint(root, LOG_START_OFFSET_CHECKPOINT).write({})
    CleanShutdown(root).write(5)
    (target / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
