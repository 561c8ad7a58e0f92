"""Random lineages, unclean elections and partial copies, without retention: no record that a leader
has becomes unreadable. KIP-405's order of offsets holds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.tiering.builders import FINISHED, PARTITION, STARTED, epochs, segment, tier_of
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


class Counting:
    """Rows that report each segment that is made of one."""

    def __init__(self, rows: Any, looked: Callable[[RemoteLogSegmentMetadata], None]) -> None:
        self._rows, self._looked = rows, looked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, row: int) -> RemoteLogSegmentMetadata:
        segment: RemoteLogSegmentMetadata = self._rows.get(row)
        self._looked(segment)
        return segment


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
        first = planner.first_available_offset(self.cache, epochs, end, leader.local_start)
        leader.log_start = max(leader.log_start, first)
        assert leader.log_start == 0
        nothing = planner.ExpirationPlan((), None)
        limits = planner.Retention(-1, -1, leader.log_start, end, 0)
        assert planner.plan_expiration(self.cache, epochs, limits, 10**15) == nothing
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


def plan_over_all(
    cluster: Cluster, epochs: tuple[EpochEntry, ...], limits: planner.Retention, now_ms: int
) -> planner.ExpirationPlan:
    """The model of a plan: every segment of the tier, and every offset, is looked at."""
    finished = [one for one in cluster.cache.segments() if one.state is FINISHED]
    finished.sort(key=lambda one: (one.start_offset, -one.end_offset))
    read = set()
    for offset in range(
        max(limits.log_start_offset, epochs[0].start_offset), limits.log_end_offset
    ):
        epoch = max(entry for entry in epochs if entry.start_offset <= offset).epoch
        found = cluster.cache.segment_for(epoch, offset)
        read |= {found.id} if found else set()
    total = sum(one.segment_size_bytes for one in finished if one.id in read)
    total += limits.local_only_bytes
    excess = total - limits.retention_bytes if limits.retention_bytes >= 0 else 0
    delete, start, keeping = [], limits.log_start_offset, False
    for one in finished:
        own = planner.coverage(one, epochs, limits.log_end_offset)
        too_old = 0 <= limits.retention_ms < now_ms - one.max_timestamp_ms
        if one.end_offset < start or (too_old and not own):
            delete.append(one)
        elif own and not keeping:
            if not too_old and excess <= 0:
                keeping = True
                continue
            delete.append(one)
            start = max(start, own.stop)
            if one.id in read:
                excess -= one.segment_size_bytes
    delete.sort(key=lambda one: (one.start_offset, one.end_offset, one.id))
    return planner.ExpirationPlan(tuple(delete), start if start > limits.log_start_offset else None)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_a_plan_that_looks_at_what_goes_is_that_of_a_look_at_everything(start: int) -> None:
    moved = strays = 0
    for seed in range(start, start + 50):
        cluster = Cluster(seed)
        for _ in range(60):
            cluster.step()
        rng, leader = cluster.random, cluster.leader
        end, segments = len(leader.records), cluster.cache.segments()
        if not end:
            continue
        for _ in range(20):
            log_start = rng.randint(0, max(0, min(leader.local_start, end - 1)))
            first = [entry for entry in leader.lineage() if entry.start_offset > log_start]
            epochs = leader.lineage()
            if rng.random() < 0.5:  # as the log start trims the lineage
                epochs = (EpochEntry(leader.records[log_start], log_start), *first)
            size = rng.choice([-1, rng.randint(0, 100 * len(segments) + 50)])
            local_bytes = rng.randint(0, 300)
            limits = planner.Retention(rng.choice([-1, 50]), size, log_start, end, local_bytes)
            now_ms = 1_000 + rng.choice([0, 50, 51])
            expected = plan_over_all(cluster, epochs, limits, now_ms)
            assert planner.plan_expiration(cluster.cache, epochs, limits, now_ms) == expected
            moved += expected.log_start_offset is not None
            strays += any(not planner.coverage(s, epochs, end) for s in expected.delete)
            readable = (planner.coverage(one, epochs, end) for one in segments)
            first_offset = min([*(own.start for own in readable if own), leader.local_start])
            bounds = (epochs, end, leader.local_start)
            assert planner.first_available_offset(cluster.cache, *bounds) == first_offset
    assert moved > 100 and strays > 100


def test_a_pass_without_work_looks_at_two_segments_whatever_the_tier_has() -> None:
    """With k segments to delete it looks at k more of them."""
    segments = [segment(10 * n, 10 * n + 9, n + 1, **{f"e{n // 100}": 10 * n}) for n in range(300)]
    tier, looked = tier_of(segments), list[RemoteLogSegmentMetadata]()
    tier._rows = Counting(tier._rows, looked.append)  # type: ignore[assignment]
    lineage, now_ms = epochs(e0=0, e1=1_000, e2=2_000), 1_000
    limits = planner.Retention(10, 300 * 100, 0, 3_000, 0)
    assert planner.first_available_offset(tier, lineage, 3_000, 3_000) == 0
    assert planner.plan_expiration(tier, lineage, limits, now_ms).delete == ()
    assert 0 < len(looked) <= 6
    looked.clear()
    smaller = dataclasses.replace(limits, retention_bytes=290 * 100)
    assert len(planner.plan_expiration(tier, lineage, smaller, now_ms).delete) == 10
    assert len(looked) <= 16
