"""Leader and ISR changes of many partitions at once: when brokers come and go, and on a timer.

Pure functions of an image and its rules. Partitions that change are taken in order of topic name
and index, so the same image gives the same records on any node. What concerns one broker looks at
that broker's partitions only (`TopicsImage.hosted_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quorum.controller.configs import TopicSettings
from quorum.controller.partition_change import Election, PartitionChangeBuilder
from quorum.image import MetadataImage, PartitionRegistration, TopicImage
from quorum.image.image import ELR_VERSION
from tidemark.config import ServerConfig
from tidemark.v1 import metadata_pb2 as pb


class _Found(NamedTuple):
    topic: TopicImage
    partition_id: int
    partition: PartitionRegistration


class _TopicRules(NamedTuple):
    unclean_allowed: bool
    min_isr: int


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What elections go by: the image, and the settings of topics (each looked up once)."""

    image: MetadataImage
    config: ServerConfig
    _topics: dict[str, _TopicRules] = field(default_factory=dict)

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.image.features.get(ELR_VERSION, 0) >= 1

    def of_topic(self, name: str) -> _TopicRules:
        found = self._topics.get(name)
        if found is None:
            settings = TopicSettings(self.image, self.config)
            found = _TopicRules(settings.unclean_allowed(name), settings.min_isr(name))
            self._topics[name] = found
        return found

    def builder(
        self,
        topic: TopicImage,
        index: int,
        partition: PartitionRegistration,
        *,
        without: int | None = None,
        with_broker: int | None = None,
        election: Election | None = None,
    ) -> PartitionChangeBuilder:
        """A builder that knows who may lead: brokers in service whose directory is, but not
        `without`, and `with_broker` as if it were. `election` None: UNCLEAN where the topic
        allows that, else ONLINE."""
        rules, image = self.of_topic(topic.name), self.image

        def acceptable(replica: int) -> bool:
            if replica == without or not image.replica_is_online(partition, replica):
                return False
            return replica == with_broker or image.is_active(replica)

        if election is None:
            election = Election.UNCLEAN if rules.unclean_allowed else Election.ONLINE
        return PartitionChangeBuilder(
            topic.topic_id,
            index,
            partition,
            acceptable,
            election,
            elr_enabled=self.elr_enabled,
            min_isr=rules.min_isr,
        )


def _hosted(
    image: MetadataImage, broker_id: int, wanted: Callable[[PartitionRegistration], bool]
) -> list[_Found]:
    """The wanted ones of a broker's partitions, in order."""
    found = [
        _Found(topic, index, partition)
        for topic, index, partition in image.topics.hosted_by(broker_id)
        if wanted(partition)
    ]
    return _ordered(found)


def _everywhere(
    image: MetadataImage, wanted: Callable[[PartitionRegistration], bool]
) -> list[_Found]:
    found = [
        _Found(topic, index, partition)
        for topic in image.topics
        for index, partition in topic.partitions.items()
        if wanted(partition)
    ]
    return _ordered(found)


def _ordered(found: list[_Found]) -> list[_Found]:
    return sorted(found, key=lambda f: (f.topic.name, f.partition_id))


def _built(builders: Iterable[PartitionChangeBuilder]) -> list[pb.MetadataRecord]:
    records = (builder.build() for builder in builders)
    return [record for record in records if record is not None]


def has_leaderships(image: MetadataImage, broker_id: int) -> bool:
    return any(p.leader == broker_id for _, _, p in image.topics.hosted_by(broker_id))


def broker_out_of_service(
    rules: ElectionRules, broker_id: int, *, unclean: bool = False
) -> list[pb.MetadataRecord]:
    """The broker is fenced or shuts down: it leaves every ISR (without ELR not one that ends with
    it), and leads no more. `unclean`: it may have lost records, so it is not eligible either.
    """

    def wanted(p: PartitionRegistration) -> bool:
        return broker_id in p.isr or p.leader == broker_id or (unclean and broker_id in p.elr)

    return _taken_out(rules, broker_id, _hosted(rules.image, broker_id, wanted), unclean)


def directories_offline(
    rules: ElectionRules, broker_id: int, offline: Collection[object]
) -> list[pb.MetadataRecord]:
    """Directories of a broker failed: it leaves the ISRs of the partitions it keeps there."""

    def wanted(p: PartitionRegistration) -> bool:
        return p.directory_of(broker_id) in offline and (
            broker_id in p.isr or p.leader == broker_id
        )

    return _taken_out(rules, broker_id, _hosted(rules.image, broker_id, wanted), unclean=True)


def _taken_out(
    rules: ElectionRules, broker_id: int, found: list[_Found], unclean: bool
) -> list[pb.MetadataRecord]:
    builders = []
    for topic, index, partition in found:
        builder = rules.builder(topic, index, partition, without=broker_id)
        builder.target_isr = tuple(r for r in partition.isr if r != broker_id)
        if unclean:
            builder.unclean_shutdown = frozenset((broker_id,))
        builders.append(builder)
    return _built(builders)


def broker_in_service(rules: ElectionRules, broker_id: int) -> list[pb.MetadataRecord]:
    """The broker is unfenced: it may lead partitions that had nobody."""
    found = _hosted(rules.image, broker_id, lambda p: p.leader is None)
    return _built(rules.builder(*f, with_broker=broker_id) for f in found)


def leaderless(rules: ElectionRules) -> list[pb.MetadataRecord]:
    """Leaders for partitions without one, as far as the rules allow."""
    found = _everywhere(rules.image, lambda p: p.leader is None)
    return _built(rules.builder(*f) for f in found)


def preferred(rules: ElectionRules, limit: int) -> tuple[list[pb.MetadataRecord], bool]:
    """Gives leadership back to preferred replicas that are in the ISR and active.

    At most `limit` partitions; the second value tells whether there are more.
    """

    def wanted(p: PartitionRegistration) -> bool:
        first = p.replicas[0]
        return p.leader != first and first in p.isr and rules.image.is_active(first)

    records: list[pb.MetadataRecord] = []
    for found in _everywhere(rules.image, wanted):
        if len(records) == limit:
            return records, True
        record = rules.builder(*found, election=Election.PREFERRED).build()
        if record is not None:
            records.append(record)
    return records, False
