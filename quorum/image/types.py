"""The values an image consists of: brokers, topics, partitions, configuration resources.

All are immutable. A cluster may have a million partitions, so a `PartitionRegistration` is small: a
tuple of tuples of node ids that are shared (`intern_ids`). The ISR is the same object as the
replicas if they are equal. Source: KIP-631.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from immutables import Map

from tidemark.types import Endpoint, Listener

if TYPE_CHECKING:
    from quorum.image.placement_index import Placement

EMPTY_MAP: Map[Any, Any] = Map()

UNASSIGNED_DIRECTORY = UUID(int=0)
"""Directory of a replica whose broker has not reported it yet (KIP-858)."""

LOST_DIRECTORY = UUID(int=1)
"""Directory of a replica that failed before the controller got its assignment, or whose log no
directory of its broker has (KIP-858)."""

_RESERVED_DIRECTORIES = 100


def is_reserved_directory(directory_id: UUID) -> bool:
    """Whether no log directory may have this id (Kafka's DirectoryId.reserved)."""
    return directory_id.int < _RESERVED_DIRECTORIES


# Replica lists repeat: a table of this size is shared, further lists have tuples of their own.
_INTERNED_MAX = 1 << 16
# Below this many partitions, scanning a topic is as fast as an index of it.
_PLACEMENT_PARTITIONS_MIN = 32
_interned: dict[tuple[int, ...], tuple[int, ...]] = {}


def intern_ids(ids: Iterable[int]) -> tuple[int, ...]:
    """`ids` as a tuple, the same object for equal lists as far as the table reaches."""
    wanted = tuple(ids)
    if not wanted:
        return ()
    found = _interned.get(wanted)
    if found is not None:
        return found
    if len(_interned) < _INTERNED_MAX:
        _interned[wanted] = wanted
    return wanted


class LeaderRecoveryState(IntEnum):
    """RECOVERING after an unclean election, until the leader reports its recovery (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class FeatureRange(NamedTuple):
    """Levels of a feature that a node supports, both ends inclusive."""

    name: str
    min_level: int
    max_level: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker.

    `epoch` is the offset of its registration record. It is fenced until it has caught up.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Listener, ...]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    features: tuple[FeatureRange, ...] = ()

    @property
    def feature_ranges(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest level it supports, by feature."""
        return {f.name: (f.min_level, f.max_level) for f in self.features}

    @property
    def is_active(self) -> bool:
        """Whether it may lead, join an ISR and serve clients: neither fenced nor shutting down."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str | None = None) -> Endpoint | None:
        """Endpoint of `listener` (None: the first one); None if there is no such listener."""
        for candidate in self.endpoints:
            if listener is None or candidate.name == listener:
                return candidate.endpoint
        return None


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """A controller registered at the active one (KIP-919); the newest process of an id counts."""

    controller_id: int
    incarnation_id: UUID
    endpoints: tuple[Listener, ...]
    features: tuple[FeatureRange, ...] = ()

    @property
    def feature_ranges(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest level it supports, by feature."""
        return {f.name: (f.min_level, f.max_level) for f in self.features}


class PartitionRegistration(NamedTuple):
    """The controller's decision on a partition.

    `replicas` is in order of preference; `leader` is None while there is none. It is a named tuple:
    there may be a million, and it is made three times faster than a frozen dataclass of this size.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    directories: tuple[UUID, ...] = ()

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]

    @property
    def has_preferred_leader(self) -> bool:
        return self.leader == self.replicas[0]

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    def directory_of(self, broker_id: int) -> UUID | None:
        """Directory with the broker's replica; None while it is not assigned."""
        if not self.directories or broker_id not in self.replicas:
            return None
        found = self.directories[self.replicas.index(broker_id)]
        return None if found == UNASSIGNED_DIRECTORY else found

    def directories_with(self, broker_id: int, directory_id: UUID) -> tuple[UUID, ...]:
        """`directories` with another one of the broker, which holds a replica."""
        known = list(self.directories or [UNASSIGNED_DIRECTORY] * len(self.replicas))
        known[self.replicas.index(broker_id)] = directory_id
        return tuple(known)

    def counts_on(self, broker_id: int) -> bool:
        """Whether the broker's replica may lead without loss: it has what was committed.

        The last known leader counts while neither ISR nor ELR has a member.
        """
        if self.isr or self.elr:
            return broker_id in self.isr or broker_id in self.elr
        return broker_id in self.last_known_elr


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic and its partitions by index."""

    name: str
    topic_id: UUID
    partitions: Map[int, PartitionRegistration] = EMPTY_MAP
    _placement: Placement | None = field(default=None, repr=False, compare=False)

    def with_partitions(self, changed: Mapping[int, PartitionRegistration]) -> TopicImage:
        """The topic with these partitions changed or added.

        Keeps the table of placements while the replicas stay the same.
        """
        before = self.partitions
        moved = any(
            (old := before.get(index)) is None or old.replicas != new.replicas
            for index, new in changed.items()
        )
        placement = None if moved else self._placement
        return TopicImage(self.name, self.topic_id, before.update(changed), placement)

    @property
    def is_indexed(self) -> bool:
        """Whether `hosted_by` has its table, or needs none."""
        return self._placement is not None or len(self.partitions) < _PLACEMENT_PARTITIONS_MIN

    def hosted_by(self, broker_id: int) -> Iterable[tuple[int, PartitionRegistration]]:
        """Partitions with a replica on the broker."""
        partitions = self.partitions
        if len(partitions) < _PLACEMENT_PARTITIONS_MIN:
            return [(i, p) for i, p in partitions.items() if broker_id in p.replicas]
        placement = self._placement
        if placement is None:
            # A lazily computed value, the same whichever caller computes it first.
            from quorum.image.placement_index import Placement

            indexes, states = zip(*partitions.items(), strict=True)
            placement = Placement.of(indexes, [p.replicas for p in states])
            object.__setattr__(self, "_placement", placement)
        return [(index, partitions[index]) for index in placement.hosted_by(broker_id)]

    def ordered(self) -> list[tuple[int, PartitionRegistration]]:
        """The partitions by ascending index."""
        return sorted(self.partitions.items())


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics, by name or by id."""

    ids_by_name: Map[str, UUID] = EMPTY_MAP
    topics_by_id: Map[UUID, TopicImage] = EMPTY_MAP

    def get(self, name: str) -> TopicImage | None:
        topic_id = self.ids_by_name.get(name)
        return None if topic_id is None else self.topics_by_id[topic_id]

    def by_id(self, topic_id: UUID) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, topic_id: UUID, index: int) -> PartitionRegistration | None:
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(index)

    def hosted_by(self, broker_id: int) -> Iterator[tuple[TopicImage, int, PartitionRegistration]]:
        """Partitions with a replica on the broker, in an unspecified order."""
        for topic in self.topics_by_id.values():
            for index, partition in topic.hosted_by(broker_id):
                yield topic, index, partition

    def names(self) -> list[str]:
        """All names in order."""
        return sorted(self.ids_by_name)

    def ordered(self) -> Iterator[TopicImage]:
        """All topics by name."""
        for name in self.names():
            yield self.topics_by_id[self.ids_by_name[name]]

    def __len__(self) -> int:
        return len(self.topics_by_id)

    def __iter__(self) -> Iterator[TopicImage]:
        """All topics in an unspecified order."""
        return iter(self.topics_by_id.values())

    def __contains__(self, name: object) -> bool:
        return name in self.ids_by_name


EMPTY_TOPICS = TopicsImage()
