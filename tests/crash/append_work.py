"""Work for the crash tests of append and roll: appends with rolls, flushes and a truncation."""

from __future__ import annotations

from commitlog.disk.files import Directory
from commitlog.log import opening
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from tests.crash.harness import Ack
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

TOPIC_PARTITION = TopicPartition("crash", 0)
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=200, file_delete_delay_ms=0)
RECORDS_PER_BATCH = 3
NOW_MS = 1_700_000_000_000


def record(number: int, index: int) -> Record:
    """Returns the record at `index` of batch `number`; every one is different."""
    value = f"batch {number} record {index} ".encode() * 3
    return Record(0, NOW_MS + number * 10 + index, f"key {number}".encode(), value, ())


def batch(number: int) -> bytes:
    """Returns batch `number`, of an idempotent producer."""
    return encode_batch(
        [record(number, index) for index in range(RECORDS_PER_BATCH)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=number * RECORDS_PER_BATCH,
    )


def open_log(directory: Directory) -> Log:
    """Opens the log as after an unclean stop."""
    return opening.open_log(directory, TOPIC_PARTITION, CONFIG, now_ms=NOW_MS)


def append_and_roll(directory: Directory, ack: Ack, batches: int = 14) -> None:
    """Appends batch after batch and acknowledges each; flushes now and then; ends with a clean
    close.
    """
    log = open_log(directory)
    for number in range(batches):
        info = log.append_as_leader(batch(number), 1 + number // 5, NOW_MS)
        ack(f"append {number} {info.first_offset}")
        if number % 4 == 3:
            log.flush()
            ack(f"flush {log.log_end_offset}")
    log.close()
    ack("closed")


def truncate_and_append(directory: Directory, ack: Ack) -> None:
    """Appends, truncates across segments, and appends others in a new epoch."""
    log = open_log(directory)
    for number in range(12):
        log.append_as_leader(batch(number), 1, NOW_MS)
    log.flush()
    ack("flushed")
    log.truncate_to(5 * RECORDS_PER_BATCH, NOW_MS)
    ack("truncated")
    for number in range(5, 9):
        log.append_as_leader(batch(number), 2, NOW_MS)
        ack(f"append {number}")
    log.close()


def delete_oldest(directory: Directory, ack: Ack) -> None:
    """Appends, has retention delete the oldest segments, and purges them."""
    log = open_log(directory)
    for number in range(14):
        log.append_as_leader(batch(number), 1, NOW_MS)
    log.flush()
    log.update_high_watermark(log.log_end_offset)
    ack(f"appended {log.log_end_offset}")
    log.increment_log_start_offset(log.segments[2].base_offset)
    delete_expired(log, NOW_MS)
    ack(f"deleted {log.log_start_offset}")
    log.deleted_files.purge(NOW_MS)
    log.close()
