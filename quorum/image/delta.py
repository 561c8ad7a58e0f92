"""Changes of an image, computed while records are replayed; the only place that interprets records.

Call `MetadataDelta(image).replay(record)` for each record of a batch, then `.apply(offset, epoch)`
for the next image. The delta lists the changes at any time, so the work of a reader is proportional
to the change and not to the cluster. The table `_REPLAY` has one entry per field of
MetadataRecord's oneof; a test holds it complete. Source: Kafka's MetadataDelta (KIP-631).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from immutables import Map

from quorum.image.image import (
    CLIENT_QUOTAS_LEVEL,
    CONTROLLERS_REGISTER_LEVEL,
    METADATA_VERSION,
    SECURITY_LEVEL,
    MetadataImage,
)
from quorum.image.partition_codec import partition_from_value, topic_field
from quorum.image.records import (
    broker_from_record,
    controller_from_record,
    decode_record,
    directory_id,
    partition_after_change,
    partition_from_record,
)
from quorum.image.types import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
    TopicImage,
    TopicsImage,
)
from tidemark.errors import InvalidRequestError, TidemarkError
from tidemark.quotas.entities import QuotaEntity, entity_from_wire
from tidemark.security import acls
from tidemark.security.acls import AclBinding
from tidemark.security.scram import Credential
from tidemark.types import ConfigResource
from tidemark.v1 import metadata_pb2 as pb

_COMPARED_PER_STEP = 5_000
"""Partitions that a step of a comparison looks at, unless a single topic is larger."""


class InconsistentMetadataError(TidemarkError):
    """A record of the metadata log contradicts the image it is replayed into.

    The log is damaged, or this node is too old.
    """


@dataclass(slots=True)
class TopicDelta:
    """A topic whose partitions changed.

    `partitions` has the new state of those that did; `before` is None for a new topic.
    """

    name: str
    topic_id: UUID
    before: TopicImage | None
    partitions: Mapping[int, PartitionRegistration] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        return self.before is None

    def partition(self, index: int) -> PartitionRegistration | None:
        """State of a partition after the change."""
        found = self.partitions.get(index)
        if found is None and self.before is not None:
            return self.before.partitions.get(index)
        return found

    def partition_before(self, index: int) -> PartitionRegistration | None:
        return None if self.before is None else self.before.partitions.get(index)

    def changing(self) -> dict[int, PartitionRegistration]:
        """`partitions` for writing."""
        if not isinstance(self.partitions, dict):
            self.partitions = dict(self.partitions)
        return self.partitions

    def settle(self) -> None:
        """Converts a new topic's partitions to the form they have in its image.

        Called when no more of them follow for now, so that `apply` has little left to do, however
        many topics there are.
        """
        if self.before is None:
            self.partitions = Map(self.partitions)

    def apply(self) -> TopicImage:
        if self.before is None:
            return TopicImage(self.name, self.topic_id, Map(self.partitions))
        return self.before.with_partitions(self.partitions)


class _Run(NamedTuple):
    """The topic whose partition records are being replayed; they follow one another."""

    field: bytes
    topic: TopicDelta
    partitions: dict[int, PartitionRegistration]


class MetadataDelta:
    """The changes from `image` on.

    Attributes, each with the state after the change:

    - `topics_changed` by topic id, new topics included;
    - `topics_deleted` by topic id, as they were;
    - `brokers_changed` (None: unregistered);
    - `configs_changed` and `client_quotas_changed` (value None: removed);
    - `acls_changed` and `scram_users_changed` (None: removed);
    - `features_changed` (None: removed);
    - `next_producer_id` (None: unchanged).
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topics_changed: dict[UUID, TopicDelta] = {}
        self.topics_deleted: dict[UUID, TopicImage] = {}
        self.brokers_changed: dict[int, BrokerRegistration | None] = {}
        self.configs_changed: dict[ConfigResource, dict[str, str | None]] = {}
        self.features_changed: dict[str, int | None] = {}
        self.next_producer_id: int | None = None
        self.controllers_changed: dict[int, ControllerRegistration | None] = {}
        self.client_quotas_changed: dict[QuotaEntity, dict[str, float | None]] = {}
        self.acls_changed: dict[UUID, AclBinding | None] = {}
        self.scram_users_changed: dict[str, Credential | None] = {}
        self._new_names: set[str] = set()
        self._run: _Run | None = None
        self._last: tuple[bytes, TopicDelta] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether only offset and epoch change."""
        return self.next_producer_id is None and not (
            self.topics_changed
            or self.topics_deleted
            or self.brokers_changed
            or self.configs_changed
            or self.features_changed
            or self.controllers_changed
            or self.client_quotas_changed
            or self.acls_changed
            or self.scram_users_changed
        )

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        """The broker after the changes so far."""
        if broker_id in self.brokers_changed:
            return self.brokers_changed[broker_id]
        return self.image.brokers.get(broker_id)

    def topic_named(self, name: str) -> bool:
        """Whether a topic of this name exists after the changes so far."""
        if name in self._new_names:
            return True
        topic_id = self.image.topics.ids_by_name.get(name)
        return topic_id is not None and topic_id not in self.topics_deleted

    def replay_value(self, value: bytes) -> None:
        """Replays a record from its bytes in the log; raises DecodeError for invalid bytes."""
        run = self._run
        if run is not None:
            found = partition_from_value(value, run.field)
            if found is not None:
                index, registration = found
                run.partitions[index] = registration
                return
        self.replay(decode_record(value))

    def replay(self, record: pb.MetadataRecord) -> None:
        """Applies one record; raises InconsistentMetadataError if it contradicts the state."""
        kind = record.WhichOneof("record")
        if kind is None:
            raise InconsistentMetadataError(
                "a metadata record of a kind this node does not know: it is too old for its log"
            )
        _REPLAY[kind](self, getattr(record, kind))

    def apply(self, offset: int, epoch: int) -> MetadataImage:
        """Returns the image after the changes; their last record has `offset` and `epoch`."""
        image = self.image
        if self.is_empty:
            return replace(image, offset=offset, epoch=epoch)
        next_id = self.next_producer_id
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            brokers=_updated(image.brokers, self.brokers_changed),
            topics=self._topics(),
            configs=_updated_values(image.configs, self.configs_changed),
            features=_updated(image.features, self.features_changed),
            next_producer_id=image.next_producer_id if next_id is None else next_id,
            controllers=_updated(image.controllers, self.controllers_changed),
            client_quotas=_updated_values(image.client_quotas, self.client_quotas_changed),
            acls=_updated(image.acls, self.acls_changed),
            scram_users=_updated(image.scram_users, self.scram_users_changed),
        )

    def _topics(self) -> TopicsImage:
        topics = self.image.topics
        if not self.topics_changed and not self.topics_deleted:
            return topics
        names, by_id = topics.ids_by_name.mutate(), topics.topics_by_id.mutate()
        # Deletions first: a name may be used again in the same batch.
        for topic_id, deleted in self.topics_deleted.items():
            del names[deleted.name]
            del by_id[topic_id]
        for topic_id, changed in self.topics_changed.items():
            by_id[topic_id] = changed.apply()
            if changed.is_new:
                names[changed.name] = topic_id
        return TopicsImage(names.finish(), by_id.finish())

    # One verb per record type.

    def _register_broker(self, record: pb.RegisterBrokerRecord) -> None:
        self.brokers_changed[record.broker_id] = broker_from_record(record)

    def _unregister_broker(self, record: pb.UnregisterBrokerRecord) -> None:
        self._known_broker(record.broker_id, record.broker_epoch)
        self.brokers_changed[record.broker_id] = None

    def _change_broker(self, record: pb.BrokerRegistrationChangeRecord) -> None:
        broker = self._known_broker(record.broker_id, record.broker_epoch)
        changes: dict[str, Any] = {}
        if record.HasField("fenced"):
            changes["fenced"] = record.fenced
        if record.HasField("in_controlled_shutdown"):
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown
        if record.log_dirs:
            changes["log_dirs"] = tuple(directory_id(d) for d in record.log_dirs)
        self.brokers_changed[record.broker_id] = replace(broker, **changes)

    def _known_broker(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self.broker(broker_id)
        if broker is None or broker.epoch != epoch:
            raise InconsistentMetadataError(
                f"a record changes broker {broker_id} of epoch {epoch}, which is not registered"
            )
        return broker

    def _topic(self, record: pb.TopicRecord) -> None:
        topic_id = UUID(bytes=record.topic_id)
        if self.topic_named(record.name) or topic_id in self.image.topics.topics_by_id:
            raise InconsistentMetadataError(f"topic {record.name!r} is created a second time")
        self.topics_changed[topic_id] = TopicDelta(record.name, topic_id, None)
        self._new_names.add(record.name)
        if self._run is not None:
            self._run.topic.settle()
            self._run = None

    def _remove_topic(self, record: pb.RemoveTopicRecord) -> None:
        topic = self._topic_delta(record.topic_id)
        self.topics_changed.pop(topic.topic_id)
        self._new_names.discard(topic.name)
        self._run = self._last = None
        if topic.before is not None:
            self.topics_deleted[topic.topic_id] = topic.before
        # The settings are removed with the topic: no records are written for them.
        resource = ConfigResource.topic(topic.name)
        settings = {
            *self.image.configs.get(resource, Map()),
            *self.configs_changed.get(resource, ()),
        }
        if settings:
            self.configs_changed[resource] = dict.fromkeys(settings)

    def _partition(self, record: pb.PartitionRecord) -> None:
        topic = self._topic_delta(record.topic_id)
        partitions = topic.changing()
        partitions[record.partition_id] = partition_from_record(record)
        self._run = _Run(topic_field(record.topic_id), topic, partitions)

    def _change_partition(self, record: pb.PartitionChangeRecord) -> None:
        topic = self._topic_delta(record.topic_id)
        before = topic.partition(record.partition_id)
        if before is None:
            raise InconsistentMetadataError(
                f"a record changes {topic.name}-{record.partition_id}, which does not exist"
            )
        topic.changing()[record.partition_id] = partition_after_change(before, record)

    def _topic_delta(self, raw_id: bytes) -> TopicDelta:
        # Most records concern the same topic as the one before.
        if self._last is not None and self._last[0] == raw_id:
            return self._last[1]
        topic_id = UUID(bytes=raw_id)
        found = self.topics_changed.get(topic_id)
        if found is None:
            before = self.image.topics.by_id(topic_id)
            if before is None or topic_id in self.topics_deleted:
                raise InconsistentMetadataError(
                    f"a record changes topic {topic_id}, which does not exist"
                )
            found = self.topics_changed[topic_id] = TopicDelta(before.name, topic_id, before)
        self._last = raw_id, found
        return found

    def _config(self, record: pb.ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        value = record.value if record.HasField("value") else None
        self.configs_changed.setdefault(resource, {})[record.name] = value

    def _feature(self, record: pb.FeatureLevelRecord) -> None:
        self.features_changed[record.name] = record.feature_level or None
        if record.name == METADATA_VERSION and record.feature_level < CONTROLLERS_REGISTER_LEVEL:
            # A downgrade: state that the lower level has no records for is dropped.
            known = {*self.image.controllers, *self.controllers_changed}
            self.controllers_changed = dict.fromkeys(known)
        if record.name == METADATA_VERSION and record.feature_level < CLIENT_QUOTAS_LEVEL:
            for entity, quotas in self.image.client_quotas.items():
                self.client_quotas_changed.setdefault(entity, {}).update(dict.fromkeys(quotas))
            for changes in self.client_quotas_changed.values():
                changes.update(dict.fromkeys(changes))

        if record.name == METADATA_VERSION and record.feature_level < SECURITY_LEVEL:
            self.acls_changed = dict.fromkeys({*self.image.acls, *self.acls_changed})
            users = {*self.image.scram_users, *self.scram_users_changed}
            self.scram_users_changed = dict.fromkeys(users)

    def _register_controller(self, record: pb.RegisterControllerRecord) -> None:
        self.controllers_changed[record.controller_id] = controller_from_record(record)

    def _unregister_controller(self, record: pb.UnregisterControllerRecord) -> None:
        self.controllers_changed[record.controller_id] = None

    def _client_quota(self, record: pb.ClientQuotaRecord) -> None:
        try:
            entity = entity_from_wire(record.entity)
        except InvalidRequestError as error:
            raise InconsistentMetadataError(f"a record sets a quota: {error}") from error
        value = None if record.remove else record.value
        self.client_quotas_changed.setdefault(entity, {})[record.key] = value

    def _acl(self, record: pb.AccessControlEntryRecord) -> None:
        self.acls_changed[UUID(bytes=record.id)] = acls.from_wire(record.binding)

    def _remove_acl(self, record: pb.RemoveAccessControlEntryRecord) -> None:
        self.acls_changed[UUID(bytes=record.id)] = None

    def _scram_user(self, record: pb.UserScramCredentialRecord) -> None:
        self.scram_users_changed[record.name] = Credential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )

    def _remove_scram_user(self, record: pb.RemoveUserScramCredentialRecord) -> None:
        self.scram_users_changed[record.name] = None

    def _producer_ids(self, record: pb.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _no_op(self, record: pb.NoOpRecord) -> None:
        """Only advances the offset."""


_REPLAY: dict[str, Callable[[MetadataDelta, Any], None]] = {
    "register_broker": MetadataDelta._register_broker,
    "unregister_broker": MetadataDelta._unregister_broker,
    "topic": MetadataDelta._topic,
    "partition": MetadataDelta._partition,
    "config": MetadataDelta._config,
    "partition_change": MetadataDelta._change_partition,
    "broker_registration_change": MetadataDelta._change_broker,
    "remove_topic": MetadataDelta._remove_topic,
    "feature_level": MetadataDelta._feature,
    "client_quota": MetadataDelta._client_quota,
    "access_control_entry": MetadataDelta._acl,
    "remove_access_control_entry": MetadataDelta._remove_acl,
    "user_scram_credential": MetadataDelta._scram_user,
    "remove_user_scram_credential": MetadataDelta._remove_scram_user,
    "producer_ids": MetadataDelta._producer_ids,
    "no_op": MetadataDelta._no_op,
    "register_controller": MetadataDelta._register_controller,
    "unregister_controller": MetadataDelta._unregister_controller,
}


def _updated(before: Map[Any, Any], changes: dict[Any, Any]) -> Map[Any, Any]:
    """`before` with `changes`; a None removes."""
    if not changes:
        return before
    mutation = before.mutate()
    for key, value in changes.items():
        if value is not None:
            mutation[key] = value
        else:
            mutation.pop(key, None)
    return mutation.finish()


def _updated_values(
    before: Map[Any, Map[str, Any]], changed: Mapping[Any, dict[str, Any]]
) -> Map[Any, Map[str, Any]]:
    """`before` with the changes of each key's own values; a key without values is removed."""
    after = before
    for key, changes in changed.items():
        values = _updated(before.get(key, Map()), changes)
        if values:
            after = after.set(key, values)
        elif key in after:
            after = after.delete(key)
    return after


