"""The remote log manager end to end: a real log, a directory as the tier, the fake metadata
manager.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from commitlog.log.expiration import delete_expired
from commitlog.log.from_tier import rebuild_from_remote
from tests.tiering.builders import DELETING, FINISHED, PARTITION, STARTED
from tests.tiering.world import NOW_MS, World, batch
from tidemark.errors import OffsetOutOfRangeError
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from tiering.tasks.copier import REFUSED_WAIT_MS


def test_rolled_segments_go_to_the_tier_and_the_active_one_stays(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_bytes=1)
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(2)
    expected = world.local_bytes(0, 70)
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED), (20, 39, FINISHED), (40, 59, FINISHED)]
    assert world.log.highest_remote_offset == 59
    assert world.log.local_log_start_offset == 60
    assert world.log.log_start_offset == 0
    assert asyncio.run(world.read_all(0, 60)) + world.local_bytes(60, 70) == expected
    assert world.manager.copy_lag(PARTITION) == (0, 0)
    assert world.manager.metrics.remote_copy_requests == 3
    world.log.validate()


def test_reads_of_the_tier_are_the_bytes_of_the_local_log_whatever_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, settings={"remote_log_reader_chunk_bytes": 1024})
    world.lead()
    for number in range(3):
        world.produce_segment(batches=20 + number, count=3, size=30 + 7 * number)
    asyncio.run(world.once())
    end = world.log.highest_remote_offset + 1
    assert world.log.local_log_start_offset == 0

    async def compare() -> None:
        for offset in range(0, end, 7):
            for max_bytes in (1, 61, 200, 1000, 5000, 1 << 20):
                local = world.log.read(offset, max_bytes)
                remote = await world.manager.read(PARTITION, world.log, offset, max_bytes)
                assert remote == bytes(local.records), (offset, max_bytes)

    asyncio.run(compare())


def test_nothing_above_the_last_stable_offset_is_copied(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce_segment(commit=False)
    world.produce(1, commit=False)
    asyncio.run(world.once())
    assert [state[:2] for state in world.states()] == [(0, 19)]
    assert world.manager.copy_lag(PARTITION).segments == 1
    world.log.update_high_watermark(world.log.log_end_offset)
    asyncio.run(world.once())
    assert [state[:2] for state in world.states()] == [(0, 19), (20, 39)]


def test_local_retention_waits_for_the_copy(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce(1)
    delete_expired(world.log, world.now_ms)
    assert world.log.local_log_start_offset == 0
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == 20


def test_copying_can_be_switched_off_for_a_topic(tmp_path: Path) -> None:
    world = World(tmp_path, remote_log_copy_disable=True)
    world.lead()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    assert world.states() == []


def test_retention_by_size_deletes_from_the_tier_and_moves_the_log_start(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=3000, local_retention_bytes=1)
    world.lead()
    for _ in range(5):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    left = [state[:2] for state in world.states()]
    assert 0 < len(left) < 5
    assert world.log.log_start_offset == left[0][0]
    assert world.tier_logs() == [start for start, _ in left]
    with pytest.raises(OffsetOutOfRangeError):
        asyncio.run(world.manager.read(PARTITION, world.log, 0, 100))


def test_retention_by_time_deletes_what_is_too_old(tmp_path: Path) -> None:
    world = World(tmp_path, retention_ms=1000, local_retention_ms=-2)
    world.lead()
    world.produce_segment()
    world.produce_segment(timestamp_ms=NOW_MS + 5000)
    world.produce(1, timestamp_ms=NOW_MS + 5000)
    asyncio.run(world.once())
    assert len(world.states()) == 2
    world.now_ms += 2000
    asyncio.run(world.once())
    assert [state[:2] for state in world.states()] == [(20, 39)]
    assert world.log.log_start_offset == 20


def test_a_moved_log_start_deletes_what_lies_below_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    world.log.increment_log_start_offset(45)
    asyncio.run(world.once())
    assert [state[:2] for state in world.states()] == [(40, 59)]


def test_the_log_start_moves_before_anything_is_deleted(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.manager._copier.copy(world.manager._hosted[PARTITION]))
    seen = []
    delete = world.storage.delete_log_segment_data
    world.storage.delete_log_segment_data = lambda metadata: (
        seen.append(world.log.log_start_offset),
        delete(metadata),
    )
    asyncio.run(world.once())
    assert seen == [20]


def test_a_follower_learns_what_its_leader_copied_and_drops_it_locally(tmp_path: Path) -> None:
    history = MemoryHistory()
    leader = World(tmp_path, broker_id=1, history=history)
    follower = World(tmp_path, broker_id=2, history=history, local_retention_bytes=1)
    leader.lead()
    follower.follow()
    leader.produce_segment()
    leader.produce(1)
    follower.log.append_as_follower(leader.local_bytes(0, 20), follower.now_ms)
    follower.log.roll(follower.now_ms)
    follower.log.append_as_follower(leader.local_bytes(20, 25), follower.now_ms)
    follower.log.update_high_watermark(25)
    asyncio.run(follower.once())
    assert follower.log.local_log_start_offset == 0
    asyncio.run(leader.once())
    asyncio.run(follower.once())
    assert follower.log.highest_remote_offset == 19
    assert follower.log.local_log_start_offset == 20
    assert asyncio.run(follower.read_all(0, 20)) == leader.local_bytes(0, 20)


def test_a_new_leader_goes_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    history = MemoryHistory()
    first = World(tmp_path, broker_id=1, history=history)
    second = World(tmp_path, broker_id=2, history=history)
    first.lead(0)
    for _ in range(2):
        first.produce_segment()
        start = second.log.log_end_offset
        second.log.append_as_follower(first.local_bytes(start, start + 20), second.now_ms)
        second.log.roll(second.now_ms)
    asyncio.run(first.once())
    second.next = 40
    second.log.update_high_watermark(40)
    second.lead(1)
    second.produce_segment()
    second.produce(1)
    asyncio.run(second.once())
    assert [state[:2] for state in second.states()] == [(0, 19), (20, 39), (40, 59)]
    listed = history.caches[PARTITION].segments()
    assert [one.segment_leader_epochs for one in listed] == [((0, 0),), ((0, 20),), ((1, 40),)]
    assert asyncio.run(second.read_all(0, 60)) == second.local_bytes(0, 60)


def test_a_follower_bootstraps_from_the_tier(tmp_path: Path) -> None:
    history = MemoryHistory()
    leader = World(tmp_path, broker_id=1, history=history, local_retention_bytes=1)
    leader.lead(0)
    leader.produce_segment()
    leader.lead(3)
    leader.produce_segment()
    leader.produce(2)
    asyncio.run(leader.once())
    earliest_local = leader.log.local_log_start_offset
    assert earliest_local == 40
    fresh = World(tmp_path, broker_id=2, history=history)
    fresh.follow()
    state = asyncio.run(fresh.manager.fetch_aux_state(PARTITION, 3, earliest_local))
    assert state.epochs == ((0, 0), (3, 20))
    assert state.start_offset == 40
    rebuild_from_remote(
        fresh.log,
        state.epochs,
        state.producer_snapshot,
        state.start_offset,
        fresh.now_ms,
        log_start_offset=0,
    )
    fresh.log.append_as_follower(leader.local_bytes(40, 50), fresh.now_ms)
    fresh.log.update_high_watermark(50)
    assert fresh.log.epochs.entries() == leader.log.epochs.entries()
    assert asyncio.run(fresh.read_all(0, 40)) == asyncio.run(leader.read_all(0, 40))
    fresh.log.validate()


def test_the_epoch_of_the_first_local_record_is_enough_where_the_tier_is_unambiguous(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, local_retention_bytes=1)
    world.lead(0)
    world.produce_segment()
    world.lead(5)
    world.produce(1)
    asyncio.run(world.once())
    state = asyncio.run(world.manager.fetch_aux_state(PARTITION, 5, 20))
    assert state.epochs == ((0, 0),)
    assert state.start_offset == 20


def test_look_ups_by_time_go_through_the_remote_time_index(tmp_path: Path) -> None:
    world = World(tmp_path, local_retention_bytes=1)
    world.lead()
    for number in range(3):
        for one in range(10):
            stamp = NOW_MS + 1000 * number + 10 * one
            world.produce(1, timestamp_ms=stamp)
        world.log.roll(world.now_ms)
    world.produce(1, timestamp_ms=NOW_MS + 9000)
    asyncio.run(world.once())
    assert world.log.local_log_start_offset == 150

    async def look(timestamp_ms: int) -> tuple[int, int] | None:
        found = await world.manager.offset_for_timestamp(PARTITION, world.log, timestamp_ms)
        return found and (found.timestamp_ms - NOW_MS, found.offset)

    assert asyncio.run(look(0)) == (0, 0)
    assert asyncio.run(look(NOW_MS + 25)) == (30, 15)
    assert asyncio.run(look(NOW_MS + 91)) == (1000, 50)
    assert asyncio.run(look(NOW_MS + 2090)) == (2090, 145)
    assert asyncio.run(look(NOW_MS + 2091)) is None
    world.log.increment_log_start_offset(17)
    assert asyncio.run(look(0)) == (30, 17)


def test_topic_deletion_marks_the_partition_and_the_remover_empties_the_tier(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())

    async def delete() -> None:
        await world.manager.stop_partitions([PARTITION], delete_remote=True)
        assert world.manager.partitions == frozenset()
        assert len(world.tier_logs()) == 2  # the remover's work, at its interval
        assert await world.manager._remover.remove_once()

    world.leads_metadata = True
    asyncio.run(delete())
    assert world.states() == []
    assert world.tier_logs() == []


def test_a_partition_that_moves_away_leaves_its_tier_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    asyncio.run(world.manager.stop_partitions([PARTITION], delete_remote=False))
    assert len(world.states()) == 1
    assert world.tier_logs() == [0]


# Failures.


class FailingMetadata(MemoryRemoteLogMetadataManager):
    """A metadata manager that refuses chosen writes, like a metadata topic without a leader."""

    def __init__(self) -> None:
        super().__init__()
        self.refuse: set[RemoteLogSegmentState] = set()

    async def add_remote_log_segment_metadata(self, metadata) -> None:  # type: ignore[no-untyped-def]
        if STARTED in self.refuse:
            raise RetriableRemoteStorageError("no leader")
        await super().add_remote_log_segment_metadata(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        if update.state in self.refuse:
            raise RetriableRemoteStorageError("no leader")
        await super().update_remote_log_segment_metadata(update)


def failing_world(path: Path, **topic: object) -> tuple[World, FailingMetadata]:
    metadata = FailingMetadata()
    world = World(path, metadata=metadata, local_retention_bytes=1, **topic)
    world.lead()
    world.produce_segment()
    world.produce(1)
    return world, metadata


def test_when_the_start_can_not_be_recorded_nothing_is_uploaded(tmp_path: Path) -> None:
    world, metadata = failing_world(tmp_path)
    metadata.refuse = {STARTED}
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    assert world.states() == [] and world.tier_logs() == []
    metadata.refuse = set()
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED)]


def test_when_the_end_can_not_be_recorded_the_same_copy_is_finished_later(tmp_path: Path) -> None:
    world, metadata = failing_world(tmp_path)
    metadata.refuse = {FINISHED}
    for _ in range(3):
        with pytest.raises(RetriableRemoteStorageError):
            asyncio.run(world.once())
    assert world.states() == [(0, 19, STARTED)]
    assert world.log.local_log_start_offset == 0
    metadata.refuse = set()
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED)]
    assert len(world.tier_logs()) == 1
    assert world.log.local_log_start_offset == 20


def test_a_passing_failure_of_the_upload_is_taken_up_again_with_the_same_id(tmp_path: Path) -> None:
    world, _ = failing_world(tmp_path)
    copy = world.storage.copy_log_segment_data

    def fail(metadata, data):  # type: ignore[no-untyped-def]
        raise RetriableRemoteStorageError("503 SlowDown")

    world.storage.copy_log_segment_data = fail
    for _ in range(2):
        with pytest.raises(RetriableRemoteStorageError):
            asyncio.run(world.once())
    assert world.states() == [(0, 19, STARTED)]
    assert world.manager.metrics.remote_copy_errors == 2
    world.storage.copy_log_segment_data = copy
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED)]


def test_a_lasting_failure_of_the_upload_deletes_what_went_up(tmp_path: Path) -> None:
    world, _ = failing_world(tmp_path)
    copy = world.storage.copy_log_segment_data

    def fail(metadata, data):  # type: ignore[no-untyped-def]
        copy(metadata, data)
        raise RemoteStorageError("403 AccessDenied")

    world.storage.copy_log_segment_data = fail
    with pytest.raises(RemoteStorageError):
        asyncio.run(world.once())
    assert world.states() == [] and world.tier_logs() == []
    assert world.manager.metrics.remote_copy_refusals == 1
    world.now_ms += REFUSED_WAIT_MS
    world.storage.copy_log_segment_data = copy
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED)]


def test_custom_metadata_above_its_limit_is_refused_and_within_it_comes_back(
    tmp_path: Path,
) -> None:
    world, _ = failing_world(tmp_path)
    copy = world.storage.copy_log_segment_data
    world.storage.copy_log_segment_data = lambda *args: (copy(*args), b"x" * 129)[1]
    with pytest.raises(RemoteStorageError, match="custom"):
        asyncio.run(world.once())
    assert world.states() == [] and world.tier_logs() == []
    world.now_ms += REFUSED_WAIT_MS
    world.storage.copy_log_segment_data = lambda *args: (copy(*args), b"where it lies")[1]
    asyncio.run(world.once())
    (one,) = world.metadata.history.caches[PARTITION].segments()
    assert one.custom_metadata == b"where it lies"


def test_copies_that_an_earlier_process_began_are_deleted(tmp_path: Path) -> None:
    world, metadata = failing_world(tmp_path)
    metadata.refuse = {FINISHED}
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    metadata.refuse = set()
    world.manager = world.new_manager()  # a restart of the process
    world.lead(1)
    asyncio.run(world.once())
    assert world.states() == [(0, 19, FINISHED)]
    assert len(world.tier_logs()) == 1


def test_a_deletion_that_stopped_half_way_is_done_again(tmp_path: Path) -> None:
    world, metadata = failing_world(tmp_path)
    asyncio.run(world.once())
    world.log.config = world.topic_config
    metadata.refuse = {RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}
    world.log.increment_log_start_offset(20)
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    assert world.states() == [(0, 19, DELETING)]
    metadata.refuse = set()
    asyncio.run(world.once())
    assert world.states() == [] and world.tier_logs() == []


def test_a_leader_that_is_deposed_in_the_middle_finishes_its_copy_and_begins_no_other(
    tmp_path: Path,
) -> None:
    one: dict[str, object] = {"remote_log_manager_copier_segments_per_partition": 1}
    world = World(tmp_path, settings=one)
    world.lead()
    world.produce_segment()
    world.produce_segment()
    world.produce(1)
    copy = world.storage.copy_log_segment_data

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def depose(metadata, data):  # type: ignore[no-untyped-def]
            done = asyncio.run_coroutine_threadsafe(deposed(), loop)
            done.result(10)
            return copy(metadata, data)

        async def deposed() -> None:
            world.follow()

        world.storage.copy_log_segment_data = depose
        hosted = world.manager._hosted[PARTITION]
        await world.manager._copier.copy(hosted)

    asyncio.run(scenario())
    assert world.states() == [(0, 19, FINISHED)]


class SignallingMetadata(MemoryRemoteLogMetadataManager):
    """A metadata manager that signals when a copy was finished."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = asyncio.Semaphore(0)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        await super().update_remote_log_segment_metadata(update)
        self.finished.release()


