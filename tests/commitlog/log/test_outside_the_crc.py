"""Damage that no CRC shows: base offsets, lengths and leader epochs of batches at rest, and
segments that are cut or exchanged. A read gives the records that were written, or an error: never
another offset, never a hole, never an empty answer below the end.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.claims import RecordsMissingError
from commitlog.log.log import Log
from commitlog.types import CorruptLogError
from tests.commitlog.builders import NOW, batch, config, open_log, records_of
from tests.commitlog.log.test_damage import copy_of
from tidemark.config import TopicConfig
from tidemark.errors import CorruptMessageError, StorageError
from tidemark.records import Record, decode_batch, iter_batches
from tidemark.records.header import CRC_AT, PATCH_BYTES

SETTINGS = config(segment_bytes=900, index_interval_bytes=200)
BATCHES, EPOCH_AT = 14, 12
EPOCHS = [1] * 4 + [2] * 7 + [6] * 3


def written() -> tuple[MemoryDirectory, list[Record], dict[int, int]]:
    """A cleanly closed log of several segments and epochs; the epoch of each batch by offset."""
    directory = MemoryDirectory()
    log = open_log(directory, SETTINGS)
    for number, epoch in enumerate(EPOCHS):
        size = 5 + 11 * (number % 3)
        log.append_as_leader(batch(3, timestamp=NOW + number * 10, size=size), epoch, NOW)
    log.update_high_watermark(log.log_end_offset)
    records, epochs = records_of(log), {3 * n: epoch for n, epoch in enumerate(EPOCHS)}
    assert len(log.segments) > 2
    log.close()
    return directory, records, epochs


def places(directory: MemoryDirectory) -> list[tuple[str, int]]:
    """File and position of each batch."""
    return [
        (name, position)
        for name in directory.list()
        if name.endswith(".log")
        for position, _ in iter_batches(directory.read(name))
    ]


class Reader:
    """Reads a log as consumers do, and compares all that comes with what was written."""

    def __init__(
        self, log: Log, records: list[Record], epochs: dict[int, int], clean: bool = True
    ) -> None:
        """After an unclean stop the lineage is made of the batches: it contradicts none."""
        self.log = log
        self.knows_epochs = clean
        self.by_offset = {record.offset: record for record in records}
        self.epochs = epochs
        self.errors = 0

    def read_from(self, offset: int, max_bytes: int) -> int:
        """Reads to the end or to an error; returns the offset it came to."""
        while offset < self.log.log_end_offset:
            try:
                result = self.log.read(offset, max_bytes)
            except CorruptLogError:
                self.errors += 1
                return offset
            assert result.records, f"an empty answer at {offset}"
            headers = [header for _, header in iter_batches(result.records)]
            assert headers[-1].end_position == len(result.records), "whole batches"
            for position, header in iter_batches(result.records):
                if self.knows_epochs:
                    assert self.epochs[header.base_offset] == header.partition_leader_epoch
                try:
                    found = decode_batch(result.records, position)
                except CorruptMessageError:  # a wrong length, which the CRC shows
                    self.errors += 1
                    return offset
                assert found == [self.by_offset[record.offset] for record in found]
            assert result.base_offset <= offset < result.next_offset, "a hole"
            offset = result.next_offset
        return offset

    def read_all(self) -> None:
        end = len(self.by_offset)
        assert self.log.log_end_offset <= end
        for start in (0, 1, 4, 11, 13, 20, 24, 31, 38, 41):
            for max_bytes in (1, 250, 1 << 20):
                self.read_from(min(start, self.log.log_end_offset), max_bytes)


def opened(directory: MemoryDirectory, records: list[Record], clean: bool) -> Log | None:
    """Opens as a node does; None if the log is refused as damaged."""
    point = len(records) if clean else 6
    try:
        return open_log(directory, SETTINGS, clean=clean, recovery_point=point)
    except StorageError:
        return None


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("first_byte", range(0, CRC_AT, 2))
def test_no_flipped_bit_outside_the_crc_is_served(clean: bool, first_byte: int) -> None:
    directory, records, epochs = written()
    found = 0
    for name, position in places(directory):
        for bit in range(16):
            at, of = divmod(8 * first_byte + bit, 8)
            if at >= CRC_AT:
                continue
            damaged = copy_of(directory)
            damaged.flip_bit(name, position + at, of)
            log = opened(damaged, records, clean)
            if log is None:
                found += 1
                continue
            reader = Reader(log, records, epochs, clean)
            reader.read_all()
            found += reader.errors > 0 or log.log_end_offset < len(records)
    if clean or first_byte < EPOCH_AT:
        assert found == BATCHES * 8 * min(2, CRC_AT - first_byte), "some read notices each flip"


@pytest.mark.parametrize("settings", [SETTINGS, config(index_interval_bytes=1)])
def test_no_flipped_offset_is_the_answer_of_a_look_up_by_timestamp(settings: TopicConfig) -> None:
    """Neither by the index alone, nor by the scan from an entry on."""
    directory = MemoryDirectory()
    log = open_log(directory, settings)
    for number in range(BATCHES):
        log.append_as_leader(batch(3, timestamp=NOW + number * 10), 1, NOW)
    times = {NOW + 10 * n + i: 3 * n + i for n in range(BATCHES) for i in range(3)}
    noticed = 0
    for name, position in places(directory):
        for bit in (0, 1, 2, 4, 13, 40, 62):
            at, of = position + 7 - bit // 8, bit % 8
            directory.flip_bit(name, at, of)
            for time, offset in times.items():
                try:
                    found = log.offset_for_timestamp(time)
                except CorruptMessageError:
                    noticed += 1
                    continue
                assert found is not None
                assert (found.timestamp_ms, found.offset) == (time, offset), (position, bit)
            with suppress(CorruptMessageError):
                newest = log.offset_of_max_timestamp()
                assert newest is not None
                assert newest.offset == log.log_end_offset - 1
            directory.flip_bit(name, at, of)
            for segment in log.segments:
                segment.rebuild_indexes()
    assert noticed > BATCHES * 7 * 3


def test_bits_flipped_while_the_log_is_open_are_noticed() -> None:
    directory, records, epochs = written()
    for name, position in places(directory):
        for at in range(PATCH_BYTES):
            damaged = copy_of(directory)
            log = open_log(damaged, SETTINGS, clean=True, recovery_point=len(records))
            reader = Reader(log, records, epochs)
            reader.read_all()
            assert not reader.errors
            damaged.flip_bit(name, position + at, at % 8)
            reader.read_all()
            assert reader.errors


def ends_of(directory: MemoryDirectory, name: str) -> list[int]:
    """Each end up to the length of a batch, and every seventh: the others are alike."""
    size = directory.size_of(name)
    starts = [position for file, position in places(directory) if file == name]
    heads = {start + byte for start in starts for byte in range(EPOCH_AT)}
    return sorted(heads | set(range(0, size, 7)) | {size - 1})


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_rolled_segment_cut_anywhere_is_an_error_never_a_hole(clean: bool) -> None:
    directory, records, epochs = written()
    *rolled, _ = sorted({name for name, _ in places(directory)})
    for name in rolled:
        for end in ends_of(directory, name):
            damaged = copy_of(directory)
            damaged.cut(name, end)
            log = opened(damaged, records, clean)
            if log is None:
                continue
            reader = Reader(log, records, epochs)
            reader.read_all()
            assert reader.errors or log.log_end_offset < len(records), (name, end)


def test_a_segment_cut_while_the_log_is_open_is_an_error() -> None:
    directory, records, epochs = written()
    for name, position in places(directory):
        for end in (position, position + 30):
            damaged = copy_of(directory)
            log = open_log(damaged, SETTINGS, clean=True, recovery_point=len(records))
            reader = Reader(log, records, epochs)
            reader.read_all()
            damaged.cut(name, end)
            reader.read_all()
            assert reader.errors, (name, end)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_exchanged_files_are_an_error(clean: bool) -> None:
    directory, records, epochs = written()
    names = sorted({name for name, _ in places(directory)})
    for one, other in pairwise(names):
        for suffixes in ((".log",), (".log", ".index"), (".index",)):
            damaged = copy_of(directory)
            for suffix in suffixes:
                first, second = one.replace(".log", suffix), other.replace(".log", suffix)
                damaged.write_atomic(first, directory.read(second))
                damaged.write_atomic(second, directory.read(first))
            log = opened(damaged, records, clean)
            if log is None:
                continue
            reader = Reader(log, records, epochs)
            reader.read_all()
            is_noticed = reader.errors > 0 or log.log_end_offset < len(records)
            assert is_noticed == (".log" in suffixes)


def test_a_segment_that_is_gone_is_an_error() -> None:
    directory, records, epochs = written()
    _, middle, *_ = sorted({name for name, _ in places(directory)})
    for suffix in (".log", ".index", ".timeindex"):
        directory.remove(middle.replace(".log", suffix))
    log = open_log(directory, SETTINGS, clean=True, recovery_point=len(records))
    reader = Reader(log, records, epochs)
    reader.read_all()
    assert reader.errors


@pytest.mark.parametrize("number", [0, 1])
def test_an_index_without_its_segment_after_a_clean_stop_shows_that_records_are_missing(
    number: int,
) -> None:
    """Without the first segment the log would begin later, and its followers would follow."""
    directory, records, _ = written()
    log_file = sorted({name for name, _ in places(directory)})[number]
    directory.remove(log_file)
    before = directory.list()
    with pytest.raises(RecordsMissingError, match=log_file.removesuffix(".log")):
        open_log(directory, SETTINGS, clean=True, recovery_point=len(records))
    assert directory.list() == before


def test_the_error_names_file_and_position() -> None:
    directory, records, _ = written()
    name, position = places(directory)[2]
    directory.flip_bit(name, position + 8, 6)
    log = open_log(directory, SETTINGS, clean=True, recovery_point=len(records))
    with pytest.raises(CorruptLogError, match=rf"{name} is damaged at byte {position}: ") as raised:
        log.read(6, 1000)
    assert raised.value.file.endswith(name)
    assert (raised.value.position, raised.value.base_offset) == (position, 0)
    assert log.read(0, 1 << 20).next_offset == 6, "what is sound before it is served"
