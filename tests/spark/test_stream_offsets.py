"""Offsets of a streaming query: text, admission, loss, and what a batch reads."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import ConfigError
from tidemark.spark.offsets import DataLossError, OffsetRange
from tidemark.spark.stream_offsets import (
    LogEnds,
    Patience,
    StreamPlace,
    admitted,
    at_most,
    begin_at,
    end_of_log,
    from_json,
    lags_between,
    limited,
    limited_by_bytes,
    ranges_between,
    to_json,
)
from tidemark.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ONE, TWO = UUID(int=1), UUID(int=2)
START = {A0: StreamPlace(ONE, 10, 3), A1: StreamPlace(ONE, 0, 3)}
ENDS = {A0: LogEnds(ONE, 5, 50, 4), A1: LogEnds(ONE, 0, 0, 4)}


def test_the_text_goes_both_ways_through_json_and_has_one_form() -> None:
    offset = {
        B0: StreamPlace(TWO, 7, 0),
        A1: StreamPlace(ONE, 5, 1, first=2),
        A0: StreamPlace(TWO, 9, 9),
    }
    text = json.dumps(to_json(offset))
    assert from_json(json.loads(text)) == offset
    assert json.dumps(to_json(dict(reversed(list(offset.items()))))) == text


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 2, "topics": {}},
        {
            "version": 1,
            "topics": {"a": {"id": "x", "partitions": {"0": {"offset": 1, "epoch": 0}}}},
        },
        {
            "version": 1,
            "topics": {"a": {"id": str(ONE), "partitions": {"0": {"offset": -1, "epoch": 0}}}},
        },
        {"version": 1, "topics": {"a": 5}},
        {"a": {"0": 5}},
    ],
)
def test_an_offset_of_another_source_is_refused(stored: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"did not write.*checkpointLocation of its own"):
        from_json(stored)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0.1, 5_000)), min_size=1, max_size=6),
    st.integers(1, 100_000),
    st.booleans(),
)
def test_a_limit_of_bytes_is_kept_but_for_one_record_a_partition(
    given_logs: list[tuple[int, float]], limit: int, all_sizes: bool
) -> None:
    names = [TopicPartition("t", number) for number in range(len(given_logs))]
    start = {tp: StreamPlace(ONE, 3, 0) for tp in names}
    end = {tp: StreamPlace(ONE, 3 + lag, 0) for tp, (lag, _) in zip(names, given_logs, strict=True)}
    sizes = {tp: max(1.0, size) for tp, (_, size) in zip(names, given_logs, strict=True)}
    known = sizes if all_sizes else dict(list(sizes.items())[1:])
    found = lags_between(start, limited_by_bytes(start, end, limit, known))
    lags = lags_between(start, end)
    assert all(min(1, lags[tp]) <= found[tp] <= lags[tp] for tp in names), "none starves"
    if all_sizes:
        beyond_one = sum((found[tp] - 1) * sizes[tp] for tp in names if found[tp] > 1)
        assert beyond_one <= limit
        if sum(lags[tp] * sizes[tp] for tp in names) <= limit - len(names):
            assert found == lags


LAGS = st.lists(st.integers(0, 1_000), min_size=1, max_size=8).map(
    lambda lags: {TopicPartition("t", number): lag for number, lag in enumerate(lags)}
)


@given(LAGS, st.integers(1, 3_000))
def test_a_limit_is_used_up_and_split_by_lag(lags: dict[TopicPartition, int], limit: int) -> None:
    found = admitted(lags, limit)
    assert found.keys() == lags.keys()
    assert sum(found.values()) == min(limit, sum(lags.values()))
    assert all(0 <= found[tp] <= lag for tp, lag in lags.items())
    behind = [tp for tp, lag in lags.items() if lag]
    if limit >= len(behind):
        assert all(found[tp] for tp in behind), "none starves"
    for one in behind:
        for other in behind:
            if lags[one] >= lags[other]:
                assert found[one] >= found[other] - 1


def test_a_limit_is_in_proportion() -> None:
    lags = {A0: 9_000, A1: 1_000, B0: 0}
    assert admitted(lags, 100) == {A0: 89, A1: 11, B0: 0}
    assert admitted(lags, None) == lags
    assert admitted({A0: 5, A1: 9, B0: 5}, 1, turn=4) == {A0: 0, A1: 1, B0: 0}


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_below_the_number_of_partitions_starves_none(limit: int) -> None:
    """Two of them get more than batches read, and lag more than the third at any time."""
    ends = {A0: LogEnds(ONE, 0, 10**6, 0), A1: LogEnds(ONE, 0, 10**6, 0), B0: LogEnds(TWO, 0, 9, 0)}
    start = begin_at(dict.fromkeys(ends, 0), ends)
    for _ in range(9 * 3):
        start = dict(limited(start, end_of_log(start, ends, fail_on_data_loss=True), limit))
    assert start[B0].offset == 9
    assert sum(place.offset for place in start.values()) == 9 * 3 * limit


def test_available_now_never_goes_back() -> None:
    """The ends that the query found when it began may be below what it has read before."""
    start = {A0: StreamPlace(ONE, 100, 0)}
    end, target = {A0: StreamPlace(ONE, 120, 0)}, {A0: StreamPlace(ONE, 90, 0)}
    assert limited(start, at_most(start, end, target), None) == start


def test_a_batch_reads_from_start_to_end_of_the_planned_topic_and_epoch() -> None:
    end = end_of_log(START, ENDS, fail_on_data_loss=True)
    assert ranges_between(START, end, fail_on_data_loss=True) == [
        OffsetRange("a", 0, 10, 50, ONE, 4)
    ]


def test_without_news_the_text_stays_although_a_leader_changed() -> None:
    start = {A0: StreamPlace(ONE, 50, 3), A1: StreamPlace(ONE, 0, 3)}
    assert end_of_log(start, ENDS, fail_on_data_loss=True) == start
    assert limited(start, end_of_log(start, ENDS, fail_on_data_loss=True), 5) == start


def test_a_limited_batch_stops_between_and_the_next_goes_on() -> None:
    end = end_of_log(START, ENDS, fail_on_data_loss=True)
    middle = limited(START, end, 15)
    assert middle == {A0: StreamPlace(ONE, 25, 4), A1: START[A1]}
    assert lags_between(middle, end) == {A0: 25, A1: 0}
    assert limited(middle, end, 25) == end


def test_a_new_partition_is_read_from_its_first_record() -> None:
    ends = ENDS | {TopicPartition("a", 2): LogEnds(ONE, 0, 8, 0)}
    end = limited(START, end_of_log(START, ends, fail_on_data_loss=True), None)
    assert OffsetRange("a", 2, 0, 8, ONE, 0) in ranges_between(START, end, fail_on_data_loss=True)
    again = end_of_log(end, ends, fail_on_data_loss=True)
    assert again == end, "and is new once"


def test_a_new_partition_that_a_limit_leaves_for_later_still_begins_at_its_first_record() -> None:
    ends = {A0: LogEnds(ONE, 5, 9_000, 4), A1: ENDS[A1], B0: LogEnds(TWO, 4, 8, 0)}
    end = end_of_log(START, ends, fail_on_data_loss=True)
    middle = limited(START, end, 1)
    assert middle[B0] == StreamPlace(TWO, 4, 0, first=4)
    (last,) = [r for r in ranges_between(middle, end, fail_on_data_loss=True) if r.topic == "b"]
    assert (last.start, last.end) == (4, 8)


def test_a_new_partition_whose_first_records_are_gone_is_loss_but_a_new_topic_is_not() -> None:
    late = TopicPartition("a", 2)
    ends = ENDS | {late: LogEnds(ONE, 3, 8, 0)}
    with pytest.raises(DataLossError, match="a-2 is new in the query, and its first records"):
        end_of_log(START, ends, fail_on_data_loss=True)
    end = end_of_log(START, ends, fail_on_data_loss=False)
    assert OffsetRange("a", 2, 3, 8, ONE, 0) in ranges_between(START, end, fail_on_data_loss=False)
    ends = ENDS | {B0: LogEnds(TWO, 3, 8, 0)}
    end = end_of_log(START, ends, fail_on_data_loss=True)
    assert OffsetRange("b", 0, 3, 8, TWO, 0) in ranges_between(START, end, fail_on_data_loss=True)


@pytest.mark.parametrize(
    ("log", "loss", "read"),
    [
        (LogEnds(ONE, 20, 50, 4), "offsets 10 to 19 are gone; the log starts at 20", [(10, 50)]),
        (LogEnds(ONE, 0, 9, 4), "the query has read up to 10, but the log ends at 9", []),
        (LogEnds(TWO, 0, 30, 0), "the topic was deleted, and another one has its name", [(0, 30)]),
    ],
)
def test_records_that_are_gone_are_loss(log: LogEnds, loss: str, read: list[object]) -> None:
    ends = ENDS | {A0: log}
    with pytest.raises(DataLossError, match=f"a-0: {loss}"):
        end_of_log(START, ends, fail_on_data_loss=True)
    end = end_of_log(START, ends, fail_on_data_loss=False)
    assert end[A0].offset == log.latest
    ranges = ranges_between(START, end, fail_on_data_loss=False)
    assert [(r.start, r.end) for r in ranges] == read


@pytest.mark.parametrize("place", [StreamPlace(ONE, 9, 4), StreamPlace(TWO, 30, 0, first=0)])
def test_a_batch_that_is_repeated_tells_loss_as_well(place: StreamPlace) -> None:
    with pytest.raises(DataLossError, match="a-0: the "):
        ranges_between(START, START | {A0: place}, fail_on_data_loss=True)


def test_a_partition_that_the_cluster_does_not_name_keeps_its_place() -> None:
    end = end_of_log(START, {A0: ENDS[A0]}, fail_on_data_loss=True)
    assert end[A1] == START[A1]


def test_available_now_ends_where_it_began_although_the_log_and_the_topics_grow() -> None:
    target = end_of_log({}, ENDS, fail_on_data_loss=False)
    start, read = dict(START), 0
    for grown in range(60, 100, 10):
        ends = {tp: replace(log, latest=grown, leader_epoch=grown) for tp, log in ENDS.items()}
        ends[B0] = LogEnds(TWO, 0, 5, 0)
        end = at_most(start, end_of_log(start, ends, fail_on_data_loss=True), target)
        end = limited(start, end, 20)
        read += sum(r.size for r in ranges_between(start, end, fail_on_data_loss=True))
        start = dict(end)
    assert read == 40 and start.keys() == START.keys()
    assert to_json(limited(start, at_most(start, end, target), 20)) == to_json(start), "it ends"


def test_available_now_ends_although_a_leader_changes() -> None:
    start = end_of_log({}, ENDS, fail_on_data_loss=False)
    ends = {tp: replace(log, latest=99, leader_epoch=9) for tp, log in ENDS.items()}
    end = at_most(start, end_of_log(start, ends, fail_on_data_loss=True), start)
    assert limited(start, end, None) == start


def test_the_first_offset_is_where_the_options_say() -> None:
    assert begin_at({A0: 20, A1: 0}, ENDS) == {
        A0: StreamPlace(ONE, 20, 4),
        A1: StreamPlace(ONE, 0, 4),
    }


def test_small_batches_wait_but_not_for_ever() -> None:
    patience = Patience(100, 1_000, 0)
    assert patience.waits(99, 999)
    assert not patience.waits(100, 999)
    assert patience.waits(99, 1_998) and not patience.waits(99, 1_999)
    assert not Patience(None, 1_000, 0).waits(0, 0)
