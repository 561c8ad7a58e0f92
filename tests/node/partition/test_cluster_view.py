"""Leaders and settings of topics as the published image has them."""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

import pytest

from node.partition.cluster_view import ClusterView
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.image.records import config_record
from tests.node.upkeep.test_cleaning import SERVER
from tidemark.config import ServerConfig, server_defaults
from tidemark.types import ConfigResourceType, TopicPartition
from tidemark.v1 import metadata_pb2 as records_pb

ID = UUID(int=7)
BROKER, TOPIC = ConfigResourceType.BROKER, ConfigResourceType.TOPIC


def published(
    view: ClusterView, image: MetadataImage, *records: records_pb.MetadataRecord
) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    after = delta.apply(image.offset + 1, 1)
    view.on_metadata_update(delta, after)
    return after


def topic(*leaders: int) -> list[records_pb.MetadataRecord]:
    """The topic `t` with a partition for each leader, of broker 1 and 2."""
    found = [
        records_pb.MetadataRecord(topic=records_pb.TopicRecord(name="t", topic_id=ID.bytes)),
    ]
    for number, leader in enumerate(leaders):
        partition = records_pb.PartitionRecord(
            partition_id=number,
            topic_id=ID.bytes,
            replicas=(1, 2),
            isr=(1, 2),
            leader=leader,
            leader_epoch=number,
        )
        found.append(records_pb.MetadataRecord(partition=partition))
    return found


def test_leaders_are_known_of_every_partition_of_the_image_and_of_no_other() -> None:
    view = ClusterView(SERVER)
    assert view.leader_of(TopicPartition("t", 0)) is None
    assert view.topic_name(ID) is None
    published(view, EMPTY_IMAGE, *topic(2, -1))
    leaders = [view.leader_of(TopicPartition("t", number)) for number in range(3)]
    assert leaders == [(2, 0), (-1, 1), None]
    assert view.leader_of(TopicPartition("u", 0)) is None
    assert view.topic_name(ID) == "t"


def test_altered_defaults_reach_topics_with_and_without_settings_of_their_own() -> None:
    view = ClusterView(SERVER)
    assert view.topic_config("t") == server_defaults(SERVER)
    image = published(view, EMPTY_IMAGE, *topic(1), config_record(TOPIC, "t", "segment.ms", "7"))
    before = view.topic_config("t")
    assert before.segment_ms == 7
    assert view.topic_config("t") is before, "one object for all partitions"
    published(view, image, config_record(BROKER, "", "log.retention.ms", "77777"))
    assert view.topic_config("u").retention_ms == 77_777
    assert (view.topic_config("t").segment_ms, view.topic_config("t").retention_ms) == (7, 77_777)


def test_a_topic_made_anew_under_its_name_has_no_setting_of_the_old_one() -> None:
    view = ClusterView(SERVER)
    image = published(view, EMPTY_IMAGE, *topic(1), config_record(TOPIC, "t", "segment.ms", "7"))
    assert view.topic_config("t").segment_ms == 7
    removed = records_pb.MetadataRecord(
        remove_topic=records_pb.RemoveTopicRecord(topic_id=ID.bytes)
    )
    image = published(view, image, removed)
    published(view, image, *topic(1))
    assert view.topic_config("t") == server_defaults(SERVER)


def test_a_value_that_can_not_be_read_leaves_the_settings_of_the_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[ServerConfig] = []
    view = ClusterView(SERVER)
    view.subscribe(heard.append)
    image = published(view, EMPTY_IMAGE, config_record(BROKER, "", "log.cleaner.threads", "5"))
    image = published(view, image, config_record(BROKER, "", "log.retention.ms", "77777"))
    with caplog.at_level(logging.ERROR):
        published(view, image, config_record(BROKER, "1", "log.retention.ms", "soon"))
    assert [c.log_cleaner_threads for c in heard][-1] == SERVER.log_cleaner_threads
    assert view.settings == SERVER
    assert view.topic_config("t") == server_defaults(SERVER)
    assert caplog.messages
    assert all("log.retention.ms" in message for message in caplog.messages)


def test_a_broker_tells_once_that_the_cluster_has_a_smaller_minimum_than_its_own_properties(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = ClusterView(replace(SERVER, min_insync_replicas=2))
    told: list[int] = []
    image = EMPTY_IMAGE
    with caplog.at_level(logging.WARNING):
        for value in ("1", "1", "2", "3", "1"):
            image = published(view, image, config_record(BROKER, "", "min.insync.replicas", value))
            told.append(len(caplog.messages))
            assert view.topic_config("t").min_insync_replicas == int(value)
    assert told == [1, 1, 1, 1, 2]
    assert (
        "tidemark configs alter --broker-defaults --set min.insync.replicas=2"
        in (caplog.messages[0])
    )
