"""A replica's start from the tier: every follower that begins anew has the whole history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.log.log import Log
from node.replication import follower_log
from node.replication.tier_bootstrap import TierBootstrap
from tests import virtual_time
from tests.node.cluster import Cluster, batch
from tests.node.replication.test_tier import FakeTier
from tests.node.replication.test_tier import scenario as tiered_scenario
from tidemark.errors import ErrorCode, OffsetNotAvailableError, StorageError
from tidemark.types import OffsetSpec, TopicIdPartition
from tidemark.v1 import metadata_pb2 as records_pb


def scenario(test: Callable[[Cluster, FakeTier], Awaitable[None]]) -> None:
    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        cluster.create_topic(
            remote_storage_enable="true", local_retention_bytes="1", retention_bytes="100000000"
        )
        await test(cluster, tier)
        running = list(cluster.nodes.values())
        await cluster.stop()
        assert [node.fatal for node in running] == [[] for _ in running]

    virtual_time.run(main())


async def produce_segments(cluster: Cluster, *values: str) -> None:
    """Each value in a segment of its own, on the leader and on the replicas in sync."""
    for value in values:
        await cluster.nodes[cluster.partition.leader].produce(value)
        in_sync = tuple(cluster.partition.isr)
        await cluster.settle(in_sync)
        for node_id in in_sync:
            cluster.nodes[node_id].hosted().log.roll(cluster.nodes[node_id].clock.wall_ms())


def test_a_follower_cut_below_its_local_start_rebuilds_its_history_from_the_tier() -> None:
    """It would be in sync with a log start and epochs of its own, and as leader hide the tier."""

    async def test(cluster: Cluster, tier: FakeTier) -> None:
        await produce_segments(cluster, "v0", "v1", "v2", "v3")
        cluster.cut.add((2, 1))
        cluster.fence(2)
        cluster.change(isr=(1, 3))
        await produce_segments(cluster, "v4", "v5")
        third = cluster.nodes[3].hosted()
        tier.archive(third.log, cluster.nodes[3].clock.wall_ms())
        assert (third.log.local_log_start_offset, third.log.log_end_offset) == (5, 6)
        await cluster.stop(1)
        cluster.fence(2, False)
        cluster.change(leader=2, isr=(2,))  # an unclean election
        second = cluster.nodes[2]
        tier.batches = tier.batches[:4]
        tier.archive(second.hosted().log, second.clock.wall_ms())
        await second.produce("w4")
        assert second.hosted().log.local_log_start_offset == 3
        await cluster.settle((2, 3))
        assert (
            third.log.epochs.entries() == second.hosted().log.epochs.entries() == ((0, 0), (1, 4))
        )
        assert (third.log.log_start_offset, third.log.local_log_start_offset) == (0, 3)
        await asyncio.sleep(2)
        assert set(cluster.partition.isr) == {2, 3}
        cluster.change(leader=3)
        assert await cluster.nodes[3].read_all() == ["v0", "v1", "v2", "v3", "w4"]

    scenario(test)


class FailingTier(FakeTier):
    """Fails for a while, and notes when it was asked."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times
        self.asked_at: list[float] = []

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> Any:
        self.asked_at.append(asyncio.get_running_loop().time())
        self.left -= 1
        if self.left >= 0:
            raise StorageError("the store does not answer")
        return await super().fetch_aux_state(partition, leader_epoch, offset, exact=exact)


def test_a_tier_that_fails_is_asked_less_and_less_often() -> None:
    async def main() -> None:
        tier = FailingTier(6)
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        await fill_and_archive(cluster, tier)
        cluster.cut.clear()
        await asyncio.sleep(80)
        assert cluster.nodes[3].hosted().log.log_end_offset == 3
        pauses = [
            round(later - one) for one, later in zip(tier.asked_at, tier.asked_at[1:], strict=False)
        ]
        assert pauses == [1, 2, 4, 8, 16, 30]
        await cluster.stop()

    virtual_time.run(main())


async def fill_and_archive(cluster: Cluster, tier: FakeTier) -> None:
    """Three records, of which the leader has the last one on its disk; broker 3 has none."""
    cluster.create_topic(
        remote_storage_enable="true", local_retention_bytes="1", retention_bytes="100000000"
    )
    cluster.cut.add((3, 1))
    cluster.change(isr=(1, 2))
    await produce_segments(cluster, "v0", "v1")
    await cluster.nodes[1].produce("v2")
    tier.archive(cluster.nodes[1].hosted().log, cluster.nodes[1].clock.wall_ms())


def test_a_bootstrap_whose_leader_changed_meanwhile_changes_nothing() -> None:
    class SlowTier(FakeTier):
        async def fetch_aux_state(self, *args: Any, **how: Any) -> Any:
            await asyncio.sleep(5)
            return await super().fetch_aux_state(*args, **how)

    async def main() -> None:
        tier = SlowTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        await fill_and_archive(cluster, tier)
        cluster.cut.clear()
        await asyncio.sleep(2)
        log = cluster.nodes[3].hosted().log
        before = log.durability.truncations
        cluster.change(leader=2)
        await asyncio.sleep(4)
        assert log.durability.truncations == before
        await cluster.settle()
        assert await cluster.nodes[2].read_all() == ["v0", "v1", "v2"]
        await cluster.stop()

    virtual_time.run(main())


