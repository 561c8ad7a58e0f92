"""SIGKILL at every file operation of a log's move to another directory (soak: and back).

Afterwards exactly one directory has the log, with everything acknowledged, and the move is
completed.
"""

from __future__ import annotations

import os
from pathlib import Path

from commitlog.disk.names import FUTURE_SUFFIX
from commitlog.disk.os_files import OsDirectory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from tests.commitlog.builders import records_of
from tests.crash.harness import Job, JobResult, points_of, run_jobs
from tests.crash.move_work import NOW_MS, TOPIC_PARTITION, batch, open_all
from tidemark.records import decode_batch

MOVES = 2 if os.environ.get("TIDEMARK_SOAK") else 1
WORK = "tests.crash.move_work:append_and_move"


def jobs_of(base: Path) -> list[Job]:
    """Returns a job per operation from the first move on; also half of each write of a copy."""
    points = points_of(WORK, Job(base / "dry-run", arguments={"moves": MOVES}))
    first = next(i for i, point in enumerate(points) if ".copy" in point)
    kinds = {":".join(point.split(":")[:2]) for point in points[first:]}
    moved = f"rename:{TOPIC_PARTITION}"
    assert {"create:.copy", "fsync:.copy", "rename:.log", moved, "fsync_dir:"} <= kinds
    assert any("-delete" in kind for kind in kinds)
    return [
        Job(base / f"{index}-{mode or '-'}", point + mode, {"moves": MOVES})
        for index, point in enumerate(points)
        if index >= first - 4
        for mode in (("", "~") if point.startswith("append:.copy") else ("",))
    ]


def promised(result: JobResult) -> tuple[int, int]:
    """Returns (log start, end) as acknowledged last; a cut is acknowledged before it is made."""
    start = end = 0
    for ack in result.acks:
        what, _, offset = ack.partition(" ")
        if what in ("end", "cut"):
            end = int(offset)
        elif what == "start":
            start = int(offset)
    return start, end


def assert_is_sound(manager: LogManager, log: Log, result: JobResult) -> None:
    log.validate()
    names = [name for home in manager.directories for name in home.list()]
    assert names.count(str(TOPIC_PARTITION)) == 1, (names, result)
    futures = [name for name in names if name.endswith(FUTURE_SUFFIX)]
    assert len(futures) == len(manager.moves.all()), (names, result)
    start, end = promised(result)
    records = records_of(log)
    assert log.log_start_offset >= start, result
    assert log.log_end_offset >= end, result
    assert [r.offset for r in records] == list(range(log.log_start_offset, log.log_end_offset))
    for record in records:
        (wanted,) = decode_batch(batch(record.offset))
        assert (record.key, record.value) == (wanted.key, wanted.value), result
    assert log.producers.producers[7].last_sequence == log.log_end_offset - 1, result


def test_a_kill_at_any_point_of_a_move_leaves_one_whole_log(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path)
    killed = resumed = 0
    for result in run_jobs(WORK, jobs):
        killed += result.killed
        manager, log = open_all(OsDirectory(result.job.path))
        assert_is_sound(manager, log, result)
        before = records_of(log)
        for future in manager.moves.all():
            resumed += 1
            home = manager.moves.destination_of(TOPIC_PARTITION)
            manager.moves.swap(future.topic_partition)
            assert manager.directory_of(TOPIC_PARTITION) is home
        assert records_of(log) == before, result
        manager.purge_deleted(NOW_MS)
        manager.close(clean=False)
        again, found = open_all(OsDirectory(result.job.path))
        assert_is_sound(again, found, result)
        again.close(clean=False)
    assert killed == len(jobs)
    assert resumed > len(jobs) // 4
