"""The plan of a rebuild: the segments that make the log of a partition without metadata. Pure.

The log is that of the newest leader epoch in the tier. It ends where that epoch ends there, and
begins at the first offset that is reached without a hole. A leader that restores itself
chooses the same (`tiering.tasks.recovery`). Segments of other lineages and second copies are
recorded as well. No leader gives up a log while the store has segments without a record
(`tiering.tasks.unrecorded`). Remains of deletions and unfinished copies are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.recovered import RecoveredSegment
from tiering.tasks.planner import coverage, epochs_up_to
from tiering.tasks.recovery import first_offset, latest_segment


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [start, end) that the tier had, and that are not to be had any more."""

    start: int
    end: int
    reason: str


@dataclass(slots=True)
class PartitionPlan:
    """The log to rebuild: [first_offset, next_offset) by `chosen`, and the rest with reasons.

    `extra` segments are recorded, too; retention deletes them. Those in `left` have no log.
    """

    partition: TopicIdPartition
    leader_epoch: int = 0
    first_offset: int = 0
    next_offset: int = 0
    chosen: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    extra: list[tuple[RemoteLogSegmentMetadata, str]] = field(default_factory=list)
    left: list[tuple[RemoteLogSegmentMetadata, str]] = field(default_factory=list)

    @property
    def recorded(self) -> list[RemoteLogSegmentMetadata]:
        """All segments to record."""
        return [*self.chosen, *(segment for segment, _ in self.extra)]


def plan_partition(
    partition: TopicIdPartition, segments: Iterable[RecoveredSegment]
) -> PartitionPlan:
    """Plans a partition from all of its segments with sound sidecars."""
    found = sorted(segments, key=lambda one: (one.metadata.start_offset, one.metadata.id))
    plan = PartitionPlan(partition)
    plan.leader_epoch = max((_newest_epoch(one) for one in found), default=0)
    whole = [one.metadata for one in found if one.has_log]
    last = latest_segment(whole)
    lineages = {one.metadata.id: one.lineage for one in found}
    if last is not None:
        epochs = epochs_up_to(lineages[last.id], last.next_offset)
        plan.first_offset = first_offset(whole, epochs, last)
        plan.next_offset = last.next_offset
        _choose(plan, [(one, coverage(one, epochs, last.next_offset)) for one in whole])
    _judge_lost_logs(plan, [one.metadata for one in found if not one.has_log])
    plan.holes.sort(key=lambda hole: hole.start)
    return plan


def _newest_epoch(segment: RecoveredSegment) -> int:
    entries = (*segment.lineage, *segment.metadata.segment_leader_epochs)
    return max(entry.epoch for entry in entries)


def _choose(plan: PartitionPlan, covering: list[tuple[RemoteLogSegmentMetadata, range]]) -> None:
    """Chooses as few segments as reach from the first offset to the end."""
    offset = plan.first_offset
    while offset < plan.next_offset:
        best = max(
            (pair for pair in covering if offset in pair[1]),
            key=lambda pair: pair[1].stop,
            default=None,
        )
        if best is None:
            following = (own.start for _, own in covering if own and own.start > offset)
            end = min(following, default=plan.next_offset)
            plan.holes.append(Hole(offset, end, "no segment has these offsets"))
            offset = end
            continue
        plan.chosen.append(best[0])
        offset = best[1].stop
    chosen = {one.id for one in plan.chosen}
    below = 0
    for segment, own in covering:
        if segment.id in chosen:
            continue
        if own and own.start < plan.first_offset:
            plan.extra.append((segment, "it lies below a hole"))
            below = max(below, min(own.stop, plan.first_offset))
        elif own:
            plan.extra.append((segment, "another segment has the same offsets"))
        else:
            plan.extra.append((segment, "it is of another lineage"))
    if below:
        hole = Hole(below, plan.first_offset, "no segment has these offsets")
        plan.holes.append(hole)


def _judge_lost_logs(plan: PartitionPlan, segments: list[RemoteLogSegmentMetadata]) -> None:
    """Judges sidecars without their logs: remains of a deletion, or lost records.

    A deletion removes the log first. It goes from the oldest segment up, or removes a second copy.
    """
    for segment in segments:
        is_below = bool(plan.chosen) and segment.end_offset < plan.first_offset
        is_copied = (
            plan.first_offset <= segment.start_offset and segment.end_offset < plan.next_offset
        )
        if is_below or is_copied:
            plan.left.append((segment, "its log was deleted"))
        else:
            reason = "the log of a segment is missing, and its sidecar is there"
            plan.holes.append(Hole(segment.start_offset, segment.next_offset, reason))


@dataclass(slots=True)
class TopicPlan:
    """The partitions of a topic, by number; one without a segment in the tier has an empty plan."""

    name: str
    partitions: list[PartitionPlan]

    @property
    def unseen(self) -> list[int]:
        """Partitions below the highest one of which the tier has nothing."""
        return [p.partition.partition for p in self.partitions if not p.chosen and not p.holes]
