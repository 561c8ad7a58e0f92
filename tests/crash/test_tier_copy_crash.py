"""SIGKILL at every point of a tier copy, of the local deletion after it, and of remote expiration.

Afterwards every record that was not expired is read, from the tier or the local log, and equals the
model. Nothing unfinished is ever read. One more pass leaves everything copied, no dangling copy,
and no file without a finished segment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from commitlog.disk.os_files import OsDirectory
from tests.crash.harness import Job, points_of, run_jobs
from tests.crash.tier_work import END_OFFSET, Node
from tests.tiering.builders import FINISHED, PARTITION
from tidemark.records import decode_batch, iter_batches

WORK = "tests.crash.tier_work:"
EXPECTED = [b"%040d" % number for number in range(END_OFFSET)]


def all_jobs(work: str, base: Path, first: str) -> list[Job]:
    """Returns a job for each point from `first` on: before it, and in the middle of an append.

    Dying right after a point equals dying before the next one.
    """
    points = points_of(work, Job(base / "dry-run"))
    points = points[points.index(first) :]
    assert len(points) > 10
    return [
        Job(base / f"{index}{mode}", point + mode)
        for index, point in enumerate(points)
        for mode in (("", "~") if point.startswith("append") else ("",))
    ]


async def read_all(node: Node) -> dict[int, bytes]:
    """Returns all records by offset from the log start on, read from the tier or the local log."""
    found: dict[int, bytes] = {}
    log, offset = node.log, node.log.log_start_offset
    while offset < log.log_end_offset:
        if offset >= log.local_log_start_offset:
            records = bytes(log.read(offset, 300).records)
        else:
            records = await node.manager.read(PARTITION, log, offset, 300)
        for position, _ in iter_batches(records):
            for record in decode_batch(records, position):
                found[record.offset] = bytes(record.value or b"")
                offset = record.offset + 1
    return found


def check(node: Node, found: dict[int, bytes]) -> None:
    start = node.log.log_start_offset
    assert found == {n: EXPECTED[n] for n in range(min(found), END_OFFSET)}
    assert min(found) <= start
    node.log.validate()


def tier_logs(node: Node) -> list[str]:
    return [name for name in node.storage.list_files(PARTITION) if ".log" in name]


async def recover_and_check(path: Path, retention_bytes: int) -> None:
    node = Node(OsDirectory(path), retention_bytes)
    try:
        node.lead(1)
        await node.manager._expirer.expire(node.manager._hosted[PARTITION])
        check(node, await read_all(node))
        await node.once()
        check(node, await read_all(node))
        segments = node.history.caches[PARTITION].segments()
        assert all(segment.state is FINISHED for segment in segments)
        assert len(tier_logs(node)) == len(segments)
        assert node.manager.copy_lag(PARTITION) == (0, 0)
    finally:
        await node.close()


async def check_at_once(path: Path, retention_bytes: int) -> None:
    """Reads as a follower would, before any task of the new process ran."""
    node = Node(OsDirectory(path), retention_bytes)
    try:
        node.log.update_high_watermark(node.log.log_end_offset)
        node.manager.on_leadership_change({}, {PARTITION: node.log})
        check(node, await read_all(node))
    finally:
        await node.close()


def test_killed_at_any_point_of_a_copy_nothing_is_lost_and_nothing_dangles(tmp_path: Path) -> None:
    work = WORK + "copy_to_tier"
    results = run_jobs(work, all_jobs(work, tmp_path, "append:.meta:1"))  # the first STARTED
    assert all(result.killed for result in results)
    for result in results:
        try:
            asyncio.run(check_at_once(result.job.path, -1))
            asyncio.run(recover_and_check(result.job.path, -1))
        except Exception as error:
            pytest.fail(f"killed at {result.job.crash_at}: {error!r}")


def test_killed_at_any_point_of_expiration_what_is_left_is_whole(tmp_path: Path) -> None:
    work = WORK + "expire_from_tier"
    results = run_jobs(work, all_jobs(work, tmp_path, "append:.meta:5"))  # DELETE_STARTED
    assert all(result.killed for result in results)
    for result in results:
        try:
            asyncio.run(recover_and_check(result.job.path, 600))
        except Exception as error:
            pytest.fail(f"killed at {result.job.crash_at}: {error!r}")
