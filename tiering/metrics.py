"""Counters of the tier, and their report under Kafka's names (KIP-405, KIP-963, KIP-956).

Counters are plain attributes, incremented where the event happens. `RemoteMeter.read` is the one
place that reports them: a rate is the increase over the last minute, as far as reports were asked
for. Kafka has most of them as BrokerTopicMetrics, the idle shares and the queue of the readers as
RemoteLogManager's, and the throttle times as kafka.server's. Names that end in `Total` are added.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiering.failing import FailedTasks

RATE_MS, _SAMPLES_MAX = 60_000, 64
"""Time over which a rate is averaged; a report keeps samples at least a 64th of it apart."""


TOPICS_MAX, OTHER_TOPICS = 1_000, "(other)"
"""Topics with counts and lags of their own; no topic has such a name as the others' sum."""


class CopyLag(NamedTuple):
    """Rolled segments that are not in the tier yet, or remote ones that are not deleted yet."""

    bytes: int
    segments: int


NO_LAG = CopyLag(0, 0)


def total_lag(lags: Iterable[CopyLag]) -> CopyLag:
    """Returns the sum of the lags of partitions."""
    known = list(lags)
    return CopyLag(sum(lag.bytes for lag in known), sum(lag.segments for lag in known))


@dataclass(slots=True)
class ThrottleTime:
    """Waits for a quota since the start of the process, in s."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, waited_s: float) -> None:
        self.count += 1
        self.total_s += waited_s
        self.max_s = max(self.max_s, waited_s)

    @property
    def average_s(self) -> float:
        return self.total_s / self.count if self.count else 0.0


@dataclass(slots=True)
class ThrottleTimes:
    """Waits for the quotas of the node (KIP-956)."""

    remote_copy_throttle_time: ThrottleTime = field(default_factory=ThrottleTime)
    remote_fetch_throttle_time: ThrottleTime = field(default_factory=ThrottleTime)


@dataclass(slots=True)
class RestoreCounts(ThrottleTimes):
    """Tries to restore leaders without a log; each also counts as a build of auxiliary state."""

    restore_requests: int = 0
    restore_errors: int = 0


@dataclass(slots=True)
class CacheCounts(RestoreCounts):
    """Uses of the caches of remote logs and of their indexes."""

    chunk_cache_hits: int = 0
    chunk_cache_misses: int = 0
    chunk_disk_cache_hits: int = 0
    chunk_prefetches: int = 0
    index_cache_refetches: int = 0


@dataclass(slots=True)
class RemoteMetrics(CacheCounts):
    """Counts since the start of the process; bytes are those of log segments alone."""

    remote_copy_bytes: int = 0
    remote_copy_requests: int = 0
    remote_copy_errors: int = 0
    remote_copy_refusals: int = 0
    remote_fetch_bytes: int = 0
    remote_fetch_requests: int = 0
    remote_fetch_errors: int = 0
    remote_fetch_busy: int = 0
    remote_fetch_timeouts: int = 0
    remote_fetch_corrupt: int = 0  # chunks and sidecars that were wrong twice
    remote_delete_requests: int = 0
    remote_delete_errors: int = 0
    task_errors: int = 0
    build_remote_log_aux_state_requests: int = 0
    build_remote_log_aux_state_errors: int = 0
    reader_pending_tasks: int = 0
    topics: dict[str, Counter[str]] = field(default_factory=dict)
    """Counters by topic, as far as KIP-405 has them so; `OTHER_TOPICS` has those beyond a limit."""
    failed_tasks: FailedTasks = field(default_factory=FailedTasks)

    def count(self, name: str, topic: str, number: int = 1) -> None:
        """Adds to a counter of `KAFKAS_RATES`, for the node and for a topic."""
        setattr(self, name, getattr(self, name) + number)
        counts = self.topics.get(topic)
        if counts is None:
            if len(self.topics) >= TOPICS_MAX:
                topic = OTHER_TOPICS
            counts = self.topics.setdefault(topic, Counter())
        counts[name] += number


class TopicGauges(NamedTuple):
    """State of the tier of a topic, as far as this node leads it."""

    copy_lag: CopyLag = NO_LAG
    delete_lag: CopyLag = NO_LAG
    metadata_count: int = 0
    size_bytes: int = 0


def by_topic(parts: Iterable[tuple[str, TopicGauges]]) -> dict[str, TopicGauges]:
    """Returns the sums of partitions' gauges by topic, of those beyond `TOPICS_MAX` together."""
    sums: dict[str, TopicGauges] = {}
    for topic, part in parts:
        if topic not in sums and len(sums) >= TOPICS_MAX:
            topic = OTHER_TOPICS
        known = sums.get(topic)
        sums[topic] = part if known is None else _sum(known, part)
    return sums


def _sum(one: TopicGauges, other: TopicGauges) -> TopicGauges:
    return TopicGauges(
        total_lag((one.copy_lag, other.copy_lag)),
        total_lag((one.delete_lag, other.delete_lag)),
        one.metadata_count + other.metadata_count,
        one.size_bytes + other.size_bytes,
    )


