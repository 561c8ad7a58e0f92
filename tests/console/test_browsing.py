"""A page of records: where it begins, where it ends, and what it refuses. Time is virtual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.console.facts import ToldConsumer
from tests.virtual_time import run
from tidemark.client.models import ConsumerRecord
from tidemark.console.browsing import RECORDS_MAX, BrowseQuery, browse
from tidemark.console.record_views import FIELD_BYTES_MAX
from tidemark.errors import InvalidRequestError

# Offsets 10 to 30; 15 to 19 were compacted.
OFFSETS = [*range(10, 15), *range(20, 30)]
RECORDS = [ConsumerRecord("t", 0, n, 1_000 + n, b"k", b"v", ()) for n in OFFSETS]


def page(parameters: Mapping[str, str], consumer: ToldConsumer | None = None) -> dict[str, Any]:
    query = BrowseQuery.of({"topic": "t", **parameters})
    return run(browse(consumer or ToldConsumer(RECORDS, 10, 30), query))


@pytest.mark.parametrize(
    ("parameters", "offsets", "after"),
    [
        ({}, OFFSETS, 30),
        ({"limit": "4"}, [26, 27, 28, 29], 30),
        ({"offset": "0", "limit": "2"}, [10, 11], 12),
        ({"offset": "13", "limit": "4"}, [13, 14, 20, 21], 22),
        ({"offset": "29"}, [29], 30),
        ({"offset": "30"}, [], 30),
        ({"offset": "9999"}, [], 30),
        ({"timestamp": "1016", "limit": "1"}, [20], 21),
        ({"timestamp": "99999999"}, [], 30),
    ],
)
def test_a_page_begins_where_it_is_asked_to(
    parameters: Mapping[str, str], offsets: list[int], after: int
) -> None:
    found = page(parameters)
    assert [record["offset"] for record in found["records"]] == offsets
    assert (found["log_start_offset"], found["end_offset"]) == (10, 30)
    assert found["next_offset"] == after and not found["is_late"]


def test_an_empty_partition_is_not_polled() -> None:
    consumer = ToldConsumer([], 0, 0)
    assert page({}, consumer)["records"] == []
    assert consumer.polls == 0


def test_offsets_without_records_end_the_page_too() -> None:
    consumer = ToldConsumer([], 0, 50)  # control records alone
    found = page({}, consumer)
    assert (found["records"], found["next_offset"], found["is_late"]) == ([], 50, False)


def test_a_leader_that_is_silent_ends_the_page_late() -> None:
    consumer = ToldConsumer(RECORDS, 10, 30)
    consumer.is_stuck = True
    found = page({"offset": "12"}, consumer)
    assert found["is_late"] and found["next_offset"] == 12 and found["records"] == []


def test_the_page_goes_on_behind_the_last_record_that_fits() -> None:
    large = [ConsumerRecord("t", 0, n, 0, None, b"\x00" * FIELD_BYTES_MAX, ()) for n in range(100)]
    found = page({"offset": "0", "limit": "100"}, ToldConsumer(large, 0, 100))
    assert 0 < len(found["records"]) < 100
    assert found["next_offset"] == found["records"][-1]["offset"] + 1


def test_records_that_came_after_the_end_was_asked_are_left_out() -> None:
    found = page({"offset": "28"}, ToldConsumer(RECORDS, 10, 29))
    assert [record["offset"] for record in found["records"]] == [28]
    assert found["next_offset"] == 29


@pytest.mark.parametrize(
    "parameters",
    [
        {"topic": ""},
        {"partition": "-1"},
        {"partition": "x"},
        {"partition": str(2**31)},
        {"offset": "1", "timestamp": "1"},
        {"offset": "1e3"},
        {"offset": "٣"},
        {"offset": str(2**63)},
        {"offset": "9" * 5_000},
        {"limit": "0"},
        {"limit": str(RECORDS_MAX + 1)},
        {"isolation": "serializable"},
        {"format": "xml"},
    ],
)
def test_a_query_that_means_nothing_is_refused(parameters: Mapping[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        BrowseQuery.of({"topic": "t", **parameters})


def test_the_largest_numbers_are_taken() -> None:
    query = BrowseQuery.of({"topic": "t", "offset": str(2**63 - 1), "limit": str(RECORDS_MAX)})
    assert query.offset == 2**63 - 1 and query.limit == RECORDS_MAX
