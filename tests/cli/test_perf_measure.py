"""Histogram, meter and pace of `tidemark perf`: exact where they say so, bounded in memory."""

from __future__ import annotations

import random

import pytest

from tidemark.cli.perf_measure import PERCENTILES, Histogram, Meter, Throttler


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_sorted_latencies_to_one_percent(seed: int) -> None:
    rng = random.Random(seed)
    latencies = sorted(int(10 ** rng.uniform(0, 9)) for _ in range(5_000))
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    for percent in PERCENTILES:
        exact = latencies[-int(-len(latencies) * percent // 100) - 1]
        assert exact <= histogram.percentile_us(percent) <= exact * 1.008 + 1
    assert histogram.max_us == latencies[-1]
    assert histogram.mean_us == pytest.approx(sum(latencies) / len(latencies))


def test_a_latency_of_many_records_counts_for_each_of_them() -> None:
    histogram = Histogram()
    histogram.add(100, 99)
    histogram.add(5_000)
    assert histogram.count == 100
    assert histogram.percentile_us(50) == histogram.percentile_us(99) == 100
    assert histogram.percentile_us(99.9) == 5_000


def test_any_latency_has_a_bucket_and_none_needs_more_memory() -> None:
    histogram = Histogram()
    for latency in (-5, 0, 255, 256, 257, 2**40, 2**60):
        histogram.add(latency)
    assert histogram.percentile_us(100) == 2**60
    assert Histogram().as_ms()["p99.9"] == 0


def test_a_progress_line_tells_of_its_interval_and_the_result_of_the_run() -> None:
    meter = Meter(interval_s=5)
    meter.begin(100.0)
    meter.add(10, 10 << 20)
    meter.add_latency(0.004, 10)
    assert meter.progress(104.9) is None
    line = "10 records, 2.0 records/sec (2.00 MB/sec), 4.00 ms avg latency, 4.00 ms max latency"
    assert meter.progress(105.0) == line
    meter.add(10, 10 << 20)
    meter.add_latency(0.001, 10)
    assert meter.progress(105.1) is None
    second = meter.progress(110.0)
    assert second is not None
    assert second.endswith("1.00 ms avg latency, 1.00 ms max latency")
    meter.end(110.0)
    result = meter.result()
    assert (result["records"], result["records_per_s"], result["mb_per_s"]) == (20, 2.0, 2.0)
    exact = {"avg": 2.5, "max": 4.0, "p95": 4.0, "p99": 4.0, "p99.9": 4.0}
    assert result["latency_ms"] == exact | {"p50": 1.003}  # the end of the bucket of 1 ms
    assert meter.text().startswith("20 records, 2.0 records/sec (2.00 MB/sec), 2.50 ms avg latency")


def test_a_pace_lets_records_through_as_they_are_due_and_makes_up_for_a_stall() -> None:
    throttler = Throttler(10.0, 4)
    assert throttler.due(10.0, 0, 100) == 1
    assert throttler.due(10.0, 1, 100) == 0
    assert throttler.wait_s(10.0, 1) == 0.25
    assert throttler.due(10.25, 1, 100) == 1
    assert throttler.due(12.0, 2, 100) == 7
    assert throttler.due(12.0, 2, 3) == 3
    unlimited = Throttler(10.0, -1)
    assert (unlimited.due(10.0, 50, 100), unlimited.wait_s(10.0, 50)) == (100, 0.0)
