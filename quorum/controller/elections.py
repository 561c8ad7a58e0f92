"""Leader and ISR changes of many partitions: when brokers come and go, and on a timer.

A `Task` selects partitions and computes their changes: pure functions of an image and its rules.
`sweeps` works through a task in order of topic name and index, so the same image gives the same
records on every node. A task of one broker looks at that broker's partitions only
(`TopicImage.hosted_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from quorum.controller.configs import TopicSettings
from quorum.controller.partition_change import Election, PartitionChangeBuilder
from quorum.image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
    placement_index,  # noqa: F401  # loaded now: an election must not wait for numpy
)
from quorum.image.types import LOST_DIRECTORY
from tidemark.config import ServerConfig
from tidemark.v1 import metadata_pb2 as pb


class _TopicRules(NamedTuple):
    unclean_allowed: bool
    min_isr: int


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """Input of elections: the image, and the settings of topics (each looked up once)."""

    image: MetadataImage
    config: ServerConfig
    leaving: Collection[int] = ()
    """Brokers that are being taken out of service: they join no ISR any more."""
    _topics: dict[str, _TopicRules] = field(default_factory=dict)

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
        election: Election | None = None,
    ) -> PartitionChangeBuilder:
        """Returns a builder for the next state of a partition.

        Brokers in service whose directory is online may lead, except `without`. `election` None
        means UNCLEAN if the topic allows that, else ONLINE.
        """
        rules, image = self.of_topic(topic.name), self.image

        def acceptable(replica: int) -> bool:
            return (
                replica != without
                and image.is_active(replica)
                and image.replica_is_online(partition, replica)
            )

        if election is None:
            election = Election.UNCLEAN if rules.unclean_allowed else Election.ONLINE
        return PartitionChangeBuilder(
            topic.topic_id,
            index,
            partition,
            acceptable,
            election,
            elr_enabled=image.elr_enabled,
            min_isr=rules.min_isr,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """A change of many partitions.

    It concerns the partitions with a replica on `broker_id` (None: on any) that are `wanted` in
    their present state; `draft` builds the change of each.
    """

    broker_id: int | None
    wanted: Callable[[MetadataImage, PartitionRegistration], bool]
    draft: Callable[[ElectionRules, TopicImage, int, PartitionRegistration], PartitionChangeBuilder]

    def candidates(self, topic: TopicImage) -> Iterable[tuple[int, PartitionRegistration]]:
        """Partitions of the topic that have to be looked at."""
        if self.broker_id is None:
            return topic.partitions.items()
        return topic.hosted_by(self.broker_id)

    def chosen(self, image: MetadataImage, topic: TopicImage) -> list[int]:
        """Indexes of the topic's wanted partitions, in order."""
        wanted = self.wanted
        return sorted([index for index, p in self.candidates(topic) if wanted(image, p)])

    def change(
        self, rules: ElectionRules, topic: TopicImage, index: int
    ) -> pb.MetadataRecord | None:
        """The change of a partition; None if there is nothing to change, or no longer."""
        partition = topic.partitions.get(index)
        if partition is None or not self.wanted(rules.image, partition):
            return None
        return self.draft(rules, topic, index, partition).build()


def has_leaderships(image: MetadataImage, broker_id: int) -> bool:
    return any(p.leader == broker_id for _, _, p in image.topics.hosted_by(broker_id))


def out_of_service(broker_id: int) -> Task:
    """Task of a broker that is fenced or shuts down: it leaves every ISR and loses its leaderships.

    Without ELR it stays in an ISR that it is the last member of.
    """

    def wanted(_: MetadataImage, p: PartitionRegistration) -> bool:
        return broker_id in p.isr or p.leader == broker_id

    return _taken_out(broker_id, wanted, unclean=False)


