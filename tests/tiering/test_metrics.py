"""Metrics of the tier: Kafka's names, each with what a copy, a read and a deletion do to it."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest

from tests.tiering.world import PARTITION, World
from tiering import metrics as metrics_module
from tiering.errors import RetriableRemoteStorageError
from tiering.metrics import (
    KAFKAS_RATES,
    NO_LAG,
    OTHER_TOPICS,
    OWN_TOTALS,
    CopyLag,
    RemoteGauges,
    RemoteMeter,
    RemoteMetrics,
    ThrottleTime,
    TopicGauges,
    by_topic,
)

KAFKAS = {
    # KIP-405 and KIP-963, BrokerTopicMetrics
    "RemoteFetchBytesPerSec",
    "RemoteFetchRequestsPerSec",
    "RemoteFetchErrorsPerSec",
    "RemoteCopyBytesPerSec",
    "RemoteCopyRequestsPerSec",
    "RemoteCopyErrorsPerSec",
    "RemoteCopyLagBytes",
    "RemoteCopyLagSegments",
    "RemoteDeleteLagBytes",
    "RemoteDeleteLagSegments",
    "RemoteDeleteRequestsPerSec",
    "RemoteDeleteErrorsPerSec",
    "BuildRemoteLogAuxStateRequestsPerSec",
    "BuildRemoteLogAuxStateErrorsPerSec",
    "RemoteLogMetadataCount",
    "RemoteLogSizeBytes",
    "RemoteLogSizeComputationTime",
    # KIP-405, RemoteLogManager
    "RemoteLogReaderTaskQueueSize",
    "RemoteLogReaderAvgIdlePercent",
    "RemoteLogManagerTasksAvgIdlePercent",
    # KIP-956
    "remote-copy-throttle-time-avg",
    "remote-copy-throttle-time-max",
    "remote-fetch-throttle-time-avg",
    "remote-fetch-throttle-time-max",
}


def test_the_report_has_all_of_kafkas_names_and_every_counter() -> None:
    metrics = RemoteMetrics()
    report = RemoteMeter(metrics).read(RemoteGauges(), 0)
    assert set(report) >= KAFKAS
    added = set(report) - KAFKAS
    assert all(name.endswith("Total") for name in added)
    assert "RemoteFetchCorruptTotal" in added
    reported = {*KAFKAS_RATES.values(), *OWN_TOTALS.values(), "reader_pending_tasks"}
    times = {"remote_copy_throttle_time", "remote_fetch_throttle_time"}
    elsewhere = {"topics", "failed_tasks"}  # by topic, and in DescribeNode
    assert {one.name for one in fields(RemoteMetrics)} == reported | times | elsewhere


def test_a_rate_is_that_of_the_last_minute() -> None:
    metrics = RemoteMetrics()
    meter = RemoteMeter(metrics)
    rates = []
    for now_ms in range(0, 180_001, 10_000):
        rates.append(meter.read(RemoteGauges(), now_ms)["RemoteCopyBytesPerSec"])
        if now_ms < 60_000:
            metrics.remote_copy_bytes += 100
    assert rates[:8] == [0, 10, 10, 10, 10, 10, 10, pytest.approx(500 / 60)]
    assert rates[12:] == [0] * 7
    assert len(meter._samples) < 10


def test_throttle_times_have_an_average_and_a_maximum_in_ms() -> None:
    metrics = RemoteMetrics()
    metrics.remote_copy_throttle_time = ThrottleTime(2, 3.0, 2.0)
    metrics.remote_fetch_throttle_time.add(0.5)
    report = RemoteMeter(metrics).read(RemoteGauges(), 0)
    assert report["remote-copy-throttle-time-avg"] == 1500
    assert report["remote-copy-throttle-time-max"] == 2000
    assert report["remote-fetch-throttle-time-max"] == 500


def test_the_waits_of_a_node_for_both_quotas_show_in_its_report(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.manager._reader.segments.quota.throttle_time.add(0.25)
    world.manager._copier._quota.throttle_time.add(0.5)
    report = world.manager.report(0)
    assert report["remote-fetch-throttle-time-max"] == 250
    assert report["remote-copy-throttle-time-max"] == 500


def test_copies_reads_and_deletions_show_in_the_report(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=1)
    world.lead()
    for _ in range(3):
        world.produce_segment()
    world.produce(1)
    sizes = [segment.size_bytes for segment in world.log.segments]
    report = world.manager.report(0)
    assert report["RemoteCopyLagSegments"] == 3
    assert report["RemoteCopyLagBytes"] == sum(sizes[:3])
    deleted = world.storage.delete_log_segment_data

    def fail(metadata: object) -> None:
        raise RetriableRemoteStorageError("down")

    world.storage.delete_log_segment_data = fail
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    report = world.manager.report(1_000)
    assert report["RemoteCopyLagSegments"] == report["RemoteCopyLagBytes"] == 0
    assert report["RemoteCopyBytesPerSec"] == report["RemoteCopyBytesTotal"] == sum(sizes[:3])
    assert report["RemoteCopyRequestsTotal"] == report["RemoteLogMetadataCount"] == 3
    assert report["RemoteDeleteLagSegments"] == 3
    assert report["RemoteDeleteLagBytes"] == sum(sizes[:3])
    assert report["RemoteDeleteErrorsTotal"] == 1
    world.storage.delete_log_segment_data = deleted
    asyncio.run(world.once())
    report = world.manager.report(2_000)
    assert report["RemoteDeleteLagSegments"] == report["RemoteDeleteLagBytes"] == 0
    assert report["RemoteLogSizeBytes"] == report["RemoteLogMetadataCount"] == 0
    assert report["RemoteLogManagerTasksAvgIdlePercent"] == 1
    assert report["RemoteLogReaderAvgIdlePercent"] == 1


def test_counters_and_gauges_are_told_by_topic(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce(1)
    size = world.log.segments[0].size_bytes
    topic = PARTITION.topic
    assert world.manager.gauges().topics[topic].copy_lag == CopyLag(size, 1)
    deleted = world.storage.delete_log_segment_data

    def fail(metadata: object) -> None:
        raise RetriableRemoteStorageError("down")

    world.storage.delete_log_segment_data = fail
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    told = world.manager.gauges().topics[topic]
    assert told == TopicGauges(NO_LAG, CopyLag(size, 1), 1, 0)
    world.storage.delete_log_segment_data = deleted
    counts = world.manager.metrics.topics[topic]
    assert counts == {
        "remote_copy_requests": 1,
        "remote_copy_bytes": size,
        "remote_delete_requests": 1,
        "remote_delete_errors": 1,
    }
    for name, count in counts.items():
        assert getattr(world.manager.metrics, name) == count


def test_topics_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TOPICS_MAX", 2)
    metrics = RemoteMetrics()
    for topic in ("a", "b", "c", "a", "d"):
        metrics.count("remote_fetch_bytes", topic, 10)
    assert {topic: one["remote_fetch_bytes"] for topic, one in metrics.topics.items()} == {
        "a": 20,
        "b": 10,
        OTHER_TOPICS: 20,
    }
    assert metrics.remote_fetch_bytes == 50
    part = TopicGauges(CopyLag(1, 2), CopyLag(3, 4), 5, 6)
    sums = by_topic((topic, part) for topic in ("a", "b", "c", "d", "b"))
    twice = TopicGauges(CopyLag(2, 4), CopyLag(6, 8), 10, 12)
    assert sums == {"a": part, "b": twice, OTHER_TOPICS: twice}