def test_a_directory_that_fails_during_the_bootstrap_gets_no_log_from_it() -> None:
    class SlowTier(FakeTier):
        async def fetch_aux_state(self, *args: Any, **how: Any) -> Any:
            await asyncio.sleep(5)
            return await super().fetch_aux_state(*args, **how)

    async def main() -> None:
        tier = SlowTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        await fill_and_archive(cluster, tier)
        cluster.cut.clear()
        await asyncio.sleep(2)
        hosted = cluster.nodes[3].hosted()
        cluster.nodes[3].hosting._offline(hosted, StorageError("the disk is gone"))
        before = hosted.log.durability.truncations
        await asyncio.sleep(10)
        assert hosted.log.durability.truncations == before
        await cluster.stop()

    virtual_time.run(main())


def test_the_log_start_that_moves_meanwhile_is_taken_over() -> None:
    class MovingTier(FakeTier):
        log: Log | None = None

        async def fetch_aux_state(self, *args: Any, **how: Any) -> Any:
            state = await super().fetch_aux_state(*args, **how)
            if self.log is not None:
                self.log.increment_log_start_offset(2)  # below it nothing is left in the tier
            return state

    async def main() -> None:
        tier = MovingTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        await fill_and_archive(cluster, tier)
        tier.log = cluster.nodes[1].hosted().log
        cluster.cut.clear()
        await cluster.settle()
        await cluster.nodes[1].produce("v3")
        await cluster.settle()
        follower = cluster.nodes[3].hosted().log
        assert follower.log_start_offset == 2
        assert follower.epochs.entries() == tier.log.epochs.entries()
        await cluster.stop()

    virtual_time.run(main())


def elect_uncleanly(cluster: Cluster, leader: int) -> None:
    record = records_pb.PartitionChangeRecord(
        partition_id=0,
        topic_id=cluster.topic_id.bytes,
        leader=leader,
        leader_recovery_state=1,
    )
    record.isr.ids.append(leader)
    cluster.publish(records_pb.MetadataRecord(partition_change=record))


def test_an_empty_leader_after_an_unclean_election_is_restored_from_the_tier() -> None:
    """All others lost their disks: the tier is the partition's only copy."""

    async def test(cluster: Cluster, tier: FakeTier) -> None:
        cluster.cut.add((3, 1))
        cluster.fence(3)
        cluster.change(isr=(1, 2))
        await produce_segments(cluster, "v0", "v1", "v2")
        await cluster.nodes[1].produce("lost")
        tier.archive(cluster.nodes[1].hosted().log, cluster.nodes[1].clock.wall_ms())
        await cluster.stop(1, 2)
        cluster.fence(3, False)
        tier.failing = 2
        elect_uncleanly(cluster, 3)
        node = cluster.nodes[3]
        refused = await node.produce("too early", acks=1)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert tier.leaders.get(node.hosted().core.identity) != cluster.partition.leader_epoch
        await asyncio.sleep(5)
        log = node.hosted().log
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)
        assert log.epochs.entries() == ((0, 0), (1, 3))
        assert tier.leaders[node.hosted().core.identity] == 1
        assert (await node.produce("w3")).base_offset == 3
        assert await node.read_all() == ["v0", "v1", "v2", "w3"]

    scenario(test)


def test_an_empty_leader_begins_at_0_if_the_tier_has_nothing() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        elect_uncleanly(cluster, 2)
        await asyncio.sleep(1)
        assert (await cluster.nodes[2].produce("first", acks=1)).base_offset == 0

    scenario(test)


def test_a_restore_that_the_next_election_overtakes_changes_nothing() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        tier.failing = 1 << 30
        elect_uncleanly(cluster, 2)
        await asyncio.sleep(3)
        cluster.change(leader=1, isr=(1, 2, 3))
        tier.failing = 0
        await asyncio.sleep(1)
        await cluster.nodes[1].produce("v0")
        await cluster.settle()
        assert cluster.nodes[2].hosted().log.log_end_offset == 1
        assert not cluster.nodes[2].hosted().core.restoring

    scenario(test)


# --- KIP-1023 ---------------------------------------------------------------------------------


def enable_last_tiered_offset(cluster: Cluster) -> None:
    setting = records_pb.ConfigRecord(
        resource_type=4,
        resource_name="",
        name="follower.fetch.last.tiered.offset.enable",
        value="true",
    )
    cluster.publish(records_pb.MetadataRecord(config=setting))


