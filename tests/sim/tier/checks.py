"""Invariants of tiered partitions, read off the real brokers whenever time moves on.

KIP-405's names: the log is [Lx, Lz) with the last stable offset Ly, the tier has [Rx, Ry].

- Lx <= Ly <= Lz, and of the newest leader Rx <= Ry < Ly. Its Ly is behind until it commits in its
  own epoch; until then Ry < Lz.
- The log start moves only as far as `TierChecks.allow` has it; without it, it is 0.
- Every offset below the local log start is in a finished remote segment of the log's lineage, as
  this replica's metadata has it. The bucket has its object (RULES.md rule 10, I10).
- The leader epochs of a log that begins in the tier are those of the committed batches there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from uuid import UUID

from node.partition.core import Role
from node.partition.hosted import HostedPartition
from tests.sim.checks import Violation
from tests.sim.cluster.checks import PartitionChecks
from tests.sim.tier.store import Bucket, stem_of
from tidemark.testing.node import SimNode
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.store.manager import LOG_SUFFIX

PartitionId = tuple[UUID, int]
Lineage = list[tuple[int, int]]


def remote_segments(
    node: SimNode, partition: TopicIdPartition
) -> list[RemoteLogSegmentMetadata] | None:
    """The remote segments that a node knows; None: it has not read its metadata yet."""
    broker = None if node.server is None else node.server.broker
    tier = None if broker is None else broker._tier
    if tier is None or not tier._metadata.is_ready(partition):
        return None
    return list(tier._metadata.list_remote_log_segments(partition))


def hosts(node: SimNode, partition: TopicIdPartition) -> bool:
    """Whether the node has a replica."""
    broker = None if node.server is None else node.server.broker
    return broker is not None and broker.partitions.find(partition.topic_partition) is not None


def log_of(segment: RemoteLogSegmentMetadata) -> str:
    """Path of a segment's log in the bucket."""
    return stem_of(segment) + LOG_SUFFIX


