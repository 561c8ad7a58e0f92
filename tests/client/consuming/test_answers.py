"""Bounds of the batches that answer a fetch: each one broken, and each one kept exactly."""

from __future__ import annotations

import pytest

from tests.client.consuming.harness import FakeLog
from tidemark.client.consuming.answers import error_of, extent_of_answer
from tidemark.client.consuming.partition import Position
from tidemark.errors import CorruptMessageError, ErrorCode, OffsetOutOfRangeError

BATCHES = [(3, 1), (3, 2), (3, 2)]
"""Offsets 0..8 in three batches: (count, leader epoch) of each."""


def answer(first: int = 0, end: int = 3) -> bytes:
    log = FakeLog()
    return b"".join([log.append(count, epoch) for count, epoch in BATCHES][first:end])


def judged(
    data: bytes,
    asked: Position,
    *,
    leader_epoch: int = -1,
    high_watermark: int = -1,
    next_offset: int = 0,
) -> int:
    """Returns the offset behind the last batch."""
    buffer = memoryview(data)
    return extent_of_answer(buffer, asked, leader_epoch, high_watermark, next_offset).next_offset


def refused(text: str, data: bytes, asked: Position, **bounds: int) -> None:
    with pytest.raises(CorruptMessageError, match=text):
        judged(data, asked, **bounds)


def test_the_first_batch_holds_the_position_or_a_later_one() -> None:
    assert judged(answer(), Position(0)) == 9
    assert judged(answer(1), Position(4)) == 9, "a seek may go into a batch"
    assert judged(answer(1), Position(5)) == 9
    assert judged(answer(1), Position(2)) == 9, "compaction leaves gaps"
    refused("ends at 5", answer(1, 2), Position(6))


def test_behind_a_batch_the_next_one_begins_there_or_later() -> None:
    assert judged(answer(1), Position(3, follows_batch=True)) == 9
    assert judged(answer(1), Position(2, follows_batch=True)) == 9
    refused("below|overlap|offset", answer(1), Position(4, follows_batch=True))


def test_bytes_that_are_no_whole_batch_say_so() -> None:
    whole = answer(0, 1)
    refused("no whole batch", whole[:-1], Position(0))
    refused("no whole batch", whole[:10], Position(0))
    assert judged(whole + answer(1, 2)[:-1], Position(0)) == 3, "the last one may be cut"


def test_no_batch_reaches_beyond_the_high_watermark() -> None:
    assert judged(answer(), Position(0), high_watermark=9) == 9
    assert judged(answer(), Position(0), high_watermark=-1) == 9, "it is not known"
    refused("high watermark is 8", answer(), Position(0), high_watermark=8)
    refused("high watermark is 0", answer(), Position(0), high_watermark=0)


def test_the_batches_end_where_the_leader_says_unless_the_last_one_is_cut() -> None:
    assert judged(answer(), Position(0), next_offset=9) == 9
    refused("read up to 7", answer(), Position(0), next_offset=8)
    refused("read up to 9", answer(), Position(0), next_offset=10)
    cut = answer()[:-1]
    assert judged(cut, Position(0), next_offset=9) == 6
    assert judged(cut, Position(0), next_offset=6) == 6
    refused("read up to 4", cut, Position(0), next_offset=5)


def test_no_epoch_is_older_than_that_of_the_records_before_or_newer_than_the_leaders() -> None:
    assert judged(answer(), Position(0, 1, follows_batch=True)) == 9
    refused("begins in leader epoch 1", answer(), Position(0, 2, follows_batch=True))
    assert judged(answer(), Position(0, 2)) == 9, "the epoch of a seek is the caller's"
    assert judged(answer(), Position(0), leader_epoch=2) == 9
    refused("leader's is 1", answer(), Position(0), leader_epoch=1)
    refused("leader's is 0", answer(), Position(0), leader_epoch=0)


def test_epoch_0_is_older_than_epoch_1() -> None:
    batch = FakeLog().append(2, epoch=0)
    refused("begins in leader epoch 0", batch, Position(0, 1, follows_batch=True))
    assert judged(batch, Position(0, 0, follows_batch=True), leader_epoch=0) == 2


def test_an_error_names_its_partition_whatever_its_number() -> None:
    known = error_of(ErrorCode.OFFSET_OUT_OF_RANGE, "t-0: too far: ")
    assert isinstance(known, OffsetOutOfRangeError)
    assert str(known) == "t-0: too far"
    assert str(error_of(12_345, "t-0: ")).endswith("of t-0")
