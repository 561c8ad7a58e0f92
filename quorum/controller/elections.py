"""Leader and ISR changes of many partitions at once: when brokers come and go, and on a timer.

Pure functions of an image. All partitions are looked at; those that matter are taken in order of
topic name and index, so the same image gives the same records on any node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from quorum.controller.partition_change import Election, PartitionChangeBuilder
from quorum.image import MetadataImage, PartitionRegistration, TopicImage
from tidemark.v1 import metadata_pb2 as pb


class _Found(NamedTuple):
    topic: TopicImage
    partition_id: int
    partition: PartitionRegistration


UncleanAllowed = Callable[[str], bool]
"""Whether unclean.leader.election.enable holds for a topic."""


def _matching(
    image: MetadataImage, wanted: Callable[[PartitionRegistration], bool]
) -> Iterator[_Found]:
    found = [
        _Found(topic, index, partition)
        for topic in image.topics
        for index, partition in topic.partitions.items()
        if wanted(partition)
    ]
    return iter(sorted(found, key=lambda f: (f.topic.name, f.partition_id)))


def has_leaderships(image: MetadataImage, broker_id: int) -> bool:
    return any(p.leader == broker_id for topic in image.topics for p in topic.partitions.values())


def broker_out_of_service(
    image: MetadataImage, broker_id: int, unclean_allowed: UncleanAllowed
) -> list[pb.MetadataRecord]:
    """The broker is fenced or shuts down: it leaves every ISR that does not end with it, and leads
    no more.
    """

    def acceptable(replica: int) -> bool:
        return replica != broker_id and image.is_active(replica)

    records = []
    for found in _matching(image, lambda p: broker_id in p.isr or p.leader == broker_id):
        builder = _builder(found, acceptable, unclean_allowed)
        builder.target_isr = tuple(r for r in found.partition.isr if r != broker_id)
        records.append(builder.build())
    return [record for record in records if record is not None]


def broker_in_service(
    image: MetadataImage, broker_id: int, unclean_allowed: UncleanAllowed
) -> list[pb.MetadataRecord]:
    """The broker is unfenced: it may lead partitions that had nobody."""

    def acceptable(replica: int) -> bool:
        return replica == broker_id or image.is_active(replica)

    records = [
        _builder(found, acceptable, unclean_allowed).build()
        for found in _matching(image, lambda p: p.leader is None and broker_id in p.replicas)
    ]
    return [record for record in records if record is not None]


def leaderless(image: MetadataImage, unclean_allowed: UncleanAllowed) -> list[pb.MetadataRecord]:
    """Leaders for partitions without one, as far as the rules allow."""
    records = [
        _builder(found, image.is_active, unclean_allowed).build()
        for found in _matching(image, lambda p: p.leader is None)
    ]
    return [record for record in records if record is not None]


def preferred(image: MetadataImage, limit: int) -> tuple[list[pb.MetadataRecord], bool]:
    """Gives leadership back to preferred replicas that are in the ISR and active.

    At most `limit` partitions; the second value tells whether there are more.
    """

    def wanted(p: PartitionRegistration) -> bool:
        first = p.replicas[0]
        return p.leader != first and first in p.isr and image.is_active(first)

    records: list[pb.MetadataRecord] = []
    for found in _matching(image, wanted):
        if len(records) == limit:
            return records, True
        record = PartitionChangeBuilder(
            found.topic.topic_id,
            found.partition_id,
            found.partition,
            image.is_active,
            Election.PREFERRED,
        ).build()
        if record is not None:
            records.append(record)
    return records, False


def _builder(
    found: _Found, acceptable: Callable[[int], bool], unclean_allowed: UncleanAllowed
) -> PartitionChangeBuilder:
    election = Election.UNCLEAN if unclean_allowed(found.topic.name) else Election.ONLINE
    return PartitionChangeBuilder(
        found.topic.topic_id, found.partition_id, found.partition, acceptable, election
    )
