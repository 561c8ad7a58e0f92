"""The two passes of a cleaning over buffers of batches. They run against a model that decodes every
record, with every byte of a batch damaged, and with batches larger than the buffer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.cleaner.filter import BatchFilter
from commitlog.cleaner.io import CleanerIo, Throttle
from commitlog.cleaner.offset_map import OffsetMap, OffsetMapFullError
from commitlog.cleaner.reading import BatchReader
from commitlog.cleaner.transactions import TransactionWalk
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.segment.batch_table import BatchTable
from tests.commitlog.builders import NOW, TP, records_of
from tests.commitlog.cleaner.test_cleaner import World
from tidemark.errors import CorruptMessageError
from tidemark.records import Record, decode_batch, encode_batch
from tidemark.records.header import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    TIMESTAMP_TYPE_FLAG,
    restamp,
    whole_header,
)
from tidemark.records.kernels import clean as kernels

RETENTION_MS = 1000


@dataclass(frozen=True)
class Shape:
    """Random properties of a batch."""

    pairs: tuple[tuple[int, int | None, int], ...]  # key, size of the value, step of the timestamp
    codec: str
    append_time: bool
    producer_id: int


SIZES = st.one_of(st.none(), st.integers(0, 200), st.sampled_from([9_000, 26_000]))
SHAPES = st.builds(
    Shape,
    st.lists(
        st.tuples(st.integers(0, 9), SIZES, st.integers(-300, 300)), min_size=1, max_size=12
    ).map(tuple),
    st.sampled_from(["none", "none", "none", "lz4"]),
    st.booleans(),
    st.sampled_from([-1, -1, 7]),
)


def batch_of(shape: Shape, base_offset: int) -> bytes:
    records = [
        Record(i, NOW + i * jump, b"key %d" % key, None if size is None else b"%d" % i * size)
        for i, (key, size, jump) in enumerate(shape.pairs)
    ]
    sequence = 0 if shape.producer_id >= 0 else -1
    made = encode_batch(
        records,
        compression=shape.codec,
        producer_id=shape.producer_id,
        producer_epoch=sequence,
        base_sequence=sequence,
    )
    data = bytearray(made)
    if shape.append_time:
        restamp(data, whole_header(data), log_append_time=True, max_timestamp_ms=NOW + 50)
    data[:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


def map_of(log: bytes, memory_bytes: int = 24 << 10) -> OffsetMap:
    """Returns the map of all keys, as `Cleaning.build_map` makes it."""
    keys = OffsetMap(memory_bytes, 0.9)
    specials, notes = np.empty(len(log) // HEADER_BYTES, np.int64), np.zeros(4, np.int64)
    fault = keys.put_batches(np.frombuffer(log, np.uint8), 0, specials, notes)
    if fault:
        raise CorruptMessageError(f"fault {fault}")
    end, _, left, _ = notes.tolist()
    assert end == len(log)
    from commitlog.cleaner.filter import plain_body, shape_of

    view = memoryview(log)
    for position in specials[:left].tolist():
        header = whole_header(view, position)
        keys.put(plain_body(view, header), shape_of(header, NOW), 0)
    keys.latest_offset = whole_header(view, _positions(log)[-1]).last_offset
    return keys


def _positions(log: bytes | memoryview) -> list[int]:
    found, at = [], 0
    while at < len(log):
        found.append(at)
        at = whole_header(log, at).end_position
    return found


def filtered(log: bytes, keys: OffsetMap, buffer_bytes: int, now_ms: int = NOW) -> bytes:
    """Returns what stays of a log that is read `buffer_bytes` at a time."""
    directory = MemoryDirectory()
    file = directory.open("log", create=True)
    file.append(log)
    reader = BatchReader(CleanerIo(buffer_bytes, Throttle(1e12)))
    batches = BatchFilter(keys, TransactionWalk(()), {}, now_ms, RETENTION_MS)
    out = bytearray()
    for view in reader.views(file, len(log)):
        found = batches.filter(view, keeps_last=reader.reaches_end)
        assert found.table.positions.tolist() == _positions(found.table.view)
        if not found.changed:
            assert bytes(found.table.view) == bytes(view[: found.taken])
        out += found.table.view
        reader.took(found.taken, found.batches)
    return bytes(out)


def expected(log: bytes, now_ms: int = NOW) -> list[tuple[int, list[Record]]]:
    """Returns the model: (base offset, records that stay) of each batch that stays."""
    batches = [(p, whole_header(log, p), list(decode_batch(log, p))) for p in _positions(log)]
    last: dict[bytes | None, int] = {}
    for _, _, records in batches:
        last.update({record.key: record.offset for record in records})
    result = []
    for position, header, records in batches:
        over = bool(header.attributes & DELETE_HORIZON_FLAG) and now_ms >= header.base_timestamp_ms
        kept = [
            record
            for record in records
            if last[record.key] == record.offset and (record.value is not None or not over)
        ]
        if kept or header.end_position == len(log):
            result.append((header.base_offset, kept))
        assert header.position == position
    return result


@given(shapes=st.lists(SHAPES, min_size=1, max_size=6), buffer_bytes=st.integers(0, 120_000))
@settings(deadline=None, max_examples=60)
def test_what_stays_is_what_a_model_of_decoded_records_says(
    shapes: list[Shape], buffer_bytes: int
) -> None:
    log, offset = b"", 0
    for shape in shapes:
        log += batch_of(shape, offset)
        offset += len(shape.pairs) + 2  # gaps, as an earlier cleaning leaves them
    now_ms, before = NOW, b""
    # Tombstones get a horizon, and are dropped after it; a third pass changes nothing.
    for _ in range(3):
        before, log = log, filtered(log, map_of(log), buffer_bytes, now_ms)
        found = []
        for position in _positions(log):
            header = whole_header(log, position)
            records = list(decode_batch(log, position))
            found.append((header.base_offset, records))
            stamps = [record.timestamp_ms for record in records]
            assert header.max_timestamp_ms == max(stamps, default=0)
            tombstones = any(record.value is None for record in records)
            assert not tombstones or header.attributes & DELETE_HORIZON_FLAG
            if header.attributes & TIMESTAMP_TYPE_FLAG and records:
                assert set(stamps) == {NOW + 50}
        assert found == expected(before, now_ms)
        now_ms += RETENTION_MS + 1
    again = filtered(log, map_of(log), buffer_bytes, now_ms)
    assert again == log


def test_no_damaged_batch_gets_into_the_map_or_is_written_anew() -> None:
    rng = random.Random(3)
    old = encode_batch([Record(i, NOW + i, b"k%d" % i, rng.randbytes(30)) for i in range(4)])
    new = encode_batch([Record(i, NOW, b"k%d" % (2 * i), b"") for i in range(2)])
    log = old + (4).to_bytes(8, "big") + new[8:]
    whole = map_of(log)
    assert len(filtered(log, whole, 4096)) < len(log)
    for position in range(8, len(old)):
        if 12 <= position < 16:
            continue  # the leader epoch, which no CRC covers
        damaged = bytearray(log)
        damaged[position] ^= 1 << rng.randrange(8)
        with pytest.raises((CorruptMessageError, AssertionError, OffsetMapFullError)):
            map_of(bytes(damaged))
        with pytest.raises(CorruptMessageError):
            filtered(bytes(damaged), whole, 4096)


def test_a_damaged_batch_is_not_taken_for_one_too_many_keys() -> None:
    batch = bytearray(encode_batch([Record(i, NOW, b"%d" % i, b"v") for i in range(200)]))
    data, notes = np.frombuffer(batch, np.uint8), np.zeros(4, np.int64)
    with pytest.raises(OffsetMapFullError):
        OffsetMap(24 * 100, 0.9).put_batches(data, 0, np.empty(1, np.int64), notes)
    batch[-1] ^= 1
    fault = OffsetMap(24 * 100, 0.9).put_batches(data, 0, np.empty(1, np.int64), notes)
    assert fault == kernels.FAULT_DAMAGED, "else the segment before would be cleaned by its keys"


@pytest.mark.parametrize("record", ["dropped", "kept"])
def test_damage_between_the_passes_ends_the_cleaning(record: str) -> None:
    world = World()
    for number in range(30):
        world.put(("k", f"v{number}"), (f"own {number}", f"value {number}"))
    world.log().roll(world.now)
    before = world.found()
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    cleaning.build_map(world.cleaner.new_map())
    log = world.log()
    directory = world.directory.subdirectory(str(TP))
    assert isinstance(directory, MemoryDirectory)
    name = log.segments[0].log_file
    position = directory.read(name).index(b"v3" if record == "dropped" else b"value 3")
    directory.flip_bit(name, position)
    with pytest.raises(CorruptMessageError, match="CRC"):
        cleaning.next_group()
    assert not [n for n in directory.list() if n.endswith((".cleaned", ".swap"))]
    directory.flip_bit(name, position)
    assert world.found() == before


def test_batches_larger_than_the_buffer_are_cleaned_one_at_a_time() -> None:
    world = World(
        server={"log.cleaner.io.buffer.size": "1024"},
        segment_bytes=60_000,
        max_message_bytes=50_000,
    )
    for number in range(12):
        world.put(*((f"k{number % 3}-{i}", "x" * 300) for i in range(60)))
        world.put(("small", str(number)))
    world.clean()
    found = records_of(world.log())
    assert len(found) == 3 * 60 + 1
    assert len({record.key for record in found}) == len(found)


def test_the_reader_holds_one_batch_at_most_beyond_its_buffer() -> None:
    small, large = encode_batch([Record(0, NOW, b"k", b"v" * 50)]), 30_000
    log = small * 40 + encode_batch([Record(0, NOW, b"k", b"v" * large)]) + small * 40
    file = MemoryDirectory().open("log", create=True)
    file.append(log)
    reader = BatchReader(CleanerIo(1000, Throttle(1e12)))
    sizes, taken = [], 0
    for view in reader.views(file, len(log)):
        at = batches = 0
        while len(view) - at >= HEADER_BYTES:
            size = HEADER_BYTES - 49 + int.from_bytes(view[at + 8 : at + 12], "big")
            if at + size > len(view):
                break
            at, batches = at + size, batches + 1
        reader.took(at, batches)
        sizes.append(len(view))
        taken += at
    assert taken == len(log)
    assert max(sizes) <= large + 200


def test_records_whose_timestamps_grow_find_room() -> None:
    """Deltas of one byte become deltas of six: the output buffer is enlarged."""
    log = encode_batch([Record(i, 1, b"%d" % max(i, 1), None) for i in range(3000)])
    again = filtered(log, map_of(log, 24 << 13), 1 << 20)
    assert [r.offset for r in decode_batch(again)] == list(range(1, 3000))
    assert len(again) > len(log) + 4 * 2900


@given(
    times=st.lists(st.integers(-1, 9), min_size=1, max_size=30),
    start=st.integers(0, 500),
    interval=st.integers(0, 400),
    greatest=st.integers(-1, 9),
)
def test_the_kernels_index_entries_are_those_of_the_columns(
    times: list[int], start: int, interval: int, greatest: int
) -> None:
    log = b"".join(
        (3 * n).to_bytes(8, "big") + encode_batch([Record(0, t, b"k", b"v" * (9 * n))])[8:]
        for n, t in enumerate(times)
    )
    table = BatchTable(memoryview(log), _positions(log))
    asked = (start, 7, interval, (greatest, 5))
    by_kernel, plain = table.index_entries(*asked), table.plain_index_entries(*asked)
    for ours, theirs in zip(by_kernel, plain, strict=True):
        assert np.array_equal(ours, theirs)
    assert not table.has_producers
    mixed = log + batch_of(Shape(((1, 1, 0),), "none", False, 7), 99)
    table = BatchTable(memoryview(mixed), _positions(mixed))
    table.index_entries(*asked)
    assert table.has_producers
    table.keep(len(times))
    assert not table.has_producers