def _changes(before: Map[Any, Any], after: Map[Any, Any]) -> dict[Any, Any]:
    """The changes with which `_updated` makes `after` of `before`."""
    changed: dict[Any, Any] = {k: v for k, v in after.items() if before.get(k) != v}
    changed.update(dict.fromkeys(k for k in before if k not in after))
    return changed


def _changes_of_values(
    before: Map[Any, Map[str, Any]], after: Map[Any, Map[str, Any]]
) -> dict[Any, dict[str, Any]]:
    """The changes with which `_updated_values` makes `after` of `before`."""
    changed = {
        key: _changes(before.get(key, Map()), after.get(key, Map())) for key in {*before, *after}
    }
    return {key: changes for key, changes in changed.items() if changes}


def diff(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Returns the delta between any two images, e.g. to a loaded snapshot."""
    steps = diff_in_steps(before, after)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            delta: MetadataDelta = done.value
            return delta


def diff_in_steps(
    before: MetadataImage, after: MetadataImage
) -> Generator[None, None, MetadataDelta]:
    """As `diff`, in steps of bounded work; the generator returns the delta."""
    delta = MetadataDelta(before)
    delta.brokers_changed = _changes(before.brokers, after.brokers)
    delta.controllers_changed = _changes(before.controllers, after.controllers)
    delta.features_changed = _changes(before.features, after.features)
    if before.next_producer_id != after.next_producer_id:
        delta.next_producer_id = after.next_producer_id
    delta.configs_changed = _changes_of_values(before.configs, after.configs)
    delta.client_quotas_changed = _changes_of_values(before.client_quotas, after.client_quotas)
    delta.acls_changed = _changes(before.acls, after.acls)
    delta.scram_users_changed = _changes(before.scram_users, after.scram_users)
    yield from _diff_topics(delta, before.topics, after.topics)
    return delta


def _diff_topics(
    delta: MetadataDelta, before: TopicsImage, after: TopicsImage
) -> Generator[None, None, None]:
    for topic in before:
        if after.by_id(topic.topic_id) is None:
            delta.topics_deleted[topic.topic_id] = topic
    compared = 0
    for topic in after:
        old = before.by_id(topic.topic_id)
        if old is topic:
            continue
        if old is None:
            changed: Mapping[int, PartitionRegistration] = topic.partitions
        else:
            known = old.partitions
            changed = {i: p for i, p in topic.partitions.items() if known.get(i) != p}
            compared += len(topic.partitions)
        if changed or old is None:
            delta.topics_changed[topic.topic_id] = TopicDelta(
                topic.name, topic.topic_id, old, changed
            )
        if compared >= _COMPARED_PER_STEP:
            compared = 0
            yield
