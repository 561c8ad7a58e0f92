"""A wrong bit anywhere in a fetched batch is told to the reader: no batch is passed over for it."""

from __future__ import annotations

import pytest

from tidemark.client.consuming.damage import examine
from tidemark.client.errors import CorruptBatchError
from tidemark.client.records import RawBatches, decode
from tidemark.errors import CorruptMessageError
from tidemark.records import Record, decode_arrow, encode_batch, iter_batches
from tidemark.records.header import ATTRIBUTES_AT
from tidemark.types import TopicPartition

ABORTED = ((5, 2),)
"""The transaction of the second batch."""


def fetched() -> bytes:
    """Batches [0, 1], [2] of a transaction that was aborted, and [3]."""
    return b"".join(
        (
            encode_batch([Record(0, 1_000, b"k", b"a"), Record(1, 1_000, b"k", b"b")]),
            encode_batch(
                [Record(2, 1_000, b"k", b"c")],
                base_offset=2,
                producer_id=5,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            ),
            encode_batch([Record(3, 1_000, b"k", b"d")], base_offset=3),
        )
    )


def raw_of(data: bytes, first_offset: int = 0) -> RawBatches:
    return RawBatches(
        TopicPartition("t", 0), memoryview(data), first_offset, 4, 4, 0, aborted=ABORTED
    )


@pytest.mark.parametrize("decodes", [True, False])
def test_each_bit_that_the_crc_covers_is_an_error_at_its_batch(decodes: bool) -> None:
    sound = fetched()
    assert decode(raw_of(sound)).column("offset").to_pylist() == [0, 1, 3]
    for position, header in iter_batches(sound):
        for bit in range(8 * (position + ATTRIBUTES_AT), 8 * (position + header.size_bytes)):
            data = bytearray(sound)
            data[bit // 8] ^= 1 << bit % 8
            found = examine(raw_of(bytes(data)), decodes=decodes, check_crcs=True)
            assert isinstance(found.error, CorruptBatchError), bit
            assert found.error.offset == header.base_offset, bit
            before = b"" if found.sound is None else bytes(found.sound.buffer)
            assert before == sound[:position], bit


def test_a_batch_that_its_flipped_fields_put_out_of_the_range_is_an_error_too() -> None:
    sound = fetched()
    first = next(iter(iter_batches(sound)))[1]
    for bit in range(8 * ATTRIBUTES_AT, 8 * first.size_bytes):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessageError):
            decode_arrow(bytes(data), min_offset=1, max_offset=3)
        with pytest.raises(CorruptMessageError):
            decode(raw_of(bytes(data), first_offset=1))
