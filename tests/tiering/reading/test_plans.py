"""Plans of direct reads: each edge of a range, on a directory, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname
from uuid import uuid4

import pytest

from commitlog.disk.os_files import OsDirectory
from tests.tiering.builders import PARTITION, segment, tier_of
from tests.tiering.world import NOW_MS, World
from tidemark.errors import (
    CorruptMessageError,
    ErrorCode,
    InvalidRequestError,
    OffsetOutOfRangeError,
    code_of,
)
from tidemark.records import iter_batches
from tidemark.types import TopicIdPartition
from tiering.errors import RemoteReadBusyError
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadataUpdate
from tiering.metadata.segments import RemoteLogSegmentState as STATE
from tiering.reading import plans
from tiering.reading.plans import Piece, ReadPlan, byte_range, cuts, spans
from tiering.reading.remote_indexes import RemoteIndexes
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.tasks.leases import LEASES_MAX, Lease, parse_leases, renewed


async def tiered(path: Path, segments: int = 3, **how: Any) -> World:
    """A leader with full segments of 20 records in the tier, and an active one of 5."""
    world = World(path, **how)
    world.lead()
    for _ in range(segments):
        world.produce_segment()
    world.produce(1)
    await world.once()
    return world


def flip(piece: Piece, position: int) -> None:
    path = Path(url2pathname(urlsplit(piece.url).path))
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def content(piece: Piece) -> bytes:
    data = Path(url2pathname(urlsplit(piece.url).path)).read_bytes()
    return data[piece.start_position : piece.end_position]


def offsets_of(plan: ReadPlan) -> list[int]:
    """The offsets that a reader of the pieces gets."""
    return [
        offset
        for piece in plan.pieces
        for _, header in iter_batches(content(piece))
        for offset in range(header.base_offset, header.next_offset)
        if piece.start <= offset < piece.end
    ]


async def plan(world: World, start: int, end: int, split: int = 0) -> ReadPlan:
    return await world.manager.plan_read(PARTITION, world.log, start, end, split, False)


@pytest.mark.parametrize("split", [0, 1, 300, 700])
def test_every_range_has_exactly_its_offsets_then_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: int
) -> None:
    """Within batches, at borders of batches and segments, and beyond the tier, for any split."""
    monkeypatch.setattr(plans, "SPLIT_BYTES_MIN", 1)

    async def test() -> None:
        world = await tiered(tmp_path)
        for start in range(0, 66, 3):
            for end in range(start, 66, 4):
                found = await plan(world, start, end, split)
                assert found.tail_offset == max(start, min(end, 60)), (start, end)
                assert offsets_of(found) == list(range(start, found.tail_offset)), (start, end)
                edges = [(piece.start, piece.end) for piece in found.pieces]
                assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        whole = await plan(world, 0, 65, 300)
        assert (len(whole.pieces) > 3) == (split >= 0)

    asyncio.run(test())


def test_positions_are_tight_where_the_index_has_entries() -> None:
    """Batches of five records and ten bytes; an entry has the last offset of its batch."""
    entries = b"".join(
        (4 + 5 * n).to_bytes(4, "big") + (10 * n).to_bytes(4, "big") for n in range(1, 10, 2)
    )
    indexes = RemoteIndexes.parse(100, 100, entries, b"")
    assert byte_range(indexes, 100, 100, 150, 150) == (0, 100)
    assert byte_range(indexes, 100, 109, 110, 150) == (10, 30)
    assert byte_range(indexes, 100, 108, 111, 150) == (0, 50)
    assert byte_range(indexes, 100, 149, 150, 150) == (90, 100)
    assert byte_range(RemoteIndexes.parse(100, 100, b"", b""), 100, 120, 121, 150) == (0, 100)


def test_cuts_pass_over_gaps_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SPLIT_BYTES_MIN", 1)
    entries = b"".join(n.to_bytes(4, "big") + n.to_bytes(4, "big") for n in (10, 20, 70, 80))
    indexes = RemoteIndexes.parse(0, 100, entries, b"")
    assert cuts(indexes, 0, 100, 25) == [20, 70, 80]
    assert cuts(indexes, 0, 100, 0) == []
    assert cuts(indexes, 0, 75, 60) == [20]
    assert cuts(indexes, 0, 100, 200) == []


def test_segments_that_overlap_by_a_change_of_leaders_give_each_offset_once() -> None:
    old = segment(0, 29)
    new = segment(20, 49, 2, e0=20, e2=25)
    tier = tier_of([old, new])
    lineage = (EpochEntry(0, 0), EpochEntry(2, 25))
    found = spans(tier.segment_for, lineage, 60, 5, 60, 9)
    assert [(first, stop) for _, first, stop in found] in ([(5, 20), (20, 50)], [(5, 25), (25, 50)])
    assert found[-1][0].id == new.id
    assert spans(tier.segment_for, (EpochEntry(7, 0),), 60, 5, 60, 9) == []
    assert spans(tier.segment_for, lineage, 60, 5, 60, 1) == found[:1]


def test_a_lease_holds_segments_against_retention_until_it_ends(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path, retention_ms=1_000)
        granted = await world.manager.leases.hold(PARTITION, "job", 25, 35, 10**9)
        assert granted == world.config.remote_log_lease_max_ms
        held = await plan(world, 25, 45)
        world.now_ms += 10_000
        await world.once()
        assert world.log.log_start_offset == 60
        assert world.tier_logs() == [20, 40], "the first one is free, the third behind the second"
        assert offsets_of(held) == list(range(25, 45))
        with pytest.raises(OffsetOutOfRangeError):
            await plan(world, 25, 45)
        await world.manager.leases.hold(PARTITION, "job", 25, 45, 0)
        await world.once()
        assert world.tier_logs() == []

    asyncio.run(test())


def test_a_lease_ends_by_itself_and_the_next_leader_keeps_it(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path, retention_ms=1_000)
        await world.manager.leases.hold(PARTITION, "job", 0, 60, 60_000)
        world.manager = world.new_manager()  # another process: it knows nothing but the store
        world.lead(1)
        world.now_ms += 59_000
        await world.once()
        assert world.tier_logs() == [0, 20, 40]
        world.now_ms += 2_000
        await world.once()
        assert world.tier_logs() == []

    asyncio.run(test())


@pytest.mark.parametrize("renews", [False, True])
def test_no_lease_outlives_the_longest_time_whatever_the_clock_was(
    tmp_path: Path, renews: bool
) -> None:
    """It was granted by a clock that was years ahead, or when the limit was larger."""

    async def test() -> None:
        world = await tiered(tmp_path, retention_ms=1_000)
        world.now_ms += 10**11
        await world.manager.leases.hold(PARTITION, "job", 0, 60, 60_000)
        world.now_ms -= 10**11 - 10_000
        if renews:
            await world.manager.leases.hold(PARTITION, "other", 0, 1, 1)
        await world.once()
        assert world.tier_logs()[:3] == [0, 20, 40]
        world.now_ms += world.config.remote_log_lease_max_ms // 2
        await world.once()
        assert world.tier_logs()[:3] == [0, 20, 40]
        world.now_ms += world.config.remote_log_lease_max_ms // 2
        await world.once()
        assert not world.tier_logs()

    asyncio.run(test())


def test_records_that_were_deleted_stay_in_the_tier_for_their_reader(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path)
        await world.manager.leases.hold(PARTITION, "job", 0, 60, 60_000)
        held = await plan(world, 0, 60)
        world.log.increment_log_start_offset(50)
        await world.once()
        assert offsets_of(held) == list(range(60))
        world.now_ms += 60_001
        await world.once()
        assert world.tier_logs() == [40]

    asyncio.run(test())


def test_leases_are_renewed_replaced_and_bounded() -> None:
    one = Lease("a", 0, 10, NOW_MS + 5)
    assert renewed([one], one._replace(until_ms=NOW_MS + 9), NOW_MS) == [
        one._replace(until_ms=NOW_MS + 9)
    ]
    assert renewed([one], one._replace(id="b"), NOW_MS + 6) == []
    many = [one._replace(id=str(n)) for n in range(LEASES_MAX)]
    with pytest.raises(Exception, match="64 jobs hold leases"):
        renewed(many, one, NOW_MS)
    assert renewed(many, many[0], NOW_MS) != []
    with pytest.raises(Exception, match="malformed"):
        parse_leases(b'[["a", 0, 10, "soon"]]')


def test_a_lease_without_a_range_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path, segments=1)
        for lease in (("", 0, 1, 5), ("a", 2, 1, 5), ("a", 0, 1, -5), ("a" * 129, 0, 1, 5)):
            with pytest.raises(InvalidRequestError) as refused:
                await world.manager.leases.hold(PARTITION, *lease)
            assert code_of(refused.value) is ErrorCode.INVALID_REQUEST

    asyncio.run(test())


def test_a_long_plan_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SEGMENTS_MAX", 2)

    async def test() -> None:
        world = await tiered(tmp_path, 5)
        found, position = [], 7
        while (part := await plan(world, position, 105)).more:
            assert len(part.pieces) == 2
            found += offsets_of(part)
            position = part.tail_offset
        assert found + offsets_of(part) == list(range(7, 100))
        assert part.tail_offset == 100

    asyncio.run(test())


def test_small_splits_cost_a_plan_a_bounded_number_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of a GiB has a thousand cuts of a MiB, each with a read of a header and a URL."""
    monkeypatch.setattr(plans, "PIECES_MAX", 3)
    monkeypatch.setattr(plans, "SPLIT_BYTES_MIN", 1)

    async def test() -> None:
        world = await tiered(tmp_path, 5)
        found, position, parts = [], 7, 0
        while (part := await plan(world, position, 105, 1)).more:
            assert 0 < len(part.pieces) <= 6
            found += offsets_of(part)
            position, parts = part.tail_offset, parts + 1
        assert found + offsets_of(part) == list(range(7, 100))
        assert (part.tail_offset, parts > 3) == (100, True)

    asyncio.run(test())


