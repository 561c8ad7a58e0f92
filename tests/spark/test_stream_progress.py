"""Numbers of a streaming query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidemark.spark.progress import batch_progress
from tidemark.spark.stream_offsets import StreamPlace, to_json
from tidemark.types import TopicPartition


def offset(*ends: int) -> str:
    places = {TopicPartition("t", n): StreamPlace(UUID(int=1), e, 0) for n, e in enumerate(ends)}
    return json.dumps(to_json(places))


def progress(*sources: tuple[Any, Any]) -> Any:
    return SimpleNamespace(
        name=None,
        id=UUID(int=2),
        batchId=7,
        numInputRows=30,
        durationMs={"triggerExecution": 1500},
        sources=[SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources],
    )


def test_lag_is_the_sum_over_partitions_and_leaves_out_other_formats() -> None:
    found = batch_progress(progress((offset(10, 5), offset(14, 6)), ('{"0": 3}', '{"0": 9}')))
    assert (found.query, found.batch_id) == (str(UUID(int=2)), 7)
    assert (found.rows, found.seconds, found.lag) == (30, 1.5, 5)


@pytest.mark.parametrize("latest", [None, "null", "", "{"])
def test_lag_is_unknown_where_spark_reports_no_latest_offset(latest: Any) -> None:
    assert batch_progress(progress((offset(10), latest))).lag is None