def test_an_empty_follower_starts_behind_the_last_tiered_offset_if_it_may() -> None:
    async def local_start(enabled: bool, highest: int) -> int:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        if enabled:
            enable_last_tiered_offset(cluster)
        await fill_and_archive(cluster, tier)
        node = cluster.nodes[1]
        node.hosted().log.roll(node.clock.wall_ms())
        await node.produce("v3")
        tier.epochs = node.hosted().log.epochs.entries()
        node.hosted().log.highest_remote_offset = highest
        cluster.cut.clear()
        await cluster.settle()
        log = cluster.nodes[3].hosted().log
        assert log.log_start_offset == 0
        assert log.epochs.entries() == node.hosted().log.epochs.entries()
        await cluster.stop()
        return log.local_log_start_offset

    assert virtual_time.run(local_start(enabled=False, highest=2)) == 2
    assert virtual_time.run(local_start(enabled=True, highest=2)) == 3
    assert virtual_time.run(local_start(enabled=True, highest=1)) == 2


class FakeLeader:
    """Answers of a leader: offsets by special value, and the end of each epoch."""

    def __init__(self, ends: dict[int, int], **offsets: tuple[int, int]) -> None:
        self._offsets = {OffsetSpec[name.upper()]: found for name, found in offsets.items()}
        self._ends = ends

    async def list_offset(self, request: Any, timeout_ms: int) -> Any:
        offset, epoch = self._offsets[OffsetSpec(request.partitions[0].timestamp)]
        return SimpleNamespace(offset=offset, leader_epoch=epoch)

    async def epoch_end(self, request: Any, timeout_ms: int) -> Any:
        known = max(e for e in self._ends if e <= request.partitions[0].leader_epoch)
        return SimpleNamespace(leader_epoch=known, end_offset=self._ends[known])


class NotingTier:
    """The remote segment with the offset before goes on to `end`, in epoch 0."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[tuple[int, int, bool]] = []

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> Any:
        self.asked.append((leader_epoch, offset, exact))
        return SimpleNamespace(
            epochs=((0, 0),), producer_snapshot=None, start_offset=offset if exact else self.end
        )


def run(leader: FakeLeader, tier: NotingTier, last_tiered: bool = False) -> Log:
    """Bootstraps broker 3 of a cluster whose other links are cut."""
    found: list[Log] = []

    async def main() -> None:
        cluster = Cluster(FakeTier())
        cluster.start(3)
        cluster.create_topic(remote_storage_enable="true", retention_bytes="100000000")
        hosted = cluster.nodes[3].hosted()
        bootstrap = TierBootstrap(tier, 1000, lambda: last_tiered)
        client: Any = leader
        await bootstrap.run(
            client,
            hosted,
            0,
            is_current=lambda: True,
            now_ms=lambda: 1,
            cut=lambda steps: follower_log.carry_out(hosted, steps, None, lambda: True),
        )
        found.append(hosted.log)
        await cluster.stop()

    virtual_time.run(main())
    return found[0]


def test_a_remote_segment_that_goes_on_in_another_lineage_is_left_where_histories_part() -> None:
    """Otherwise the follower would begin behind the point, be cut below its start, and so on."""
    tier = NotingTier(end=40)
    leader = FakeLeader({0: 30, 2: 90}, earliest_local=(30, 2), earliest=(0, 0))
    assert run(leader, tier).log_end_offset == 30
    assert tier.asked == [(0, 30, False), (0, 30, True)]


def test_a_remote_segment_of_the_leaders_lineage_is_taken_whole() -> None:
    tier = NotingTier(end=40)
    leader = FakeLeader({0: 60, 2: 90}, earliest_local=(30, 0), earliest=(5, 0))
    log = run(leader, tier)
    assert (log.log_start_offset, log.log_end_offset) == (5, 40)
    assert log.epochs.entries() == ((0, 5),)
    assert tier.asked == [(0, 30, False)]


def test_a_leader_that_does_not_know_what_is_in_the_tier_is_asked_again() -> None:
    offsets = {"earliest_pending_upload": (-1, -1), "earliest": (0, 0)}
    with pytest.raises(OffsetNotAvailableError):
        run(FakeLeader({0: 60}, earliest_local=(30, 0), **offsets), NotingTier(30), True)
    log = run(FakeLeader({0: 60}, earliest_local=(0, 0), **offsets), NotingTier(30), True)
    assert log.log_end_offset == 0


def test_what_left_the_log_of_the_leader_is_no_place_to_start() -> None:
    leader = FakeLeader(
        {0: 60}, earliest_pending_upload=(20, 0), earliest_local=(50, 0), earliest=(50, 0)
    )
    log = run(leader, NotingTier(20), True)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


def test_the_scenario_of_the_tier_is_still_the_same() -> None:
    """With the setting a follower that is not empty goes on as before."""

    async def test(cluster: Cluster, tier: FakeTier) -> None:
        enable_last_tiered_offset(cluster)
        cluster.cut.clear()
        await cluster.settle()
        assert cluster.nodes[3].hosted().log.local_log_start_offset == 5
        await cluster.nodes[1].produce(raw=batch("more"))
        await cluster.settle()

    tiered_scenario(test)
