"""The node and the tier (KIP-405): reads below the local log, followers that start above it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.types import AbortedTransaction, TimestampOffset
from node.serving.fetch_session import FetchingReplica
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, batch, values_of
from tidemark.errors import ErrorCode, OffsetOutOfRangeError
from tidemark.records import iter_batches
from tidemark.types import TopicIdPartition
from tidemark.v1 import log_pb2
from tidemark.v1 import metadata_pb2 as records_pb


class FakeTier:
    """An object store shared by all nodes; `archive` copies at once, unlike the copy task."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, bytes]] = []  # first, next, epoch, bytes
        self.epochs: tuple[tuple[int, int], ...] = ()
        self.asked: list[tuple[int, int]] = []
        self.stopped: list[tuple[TopicIdPartition, bool]] = []
        self.leaders: dict[TopicIdPartition, int] = {}
        self.read_time_s = 0.0
        self.throttle_s = 0.0
        self.read_calls = 0
        self.failing = 0
        self.nudges = self.switches = 0
        self.aborted: list[AbortedTransaction] = []

    def archive(self, log: Log, now_ms: int) -> None:
        """Copies all rolled segments to the tier; local retention then deletes them."""
        for segment in log.segments[:-1]:
            found = log.read(segment.base_offset, 1 << 30)
            for position, header in iter_batches(found.records):
                raw = bytes(found.records[position : position + header.size_bytes])
                entry = (header.base_offset, header.next_offset, header.partition_leader_epoch, raw)
                if entry not in self.batches:
                    self.batches.append(entry)
            log.highest_remote_offset = segment.next_offset - 1
        self.epochs = log.epochs.entries()
        delete_expired(log, now_ms)

    def on_leadership_change(
        self,
        leaders: Mapping[TopicIdPartition, tuple[Log, int]],
        followers: Mapping[TopicIdPartition, Log],
    ) -> None:
        self.leaders |= {partition: epoch for partition, (_, epoch) in leaders.items()}

    def fetch_throttle_s(self) -> float:
        return self.throttle_s

    def segment_copyable(self, partition: TopicIdPartition) -> None:
        self.nudges += 1

    def tiering_switched(self, partition: TopicIdPartition) -> None:
        self.switches += 1

    async def stop_partitions(
        self, partitions: Collection[TopicIdPartition], delete_remote: bool
    ) -> None:
        self.stopped += [(partition, delete_remote) for partition in partitions]

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> bytes:
        self.read_calls += 1
        await asyncio.sleep(self.read_time_s)
        found = b"".join(raw for _, end, _, raw in self.batches if end > offset)
        if not found:
            raise OffsetOutOfRangeError(f"offset {offset} is not in the tier")
        return found

    async def aborted_transactions(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        return [a for a in self.aborted if a.last_offset >= start_offset]

    async def offset_for_timestamp(
        self, partition: TopicIdPartition, log: Log, timestamp_ms: int
    ) -> TimestampOffset | None:
        for first, _, epoch, raw in self.batches:
            for _, header in iter_batches(raw):
                if header.max_timestamp_ms >= timestamp_ms and first < log.local_log_start_offset:
                    return TimestampOffset(header.max_timestamp_ms, first, epoch)
        return None

    async def latest_history(self, partition: TopicIdPartition) -> Any:
        if self.failing:
            self.failing -= 1
            raise OffsetOutOfRangeError("the tier does not answer yet")
        if not self.batches:
            return None
        end = max(end for _, end, _, _ in self.batches)
        epochs = [entry for entry in self.epochs if entry[1] < end]
        return SimpleNamespace(
            epochs=epochs, producer_snapshot=None, next_offset=end, log_start_offset=0
        )

    async def fetch_aux_state(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int, *, exact: bool = False
    ) -> Any:
        self.asked.append((leader_epoch, offset))
        if self.failing:
            self.failing -= 1
            raise OffsetOutOfRangeError("the tier does not have it yet")
        epochs = [entry for entry in self.epochs if entry[1] < offset]
        return SimpleNamespace(epochs=epochs, producer_snapshot=None, start_offset=offset)


async def tiered(cluster: Cluster, tier: FakeTier, leader: int = 1) -> None:
    """Offsets 0 to 5 in six segments, of which the leader keeps only the active one."""
    cluster.create_topic(
        remote_storage_enable="true", local_retention_bytes="1", retention_bytes="100000000"
    )
    cluster.cut |= {(3, 1)}
    cluster.change(isr=(1, 2))
    node = cluster.nodes[leader]
    for number in range(6):
        stamp = 1_000 * (number + 1)
        await node.produce(raw=batch(f"v{number}", timestamp_ms=stamp))
        if number < 5:
            node.hosted().log.roll(node.clock.wall_ms())
        if number == 2:
            cluster.change(leader=1)
            await cluster.settle((1, 2))
    tier.archive(node.hosted().log, node.clock.wall_ms())
    assert node.hosted().log.local_log_start_offset == 5
    assert node.hosted().log.log_start_offset == 0


def scenario(test: Callable[[Cluster, FakeTier], Awaitable[None]]) -> None:
    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1, 2, 3)
        await tiered(cluster, tier)
        await test(cluster, tier)
        running = list(cluster.nodes.values())
        await cluster.stop()
        assert [node.fatal for node in running] == [[] for _ in running]

    virtual_time.run(main())


def test_a_consumer_reads_below_the_local_log_from_the_tier() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        answer = await cluster.nodes[1].fetch(1, max_wait_ms=500)
        assert values_of(answer.payload)[0] == "v1"
        assert answer.log_start_offset == 0
        assert await cluster.nodes[1].read_all() == [f"v{n}" for n in range(6)]

    scenario(test)


