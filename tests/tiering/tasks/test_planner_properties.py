"""Random lineages, unclean elections and partial copies, without retention: no record that a leader
has becomes unreadable. KIP-405's order of offsets holds.
"""

from __future__ import annotations

import dataclasses
import random
from uuid import UUID

import pytest

from tests.tiering.builders import FINISHED, PARTITION, STARTED
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiering.tasks import history, planner


@dataclasses.dataclass
class Replica:
    """The epoch of each record by its offset, and the first local offset."""

    records: list[int] = dataclasses.field(default_factory=list)
    local_start: int = 0
    log_start: int = 0

    def lineage(self) -> tuple[EpochEntry, ...]:
        entries: list[EpochEntry] = []
        for offset, epoch in enumerate(self.records):
            if not entries or entries[-1].epoch != epoch:
                entries.append(EpochEntry(epoch, offset))
        return tuple(entries)


class Cluster:
    """Three replicas and a tier."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replicas = [Replica() for _ in range(3)]
        self.leader = self.replicas[0]
        self.epoch = 0
        self.cache = RemoteLogMetadataCache()
        self.copies = 0

    def append(self) -> None:
        self.leader.records += [self.epoch] * self.random.randint(1, 9)

    def replicate(self) -> None:
        follower, leader = self.random.choice(self.replicas), self.leader
        pairs = zip(follower.records, leader.records, strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        same = min(len(follower.records), len(leader.records)) if same is None else same
        end = self.random.randint(same, len(leader.records))
        if same < max(follower.local_start, leader.local_start):  # it starts anew above the tier
            follower.local_start = leader.local_start
            end = max(end, leader.local_start)
        follower.records = leader.records[:end]

    def copy(self) -> None:
        """Copies a segment that begins anywhere at or below the first offset to copy."""
        first = max(self.highest(self.leader) + 1, self.leader.local_start)
        if first >= len(self.leader.records):
            return
        start = self.random.randint(max(self.leader.local_start, first - 5), first)
        end = self.random.randint(first + 1, len(self.leader.records))
        self.copies += 1
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(PARTITION, UUID(int=self.copies)),
            start,
            end - 1,
            1_000,
            1,
            1_000,
            100,
            planner.segment_leader_epochs(self.leader.lineage(), start, end),
            STARTED,
        )
        self.cache.add(segment)
        self.cache.update(segment.update(FINISHED, 1_000, 1))

    def delete_locally(self) -> None:
        one = self.random.choice(self.replicas)
        bound = self.highest(one) + 1
        if bound > one.local_start:
            one.local_start = self.random.randint(one.local_start, bound)

    def elect(self) -> None:
        """Elects any replica: an unclean election if it lacks records."""
        self.epoch += 1
        self.leader = self.random.choice(self.replicas)

    def check(self) -> None:
        leader, epochs = self.leader, self.leader.lineage()
        end = len(leader.records)
        segments = self.cache.segments()
        first = planner.first_available_offset(segments, epochs, end, leader.local_start)
        leader.log_start = max(leader.log_start, first)
        assert leader.log_start == 0
        nothing = planner.ExpirationPlan((), None)
        limits = planner.Retention(-1, -1, leader.log_start, end, 0)
        assert planner.plan_expiration(segments, epochs, limits, 10**15) == nothing
        for offset in range(leader.local_start):
            segment = self.cache.segment_for(leader.records[offset], offset)
            assert segment is not None, offset
            assert offset in planner.coverage(segment, epochs, end)
        assert end >= leader.local_start >= leader.log_start  # Lz >= Ly >= Lx
        assert end - 1 >= self.highest(leader) >= leader.log_start - 1  # Ly >= Ry >= Rx
        assert self.highest(leader) >= leader.local_start - 1
        assert history.is_whole(epochs, segments, 0, end)

    def highest(self, replica: Replica) -> int:
        return planner.highest_copied_offset(
            replica.lineage(), len(replica.records), self.cache.highest_offset_for_epoch
        )

    def step(self) -> None:
        steps = [self.append, self.append, self.replicate, self.copy, self.copy]
        self.random.choice([*steps, self.delete_locally, self.elect])()
        self.check()


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_without_retention_no_record_of_a_leader_is_ever_unreadable(start: int) -> None:
    for seed in range(start, start + 50):
        cluster = Cluster(seed)
        for _ in range(60):
            cluster.step()
