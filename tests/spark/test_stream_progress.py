"""Numbers of a streaming query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidemark.spark import progress as module
from tidemark.spark.progress import BatchProgress, Gauges, batch_progress
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


@pytest.mark.skipif(module.limits is None, reason="Spark 4.2 reports the latest offset")
def test_lag_is_the_sum_over_partitions_and_leaves_out_other_formats() -> None:
    found = batch_progress(progress((offset(10, 5), offset(14, 6)), ('{"0": 3}', '{"0": 9}')))
    assert (found.query, found.batch_id) == (str(UUID(int=2)), 7)
    assert (found.rows, found.seconds, found.lag) == (30, 1.5, 5)


def test_lag_is_unknown_where_spark_calls_the_end_of_a_batch_the_latest_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "limits", None)
    assert batch_progress(progress((offset(10), offset(10)))).lag is None


@pytest.mark.parametrize("latest", [None, "null", "", "{"])
def test_lag_is_unknown_where_spark_reports_no_latest_offset(latest: Any) -> None:
    assert batch_progress(progress((offset(10), latest))).lag is None


def test_gauges_have_the_last_batch_of_each_query_and_no_unknown_lag() -> None:
    gauges = Gauges(queries_max=2)
    gauges.update(BatchProgress("forgotten", 1, 1, 1.0, 1))
    gauges.update(BatchProgress('a "b"', 6, 1, 1.0, 9))
    gauges.update(BatchProgress("c", 1, 3, 0.0, None))
    gauges.update(BatchProgress('a "b"', 7, 30, 1.5, 5))
    lines = [line for line in gauges.text().splitlines() if not line.startswith("#")]
    assert lines == [
        r'tidemark_spark_lag_offsets{query="a \"b\""} 5',
        'tidemark_spark_batch_rows{query="c"} 3',
        r'tidemark_spark_batch_rows{query="a \"b\""} 30',
        'tidemark_spark_batch_rows_per_second{query="c"} 0.0',
        r'tidemark_spark_batch_rows_per_second{query="a \"b\""} 20.0',
        'tidemark_spark_batch_seconds{query="c"} 0.0',
        r'tidemark_spark_batch_seconds{query="a \"b\""} 1.5',
        'tidemark_spark_batch_id{query="c"} 1',
        r'tidemark_spark_batch_id{query="a \"b\""} 7',
    ]
