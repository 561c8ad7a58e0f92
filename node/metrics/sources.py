"""Families of a broker: its partitions, their traffic, its memory and its directories (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from node.metrics.families import (
    gauge,
    histogram,
    labelled,
    snake_case,
)
from node.partition.hosted import HostedPartition
from node.runtime.loop_lag import BOUNDS_MS, LoopLag
from node.serving.answer_memory import AnswerMemory
from node.serving.request_memory import RequestMemory
from tidemark.config import ServerConfig
from tidemark.types import TopicPartition

_BEAN = "Kafka's kafka.server:type=ReplicaManager,name="
_TOPIC_BEAN = "Kafka's kafka.server:type=BrokerTopicMetrics,name="


def of_node(config: ServerConfig) -> Metric:
    """The node's id and roles."""
    info = GaugeMetricFamily("tidemark_node_info", "1", labels=["node_id", "roles"])
    info.add_metric([str(config.node_id), ",".join(config.process_roles)], 1)
    return info


def of_loop(lag: LoopLag) -> Iterator[Metric]:
    """How late the event loop is."""
    found = lag.metrics()
    buckets = [(ms / 1000, int(found[f"event-loop-lag-ms-le-{ms}"])) for ms in BOUNDS_MS]
    count = int(found["event-loop-lag-count"])
    yield histogram("event_loop_lag_seconds", "Delays of a timer of the loop", buckets, count)


def of_partitions(
    hosted: Collection[HostedPartition], offline: Collection[TopicPartition]
) -> Iterator[Metric]:
    """Counts of the partitions that a broker hosts."""
    led = [one for one in hosted if one.is_leader and not one.is_gone]
    gone = sum(one.is_gone for one in hosted) + len(offline)
    counts = {
        "PartitionCount": len(hosted),
        "LeaderCount": len(led),
        "UnderReplicatedPartitions": sum(len(p.core.isr) < len(p.core.replicas) for p in led),
        "UnderMinIsrPartitionCount": sum(len(p.core.isr) < p.core.effective_min_isr for p in led),
        "AtMinIsrPartitionCount": sum(len(p.core.isr) == p.core.effective_min_isr for p in led),
        "OfflineReplicaCount": gone,
    }
    for name, value in counts.items():
        yield gauge(f"broker_{snake_case(name)}", f"{_BEAN}{name}", value)
    waiting = sum(len(p.acks) for p in led)
    yield gauge("broker_waiting_produces", "Produces that wait for in-sync replicas", waiting)


def of_topics(hosted: Iterable[HostedPartition]) -> Iterator[Metric]:
    """Traffic since the partitions came here, and the size of their logs, by topic."""
    sums: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in _TRAFFIC}
    sizes: defaultdict[str, float] = defaultdict(float)
    for one in hosted:
        topic = one.topic_partition.topic
        for name in _TRAFFIC:
            sums[name][topic] += getattr(one.traffic, name)
        sizes[topic] += one.log.size_bytes
    for name, kafkas in _TRAFFIC.items():
        yield labelled(
            CounterMetricFamily, f"topic_{name}", f"{_TOPIC_BEAN}{kafkas}", "topic", sums[name]
        )
    yield labelled(
        GaugeMetricFamily,
        "topic_log_size_bytes",
        "Kafka's kafka.log:type=Log,name=Size",
        "topic",
        sizes,
    )


_TRAFFIC = {
    "bytes_in": "BytesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "records_in": "MessagesInPerSec",
    "replication_bytes_in": "ReplicationBytesInPerSec",
    "replication_bytes_out": "ReplicationBytesOutPerSec",
}


def of_memory(
    requests: Sequence[RequestMemory], answers: Sequence[AnswerMemory]
) -> Iterator[Metric]:
    """Memory for requests and answers of all listeners, by its use."""
    uses: dict[str, Sequence[RequestMemory] | Sequence[AnswerMemory]] = {
        "requests": requests,
        "answers": answers,
    }
    used = {use: float(sum(one.used_bytes for one in all_)) for use, all_ in uses.items()}
    limits = {use: float(sum(one.limit_bytes for one in all_)) for use, all_ in uses.items()}
    yield labelled(GaugeMetricFamily, "memory_used_bytes", "Bytes in use", "use", used)
    yield labelled(
        GaugeMetricFamily,
        "memory_limit_bytes",
        "queued.max.request.bytes and queued.max.response.bytes",
        "use",
        limits,
    )
    waiting = sum(one.waiting_bytes for one in requests)
    yield gauge("memory_waiting_bytes", "Bytes of requests that wait for room", waiting)


def of_directories(online: Mapping[str, bool], free_bytes: Mapping[str, int]) -> Iterator[Metric]:
    """Log directories by path: whether they serve, and the free bytes of their disks."""
    yield labelled(
        GaugeMetricFamily,
        "log_directory_online",
        "1: it serves; Kafka's kafka.log:type=LogManager,name=LogDirectoryOffline, reversed",
        "path",
        {path: float(is_online) for path, is_online in online.items()},
    )
    yield labelled(
        GaugeMetricFamily,
        "log_directory_free_bytes",
        "Free bytes of the disk",
        "path",
        dict(free_bytes),
    )


def of_certificates(not_after_ms: Mapping[str, int]) -> Metric:
    """The ends of listeners' certificates, for alerts before they come."""
    return labelled(
        GaugeMetricFamily,
        "listener_certificate_not_after_seconds",
        "End of the certificate of a listener with TLS, in s since 1970",
        "listener",
        {listener: end_ms / 1000 for listener, end_ms in not_after_ms.items()},
    )
