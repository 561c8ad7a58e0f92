"""Invariants of data partitions, read off the real brokers whenever time moves on.

- I3, I6: a leader's high watermark passes only what all members of its maximal ISR have, with an
  ISR of min.insync.replicas at least.
- I4, I6: a leader has every record that leaders of earlier epochs committed; no replica truncates
  below its own high watermark.
- I5: replicas agree below their high watermarks.

Committed is what the high watermark of a leader passed. A batch is compared by its base offset, its
leader epoch and its CRC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from commitlog.log.log import Log
from node.partition.core import Role
from node.partition.hosted import HostedPartition
from quorum.image import MetadataImage
from tests.sim.checks import Violation
from tidemark.records import iter_batches
from tidemark.testing.node import SimNode

PartitionId = tuple[UUID, int]


class _Batch(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class _Seen(NamedTuple):
    """State of one replica at the last look."""

    log: Log
    role: Role
    epoch: int
    high_watermark: int
    end: int


class PartitionChecks:
    """The committed batches of each partition, and what each replica was last seen with."""

    def __init__(
        self, seen: Counter[str], newest_image: Callable[[], MetadataImage | None]
    ) -> None:
        self.seen = seen
        self._newest_image = newest_image
        self.committed: dict[PartitionId, list[_Batch]] = {}
        self._committed_in: dict[PartitionId, list[int]] = {}  # leader epoch, batch by batch
        self._replicas: dict[tuple[int, PartitionId], _Seen] = {}
        self._brief: dict[HostedPartition, tuple[Role, int, int, int]] = {}
        self._ends: dict[tuple[int, PartitionId], int] = {}
        self._isr: dict[HostedPartition, frozenset[int]] = {}
        self._broker_epochs: dict[int, int] = {}
        self.transitions: list[str] = []
        self.lossy_topics: set[str] = set()  # those of unclean elections

    def forget(self, node_id: int) -> None:
        """Drops what was seen of a process that ended; its logs' ends stay known."""
        for key in [key for key in self._replicas if key[0] == node_id]:
            del self._replicas[key]

    def lost(self, node_id: int) -> None:
        """Drops the logs' ends of a node whose disks lost something."""
        for key in [key for key in self._ends if key[0] == node_id]:
            del self._ends[key]

    def look(self, nodes: list[SimNode]) -> None:
        """Checks every replica that changed since the last look."""
        moved: list[tuple[int, HostedPartition, PartitionId, _Seen, int]] = []
        for node in nodes:
            broker = None if node.server is None else node.server.broker
            if broker is None:
                continue
            self._broker_epochs[node.node_id] = broker._identity.epoch
            for hosted in broker.partitions:
                core, log = hosted.core, hosted.log
                brief = (core.role, core.leader_epoch, log._high_watermark, log._log_end_offset)
                self._look_at_isr(node.node_id, hosted)
                if self._brief.get(hosted) == brief or hosted.offline or hosted.deleted:
                    continue
                if hosted.topic_partition.topic in self.lossy_topics:
                    continue
                self._brief[hosted] = brief
                identity = (hosted.topic_id, hosted.topic_partition.partition)
                key = (node.node_id, identity)
                now = _Seen(log, *brief)
                was = self._replicas.get(key)
                self._replicas[key] = now
                self._ends[key] = now.end
                if was is None or was.log is not log:
                    was = _Seen(log, Role.FOLLOWER, -1, 0, 0)
                    begin = 0
                else:
                    begin = was.high_watermark
                    self._require_kept(node, hosted, was, now)
                if (was.role, was.epoch) != (now.role, now.epoch):
                    self.transitions.append(
                        f"n{node.node_id} {hosted.topic_partition} {now.role.value} "
                        f"e{now.epoch} [{log.log_start_offset},{now.end}) hw={now.high_watermark}"
                    )
                moved.append((node.node_id, hosted, identity, was, begin))
        for node_id, hosted, identity, was, begin in moved:
            self._look_at(node_id, hosted, identity, was, begin)

    def _look_at_isr(self, node_id: int, hosted: HostedPartition) -> None:
        """Checks the members that joined since the last look at this leader's ISR."""
        core = hosted.core
        if core.role is not Role.LEADER or self._isr.get(hosted) is core.isr:
            return
        if hosted.topic_partition.topic in self.lossy_topics:
            return
        joined = core.isr - self._isr.get(hosted, core.isr)
        self._isr[hosted] = core.isr
        identity = (hosted.topic_id, hosted.topic_partition.partition)
        committed = self.committed.get(identity)
        for member in sorted(joined):
            known = self._ends.get((member, identity))
            if committed and known is not None and known < committed[-1].next_offset:
                raise Violation(
                    f"I3 who joins the ISR has what is committed: {hosted.topic_partition} below "
                    f"{committed[-1].next_offset} by broker {node_id} in epoch "
                    f"{core.leader_epoch}, but broker {member} ends at {known}"
                )

    def _require_kept(self, node: SimNode, hosted: HostedPartition, was: _Seen, now: _Seen) -> None:
        if now.end < was.high_watermark and not hosted.core.recovering:
            raise Violation(
                f"I6 nothing below the high watermark is cut: {hosted.topic_partition} at broker "
                f"{node.node_id} ends at {now.end}, its high watermark was {was.high_watermark}"
            )
        if now.end >= was.end or hosted.core.role is Role.LEADER:
            return
        identity = (hosted.topic_id, hosted.topic_partition.partition)
        committed = self.committed.get(identity)
        image = self._newest_image()
        found = None if image is None else image.topics.partition(*identity)
        if not committed or found is None or node.node_id not in found.isr:
            return
        end = committed[-1].next_offset
        if now.end < end and found.leader_epoch == hosted.core.leader_epoch:
            raise Violation(
                f"I6 an in-sync replica keeps what is committed: {hosted.topic_partition} at "
                f"broker {node.node_id} is cut to {now.end} in epoch {found.leader_epoch}, "
                f"committed up to {end}"
            )

    def _look_at(
        self,
        node_id: int,
        hosted: HostedPartition,
        identity: PartitionId,
        was: _Seen,
        begin: int,
    ) -> None:
        core, log = hosted.core, hosted.log
        committed = self.committed.setdefault(identity, [])
        epochs = self._committed_in.setdefault(identity, [])
        committed_end = committed[-1].next_offset if committed else 0
        leads = core.role is Role.LEADER
        if leads and (was.role is not Role.LEADER or was.epoch != core.leader_epoch):
            self._begins_to_lead(node_id, hosted, committed, epochs)
        high_watermark = log.high_watermark
        if leads and high_watermark > committed_end:
            self._require_in_sync(node_id, hosted, identity, high_watermark)
            for batch in _batches(log, committed_end, high_watermark):
                committed.append(batch)
                epochs.append(core.leader_epoch)
            self.seen["records committed"] += high_watermark - committed_end
        elif high_watermark > begin:
            self._require_equal(node_id, hosted, committed, begin, high_watermark)

    def _require_in_sync(
        self, node_id: int, hosted: HostedPartition, identity: PartitionId, end: int
    ) -> None:
        core = hosted.core
        if len(core.isr) < core.effective_min_isr or core.elr:
            raise Violation(
                f"I6 commits with {core.effective_min_isr} in-sync replicas and no eligible ones: "
                f"{hosted.topic_partition} at broker {node_id}: ISR {sorted(core.isr)}, "
                f"ELR {core.elr}"
            )
        for member in sorted(self._in_sync(hosted, identity)):
            known = self._ends.get((member, identity))
            if known is not None and known < end:
                raise Violation(
                    f"I3 every in-sync replica has what is committed: {hosted.topic_partition} "
                    f"below {end} at broker {node_id} in epoch {core.leader_epoch}, but broker "
                    f"{member} ends at {known}"
                )

    def _in_sync(self, hosted: HostedPartition, identity: PartitionId) -> set[int]:
        """The ISR as the leader has it, as it proposed it, and as the controller has it.

        A proposed member whose process has ended since does not count. The controller refuses its
        broker epoch, or took it out of the ISR as it registered anew.
        """
        core = hosted.core
        members = set(core.isr)
        if core.pending is not None:
            members |= {
                member.broker_id
                for member in core.pending.new_isr
                if member.broker_epoch in (-1, self._broker_epochs.get(member.broker_id))
            }
        image = self._newest_image()
        found = None if image is None else image.topics.partition(*identity)
        if found is not None and found.leader_epoch == core.leader_epoch:
            members |= set(found.isr)
        return members

    def _begins_to_lead(
        self, node_id: int, hosted: HostedPartition, committed: list[_Batch], epochs: list[int]
    ) -> None:
        core, log = hosted.core, hosted.log
        self.seen["leader began"] += 1
        start = log.local_log_start_offset
        mine = {b.base_offset: b for b in _batches(log, start, log.log_end_offset)}
        for batch, epoch in zip(committed, epochs, strict=True):
            if batch.base_offset < start or epoch >= core.leader_epoch:
                continue
            if mine.get(batch.base_offset) != batch:
                raise Violation(
                    f"I6 a clean election loses no committed record: {hosted.topic_partition} at "
                    f"broker {node_id}, epoch {core.leader_epoch}: {batch} is "
                    f"{mine.get(batch.base_offset)}, the log ends at {log.log_end_offset}"
                )

    def _require_equal(
        self,
        node_id: int,
        hosted: HostedPartition,
        committed: list[_Batch],
        begin: int,
        end: int,
    ) -> None:
        begin = max(begin, hosted.log.local_log_start_offset)
        if begin >= end or not committed:
            return
        at = bisect_left(committed, begin, key=lambda batch: batch.base_offset)
        for batch in _batches(hosted.log, begin, end):
            if batch.base_offset < begin:
                continue
            if at < len(committed) and committed[at] != batch:
                raise Violation(
                    f"I5 logs are equal below the high watermark: {hosted.topic_partition} at "
                    f"broker {node_id} has {batch}, committed is {committed[at]}"
                )
            at += 1


def _batches(log: Log, begin: int, end: int) -> list[_Batch]:
    """The batches that hold the offsets from `begin` up to `end`."""
    found: list[_Batch] = []
    offset = begin
    while offset < end:
        records = log.read(offset, 1 << 20).records
        if not records:
            break
        for _, header in iter_batches(records):
            if header.base_offset >= end:
                return found
            found.append(
                _Batch(
                    header.base_offset,
                    header.next_offset,
                    header.partition_leader_epoch,
                    header.crc,
                )
            )
            offset = header.next_offset
    return found
