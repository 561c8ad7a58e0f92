"""SIGKILL at every point of append, roll, flush, truncation and deletion.

Nothing acknowledged is lost, nothing else appears, and indexes, epochs and producers match the
records.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from tests.crash.append_work import RECORDS_PER_BATCH, batch, open_log, record
from tests.crash.harness import Job, points_of, run_jobs
from tidemark.errors import OutOfOrderSequenceNumberError
from tidemark.records import Record, decode_batch, iter_batches

WORK = "tests.crash.append_work:"


def all_jobs(work: str, base: Path) -> list[Job]:
    """Returns a job for each point the work passes, dying before, in the middle of, and after
    it.
    """
    points = points_of(work, Job(base / "dry-run"))
    assert len(points) > 20
    modes = {"append": ("", "~", "+")}
    return [
        Job(base / f"{index}-{mode or '-'}", point + mode)
        for index, point in enumerate(points)
        for mode in modes.get(point.split(":")[0], ("", "+"))
    ]


def read_all(log: Log) -> list[Record]:
    """Returns all records of the local log, read in small pieces."""
    found: list[Record] = []
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 300)
        assert result.records, offset
        for position, _ in iter_batches(result.records):
            found += decode_batch(result.records, position)
        offset = result.next_offset
    return found


def assert_holds_together(log: Log, records: list[Record]) -> None:
    """Asserts that look-ups by timestamp and epoch, and the producer's state, agree with the
    records.
    """
    log.validate()
    for wanted in records[:: max(1, len(records) // 7)]:
        hit = log.offset_for_timestamp(wanted.timestamp_ms)
        first = next(r for r in records if r.timestamp_ms >= wanted.timestamp_ms)
        assert hit is not None
        assert (hit.offset, hit.timestamp_ms) == (first.offset, first.timestamp_ms)
    if records:
        following = records[-1].offset // RECORDS_PER_BATCH + 1
        log.append_as_leader(batch(following), 9, 1_700_000_000_000)
        with pytest.raises(OutOfOrderSequenceNumberError):
            log.append_as_leader(batch(following + 2), 9, 1_700_000_000_000)


def expected(batches: int) -> list[tuple[int, bytes | None]]:
    return [
        (number * RECORDS_PER_BATCH + index, record(number, index).value)
        for number in range(batches)
        for index in range(RECORDS_PER_BATCH)
    ]


def test_every_acknowledged_append_survives_a_kill_at_every_point(tmp_path: Path) -> None:
    results = run_jobs(WORK + "append_and_roll", all_jobs(WORK + "append_and_roll", tmp_path))
    for result in results:
        assert result.killed, result.job
        acked = sum(ack.startswith("append ") for ack in result.acks)
        log = open_log(OsDirectory(result.job.path))
        records = read_all(log)
        found = [(r.offset, r.value) for r in records]
        # the append under way may have reached the disk whole: then it is there once
        assert found in (expected(acked), expected(acked + 1)), result.job
        epochs = [(1 + n // 5) for n in range(0, len(found) // RECORDS_PER_BATCH, 5)]
        assert [epoch for epoch, _ in log.epochs.entries()] == epochs, result.job
        assert_holds_together(log, records)
        log.close()


def test_a_truncation_is_whole_or_not_begun_where_it_counts(tmp_path: Path) -> None:
    work = WORK + "truncate_and_append"
    for result in run_jobs(work, all_jobs(work, tmp_path)):
        log = open_log(OsDirectory(result.job.path))
        records = read_all(log)
        found = [(r.offset, r.value) for r in records]
        count = len(found) // RECORDS_PER_BATCH
        assert found == expected(count), result.job
        if "truncated" in result.acks:
            acked = sum(ack.startswith("append ") for ack in result.acks)
            assert count in (5 + acked, 5 + acked + 1), result.job
            if acked:
                assert log.epochs.entries() == ((1, 0), (2, 5 * RECORDS_PER_BATCH)), result.job
        elif "flushed" in result.acks:
            assert 5 <= count <= 12, result.job
        assert_holds_together(log, records)
        log.close()


def test_deletion_takes_from_the_oldest_end_alone(tmp_path: Path) -> None:
    work = WORK + "delete_oldest"
    for result in run_jobs(work, all_jobs(work, tmp_path)):
        log = open_log(OsDirectory(result.job.path))
        records = read_all(log)
        found = [(r.offset, r.value) for r in records]
        assert found == expected(14)[log.log_start_offset : log.log_end_offset], result.job
        if result.acks:
            assert log.log_end_offset == int(result.acks[0].split()[1]), result.job
        if len(result.acks) > 1:
            assert log.log_start_offset == int(result.acks[1].split()[1]), result.job
        assert_holds_together(log, records)
        log.close()
