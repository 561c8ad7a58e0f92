"""Filters that are taken over: every row of a filtered read is planned, and exactly those where
Spark does not filter again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import make_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import parse_options
from tidemark.spark.planning import plan
from tidemark.spark.pushdown import accepted, timestamp_min_ms, within
from tidemark.types import TopicPartition

HOLDS: dict[str, Any] = {
    "EqualTo": lambda value, bound: value == bound,
    "EqualNullSafe": lambda value, bound: value == bound,
    "GreaterThan": lambda value, bound: value > bound,
    "GreaterThanOrEqual": lambda value, bound: value >= bound,
    "LessThan": lambda value, bound: value < bound,
    "LessThanOrEqual": lambda value, bound: value <= bound,
    "In": lambda value, bound: value in bound,
}


def make(name: str, column: str, value: Any) -> Any:
    """A filter of PySpark; its classes are not in Spark 4.0."""
    return make_dataclass(name, ["attribute", "value"])((column,), value)


RANGES = [OffsetRange(topic, n, 3 * n, 12) for topic in ("a", "b") for n in range(3)]
ROWS = [(r.topic, r.partition, o) for r in RANGES for o in range(r.start, r.end)]
COLUMNS = ("topic", "partition", "offset")
VALUES = {"topic": st.sampled_from("abc"), "partition": st.integers(-1, 4)}
VALUES["offset"] = st.integers(-2, 14)


@st.composite
def filters(draw: st.DrawFn) -> Any:
    name, column = draw(st.sampled_from(sorted(HOLDS))), draw(st.sampled_from(COLUMNS))
    value = VALUES[column]
    return make(name, column, draw(st.lists(value, min_size=1) if name == "In" else value))


def matches(row: tuple[Any, ...], each: Any) -> bool:
    value = dict(zip(COLUMNS, row, strict=True))[each.attribute[0]]
    return bool(HOLDS[type(each).__name__](value, each.value))


@given(st.lists(filters(), max_size=4))
def test_planned_rows_and_sparks_own_filters_give_the_result(given_filters: list[Any]) -> None:
    taken, left = accepted(given_filters)
    found = within(RANGES, taken)
    rows = [(r.topic, r.partition, o) for r in found for o in range(r.start, r.end)]
    result = [row for row in rows if all(matches(row, each) for each in left)]
    assert result == [row for row in ROWS if all(matches(row, each) for each in given_filters)]
    assert all(type(each).__name__ == "In" for each in left), "no other is left to Spark"


@pytest.mark.parametrize(
    "each",
    [
        make("StringStartsWith", "topic", "a"),
        make("EqualTo", "value", b"a"),
        make("EqualTo", "partition", True),
        make("In", "partition", [1, None]),
        make("In", "partition", []),
        make("LessThan", "timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
        make("GreaterThan", "timestamp", datetime(2020, 1, 1)),
        make("GreaterThan", "timestamp", datetime(1960, 1, 1, tzinfo=UTC)),
        make_dataclass("IsNotNull", ["attribute"])(("topic",)),
        make_dataclass("EqualTo", ["attribute", "value"])(("headers", "key"), "a"),
    ],
)
def test_other_filters_are_left_to_spark(each: Any) -> None:
    assert accepted([each]) == ((), [each])


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeLog]:
    """Batches of one record, from 1,000 ms on, one each ms."""
    logs = {TopicPartition("t", n): FakePartition() for n in range(2)}
    for offset in range(10):
        logs[TopicPartition("t", 0)].append(records(offset, 1))
    with serving(logs) as server:
        yield server


@pytest.mark.parametrize(
    ("ms", "start"), [(0, 0), (1_000, 0), (1_004.5, 4), (1_009, 9), (1_010, 10)]
)
def test_a_timestamp_moves_the_start_and_spark_filters_again(
    fake: FakeLog, ms: float, start: int
) -> None:
    late = make("GreaterThanOrEqual", "timestamp", at(ms))
    taken, left = accepted([make("EqualTo", "timestamp", at(0)), late])
    assert len(left) == 2 and timestamp_min_ms(taken) == int(ms)
    options = parse_options({"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"})
    found = [(each.start, each.end) for each in plan(options, taken)]
    assert found == ([(start, 10)] if start < 10 else [])
