"""Work for the crash tests of compaction: appends with tombstones, and two cleanings."""

from __future__ import annotations

import commitlog.cleaner.cleaning  # noqa: F401  loads the kernels before the children are forked
from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.files import Directory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from tests.crash.harness import Ack
from tidemark.config import ServerConfig, TopicConfig, parse_server_config
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOPIC_PARTITION = TopicPartition("crash", 0)
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=700,
    index_interval_bytes=150,
    file_delete_delay_ms=0,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
SERVER: ServerConfig = parse_server_config(
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "9@localhost:1",
        "log.cleaner.dedupe.buffer.size": "65536",
        "log.cleaner.io.buffer.size": "1024",
    }
)
ROUNDS = 2
BATCHES = 9


def batch(number: int) -> tuple[bytes, list[tuple[bytes, bytes | None]]]:
    """Returns batch `number`: three records of ten keys, every fifth a tombstone."""
    pairs: list[tuple[bytes, bytes | None]] = []
    for index in range(3):
        serial = number * 3 + index
        value = None if serial % 5 == 4 else b"value %d " % serial * 3
        pairs.append((b"key %d" % (serial * 7 % 10), value))
    records = [Record(0, NOW_MS + number, key, value) for key, value in pairs]
    data = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=number * 3)
    return data, pairs


def open_all(directory: Directory) -> tuple[LogManager, Log]:
    """Returns the node's logs, opened after any kind of stop."""
    manager = LogManager([directory], SERVER, now_ms=lambda: NOW_MS, topic_config=lambda _: CONFIG)
    manager.open()
    return manager, manager.get_or_create(TOPIC_PARTITION, None, CONFIG)


def append_and_clean(directory: Directory, ack: Ack) -> None:
    """Does rounds of appends, a flush and a cleaning; the second cleaning drops tombstones and
    merges.
    """
    manager, log = open_all(directory)
    now = NOW_MS
    cleaner = LogCleaner(manager, SERVER, now_ms=lambda: now)
    cleaner.start()
    for turn in range(ROUNDS):
        for number in range(turn * BATCHES, (turn + 1) * BATCHES):
            log.append_as_leader(batch(number)[0], 1 + turn, NOW_MS)
        log.flush()
        log.update_high_watermark(log.log_end_offset)
        ack(f"flush {log.log_end_offset}")
        log.roll(now)
        now += 2000
        while cleaner.clean_once() is not None:
            ack("cleaned")
        assert cleaner.uncleanable == {}
        log.deleted_files.purge(now)
    manager.close(clean=False)
