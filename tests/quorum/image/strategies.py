"""Random but valid histories of metadata records, for property tests."""

from __future__ import annotations

import random
from uuid import UUID

from quorum.image import (
    BrokerRegistration,
    ControllerRegistration,
    FeatureRange,
    PartitionRegistration,
)
from quorum.image import records as r
from quorum.image.types import LeaderRecoveryState
from tidemark.quotas.entities import QuotaEntity
from tidemark.security.acls import AclBinding
from tidemark.security.scram import credential_of
from tidemark.types import Listener
from tidemark.v1 import metadata_pb2 as pb


class History:
    """Makes one valid record after another; `rng` chooses them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._brokers: dict[int, int] = {}
        self._topics: dict[UUID, tuple[str, int]] = {}
        self._next_producer_id = 0
        self._offset = 0

    def records(self, count: int) -> list[pb.MetadataRecord]:
        return [self._one() for _ in range(count)]

    def _one(self) -> pb.MetadataRecord:
        self._offset += 1
        makers = [self._register, self._topic, self._config, self._feature, self._producer_ids]
        makers += [self._controller, self._client_quota, self._acl, self._scram_user]
        if self._brokers:
            makers += [self._change_broker, self._unregister]
        if self._topics:
            makers += [self._partition, self._partition, self._remove]
        if any(count for _, count in self._topics.values()):
            makers += [self._change_partition] * 3
        return self._rng.choice(makers)()

    def _uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)

    def _ids(self) -> tuple[int, ...]:
        return tuple(self._rng.sample(range(6), self._rng.randint(1, 4)))

    def _register(self) -> pb.MetadataRecord:
        broker_id = self._rng.randrange(6)
        self._brokers[broker_id] = self._offset
        return r.broker_record(
            BrokerRegistration(
                broker_id,
                self._offset,
                self._uuid(),
                (Listener("PLAINTEXT", "h", 9092), Listener("OTHER", "h", 9093)),
                self._rng.choice([None, "a", "b"]),
                self._rng.random() < 0.5,
                self._rng.random() < 0.2,
                (self._uuid(),),
            )
        )

    def _change_broker(self) -> pb.MetadataRecord:
        broker_id = self._rng.choice(sorted(self._brokers))
        change = pb.BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=self._brokers[broker_id]
        )
        if self._rng.random() < 0.7:
            change.fenced = self._rng.random() < 0.5
        if self._rng.random() < 0.3:
            change.in_controlled_shutdown = self._rng.random() < 0.5
        return pb.MetadataRecord(broker_registration_change=change)

    def _unregister(self) -> pb.MetadataRecord:
        broker_id = self._rng.choice(sorted(self._brokers))
        record = pb.UnregisterBrokerRecord(
            broker_id=broker_id, broker_epoch=self._brokers.pop(broker_id)
        )
        return pb.MetadataRecord(unregister_broker=record)

    def _topic(self) -> pb.MetadataRecord:
        topic_id = self._uuid()
        self._topics[topic_id] = (f"t{self._offset}", 0)
        return r.topic_record(f"t{self._offset}", topic_id)

    def _remove(self) -> pb.MetadataRecord:
        topic_id = self._rng.choice(sorted(self._topics))
        del self._topics[topic_id]
        return pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=topic_id.bytes))

    def _partition(self) -> pb.MetadataRecord:
        topic_id = self._rng.choice(sorted(self._topics))
        name, count = self._topics[topic_id]
        self._topics[topic_id] = (name, count + 1)
        ids = self._ids()
        return r.partition_record(
            topic_id,
            count,
            PartitionRegistration(
                replicas=ids,
                isr=ids[: self._rng.randint(1, len(ids))],
                leader=self._rng.choice([None, ids[0]]),
                leader_epoch=self._rng.randrange(5),
                partition_epoch=self._rng.randrange(5),
                directories=tuple(self._uuid() for _ in ids) if self._rng.random() < 0.3 else (),
            ),
        )

    def _change_partition(self) -> pb.MetadataRecord:
        topic_id = self._rng.choice(sorted(t for t, (_, count) in self._topics.items() if count))
        index = self._rng.randrange(self._topics[topic_id][1])
        change = pb.PartitionChangeRecord(partition_id=index, topic_id=topic_id.bytes)
        if self._rng.random() < 0.6:
            change.isr.CopyFrom(pb.NodeIds(ids=self._ids()))
        if self._rng.random() < 0.6:
            change.leader = self._rng.randrange(-1, 6)
        if self._rng.random() < 0.2:
            change.leader_recovery_state = self._rng.choice(list(LeaderRecoveryState))
        if self._rng.random() < 0.2:
            change.eligible_leader_replicas.CopyFrom(pb.NodeIds())
        if self._rng.random() < 0.2:
            change.adding_replicas.CopyFrom(pb.NodeIds(ids=self._ids()))
        return pb.MetadataRecord(partition_change=change)

    def _config(self) -> pb.MetadataRecord:
        names = [name for name, _ in self._topics.values()]
        topic_type = bool(names) and self._rng.random() < 0.7
        return r.config_record(
            2 if topic_type else 4,
            self._rng.choice(names) if topic_type else self._rng.choice(["", "1"]),
            self._rng.choice(["retention.ms", "segment.bytes"]),
            self._rng.choice([None, "1", "22"]),
        )

    def _feature(self) -> pb.MetadataRecord:
        name, levels = self._rng.choice(
            [("metadata.version", 4), ("eligible.leader.replicas.version", 2)]
        )
        return r.feature_record(name, self._rng.randrange(levels))

    def _controller(self) -> pb.MetadataRecord:
        controller_id = self._rng.randrange(3)
        if self._rng.random() < 0.3:
            gone = pb.UnregisterControllerRecord(controller_id=controller_id)
            return pb.MetadataRecord(unregister_controller=gone)
        listeners = (Listener("CONTROLLER", "h", 9093), Listener("INNER", "i", 9094))
        ranges = (FeatureRange("metadata.version", 1, self._rng.randint(1, 2)),)
        return r.controller_record(
            ControllerRegistration(controller_id, self._uuid(), listeners, ranges)
        )

    def _client_quota(self) -> pb.MetadataRecord:
        entity = self._rng.choice(
            [QuotaEntity("a"), QuotaEntity("", "c"), QuotaEntity(None, ""), QuotaEntity("a", "c")]
        )
        key = self._rng.choice(["producer_byte_rate", "request_percentage"])
        return r.client_quota_record(entity, key, self._rng.choice([None, 1.0, 2.5]))

    def _acl(self) -> pb.MetadataRecord:
        acl_id = UUID(int=self._rng.randrange(6), version=4)
        kind, name, pattern = self._rng.choice([(2, "t", 3), (3, "g", 4), (4, "kafka-cluster", 3)])
        binding = AclBinding(kind, name, pattern, "User:a", "*", 8, self._rng.choice([2, 3]))
        return r.acl_record(acl_id, self._rng.choice([None, binding]))

    def _scram_user(self) -> pb.MetadataRecord:
        credential = credential_of(self._rng.randbytes(64), b"salt", 4096)
        return r.scram_record(self._rng.choice("ab"), self._rng.choice([None, credential]))

    def _producer_ids(self) -> pb.MetadataRecord:
        self._next_producer_id += 1000
        return r.producer_ids_record(self._next_producer_id, 1, 2)
