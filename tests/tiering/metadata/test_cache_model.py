"""The fold of remote log metadata against a model: Kafka's tables of states, look-ups, memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace
from uuid import UUID

import pytest

from tests.tiering.builders import DELETED, DELETING, FINISHED, PARTITION, STARTED, segment
from tidemark.types import random_uuid
from tiering.errors import RemoteResourceNotFoundError, RemoteStorageError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)

# RemoteLogSegmentState.isValidTransition and RemotePartitionDeleteState.isValidTransition; None is
# an unknown segment, or one that was removed.
LEGAL = {
    (None, STARTED),
    (STARTED, STARTED),
    (STARTED, FINISHED),
    (STARTED, DELETING),
    (FINISHED, FINISHED),
    (FINISHED, DELETING),
    (DELETING, DELETING),
    (DELETING, DELETED),
}
MARKED, BEGUN, REMOVED = RemotePartitionDeleteState
LEGAL_DELETIONS = {
    (None, MARKED),
    (MARKED, MARKED),
    (MARKED, BEGUN),
    (BEGUN, BEGUN),
    (BEGUN, REMOVED),
    (REMOVED, REMOVED),
}


def random_segment(rng: random.Random, number: int) -> RemoteLogSegmentMetadata:
    """A segment of one to three epochs, somewhere in a short log, so that copies overlap."""
    start = rng.randrange(40)
    size = rng.randrange(1, 12)
    starts = sorted(rng.sample(range(start, start + size), min(size, rng.randrange(1, 4))))
    starts[0] = start
    first_epoch = rng.randrange(3)
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, UUID(int=number)),
        start,
        start + size - 1,
        rng.randrange(1 << 40),
        rng.randrange(5),
        rng.randrange(1 << 40),
        rng.randrange(1 << 31),
        tuple(EpochEntry(first_epoch + n, offset) for n, offset in enumerate(starts)),
        STARTED,
        rng.choice([None, b"", b"x" * 12, b"y" * 15, b"z" * 16, b"long" * 30]),
        rng.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_records_in_any_order_fold_as_kafkas_tables_say(seed: int) -> None:
    """Duplicates, lost answers and two owners are records that come twice, late or not at all."""
    rng = random.Random(seed)
    cache, model = RemoteLogMetadataCache(), dict[UUID, RemoteLogSegmentMetadata]()
    deletion: RemotePartitionDeleteState | None = None
    for _ in range(400):
        number = rng.randrange(1, 13)
        known = model.get(UUID(int=number))
        before, legal = cache.changes, False
        if rng.random() < 0.4:
            record = random_segment(rng, number)
            if known is not None and rng.random() < 0.5:
                record = replace(known, state=STARTED)
            record = replace(record, state=rng.choice([STARTED] * 9 + [FINISHED, DELETING]))
            known_state = known.state if known else None
            legal = record.state is STARTED and known_state in (None, STARTED) and deletion is None
            if legal:
                model[record.id] = record
                cache.apply(record)
            else:
                with pytest.raises(RemoteStorageError):
                    cache.apply(record)
        elif rng.random() < 0.98:
            state = rng.choice(list(RemoteLogSegmentState))
            base = known or random_segment(rng, number)
            custom = rng.choice([None, b"", b"c" * 12, b"d" * 40])
            update = base.update(state, rng.randrange(1 << 40), rng.randrange(5), custom)
            if known is None:
                with pytest.raises(RemoteResourceNotFoundError):
                    cache.apply(update)
            elif legal := (known.state, state) in LEGAL:
                model[known.id] = known.updated(update)
                if state is DELETED:
                    del model[known.id]
                cache.apply(update)
            else:
                with pytest.raises(RemoteStorageError, match="can not become"):
                    cache.apply(update)
        else:
            step = rng.choice(list(RemotePartitionDeleteState))
            if rng.random() < 0.8 and step is MARKED:
                continue
            legal = (deletion, step) in LEGAL_DELETIONS and not (step is REMOVED and model)
            record_of_step = RemotePartitionDeleteMetadata(PARTITION, step, 1, 1)
            if legal:
                cache.apply(record_of_step)
                deletion = step
            else:
                with pytest.raises(RemoteStorageError):
                    cache.apply(record_of_step)
            legal = False  # no change of a segment
        if not legal and before == cache.changes:
            assert {one.id: one for one in cache.segments()} == model  # refused: nothing changed
        compare(cache, model)


def compare(cache: RemoteLogMetadataCache, model: dict[UUID, RemoteLogSegmentMetadata]) -> None:
    cache.validate()
    listed = cache.segments()
    assert [one.start_offset for one in listed] == sorted(o.start_offset for o in model.values())
    assert {one.id: one for one in listed} == model and len(listed) == len(cache) == len(model)
    assert all(cache.get(identity) == one for identity, one in model.items())
    finished = [one for one in model.values() if one.state is FINISHED]
    assert cache.finished_bytes == sum(one.segment_size_bytes for one in finished)
    unfinished = {one.id for one in cache.unfinished()}
    assert unfinished == model.keys() - {one.id for one in finished}
    assert [one.id for one in cache.segments_from(20)] == [
        one.id for one in listed if one.start_offset >= 20
    ]
    for epoch in range(6):
        ranges = {one.id: one.epoch_range(epoch) for one in finished}
        bounds = [(r[0], r[1], identity) for identity, r in ranges.items() if r and r[0] <= r[1]]
        highest = max((last for _, last, _ in bounds), default=None)
        assert cache.highest_offset_for_epoch(epoch) == highest
        for offset in range(0, 55, 3):
            holding = {i for first, last, i in bounds if first <= offset <= last}
            found = cache.segment_for(epoch, offset)
            assert (found is not None) == bool(holding)
            assert found is None or found.id in holding
        following = cache.next_with_txn_index(epoch, 0)
        assert following is None or not following.txn_index_empty


def test_a_generator_of_segments_ends_when_the_cache_changes() -> None:
    cache = RemoteLogMetadataCache()
    for number in range(5):
        cache.apply(segment(10 * number, 10 * number + 9, number, state=STARTED))
    found = cache.segments_from(20)
    assert next(found).start_offset == 20
    cache.apply(segment(20, 29, 2, state=STARTED).update(DELETING, 1, 1))
    assert list(found) == []


def filled(count: int) -> RemoteLogMetadataCache:
    """A partition of finished segments with the pin of their sidecar, of five leader epochs."""
    cache, rng = RemoteLogMetadataCache(), random.Random(7)
    for number in range(count):
        start, epoch = 1000 * number, 5 * number // count
        begun = replace(
            segment(start, start + 999, 1, state=STARTED, **{f"e{epoch}": start}),
            remote_log_segment_id=RemoteLogSegmentId(PARTITION, random_uuid()),
            max_timestamp_ms=1_700_000_000_000 + rng.randrange(1 << 36),
            segment_size_bytes=rng.randrange(1 << 30),
        )
        cache.apply(begun)
        pin = rng.randbytes(12)
        cache.apply(begun.update(FINISHED, 1_700_000_000_000 + number, 3, pin))
    return cache


@pytest.mark.parametrize(("count", "bound"), [(100, 130), (1_000, 105), (10_000, 100)])
def test_a_segment_takes_about_a_hundred_bytes(count: int, bound: int) -> None:
    filled(10)  # modules are imported and caches filled
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = filled(count)
        gc.collect()  # and what the interpreter keeps to use again
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < bound, each
    assert len(cache) == count
    found = cache.segment_for(4, 1000 * count - 1)
    assert found is not None and found.custom_metadata is not None
    assert len(found.custom_metadata) == 12


def test_rows_of_removed_segments_are_used_again_and_an_emptied_partition_frees_them() -> None:
    cache = filled(2_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000, 4_000):  # retention deletes the oldest as new ones come
            start = 1000 * number
            oldest = next(cache.segments_from(0))
            cache.apply(oldest.update(DELETING, 1, 1))
            cache.apply(oldest.update(DELETED, 1, 1))
            begun = replace(
                segment(start, start + 999, number, state=STARTED, e4=start),
            )
            cache.apply(begun)
            cache.apply(begun.update(FINISHED, 1, 1, b"p" * 12))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(cache) == 2_000 and grown < 2_000 * 20, grown
    for one in cache.segments():
        cache.apply(one.update(DELETING, 1, 1))
        cache.apply(one.update(DELETED, 1, 1))
    cache.validate()
    assert len(cache) == 0 and len(cache._rows._pages) == 0
