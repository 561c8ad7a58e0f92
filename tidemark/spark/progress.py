"""Progress of a streaming query as numbers: lag, rows, and time of each batch.

Pure: takes the progress that Spark reports to a StreamingQueryListener, and starts nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidemark.errors import ConfigError
from tidemark.spark.stream_offsets import from_json, lags_between


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch. `lag` counts offsets of all partitions; None before Spark 4.2."""

    query: str
    batch_id: int
    rows: int
    seconds: float
    lag: int | None


def batch_progress(progress: Any) -> BatchProgress:
    """The numbers of a StreamingQueryProgress. Sources of other formats have no part in the lag."""
    lags = [lag for lag in map(_lag, progress.sources) if lag is not None]
    return BatchProgress(
        query=progress.name or str(progress.id),
        batch_id=progress.batchId,
        rows=progress.numInputRows,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        lag=sum(lags) if lags else None,
    )


def _lag(source: Any) -> int | None:
    try:
        end, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
        return sum(lags_between(from_json(end), from_json(latest)).values())
    except (ConfigError, TypeError, ValueError):
        return None
