"""Ranges of offsets: parsing, planning, loss, slicing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import ConfigError
from tidemark.spark.offsets import (
    DataLossError,
    OffsetRange,
    check_partitions_named,
    format_partition_json,
    parse_partition_json,
    plan_ranges,
    resolve,
    split_ranges,
)
from tidemark.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
EARLIEST, LATEST = {A0: 10, A1: 0}, {A0: 100, A1: 0}


def test_json_goes_both_ways() -> None:
    text = '{"a":{"0":-2,"1":7},"b":{"11":0}}'
    offsets = parse_partition_json("startingOffsets", text)
    assert offsets == {A0: -2, A1: 7, TopicPartition("b", 11): 0}
    assert format_partition_json(offsets) == text


@pytest.mark.parametrize(
    "text", ["earliesd", "[]", '{"a":3}', '{"a":{"x":3}}', '{"a":{"0":"3"}}', '{"a":{"0":true}}']
)
def test_broken_json_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets is not JSON like"):
        parse_partition_json("startingOffsets", text)


def test_earliest_and_latest_become_offsets() -> None:
    assert resolve({A0: -2, A1: -1}, EARLIEST, LATEST) == {A0: 10, A1: 0}
    assert resolve({A0: -1, A1: 5}, EARLIEST, LATEST) == {A0: 100, A1: 5}


def test_every_partition_must_be_named_and_no_other() -> None:
    with pytest.raises(ConfigError, match="lacks a-1"):
        check_partitions_named("endingOffsets", {A0: 1}, [A0, A1])
    with pytest.raises(ConfigError, match="names a-1, which"):
        check_partitions_named("endingOffsets", {A0: 1, A1: 1}, [A0])


def test_empty_partitions_give_no_range() -> None:
    ranges = plan_ranges(EARLIEST, LATEST, EARLIEST, LATEST, fail_on_data_loss=True)
    assert ranges == [OffsetRange("a", 0, 10, 100)]


def test_a_start_below_the_log_is_loss() -> None:
    starts, ends = {A0: 3}, {A0: 20}
    with pytest.raises(DataLossError, match="a-0: offsets 3 to 9 are gone"):
        plan_ranges(starts, ends, EARLIEST, LATEST, fail_on_data_loss=True)
    ranges = plan_ranges(starts, ends, EARLIEST, LATEST, fail_on_data_loss=False)
    assert ranges == [OffsetRange("a", 0, 10, 20)]


def test_an_end_above_the_log_is_loss() -> None:
    starts, ends = {A0: 30}, {A0: 101}
    with pytest.raises(DataLossError, match="the log ends at 100"):
        plan_ranges(starts, ends, EARLIEST, LATEST, fail_on_data_loss=True)
    ranges = plan_ranges(starts, ends, EARLIEST, LATEST, fail_on_data_loss=False)
    assert ranges == [OffsetRange("a", 0, 30, 100)]


def test_a_range_that_is_gone_altogether_is_empty_where_loss_is_tolerated() -> None:
    assert plan_ranges({A0: 1}, {A0: 5}, EARLIEST, LATEST, fail_on_data_loss=False) == []


@pytest.mark.parametrize("tolerates", [False, True])
def test_a_start_above_its_end_within_the_log_is_refused(tolerates: bool) -> None:
    with pytest.raises(ConfigError, match="starting offset 40 is above the ending offset 30"):
        plan_ranges({A0: 40}, {A0: 30}, EARLIEST, LATEST, fail_on_data_loss=not tolerates)


@pytest.mark.parametrize("end", [100, 600])
def test_a_start_above_the_log_is_loss_and_reads_nothing_where_that_is_tolerated(end: int) -> None:
    """As after a topic was made anew: the end is the log's, below the start."""
    with pytest.raises(DataLossError, match="a-0: asked from 500 on, but the log ends at 100"):
        plan_ranges({A0: 500}, {A0: end}, EARLIEST, LATEST, fail_on_data_loss=True)
    assert plan_ranges({A0: 500}, {A0: end}, EARLIEST, LATEST, fail_on_data_loss=False) == []


def test_an_end_below_the_log_is_loss_and_reads_nothing_where_that_is_tolerated() -> None:
    with pytest.raises(DataLossError, match="a-0: the offsets below 5 are gone"):
        plan_ranges({A0: 10}, {A0: 5}, EARLIEST, LATEST, fail_on_data_loss=True)
    assert plan_ranges({A0: 10}, {A0: 5}, EARLIEST, LATEST, fail_on_data_loss=False) == []


def test_a_large_partition_gets_more_slices() -> None:
    ranges = [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 0, 100)]
    slices = split_ranges(ranges, slices_min=10)
    assert [s.partition for s in slices].count(0) == 9
    assert [s.partition for s in slices].count(1) == 1


RANGES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 5000)), min_size=1, max_size=8
).map(lambda pairs: [OffsetRange("t", i, s, s + n) for i, (s, n) in enumerate(pairs)])


@given(RANGES, st.none() | st.integers(1, 60), st.none() | st.integers(1, 700))
def test_slices_cover_every_offset_once(
    ranges: list[OffsetRange], least: int | None, most: int | None
) -> None:
    slices = split_ranges(ranges, slices_min=least, records_per_slice_max=most)
    for whole in ranges:
        pieces = [s for s in slices if s.partition == whole.partition]
        assert pieces[0].start == whole.start and pieces[-1].end == whole.end
        assert all(a.end == b.start for a, b in itertools.pairwise(pieces))
        sizes = [p.size for p in pieces]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        assert most is None or max(sizes) <= most
    assert least is None or len(slices) >= min(least, sum(r.size for r in ranges))


def test_a_single_lost_offset_is_loss_and_the_first_kept_one_is_not() -> None:
    with pytest.raises(DataLossError, match="offsets 9 to 9 are gone"):
        plan_ranges({A0: 9}, {A0: 20}, EARLIEST, LATEST, fail_on_data_loss=True)
    ranges = plan_ranges({A0: 10}, {A0: 100}, EARLIEST, LATEST, fail_on_data_loss=True)
    assert ranges == [OffsetRange("a", 0, 10, 100)]
