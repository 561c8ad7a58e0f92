"""Plans of direct reads in the driver: slices by bytes, leases, and when the brokers are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.spark.direct.store import FakeTier, tiered
from tidemark.errors import ConfigError, ErrorCode
from tidemark.spark.direct import plans
from tidemark.spark.direct.batches import AbortedBatches
from tidemark.spark.direct.pieces import Aborted, ObjectPiece, ReadLease, direct_slices, is_sound
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import parse_options
from tidemark.spark.planning import plan
from tidemark.spark.source import source_schema
from tidemark.spark.stream import TidemarkStreamReader

WHOLE = OffsetRange("t", 0, 0, 1_000)


@pytest.fixture
def fake() -> Iterator[FakeTier]:
    """Offsets 0 to 149 are in three objects and on the broker, 150 to 199 on the broker alone."""
    with tiered() as made:
        yield made


def pieces(*sizes: int, offsets: int = 10) -> list[ObjectPiece]:
    return [
        ObjectPiece(
            *(f"file:///{number}", 0, size),
            *(number * offsets, (number + 1) * offsets, number * offsets, b"id"),
        )
        for number, size in enumerate(sizes)
    ]


def test_slices_have_about_the_same_bytes_however_skewed_the_partitions_are() -> None:
    sizes = [10] * 30 + [100] * 3 + [250] + [1] * 50
    slices = direct_slices(replace(WHOLE, end=840), pieces(*sizes), (), None, 100)
    bytes_of = [sum(p.size_bytes for p in each.direct.pieces) for each in slices if each.direct]
    assert bytes_of == [100, 100, 100, 100, 100, 100, 250, 50]
    assert all(a.end == b.start for a, b in itertools.pairwise(slices))
    assert (slices[0].start, slices[-1].end) == (0, 840)


def test_the_tail_is_a_slice_of_the_brokers() -> None:
    found = direct_slices(replace(WHOLE, start=5), pieces(10, 10), (), None, 1 << 30)
    assert [(each.start, each.end, bool(each.direct)) for each in found] == [
        (0, 20, True),
        (20, 1_000, False),
    ]
    assert direct_slices(WHOLE, [], (), None, 100) == [WHOLE]


def test_a_slice_knows_the_aborted_transactions_within_it() -> None:
    aborted = [Aborted(1, 0, 4), Aborted(2, 3, 25), Aborted(1, 30, 39)]
    found = direct_slices(replace(WHOLE, end=40), pieces(9, 9, 9, 9), aborted, None, 9)
    assert [each.direct.aborted for each in found if each.direct] == [
        (aborted[0], aborted[1]),
        (aborted[1],),
        (aborted[1],),
        (aborted[2],),
    ]


def test_answers_with_holes_are_no_plan() -> None:
    good = pieces(10, 10)
    assert is_sound(0, 50, good, 20) and is_sound(0, 50, [], 0)
    assert not is_sound(1, 50, good, 20)
    assert not is_sound(0, 50, good, 21)
    assert not is_sound(0, 15, good, 20)
    assert not is_sound(0, 50, [good[0], good[1]._replace(start=11)], 20)
    assert not is_sound(0, 50, [good[0]._replace(end=0)], 0)
    assert not is_sound(0, 50, [good[0]._replace(base_offset=1), good[1]], 20)
    assert not is_sound(0, 50, [good[0]._replace(end_position=0), good[1]], 20)


def test_a_plan_asks_for_a_lease_first_and_for_more_until_the_tail(fake: FakeTier) -> None:
    slices = plan(fake.options(splitBytes=str(1 << 20)))
    assert [(each.start, each.end, bool(each.direct)) for each in slices] == [
        (0, 150, True),
        (150, 200, False),
    ]
    direct = slices[0].direct
    assert direct is not None and direct.lease is not None
    assert (direct.lease.start, direct.lease.end, direct.lease.lease_ms) == (0, 200, 600_000)
    first, *others = fake.asked
    assert first.lease_only and first.lease_id == direct.lease.id
    assert [(one.start_offset, one.end_offset) for one in others] == [(0, 200), (90, 200)]
    assert not any(one.lease_id or one.isolation_level for one in others)
    fake.asked.clear()
    plan(fake.options(**{"isolation.level": "read_committed"}))
    assert [one.isolation_level for one in fake.asked] == [0, 1, 1]


def test_small_slices_are_planned_one_by_one(fake: FakeTier) -> None:
    slices = plan(fake.options(maxRecordsPerPartition="40"))
    assert [(each.start, each.end, bool(each.direct)) for each in slices] == [
        *((0, 40, True), (40, 80, True), (80, 120, True)),
        *((120, 150, True), (150, 160, False), (160, 200, False)),
    ]
    assert len({each.direct.lease for each in slices if each.direct}) == 1


def test_a_topic_without_a_tier_is_asked_once(fake: FakeTier) -> None:
    fake.not_direct = "no tier"
    slices = plan(fake.options())
    assert [(each.start, each.end, each.direct) for each in slices] == [(0, 200, None)]
    assert len(fake.asked) == 1
    with pytest.raises(ConfigError, match="direct=true, but t-0: no tier; direct=auto reads"):
        plan(fake.options(direct="true"))
    fake.asked.clear()
    assert plan(fake.options(direct="false"))[0].direct is None and not fake.asked


def test_a_store_that_the_driver_can_not_read_is_not_left_to_the_workers(fake: FakeTier) -> None:
    fake.store.objects.clear()
    slices = plan(fake.options())
    assert [(each.start, each.end, each.direct) for each in slices] == [(0, 200, None)]
    assert (fake.asked[-1].lease_ms, fake.asked[-1].lease_id) == (0, fake.asked[0].lease_id)
    with pytest.raises(ConfigError, match=r"direct=true, but http.*404"):
        plan(fake.options(direct="true"))


def test_a_node_of_an_earlier_version_is_read_through(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "PLAN_READ", "/tidemark.v1.Log/NoSuchCall")
    assert [each.direct for each in plan(fake.options())] == [None]


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.INVALID_REQUEST])
def test_a_refused_plan_is_read_through(fake: FakeTier, code: ErrorCode) -> None:
    fake.error_code = code
    assert [each.direct for each in plan(fake.options())] == [None]


def test_records_that_went_before_the_plan_are_told_by_the_brokers(fake: FakeTier) -> None:
    fake.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    assert [each.direct for each in plan(fake.options(direct="true"))] == [None]


def test_a_plan_with_a_hole_is_read_through(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = fake.pieces(0, 150)
    fake.segments_max = 9
    monkeypatch.setattr(fake, "pieces", lambda *_: [first._replace(start=1), *others])
    assert [each.direct for each in plan(fake.options())] == [None]


def test_an_answer_without_end_is_not_asked_for_again(
    fake: FakeTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "segments_max", -1)
    monkeypatch.setattr(fake, "pieces", lambda *_: [])
    assert [each.direct for each in plan(fake.options())] == [None]


def test_a_stream_plans_its_batches_without_a_lease_if_it_is_told_to(fake: FakeTier) -> None:
    given = {"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"}
    for mode, asked in (({}, 0), ({"direct": "auto"}, 2)):
        options = parse_options(given | mode, is_stream=True)
        reader = TidemarkStreamReader(options, source_schema(("offset",)))
        fake.asked.clear()
        start, end = reader.initialOffset(), reader.reportLatestOffset()
        slices = [each.offsets for each in reader.partitions(start, end)]
        reader.stop()
        assert len(fake.asked) == asked and not any(each.lease_id for each in fake.asked)
        assert [(each.start, each.end) for each in slices if each.direct] == [(0, 150)][:asked]
        assert slices[-1].end == 200
    with pytest.raises(ConfigError, match="leaseMs has no effect in a stream"):
        parse_options(given | {"leaseMs": "5000"}, is_stream=True)


def test_too_many_leases_are_no_reason_to_read_from_the_brokers(fake: FakeTier) -> None:
    fake.lease_error = ErrorCode.POLICY_VIOLATION
    direct = plan(fake.options())[0].direct
    assert direct is not None and direct.lease is None


def test_a_lease_of_a_partition_without_pieces_ends_at_once(fake: FakeTier) -> None:
    fake.segments.clear()
    assert [each.direct for each in plan(fake.options())] == [None]
    assert [one.lease_ms for one in fake.asked if one.lease_only] == [600_000, 0]


def test_a_held_lease_is_renewed_and_ended_by_the_leader(fake: FakeTier) -> None:
    lease = ReadLease("a", 3, 9, 5_000, 0)
    plans.renew_lease(fake.options(), OffsetRange("t", 0, 4, 5), lease)
    plans.renew_lease(fake.options(), OffsetRange("t", 0, 4, 5), lease._replace(lease_ms=0))
    assert [(one.lease_ms, one.start_offset, one.end_offset) for one in fake.asked] == [
        (5_000, 3, 9),
        (0, 3, 9),
    ]


def test_batches_of_aborted_transactions_are_found_by_producer_and_offset() -> None:
    found = AbortedBatches([Aborted(7, 10, 19), Aborted(7, 40, 40), Aborted(5, 0, 99)])
    hits = [offset for offset in range(60) if found._has(7, offset)]
    assert hits == [*range(10, 20), 40]
    assert not found._has(6, 15)
