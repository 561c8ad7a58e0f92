"""Files truncated and flipped at every byte: repaired or refused, but never another record than was
written.
"""

from __future__ import annotations

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.types import CorruptLogError
from tests.commitlog.builders import NOW, batch, config, filled, offsets_of, open_log, records_of
from tidemark.errors import CorruptMessageError, FatalError, StorageError
from tidemark.records import Record

SETTINGS = config(segment_bytes=1200, index_interval_bytes=100)
ONE_SEGMENT = config(segment_bytes=1 << 20, index_interval_bytes=100)


def closed_log(batches: int = 18) -> tuple[MemoryDirectory, list[Record]]:
    """A cleanly closed log of several segments."""
    directory = MemoryDirectory()
    log = filled(directory, batches, SETTINGS)
    records = records_of(log)
    assert len(log.segments) > 2
    log.close()
    return directory, records


def copy_of(directory: MemoryDirectory) -> MemoryDirectory:
    copy = MemoryDirectory()
    for name in directory.list():
        copy.write_atomic(name, directory.read(name))
    return copy


def assert_serves(log: Log, records: list[Record]) -> None:
    """Asserts that every read and every look-up by timestamp returns exactly these records."""
    assert records_of(log, 200) == records
    for record in records[::5]:
        first = next(r for r in records if r.timestamp_ms >= record.timestamp_ms)
        hit = log.offset_for_timestamp(record.timestamp_ms)
        assert hit is not None
        assert hit.offset == first.offset
        assert log.read(record.offset, 1).base_offset <= record.offset


def test_the_active_segment_cut_at_every_byte_keeps_its_whole_batches() -> None:
    directory, records = closed_log()
    name = max(n for n in directory.list() if n.endswith(".log"))
    sealed = int(name[:20])
    size = directory.size_of(name)
    for end in range(size):
        for clean in (True, False):
            damaged = copy_of(directory)
            damaged.cut(name, end)
            log = open_log(damaged, SETTINGS, clean=clean, recovery_point=sealed)
            kept = log.log_end_offset
            assert sealed <= kept < records[-1].offset + 1 or end == size
            assert offsets_of(log) == list(range(kept))
            log.append_as_leader(batch(1), 2, NOW)
            assert log.read(kept, 1).base_offset == kept


def test_a_sealed_segment_cut_after_a_crash_ends_the_log_there() -> None:
    directory, records = closed_log()
    first = min(n for n in directory.list() if n.endswith(".log"))
    for end in range(0, directory.size_of(first), 7):
        damaged = copy_of(directory)
        damaged.cut(first, end)
        log = open_log(damaged, SETTINGS)
        assert offsets_of(log) == list(range(log.log_end_offset))
        assert len(log.segments) == 1
        assert records_of(log) == records[: log.log_end_offset]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_cut_at_every_byte_is_rebuilt(suffix: str, clean: bool) -> None:
    directory, records = closed_log()
    for name in [n for n in directory.list() if n.endswith(suffix)]:
        whole = directory.read(name)
        for end in range(len(whole)):
            damaged = copy_of(directory)
            damaged.cut(name, end)
            log = open_log(damaged, SETTINGS, clean=clean, recovery_point=records[-1].offset + 1)
            assert_serves(log, records)
            log.close()
            assert damaged.read(name) == whole, (name, end)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_with_any_bit_flipped_never_misleads(suffix: str) -> None:
    directory, records = closed_log()
    for name in [n for n in directory.list() if n.endswith(suffix)][:2]:
        for position in range(directory.size_of(name)):
            for bit in (0, 7):
                damaged = copy_of(directory)
                damaged.flip_bit(name, position, bit)
                log = open_log(damaged, SETTINGS, clean=True)
                assert_serves(log, records)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_missing_files_beside_the_log_are_made_again(suffix: str) -> None:
    directory, records = closed_log()
    for name in directory.list():
        if name.endswith(suffix):
            directory.remove(name)
    log = open_log(directory, SETTINGS, clean=True)
    assert_serves(log, records)


def test_a_flipped_record_byte_ends_the_log_after_a_crash() -> None:
    directory, records = closed_log()
    name = max(n for n in directory.list() if n.endswith(".log"))
    for position in range(0, directory.size_of(name), 11):
        damaged = copy_of(directory)
        damaged.flip_bit(name, position)
        log = open_log(damaged, SETTINGS)
        found = records_of(log)
        # base offset and leader epoch are outside of the CRC, as in Kafka
        if position % 141 in range(12, 16):
            continue
        assert found == records[: len(found)]


