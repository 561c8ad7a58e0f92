"""The metadata image: the state of the metadata log up to an offset, as one immutable value.

Built on persistent maps (HAMT): the next image costs only the changes, and an old one stays valid
while it is held. A broker's request, a snapshot written on another thread, and a controller that
drops its uncommitted image all rely on that. `records()` is the image as records in a fixed order;
replaying them gives an equal image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

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
from tidemark.quotas.entities import QuotaEntity, sort_key
from tidemark.security.acls import AclBinding
from tidemark.security.scram import Credential
from tidemark.types import ConfigResource
from tidemark.v1 import metadata_pb2 as pb

METADATA_VERSION = "metadata.version"
ELR_VERSION = "eligible.leader.replicas.version"
CONTROLLERS_REGISTER_LEVEL = 2
"""The first metadata.version with records of controllers (KIP-919)."""
CLIENT_QUOTAS_LEVEL = 3
"""The first metadata.version with records of client quotas (KIP-546)."""

SECURITY_LEVEL = 4
"""The first metadata.version with records of ACLs (KIP-801) and of users of SCRAM (KIP-900)."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster's metadata after the record at `offset` of `epoch`.

    `offset` is -1 before the first record.
    """

    offset: int = -1
    epoch: int = 0
    brokers: Map[int, BrokerRegistration] = EMPTY_MAP
    topics: TopicsImage = EMPTY_TOPICS
    configs: Map[ConfigResource, Map[str, str]] = EMPTY_MAP
    features: Map[str, int] = EMPTY_MAP
    next_producer_id: int = 0
    controllers: Map[int, ControllerRegistration] = EMPTY_MAP
    client_quotas: Map[QuotaEntity, Map[str, float]] = EMPTY_MAP
    acls: Map[UUID, AclBinding] = EMPTY_MAP
    scram_users: Map[str, Credential] = EMPTY_MAP

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.offset + 1

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Settings of the topic itself."""
        return self.configs.get(ConfigResource.topic(name), Map())

    def broker_configs(self, broker_id: int | None) -> Mapping[str, str]:
        """Settings of a broker (None: the default of all brokers)."""
        return self.configs.get(ConfigResource.broker(broker_id), Map())

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker may lead and join an ISR."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def replica_is_online(self, partition: PartitionRegistration, broker_id: int) -> bool:
        """Whether the broker's directory with the replica has not failed.

        True while the directory is unknown.
        """
        if not partition.directories:
            return True
        directory, broker = partition.directory_of(broker_id), self.brokers.get(broker_id)
        return directory is None or (broker is not None and directory in broker.log_dirs)

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.features.get(ELR_VERSION, 0) >= 1

    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)

    def records(self) -> Iterator[pb.MetadataRecord]:
        """The image as records in a fixed order: equal images give equal bytes on every node."""
        return map(records.decode_record, self.values())

    def values(self) -> Iterator[bytes]:
        """`records()` as written to a snapshot."""
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
        for entity in sorted(self.client_quotas, key=sort_key):
            for key, quota in sorted(self.client_quotas[entity].items()):
                yield records.client_quota_record(entity, key, quota)
        for acl_id in sorted(self.acls):
            yield records.acl_record(acl_id, self.acls[acl_id])
        for name in sorted(self.scram_users):
            yield records.scram_record(name, self.scram_users[name])
        if self.next_producer_id:
            yield records.producer_ids_record(self.next_producer_id)

    def _feature_records(self) -> Iterator[pb.MetadataRecord]:
        """Levels as records; metadata.version first, because readers depend on it."""
        for name in sorted(self.features, key=lambda name: (name != METADATA_VERSION, name)):
            yield records.feature_record(name, self.features[name])


EMPTY_IMAGE = MetadataImage()
