"""Leader epochs and topic ids of positions: truncated logs, and topics made anew (KIP-320)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.client.consuming.harness import A, Fetching, failing
from tidemark.client.consuming.partition import Position
from tidemark.client.errors import LogTruncationError, TopicRecreatedError
from tidemark.errors import ErrorCode, OffsetOutOfRangeError
from tidemark.wire import FetchPartitionData

OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


def test_a_fetch_names_the_epoch_of_the_records_before_it() -> None:
    fetching = Fetching()
    fetching.leaders.epochs[A], fetching.leaders.ids["t"] = 6, OLD_ID
    fetching.assign(A)
    log = fetching.logs[A]
    log.append(2, epoch=3)
    log.append(2, epoch=5)
    fetching.serve()
    (request,) = fetching.sent.values()
    ask = request.asked[A]
    assert ask.target == Position(4, 5, OLD_ID, follows_batch=True)
    assert (ask.leader_epoch, ask.topic_id) == (6, OLD_ID)
    fetching.poll(max_records=1)
    assert fetching.partitions[A].reader == Position(1, 3)
    fetching.poll(max_records=2)
    assert fetching.partitions[A].reader == Position(3, 5)
    fetching.poll()
    assert fetching.partitions[A].reader == Position(4, 5)


def truncated(reset: str) -> Fetching:
    """A reader at 8; an unclean election left 4 records of epoch 1, others of epoch 2 follow."""
    fetching = Fetching(reset)
    fetching.assign(A)
    log = fetching.logs[A]
    for _ in range(4):
        log.append(2, epoch=1)
    fetching.serve()
    fetching.poll()
    log.truncate(4)
    log.append(8, epoch=2, mark=b" new")
    return fetching


def test_a_truncated_log_is_an_error_that_names_where_it_parts() -> None:
    fetching = truncated("none")
    fetching.serve()
    for _ in range(2):
        error = fetching.error(got_nothing=True)
        assert isinstance(error, LogTruncationError)
        assert (error.offset, error.diverging_offset, error.diverging_epoch) == (8, 4, 1)
    assert not fetching.sent, "until the caller seeks"
    fetching.seek(A, error.diverging_offset, error.diverging_epoch)
    fetching.step()
    fetching.serve()
    assert [value for _, _, value in fetching.poll()] == [b"%d new" % n for n in range(4, 12)]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_with_a_policy_a_truncated_reader_goes_on_where_the_log_parts(reset: str) -> None:
    fetching = truncated(reset)
    fetching.serve()
    assert fetching.error() is None
    fetching.serve()
    assert [offset for _, offset, _ in fetching.poll()] == list(range(4, 12))


def test_records_fetched_before_a_truncation_are_handed_over_first() -> None:
    fetching = Fetching("earliest")
    fetching.assign(A)
    log = fetching.logs[A]
    for _ in range(3):
        log.append(2, epoch=1)
    fetching.serve()
    log.truncate(4)
    log.append(4, epoch=2, mark=b" new")
    fetching.serve()
    assert not fetching.sent
    assert [offset for _, offset, _ in fetching.poll(max_records=5)] == list(range(5))
    assert [offset for _, offset, _ in fetching.poll()] == [5]
    fetching.serve()
    assert [offset for _, offset, _ in fetching.poll()] == [4, 5, 6, 7]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_out_of_range_does_not_skip_what_was_fetched_before(reset: str) -> None:
    fetching = Fetching(reset)
    fetching.assign(A)
    fetching.logs[A].append(6)
    fetching.serve()
    fetching.answer(failing(A, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert fetching.error() is None
    assert len(fetching.poll()) == 6
    if reset == "none":
        assert isinstance(fetching.error(), OffsetOutOfRangeError)
    else:
        fetching.serve()
        assert fetching.partitions[A].reader == Position(0 if reset == "earliest" else 6)


def test_a_leader_that_has_the_offsets_in_an_older_epoch_is_asked_under_that_one() -> None:
    """A position from a look-up names the epoch of a leader that wrote nothing."""
    fetching = Fetching()
    fetching.leaders.epochs[A] = 8
    fetching.assign(A, at=None)
    fetching.seek(A, 10, epoch=7)
    fetching.step()
    fetching.answer(FetchPartitionData(*A, diverging_epoch=(5, 10)))
    (request,) = fetching.sent.values()
    assert request.asked[A].target == Position(10, 5)
    fetching.answer(FetchPartitionData(*A, diverging_epoch=(5, 10)))
    assert not fetching.sent, "an answer that leads nowhere is not repeated at full speed"


def test_a_position_of_a_newer_epoch_waits_for_newer_metadata() -> None:
    fetching = Fetching()
    fetching.leaders.epochs[A] = 3
    fetching.assign(A, at=None)
    fetching.seek(A, 10, epoch=4)
    fetching.step()
    assert not fetching.sent
    assert fetching.is_refreshing
    fetching.leaders.epochs[A] = 4
    fetching.refreshed()
    fetching.step(after_ms=100)
    assert fetching.asked() == [(1, [A])]


def recreated(reset: str, *, knows_at_first: bool = True) -> Fetching:
    """A reader of a topic that was made anew under its name; the metadata tells of the new one."""
    fetching = Fetching(reset)
    fetching.leaders.ids["t"] = OLD_ID
    fetching.assign(A)
    if knows_at_first:
        fetching.logs[A].append(5)
        fetching.serve()
        fetching.poll()
    fetching.answer(failing(A, ErrorCode.INCONSISTENT_TOPIC_ID))
    assert fetching.error(got_nothing=True) is None, "perhaps the node lags behind"
    fetching.leaders.ids["t"] = NEW_ID
    fetching.refreshed()
    fetching.step(after_ms=100)
    (request,) = fetching.sent.values()
    assert request.asked[A].topic_id == (OLD_ID if knows_at_first else NEW_ID)
    return fetching


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_topic_made_anew_is_told(code: ErrorCode) -> None:
    fetching = recreated("none")
    fetching.answer(failing(A, code))
    for _ in range(2):
        error = fetching.error(got_nothing=True)
        assert isinstance(error, TopicRecreatedError)
        assert (error.topic_partition, error.offset) == (A, 5)
    fetching.seek(A, 0)
    fetching.step()
    assert next(iter(fetching.sent.values())).asked[A].topic_id == NEW_ID


def test_with_a_policy_a_topic_made_anew_is_read_from_there() -> None:
    fetching = recreated("earliest")
    fetching.answer(failing(A, ErrorCode.INCONSISTENT_TOPIC_ID))
    fetching.serve()
    (request,) = fetching.sent.values()
    assert request.asked[A].target == Position(0)
    assert request.asked[A].topic_id == NEW_ID


def test_a_position_that_was_never_confirmed_is_not_of_an_old_topic() -> None:
    """The caller sought it, and the metadata of that moment were old."""
    fetching = recreated("none", knows_at_first=False)
    assert fetching.error(got_nothing=True) is None
    fetching.answer(FetchPartitionData(*A))
    assert fetching.error(got_nothing=True) is None


def test_one_node_that_lags_behind_makes_no_topic_new() -> None:
    """It names the old topic in its metadata, and refuses the new one as its leader."""
    fetching = Fetching()
    fetching.leaders.ids["t"] = NEW_ID
    fetching.assign(A)
    fetching.answer(FetchPartitionData(*A))
    fetching.leaders.ids["t"] = OLD_ID
    fetching.refreshed()
    fetching.answer(failing(A, ErrorCode.INCONSISTENT_TOPIC_ID))
    assert fetching.error(got_nothing=True) is None
    fetching.leaders.ids["t"] = NEW_ID
    fetching.refreshed()
    fetching.step(after_ms=100)
    fetching.answer(FetchPartitionData(*A))
    assert fetching.error(got_nothing=True) is None
    assert fetching.asked() == [(1, [A])]


@pytest.mark.parametrize("diverging", [(-1, -1), (3, -1), (-1, 4)])
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_a_truncation_without_a_known_end_is_reset_by_policy_or_told(
    reset: str, diverging: tuple[int, int]
) -> None:
    """The leader knows no epoch as old as that of the position."""
    fetching = Fetching(reset)
    fetching.assign(A)
    fetching.logs[A].append(6, epoch=9)
    fetching.seek(A, 4, epoch=2)
    fetching.step()
    asked = max(fetching.sent)
    fetching.sent = {asked: fetching.sent[asked]}
    fetching.answer(FetchPartitionData(*A, diverging_epoch=diverging))
    if reset == "none":
        error = fetching.error()
        assert isinstance(error, LogTruncationError)
        assert (error.offset, error.diverging_offset, error.diverging_epoch) == (4, None, None)
        assert "does not know" in str(error)
        return
    fetching.serve()
    assert fetching.partitions[A].reader == Position(0 if reset == "earliest" else 6)


def test_a_position_that_is_looked_up_and_refused_is_asked_for_with_growing_pauses() -> None:
    """As of a leader whose first offsets are gone by the time of the fetch, or that lags behind."""
    fetching = Fetching("earliest")
    fetching.assign(A)
    fetching.answer(failing(A, ErrorCode.OFFSET_OUT_OF_RANGE), after_ms=0)
    times = []
    for _ in range(6):
        while not fetching.sent:
            assert fetching.wake_at_ms is not None
            fetching.step(after_ms=fetching.wake_at_ms - fetching.now_ms)
        times.append(fetching.now_ms)
        fetching.serve()
        fetching.answer(failing(A, ErrorCode.OFFSET_OUT_OF_RANGE), after_ms=0)
    assert [b - a for a, b in pairwise(times)] == [100, 200, 400, 800, 1_000]
    fetching.logs[A].append(3)
    fetching.step(after_ms=1_000)
    fetching.serve()
    fetching.serve()
    assert len(fetching.poll()) == 3
    begin_ms = fetching.now_ms
    fetching.answer(failing(A, ErrorCode.OFFSET_OUT_OF_RANGE), after_ms=0)
    assert fetching.sent, "records came: the next one is looked up at once"
    assert fetching.now_ms == begin_ms


@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_offsets_that_are_there_in_an_older_epoch_alone_are_other_records(reset: str) -> None:
    """Records of epoch 7 were read up to 10; the leader has epoch 5 up to 12 and none of epoch 7.
    Kafka reads on without a word; a reader without a policy is told here."""
    fetching = Fetching(reset)
    fetching.leaders.epochs[A] = 8
    fetching.assign(A, at=None)
    fetching.seek(A, 10, epoch=7)
    fetching.step()
    asked = max(fetching.sent)
    fetching.sent = {asked: fetching.sent[asked]}
    fetching.answer(FetchPartitionData(*A, diverging_epoch=(5, 12)))
    if reset == "none":
        error = fetching.error()
        assert isinstance(error, LogTruncationError)
        assert (error.offset, error.diverging_offset) == (10, None)
        assert not fetching.sent, "until the caller seeks"
    else:
        (request,) = fetching.sent.values()
        assert request.asked[A].target == Position(10, 5)
