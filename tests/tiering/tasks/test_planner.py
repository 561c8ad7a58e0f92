"""KIP-405's tables: a new leader's copies, a reader's segments, and the reach of retention."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.tiering.builders import DELETING, PARTITION, STARTED, epochs, segment, tier_of
from tiering.errors import RemoteResourceNotFoundError, RemoteStorageError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    is_legal_transition,
)
from tiering.tasks.planner import (
    LocalSegment,
    Retention,
    coverage,
    dangling_copies,
    epochs_up_to,
    first_available_offset,
    highest_copied_offset,
    plan_expiration,
    segment_leader_epochs,
    segments_to_copy,
    unfinished_since,
)


def cache_of(*segments: RemoteLogSegmentMetadata) -> RemoteLogMetadataCache:
    """Returns a cache in which these segments were copied, in this order."""
    cache = RemoteLogMetadataCache()
    for one in segments:
        begin(cache, one)
        change(cache, one, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    return cache


def begin(cache: RemoteLogMetadataCache, one: RemoteLogSegmentMetadata) -> None:
    import dataclasses

    cache.add(dataclasses.replace(one, state=STARTED))
    cache.validate()


def change(
    cache: RemoteLogMetadataCache, one: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> None:
    cache.update(one.update(state, 9, 1))
    cache.validate()


def found(cache: RemoteLogMetadataCache, epoch: int, offset: int) -> int | None:
    """Returns the number of the segment for a read of (epoch, offset)."""
    segment = cache.segment_for(epoch, offset)
    return None if segment is None else segment.id.int


def local(*bounds: tuple[int, int]) -> list[LocalSegment]:
    return [LocalSegment(base, end, 10 * (end - base), 1000) for base, end in bounds]


# Follower to leader.


def test_follower_to_leader_copies_from_the_highest_offset_of_its_own_lineage() -> None:
    cache = cache_of(segment(0, 2, 1, e0=0), segment(3, 4, 2, e1=3))
    lineage = epochs(e0=0, e1=3, e2=6, e3=7)
    copied = highest_copied_offset(lineage, 8, cache.highest_offset_for_epoch)
    assert copied == 4
    # Broker B rolled at other offsets than broker A: 4-6 holds offset 5, so it is copied as a
    # whole.
    wanted = segments_to_copy(local((0, 4), (4, 7), (7, 8)), copied, 8, 0)
    assert [(one.base_offset, one.next_offset) for one in wanted] == [(4, 7)]
    assert segment_leader_epochs(lineage, 4, 7) == epochs(e1=4, e2=6)


def test_a_leader_without_anything_in_the_tier_copies_from_the_start() -> None:
    copied = highest_copied_offset(
        epochs(e0=0), 9, RemoteLogMetadataCache().highest_offset_for_epoch
    )
    assert copied == -1
    wanted = segments_to_copy(local((0, 4), (4, 7), (7, 9)), copied, 9, 0)
    assert [one.base_offset for one in wanted] == [0, 4]


def test_only_rolled_segments_at_or_below_the_last_stable_offset_are_copied() -> None:
    segments = local((0, 4), (4, 7), (7, 9))
    assert [one.base_offset for one in segments_to_copy(segments, -1, 6, 0)] == [0]
    assert [one.base_offset for one in segments_to_copy(segments, -1, 7, 0)] == [0, 4]
    assert segments_to_copy(segments, -1, 3, 0) == []
    assert [one.base_offset for one in segments_to_copy(segments, -1, 9, 4)] == [4]
    assert segments_to_copy([], -1, 0, 0) == []


def test_the_tier_may_hold_more_of_an_epoch_than_this_lineage_kept() -> None:
    cache = cache_of(segment(0, 3, 1, e0=0))
    copied = highest_copied_offset(epochs(e0=0, e1=2), 5, cache.highest_offset_for_epoch)
    assert copied == 1


# Scenario 3: multiple hard failures.


def test_scenario_3_readers_get_the_records_of_the_lineage_that_survived() -> None:
    cache = cache_of(segment(0, 1, 1, e0=0), segment(1, 1, 2, e1=1))
    lineage = epochs(e0=0, e1=1)
    assert found(cache, 0, 0) == 1
    assert found(cache, 1, 1) == 2
    assert found(cache, 0, 2) is None
    # Offset 1 of seg-0-1 is a record that this lineage lost: a read from offset 0 ends before it.
    assert coverage(cache.segments()[0], lineage, 3) == range(1)
    assert coverage(segment(1, 1, 2, e1=1), lineage, 3) == range(1, 2)


# Scenario 4: unclean leader election including truncation.


def test_scenario_4_an_offset_is_served_by_its_epoch_not_by_the_older_copy() -> None:
    cache = cache_of(segment(0, 2, 1, e0=0), segment(0, 1, 2, e0=0, e1=1))
    lineage = epochs(e0=0, e1=1)
    assert found(cache, 0, 0) in (1, 2)
    assert found(cache, 1, 1) == 2
    assert found(cache, 1, 2) is None
    assert coverage(cache.segments()[0], lineage, 3) == range(1)
    both = next(one for one in cache.segments() if one.id.int == 2)
    assert coverage(both, lineage, 3) == range(2)


# Scenario 5: log divergence in remote storage.


@pytest.fixture
def diverged() -> RemoteLogMetadataCache:
    return cache_of(
        segment(0, 3, 1, e0=0), segment(0, 3, 2, e0=0, e1=2), segment(4, 5, 3, e0=4, e2=5)
    )


def test_scenario_5_the_lineage_without_epoch_1_reads_its_own_records(
    diverged: RemoteLogMetadataCache,
) -> None:
    lineage = epochs(e0=0, e2=5)
    assert found(diverged, 0, 2) == 1
    assert found(diverged, 0, 4) == 3
    assert found(diverged, 2, 5) == 3
    assert found(diverged, 1, 3) == 2  # of the other lineage: no log here has epoch 1 at it
    assert highest_copied_offset(lineage, 7, diverged.highest_offset_for_epoch) == 5
    inside = {one.id.int: coverage(one, lineage, 7) for one in diverged.segments()}
    assert inside == {1: range(4), 2: range(2), 3: range(4, 6)}


def test_a_segment_that_holds_the_log_start_belongs_to_the_lineage_that_is_left_of_it() -> None:
    one = segment(0, 19, 1, e0=0, e1=10)
    assert coverage(one, epochs(e1=17, e2=30), 50) == range(17, 20)
    assert not coverage(one, epochs(e2=5), 50)
    assert not coverage(segment(0, 19, 1, e0=0, e4=18), epochs(e1=17, e2=30), 50)
    assert not coverage(one, epochs(e1=20), 50)
    assert not coverage(one, (), 50)


def test_scenario_5_the_lineage_with_epoch_1_does_not_take_epoch_0_too_far(
    diverged: RemoteLogMetadataCache,
) -> None:
    lineage = epochs(e0=0, e1=2)
    assert found(diverged, 1, 2) == 2
    inside = {one.id.int: coverage(one, lineage, 5) for one in diverged.segments()}
    assert inside == {1: range(2), 2: range(4), 3: range(4, 4)}


def test_a_read_may_go_on_over_epochs_that_agree() -> None:
    one = segment(0, 9, 1, e0=0, e2=4, e5=8)
    assert coverage(one, epochs(e0=0, e2=4, e5=8), 20) == range(10)
    assert coverage(one, epochs(e0=0, e2=4, e5=8, e6=15), 20) == range(10)
    assert coverage(one, epochs(e0=0, e2=4, e5=8), 7) == range(7)
    assert coverage(one, epochs(e0=0, e2=4, e6=6), 20) == range(6)
    assert coverage(one, epochs(e0=0, e2=4, e3=8), 20) == range(8)
    assert coverage(one, epochs(e0=0, e2=5, e5=8), 20) == range(4)
    assert coverage(one, epochs(e7=0), 20) == range(0)


# The cache.


def test_a_later_copy_of_the_same_offsets_replaces_the_older_one_until_it_goes() -> None:
    older, newer = segment(0, 9, 1), segment(0, 9, 2)
    cache = cache_of(older, newer)
    assert found(cache, 0, 5) == 1  # the same records: the first copy stays
    change(cache, older, DELETING)
    assert found(cache, 0, 5) == 2
    change(cache, newer, DELETING)
    assert found(cache, 0, 5) is None
    assert cache.highest_offset_for_epoch(0) is None
    change(cache, older, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    change(cache, newer, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    assert len(cache) == 0


def test_a_longer_copy_hides_the_shorter_ones_and_overlaps_stay_readable() -> None:
    cache = cache_of(segment(0, 4, 1), segment(5, 9, 2), segment(0, 9, 3), segment(8, 12, 4))
    assert [found(cache, 0, offset) for offset in (0, 7, 9, 12, 13)] == [3, 3, 4, 4, None]
    change(cache, segment(0, 9, 3), DELETING)
    assert [found(cache, 0, offset) for offset in (0, 7, 9, 12)] == [1, 2, 4, 4]


def test_an_unfinished_copy_is_listed_but_neither_read_nor_counted() -> None:
    cache = RemoteLogMetadataCache()
    begin(cache, segment(0, 9, 1))
    assert found(cache, 0, 5) is None
    assert cache.highest_offset_for_epoch(0) is None
    assert cache.size_bytes(0) == 0
    assert [one.state for one in cache.segments()] == [STARTED]


def test_illegal_transitions_and_unknown_segments_are_refused() -> None:
    cache = cache_of(segment(0, 9, 1))
    with pytest.raises(RemoteStorageError):
        begin(cache, segment(0, 9, 1))
    with pytest.raises(RemoteStorageError):
        change(cache, segment(0, 9, 1), RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    change(cache, segment(0, 9, 1), RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    with pytest.raises(RemoteResourceNotFoundError):
        change(cache, segment(0, 9, 7), DELETING)
    with pytest.raises(RemoteStorageError):
        cache.add(segment(10, 19, 2))


def test_the_table_of_transitions_is_kafkas() -> None:
    states = list(RemoteLogSegmentState)
    legal = {
        (source, target)
        for source in [None, *states]
        for target in states
        if is_legal_transition(source, target) and source is not target
    }
    started, finished, deleting, deleted = states
    assert legal == {
        (None, started),
        (started, finished),
        (started, deleting),
        (finished, deleting),
        (deleting, deleted),
    }
    assert [state.value for state in RemotePartitionDeleteState] == [0, 1, 2]


# Retention.


def retention(**changes: int) -> Retention:
    values = {
        "retention_ms": -1,
        "retention_bytes": -1,
        "log_start_offset": 0,
        "log_end_offset": 100,
        "local_only_bytes": 0,
    }
    return Retention(**{**values, **changes})


TEN = [
    segment(start, start + 9, start + 1, e0=0 if start == 0 else start)
    for start in range(0, 50, 10)
]
LINEAGE = epochs(e0=0)


def plan(limits: Retention, now_ms: int = 1_500, segments=TEN, lineage=LINEAGE):  # type: ignore[no-untyped-def]
    found = plan_expiration(tier_of(segments), lineage, limits, now_ms)
    return [one.id.int for one in found.delete], found.log_start_offset


def test_without_limits_nothing_expires() -> None:
    assert plan(retention()) == ([], None)


def test_retention_by_size_counts_the_tier_and_what_is_only_local() -> None:
    assert plan(retention(retention_bytes=500)) == ([], None)
    assert plan(retention(retention_bytes=499)) == ([1], 10)
    assert plan(retention(retention_bytes=500, local_only_bytes=150)) == ([1, 11], 20)
    assert plan(retention(retention_bytes=0)) == ([1, 11, 21, 31, 41], 50)


def test_retention_by_size_counts_two_copies_of_the_same_offsets_once() -> None:
    twice = [*TEN, segment(0, 9, 77, e0=0)]
    assert plan(retention(retention_bytes=500), segments=twice) == ([], None)


def test_retention_by_time_stops_at_the_first_segment_that_stays() -> None:
    ages = [segment(0, 9, 1, max_timestamp_ms=10), segment(10, 19, 2, max_timestamp_ms=900)]
    ages.append(segment(20, 29, 3, max_timestamp_ms=10))
    assert plan(retention(retention_ms=500), 1_000, ages) == ([1], 10)
    assert plan(retention(retention_ms=50), 1_000, ages) == ([1, 2, 3], 30)
    assert plan(retention(retention_ms=990), 1_000, ages) == ([], None)


def test_what_lies_below_the_log_start_goes_whatever_its_lineage() -> None:
    stray = segment(0, 5, 9, e4=0)
    assert plan(retention(log_start_offset=20), segments=[*TEN, stray]) == ([9, 1, 11], None)


def test_segments_of_another_lineage_go_by_their_age_and_do_not_move_the_log_start() -> None:
    stray = segment(30, 39, 9, e4=30, max_timestamp_ms=1)
    lineage = epochs(e0=0, e5=20)
    assert plan(retention(retention_ms=10_000), 10_001, [stray], lineage) == ([], None)
    assert plan(retention(retention_ms=10_000), 10_002, [stray], lineage) == ([9], None)
    assert plan(retention(retention_bytes=0), segments=[stray], lineage=lineage) == ([], None)


def test_segments_of_epochs_before_the_earliest_known_one_are_not_taken_for_nobodys() -> None:
    assert plan(retention(), lineage=epochs(e3=25)) == ([], None)
    assert plan(retention(), lineage=()) == ([], None)


def test_a_partly_covered_segment_moves_the_log_start_to_the_end_of_its_part() -> None:
    partly = [segment(0, 19, 1, e0=0), segment(10, 29, 2, e1=10)]
    lineage = epochs(e0=0, e1=10)
    assert first_available_offset(tier_of(partly), lineage, 40, 30) == 0
    assert plan(retention(retention_bytes=200), segments=partly, lineage=lineage) == ([], None)
    assert plan(retention(retention_bytes=199), segments=partly, lineage=lineage) == ([1], 10)


def test_deletions_that_stopped_half_way_go_first_and_copies_under_way_are_left_alone() -> None:
    half = segment(0, 9, 5, state=DELETING)
    copying = segment(10, 19, 6, state=STARTED)
    assert plan(retention(retention_bytes=0), segments=[half, copying]) == ([5], None)


def test_the_log_start_never_moves_beyond_what_is_deleted() -> None:
    delete, start = plan(retention(retention_bytes=150))
    assert start == max(one.next_offset for one in TEN if one.id.int in delete)


def test_unfinished_copies_dangle_when_nobody_can_finish_them() -> None:
    mine = segment(0, 9, 1, state=STARTED, broker_id=1)
    busy = segment(10, 19, 2, state=STARTED, broker_id=1)
    theirs = segment(20, 29, 3, state=STARTED, broker_id=2, event_timestamp_ms=1_000)
    done = segment(30, 39, 4)
    listed = [mine, busy, theirs, done]
    since = unfinished_since(listed, {UUID(int=1): 1, UUID(int=7): 7}, 9_000)
    assert since == {mine.id: 1, busy.id: 9_000, theirs.id: 9_000}

    def dangling(now_ms: int) -> list[int]:
        found = dangling_copies(listed, 1, now_ms, 500, since, lambda one: one == busy.id)
        return [one.id.int for one in found]

    assert dangling(9_500) == [1]
    assert dangling(9_501) == [1, 3]


def test_a_new_leader_learns_where_the_log_begins() -> None:
    segments = [segment(10, 19, 1), segment(20, 29, 2), segment(0, 9, 3, e7=0)]
    assert first_available_offset(tier_of(segments), LINEAGE, 100, 25) == 10
    assert first_available_offset(tier_of([]), LINEAGE, 100, 25) == 25


def test_the_lineage_of_a_copy_ends_with_the_copy() -> None:
    assert epochs_up_to(epochs(e0=0, e1=5, e2=9), 9) == epochs(e0=0, e1=5)
    assert PARTITION.partition == 3
