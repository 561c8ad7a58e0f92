"""Several segments of a partition are uploaded at once, but finished in their order.

A failure in the middle holds back the later ones. Nothing local goes before the segments below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests import virtual_time
from tests.tiering.builders import FINISHED, PARTITION, STARTED
from tests.tiering.tasks.test_remover import Inline
from tests.tiering.world import World
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiering.tasks.copier import PASS_S, REFUSED_WAIT_MS
from tiering.tasks.partition import SegmentFiles
from tiering.tasks.quota import RateQuota

SETTLED_S = 1.0


class Gated:
    """A leader with four segments to copy, whose uploads wait until the test lets them go on."""

    def __init__(self, path: Path, at_once: int = 3) -> None:
        settings: dict[str, object] = {
            "remote_log_manager_copier_segments_per_partition": at_once,
        }
        self.world = world = World(path, settings=settings, local_retention_bytes=1)
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Future[Exception | None]] = {}
        world.manager._uploads.upload = self.upload  # type: ignore[method-assign]
        world.manager._deleter._pool = Inline()  # type: ignore[assignment]
        world.lead()
        for _ in range(4):
            world.produce_segment()
        world.produce(1)

    async def upload(self, metadata: RemoteLogSegmentMetadata, files: SegmentFiles) -> bytes | None:
        self.begun.append(metadata.start_offset)
        error = await self.gate(metadata.start_offset)
        if error is not None:
            raise error
        with files.open() as data:
            return self.world.storage.copy_log_segment_data(metadata, data)

    def gate(self, start: int) -> asyncio.Future[Exception | None]:
        loop = asyncio.get_running_loop()
        return self.gates.setdefault(start, loop.create_future())

    async def let(self, *starts: int, error: Exception | None = None) -> None:
        for start in starts:
            self.gate(start).set_result(error)
        await asyncio.sleep(SETTLED_S)

    async def passing(self) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.world.once())
        await asyncio.sleep(SETTLED_S)
        return task

    def finished(self) -> list[int]:
        return [start for start, _, state in self.world.states() if state is FINISHED]

    def recorded(self) -> list[int]:
        """Returns the segments in the order in which their ends were recorded."""
        records = self.world.metadata.history.records
        cache = self.world.metadata.history.caches[PARTITION]
        return [
            cache.get(record.remote_log_segment_id.id).start_offset
            for record in records
            if isinstance(record, RemoteLogSegmentMetadataUpdate) and record.state is FINISHED
        ]


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    virtual_time.run(main())


def test_segments_are_uploaded_at_once_and_finished_in_their_order(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    world = gated.world

    async def scenario() -> None:
        passing = await gated.passing()
        assert gated.begun == [0, 20, 40]
        await gated.let(40, 20)
        assert world.tier_logs() == [20, 40] and gated.finished() == []
        assert world.log.highest_remote_offset == -1
        await gated.let(0)
        assert gated.begun == [0, 20, 40, 60] and gated.recorded() == [0, 20, 40]
        assert world.log.highest_remote_offset == 59
        await gated.let(60)
        await passing

    play(scenario)
    assert gated.recorded() == world.tier_logs() == [0, 20, 40, 60]
    assert world.log.local_log_start_offset == 80


def test_what_comes_after_a_failure_in_the_middle_waits_and_is_not_uploaded_again(
    tmp_path: Path,
) -> None:
    gated = Gated(tmp_path)
    world = gated.world

    async def scenario() -> None:
        passing = await gated.passing()
        await gated.let(40)
        await gated.let(20, error=RetriableRemoteStorageError("down"))
        await gated.let(0)
        with pytest.raises(RetriableRemoteStorageError, match="down"):
            await passing
        assert gated.finished() == [0] and world.log.highest_remote_offset == 19
        assert world.log.local_log_start_offset == 20
        gated.gates.clear()
        ids = {s.start_offset: s.id for s in world.metadata.list_remote_log_segments(PARTITION)}
        passing = await gated.passing()
        assert gated.begun == [0, 20, 40, 20, 60]
        await gated.let(20, 60)
        await passing
        again = {s.start_offset: s.id for s in world.metadata.list_remote_log_segments(PARTITION)}
        assert {start: again[start] for start in ids} == ids

    play(scenario)
    assert gated.finished() == gated.recorded() == world.tier_logs() == [0, 20, 40, 60]
    assert world.log.local_log_start_offset == 80
    assert not world.manager._hosted[PARTITION].in_flight


def test_a_lasting_failure_in_the_middle_leaves_no_objects_that_nobody_owns(
    tmp_path: Path,
) -> None:
    gated = Gated(tmp_path)
    world = gated.world

    async def scenario() -> None:
        passing = await gated.passing()
        await gated.let(40)
        await gated.let(20, error=RemoteStorageError("access denied"))
        await gated.let(0)
        with pytest.raises(RemoteStorageError, match="access denied"):
            await passing
        assert world.states() == [(0, 19, FINISHED), (40, 59, STARTED)]
        assert world.log.local_log_start_offset == 20
        gated.gates.clear()
        world.now_ms += REFUSED_WAIT_MS
        passing = await gated.passing()
        await gated.let(20, 60)
        await passing

    play(scenario)
    assert gated.finished() == gated.recorded() == world.tier_logs() == [0, 20, 40, 60]


def test_a_leader_that_is_deposed_finishes_what_is_in_flight_and_begins_no_other(
    tmp_path: Path,
) -> None:
    gated = Gated(tmp_path, at_once=2)
    world = gated.world

    async def scenario() -> None:
        hosted = world.manager._hosted[PARTITION]
        copying = asyncio.ensure_future(world.manager._copier.copy(hosted))
        await asyncio.sleep(SETTLED_S)
        world.follow()
        await gated.let(20)
        assert gated.finished() == []
        await gated.let(0)
        await copying

    play(scenario)
    assert gated.begun == gated.recorded() == world.tier_logs() == [0, 20]


def test_copies_in_flight_of_a_partition_that_leaves_are_deleted_when_it_returns(
    tmp_path: Path,
) -> None:
    gated = Gated(tmp_path)
    world = gated.world

    async def scenario() -> None:
        passing = await gated.passing()
        await gated.let(20)
        passing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await passing
        assert world.tier_logs() == [20] and gated.finished() == []
        await world.manager.stop_partitions([PARTITION], delete_remote=False)
        gated.gates.clear()
        world.lead(1)
        for start in (0, 20, 40, 60):
            gated.gate(start).set_result(None)
        await world.once()
        world.manager._deleter.close()

    play(scenario)
    assert gated.finished() == world.tier_logs() == [0, 20, 40, 60]
    assert len(world.states()) == 4


def test_one_at_a_time_is_a_setting(tmp_path: Path) -> None:
    gated = Gated(tmp_path, at_once=1)

    async def scenario() -> None:
        passing = await gated.passing()
        assert gated.begun == [0]
        await gated.let(0)
        assert gated.begun == [0, 20] and gated.finished() == [0]
        await gated.let(20, 40, 60)
        await passing

    play(scenario)
    assert gated.finished() == [0, 20, 40, 60]


def test_a_long_backlog_does_not_hold_back_retention(tmp_path: Path) -> None:
    gated = Gated(tmp_path, at_once=1)
    world = gated.world

    async def scenario() -> None:
        passing = await gated.passing()
        await asyncio.sleep(PASS_S)
        await gated.let(0)
        assert passing.done() and gated.begun == [0]
        assert world.log.local_log_start_offset == 20
        assert world.manager._hosted[PARTITION].nudged.is_set(), "the next pass begins at once"
        passing = await gated.passing()
        await gated.let(20, 40, 60)
        assert passing.done() and gated.recorded() == [0, 20, 40, 60]

    play(scenario)


def test_copies_that_wait_for_their_quota_do_not_hold_back_retention(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    world = gated.world
    quota = world.manager._copier._quota = RateQuota(1, 11, 1)

    async def scenario() -> None:
        passing = await gated.passing()
        await gated.let(0)
        world.log.increment_log_start_offset(20)
        waits_s = quota.throttle_s(asyncio.get_running_loop().time())
        await asyncio.sleep(PASS_S)
        assert waits_s > PASS_S and passing.done()
        assert gated.begun == [0] and world.tier_logs() == [], "it lay below the log start"
        assert quota.throttle_time.count == 1
        passing = await gated.passing()
        await asyncio.sleep(waits_s - PASS_S - 3 * SETTLED_S)
        assert gated.begun == [0], "what was not begun is not charged, nor forgiven"
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)

    play(scenario)


def test_records_deleted_during_a_pass_are_not_copied_and_hold_back_nothing(tmp_path: Path) -> None:
    gated = Gated(tmp_path, at_once=1)
    world = gated.world

    async def scenario() -> None:
        world.epoch = 1
        world.log.epochs.assign(1, world.log.log_end_offset)
        passing = await gated.passing()
        world.log.increment_log_start_offset(45)
        await gated.let(0, 40, 60)
        await passing

    play(scenario)
    assert gated.begun == [0, 40, 60] and world.tier_logs() == [40, 60]
    assert world.manager.copy_lag(PARTITION) == (0, 0)
