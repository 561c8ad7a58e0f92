"""Segments read from their sidecars alone: what they tell, and what is not believed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tiering.metadata.memory import MemoryHistory
from tiering.store.listing import DirectoryListing
from tiering.store.recovered import RecoveredSegment, Remark, read_segments


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world with three segments in the tier."""

    async def scenario() -> World:
        made = World(tmp_path, history=MemoryHistory())
        await made.manager.start()
        made.lead()
        for _ in range(3):
            made.produce_segment()
        await made.manager.run_once(PARTITION)
        return made

    return asyncio.run(scenario())


def read(world: World) -> tuple[list[RecoveredSegment], list[Remark]]:
    objects = DirectoryListing(world.path / "tier").objects()
    return read_segments(world.storage, objects, lambda partition: True)


def sidecars(world: World) -> list[Path]:
    return sorted((world.path / "tier").rglob("*.sidecar"))


def test_a_sidecar_tells_all_that_its_record_had(world: World) -> None:
    found, remarks = read(world)
    known = world.metadata.list_remote_log_segments(PARTITION)
    assert len(known) == 3 and remarks == []
    for one, record in zip(found, known, strict=True):
        told = one.metadata
        assert told.custom_metadata == record.custom_metadata is not None
        assert (told.id, told.start_offset, told.end_offset) == (
            record.id,
            record.start_offset,
            record.end_offset,
        )
        assert told.segment_leader_epochs == record.segment_leader_epochs
        assert told.state is record.state
        assert (told.max_timestamp_ms, told.segment_size_bytes, told.txn_index_empty) == (
            record.max_timestamp_ms,
            record.segment_size_bytes,
            record.txn_index_empty,
        )
        assert one.has_log and one.lineage


def test_no_flipped_bit_of_a_sidecar_is_believed(world: World) -> None:
    path = sidecars(world)[1]
    content = path.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        found, remarks = read(world)
        assert len(found) == 2, at
        assert [remark.is_unreadable for remark in remarks] == [True], at
        assert path.name in remarks[0].key
    path.write_bytes(content[:-1])
    assert len(read(world)[1]) == 1


def test_a_sidecar_of_another_segment_and_a_shorter_log_are_unreadable(world: World) -> None:
    first, second, third = sidecars(world)
    second.write_bytes(first.read_bytes())
    log = third.with_suffix(".log")
    log.write_bytes(log.read_bytes()[:-1])
    found, remarks = read(world)
    assert len(found) == 1
    assert all(remark.is_unreadable for remark in remarks)
    told = " ".join(remark.reason for remark in remarks)
    assert "it is the sidecar of" in told and "bytes, and the sidecar says" in told


def test_unfinished_copies_are_told_and_are_no_damage(world: World) -> None:
    first, second, third = sidecars(world)
    first.unlink()
    second.with_suffix(".log").unlink()
    third.with_name(third.name + ".tmp").write_bytes(b"half")
    found, remarks = read(world)
    assert sorted(one.has_log for one in found) == [False, True]
    assert [remark.is_unreadable for remark in remarks] == [False, False]


def test_an_unreadable_segment_with_its_log_is_told_apart(world: World) -> None:
    """A leader does not give up a log for it, so a person moves it away."""
    first, second, _ = sidecars(world)
    first.write_bytes(b"")
    second.write_bytes(b"")
    second.with_suffix(".log").unlink()
    _, remarks = read(world)
    assert [remark.has_log for remark in remarks] == [True, False]
    assert all(remark.is_unreadable for remark in remarks)
