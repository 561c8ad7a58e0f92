"""The replica that is closest to a consumer: Kafka's RackAwareReplicaSelector (KIP-392)."""

from __future__ import annotations

from node.partition.core import Partition, Role


def closest_replica(core: Partition, rack: str, offset: int) -> int | None:
    """The follower that a consumer in `rack` is sent to; None: it is answered by this node.

    The leader answers if it is in that rack, or if no follower there can serve `offset`. A
    follower can if it is in service and its log had the offset at its last fetch. Of several, the
    one whose log is longest, then the one that was caught up last.
    """
    if core.role is not Role.LEADER:
        return None
    brokers = core.brokers()
    own = brokers.get(core.node_id)
    if own is not None and own.rack == rack:
        return None
    found = [
        (state.log_end_offset, state.last_caught_up_ms, replica)
        for replica, state in core.remotes.items()
        if state.log_end_offset is not None
        and state.log_start_offset is not None
        and state.log_start_offset <= offset <= state.log_end_offset
        and (view := brokers.get(replica)) is not None
        and view.in_service
        and view.rack == rack
    ]
    return max(found)[2] if found else None
