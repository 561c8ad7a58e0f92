"""The cluster as the published metadata shows it: settings of topics and of the broker, leaders."""

from __future__ import annotations

from uuid import UUID

from node.partition.cluster_view import ClusterView
from quorum.image import EMPTY_IMAGE, ConfigResourceType, MetadataDelta
from quorum.image.records import config_record
from tests.node.fakes import broker_config
from tidemark.types import TopicPartition
from tidemark.v1 import metadata_pb2 as records_pb

TOPIC_ID = UUID(int=7)
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def published(view: ClusterView, *records: records_pb.MetadataRecord) -> None:
    """Publishes an image with these records on top."""
    delta = MetadataDelta(view.image)
    for record in records:
        delta.replay(record)
    view.on_metadata_update(delta, delta.apply(view.image.offset + 1, 1))


def test_topics_share_one_object_of_settings_until_these_change() -> None:
    view = ClusterView(broker_config())
    published(view, config_record(TOPIC, "kept", "retention.ms", "5"))
    kept, plain = view.topic_config("kept"), view.topic_config("plain")
    assert view.topic_config("kept") is kept
    assert view.topic_config("another") is plain
    published(view, config_record(BROKER, "", "log.retention.bytes", "4096"))
    assert view.topic_config("plain").retention_bytes == 4096
    assert view.topic_config("kept").retention_bytes == 4096
    assert view.topic_config("kept").retention_ms == 5
    published(view, config_record(TOPIC, "kept", "retention.ms", "6"))
    assert view.topic_config("kept").retention_ms == 6
    assert view.topic_config("kept", EMPTY_IMAGE) is view.topic_config("plain")


def test_values_that_can_not_be_read_leave_the_others_in_force() -> None:
    server = broker_config()
    view = ClusterView(server)
    heard: list[object] = []
    view.subscribe(heard.append)
    published(
        view,
        config_record(BROKER, "1", "log.cleaner.threads", "none"),
        config_record(TOPIC, "t", "retention.ms", "soon"),
        config_record(TOPIC, "t", "retention.bytes", "7"),
    )
    assert view.settings == server
    assert heard == []
    assert view.topic_config("t").retention_bytes == 7
    assert view.topic_config("t").retention_ms == view.topic_config("plain").retention_ms


def test_leaders_and_names_are_those_of_the_image() -> None:
    view = ClusterView(broker_config())
    topic = records_pb.TopicRecord(name="t", topic_id=TOPIC_ID.bytes)
    partition = records_pb.PartitionRecord(
        partition_id=0, topic_id=TOPIC_ID.bytes, replicas=(2, 1), isr=(2, 1), leader=2
    )
    published(
        view,
        records_pb.MetadataRecord(topic=topic),
        records_pb.MetadataRecord(partition=partition),
    )
    assert view.leader_of(TopicPartition("t", 0)) == (2, 0)
    assert view.leader_of(TopicPartition("t", 1)) is None
    assert view.topic_name(TOPIC_ID) == "t"
    assert view.topic_name(UUID(int=8)) is None
    change = records_pb.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID.bytes, leader=-1)
    published(view, records_pb.MetadataRecord(partition_change=change))
    assert view.leader_of(TopicPartition("t", 0)) == (-1, 1)
    removed = records_pb.RemoveTopicRecord(topic_id=TOPIC_ID.bytes)
    published(view, records_pb.MetadataRecord(remove_topic=removed))
    assert view.leader_of(TopicPartition("t", 0)) is None
