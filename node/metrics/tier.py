"""Families of the tier by topic, at most `TOPICS_MAX` of them and the others together (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from node.metrics.families import labelled
from tiering.metrics import KAFKAS_RATES, TopicGauges

_BEAN = "Kafka's kafka.server:type=BrokerTopicMetrics,name="
_GAUGES: dict[str, tuple[str, Callable[[TopicGauges], float]]] = {
    "copy_lag_bytes": ("RemoteCopyLagBytes", lambda one: one.copy_lag.bytes),
    "copy_lag_segments": ("RemoteCopyLagSegments", lambda one: one.copy_lag.segments),
    "delete_lag_bytes": ("RemoteDeleteLagBytes", lambda one: one.delete_lag.bytes),
    "delete_lag_segments": ("RemoteDeleteLagSegments", lambda one: one.delete_lag.segments),
    "log_metadata_count": ("RemoteLogMetadataCount", lambda one: one.metadata_count),
    "log_size_bytes": ("RemoteLogSizeBytes", lambda one: one.size_bytes),
}


def of_tiered_topics(
    gauges: Mapping[str, TopicGauges], counts: Mapping[str, Mapping[str, int]]
) -> Iterator[Metric]:
    """Lags and sizes of the topics that are led here, and what was done for each."""
    for name, (kafkas, value) in _GAUGES.items():
        values = {topic: float(value(one)) for topic, one in gauges.items()}
        family = f"remote_topic_{name}"
        yield labelled(GaugeMetricFamily, family, f"{_BEAN}{kafkas}", "topic", values)
    for kafkas, attribute in KAFKAS_RATES.items():
        done = {topic: float(of_topic.get(attribute, 0)) for topic, of_topic in counts.items()}
        family = f"remote_topic_{attribute.removeprefix('remote_')}"
        told = f"{_BEAN}{kafkas}PerSec"
        yield labelled(CounterMetricFamily, family, told, "topic", done)
