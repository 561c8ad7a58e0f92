"""Invariants of tiered partitions, read off the real brokers whenever time moves on.

No topic of this world has retention, so nothing may be missing:

- The log start of a leader and of every replica in sync is 0.
- Log start <= local log start <= log end, and the tier reaches the local log start.
- Every offset below a local log start is in a finished remote segment, as this replica's metadata
  has it. The bucket has its object (RULES.md rule 10, I10).
"""

from __future__ import annotations

from node.partition.core import Role
from node.partition.hosted import HostedPartition
from tests.sim.checks import Violation
from tests.sim.tier.store import Bucket
from tidemark.testing.node import SimNode
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.store.manager import LOG_SUFFIX, file_name, partition_directory


def remote_segments(
    node: SimNode, partition: TopicIdPartition
) -> list[RemoteLogSegmentMetadata] | None:
    """The remote segments that a node knows; None: it has not read its metadata yet."""
    broker = None if node.server is None else node.server.broker
    tier = None if broker is None else broker._tier
    if tier is None or not tier._metadata.is_ready(partition):
        return None
    return list(tier._metadata.list_remote_log_segments(partition))


def log_of(segment: RemoteLogSegmentMetadata) -> str:
    """Path of a segment's log in the bucket."""
    directory = partition_directory(segment.topic_id_partition)
    return f"{directory}/{file_name(segment, LOG_SUFFIX)}"


def finished(segments: list[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    done = [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return sorted(done, key=lambda segment: segment.start_offset)


class TierChecks:
    """Looks at the replicas that changed since the last look."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._brief: dict[HostedPartition, tuple[object, ...]] = {}

    def look(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            broker = None if node.server is None else node.server.broker
            for hosted in () if broker is None else broker.partitions:
                if hosted.config.remote_storage_enable and not (hosted.offline or hosted.deleted):
                    self._look_at(node, hosted)

    def _look_at(self, node: SimNode, hosted: HostedPartition) -> None:
        log, core = hosted.log, hosted.core
        start, local_start, end = (
            log.log_start_offset,
            log.local_log_start_offset,
            log.log_end_offset,
        )
        brief = (log, core.role, start, local_start)
        if self._brief.get(hosted) == brief:
            return
        where = (
            f"{hosted.topic_partition} at broker {node.node_id} in epoch {core.leader_epoch} "
            f"({core.role.value}): log start {start}, local {local_start}, end {end}"
        )
        if not start <= local_start <= end:
            raise Violation(f"I10 log start, local log start, log end are in order: {where}")
        leads = core.role is Role.LEADER
        if leads and start != 0:
            raise Violation(f"I10 the log start moves by retention alone: {where}")
        if local_start > 0:
            partition = TopicIdPartition(hosted.topic_id, *hosted.topic_partition)
            segments = remote_segments(node, partition)
            if segments is None:
                return
            self._require_covered(finished(segments), local_start, where)
        self._brief[hosted] = brief

    def _require_covered(
        self, segments: list[RemoteLogSegmentMetadata], local_start: int, where: str
    ) -> None:
        files = self._bucket.files()
        covered = 0
        for segment in segments:
            if segment.start_offset <= covered < segment.next_offset:
                if log_of(segment) not in files:
                    raise Violation(f"I10 a finished segment is in the store: {where}: {segment}")
                covered = segment.next_offset
        if covered < local_start:
            raise Violation(
                f"I10 what is not local is in the tier: covered up to {covered}: {where}; "
                f"{[(s.start_offset, s.next_offset) for s in segments]}"
            )
