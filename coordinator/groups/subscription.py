"""The topics that a group subscribes to, as the metadata image has them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from uuid import UUID

import re2

from quorum.image import MetadataImage
from tidemark.errors import InvalidRegularExpressionError

_HASHED = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class SubscribedTopics:
    """Topics that exist, by name and by id; an assignor's view of them."""

    ids: Mapping[str, UUID]
    _image: MetadataImage

    def partition_count(self, topic_id: UUID) -> int:
        """The number of partitions; -1 for a topic that is not known."""
        topic = self._image.topics.by_id(topic_id)
        return -1 if topic is None else len(topic.partitions)

    def racks(self, topic_id: UUID, partition: int) -> frozenset[str]:
        """The racks of a partition's replicas, of those that have one."""
        found = self._image.topics.partition(topic_id, partition)
        brokers = self._image.brokers
        racks = [
            brokers[replica].rack
            for replica in (() if found is None else found.replicas)
            if replica in brokers
        ]
        return frozenset(rack for rack in racks if rack)

    def hash(self) -> int:
        """A number that changes with the topics, their partitions and racks; 0 without topics.

        It is only compared with that of another time. Kafka's is of another kind (DIVERGENCES.md).
        """
        if not self.ids:
            return 0
        digest = blake2b(digest_size=8)
        has_racks = any(broker.rack for broker in self._image.brokers.values())
        for name in sorted(self.ids):
            topic_id = self.ids[name]
            digest.update(topic_id.bytes + _HASHED.pack(self.partition_count(topic_id)))
            if has_racks:
                for number in range(self.partition_count(topic_id)):
                    racks = ",".join(sorted(self.racks(topic_id, number)))
                    digest.update(racks.encode() + b";")
        return int(_HASHED.unpack(digest.digest())[0])


def subscribed_topics(names: Iterable[str], image: MetadataImage) -> SubscribedTopics:
    """Those of `names` that exist."""
    ids: dict[str, UUID] = {}
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            ids[name] = topic.topic_id
    return SubscribedTopics(ids, image)


def check_pattern(pattern: str) -> None:
    """Raises InvalidRegularExpressionError unless RE2 reads it."""
    compiled_pattern(pattern)


def matching(pattern: str, image: MetadataImage, internal: frozenset[str]) -> frozenset[str]:
    """The topics whose whole name a pattern matches, without internal ones."""
    compiled = compiled_pattern(pattern)
    return frozenset(
        name
        for name in image.topics.ids_by_name
        if name not in internal and compiled.fullmatch(name) is not None
    )


def compiled_pattern(pattern: str) -> re2.Pattern:
    """An RE2 pattern. Raises InvalidRegularExpressionError."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRegularExpressionError(f"{pattern!r} is no RE2 pattern: {error}") from None
