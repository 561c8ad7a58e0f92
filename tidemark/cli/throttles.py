"""The throttle of a reassignment (KIP-73): settings of its topics and of the brokers it is between.

Replicas that exist send at the rate, new ones fetch at it. Settings by hand, with `tidemark
configs`, are the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.cli.reassignment import Plan
    from tidemark.client.sync import Admin

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def throttled_replicas(before: Plan, wanted: Plan) -> dict[str, tuple[list[str], list[str]]]:
    """Replicas that send and replicas that fetch, as `partition:broker`, by topic."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for partition, replicas in sorted(wanted.items()):
        new = [broker for broker in replicas if broker not in before[partition]]
        if new:
            senders, fetchers = found.setdefault(partition.topic, ([], []))
            senders += [f"{partition.partition}:{broker}" for broker in before[partition]]
            fetchers += [f"{partition.partition}:{broker}" for broker in new]
    return found


def begin(admin: Admin, before: Plan, wanted: Plan, bytes_per_second: int) -> None:
    """Sets the throttle of the moves, which have not begun: rates first, then replicas."""
    from tidemark.client.models import AlterConfigOp, ConfigResource

    brokers = sorted({b for plan in (before, wanted) for p in wanted for b in plan[p]})
    rates = [AlterConfigOp(name, str(bytes_per_second), "SET") for name in _RATES]
    admin.incremental_alter_configs({ConfigResource.broker(b): rates for b in brokers})
    topics = {
        ConfigResource.topic(topic): [
            AlterConfigOp(name, ",".join(replicas), "APPEND")
            for name, replicas in zip(_LISTS, lists, strict=True)
        ]
        for topic, lists in throttled_replicas(before, wanted).items()
    }
    if topics:
        admin.incremental_alter_configs(topics)


def end(admin: Admin, partitions: Collection[TopicPartition]) -> None:
    """Removes the throttles of these partitions' topics and of all brokers."""
    from tidemark.client.models import AlterConfigOp, ConfigResource

    rates = [AlterConfigOp(name, None, "DELETE") for name in _RATES]
    lists = [AlterConfigOp(name, None, "DELETE") for name in _LISTS]
    changes = {ConfigResource.topic(t): lists for t in sorted({p.topic for p in partitions})}
    for broker in admin.describe_cluster().brokers:
        changes[ConfigResource.broker(broker.node_id)] = rates
    admin.incremental_alter_configs(changes)