def test_held_segments_below_the_log_start_get_new_urls(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path, retention_ms=1_000)
        pieces = (await plan(world, 0, 60)).pieces
        ids = [piece.segment.id for piece in pieces]
        await world.manager.leases.hold(PARTITION, "job", 30, 60, 50_000)
        world.now_ms += 10_000
        await world.once()
        assert world.log.log_start_offset == 60
        found = await world.manager.urls(PARTITION, world.log, [*ids, uuid4()])
        assert found == {piece.segment.id: piece.url for piece in pieces[1:]}

    asyncio.run(test())


def test_a_plan_of_whole_segments_reads_no_index(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path)
        world.storage.fetch_sidecar = world.storage.fetch_index = None
        found = await plan(world, 0, 60, 1 << 20)
        assert [(p.start_position, p.end) for p in found.pieces] == [(0, 20), (0, 40), (0, 60)]

    asyncio.run(test())


def test_a_cluster_that_gives_no_urls_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"remote_log_direct_read_enable": "false"}
        world = await tiered(tmp_path, settings=settings)
        found = await plan(world, 0, 60)
        assert not found.pieces and found.tail_offset == 0
        assert found.not_direct == "remote.log.direct.read.enable is false"
        (first, *_) = world.metadata.list_remote_log_segments(PARTITION)
        assert not await world.manager.urls(PARTITION, world.log, [first.id])

    asyncio.run(test())


