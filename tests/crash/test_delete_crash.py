"""SIGKILL at points at which segments leave a log: every second one from the first deletion on, in
a soak all. The next start takes none of them for a missing one.
"""

from __future__ import annotations

import os
from pathlib import Path

from commitlog.disk.os_files import OsDirectory
from tests.commitlog.builders import offsets_of
from tests.crash.delete_work import open_both
from tests.crash.harness import Job, points_of, run_jobs

WORK = "tests.crash.delete_work:delete_and_cut"
KINDS = ("rename", "remove", "create", "fsync_dir", "truncate")


def jobs_of(base: Path) -> list[Job]:
    points = points_of(WORK, Job(base / "dry-run"))
    kinds = {":".join(point.split(":")[:2]) for point in points}
    assert {"rename:.deleted", "remove:.deleted", "remove:.index", "remove:.log"} <= kinds, kinds
    jobs = [
        Job(base / f"{index}", point)
        for index, point in enumerate(points)
        if point.startswith(KINDS)
    ]
    first = next(i for i, job in enumerate(jobs) if job.crash_at == "rename:.deleted:1")
    return jobs if os.environ.get("TIDEMARK_SOAK") else jobs[first::2]


def test_no_deleted_segment_is_taken_for_a_missing_one(tmp_path: Path) -> None:
    for result in run_jobs(WORK, jobs_of(tmp_path)):
        manager, log = open_both(OsDirectory(result.job.path))  # or raises RecordsMissingError
        offsets = offsets_of(log)
        assert offsets == list(range(log.log_start_offset, log.log_end_offset)), result.job
        if "noted" in result.acks and "purged" not in result.acks:
            assert log.log_end_offset == 40, result.job
        manager.close(True)
