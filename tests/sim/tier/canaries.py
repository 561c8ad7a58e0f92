"""Bugs planted in the tier; a seed of `tests.sim.tier.world` must catch each of them."""

from __future__ import annotations

import asyncio
from typing import Any

from commitlog.log import retention
from commitlog.log.from_tier import rebuild_from_remote, rebuilding
from commitlog.log.log import Log, Work
from commitlog.segment.producer_replay import NO_PRODUCERS
from node.replication import tier_bootstrap
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.tier.faults import TierFaults
from tidemark.testing.node import EPOCH_MS
from tiering.metadata.segments import RemoteLogSegmentState as _S
from tiering.store import sidecar
from tiering.tasks import copier, deleter, expirer, planner
from tiering.tasks import partition as tiered_partition
from tiering.tasks.partition import TieredPartition


class DeletesBeforeCopied(ClusterCanary):
    """Local retention deletes what the tier does not have (rule 10)."""

    fault_ms = 4_000
    patches = ((retention, "_is_removable", lambda log, segment: True),)


async def _nothing_uploaded(self: Any, metadata: Any, files: Any) -> None:
    self._metrics.remote_copy_requests += 1


class FinishesWithoutUpload(ClusterCanary):
    """A copy is recorded as finished, and nothing was uploaded."""

    fault_ms = 4_000
    patches = ((copier.Copier, "_upload", _nothing_uploaded),)


class KeepsDanglingCopies(ClusterCanary):
    """Copies that nobody will finish are never deleted."""

    patches = ((planner, "dangling_copies", lambda *arguments: []),)


_dangling = planner.dangling_copies


class DeletesCopiesUnderWay(ClusterCanary):
    """A leader takes any unfinished copy for a dangling one."""

    patches = (
        (
            planner,
            "dangling_copies",
            lambda segments, broker_id, now_ms, grace_ms, since_ms, in_flight: _dangling(
                segments, broker_id, now_ms, -1, since_ms, lambda _: False
            ),
        ),
    )


def _local_start(self: Any, hosted: TieredPartition) -> int:
    return hosted.log.local_log_start_offset


class TakesTheLocalStart(ClusterCanary):
    """A new leader does not look into the tier before it raises its log start."""

    patches = ((expirer.Expirer, "_first_available", _local_start),)


async def _forgets_first(self: Any, segment: Any) -> None:
    for state in (_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED):
        await self._record(segment, state)
    await self.delete_objects(segment)


class ForgetsBeforeDeleting(ClusterCanary):
    """A deletion is recorded as finished before the objects are deleted."""

    patches = ((deleter.SegmentDeleter, "delete", _forgets_first),)


class ServesUnverifiedChunk(ClusterCanary):
    """A chunk that is read from the store is served without a look at its checksum."""

    patches = (
        (sidecar.SegmentTable, "check_log", lambda self, position, content: None),
        (TierFaults, "corrupt_rate_min", 0.4),
    )


class UploadsEmptyProducerSnapshot(ClusterCanary):
    """A segment is copied without its producers."""

    fault_ms = 4_000
    patches = ((tiered_partition, "snapshot_of", lambda *arguments: NO_PRODUCERS),)


def _learns_of_begun(self: Any, hosted: TieredPartition) -> int:
    segments = self._metadata.list_remote_log_segments(hosted.partition)
    hosted.log.highest_remote_offset = max((s.end_offset for s in segments), default=-1)
    return _learn(self, hosted) if not segments else hosted.log.highest_remote_offset


_learn = copier.Copier.learn


class CountsUnfinishedCopies(ClusterCanary):
    """Local retention and the copier count copies that are not finished (rule 10)."""

    patches = ((copier.Copier, "learn", _learns_of_begun),)


class ComparesBrokersClocks(ClusterCanary):
    """The grace of a copy counts from the time that its broker's clock gave it."""

    patches = (
        (
            planner,
            "unfinished_since",
            lambda segments, since_ms, now_ms: {
                s.id: s.event_timestamp_ms - EPOCH_MS for s in segments
            },
        ),
    )


def _rebuilds_in_two_steps(
    log: Log,
    epochs: Any,
    snapshot: bytes | None,
    start_offset: int,
    now_ms: int,
    *,
    log_start_offset: int | None = None,
) -> Work:
    """Empties the log now, and installs what the tier has a moment later, unless a crash comes."""
    asyncio.get_running_loop().call_later(
        0.2,
        lambda: rebuild_from_remote(
            *(log, epochs, snapshot, start_offset, now_ms), log_start_offset=log_start_offset
        ),
    )
    return rebuilding(log, (), None, start_offset, now_ms, log_start_offset=log_start_offset)


class BootstrapsInTwoSteps(ClusterCanary):
    """A follower's log is emptied before it gets the leader epochs of the tier."""

    patches = ((tier_bootstrap, "rebuilding", _rebuilds_in_two_steps),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "deletes-before-copied": DeletesBeforeCopied,
    "finishes-without-upload": FinishesWithoutUpload,
    "keeps-dangling-copies": KeepsDanglingCopies,
    "deletes-copies-under-way": DeletesCopiesUnderWay,
    "takes-the-local-start": TakesTheLocalStart,
    "forgets-before-deleting": ForgetsBeforeDeleting,
    "serves-unverified-chunk": ServesUnverifiedChunk,
    "uploads-empty-producer-snapshot": UploadsEmptyProducerSnapshot,
    "counts-unfinished-copies": CountsUnfinishedCopies,
    "compares-brokers-clocks": ComparesBrokersClocks,
    "bootstraps-in-two-steps": BootstrapsInTwoSteps,
}

CAUGHT_BY = {
    "deletes-before-copied": "I10",
    "finishes-without-upload": "I10",
    "keeps-dangling-copies": "bucket and metadata",
    "deletes-copies-under-way": "bucket and metadata|I10",
    "takes-the-local-start": "I10",
    "forgets-before-deleting": "bucket and metadata",
    "serves-unverified-chunk": "I10 a read of the tier",
    "uploads-empty-producer-snapshot": "I10 a segment has its producers",
    "counts-unfinished-copies": "I10",
    "compares-brokers-clocks": "I10 a copy is left alone",
    "bootstraps-in-two-steps": "I10 a log that begins in the tier",
}
"""Words of the finding that a bug has to cause."""
