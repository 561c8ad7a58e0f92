"""Computes how one partition changes: reassignment, leader election, ISR, eligible leaders.

Kafka's PartitionChangeBuilder, restated (KIP-455, KIP-631, KIP-704, KIP-966). In this order:

1. A reassignment ends when the ISR without the replicas to remove is not empty and contains all
   added ones. Then the replicas to remove leave replicas and ISR.
2. Eligible leader replicas (ELR): while the ISR is below min.insync.replicas, a replica that leaves
   it stays eligible, because nothing is committed without it. A leader commits nothing while its
   partition has an ELR. That does not hold after an unclean shutdown. From min.insync.replicas on,
   the ELR is empty.
3. A leader that is in the ISR and acceptable stays. A PREFERRED election moves to the preferred
   replica if that is in the ISR and acceptable.
4. Otherwise the first replica in order of assignment that is in the ISR and acceptable leads. If
   there is none, the first acceptable one of the ELR leads and becomes the ISR.
5. If both are empty, the last known leader leads as soon as it is acceptable. Else, where unclean
   elections are allowed, the first acceptable replica leads. Either is alone in the ISR, and
   RECOVERING until it reports otherwise.
6. Otherwise the partition has no leader.
7. Without ELR the ISR never becomes empty: its last members stay, because they have the data. With
   ELR it may, and the last leader is kept in `last_known_elr`; where there was none, the last ISR.
8. While the ISR is empty, nothing can be committed. ELR and last known leader then stay valid, also
   when the feature is switched off: somebody can lead again. Otherwise they end with the feature.

A changed leader, a removed or a lost replica raises the leader epoch. Every change raises the
partition epoch (done by the replay).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from quorum.image import (
    LeaderRecoveryState,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from quorum.image.records import leader_to_wire
from tidemark.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from tidemark.v1 import metadata_pb2 as pb

Ids = tuple[int, ...]


class Election(Enum):
    """ONLINE keeps a valid leader, PREFERRED gives leadership back, UNCLEAN may lose data."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True)
class _Elected:
    leader: int | None
    unclean: bool = False


@dataclass(slots=True)
class _Draft:
    """The lists of the next state while they are computed."""

    replicas: Ids
    isr: Ids
    adding: Ids
    removing: Ids
    elr: Ids = ()
    last_known: Ids = ()


