"""Problems of brokers' disks and tier, for `tidemark cluster health` (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tidemark.cli.problems import Problem

if TYPE_CHECKING:
    from tidemark.client.models import LogDirDescription, ReplicaDescription


def disk_problems(
    brokers: Mapping[int, Iterable[LogDirDescription]],
    max_copy_lag_bytes: int,
    min_free_percent: int,
) -> list[Problem]:
    """Failed and nearly full directories, logs that are not compacted, and a tier that lags."""
    found: list[Problem] = []
    for broker_id, directories in sorted(brokers.items()):
        for directory in directories:
            where = f"broker {broker_id}: {directory.log_dir}"
            if directory.error is not None:
                why = directory.error_message or directory.error
                found.append(Problem("warning", "directory offline", where, why))
                continue
            free, total = directory.usable_bytes, directory.total_bytes
            if total > 0 and free * 100 < total * min_free_percent:
                told = f"{100 * free // total} % free, {free:,} bytes of {total:,}"
                found.append(Problem("warning", "disk nearly full", where, told))
            found += _of_replicas(broker_id, directory.replicas, max_copy_lag_bytes)
    return found


def _of_replicas(
    broker_id: int, replicas: Iterable[ReplicaDescription], max_copy_lag_bytes: int
) -> Iterator[Problem]:
    for replica in replicas:
        where = f"broker {broker_id}: {replica.topic_partition}"
        if replica.uncleanable_reason:
            yield Problem("warning", "log not compacted", where, replica.uncleanable_reason)
        lag_bytes = replica.remote_copy_lag_bytes
        if replica.is_leader and lag_bytes > max_copy_lag_bytes:
            told = (
                f"{replica.remote_copy_lag_segments} segments, {lag_bytes:,} bytes are not copied"
            )
            yield Problem("warning", "tier lags", where, f"{told}: the broker's log has the reason")
