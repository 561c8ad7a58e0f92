"""Measurements of `tidemark perf`: latencies, rates and the pace of a throughput. Pure.

A histogram has a fixed number of buckets, so a run of any length takes the same memory. The
buckets are those of HdrHistogram: linear below 256 us, then 128 for each doubling. A percentile is
at most 0.8 % too high.
"""

from __future__ import annotations

from array import array
from typing import Any

PERCENTILES = (50.0, 95.0, 99.0, 99.9)

_LINEAR = 256
_HALF = _LINEAR // 2
_DOUBLINGS = 40  # up to 2^48 us, which is nine years
_BYTES_PER_MB = 1 << 20


class Histogram:
    """Latencies in us: count, mean and maximum are exact, percentiles to 0.8 %."""

    __slots__ = ("_buckets", "_sum_us", "count", "max_us")

    def __init__(self) -> None:
        self._buckets = array("q", bytes(8 * (_LINEAR + _DOUBLINGS * _HALF)))
        self._sum_us = 0
        self.count = 0
        self.max_us = 0

    def add(self, latency_us: int, count: int = 1) -> None:
        """Adds a latency that `count` records had."""
        latency_us = max(0, latency_us)
        self._buckets[min(_bucket_of(latency_us), len(self._buckets) - 1)] += count
        self._sum_us += latency_us * count
        self.count += count
        self.max_us = max(self.max_us, latency_us)

    @property
    def mean_us(self) -> float:
        return self._sum_us / self.count if self.count else 0.0

    def percentile_us(self, percent: float) -> int:
        """The latency that `percent` of the records did not exceed; 0 without records."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                is_last = bucket == len(self._buckets) - 1  # it takes all that is above, too
                return self.max_us if is_last else min(_highest_of(bucket), self.max_us)
        return self.max_us

    def as_ms(self) -> dict[str, float]:
        """avg, max and the percentiles, in ms."""
        found = {"avg": self.mean_us / 1000, "max": self.max_us / 1000}
        for percent in PERCENTILES:
            found[f"p{percent:g}"] = self.percentile_us(percent) / 1000
        return {name: round(value, 3) for name, value in found.items()}


def _bucket_of(value: int) -> int:
    if value < _LINEAR:
        return value
    doubling = value.bit_length() - _LINEAR.bit_length() + 1
    return _HALF * doubling + (value >> doubling)


def _highest_of(bucket: int) -> int:
    """The highest value that is in the bucket."""
    if bucket < _LINEAR:
        return bucket
    doubling = bucket // _HALF - 1
    return ((bucket - _HALF * doubling + 1) << doubling) - 1


class Meter:
    """Records, bytes and latencies of a run, and of the interval since the last progress line."""

    def __init__(self, interval_s: float) -> None:
        self.latencies = Histogram()
        self.records = 0
        self.size_bytes = 0
        self.failed = 0
        self._begin_s = self._end_s = 0.0
        self._interval_s = interval_s
        self._begin_window(0.0)

    def begin(self, now_s: float) -> None:
        """Starts the time; connecting is no part of it."""
        self._begin_s = self._end_s = now_s
        self._begin_window(now_s)

    def end(self, now_s: float) -> None:
        """Stops the time."""
        self._end_s = now_s

    def add(self, records: int, size_bytes: int) -> None:
        """Counts records that were written or read."""
        self.records += records
        self.size_bytes += size_bytes
        self._window_records += records
        self._window_bytes += size_bytes

    def add_latency(self, latency_s: float, count: int = 1) -> None:
        """Adds a latency that `count` records, or polls, had."""
        latency_us = round(latency_s * 1e6)
        self.latencies.add(latency_us, count)
        self._window.add(latency_us, count)

    def progress(self, now_s: float) -> str | None:
        """The line of an interval that is over, and a new interval; None before."""
        elapsed_s = now_s - self._window_begin_s
        if elapsed_s < self._interval_s:
            return None
        line = (
            _rates(self._window_records, self._window_bytes, elapsed_s)
            + f", {self._window.mean_us / 1000:.2f} ms avg latency"
            + f", {self._window.max_us / 1000:.2f} ms max latency"
        )
        self._begin_window(now_s)
        return line

    def _begin_window(self, now_s: float) -> None:
        self._window = Histogram()
        self._window_begin_s = now_s
        self._window_records = self._window_bytes = 0

    @property
    def _elapsed_s(self) -> float:
        return max(self._end_s - self._begin_s, 1e-9)

    def result(self) -> dict[str, Any]:
        """The whole run as JSON's types."""
        elapsed_s = self._elapsed_s
        return {
            "records": self.records,
            "failed": self.failed,
            "bytes": self.size_bytes,
            "elapsed_s": round(elapsed_s, 3),
            "records_per_s": round(self.records / elapsed_s, 2),
            "mb_per_s": round(self.size_bytes / elapsed_s / _BYTES_PER_MB, 3),
            "latency_ms": self.latencies.as_ms(),
        }

    def text(self) -> str:
        """The whole run as a line in the words of Kafka's tool."""
        latency = self.latencies.as_ms()
        percentiles = ", ".join(f"{latency[f'p{p:g}']:.2f} ms {p:g}th" for p in PERCENTILES)
        return (
            _rates(self.records, self.size_bytes, self._elapsed_s)
            + f", {latency['avg']:.2f} ms avg latency, {latency['max']:.2f} ms max latency"
            + f", {percentiles}"
        )


def _rates(records: int, size_bytes: int, elapsed_s: float) -> str:
    mb_per_s = size_bytes / elapsed_s / _BYTES_PER_MB
    return f"{records} records, {records / elapsed_s:.1f} records/sec ({mb_per_s:.2f} MB/sec)"


class Throttler:
    """The records that are due at a throughput in records/s; 0 or below: as many as can be."""

    def __init__(self, begin_s: float, throughput: float) -> None:
        self._begin_s = begin_s
        self._throughput = throughput

    def due(self, now_s: float, sent: int, most: int) -> int:
        """How many of the next `most` records may be sent now."""
        if self._throughput <= 0:
            return most
        return max(0, min(most, int((now_s - self._begin_s) * self._throughput) + 1 - sent))

    def wait_s(self, now_s: float, sent: int) -> float:
        """The time until the next record is due."""
        if self._throughput <= 0:
            return 0.0
        return max(0.0, self._begin_s + sent / self._throughput - now_s)
