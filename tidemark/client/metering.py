"""Counts of producers and consumers, and their report by Kafka's names (pure).

An event of a batch or a request adds to plain fields; nothing is counted per record. A read makes
rates and averages of them. These are of the half minute before, or of the time since the first
event if that is shorter. A maximum is one of the last half minute or of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark.client.batch import Batch

WINDOW_MS = 30_000.0
_SAMPLES_MAX = 16
_PRODUCER_COUNTS, _CONSUMER_COUNTS = 11, 8


class Peak:
    """The largest value of the present and the last window."""

    __slots__ = ("_before", "_began_ms", "_now")

    def __init__(self) -> None:
        self._began_ms, self._now, self._before = 0.0, 0.0, 0.0

    def add(self, value: float, now_ms: float) -> None:
        """Takes a value."""
        self._turn(now_ms)
        if value > self._now:
            self._now = value

    def read(self, now_ms: float) -> float:
        """The largest value; 0 if there was none."""
        self._turn(now_ms)
        return max(self._now, self._before)

    def _turn(self, now_ms: float) -> None:
        if now_ms - self._began_ms < WINDOW_MS:
            return
        is_next = now_ms - self._began_ms < 2 * WINDOW_MS
        self._before = self._now if is_next else 0.0
        self._now, self._began_ms = 0.0, now_ms


class Window:
    """The increase of counters since about `WINDOW_MS` before a read.

    A read keeps a sample of its own; reads that are close share one. Threads may read at once.
    """

    __slots__ = ("_samples",)

    def __init__(self, began_ms: float, width: int) -> None:
        self._samples: tuple[tuple[float, Sequence[float]], ...] = ((began_ms, (0.0,) * width),)

    def read(self, counts: Sequence[float], now_ms: float) -> tuple[float, list[float]]:
        """Returns the time in s since the sample, and the increases of `counts` in it."""
        samples = self._samples
        if now_ms - samples[-1][0] >= WINDOW_MS / _SAMPLES_MAX:
            samples = (*samples, (now_ms, tuple(counts)))
        while len(samples) > 1 and now_ms - samples[1][0] >= WINDOW_MS:
            samples = samples[1:]
        self._samples = samples
        began_ms, before = samples[0]
        grown = [now - then for now, then in zip(counts, before, strict=True)]
        return max(now_ms - began_ms, 1.0) / 1000, grown


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0


class ProducerMeter:
    """Batches and requests of a producer."""

    __slots__ = (
        "_latency_peak",
        "_queue_peak",
        "_size_peak",
        "_window",
        "answers",
        "batches",
        "latency_ms",
        "queue_ms",
        "queued",
        "raw_bytes",
        "records",
        "requests",
        "retried",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.requests = self.batches = self.records = self.retried = self.answers = 0
        self.sent_bytes = self.raw_bytes = self.queued = 0
        self.latency_ms = self.queue_ms = 0.0
        self._latency_peak, self._queue_peak, self._size_peak = Peak(), Peak(), Peak()
        self._window: Window | None = None

    def sent(self, batches: Iterable[Batch], now_ms: float) -> None:
        """Takes the batches of a request that is sent now."""
        if self._window is None:
            self._window = Window(now_ms, _PRODUCER_COUNTS)
        self.requests += 1
        for batch in batches:
            size_bytes = len(batch.payload or b"")
            self.batches += 1
            self.records += batch.count
            self.sent_bytes += size_bytes
            self.raw_bytes += batch.size_bytes
            self._size_peak.add(size_bytes, now_ms)
            if batch.tries.count == 1:
                waited_ms = now_ms - batch.created_ms
                self.queued += 1
                self.queue_ms += waited_ms
                self._queue_peak.add(waited_ms, now_ms)

    def answered(self, latency_ms: float, now_ms: float) -> None:
        """Takes the time of a request that was answered."""
        self.answers += 1
        self.latency_ms += latency_ms
        self._latency_peak.add(latency_ms, now_ms)

    def report(self, lost: int, now_ms: float) -> dict[str, float]:
        """All by Kafka's names; `lost` is the number of records that failed for good."""
        counts = (
            *(self.requests, self.batches, self.records, self.retried, lost, self.sent_bytes),
            *(self.raw_bytes, self.answers, self.latency_ms, self.queued, self.queue_ms),
        )
        window = self._window or Window(now_ms, _PRODUCER_COUNTS)
        elapsed_s, grown = window.read(counts, now_ms)
        requests, batches, records, retried, failed, sent, raw, answers, latency, queued, queue = (
            grown
        )
        return {
            "batch-size-avg": _mean(sent, batches),
            "batch-size-max": self._size_peak.read(now_ms),
            "compression-rate-avg": _mean(sent, raw),
            "outgoing-byte-rate": sent / elapsed_s,
            "outgoing-byte-total": float(self.sent_bytes),
            "record-error-rate": failed / elapsed_s,
            "record-error-total": float(lost),
            "record-queue-time-avg": _mean(queue, queued),
            "record-queue-time-max": self._queue_peak.read(now_ms),
            "record-retry-rate": retried / elapsed_s,
            "record-retry-total": float(self.retried),
            "record-send-rate": records / elapsed_s,
            "record-send-total": float(self.records),
            "record-size-avg": _mean(raw, records),
            "records-per-request-avg": _mean(records, requests),
            "request-latency-avg": _mean(latency, answers),
            "request-latency-max": self._latency_peak.read(now_ms),
            "request-rate": requests / elapsed_s,
            "request-total": float(self.requests),
        }


