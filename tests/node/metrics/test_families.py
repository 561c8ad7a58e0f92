"""Names of metrics, from Kafka's to those of Prometheus."""

from __future__ import annotations

import pytest

from node.metrics.families import histogram, of_kafka, snake_case


@pytest.mark.parametrize(
    ("kafkas", "own"),
    [
        ("ActiveBrokerCount", "active_broker_count"),
        ("commit-latency-avg", "commit_latency_avg"),
        ("UnderMinIsrPartitionCount", "under_min_isr_partition_count"),
        ("EventQueueTimeMsAvg", "event_queue_time_ms_avg"),
    ],
)
def test_both_kinds_of_kafkas_names_become_one(kafkas: str, own: str) -> None:
    assert snake_case(kafkas) == own


def test_totals_are_counters_texts_are_labels_and_rates_are_left_out() -> None:
    metrics = {
        "RemoteCopyBytesPerSec": 5.0,
        "RemoteCopyBytesTotal": 7,
        "append-records-rate": 1.0,
        "current-state": "leader",
        "high-watermark": 9,
    }
    found = {one.name: one for one in of_kafka("x", "kafka.x:type=X", metrics)}
    assert {name: one.type for name, one in found.items()} == {
        "tidemark_x_remote_copy_bytes": "counter",
        "tidemark_x_current_state": "gauge",
        "tidemark_x_high_watermark": "gauge",
    }
    (total,) = found["tidemark_x_remote_copy_bytes"].samples
    assert (total.name, total.value) == ("tidemark_x_remote_copy_bytes_total", 7)
    (state,) = found["tidemark_x_current_state"].samples
    assert (state.labels, state.value) == ({"value": "leader"}, 1)
    assert (
        found["tidemark_x_high_watermark"].documentation == "Kafka's kafka.x:type=X, high-watermark"
    )


def test_a_histogram_ends_with_all() -> None:
    family = histogram("lag_seconds", "x", [(0.001, 3), (1.0, 5)], 6)
    assert [(s.labels.get("le"), s.value) for s in family.samples] == [
        ("0.001", 3),
        ("1", 5),
        ("+Inf", 6),
    ]
