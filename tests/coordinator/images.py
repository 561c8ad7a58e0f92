"""Metadata images of topics for the tests of coordinators."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid5

from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from tidemark.v1 import metadata_pb2 as pb

_SPACE = UUID("7c9e6679-7425-40de-944b-e07fc1f90ae7")


def topic_id(name: str, generation: int = 0) -> UUID:
    """The id that `image` gives a topic."""
    return uuid5(_SPACE, f"{name}/{generation}")


def image(topics: Mapping[str, int], generations: Mapping[str, int] | None = None) -> MetadataImage:
    """Topics by name with their number of partitions, each on broker 1."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for name, count in topics.items():
        number = topic_id(name, (generations or {}).get(name, 0)).bytes
        delta.replay(pb.MetadataRecord(topic=pb.TopicRecord(name=name, topic_id=number)))
        for index in range(count):
            record = pb.PartitionRecord(
                partition_id=index, topic_id=number, replicas=[1], isr=[1], leader=1
            )
            delta.replay(pb.MetadataRecord(partition=record))
    return delta.apply(len(topics), 1)
