"""The remote log metadata of a live cluster, read by a client for `tidemark tier`.

The topic is read to the end that it had at first. Nothing is created: a cluster without the topic
has no tier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.errors import UnknownTopicOrPartitionError
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidemark.cli.session import Session
    from tidemark.client.models import ReplicaDescription
    from tidemark.client.sync import Admin
    from tiering.metadata.history import MetadataHistory

_POLL_MS = 1000


def read_history(session: Session, admin: Admin) -> MetadataHistory:
    """Reads all records of the metadata topic. Raises UnknownTopicOrPartitionError without one."""
    from tidemark.cli.session import progress
    from tidemark.client.sync import Consumer
    from tiering.metadata.history import MetadataHistory

    topic = REMOTE_LOG_METADATA_TOPIC
    try:
        known = admin.describe_topics([topic])[topic]
    except UnknownTopicOrPartitionError as error:
        raise UnknownTopicOrPartitionError(
            f"the cluster has no topic {topic}: none of its topics was ever tiered"
        ) from error
    partitions = [TopicPartition(topic, found.partition) for found in known.partitions]
    history = MetadataHistory()
    with Consumer(session.bootstrap) as consumer:
        first, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        history.is_complete = not any(first.values())
        positions = {one: first[one] for one in partitions if first[one] < ends[one]}
        consumer.assign(list(positions))
        for partition, offset in positions.items():
            consumer.seek(partition, offset)
        total = sum(ends[one] - first[one] for one in positions)
        with progress("remote log metadata", total) as report:
            left = dict(positions)
            while left:
                for raw in consumer.fetch_batches(_POLL_MS):
                    history.apply_batches(raw.buffer, raw.first_offset)
                    positions[raw.topic_partition] = raw.next_offset
                left = {one: at for one, at in positions.items() if at < ends[one]}
                report(total - sum(ends[one] - at for one, at in left.items()))
    return history


def leader_replicas(admin: Admin) -> dict[TopicPartition, ReplicaDescription]:
    """Returns the leader's replica of each partition that has one."""
    return {
        replica.topic_partition: replica
        for directories in admin.describe_log_dirs().values()
        for directory in directories
        for replica in directory.replicas
        if replica.is_leader and not replica.is_future
    }
