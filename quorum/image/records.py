"""Conversion between values of an image and protobuf records of the metadata log.

A record's bytes are protobuf's deterministic serialisation, so equal images write equal snapshots
on every node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from quorum.image.types import (
    BrokerRegistration,
    ControllerRegistration,
    FeatureRange,
    LeaderRecoveryState,
    PartitionRegistration,
    intern_ids,
)
from tidemark.quotas.entities import QuotaEntity, parts_to_wire
from tidemark.security import acls
from tidemark.security.acls import AclBinding
from tidemark.security.scram import Credential
from tidemark.types import Listener
from tidemark.v1 import acl_pb2, common_pb2
from tidemark.v1 import metadata_pb2 as pb

_directories: dict[bytes, UUID] = {}
_DIRECTORIES_MAX = 1 << 16


def encode_record(record: pb.MetadataRecord) -> bytes:
    """Bytes of the record in the log."""
    return record.SerializeToString(deterministic=True)


def decode_record(value: bytes) -> pb.MetadataRecord:
    """The inverse; raises google.protobuf.message.DecodeError."""
    return pb.MetadataRecord.FromString(value)


def leader_to_wire(leader: int | None) -> int:
    return -1 if leader is None else leader


def leader_from_wire(leader: int) -> int | None:
    return None if leader < 0 else leader


def directory_id(raw: bytes) -> UUID:
    """A directory's id; equal ids share an object.

    There are few, and partitions repeat them.
    """
    found = _directories.get(raw)
    if found is None:
        found = UUID(bytes=raw)
        if len(_directories) < _DIRECTORIES_MAX:
            _directories[raw] = found
    return found


def broker_record(broker: BrokerRegistration) -> pb.MetadataRecord:
    """The record that registers `broker`."""
    return pb.MetadataRecord(
        register_broker=pb.RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id.bytes,
            broker_epoch=broker.epoch,
            end_points=_endpoints(broker.endpoints),
            rack=broker.rack or "",
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=[d.bytes for d in broker.log_dirs],
            features=_features(broker.features),
        )
    )


def _endpoints(listeners: Iterable[Listener]) -> list[common_pb2.Endpoint]:
    return [common_pb2.Endpoint(name=e.name, host=e.host, port=e.port) for e in listeners]


def _features(ranges: Iterable[FeatureRange]) -> list[common_pb2.FeatureRange]:
    return [
        common_pb2.FeatureRange(name=f.name, min_level=f.min_level, max_level=f.max_level)
        for f in ranges
    ]


def listeners_of(endpoints: Iterable[common_pb2.Endpoint]) -> tuple[Listener, ...]:
    """Listeners of a record or request."""
    return tuple(Listener(e.name, e.host, e.port) for e in endpoints)


def ranges_of(features: Iterable[common_pb2.FeatureRange]) -> tuple[FeatureRange, ...]:
    """Supported levels of a record or request."""
    return tuple(FeatureRange(f.name, f.min_level, f.max_level) for f in features)


def broker_from_record(record: pb.RegisterBrokerRecord) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=UUID(bytes=record.incarnation_id),
        endpoints=listeners_of(record.end_points),
        rack=record.rack or None,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=tuple(directory_id(d) for d in record.log_dirs),
        features=ranges_of(record.features),
    )


def controller_record(controller: ControllerRegistration) -> pb.MetadataRecord:
    """The record that registers `controller`."""
    return pb.MetadataRecord(
        register_controller=pb.RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id.bytes,
            end_points=_endpoints(controller.endpoints),
            features=_features(controller.features),
        )
    )


def controller_from_record(record: pb.RegisterControllerRecord) -> ControllerRegistration:
    return ControllerRegistration(
        controller_id=record.controller_id,
        incarnation_id=UUID(bytes=record.incarnation_id),
        endpoints=listeners_of(record.end_points),
        features=ranges_of(record.features),
    )


def topic_record(name: str, topic_id: UUID) -> pb.MetadataRecord:
    return pb.MetadataRecord(topic=pb.TopicRecord(name=name, topic_id=topic_id.bytes))


def partition_record(topic_id: UUID, index: int, p: PartitionRegistration) -> pb.MetadataRecord:
    """Record with the whole state of a partition."""
    return pb.MetadataRecord(
        partition=pb.PartitionRecord(
            partition_id=index,
            topic_id=topic_id.bytes,
            replicas=p.replicas,
            isr=p.isr,
            removing_replicas=p.removing,
            adding_replicas=p.adding,
            leader=leader_to_wire(p.leader),
            leader_recovery_state=p.leader_recovery_state,
            leader_epoch=p.leader_epoch,
            partition_epoch=p.partition_epoch,
            directories=[d.bytes for d in p.directories],
            eligible_leader_replicas=p.elr,
            last_known_elr=p.last_known_elr,
        )
    )


def partition_from_record(record: pb.PartitionRecord) -> PartitionRegistration:
    replicas, isr = intern_ids(record.replicas), intern_ids(record.isr)
    return PartitionRegistration(
        replicas=replicas,
        isr=replicas if isr == replicas else isr,
        leader=leader_from_wire(record.leader),
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_recovery_state=LeaderRecoveryState(record.leader_recovery_state),
        removing=intern_ids(record.removing_replicas),
        adding=intern_ids(record.adding_replicas),
        elr=intern_ids(record.eligible_leader_replicas),
        last_known_elr=intern_ids(record.last_known_elr),
        directories=tuple(directory_id(d) for d in record.directories),
    )


def partition_after_change(
    before: PartitionRegistration, change: pb.PartitionChangeRecord
) -> PartitionRegistration:
    """`before` with the fields that the change sets.

    A set leader raises the leader epoch, any change the partition epoch.
    """
    after: dict[str, Any] = {"partition_epoch": before.partition_epoch + 1}
    for field, value in change.ListFields():
        name = field.name
        if name in _LISTS_OF_CHANGE:
            after[_LISTS_OF_CHANGE[name]] = intern_ids(value.ids)
        elif name == "leader":
            after["leader"] = leader_from_wire(value)
            after["leader_epoch"] = before.leader_epoch + 1
        elif name == "leader_recovery_state":
            after[name] = LeaderRecoveryState(value)
        elif name == "directories":
            after[name] = tuple(map(directory_id, value))
    replicas = after.get("replicas", before.replicas)
    if after.get("isr", before.isr) == replicas:
        after["isr"] = replicas
    return before._replace(**after)


_LISTS_OF_CHANGE = {
    "isr": "isr",
    "replicas": "replicas",
    "removing_replicas": "removing",
    "adding_replicas": "adding",
    "eligible_leader_replicas": "elr",
    "last_known_elr": "last_known_elr",
}


def config_record(
    resource_type: int, resource_name: str, name: str, value: str | None
) -> pb.MetadataRecord:
    """Record that sets a setting of a resource, or removes it (`value` None)."""
    return pb.MetadataRecord(
        config=pb.ConfigRecord(
            resource_type=resource_type, resource_name=resource_name, name=name, value=value
        )
    )


def client_quota_record(entity: QuotaEntity, key: str, value: float | None) -> pb.MetadataRecord:
    """Record that sets a quota of an entity, or removes it (`value` None)."""
    return pb.MetadataRecord(
        client_quota=pb.ClientQuotaRecord(
            entity=parts_to_wire(entity), key=key, value=value or 0.0, remove=value is None
        )
    )


def acl_record(acl_id: UUID, binding: AclBinding | None) -> pb.MetadataRecord:
    """Record that adds an entry, or removes it (`binding` None)."""
    if binding is None:
        removal = pb.RemoveAccessControlEntryRecord(id=acl_id.bytes)
        return pb.MetadataRecord(remove_access_control_entry=removal)
    entry = pb.AccessControlEntryRecord(id=acl_id.bytes, binding=acls.to_wire(binding))
    return pb.MetadataRecord(access_control_entry=entry)


def scram_record(name: str, credential: Credential | None) -> pb.MetadataRecord:
    """Record that sets the credential of a user, or removes it (`credential` None)."""
    mechanism = acl_pb2.SCRAM_SHA_512
    if credential is None:
        removal = pb.RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)
        return pb.MetadataRecord(remove_user_scram_credential=removal)
    return pb.MetadataRecord(
        user_scram_credential=pb.UserScramCredentialRecord(
            name=name, mechanism=mechanism, **credential._asdict()
        )
    )


def feature_record(name: str, level: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=name, feature_level=level))


def producer_ids_record(
    next_producer_id: int, broker_id: int = -1, broker_epoch: int = -1
) -> pb.MetadataRecord:
    """Record that everything below `next_producer_id` is allocated.

    The broker in it is only for readers of the log.
    """
    return pb.MetadataRecord(
        producer_ids=pb.ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=next_producer_id
        )
    )
