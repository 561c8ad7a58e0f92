"""Families of the requests of a node, of fsyncs, and of the further services (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from commitlog.disk.sync_times import BOUNDS_S as SYNC_BOUNDS_S
from commitlog.disk.sync_times import SyncTimes
from node.metrics.families import PREFIX, labelled
from tidemark.errors import ErrorCode
from tidemark.wire.metering import BOUNDS_S, ApiMeter, RequestMeters

_BEAN = "Kafka's kafka.network:type=RequestMetrics,name="


def of_requests(meters: RequestMeters) -> Iterator[Metric]:
    """Times, their parts, and errors of requests by API, as far as there were any."""
    seen = [one for _, one in sorted(meters.by_api.items()) if any(one.counts)]
    times = HistogramMetricFamily(
        f"{PREFIX}_request_duration_seconds",
        f"{_BEAN}TotalTimeMs and RequestsPerSec",
        labels=["api"],
    )
    for one in seen:
        times.add_metric([one.api], *buckets_of(BOUNDS_S, one.counts), sum_value=one.spent_s)
    yield times
    yield _part("queue", "RequestQueueTimeMs: waits for memory", seen, lambda m: m.queue_s)
    yield _part("remote", "RemoteTimeMs: waits for other nodes", seen, lambda m: m.remote_s)
    yield _part("throttle", "ThrottleTimeMs: imposed by quotas", seen, lambda m: m.throttle_s)
    errors = CounterMetricFamily(
        f"{PREFIX}_request_errors", f"{_BEAN}ErrorsPerSec", labels=["api", "error"]
    )
    for one in seen:
        for code, count in sorted(one.errors.items()):
            errors.add_metric([one.api, name_of(code)], count)
    yield errors


def _part(
    name: str, told: str, seen: Sequence[ApiMeter], value: Callable[[ApiMeter], float]
) -> Metric:
    times = {one.api: value(one) for one in seen}
    return labelled(CounterMetricFamily, f"request_{name}_seconds", f"{_BEAN}{told}", "api", times)


def name_of(code: int) -> str:
    """The name of an error code; a newer node's unknown one is its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def buckets_of(bounds_s: Sequence[float], counts: Sequence[int]) -> tuple[list[tuple[str, float]]]:
    """The cumulative buckets of a histogram with a last count of all above."""
    bounds = [*(f"{bound:g}" for bound in bounds_s), "+Inf"]
    return ([*zip(bounds, map(float, accumulate(counts)), strict=True)],)


def of_sessions(meters: RequestMeters) -> Metric:
    """Open fetch sessions, of consumers and followers."""
    told = "Kafka's kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"
    return labelled(
        GaugeMetricFamily,
        "fetch_sessions",
        told,
        "side",
        {k: float(v) for k, v in meters.sessions.items()},
    )


def of_syncs(times: SyncTimes) -> Iterator[Metric]:
    """The fsyncs of this process."""
    told = "Kafka's kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs; all fsyncs"
    family = HistogramMetricFamily(f"{PREFIX}_fsync_duration_seconds", told)
    family.add_metric([], *buckets_of(SYNC_BOUNDS_S, times.counts), sum_value=times.spent_s)
    yield family
    yield CounterMetricFamily(f"{PREFIX}_fsync_failures", "fsyncs that failed", times.failures)


def of_counts(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    """Groups and transactions by state, and the partitions that are coordinated here."""
    for subject, (told, label) in _SUBJECTS.items():
        values = {kind: float(n) for kind, n in counts.get(subject, {}).items()}
        yield labelled(GaugeMetricFamily, f"coordinator_{subject}", told, label, values)


_SUBJECTS = {
    "groups": ("Kafka's group-coordinator-metrics,name=group-count", "state"),
    "transactions": ("Transactions that have not ended, and IDS: all transactional ids", "state"),
    "partitions": ("Kafka's group-coordinator-metrics,name=num-partitions", "topic"),
}