def test_reading_a_segment_that_rotted_is_refused() -> None:
    directory, _ = closed_log()
    first = min(n for n in directory.list() if n.endswith(".log"))
    directory.flip_bit(first, 16, 4)  # the first batch's magic
    log = open_log(directory, SETTINGS, clean=True)
    with pytest.raises(CorruptMessageError):
        log.read(0, 1000)


def test_a_checkpoint_of_epochs_that_is_damaged_is_found_again() -> None:
    directory, _ = closed_log()
    directory.write_atomic("leader-epoch-checkpoint", b"0\n5\n1 0\n")
    assert open_log(directory, SETTINGS, clean=True).epochs.entries() == ((1, 0),)


def test_leftovers_of_deletion_and_cleaning_go_and_swaps_are_finished() -> None:
    """A crash leaves them. A clean stop leaves none."""
    directory, records = closed_log()
    first = min(n for n in directory.list() if n.endswith(".log"))
    directory.rename(first, first + ".swap")
    for name in ("00000000000000000900.log.deleted", "00000000000000000901.log.cleaned"):
        directory.write_atomic(name, b"x")
    directory.write_atomic("00000000000000000950.index", b"")
    log = open_log(directory, SETTINGS, clean=False)
    assert_serves(log, records)
    assert not [n for n in directory.list() if n.startswith("000000000000000009")]


def test_a_full_disk_refuses_the_append_and_keeps_what_was_acknowledged() -> None:
    directory = MemoryDirectory()
    log = filled(directory, 5, SETTINGS)
    before = records_of(log)
    directory.set_capacity(directory.disk.used_bytes + 10)
    with pytest.raises(StorageError, match="disk is full"):
        log.append_as_leader(batch(3), 1, NOW)
    assert records_of(log) == before
    directory.set_capacity(1 << 30)
    info = log.append_as_leader(batch(3), 1, NOW)
    assert info.first_offset == before[-1].offset + 1
    log.validate()


def test_a_failed_fsync_stops_every_later_flush() -> None:
    directory = MemoryDirectory()
    log = filled(directory, 5, SETTINGS)
    directory.fail_fsync("*.log")
    with pytest.raises(FatalError, match="nothing is written there any more"):
        log.flush()
    directory.disk.failing_fsyncs.clear()
    with pytest.raises(FatalError):
        log.flush()
    assert log.recovery_point == 0


@pytest.mark.parametrize("index_interval_bytes", [100, 1 << 20])
@pytest.mark.parametrize("knows_positions", [True, False])
def test_a_truncation_never_cuts_at_a_damaged_batch_before_its_offset(
    index_interval_bytes: int, knows_positions: bool
) -> None:
    settings = config(segment_bytes=1 << 20, index_interval_bytes=index_interval_bytes)
    directory = MemoryDirectory()
    log = filled(directory, 8, settings)
    (segment,) = log.segments
    batches = list(segment.headers())
    log.close()
    name, cut, refused = segment.log_file, batches[5], 0
    for damaged in batches[:6]:
        for bit in range(64):
            disk = copy_of(directory)
            log = open_log(disk, settings)
            assert log.log_end_offset == batches[-1].next_offset
            disk.flip_bit(name, damaged.position + bit // 8, bit % 8)
            if not knows_positions:
                log.segments[0]._forget_positions()
            try:
                log.truncate_to(cut.base_offset, NOW)
            except CorruptLogError:
                refused += 1
                assert disk.size_of(name) == directory.size_of(name)
                assert log.log_end_offset == batches[-1].next_offset
            else:
                assert disk.size_of(name) == cut.position
                assert log.log_end_offset == cut.base_offset
    assert refused > 64


def test_a_truncation_within_the_gaps_of_a_compaction_is_made() -> None:
    directory = MemoryDirectory()
    log = open_log(directory, ONE_SEGMENT)
    for base in (0, 10, 20):
        log.append_as_follower(batch(2, base_offset=base), NOW, gaps_allowed=True)
    log.truncate_to(15, NOW)
    assert offsets_of(log) == [0, 1, 10, 11]
