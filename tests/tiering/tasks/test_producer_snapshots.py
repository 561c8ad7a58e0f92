"""The producer snapshots of copies: a follower that starts from the tier knows all producers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from commitlog.log.from_tier import rebuild_from_remote
from commitlog.log.log import Log
from commitlog.segment.names import snapshot_name
from commitlog.segment.producer_replay import snapshot_of
from commitlog.segment.producer_state import decode_snapshot
from commitlog.types import AppendOrigin
from tests.tiering.builders import PARTITION
from tests.tiering.world import NOW_MS, World
from tidemark.errors import StorageError
from tidemark.records import EndTransactionMarker, Record, encode_batch, encode_control_batch
from tiering.store.manager import IndexType


def batch(number: int, producer: int = 7) -> bytes:
    """Batch `number` of an idempotent producer, one record."""
    return encode_batch(
        [Record(0, NOW_MS + number, None, b"%040d" % number)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=number,
    )


def append(log: Log, first: int, count: int = 10, epoch: int = 0) -> None:
    """Batches of producer 7, and one of a producer of its own per call; a rolled segment."""
    log.append_as_leader(batch(0, 100 + first), epoch, NOW_MS)
    for number in range(first, first + count):
        log.append_as_leader(batch(number), epoch, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)


def filled(path: Path, **topic: object) -> World:
    world = World(path, **topic)
    world.lead()
    for first in (0, 10, 20):
        append(world.log, first)
    return world


def uploaded(world: World) -> list[bytes]:
    segments = world.metadata.list_remote_log_segments(PARTITION)
    return [world.storage.fetch_index(s, IndexType.PRODUCER_SNAPSHOT) for s in segments]


@pytest.mark.parametrize("lost", [(11,), (22,), (33,), (11, 22), (22, 33), (11, 22, 33)])
@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_lost_producer_snapshot_is_made_again(
    tmp_path: Path, lost: tuple[int, ...], how: str
) -> None:
    world = filled(tmp_path)
    wanted = [decode_snapshot(world.directory.read(snapshot_name(at))) for at in (11, 22, 33)]
    for at in lost:
        world.directory.remove(snapshot_name(at))
        if how == "damaged":
            world.directory.write_atomic(snapshot_name(at), b"\x00" * 40)
    asyncio.run(world.once())
    assert [decode_snapshot(data) for data in uploaded(world)] == wanted
    assert {entry.producer_id for entry in wanted[-1]} == {7, 100, 110, 120}


def test_a_follower_that_starts_from_the_tier_refuses_duplicates(tmp_path: Path) -> None:
    world = filled(tmp_path, local_retention_bytes=1)
    world.directory.remove(snapshot_name(33))
    asyncio.run(world.once())
    fresh = World(tmp_path, broker_id=2, history=world.metadata.history)
    fresh.follow()
    state = asyncio.run(fresh.manager.fetch_aux_state(PARTITION, 0, 33))
    rebuild_from_remote(
        fresh.log,
        state.epochs,
        state.producer_snapshot,
        state.start_offset,
        NOW_MS,
        log_start_offset=0,
    )
    info = fresh.log.append_as_leader(batch(29), 1, NOW_MS)
    assert (info.duplicate, info.first_offset) == (True, 32)
    assert not fresh.log.append_as_leader(batch(30), 1, NOW_MS).duplicate


def test_a_segment_without_any_way_to_its_producers_is_not_copied(tmp_path: Path) -> None:
    world = filled(tmp_path, local_retention_bytes=1)
    asyncio.run(world.once())
    append(world.log, 30)
    for name in world.directory.list():
        if name.endswith(".snapshot"):
            world.directory.remove(name)
    with pytest.raises(StorageError, match="not copied"):
        asyncio.run(world.once())
    assert len(uploaded(world)) == 3
    assert world.log.local_log_start_offset == 33  # and it stays on this disk


def test_a_segment_that_follows_another_ones_snapshot_ends_transactions(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    transactional = encode_batch(
        [Record(0, NOW_MS, None, b"x")],
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    world.log.append_as_leader(transactional, 0, NOW_MS, verified=True)
    world.log.roll(NOW_MS)
    assert decode_snapshot(world.directory.read(snapshot_name(1)))[0].current_txn_first_offset == 0
    marker = encode_control_batch(
        [EndTransactionMarker(True, 3)],
        base_offset=0,
        timestamp_ms=NOW_MS,
        partition_leader_epoch=0,
        producer_id=9,
        producer_epoch=0,
    )
    world.log.append_as_leader(marker, 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
    world.log.roll(NOW_MS)
    wanted = decode_snapshot(world.directory.read(snapshot_name(2)))
    assert wanted[0].current_txn_first_offset is None
    world.directory.remove(snapshot_name(2))
    assert decode_snapshot(snapshot_of(world.directory, 1, 2, 0)) == wanted


def test_within_a_segment_the_state_is_that_of_the_batches_before(tmp_path: Path) -> None:
    """A leader that began within a remote segment: its later batches are of another lineage."""
    world = filled(tmp_path)
    asyncio.run(world.once())
    for offset in (16, 22, 5, 33):
        state = asyncio.run(world.manager.fetch_aux_state(PARTITION, 0, offset, exact=True))
        assert (state.start_offset, state.epochs) == (offset, ((0, 0),))
        entries = {e.producer_id: e for e in decode_snapshot(state.producer_snapshot)}
        assert entries[7].batches[-1].last_offset == offset - 1
        assert set(entries) == {7, *(100 + 10 * n for n in range(3) if 11 * n < offset)}