def forgotten(before: BrokerRegistration, *, unclean: bool, gone: Collection[UUID]) -> Task:
    """Task of a registration that ends: its broker leaves every ISR and loses its leaderships.

    If `unclean`, it may have lost records and is not eligible as leader either. Nor is it for
    replicas in the directories that are `gone`, and for those whose directory is unknown: they may
    have been there.

    If such an unknown replica is the last that counts, its directory is noted: the one that is
    gone, or LOST_DIRECTORY if there were several. It may lead again when its broker has that
    directory back, or reports the log in another one.
    """
    broker_id = before.broker_id
    only = before.log_dirs[0] if len(before.log_dirs) == 1 else LOST_DIRECTORY

    def missing(p: PartitionRegistration) -> bool:
        directory_id = p.directory_of(broker_id)
        return directory_id in gone or (directory_id is None and bool(gone))

    def wanted(_: MetadataImage, p: PartitionRegistration) -> bool:
        if broker_id in p.isr or p.leader == broker_id:
            return True
        eligible = broker_id in p.elr
        return (eligible and unclean) or (
            (eligible or broker_id in p.last_known_elr) and missing(p)
        )

    def draft(
        rules: ElectionRules, topic: TopicImage, index: int, partition: PartitionRegistration
    ) -> PartitionChangeBuilder:
        builder = rules.builder(topic, index, partition, without=broker_id)
        builder.target_isr = tuple([r for r in partition.isr if r != broker_id])
        is_missing = missing(partition)
        if unclean or is_missing:
            builder.unclean_shutdown = frozenset((broker_id,))
        if is_missing and not builder.target_isr and partition.directory_of(broker_id) is None:
            builder.target_directories = partition.directories_with(broker_id, only)
        return builder

    return Task(broker_id, wanted, draft)


def directories_gone(broker_id: int, offline: Collection[UUID]) -> Task:
    """Task of failed directories: the broker leaves the ISRs of the partitions it keeps there.

    It is not eligible as leader of them either.
    """

    def wanted(_: MetadataImage, p: PartitionRegistration) -> bool:
        return p.directory_of(broker_id) in offline and (
            broker_id in p.isr or p.leader == broker_id or broker_id in p.elr
        )

    return _taken_out(broker_id, wanted, unclean=True)


def _taken_out(
    broker_id: int,
    wanted: Callable[[MetadataImage, PartitionRegistration], bool],
    unclean: bool,
) -> Task:
    gone = frozenset((broker_id,)) if unclean else frozenset()

    def draft(
        rules: ElectionRules, topic: TopicImage, index: int, partition: PartitionRegistration
    ) -> PartitionChangeBuilder:
        builder = rules.builder(topic, index, partition, without=broker_id)
        builder.target_isr = tuple([r for r in partition.isr if r != broker_id])
        builder.unclean_shutdown = gone
        return builder

    return Task(broker_id, wanted, draft)


def in_service(broker_id: int) -> Task:
    """Task of a broker that is unfenced: it may lead leaderless partitions."""
    return Task(broker_id, _has_no_leader, ElectionRules.builder)


def _has_no_leader(_: MetadataImage, partition: PartitionRegistration) -> bool:
    return partition.leader is None


def _is_unsettled(image: MetadataImage, partition: PartitionRegistration) -> bool:
    return partition.leader is None or _has_needless_elr(image, partition)


def _has_needless_elr(_: MetadataImage, partition: PartitionRegistration) -> bool:
    """Whether the ELR may be cleared, if the ISR is large enough.

    The ELR of an empty ISR is never cleared by a setting: it has those who can lead.
    """
    return bool(partition.elr and partition.isr)


def _lacks_preferred_leader(image: MetadataImage, partition: PartitionRegistration) -> bool:
    first = partition.replicas[0]
    return partition.leader != first and first in partition.isr and image.is_active(first)


def _give_back(
    rules: ElectionRules, topic: TopicImage, index: int, partition: PartitionRegistration
) -> PartitionChangeBuilder:
    return rules.builder(topic, index, partition, election=Election.PREFERRED)


NEEDLESS_ELR = Task(None, _has_needless_elr, ElectionRules.builder)
"""Clears the eligible replicas of partitions whose ISR is large enough without them."""

UNSETTLED = Task(None, _is_unsettled, ElectionRules.builder)
"""Elects leaders for leaderless partitions, as far as the rules allow, and clears eligible replicas
as NEEDLESS_ELR does.
"""

PREFERRED = Task(None, _lacks_preferred_leader, _give_back)
"""Moves leadership back to preferred replicas that are in the ISR and active."""

MAKE_TABLES = Task(-1, lambda _image, _partition: False, ElectionRules.builder)
"""Changes nothing, but makes each topic build its table of partitions by broker.

It requests the partitions of a broker id that does not exist.
"""
