"""The throttle of replication, e.g. of a reassignment: one for what a broker sends, one for what it
fetches (KIP-73).

It holds replicas that topics list in `leader.replication.throttled.replicas` or
`follower.replication.throttled.replicas`, as `partition:broker` or `*`. While such a replica is not
in sync, its bytes count, and it waits above the rate. One that is in sync is never held back, or
acks=all would wait for it.
"""

from __future__ import annotations

import functools

from tidemark.config import ServerConfig, TopicConfig
from tidemark.quotas.rates import WindowedQuota

LEADER, FOLLOWER = "leader", "follower"
_UNLIMITED = (1 << 63) - 1


class ReplicationThrottle:
    """One side of a broker's replication: LEADER or FOLLOWER."""

    def __init__(self, side: str, config: ServerConfig) -> None:
        self._is_leader = side == LEADER
        self._node_id = config.node_id
        self._quota = WindowedQuota(
            _UNLIMITED,
            config.replication_quota_window_num,
            config.replication_quota_window_size_seconds,
        )
        self.is_active = False
        """Whether there is a rate; without one, nothing is counted."""
        self.reconfigure(config)

    def reconfigure(self, settings: ServerConfig) -> None:
        """Takes the rate in force."""
        leader, follower = (
            settings.leader_replication_throttled_rate,
            settings.follower_replication_throttled_rate,
        )
        rate = leader if self._is_leader else follower
        self.is_active = rate != _UNLIMITED
        self._quota.set_rate(rate)

    def holds(self, config: TopicConfig, partition: int) -> bool:
        """Whether the replica of a partition on this broker is throttled."""
        if not self.is_active:
            return False
        leader, follower = (
            config.leader_replication_throttled_replicas,
            config.follower_replication_throttled_replicas,
        )
        return _names(leader if self._is_leader else follower, partition, self._node_id)

    def record(self, size_bytes: int, now_s: float) -> None:
        """Counts bytes of a throttled replica."""
        self._quota.record(size_bytes, now_s)

    def wait_s(self, now_s: float) -> float:
        """Returns the time until the rate is kept, in s; 0: go on."""
        return self._quota.throttle_s(now_s)


@functools.lru_cache(maxsize=4096)
def _names(replicas: tuple[str, ...], partition: int, node_id: int) -> bool:
    return "*" in replicas or f"{partition}:{node_id}" in replicas