def test_plans_beyond_the_limit_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLANS_MAX", 2)

    async def test() -> None:
        world = await tiered(tmp_path)
        asked = [plan(world, 0, 60) for _ in range(3)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(one, RemoteReadBusyError) for one in found] == [False, False, True]
        assert (await plan(world, 0, 60)).pieces

    asyncio.run(test())


def test_a_deleted_partition_leaves_no_leases(tmp_path: Path) -> None:
    async def test() -> None:
        world = await tiered(tmp_path, segments=1)
        leases = world.manager.leases
        await leases.forget(PARTITION)
        assert not (tmp_path / "tier" / "leases").exists()
        await leases.hold(PARTITION, "job", 0, 5, 1_000)
        assert list((tmp_path / "tier" / "leases").iterdir())
        await leases.forget(PARTITION)
        assert not list((tmp_path / "tier" / "leases").iterdir())

    asyncio.run(test())


def test_a_cancelled_write_does_not_take_away_the_next_lease(tmp_path: Path) -> None:
    gate, begun = threading.Event(), threading.Event()

    class Slow(DirectoryRemoteStorageManager):
        def write_leases(self, partition: TopicIdPartition, content: bytes) -> None:
            begun.set()
            gate.wait(30)
            super().write_leases(partition, content)

    async def test() -> None:
        store = Slow(OsDirectory(tmp_path / "tier"))
        leases = (await tiered(tmp_path, segments=1, storage=store)).manager.leases
        first = asyncio.ensure_future(leases.hold(PARTITION, "a", 0, 5, 1_000))
        await asyncio.to_thread(begun.wait, 30)
        first.cancel()
        second = asyncio.ensure_future(leases.hold(PARTITION, "b", 0, 5, 1_000))
        await asyncio.gather(first, return_exceptions=True)
        gate.set()
        assert await second == 1_000
        assert sorted(one.id for one in parse_leases(store.read_leases(PARTITION))) == ["a", "b"]

    asyncio.run(test())


def test_a_plan_ends_at_the_high_watermark_and_names_nothing_that_is_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a new leader is behind for a moment."""

    async def test() -> None:
        world = await tiered(tmp_path)
        first = (await plan(world, 0, 60)).pieces[0].segment
        with monkeypatch.context() as patch:
            patch.setattr(type(world.log), "high_watermark", property(lambda _: 30))
            found = await plan(world, 0, 60)
            assert (offsets_of(found), found.tail_offset) == (list(range(30)), 30)
        await world.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                first.remote_log_segment_id, NOW_MS, STATE.DELETE_SEGMENT_STARTED, 1
            )
        )
        assert not await world.manager.urls(PARTITION, world.log, [first.id])
        assert (await plan(world, 0, 60)).tail_offset == 0

    asyncio.run(test())


def test_a_cut_at_a_damaged_header_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "SPLIT_BYTES_MIN", 1)

    async def test() -> None:
        world = await tiered(tmp_path, segments=1)
        second = (await plan(world, 0, 20, 300)).pieces[1]
        flip(second, second.start_position + 5)  # of the base offset, which no CRC covers
        with pytest.raises(CorruptMessageError, match="its index says"):
            await plan(world, 0, 20, 300)

    asyncio.run(test())
