"""Fetches from the closest replica (KIP-392): the one the leader named, for a time.

A leader that is told the client's rack may name a replica instead of records. Fetches go there
until `preference_max_age_ms` is over. If that replica refuses anything, or fails, the leader is
asked at once. For `REST_MS` it is asked without the rack: it still names a replica that died a
moment ago. So an offset that a lagging replica lacks is never taken for out of range.
"""

from __future__ import annotations

from tidemark.client.consuming.partition import AssignedPartition, Preference

REST_MS = 5_000


def node_of(partition: AssignedPartition, leader: int, now_ms: float) -> int:
    """The node to fetch from; ends a preference that is over."""
    preference = partition.preference
    if preference is not None and preference.until_ms <= now_ms:
        partition.preference = preference = None
    return leader if preference is None or preference.node is None else preference.node


def rack_for(partition: AssignedPartition, client_rack: str) -> str:
    """The rack to name in the next fetch; empty while the leader alone is asked."""
    preference = partition.preference
    return client_rack if preference is None or preference.node is not None else ""


def is_named(partition: AssignedPartition, node: int | None) -> bool:
    """Whether `node` is the replica that the leader named."""
    return partition.preference is not None and partition.preference.node == node is not None


def leave(partition: AssignedPartition, node: int | None, now_ms: float) -> bool:
    """Leaves the replica that the leader named; False if `node` is not that one."""
    if not is_named(partition, node):
        return False
    partition.preference = Preference(None, now_ms + REST_MS)
    return True
