"""Planted bugs of partitions; the simulated brokers must catch each of them. Rules are those of
RULES.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from node.partition.core import Partition
from quorum.controller import cluster_control, elections
from quorum.controller.partition_change import PartitionChangeBuilder
from quorum.image import PartitionRegistration
from tests.sim.partitions.broker import DataBroker
from tests.sim.partitions.log import ModelLog
from tests.sim.patching import Patching

if TYPE_CHECKING:
    from tests.sim.partitions.world import PartitionWorld


class PartitionCanary(Patching):
    """The correct implementation. Each subclass breaks one rule."""

    broker_type: ClassVar[type[DataBroker]] = DataBroker

    def broker(self, world: PartitionWorld, broker_id: int, directories: int) -> DataBroker:
        return self.broker_type(world, broker_id, directories)


class CountsCommittedIsrAlone(PartitionCanary):
    """A high watermark passes replicas of a proposal that the controller may count (KIP-497)."""

    patches = ((Partition, "maximal_isr", property(lambda self: self.isr)),)


class CommitsWithAnyIsr(PartitionCanary):
    """A high watermark moves while the ISR is below min.insync.replicas (rule 9)."""

    patches = ((Partition, "_may_commit", property(lambda self: True)),)


class JoinsTooEarly(PartitionCanary):
    """A follower joins the ISR at the high watermark, below the start of the leader's epoch."""

    patches = (
        (
            Partition,
            "leader_epoch_start_offset",
            property(lambda self: 0, lambda self, value: None),
        ),
    )


_forgotten, _draft = elections.forgotten, PartitionChangeBuilder._draft


class ForgetsUncleanStops(PartitionCanary):
    """A broker that lost power stays eligible as a leader (KIP-966)."""

    patches = (
        (
            cluster_control.elections,
            "forgotten",
            lambda before, *, unclean, gone: _forgotten(before, unclean=False, gone=gone),
        ),
    )


class _MakesLogsAnew(DataBroker):
    def _open(self, index: int, found: PartitionRegistration) -> ModelLog:
        if index not in self.logs:
            self.logs[index] = ModelLog(self.directories[0])
        return self.logs[index]


class LeadsWithAnEmptyDisk(PartitionCanary):
    """A broker with a replaced disk makes a log anew and is elected with it (rule 8)."""

    broker_type = _MakesLogsAnew
    patches = (
        (
            cluster_control.elections,
            "forgotten",
            lambda before, *, unclean, gone: _forgotten(before, unclean=unclean, gone=()),
        ),
    )


def _elects_any_replica(self: PartitionChangeBuilder) -> Any:
    draft = _draft(self)
    if not any(self.is_acceptable_leader(r) for r in draft.isr):
        draft.isr = tuple(r for r in draft.replicas if self.is_acceptable_leader(r)) or draft.isr
    return draft


class ElectsAnyReplica(PartitionCanary):
    """A replica outside of ISR and ELR is elected as if it had been in sync (I4)."""

    patches = ((PartitionChangeBuilder, "_draft", _elects_any_replica),)


CANARIES: dict[str, type[PartitionCanary]] = {
    "counts-committed-isr-alone": CountsCommittedIsrAlone,
    "commits-with-any-isr": CommitsWithAnyIsr,
    "joins-too-early": JoinsTooEarly,
    "forgets-unclean-stops": ForgetsUncleanStops,
    "leads-with-an-empty-disk": LeadsWithAnEmptyDisk,
    "elects-any-replica": ElectsAnyReplica,
}