@dataclass(frozen=True, slots=True)
class RemoteGauges:
    """State of the tier of a node when it is reported, of the partitions that it leads."""

    copy_lag: CopyLag = NO_LAG
    delete_lag: CopyLag = NO_LAG
    metadata_count: int = 0
    size_bytes: int = 0
    size_computation_ms: float = 0.0
    reader_queue_size: int = 0
    reader_idle: float = 1.0
    """Share of the reader's threads without work."""
    tasks_idle: float = 1.0
    """Share of the copier's threads without work."""
    topics: Mapping[str, TopicGauges] = field(default_factory=dict)
    """Those of at most `TOPICS_MAX` topics, and of `OTHER_TOPICS`."""


KAFKAS_RATES = {
    "RemoteFetchBytes": "remote_fetch_bytes",
    "RemoteFetchRequests": "remote_fetch_requests",
    "RemoteFetchErrors": "remote_fetch_errors",
    "RemoteCopyBytes": "remote_copy_bytes",
    "RemoteCopyRequests": "remote_copy_requests",
    "RemoteCopyErrors": "remote_copy_errors",
    "RemoteDeleteRequests": "remote_delete_requests",
    "RemoteDeleteErrors": "remote_delete_errors",
    "BuildRemoteLogAuxStateRequests": "build_remote_log_aux_state_requests",
    "BuildRemoteLogAuxStateErrors": "build_remote_log_aux_state_errors",
}
"""Counters by Kafka's names, without `PerSec`."""
OWN_TOTALS = {
    "RemoteCopyRefusals": "remote_copy_refusals",
    "RemoteFetchBusy": "remote_fetch_busy",
    "RemoteFetchTimeouts": "remote_fetch_timeouts",
    "RemoteFetchCorrupt": "remote_fetch_corrupt",
    "RemoteLogManagerTaskErrors": "task_errors",
    "RemoteLogRestoreRequests": "restore_requests",
    "RemoteLogRestoreErrors": "restore_errors",
    "RemoteChunkCacheHits": "chunk_cache_hits",
    "RemoteChunkCacheMisses": "chunk_cache_misses",
    "RemoteChunkDiskCacheHits": "chunk_disk_cache_hits",
    "RemoteChunkPrefetches": "chunk_prefetches",
    "RemoteIndexCacheRefetches": "index_cache_refetches",
}
"""Counters that Kafka lacks."""


class RemoteMeter:
    """The report of one node's tier."""

    def __init__(self, metrics: RemoteMetrics) -> None:
        self._metrics = metrics
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque()

    def read(self, gauges: RemoteGauges, now_ms: int) -> dict[str, int | float]:
        """Returns all metrics by name."""
        metrics = self._metrics
        counts = tuple(getattr(metrics, name) for name in KAFKAS_RATES.values())
        began_ms, before = self._sampled(counts, now_ms)
        elapsed_s = max(1, now_ms - began_ms) / 1000
        report: dict[str, int | float] = {}
        for name, count, earlier in zip(KAFKAS_RATES, counts, before, strict=True):
            report[f"{name}PerSec"] = (count - earlier) / elapsed_s
            report[f"{name}Total"] = count
        for name, attribute in OWN_TOTALS.items():
            report[f"{name}Total"] = getattr(metrics, attribute)
        copies, fetches = metrics.remote_copy_throttle_time, metrics.remote_fetch_throttle_time
        return {
            **report,
            "RemoteCopyLagBytes": gauges.copy_lag.bytes,
            "RemoteCopyLagSegments": gauges.copy_lag.segments,
            "RemoteDeleteLagBytes": gauges.delete_lag.bytes,
            "RemoteDeleteLagSegments": gauges.delete_lag.segments,
            "RemoteLogMetadataCount": gauges.metadata_count,
            "RemoteLogSizeBytes": gauges.size_bytes,
            "RemoteLogSizeComputationTime": gauges.size_computation_ms,
            "RemoteLogReaderTaskQueueSize": gauges.reader_queue_size,
            "RemoteLogReaderAvgIdlePercent": gauges.reader_idle,
            "RemoteLogManagerTasksAvgIdlePercent": gauges.tasks_idle,
            "remote-copy-throttle-time-avg": copies.average_s * 1000,
            "remote-copy-throttle-time-max": copies.max_s * 1000,
            "remote-fetch-throttle-time-avg": fetches.average_s * 1000,
            "remote-fetch-throttle-time-max": fetches.max_s * 1000,
        }

    def _sampled(self, counts: tuple[int, ...], now_ms: int) -> tuple[int, tuple[int, ...]]:
        """Returns the newest sample that is a minute old, else the oldest one."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= RATE_MS // _SAMPLES_MAX:
            samples.append((now_ms, counts if samples else (0,) * len(counts)))
        while len(samples) > 1 and now_ms - samples[1][0] >= RATE_MS:
            samples.popleft()
        return samples[0]
