"""The core's decisions for each kind of answer, error and metadata; time is the test's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from tests.client.consuming.harness import A, B, C, Fetching, failing, filled, in_flight
from tidemark.client.consuming.assignment import Taken
from tidemark.client.consuming.damage import examine
from tidemark.client.consuming.partition import Fetched, Position
from tidemark.client.errors import (
    CorruptBatchError,
    NoOffsetForPartitionError,
)
from tidemark.client.throttled import ThrottledNodes
from tidemark.errors import (
    ApiError,
    CorruptMessageError,
    ErrorCode,
    InvalidTopicError,
    NetworkError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition
from tidemark.wire import FetchPartitionData, FetchResponse

OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


def offsets(found: list[tuple[TopicPartition, int, bytes | None]]) -> list[tuple[int, int]]:
    return [(partition.partition, offset) for partition, offset, _ in found]


# Answers that nobody foresaw.


@pytest.mark.parametrize("code", [12345, -7, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_an_unknown_error_code_is_its_partitions_own_affair(code: int) -> None:
    fetching = Fetching()
    fetching.assign(A, B, C)
    batch = fetching.logs[B].append(2)
    fetching.answer(failing(A, code), filled(B, [batch]), FetchPartitionData(*C))
    assert offsets(fetching.poll()) == [(1, 0), (1, 1)]
    assert in_flight(fetching) == {B, C}
    error = fetching.error()
    assert isinstance(error, UnknownServerError)
    assert "t-0" in str(error)
    fetching.step(after_ms=200)
    assert in_flight(fetching) == {A, B, C}, "and it is asked for again"


def test_an_answer_that_can_not_be_processed_fails_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    broken = FetchPartitionData(*A, records=b"x" * 100, high_watermark="?")  # type: ignore[arg-type]
    whole = fetching.logs[A].append(1) * 2
    broken.records = whole[: len(whole) // 2]
    fetching.answer(broken, filled(B, [fetching.logs[B].append(1)]))
    assert offsets(fetching.poll()) == [(1, 0)]
    error = fetching.error()
    assert isinstance(error, UnknownServerError)
    assert isinstance(error.__cause__, TypeError)
    assert "fetching failed" in caplog.text
    fetching.step(after_ms=200)
    assert in_flight(fetching) == {A, B}


def test_answers_for_others_or_twice_leave_nobody_in_flight() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    twice = failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    fetching.answer(FetchPartitionData("other", 3), failing(C, 3), twice, twice)
    assert in_flight(fetching) == {B}, "the node has nothing new of it"
    fetching.step(after_ms=100)
    assert in_flight(fetching) == {A, B}


def test_a_call_that_fails_for_any_reason_frees_its_partitions() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    fetching.fail(RuntimeError("no memory"))
    assert in_flight(fetching) == set()
    assert isinstance(fetching.error(), UnknownServerError)
    assert isinstance(fetching.error(), UnknownServerError)
    fetching.step(after_ms=100)
    assert in_flight(fetching) == {A, B}


def test_a_node_that_answers_at_once_with_nothing_is_not_asked_at_full_speed() -> None:
    fetching = Fetching()
    fetching.assign(A)
    answers = 0
    for _ in range(100):
        if fetching.sent:
            answers += 1
            fetching.answer(FetchPartitionData(*A), after_ms=1)
        fetching.step(after_ms=1)
    assert answers <= 3


# Damage.


def damaged(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[HEADER_BYTES + 3] ^= 4
    return bytes(changed)


def test_a_corrupt_batch_stops_its_partition_until_a_seek_and_no_other() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    log = fetching.logs[A]
    served = [log.append(3), damaged(log.append(3)), log.append(3)]
    fetching.answer(filled(A, served), filled(B, [fetching.logs[B].append(2)]))
    assert offsets(fetching.poll()) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    for offset in range(2, 6):
        error = fetching.error()
        assert isinstance(error, CorruptBatchError)
        assert (error.topic_partition, error.offset) == (A, 3)
        assert fetching.error() is None, "by turns with the others' records"
        fetching.answer(filled(B, [fetching.logs[B].append(1)]))
        assert offsets(fetching.poll()) == [(1, offset)]
    assert isinstance(fetching.error(), CorruptBatchError)
    assert isinstance(fetching.error(got_nothing=True), CorruptBatchError), "not an empty poll"
    assert in_flight(fetching) == {B}
    fetching.seek(A, 6)
    fetching.step()
    assert fetching.error(got_nothing=True) is None
    fetching.answer(FetchPartitionData(*B))
    fetching.answer(filled(A, served[2:]))
    assert offsets(fetching.poll()) == [(0, 6), (0, 7), (0, 8)]


def test_a_paused_partition_keeps_its_error_to_itself() -> None:
    fetching = Fetching()
    fetching.assign(A)
    fetching.answer(filled(A, [damaged(fetching.logs[A].append(3))]))
    fetching.poll()
    fetching.core.assignment.pause(fetching.partitions[A])
    assert fetching.error(got_nothing=True) is None
    fetching.core.assignment.resume(fetching.partitions[A])
    assert isinstance(fetching.error(), CorruptBatchError)


@pytest.mark.parametrize(("at", "epoch"), [(0, 9), (4, 1)])
def test_an_epoch_that_the_leader_can_not_have_is_damage(at: int, epoch: int) -> None:
    """Taken for true, it would be sent as the epoch of the position, and end as a truncation."""
    fetching = Fetching()
    fetching.assign(A, at=None)
    fetching.leaders.epochs[A] = 5
    log = fetching.logs[A]
    served = [log.append(4, epoch=2), log.append(4, epoch=2)]
    fetching.seek(A, 0)
    fetching.step()
    if at:
        fetching.answer(filled(A, served[:1]))
        fetching.poll()
    wrong = bytearray(served[1 if at else 0])
    wrong[12:16] = epoch.to_bytes(4, "big")
    fetching.answer(filled(A, [bytes(wrong)]))
    fetching.poll()
    assert isinstance(fetching.error(), CorruptBatchError)


@pytest.mark.parametrize(("base", "is_found"), [(0, False), (7, True)])
def test_a_batch_that_moved_up_alone_is_found_by_the_end_that_the_leader_names(
    base: int, is_found: bool
) -> None:
    """No neighbour contradicts it, and the gap before it could be one that compaction left."""
    fetching = Fetching()
    fetching.assign(A)
    batch = fetching.logs[A].append(3)
    data = filled(A, [base.to_bytes(8, "big") + batch[8:]])
    data.next_offset = 3
    fetching.answer(data)
    assert len(fetching.poll()) == (0 if is_found else 3)
    assert isinstance(fetching.error(), CorruptBatchError) == is_found


# Leaders.


def test_a_hung_leader_is_left_by_each_partition_as_it_moves() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    hung = next(iter(fetching.sent))
    fetching.leaders.leaders[A] = 2
    fetching.refreshed()
    assert fetching.asked() == [(1, [A, B]), (2, [A])], "not only when B has moved as well"
    assert fetching.cancelled == []
    fetching.leaders.leaders[B] = 3
    fetching.refreshed()
    assert fetching.asked()[1:] == [(2, [A]), (3, [B])]
    fetching.step()
    assert fetching.cancelled == [hung], "nobody waits for it"
    batch = fetching.logs[A].append(1)
    fetching.reply(hung, FetchResponse([filled(A, [batch])]))
    assert fetching.poll() == [], "a late answer is nobody's"


def test_a_slow_call_has_the_metadata_looked_at_now_and_then() -> None:
    fetching = Fetching()
    fetching.assign(A)
    assert fetching.wake_at_ms == 2_500, "a long poll of 500 ms is slow by design"
    for number in range(1, 4):
        fetching.step(after_ms=2_500)
        assert fetching.refreshes == number
        fetching.refreshed()


def test_a_topic_that_is_gone_is_asked_for_with_growing_pauses() -> None:
    fetching = Fetching()
    fetching.assign(A)
    fetching.leaders.leaders[A] = None
    fetching.leaders.errors["t"] = UnknownTopicOrPartitionError("t")
    fetching.answer(failing(A, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    began_ms = fetching.now_ms
    while fetching.now_ms < began_ms + 60_000:
        fetching.step()
        if fetching.is_refreshing:
            fetching.refreshed()
        assert fetching.wake_at_ms is not None
        fetching.now_ms = max(fetching.now_ms, fetching.wake_at_ms)
    assert 55 <= fetching.refreshes <= 65, "once a second (retry.backoff.max.ms), not ten times"
    fetching.leaders.leaders[A] = 2
    fetching.step(1000)
    fetching.refreshed()
    assert fetching.asked() == [(2, [A])]


def test_refreshes_that_fail_are_repeated_with_growing_pauses() -> None:
    fetching = Fetching()
    fetching.assign(A)
    fetching.leaders.mark_stale()
    fetching.step()
    for wait_ms in (100, 200, 400, 800, 1000, 1000):
        fetching.refreshed(NetworkError("no node"))
        fetching.step(after_ms=wait_ms - 1)
        assert not fetching.is_refreshing
        fetching.step(after_ms=1)
        assert fetching.is_refreshing


def test_a_leader_that_an_answer_names_is_asked_at_once() -> None:
    fetching = Fetching()
    fetching.assign(A)
    fetching.answer(failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 7)))
    assert fetching.asked() == [(2, [A])]
    fetching.answer(failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 7)))
    assert fetching.asked() == [], "but not twice"


def test_an_error_of_the_topic_that_no_retry_cures_is_raised() -> None:
    fetching = Fetching()
    fetching.assign(A)
    fetching.leaders.leaders[A] = None
    fetching.leaders.errors["t"] = InvalidTopicError("t")
    fetching.answer(failing(A, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    fetching.step(after_ms=100)
    assert isinstance(fetching.error(), InvalidTopicError)


def test_a_throttled_client_leaves_the_node_alone_for_so_long() -> None:
    fetching = Fetching()
    fetching.leaders.leaders[C] = 2
    fetching.assign(A, B, C)
    fetching.answer(FetchPartitionData(*A), FetchPartitionData(*B), throttle=3_000)
    assert fetching.asked() == [(2, [C])]
    fetching.seek(B, 0)
    fetching.step(after_ms=2_999)
    assert fetching.asked() == [(2, [C])]
    fetching.step(after_ms=1)
    assert fetching.asked() == [(2, [C]), (1, [A, B])]


def test_a_throttled_answer_without_partitions_is_no_failure_and_is_asked_again() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    fetching.answer(throttle=3_000)
    assert not fetching.leaders.is_stale
    fetching.step(after_ms=2_999)
    assert fetching.asked() == []
    fetching.step(after_ms=1)
    assert fetching.asked() == [(1, [A, B])]
    times = {"fetch-throttle-time-avg": 3_000, "fetch-throttle-time-max": 3_000}
    assert fetching.core.throttled.metrics("fetch") == times


def test_a_shorter_throttle_time_of_another_answer_does_not_shorten_a_longer_one() -> None:
    throttled = ThrottledNodes()
    throttled.answered(1, 3_000, 0.0)
    throttled.answered(1, 100, 10.0)
    throttled.answered(1, 0, 20.0)
    assert throttled.until_ms(1) == 3_000
    assert throttled.until_ms(2) == 0
    assert list(throttled.ends_after(2_999)) == [3_000]
    assert list(throttled.ends_after(3_000)) == []


def test_only_what_the_buffer_has_room_for_is_fetched_and_decoding_overlaps() -> None:
    fetching = Fetching(max_partition_fetch_bytes=100)
    fetching.assign(A)
    log = fetching.logs[A]
    log.append(30)
    log.append(30)
    fetching.serve(max_bytes=1)
    assert not fetching.sent, "100 bytes are ahead of the reader"
    (item,) = fetching.partitions[A].buffered
    fetching.core.assignment.begin(fetching.partitions[A], item)
    fetching.step()
    assert fetching.asked() == [(1, [A])]
    fetching.serve(max_bytes=1)
    assert not fetching.sent
    assert len(fetching.poll()) == 60


def test_a_paused_partition_is_not_fetched_and_a_full_buffer_holds_up_all() -> None:
    fetching = Fetching(buffer_bytes=50)
    fetching.assign(A, B)
    fetching.core.assignment.pause(fetching.partitions[A])
    fetching.answer(FetchPartitionData(*A), FetchPartitionData(*B))
    assert fetching.asked() == [(1, [B])]
    fetching.answer(filled(B, [fetching.logs[B].append(5)]))
    fetching.core.assignment.resume(fetching.partitions[A])
    fetching.step()
    assert not fetching.sent, "buffer_bytes are ahead of the reader"
    fetching.poll()
    assert fetching.asked() == [(1, [B, A])]


def test_a_node_has_two_fetches_under_way_at_most() -> None:
    fetching = Fetching()
    for number, partition in enumerate((A, B, C)):
        fetching.assign(*(A, B, C)[: number + 1], at=None)
        fetching.seek(partition, 0)
        fetching.step()
    assert fetching.asked() == [(1, [A]), (1, [B])]


def test_an_error_of_a_whole_answer_is_each_partitions_to_repeat() -> None:
    fetching = Fetching()
    fetching.assign(A, B)
    (request_id,) = fetching.sent
    fetching.reply(request_id, FetchResponse([], ErrorCode.BROKER_NOT_AVAILABLE, "starting"))
    assert not fetching.sent
    assert fetching.is_refreshing
    fetching.step(after_ms=100)
    assert fetching.asked() == [(1, [A, B])]


def test_damage_that_the_node_reports_is_raised_and_fetched_again() -> None:
    """Another replica may lead by then, or the damaged one be copied anew."""
    fetching = Fetching()
    fetching.assign(A)
    for _ in range(3):
        fetching.answer(failing(A, ErrorCode.CORRUPT_MESSAGE))
        fetching.step(after_ms=2_000)
        assert not fetching.sent, "not before the reader knows"
        assert isinstance(fetching.error(), CorruptMessageError)
        assert fetching.error(got_nothing=True) is None
        fetching.step(after_ms=1_000)
    fetching.answer(filled(A, [fetching.logs[A].append(1)]))
    assert len(fetching.poll()) == 1


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, 12345])
def test_a_refusal_behind_fetched_batches_is_told_to_a_reader_that_gets_there(code: int) -> None:
    """It was told seconds later, when its cause had long been gone."""
    fetching = Fetching()
    fetching.assign(A)
    first, second = (fetching.logs[A].append(1) for _ in range(2))
    fetching.answer(filled(A, [first]))
    for _ in range(3):
        fetching.answer(failing(A, code))
        assert fetching.error(got_nothing=True) is None
        fetching.step(after_ms=2_000)
    assert offsets(fetching.poll()) == [(0, 0)]
    fetching.answer(filled(A, [second]))
    assert offsets(fetching.poll()) == [(0, 1)], "the cause was gone before the reader came"
    fetching.answer(failing(A, code))
    assert fetching.error() is not None, "the reader is there"


@pytest.mark.parametrize("level", [0, 1])
def test_aborted_transactions_count_for_read_committed_only(level: int) -> None:
    fetching = Fetching(isolation_level=level)
    fetching.assign(A)
    fetching.answer(
        filled(A, [fetching.logs[A].append(1)]),
    )
    data = filled(A, [fetching.logs[A].append(1)])
    data.aborted_transactions = ((5, 1),)
    fetching.answer(data)
    (_, item) = fetching.partitions[A].buffered
    assert item.raw.aborted == (((5, 1),) if level else ())


def test_a_refresh_that_succeeds_ends_the_growing_pauses() -> None:
    fetching = Fetching()
    fetching.assign(A)
    for error in (NetworkError("no node"), NetworkError("no node"), None):
        fetching.leaders.mark_stale()
        fetching.step(after_ms=1_000)
        fetching.refreshed(error)
    fetching.leaders.mark_stale()
    fetching.step(after_ms=100)
    assert fetching.is_refreshing


# Positions that are looked up.


def test_a_look_up_that_fails_for_one_partition_holds_up_no_other() -> None:
    fetching = Fetching("earliest")
    fetching.assign(A, B, at=None)
    request_id, request = next(iter(fetching.sent.items()))
    assert not request.is_fetch
    del fetching.sent[request_id]
    fetching.core.found(request_id, {A: UnknownTopicOrPartitionError("A"), B: None}, 0)
    fetching.step()
    assert fetching.partitions[B].reader == Position(0)
    assert in_flight(fetching) == {B}
    fetching.step(after_ms=100)
    assert in_flight(fetching) == {A, B}


def test_a_look_up_that_nobody_answers_is_an_error_after_its_time_and_goes_on() -> None:
    fetching = Fetching("earliest")
    fetching.assign(A, at=None)
    errors: list[ApiError] = []
    while fetching.now_ms < 130_000:
        if fetching.sent:
            fetching.fail(NetworkError("cut off"))
        fetching.step(after_ms=500)
        error = fetching.error()
        if error is not None:
            assert isinstance(error, NetworkError)
            errors.append(error)
    assert len(errors) == 2, "one a minute (default.api.timeout.ms)"


def test_without_a_policy_a_partition_without_a_position_says_so_and_others_go_on() -> None:
    fetching = Fetching("none")
    fetching.assign(A, at=None)
    fetching.assign(A, B, at=None)
    fetching.seek(B, 0)
    fetching.step()
    assert isinstance(fetching.error(), NoOffsetForPartitionError)
    fetching.answer(filled(B, [fetching.logs[B].append(1)]))
    assert offsets(fetching.poll()) == [(1, 0)]
    assert isinstance(fetching.error(), NoOffsetForPartitionError)


def test_a_partition_no_longer_assigned_is_forgotten_with_its_requests() -> None:
    fetching = Fetching()
    fetching.assign(A)
    (request_id,) = fetching.sent
    fetching.assign(B)
    assert fetching.cancelled == [request_id]
    fetching.reply(request_id, FetchResponse([filled(A, [fetching.logs[A].append(1)])]))
    assert fetching.poll() == []
    assert list(fetching.partitions) == [B]


class Unscanned(deque[Fetched]):
    """Batches of which no step may look at all."""

    def __iter__(self) -> Iterator[Fetched]:
        raise AssertionError("looks at every batch")

    __contains__ = __iter__  # type: ignore[assignment]


def test_no_step_looks_at_all_batches_that_wait() -> None:
    """A reader that rests while small batches come in has thousands of them."""
    fetching = Fetching()
    fetching.assign(A)
    fetching.core.validate = lambda: None  # type: ignore[method-assign]
    assignment, partition = fetching.core.assignment, fetching.partitions[A]
    buffered = partition.buffered = Unscanned()
    for _ in range(20):
        fetching.logs[A].append(1)
        fetching.serve(1)
    assert len(buffered) == 20
    taken = [Taken(partition, buffered[at]) for at in range(20)]
    for item in [one.item for one in taken]:
        assignment.begin(partition, item)
        assignment.examined(partition, item, examine(item.raw, decodes=True, check_crcs=True).rows)
    assignment.handed_over(taken)
    assert partition.reader is not None
    assert partition.reader.offset == 20
    assert partition.held_bytes == 0


def test_busy_partitions_do_not_keep_idle_ones_at_the_end_of_requests() -> None:
    fetching = Fetching()
    fetching.assign(A, B, C)
    fetching.answer(filled(A, [fetching.logs[A].append(1)]))  # full before B and C
    assert fetching.asked() == [(1, [B, C, A])]


def test_seeks_cancel_the_long_poll_that_nobody_waits_for() -> None:
    fetching = Fetching()
    fetching.assign(A)
    for _ in range(3):
        (request_id, *_) = fetching.sent
        fetching.seek(A, 0)
        fetching.step()
        assert fetching.cancelled.pop() == request_id
        del fetching.sent[request_id]
        fetching.core.failed(request_id, NetworkError("cancelled"), fetching.now_ms)
        fetching.step()
        assert fetching.asked() == [(1, [A])]


def test_the_epoch_before_an_offset_is_that_of_the_batch_that_ends_there() -> None:
    fetching = Fetching()
    fetching.assign(A)
    log = fetching.logs[A]
    for epoch in (1, 2, 5):
        log.append(3, epoch)
    fetching.serve()
    found = []
    for _ in range(8):
        fetching.poll(max_records=1)
        reader = fetching.partitions[A].reader
        assert reader is not None
        found.append((reader.offset, reader.epoch))
    assert found == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 5), (8, 5)]


def test_what_was_taken_before_a_seek_and_delivered_after_it_moves_nothing() -> None:
    """Other batches are at the front by then, of the same offsets."""
    fetching = Fetching()
    fetching.assign(A)
    fetching.logs[A].append(4)
    fetching.serve()
    fetching.load()
    item = fetching.partitions[A].buffered[0]
    fetching.seek(A, 0)
    fetching.step()
    fetching.serve(request_id=max(fetching.sent))
    fetching.core.assignment.handed_over([Taken(fetching.partitions[A], item)])
    fetching.core.validate()
    assert fetching.partitions[A].reader == Position(0)
    assert len(fetching.poll()) == 4
