"""Searches by time in compacted files, made as Kafka makes them, and what its dump tool checks.

Kafka takes the first segment whose greatest timestamp reaches the one wanted, and answers "none" if
that segment has no such record. The greatest timestamp is that of the last entry of the time index,
or the file's time if there is no entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.disk.files import Directory
from commitlog.dump import dump_file
from commitlog.log.log import Log
from commitlog.segment.segment import Segment
from tests.commitlog.builders import NOW, records_of
from tests.commitlog.cleaner.test_cleaner import DAY_MS, World
from tidemark.records import Record, decode_batch, iter_batches

FILE_TIME = NOW + 400 * DAY_MS


def time_entries(directory: Directory, segment: Segment) -> list[tuple[int, int]]:
    found = list(dump_file(directory, segment.time_index.name))
    assert not any(entry["kind"] in ("damage", "mismatch") for entry in found)
    return [(e["timestamp_ms"], e["offset"]) for e in found if e["kind"] == "time_index"]


def records_in(segment: Segment) -> list[Record]:
    data = segment.directory.read(segment.log_file)
    return [record for at, _ in iter_batches(data) for record in decode_batch(data, at)]


def kafkas_answer(log: Log, timestamp_ms: int) -> int | None:
    """Returns the offset that Kafka's fetchOffsetByTimestamp finds in the files."""
    for segment in log.segments:
        if not segment.size_bytes:
            continue
        entries = time_entries(log.directory, segment) if segment.is_rolled else []
        greatest = entries[-1][0] if entries else FILE_TIME
        if not segment.is_rolled:
            greatest = max((r.timestamp_ms for r in records_in(segment)), default=FILE_TIME)
        if greatest >= timestamp_ms:
            found = [r.offset for r in records_in(segment) if r.timestamp_ms >= timestamp_ms]
            return found[0] if found else None
    return None


def check_searches(log: Log) -> None:
    records = records_of(log)
    for wanted in sorted({r.timestamp_ms + more for r in records for more in (-1, 0)} | {1}):
        first = next((r.offset for r in records if r.timestamp_ms >= wanted), None)
        assert kafkas_answer(log, wanted) == first
        found = log.offset_for_timestamp(wanted)
        assert (found and found.offset) == first


def check_dump(log: Log) -> None:
    """Asserts that each time entry is the greatest timestamp of the records of its batch."""
    for segment in log.segments[:-1]:
        data, greatest = segment.directory.read(segment.log_file), {}
        for at, header in iter_batches(data):
            times = [record.timestamp_ms for record in decode_batch(data, at)]
            greatest[header.last_offset] = max(times, default=-1)
        for timestamp_ms, offset in time_entries(log.directory, segment):
            assert greatest[offset] == timestamp_ms


def rising(world: World) -> None:
    world.now += 10


@pytest.mark.parametrize("options", [{}, {"producer_id": 7, "producer_epoch": 0}], ids=str)
def test_no_search_ends_at_a_segment_of_which_only_empty_batches_stayed(
    options: dict[str, Any],
) -> None:
    """The first segments lose all their records; the last batch of each would stay alone."""
    world = World()
    for number in range(60):
        rising(world)
        sequence = {"base_sequence": number} if options else {}
        world.put((f"k{number % 9}", "v" * 90), **options, **sequence)
    world.clean()
    log = world.log()
    assert all(any(h.record_count for h in s.headers()) for s in log.segments if s.size_bytes)
    assert any(not h.record_count for s in log.segments for h in s.headers())
    check_searches(log)
    check_dump(log)


def test_an_empty_batch_of_a_producer_is_in_no_time_index() -> None:
    """Its timestamp, by which the producer expires, may be the greatest of its segment."""
    world = World(segment_bytes=2000)
    for number in range(8):
        rising(world)
        world.put((f"a{number}", "v" * 50))
    world.now += 1000
    world.put(("k", "v"), producer_id=7, producer_epoch=0, base_sequence=0)
    world.log().roll(world.now)
    world.now -= 900
    for _ in range(30):
        rising(world)
        world.put(("k", "v" * 90))
    world.clean()
    log = world.log()
    (kept,) = [h for s in log.segments for h in s.headers() if h.producer_id == 7]
    assert (kept.record_count, kept.max_timestamp_ms) == (0, NOW + 1080)
    check_searches(log)
    check_dump(log)
    for segment in log.segments:
        before = (segment.max_timestamp_ms, segment.max_timestamp_offset)
        segment.rebuild_indexes()
        assert (segment.max_timestamp_ms, segment.max_timestamp_offset) == before
    check_dump(log)
    world.logs.close()
    world.open()
    check_searches(world.log())


def test_a_range_of_which_nothing_stays_is_passed_by_searches() -> None:
    """All keys were deleted. Then a segment without records can not be avoided."""
    world = World(delete_retention_ms=0)
    for number in range(20):
        rising(world)
        world.put((f"k{number % 3}", "v" * 90))
    for number in range(3):
        world.put((f"k{number}", None))
    world.clean()
    world.now += 1
    world.put(("last", "v"))
    world.clean()
    rising(world)
    world.put(("live", "v"))
    assert [value for _, value, _ in world.found()] == ["last", "live"]
    check_searches(world.log())


def test_a_range_that_is_clean_already_is_not_written_again() -> None:
    world = World()
    for number in range(60):
        rising(world)
        world.put((f"k{number % 9}", "v" * 90))
    world.clean()
    files = [(s.log_file, s.size_bytes) for s in world.log().segments[:-1]]
    created = [id(s) for s in world.log().segments[:-1]]
    world.put(("other", "v"))
    world.clean()
    again = world.log().segments
    assert [(s.log_file, s.size_bytes) for s in again][: len(files) - 2] == files[:-2]
    assert [id(s) for s in again][: len(files) - 2] == created[:-2]


VALUES = st.one_of(st.none(), st.integers(1, 150))


@settings(max_examples=60, deadline=None)
@given(
    puts=st.lists(
        st.tuples(st.integers(0, 6), VALUES, st.integers(-30, 60), st.booleans()), max_size=70
    ),
    rounds=st.integers(1, 3),
)
def test_searches_in_random_compacted_logs_find_what_is_there(
    puts: list[tuple[int, int | None, int, bool]], rounds: int
) -> None:
    world = World(delete_retention_ms=5)
    sequence = 0
    steps: list[Callable[[], None]] = [world.clean] * rounds
    for number, (key, size, more_ms, is_producers) in enumerate(puts):
        world.now = max(NOW, world.now + more_ms)
        options: dict[str, Any] = {}
        if is_producers:
            options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            sequence += 1
        world.put((f"k{key}", None if size is None else "v" * size), **options)
        if number % 25 == 24:
            world.clean()
    for step in steps:
        world.now += 10
        step()
    check_searches(world.log())
