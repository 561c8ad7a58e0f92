"""Recovery by columns makes the same indexes as appends, for any chunk size, and trusts
no header.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.segment import segment as segments
from commitlog.segment.batch_table import BatchTable, sound_batches
from tests.commitlog.builders import NOW, batch, config, open_log, records_of
from tidemark.records.header import whole_header

INDEX_SUFFIXES = (".index", ".timeindex")
APPENDS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(-30, 30), st.integers(1, 3)),
    min_size=1,
    max_size=40,
)


@given(
    appends=APPENDS,
    interval_bytes=st.sampled_from([0, 100, 333, 4096]),
    chunk_bytes=st.sampled_from([61, 150, 500, 1 << 20]),
)
def test_recovery_makes_the_indexes_and_epochs_that_the_appends_had_made(
    appends: list[tuple[int, int, int, int]], interval_bytes: int, chunk_bytes: int
) -> None:
    directory = MemoryDirectory()
    settings = config(segment_bytes=1500, index_interval_bytes=interval_bytes)
    log = open_log(directory, settings)
    epoch = 0
    for number, (count, size, jump, rise) in enumerate(appends):
        epoch += rise == 3
        time_ms = NOW + number * 10 + jump
        log.append_as_leader(batch(count, timestamp=time_ms, size=size), epoch, NOW)
    records, epochs = records_of(log), log.epochs.entries()
    log.close()
    made = {n: directory.read(n) for n in directory.list() if n.endswith(INDEX_SUFFIXES)}
    for name in (*made, "leader-epoch-checkpoint"):
        directory.remove(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_RECOVERY_CHUNK_BYTES", chunk_bytes)
        recovered = open_log(directory, settings)
    assert recovered.recovered_bytes_cut == 0
    assert records_of(recovered) == records
    assert recovered.epochs.entries() == epochs
    recovered.close()
    assert {name: directory.read(name) for name in made} == made


def table_of(*batches: tuple[int, int, int]) -> BatchTable:
    """Headers without records: (base offset, last offset delta, record count)."""
    data = bytearray()
    for base_offset, delta, count in batches:
        head = bytearray(batch(1)[:61])
        struct.pack_into(">qi", head, 0, base_offset, 49)
        struct.pack_into(">i", head, 23, delta)
        struct.pack_into(">i", head, 57, count)
        data += head
    return BatchTable(memoryview(data), list(range(0, len(data), 61)))


LAST = 2**31 - 1


@pytest.mark.parametrize(
    "bad",
    [
        (9, 0, 1),  # goes back
        (-1, 0, 1),
        (-(2**63), LAST, 1),
        (2**63 - 1, LAST, 1),  # its last offset exceeds 64 bits
        (10, -1, 1),
        (10, -(2**31), 1),
        (10, 0, -1),
        (10 + LAST - 1, 10, 1),  # too far for a relative offset
        (11 + LAST, 0, 1),
    ],
)
def test_a_header_that_no_batch_can_have_ends_the_sound_part(bad: tuple[int, int, int]) -> None:
    assert table_of((10, 0, 1), (11, 0, 1)).in_order(10, 10, LAST) == 2
    assert table_of((9, 0, 1)).in_order(0, 9, LAST) == 1
    assert table_of((9, 0, 1), bad, (10, 0, 1)).in_order(9, 9, LAST) == 1
    assert table_of(bad, (12, 0, 1)).in_order(9, 10, LAST) == 0


def test_the_columns_agree_with_the_headers() -> None:
    data = batch(3, base_offset=7) + batch(2, base_offset=10, producer_id=5, base_sequence=1)
    positions, end, damaged = sound_batches(memoryview(data))
    assert (end, damaged) == (len(data), False)
    table = BatchTable(memoryview(data), positions)
    for row in range(2):
        header = whole_header(data, positions[row])
        assert table.header(row) == header
        for name in ("base_offset", "crc", "attributes", "max_timestamp_ms", "record_count"):
            assert table.column(name)[row] == getattr(header, name)
    assert table.has_producers
    assert table.next_offset == 12
    assert table.transactional_rows() == []


@given(cut=st.integers(0, 400), flip=st.integers(0, 400))
def test_a_view_cut_or_flipped_anywhere_gives_only_sound_batches(cut: int, flip: int) -> None:
    data = bytearray(batch(2) + batch(1, base_offset=2) + batch(3, base_offset=3))
    ends = [end for _, end in _spans(data)]
    cut, flip = min(cut, len(data)), min(flip, len(data) - 1)
    assert sound_batches(memoryview(data)[:cut])[1] == max([0, *(e for e in ends if e <= cut)])
    data[flip] ^= 0x40
    positions, end, damaged = sound_batches(memoryview(data))
    hit = next(index for index, (_, end) in enumerate(_spans(data, ends)) if flip < end)
    inside = flip - ([0, *ends][hit])
    if 8 <= inside < 12 or inside >= 16:  # offset and epoch are outside of the CRC
        assert len(positions) == hit
        assert end == [0, *ends][hit]
    else:
        assert (len(positions), damaged) == (3, False)


def _spans(data: bytearray, ends: list[int] | None = None) -> list[tuple[int, int]]:
    if ends is not None:
        return list(zip([0, *ends[:-1]], ends, strict=True))
    spans, at = [], 0
    while at < len(data):
        end = whole_header(data, at).end_position
        spans.append((at, end))
        at = end
    return spans
