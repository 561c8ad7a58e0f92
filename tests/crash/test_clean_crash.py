"""SIGKILL at every point of cleanings: no key loses its last value, no offset changes, and a new
cleaning completes the work.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from tests.commitlog.builders import records_of
from tests.crash.clean_work import BATCHES, NOW_MS, SERVER, batch, open_all
from tests.crash.harness import Job, points_of, run_jobs

WORK = "tests.crash.clean_work:append_and_clean"
CLEANING = (
    *("append:.cleaned", "fsync_dir", "rename", "remove"),
    "append:.tmp",
)


def jobs_of(base: Path) -> list[Job]:
    """Returns a job per point of the cleanings; also half of each write to a `.cleaned` file."""
    points = points_of(WORK, Job(base / "dry-run"))
    first = next(i for i, point in enumerate(points) if ".cleaned" in point)
    kinds = {":".join(point.split(":")[:2]) for point in points[first:]}
    assert {"create:.cleaned", "rename:.swap", "rename:.deleted", "rename:.log"} <= kinds
    return [
        Job(base / f"{index}-{mode or '-'}", point + mode)
        for index, point in enumerate(points)
        if index >= first and point.startswith(CLEANING)
        for mode in (("~",) if point.startswith("append") else ("",))
    ]


def expected(end: int) -> dict[bytes, tuple[int, bytes | None]]:
    """Returns the last offset and value of each key below `end`."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset in range(end):
        key, value = batch(offset // 3)[1][offset % 3]
        last[key] = (offset, value)
    return last


def assert_is_sound(log: Log, result: object) -> None:
    """Asserts that every record was written at its offset, and that the last ones of all keys
    exist.
    """
    log.validate()
    records = records_of(log)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), result
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for record in records:
        key, value = batch(record.offset // 3)[1][record.offset % 3]
        assert (record.key, record.value) == (key, value), result
        found[key] = (record.offset, value)
    for key, (offset, value) in expected(log.log_end_offset).items():
        if value is not None:
            assert found[key] == (offset, value), (key, result)
        elif key in found:
            assert found[key] == (offset, None), (key, result)
    for record in records:
        hit = log.offset_for_timestamp(record.timestamp_ms)
        assert hit is not None
        assert hit.offset <= record.offset, result
    for one, following in zip(log.segments, log.segments[1:], strict=False):
        assert one.next_offset == following.base_offset, result
    assert log.producers.producers[7].last_sequence == log.log_end_offset - 1


def test_a_kill_at_any_point_of_a_cleaning_leaves_the_old_or_the_new_records(
    tmp_path: Path,
) -> None:
    jobs = jobs_of(tmp_path)
    killed = 0
    for result in run_jobs(WORK, jobs):
        killed += result.killed
        manager, log = open_all(OsDirectory(result.job.path))
        flushed = [int(ack.split()[1]) for ack in result.acks if ack.startswith("flush")]
        assert log.log_end_offset in (flushed[-1], 2 * BATCHES * 3), result
        names = log.directory.list()
        assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))], result
        assert_is_sound(log, result.job)
        log.update_high_watermark(log.log_end_offset)
        log.roll(NOW_MS)
        cleaner = LogCleaner(manager, SERVER, now_ms=lambda: NOW_MS + 9000)
        cleaner.start()
        while cleaner.clean_once() is not None:
            assert cleaner.uncleanable == {}
        assert cleaner.uncleanable == {}
        assert_is_sound(log, result.job)
        keys = [r.key for r in records_of(log)]
        assert len(keys) == len(set(keys)), result.job
        manager.close(clean=False)
    assert killed == len(jobs)