class ConsumerMeter:
    """Fetches of a consumer, records that were read, calls to the coordinator of its group."""

    __slots__ = (
        "_commit_peak",
        "_fetch_peak",
        "_heartbeat_peak",
        "_size_peak",
        "_window",
        "commit_ms",
        "commits",
        "consumed_bytes",
        "fetch_ms",
        "fetched_bytes",
        "fetches",
        "heartbeats",
        "records",
    )

    def __init__(self) -> None:
        self.fetches = self.fetched_bytes = self.records = self.consumed_bytes = 0
        self.commits = self.heartbeats = 0
        self.fetch_ms = self.commit_ms = 0.0
        self._fetch_peak, self._size_peak = Peak(), Peak()
        self._commit_peak, self._heartbeat_peak = Peak(), Peak()
        self._window: Window | None = None

    def _begin(self, now_ms: float) -> None:
        if self._window is None:
            self._window = Window(now_ms, _CONSUMER_COUNTS)

    def fetched(self, size_bytes: int, latency_ms: float, now_ms: float) -> None:
        """Takes the answer to a fetch, its wait for records included."""
        self._begin(now_ms)
        self.fetches += 1
        self.fetched_bytes += size_bytes
        self.fetch_ms += latency_ms
        self._fetch_peak.add(latency_ms, now_ms)
        self._size_peak.add(size_bytes, now_ms)

    def consumed(self, records: int, size_bytes: int) -> None:
        """Takes what the reader gets."""
        self.records += records
        self.consumed_bytes += size_bytes

    def committed(self, latency_ms: float, now_ms: float) -> None:
        """Takes the time of a commit that succeeded."""
        self._begin(now_ms)
        self.commits += 1
        self.commit_ms += latency_ms
        self._commit_peak.add(latency_ms, now_ms)

    def beat(self, latency_ms: float, now_ms: float) -> None:
        """Takes the time of a heartbeat that was answered."""
        self._begin(now_ms)
        self.heartbeats += 1
        self._heartbeat_peak.add(latency_ms, now_ms)

    def report(self, now_ms: float) -> dict[str, float]:
        """All by Kafka's names."""
        counts = (
            *(self.fetches, self.fetched_bytes, self.fetch_ms, self.records),
            *(self.consumed_bytes, self.commits, self.commit_ms, self.heartbeats),
        )
        window = self._window or Window(now_ms, _CONSUMER_COUNTS)
        elapsed_s, grown = window.read(counts, now_ms)
        fetches, fetched, fetch_ms, records, consumed, commits, commit_ms, heartbeats = grown
        return {
            "bytes-consumed-rate": consumed / elapsed_s,
            "bytes-consumed-total": float(self.consumed_bytes),
            "commit-latency-avg": _mean(commit_ms, commits),
            "commit-latency-max": self._commit_peak.read(now_ms),
            "commit-rate": commits / elapsed_s,
            "commit-total": float(self.commits),
            "fetch-latency-avg": _mean(fetch_ms, fetches),
            "fetch-latency-max": self._fetch_peak.read(now_ms),
            "fetch-rate": fetches / elapsed_s,
            "fetch-size-avg": _mean(fetched, fetches),
            "fetch-size-max": self._size_peak.read(now_ms),
            "fetch-total": float(self.fetches),
            "heartbeat-rate": heartbeats / elapsed_s,
            "heartbeat-response-time-max": self._heartbeat_peak.read(now_ms),
            "heartbeat-total": float(self.heartbeats),
            "records-consumed-rate": records / elapsed_s,
            "records-consumed-total": float(self.records),
        }