def test_the_tasks_run_by_themselves_and_a_roll_wakes_them(tmp_path: Path) -> None:
    metadata = SignallingMetadata()
    hour = {"remote_log_manager_task_interval_ms": 3_600_000}
    world = World(tmp_path, settings=hour, metadata=metadata)
    world.produce_segment()
    world.produce(1)

    async def scenario() -> None:
        async with asyncio.timeout(20):
            world.lead()
            await world.manager.start()
            await metadata.finished.acquire()
            world.produce_segment()
            world.manager.segment_copyable(PARTITION)
            await metadata.finished.acquire()
            await world.manager.stop()

    asyncio.run(scenario())
    assert [state[:2] for state in world.states()] == [(0, 19), (20, 44)]


def test_records_below_an_epoch_that_was_cut_off_are_never_read_from_an_old_copy(
    tmp_path: Path,
) -> None:
    """KIP-405 scenario 3: the tier has 0..19 of epoch 0; this log has 0..9 of it, then epoch 1."""
    history = MemoryHistory()
    lost = World(tmp_path, broker_id=1, history=history)
    lost.lead(0)
    lost.produce_segment()
    lost.produce(1)
    asyncio.run(lost.once())
    survivor = World(tmp_path, broker_id=2, history=history)
    survivor.log.append_as_follower(lost.local_bytes(0, 20)[: len(batch(0)) * 2], survivor.now_ms)
    assert survivor.log.log_end_offset == 10
    survivor.next = 10
    survivor.lead(1)
    survivor.produce_segment(size=50)
    survivor.produce(1)
    assert (
        asyncio.run(survivor.read_all(0, 10, 1 << 20))
        == survivor.local_bytes(0, 10)[: len(batch(0)) * 2]
    )
    with pytest.raises(OffsetOutOfRangeError):
        asyncio.run(survivor.manager.read(PARTITION, survivor.log, 10, 1000))
    asyncio.run(survivor.once())
    end = survivor.log.highest_remote_offset + 1
    assert asyncio.run(survivor.read_all(0, end)) == survivor.local_bytes(0, end)
