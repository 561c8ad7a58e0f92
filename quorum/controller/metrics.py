"""Metrics of a controller under Kafka's names (kafka.controller, ControllerStats, MetadataLoader).

Gauges follow the committed image by its deltas, so an update costs what changed, however large the
cluster is. Counters are incremented where the event happens; `ControllerMetrics.read` reports all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum.image import BrokerRegistration, MetadataDelta, PartitionRegistration
from quorum.raft.metrics import Latency, Rate


@dataclass(slots=True)
class ControllerMetrics:
    """Counts since the start of the process, and sizes of the committed image."""

    active_broker_count: int = 0
    fenced_broker_count: int = 0
    controlled_shutdown_broker_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    new_active_controllers_count: int = 0
    metadata_error_count: int = 0
    timed_out_broker_heartbeat_count: int = 0
    event_queue_operations_started_count: int = 0
    event_queue_operations_timed_out_count: int = 0
    event_queue_time: Latency = field(default_factory=Latency)
    event_queue_processing_time: Latency = field(default_factory=Latency)
    elections_from_eligible_replicas: Rate = field(default_factory=Rate)
    unclean_elections: Rate = field(default_factory=Rate)

    def on_metadata_update(self, delta: MetadataDelta, now_ms: int) -> None:
        """Follows a committed change."""
        image = delta.image
        for broker_id, broker in delta.brokers_changed.items():
            self._count_broker(image.brokers.get(broker_id), -1)
            self._count_broker(broker, 1)
        for deleted in delta.topics_deleted.values():
            self.global_topic_count -= 1
            for partition in deleted.partitions.values():
                self._count_partition(partition, -1)
        for topic in delta.topics_changed.values():
            self.global_topic_count += topic.is_new
            before = {} if topic.before is None else topic.before.partitions
            for index, partition in topic.partitions.items():
                known = before.get(index)
                if known is not None:
                    self._count_partition(known, -1)
                    if partition.leader != known.leader:
                        self._count_election(known, partition, now_ms)
                self._count_partition(partition, 1)

    def _count_broker(self, broker: BrokerRegistration | None, sign: int) -> None:
        if broker is None:
            return
        if broker.fenced:
            self.fenced_broker_count += sign
        else:
            self.active_broker_count += sign
            self.controlled_shutdown_broker_count += sign * broker.in_controlled_shutdown

    def _count_partition(self, partition: PartitionRegistration, sign: int) -> None:
        self.global_partition_count += sign
        if partition.leader is None:
            self.offline_partitions_count += sign
        if partition.leader != partition.replicas[0]:
            self.preferred_replica_imbalance_count += sign

    def _count_election(
        self, before: PartitionRegistration, after: PartitionRegistration, now_ms: int
    ) -> None:
        """Counts a new leader from outside the ISR: an eligible replica, or an unclean election."""
        if after.leader is None or after.leader in before.isr:
            return
        eligible = after.leader in before.elr
        (self.elections_from_eligible_replicas if eligible else self.unclean_elections).add(
            1, now_ms
        )

    def read(self, now_ms: int) -> dict[str, int | float]:
        """Returns the metrics by name. Times are in ms, and "...PerSec" is a rate."""
        queue, processing = self.event_queue_time, self.event_queue_processing_time
        eligible, unclean = self.elections_from_eligible_replicas, self.unclean_elections
        return {
            "ActiveBrokerCount": self.active_broker_count,
            "FencedBrokerCount": self.fenced_broker_count,
            "ControlledShutdownBrokerCount": self.controlled_shutdown_broker_count,
            "GlobalTopicCount": self.global_topic_count,
            "GlobalPartitionCount": self.global_partition_count,
            "OfflinePartitionsCount": self.offline_partitions_count,
            "PreferredReplicaImbalanceCount": self.preferred_replica_imbalance_count,
            "NewActiveControllersCount": self.new_active_controllers_count,
            "MetadataErrorCount": self.metadata_error_count,
            "TimedOutBrokerHeartbeatCount": self.timed_out_broker_heartbeat_count,
            "EventQueueOperationsStartedCount": self.event_queue_operations_started_count,
            "EventQueueOperationsTimedOutCount": self.event_queue_operations_timed_out_count,
            "EventQueueTimeMsAvg": queue.average_ms,
            "EventQueueTimeMsMax": queue.max_ms,
            "EventQueueProcessingTimeMsAvg": processing.average_ms,
            "EventQueueProcessingTimeMsMax": processing.max_ms,
            "ElectionFromEligibleLeaderReplicasPerSec": eligible.per_second(now_ms),
            "ElectionFromEligibleLeaderReplicasTotal": eligible.total,
            "UncleanLeaderElectionsPerSec": unclean.per_second(now_ms),
            "UncleanLeaderElectionsTotal": unclean.total,
        }