def finished(segments: list[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    done = [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    return sorted(done, key=lambda segment: segment.start_offset)


def clipped(lineage: Sequence[tuple[int, int]], start: int, end: int) -> Lineage:
    """The (epoch, start offset) entries of the records in [start, end)."""
    ends = [offset for _, offset in lineage[1:]] + [end]
    return [
        (epoch, max(begin, start))
        for (epoch, begin), stop in zip(lineage, ends, strict=False)
        if max(begin, start) < min(stop, end)
    ]


class TierChecks:
    """Looks at the replicas that changed since the last look."""

    def __init__(self, bucket: Bucket, partitions: PartitionChecks) -> None:
        self._bucket = bucket
        self._partitions = partitions
        self._brief: dict[HostedPartition, tuple[object, ...]] = {}
        self._epochs: dict[PartitionId, tuple[int, Lineage]] = {}
        self._starts: dict[PartitionId, int] = {}
        """The highest log start that a leader had."""
        self.topic_ids: dict[str, UUID] = {}
        self.allow: dict[str, Callable[[HostedPartition], int]] = {}
        """How far retention and DeleteRecords may have moved the log start of a topic."""
        self.short: set[tuple[int, PartitionId]] = set()
        """Replicas whose leader epochs a fault removed; they may be incomplete until it leads."""

    def look(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            broker = None if node.server is None else node.server.broker
            for hosted in () if broker is None else broker.partitions:
                if hosted.config.remote_storage_enable and not (hosted.offline or hosted.deleted):
                    self._look_at(node, hosted)

    def lineage(self, identity: PartitionId) -> Lineage:
        """The epochs of all committed batches, as (epoch, first offset)."""
        seen, epochs = self._epochs.get(identity, (0, []))
        batches = self._partitions.committed.get(identity, [])
        for batch in batches[seen:]:
            if not epochs or epochs[-1][0] != batch.epoch:
                epochs.append((batch.epoch, batch.base_offset))
        self._epochs[identity] = len(batches), epochs
        return epochs

    def _look_at(self, node: SimNode, hosted: HostedPartition) -> None:
        log, core = hosted.log, hosted.core
        start, local_start = log.log_start_offset, log.local_log_start_offset
        stable, end = log.last_stable_offset, log.log_end_offset
        brief = (log, core.role, core.leader_epoch, start, local_start, log.highest_remote_offset)
        if self._brief.get(hosted) == brief:
            return
        where = (
            f"{hosted.topic_partition} at broker {node.node_id} in epoch {core.leader_epoch} "
            f"({core.role.value}): log start {start}, local {local_start}, stable {stable}, "
            f"end {end}"
        )
        if not (start <= local_start <= end and start <= stable <= end):
            raise Violation(f"I10 Lz >= Ly >= Lx: {where}")
        identity = (hosted.topic_id, hosted.topic_partition.partition)
        self.topic_ids[hosted.topic_partition.topic] = hosted.topic_id
        if core.role is Role.LEADER:
            self._look_at_start(hosted, identity, start, where)
        partition = TopicIdPartition(hosted.topic_id, *hosted.topic_partition)
        segments = remote_segments(node, partition)
        if segments is None:
            return
        done = finished(segments)
        if done and self._leads(hosted) and not self._is_lossy(hosted):
            has_committed = stable >= (core.leader_epoch_start_offset or 0)
            last = max(segment.end_offset for segment in done)
            if last >= (stable if has_committed else end):
                raise Violation(f"I10 Ly >= Ry >= Rx: the tier ends at {last}: {where}")
        if local_start > start and self._knows_epochs(node, hosted, identity, where):
            begin = max(start, self._starts.get(identity, 0))
            self._require_covered(log.epochs.entries(), done, begin, local_start, where)
        self._brief[hosted] = brief

    def _leads(self, hosted: HostedPartition) -> bool:
        """Whether the replica leads and was not deposed."""
        image, core = self._partitions._newest_image(), hosted.core
        identity = hosted.topic_id, hosted.topic_partition.partition
        found = None if image is None else image.topics.partition(*identity)
        newest = found is not None and found.leader_epoch == core.leader_epoch
        return newest and core.role is Role.LEADER

    def _is_lossy(self, hosted: HostedPartition) -> bool:
        return hosted.topic_partition.topic in self._partitions.lossy_topics

    def _look_at_start(
        self, hosted: HostedPartition, identity: PartitionId, start: int, where: str
    ) -> None:
        allow = self.allow.get(hosted.topic_partition.topic)
        allowed = 0 if allow is None else allow(hosted)
        if start > allowed:
            raise Violation(f"I10 the log start moves by retention alone, to {allowed}: {where}")
        self._starts[identity] = max(start, self._starts.get(identity, 0))

    def _knows_epochs(
        self, node: SimNode, hosted: HostedPartition, identity: PartitionId, where: str
    ) -> bool:
        """Whether the replica has the epochs of what is only in the tier."""
        log = hosted.log
        # A restart may come back with an older log start, as it was written last.
        start = max(log.log_start_offset, self._starts.get(identity, 0))
        bounds = start, log.local_log_start_offset
        own = clipped(log.epochs.entries(), *bounds)
        if self._is_lossy(hosted):
            return True
        if own == clipped(self.lineage(identity), *bounds):
            self.short.discard((node.node_id, identity))
            return True
        if (node.node_id, identity) in self.short:
            return False
        raise Violation(
            f"I10 a log that begins in the tier has its epochs: {where}; has {own}, "
            f"committed {clipped(self.lineage(identity), *bounds)}"
        )

    def _require_covered(
        self,
        lineage: Sequence[tuple[int, int]],
        segments: list[RemoteLogSegmentMetadata],
        start: int,
        local_start: int,
        where: str,
    ) -> None:
        files = self._bucket.files()
        epochs = clipped(lineage, start, local_start)
        for (epoch, begin), (_, stop) in pairwise([*epochs, (-1, local_start)]):
            offset = begin
            while offset < stop:
                found = [
                    (bounds[1], segment)
                    for segment in segments
                    if (bounds := segment.epoch_range(epoch)) and bounds[0] <= offset <= bounds[1]
                ]
                if not found:
                    raise Violation(
                        f"I10 what is not local is in the tier: nothing has {offset} of epoch "
                        f"{epoch}: {where}; {[(s.start_offset, s.next_offset) for s in segments]}"
                    )
                last, segment = max(found, key=lambda one: one[0])
                if log_of(segment) not in files:
                    raise Violation(f"I10 a finished segment is in the store: {where}: {segment}")
                offset = last + 1
