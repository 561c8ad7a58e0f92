"""How one partition changes: the rules of leader election and of the ISR, in one builder.

Kafka's PartitionChangeBuilder, restated (KIP-631, KIP-704):

1. A leader that is in the ISR and acceptable stays (but a PREFERRED election moves to the preferred
   replica when that one is in the ISR and acceptable).
2. Else the first in order of assignment that is in the ISR and acceptable leads.
3. Else, where unclean elections are allowed, the first acceptable replica leads, alone in the ISR,
   and is RECOVERING until it says otherwise.
4. Else nobody leads.
5. The ISR never empties: without a successor the last members stay, for they have the data.

A changed leader raises the leader epoch, any change the partition epoch (done by the replay).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from quorum.image import LeaderRecoveryState, PartitionRegistration
from quorum.image.records import leader_to_wire, node_ids
from tidemark.v1 import metadata_pb2 as pb


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
class PartitionChangeBuilder:
    """Builds the record that leads from `partition` to its next state.

    `is_acceptable_leader` tells whether a broker may lead: in service, and not the one being taken
    out of service by this very change. `target_isr` is None for an unchanged ISR.
    """

    topic_id: UUID
    index: int
    partition: PartitionRegistration
    is_acceptable_leader: Callable[[int], bool]
    election: Election = Election.ONLINE
    target_isr: tuple[int, ...] | None = None
    target_recovery_state: LeaderRecoveryState | None = None

    def build(self) -> pb.MetadataRecord | None:
        """The change, or None when there is none."""
        before = self.partition
        isr = self.target_isr if self.target_isr else before.isr
        elected = self._elect(isr)
        recovery = before.leader_recovery_state
        if elected.unclean and elected.leader is not None:
            isr = (elected.leader,)
            recovery = LeaderRecoveryState.RECOVERING
        elif self.target_recovery_state is not None:
            recovery = self.target_recovery_state
        change = pb.PartitionChangeRecord(partition_id=self.index, topic_id=self.topic_id.bytes)
        changed = False
        if isr != before.isr:
            change.isr.CopyFrom(node_ids(isr))
            changed = True
        # An unclean leader starts a new epoch even if it led before: its log may have lost records.
        if elected.leader != before.leader or elected.unclean:
            change.leader = leader_to_wire(elected.leader)
            changed = True
        if recovery != before.leader_recovery_state:
            change.leader_recovery_state = recovery
            changed = True
        return pb.MetadataRecord(partition_change=change) if changed else None

    def _elect(self, isr: tuple[int, ...]) -> _Elected:
        def clean(replica: int | None) -> bool:
            return replica is not None and replica in isr and self.is_acceptable_leader(replica)

        before = self.partition
        if self.election is Election.PREFERRED and clean(before.preferred_leader):
            return _Elected(before.preferred_leader)
        if clean(before.leader):
            return _Elected(before.leader)
        for replica in before.replicas:
            if clean(replica):
                return _Elected(replica)
        if self.election is Election.UNCLEAN:
            for replica in before.replicas:
                if self.is_acceptable_leader(replica):
                    return _Elected(replica, unclean=True)
        return _Elected(None)
