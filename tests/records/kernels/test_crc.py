"""The kernels' CRC and walk agree with the C library and the plain walk."""

from __future__ import annotations

import random

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidemark.records import Record, encode_batch
from tidemark.records.header import plain_sound_batches
from tidemark.records.kernels import batches as batch_kernel
from tidemark.records.kernels import crc as crc_kernel
from tidemark.records.kernels.crc import CRC_BEGIN, FOLD_BYTES, LANE_BYTES, LONG_LANE_BYTES

AROUND = (-1, 0, 1, 8)
SIZES = [*range(70), 5000, 20_001, 6 * LONG_LANE_BYTES + 3 * LANE_BYTES + 13]
SIZES += [3 * lane + step for lane in (LANE_BYTES, LONG_LANE_BYTES) for step in AROUND]
SIZES += [times * FOLD_BYTES + step for times in (1, 2, 3) for step in AROUND]


def test_the_kernels_sum_is_the_librarys_at_every_size_and_alignment() -> None:
    rng = random.Random(3)
    for size in SIZES:
        data = rng.randbytes(size + 9)
        for begin in (0, 1, 7):
            end = begin + size
            expected, array = crc32c(data[begin:end]), np.frombuffer(data, np.uint8)
            assert crc_kernel.crc32c(array, begin, end) == expected
            by_lanes = crc_kernel.more_by_lanes(CRC_BEGIN, array, begin, end)
            assert by_lanes ^ CRC_BEGIN == expected, "what processors without wide vectors do"


def test_the_tables_give_what_the_instruction_gives() -> None:
    rng = random.Random(4)
    for _ in range(50):
        word = rng.randbytes(8)
        crc = rng.getrandbits(32)
        by_tables = crc_kernel._by_tables(crc, int.from_bytes(word, "little"))
        assert int(by_tables) ^ 0xFFFFFFFF == crc32c(word, crc ^ 0xFFFFFFFF)


@pytest.mark.parametrize(("begin", "end"), [(-1, 4), (4, 3), (0, 11), (11, 12)])
def test_bounds_outside_of_the_data_have_no_sum(begin: int, end: int) -> None:
    assert crc_kernel.crc32c(np.zeros(10, np.uint8), begin, end) == -1


BATCHES = b"".join(
    encode_batch([Record(0, 5, b"k", b"v" * size)], base_offset=number)
    for number, size in enumerate((0, 3, 700, 1))
)


@given(st.integers(0, len(BATCHES)), st.integers(0, len(BATCHES) - 1), st.integers(0, 8))
def test_the_walk_over_cut_and_flipped_batches_is_the_plain_one(
    cut: int, flip: int, bit: int
) -> None:

    data = bytearray(BATCHES[:cut])
    if flip < cut and bit < 8:
        data[flip] ^= 1 << bit
    for check_crc in (True, False):
        view = memoryview(data)
        positions, end, damaged = batch_kernel.sound_batches(view, check_crc)
        plain = plain_sound_batches(view, check_crc)
        assert (positions.tolist(), end, damaged) == plain
