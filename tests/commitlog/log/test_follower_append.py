"""A follower takes only whole batches of a response, of the epochs that it requested."""

from __future__ import annotations

import pytest

from commitlog.types import UnexpectedAppendOffsetError
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import CorruptMessageError

PLAIN = batch(2, base_offset=0, partition_leader_epoch=3)
NEXT = batch(3, base_offset=2, partition_leader_epoch=4)
LAST = batch(1, base_offset=5, partition_leader_epoch=6)
ANSWER = PLAIN + NEXT + LAST
SETTINGS = config(segment_bytes=1 << 20)


@pytest.mark.parametrize(
    ("epoch", "taken", "end"),
    [(2, b"", 0), (3, PLAIN, 2), (4, PLAIN + NEXT, 5), (5, PLAIN + NEXT, 5), (6, ANSWER, 6)],
)
def test_batches_of_later_epochs_are_left_for_a_later_fetch(
    epoch: int, taken: bytes, end: int
) -> None:
    log = open_log(settings=SETTINGS)
    info = log.append_as_follower(memoryview(ANSWER), NOW, epoch_max=epoch)
    assert log.log_end_offset == end
    assert info.size_bytes == log.size_bytes == len(taken)
    assert bytes(log.read(0, 1 << 20).records) == taken


def test_a_batch_that_is_cut_off_is_left_out_wherever_it_is_cut() -> None:
    for size in range(len(ANSWER)):
        log = open_log(settings=SETTINGS)
        log.append_as_follower(ANSWER[:size], NOW, epoch_max=6)
        whole = [end for end in (0, len(PLAIN), len(PLAIN + NEXT)) if end <= size]
        assert log.size_bytes == whole[-1]


def test_what_follows_the_last_batch_taken_is_not_looked_at() -> None:
    log = open_log(settings=SETTINGS)
    damaged = bytearray(ANSWER)
    damaged[-1] ^= 1
    assert log.append_as_follower(damaged, NOW, epoch_max=5).batches == 2


@pytest.mark.parametrize("position", [len(PLAIN) + 8, len(PLAIN) + 16, len(PLAIN) + 70])
def test_a_damaged_batch_is_an_error_and_nothing_is_kept(position: int) -> None:
    log = open_log(settings=SETTINGS)
    damaged = bytearray(ANSWER)
    damaged[position] ^= 0x80
    with pytest.raises(CorruptMessageError):
        log.append_as_follower(damaged, NOW, epoch_max=6)
    assert log.log_end_offset == 0


def test_without_an_epoch_a_batch_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(CorruptMessageError):
        open_log(settings=SETTINGS).append_as_follower(ANSWER[:-1], NOW)


def test_an_append_that_fills_several_segments_is_summed_up() -> None:
    log = open_log(settings=config(segment_bytes=200))
    newest = batch(1, timestamp=NOW + 50, base_offset=0)
    others = [batch(1, timestamp=NOW, base_offset=offset) for offset in range(1, 6)]
    info = log.append_as_follower(newest + b"".join(others), NOW)
    assert len(log.segments) > 2
    assert (info.first_offset, info.last_offset, info.batches) == (0, 5, 6)
    assert (info.max_timestamp_ms, info.size_bytes) == (NOW + 50, log.size_bytes)


@pytest.mark.parametrize("taken", [PLAIN, PLAIN + NEXT, ANSWER])
def test_a_gap_before_the_last_batch_is_believed_only_where_the_leader_says_the_same(
    taken: bytes,
) -> None:
    """No CRC covers the base offset, and nothing behind the last batch contradicts it."""
    end = {len(PLAIN): 2, len(PLAIN + NEXT): 5, len(ANSWER): 6}[len(taken)]
    start = {len(PLAIN): 0, len(PLAIN + NEXT): len(PLAIN), len(ANSWER): len(PLAIN + NEXT)}
    for bit in range(8 * 8 - 1):
        damaged = bytearray(taken)
        damaged[start[len(taken)] + 7 - bit // 8] ^= 1 << bit % 8
        log = open_log(settings=SETTINGS)
        with pytest.raises(UnexpectedAppendOffsetError):
            log.append_as_follower(damaged, NOW, gaps_allowed=True, epoch_max=6, end_offset=end)
        assert log.log_end_offset == 0
    log = open_log(settings=SETTINGS)
    info = log.append_as_follower(taken, NOW, gaps_allowed=True, epoch_max=6, end_offset=end)
    assert info.last_offset + 1 == log.log_end_offset == end


def test_a_part_that_is_taken_needs_not_to_end_where_the_whole_answer_does() -> None:
    log = open_log(settings=SETTINGS)
    log.append_as_follower(ANSWER, NOW, gaps_allowed=True, epoch_max=4, end_offset=6)
    assert log.log_end_offset == 5
