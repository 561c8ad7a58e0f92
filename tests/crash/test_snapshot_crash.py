"""SIGKILL at every point of writing, installing and cleaning checkpoints.

Nothing acknowledged is lost, a checkpoint is whole or absent, and the log always begins at 0 or at
a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.disk.os_files import OsDirectory
from quorum.replica.metadata_log import ReplicatedLog
from snapshot import list_snapshots
from tests.crash.harness import Job, points_of, run_jobs
from tests.crash.snapshot_work import FETCHED, open_log, value

WORK = "tests.crash.snapshot_work:"


def all_jobs(work: str, base: Path) -> list[Job]:
    points = points_of(work, Job(base / "dry-run"))
    kinds = {point.rsplit(":", 1)[0] for point in points}
    assert {"append:.part", "fsync:.part", "rename:.checkpoint", "fsync_dir:"} <= kinds, kinds
    modes = {"append": ("", "~", "+")}
    return [
        Job(base / f"{index}-{mode or '-'}", point + mode)
        for index, point in enumerate(points)
        for mode in modes.get(point.split(":")[0], ("", "+"))
    ]


def recovered_values(log: ReplicatedLog) -> list[bytes]:
    """Returns the state of a new listener: the newest checkpoint, then the log."""
    values: list[bytes] = []
    offset, latest = 0, log.latest_snapshot
    if latest is not None:
        values = [v for b in log.open_snapshot(latest).batches() for v in b]
        offset = latest.end_offset
    while offset < log.end_offset:
        batches, offset = log.read_committed(offset, log.end_offset, 1 << 20)
        values.extend(v for b in batches for v in b.values)
    return values


def test_a_checkpoint_is_whole_or_not_there_and_no_record_is_lost(tmp_path: Path) -> None:
    work = WORK + "checkpoint_and_clean"
    for result in run_jobs(work, all_jobs(work, tmp_path)):
        assert result.killed, result.job
        directory = OsDirectory(result.job.path)
        log = open_log(directory)
        assert not [name for name in directory.list() if name.endswith(".part")], result.job
        for snapshot_id in list_snapshots(directory):
            log.open_snapshot(snapshot_id).verify()
        acked = [ack.split() for ack in result.acks]
        appended = max((int(n) for what, n in acked if what == "append"), default=0)
        frozen = max((int(n) for what, n in acked if what == "snapshot"), default=0)
        latest = log.latest_snapshot
        assert frozen <= (latest.end_offset if latest is not None else 0), result.job
        values = recovered_values(log)
        assert values == [value(n) for n in range(len(values))], result.job
        assert len(values) >= 2 * appended, result.job
        earliest = log.earliest_snapshot
        if log.start_offset > 0:
            assert earliest is not None, result.job
            assert earliest.end_offset == log.start_offset, result.job
        log.close()


def test_a_fetched_checkpoint_replaces_the_log_or_does_not(tmp_path: Path) -> None:
    work = WORK + "install_fetched"
    for result in run_jobs(work, all_jobs(work, tmp_path)):
        log = open_log(OsDirectory(result.job.path))
        values = recovered_values(log)
        if log.latest_snapshot == FETCHED:
            assert values in ([b"all of it"], [b"all of it", b"behind it"]), result.job
            assert (log.start_offset, log.last_epoch) == (FETCHED.end_offset, FETCHED.epoch)
        else:
            assert "frozen" not in result.acks, result.job
            assert values == [value(n) for n in range(len(values))], result.job
            assert len(values) == 12 or "append 6" not in result.acks, result.job
        if "behind" in result.acks:
            assert values[-1] == b"behind it", result.job
        log.close()