@dataclass(slots=True)
class PartitionChangeBuilder:
    """Builds the record that leads from `partition` to its next state.

    `is_acceptable_leader` tells whether a broker may lead: in service, and not the one that this
    change takes out of service. Targets are None where nothing changes. `min_isr` is the topic's
    min.insync.replicas. `unclean_shutdown` are brokers that may have lost records.
    """

    topic_id: UUID
    index: int
    partition: PartitionRegistration
    is_acceptable_leader: Callable[[int], bool]
    election: Election = Election.ONLINE
    elr_enabled: bool = False
    min_isr: int = 1
    target_isr: Ids | None = None
    target_recovery_state: LeaderRecoveryState | None = None
    target_replicas: Ids | None = None
    target_adding: Ids | None = None
    target_removing: Ids | None = None
    target_directories: tuple[UUID, ...] | None = None
    unclean_shutdown: frozenset[int] = frozenset()
    new_epoch: bool = False
    """Whether the leader begins a new epoch in any case."""

    def build(self) -> pb.MetadataRecord | None:
        """The change, or None if there is none."""
        before = self.partition
        draft = self._draft()
        _complete_reassignment(draft)
        self._set_eligible(draft)
        elected = self._elect(draft)
        recovery = before.leader_recovery_state
        if elected.unclean:
            assert elected.leader is not None
            draft.isr, draft.elr, draft.last_known = (elected.leader,), (), ()
            recovery = LeaderRecoveryState.RECOVERING
        elif self.target_recovery_state is not None:
            recovery = self.target_recovery_state
        if elected.leader is not None and elected.leader not in draft.isr:
            self._begin_with(elected.leader, draft)
        if not draft.isr and before.isr:
            draft.last_known = before.isr if before.leader is None else (before.leader,)
        return self._record(draft, elected, recovery)

    def _draft(self) -> _Draft:
        before = self.partition
        isr = before.isr if self.target_isr is None else self.target_isr
        if not isr and not self.elr_enabled:
            isr = before.isr
        replicas = _chosen(self.target_replicas, before.replicas)
        return _Draft(
            replicas=replicas,
            isr=isr if replicas is before.replicas else tuple(r for r in isr if r in replicas),
            adding=_chosen(self.target_adding, before.adding),
            removing=_chosen(self.target_removing, before.removing),
        )

    def _set_eligible(self, draft: _Draft) -> None:
        before = self.partition
        if self._is_enough(draft):
            return
        gone = self.unclean_shutdown
        draft.elr = tuple(
            r
            for r in dict.fromkeys((*before.elr, *before.isr))
            if r not in draft.isr and r not in gone and r in draft.replicas
        )
        draft.last_known = _without(
            before.last_known_elr, set(before.replicas) - set(draft.replicas)
        )

    def _is_enough(self, draft: _Draft) -> bool:
        """Whether the ISR needs no others that are eligible."""
        least = min(self.min_isr, len(draft.replicas)) if self.elr_enabled else 1
        return len(draft.isr) >= least

    def _begin_with(self, leader: int, draft: _Draft) -> None:
        """Makes a leader from the ELR the ISR.

        The former members of the ISR have everything that was committed as well.
        """
        draft.elr = _without((*draft.elr, *draft.isr), {leader})
        draft.isr = (leader,)
        if self._is_enough(draft):
            draft.elr, draft.last_known = (), ()

    def _elect(self, draft: _Draft) -> _Elected:
        acceptable, before = self.is_acceptable_leader, self.partition

        def clean(replica: int | None) -> bool:
            return replica is not None and replica in draft.isr and acceptable(replica)

        preferred = draft.replicas[0]
        if self.election is Election.PREFERRED and clean(preferred):
            return _Elected(preferred)
        if before.leader in draft.replicas and clean(before.leader):
            return _Elected(before.leader)
        for replica in draft.replicas:
            if clean(replica):
                return _Elected(replica)
        for replica in draft.replicas:
            if replica in draft.elr and acceptable(replica):
                return _Elected(replica)
        candidates: Iterable[int] = ()
        if not draft.isr and not draft.elr:
            candidates = draft.last_known
        if self.election is Election.UNCLEAN:
            candidates = (*candidates, *draft.replicas)
        for replica in candidates:
            if acceptable(replica):
                return _Elected(replica, unclean=True)
        return _Elected(None)

    def _record(
        self, draft: _Draft, elected: _Elected, recovery: LeaderRecoveryState
    ) -> pb.MetadataRecord | None:
        before = self.partition
        record = pb.MetadataRecord()
        change = record.partition_change
        lists = (
            ("isr", draft.isr, before.isr),
            ("replicas", draft.replicas, before.replicas),
            ("adding_replicas", draft.adding, before.adding),
            ("removing_replicas", draft.removing, before.removing),
            ("eligible_leader_replicas", draft.elr, before.elr),
            ("last_known_elr", draft.last_known, before.last_known_elr),
        )
        for name, after, old in lists:
            if after != old:
                changed = getattr(change, name)
                changed.SetInParent()  # an empty list is a change as well
                changed.ids.extend(after)
        directories = self.target_directories or before.directories
        if directories and (directories, draft.replicas) != (before.directories, before.replicas):
            kept = dict(zip(before.replicas, directories, strict=True))
            change.directories.extend(kept.get(r, _UNASSIGNED).bytes for r in draft.replicas)
        # An unclean leader starts a new epoch even if it led before: its log may have lost records.
        # So does the partition when a replica is removed: its fetches are refused from then on.
        shrunk = draft.replicas is not before.replicas and not (
            set(before.replicas) <= set(draft.replicas)
        )
        if elected.leader != before.leader or elected.unclean or shrunk or self.new_epoch:
            change.leader = leader_to_wire(elected.leader)
        if recovery != before.leader_recovery_state:
            change.leader_recovery_state = recovery
        if not change.ByteSize() and not change.HasField("leader"):
            return None
        change.partition_id, change.topic_id = self.index, self.topic_id.bytes
        return record


_UNASSIGNED = UUID(int=0)


def _complete_reassignment(draft: _Draft) -> None:
    if not draft.adding and not draft.removing:
        return
    isr = _without(draft.isr, draft.removing)
    if isr and set(draft.adding) <= set(isr):
        draft.isr, draft.replicas = isr, _without(draft.replicas, draft.removing)
        draft.adding = draft.removing = ()


def _chosen(target: Ids | None, before: Ids) -> Ids:
    return before if target is None else target


def _without(ids: Ids, gone: Iterable[int]) -> Ids:
    excluded = set(gone)
    return tuple(i for i in ids if i not in excluded)


def find_partition_by_id(
    image: MetadataImage, topic_id: bytes, index: int
) -> tuple[TopicImage, PartitionRegistration]:
    """Returns the partition that a broker's request refers to by topic id.

    Raises UnknownTopicIdError, UnknownTopicOrPartitionError.
    """
    topic = image.topics.by_id(UUID(bytes=topic_id)) if len(topic_id) == 16 else None
    if topic is None:
        raise UnknownTopicIdError("there is no topic of this id")
    partition = topic.partitions.get(index)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"there is no {topic.name}-{index}")
    return topic, partition
