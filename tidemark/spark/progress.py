"""Progress of streaming queries as numbers: lag, rows, and time of each batch.

    gauges = Gauges()
    spark.streams.addListener(listener(gauges.update))
    gauges.text()        # for an endpoint that Prometheus asks

Spark calls a listener after each batch, in a thread of the driver. Nothing here starts a thread or
a port.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.errors import ConfigError
from tidemark.spark.stream_offsets import from_json, lags_between
from tidemark.spark.versions import limits


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch. `lag` counts offsets of all partitions; None before Spark 4.2."""

    query: str
    batch_id: int
    rows: int
    seconds: float
    lag: int | None

    @property
    def rows_per_second(self) -> float:
        """0 for a batch that took no time."""
        return self.rows / self.seconds if self.seconds else 0.0


def listener(report: Callable[[BatchProgress], None]) -> Any:
    """A StreamingQueryListener that calls `report` after each batch of any query of a session."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            report(batch_progress(event.progress))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return ProgressListener()


_GAUGES: dict[str, Callable[[BatchProgress], float | None]] = {
    "lag_offsets": lambda last: last.lag,
    "batch_rows": lambda last: last.rows,
    "batch_rows_per_second": lambda last: last.rows_per_second,
    "batch_seconds": lambda last: last.seconds,
    "batch_id": lambda last: last.batch_id,
}


class Gauges:
    """The last batch of each query, as the text that Prometheus reads; for any thread.

    The queries of which there was progress last are kept, `queries_max` of them.
    """

    def __init__(self, queries_max: int = 1_000) -> None:
        self._queries_max = queries_max
        self._lock = threading.Lock()
        self._last: dict[str, BatchProgress] = {}

    def update(self, progress: BatchProgress) -> None:
        """Replaces the query's numbers."""
        with self._lock:
            self._last.pop(progress.query, None)
            self._last[progress.query] = progress
            while len(self._last) > self._queries_max:
                del self._last[next(iter(self._last))]

    def text(self) -> str:
        """Prometheus' text format. A query whose lag is unknown has no lag."""
        with self._lock:
            last = list(self._last.values())
        lines: list[str] = []
        for name, value_of in _GAUGES.items():
            lines.append(f"# TYPE tidemark_spark_{name} gauge")
            for each in last:
                value = value_of(each)
                if value is not None:
                    label = each.query.translate(_ESCAPES)
                    lines.append(f'tidemark_spark_{name}{{query="{label}"}} {value}')
        return "\n".join(lines) + "\n"


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


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
    if limits is None:  # Spark 4.0 and 4.1 report the end of the batch as the latest offset
        return None
    try:
        end, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
        return sum(lags_between(from_json(end), from_json(latest)).values())
    except (ConfigError, TypeError, ValueError):
        return None
