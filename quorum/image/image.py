"""The metadata image: all that the metadata log says up to an offset, as one immutable value.

Built on persistent maps (HAMT), so the next image costs what changed, and an old one stays valid
for whoever holds it: a broker's request, a snapshot being written on another thread, or the
controller that drops its uncommitted image on a loss of leadership. `records()` is the image as
records in a fixed order; replaying them gives an equal image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from immutables import Map

from quorum.image import records
from quorum.image.partition_codec import partition_encoder
from quorum.image.types import (
    EMPTY_MAP,
    EMPTY_TOPICS,
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
    TopicsImage,
)
from tidemark.types import ConfigResource
from tidemark.v1 import metadata_pb2 as pb

METADATA_VERSION = "metadata.version"
ELR_VERSION = "eligible.leader.replicas.version"
CONTROLLERS_REGISTER_LEVEL = 2
"""The first metadata.version with records of controllers (KIP-919)."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster's metadata after the record at `offset` of `epoch`; `offset` -1: nothing was
    applied yet.
    """

    offset: int = -1
    epoch: int = 0
    brokers: Map[int, BrokerRegistration] = EMPTY_MAP
    topics: TopicsImage = EMPTY_TOPICS
    configs: Map[ConfigResource, Map[str, str]] = EMPTY_MAP
    features: Map[str, int] = EMPTY_MAP
    next_producer_id: int = 0
    controllers: Map[int, ControllerRegistration] = EMPTY_MAP

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.offset + 1

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What the topic itself sets."""
        return self.configs.get(ConfigResource.topic(name), Map())

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """What is set for a broker (None: the cluster's default)."""
        return self.configs.get(ConfigResource.broker(broker_id), Map())

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker may lead and join an ISR."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def replica_is_online(self, partition: PartitionRegistration, broker_id: int) -> bool:
        """Whether the directory that the broker keeps the replica in has not failed; True while
        nobody said which one that is."""
        if not partition.directories:
            return True
        directory, broker = partition.directory_of(broker_id), self.brokers.get(broker_id)
        return directory is None or (broker is not None and directory in broker.log_dirs)

    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)

    def records(self) -> Iterator[pb.MetadataRecord]:
        """The image as records in a fixed order: equal images give equal bytes on every node."""
        return map(records.decode_record, self.values())

    def values(self) -> Iterator[bytes]:
        """`records()` as they are written into a snapshot."""
        yield from map(records.encode_record, self._leading_records())
        for topic in self.topics.ordered():
            yield records.encode_record(records.topic_record(topic.name, topic.topic_id))
            encode = partition_encoder(topic.topic_id)
            for index, partition in topic.ordered():
                yield encode(index, partition)
        yield from map(records.encode_record, self._trailing_records())

    def _leading_records(self) -> Iterator[pb.MetadataRecord]:
        yield from self._feature_records()
        for controller_id in sorted(self.controllers):
            yield records.controller_record(self.controllers[controller_id])
        for broker_id in sorted(self.brokers):
            yield records.broker_record(self.brokers[broker_id])

    def _trailing_records(self) -> Iterator[pb.MetadataRecord]:
        for resource in sorted(self.configs):
            for name, value in sorted(self.configs[resource].items()):
                yield records.config_record(resource.type, resource.name, name, value)
        if self.next_producer_id:
            yield records.producer_ids_record(self.next_producer_id)

    def _feature_records(self) -> Iterator[pb.MetadataRecord]:
        """metadata.version leads: a reader must know it before anything else."""
        for name in sorted(self.features, key=lambda name: (name != METADATA_VERSION, name)):
            yield records.feature_record(name, self.features[name])


EMPTY_IMAGE = MetadataImage()
