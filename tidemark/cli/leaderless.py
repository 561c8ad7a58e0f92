"""Explains why a partition has no leader, and what brings one back."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.client.models import ClusterDescription, PartitionDescription


def in_service(cluster: ClusterDescription) -> frozenset[int]:
    """Ids of the brokers that are registered and not fenced."""
    return frozenset(broker.node_id for broker in cluster.brokers if not broker.fenced)


def way_back(partition: PartitionDescription, active: Collection[int]) -> str:
    """Returns what to do about a partition without a leader; `active` are the brokers in service.

    Empty if an election is merely under way.
    """
    holders = sorted({*partition.isr, *partition.elr}) or sorted(partition.last_known_elr)
    away = [broker for broker in holders if broker not in active]
    bare = [b for b in holders if b in active and b in partition.offline_replicas]
    ways = []
    if bare:
        ways.append(
            f"give {_brokers(bare)} the log directory with its records back (the broker's own log"
            " tells more), or only if it is lost for good: tidemark elect-leaders --election-type"
            " unclean"
        )
    if away:
        ways.append(f"start {_brokers(away)}")
    return ", or ".join(ways)


def _brokers(ids: list[int]) -> str:
    return " or ".join(f"broker {broker}" for broker in ids)