def test_the_tier_is_nudged_when_a_rolled_segment_is_committed() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        await cluster.nodes[1].produce("after what retention rolled")
        before = tier.nudges
        await cluster.nodes[1].produce("in the active segment")
        assert tier.nudges == before
        cluster.nodes[1].hosted().log.roll(cluster.nodes[1].clock.wall_ms())
        await cluster.nodes[1].produce("in a new one")
        assert tier.nudges == before + 1

    scenario(test)


def test_only_a_tiered_replica_that_is_online_nudges_the_tier() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        node = cluster.nodes[1]

        async def nudges(rolled: str) -> int:
            before = tier.nudges
            node.hosted().log.roll(node.clock.wall_ms())
            await node.produce(rolled, acks=1)
            await asyncio.sleep(1)
            return tier.nudges - before

        assert await nudges("tiered") == 1
        setting = records_pb.ConfigRecord(
            resource_type=2, resource_name=TOPIC, name="remote.storage.enable", value="false"
        )
        cluster.publish(records_pb.MetadataRecord(config=setting))
        assert await nudges("no longer tiered") == 0
        setting.value = "true"
        cluster.publish(records_pb.MetadataRecord(config=setting))
        assert await nudges("tiered again") == 1
        before = tier.nudges
        node.hosted().log.roll(node.clock.wall_ms())
        node.hosted().fail("its disk is gone")
        node.hosted().committed()
        assert tier.nudges == before

    scenario(test)


def test_a_slow_store_answers_late_but_its_read_is_done_once() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        tier.read_time_s = 40
        answer = await cluster.nodes[1].fetch(1, max_wait_ms=500)
        assert (answer.error_code, len(answer.payload)) == (ErrorCode.NONE, 0)
        while not answer.payload:
            answer = await cluster.nodes[1].fetch(1, max_wait_ms=500)
        assert values_of(answer.payload)[0] == "v1"
        assert asyncio.get_running_loop().time() < 45
        assert tier.read_calls == 1

    scenario(test)


def test_a_follower_is_sent_to_the_tier() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        epoch = cluster.partition.leader_epoch
        answer = await cluster.nodes[1].fetch(
            0, replica=FetchingReplica(3, 99), current_leader_epoch=epoch
        )
        assert answer.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE

    scenario(test)


def test_a_new_follower_builds_its_epochs_from_the_tier_and_fetches_on() -> None:
    """KIP-405, follower scenario 1; the tier lags at first."""

    async def test(cluster: Cluster, tier: FakeTier) -> None:
        tier.failing = 2
        cluster.cut.clear()
        await cluster.settle()
        follower, leader = cluster.nodes[3].hosted().log, cluster.nodes[1].hosted().log
        assert (follower.local_log_start_offset, follower.log_start_offset) == (5, 0)
        assert follower.epochs.entries() == leader.epochs.entries()
        assert set(tier.asked) == {(1, 5)}  # the epoch of offset 4 on the leader
        await asyncio.sleep(2)
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


def test_a_follower_far_behind_drops_its_log_and_begins_above_the_tier() -> None:
    """KIP-405, follower scenario 2: it becomes a leader that also serves the tier's part."""

    async def test(cluster: Cluster, tier: FakeTier) -> None:
        assert cluster.nodes[3].hosted().log.log_end_offset < 5
        cluster.cut.clear()
        await cluster.settle()
        await asyncio.sleep(2)
        cluster.change(leader=3)
        assert await cluster.nodes[3].read_all() == [f"v{n}" for n in range(6)]
        assert tier.leaders[cluster.nodes[3].hosted().core.identity] == 2

    scenario(test)


def test_timestamps_and_special_offsets_cover_both_tiers() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        request = log_pb2.ListOffsetsRequest()
        for timestamp in (-1, -2, -4, -5, 2_500, 6_000, 7_000):
            request.partitions.add(
                topic="flights", partition_index=0, current_leader_epoch=-1, timestamp=timestamp
            )
        answers = (await cluster.nodes[1].service.list_offsets(request, None)).partitions
        assert [a.offset for a in answers] == [6, 0, 5, 4, 2, 5, -1]

    scenario(test)


def test_a_node_without_a_tier_says_so_and_takes_nothing_for_out_of_range() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        node, epoch = cluster.nodes[1], cluster.partition.leader_epoch
        node.reads._reader = node.handlers.offsets._remote = None
        answer = await node.fetch(1)
        assert answer.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
        assert "remote.log.storage.system.enable" in answer.error_message
        assert answer.log_start_offset == 0
        follower = await node.fetch(1, replica=FetchingReplica(2, 99), current_leader_epoch=epoch)
        assert follower.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
        request = log_pb2.ListOffsetsRequest()
        for timestamp in (-2, 2_500):
            request.partitions.add(
                topic="flights", partition_index=0, current_leader_epoch=-1, timestamp=timestamp
            )
        answers = (await node.service.list_offsets(request, None)).partitions
        codes = [a.error_code for a in answers]
        assert codes == [ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE]
        assert node.hosted().log.log_start_offset == 0

    scenario(test)


def test_a_deleted_topic_leaves_the_tier_and_only_the_leader_deletes() -> None:
    async def test(cluster: Cluster, tier: FakeTier) -> None:
        cluster.delete_topic()
        await asyncio.sleep(1)
        assert sorted(deleted for _, deleted in tier.stopped) == [False, False, True]

    scenario(test)
