"""Fetches with partitions in the tier: what each waits for, and what a slow or broken store holds
back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from commitlog.log.log import Log
from node.serving.fetch_session import FetchPartition, SessionlessFetch
from node.serving.fetching import FetchParams
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, batch, values_of
from tests.node.fakes import WALL_START_MS
from tests.node.replication.test_tier import FakeTier
from tidemark.errors import CorruptMessageError, ErrorCode
from tidemark.types import TopicIdPartition
from tidemark.v1 import metadata_pb2 as records_pb
from tidemark.wire import FetchPartitionData, PartitionProduceData

LARGE = 1 << 20
HOT = 0


class Store(FakeTier):
    """A store of one batch per offset, whose reads of some partitions hang or raise."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.hanging: dict[int, asyncio.Event] = {}
        self.errors: dict[int, Exception] = {}
        self.under_way = 0
        self.most_under_way = 0

    def hang(self, *partitions: int) -> None:
        self.hanging |= {partition: asyncio.Event() for partition in partitions}

    async def read(
        self, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
    ) -> bytes:
        number = partition.partition
        self.reads.append((number, offset))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if number in self.hanging:
                await self.hanging[number].wait()
            await asyncio.sleep(self.read_time_s)
        finally:
            self.under_way -= 1
        if number in self.errors:
            raise self.errors[number]
        return next(raw for first, _, _, raw in self.batches if first == offset)


async def _tiered(cluster: Cluster, tier: Store, cold: int, records: int) -> None:
    cluster.create_topic(replicas=(1,), remote_storage_enable="true", local_retention_bytes="1")
    node = cluster.nodes[1]
    for number in range(1, cold + 1):
        cluster.publish(
            records_pb.MetadataRecord(
                partition=records_pb.PartitionRecord(
                    partition_id=number,
                    topic_id=cluster.topic_id.bytes,
                    replicas=(1,),
                    isr=(1,),
                    leader=1,
                )
            )
        )
        log = node.hosted(number).log
        for value in range(records):
            await produce(cluster, number, f"cold{value}")
            log.roll(node.clock.wall_ms())
        await produce(cluster, number, "local")
        tier.archive(log, node.clock.wall_ms())
        assert (log.log_start_offset, log.local_log_start_offset) == (0, records)
    await produce(cluster, HOT, "hot")


async def produce(cluster: Cluster, partition: int, value: str) -> None:
    data = PartitionProduceData(TOPIC, partition, batch(value, timestamp_ms=WALL_START_MS))
    (result,) = await cluster.nodes[1].handlers.produce.produce(1, 1_000, [data])
    assert result.error_code == 0


def scenario(
    test: Callable[[Cluster, Store], Awaitable[None]], cold: int = 1, records: int = 2
) -> None:
    async def main() -> None:
        tier = Store()
        cluster = Cluster(tier)
        cluster.start(1)
        await _tiered(cluster, tier, cold, records)
        await test(cluster, tier)
        node = cluster.nodes[1]
        await cluster.stop()
        assert node.fatal == []

    virtual_time.run(main())


async def fetch(
    cluster: Cluster, *positions: tuple[int, int], max_wait_ms: int = 500, max_bytes: int = LARGE
) -> list[FetchPartitionData]:
    """Fetches (partition, offset) each, as a consumer."""
    wanted = [FetchPartition(TOPIC, number, offset, LARGE) for number, offset in positions]
    params = FetchParams(max_wait_ms, 1, max_bytes)
    handler = cluster.nodes[1].handlers.fetch
    return await handler.fetch(params, SessionlessFetch(wanted))


def values(answers: Sequence[FetchPartitionData]) -> list[list[str]]:
    return [values_of(answer.payload) for answer in answers]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_hot_partition_is_answered_at_once_beside_a_cold_one_whose_store_hangs() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        begun = now()
        assert values(await fetch(cluster, (1, 0), (HOT, 0))) == [[], ["hot"]]
        assert now() == begun
        tier.hanging[1].set()
        assert values(await fetch(cluster, (1, 0), (HOT, 1))) == [["cold0"], []]
        assert now() - begun < 0.1
        assert tier.reads == [(1, 0)]

    scenario(test)


def test_a_fetch_of_a_hanging_store_waits_its_own_time_and_no_longer() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        begun = now()
        assert values(await fetch(cluster, (1, 0), max_wait_ms=200)) == [[]]
        assert 0.2 <= now() - begun < 0.21
        assert values(await fetch(cluster, (1, 0), max_wait_ms=0)) == [[]]
        assert now() - begun < 0.21

    scenario(test)


def test_local_data_and_a_finished_read_each_end_the_wait() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1, 2)
        waiting = asyncio.ensure_future(fetch(cluster, (1, 0), (2, 0), (HOT, 1)))
        await asyncio.sleep(0.1)
        await produce(cluster, HOT, "hotter")
        begun = now()
        assert values(await waiting) == [[], [], ["hotter"]]
        waiting = asyncio.ensure_future(fetch(cluster, (1, 0), (2, 0), (HOT, 2)))
        await asyncio.sleep(0.1)
        tier.hanging[2].set()
        assert values(await waiting) == [[], ["cold0"], []]
        assert now() - begun < 0.2
        assert tier.reads == [(1, 0), (2, 0)]

    scenario(test, cold=2)


def test_a_cancelled_fetch_leaves_its_read_to_the_next_one() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        waiting = asyncio.ensure_future(fetch(cluster, (1, 0)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
        tier.hanging[1].set()
        assert values(await fetch(cluster, (1, 0))) == [["cold0"]]
        assert tier.reads == [(1, 0)]

    scenario(test)


def test_an_unforeseen_error_fails_its_partition_alone_and_once() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.errors[1] = ZeroDivisionError("a bug of a plug-in")
        tier.hang(2)
        bad, good = await fetch(cluster, (1, 0), (2, 0))
        assert bad.error_code == ErrorCode.REPLICA_NOT_AVAILABLE  # retriable
        assert "a bug of a plug-in" in bad.error_message
        assert (good.error_code, good.payload) == (0, b"")
        tier.hanging[2].set()
        tier.errors.clear()
        await asyncio.sleep(0.1)
        assert values(await fetch(cluster, (1, 0), (2, 0)))[1] == ["cold0"]
        assert values(await fetch(cluster, (1, 0)))[0] == ["cold0"]

    scenario(test, cold=2)


def test_a_hundred_readers_of_a_slow_store_are_all_served() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.read_time_s = 0.9  # longer than a fetch waits

        async def consume(offset: int) -> None:
            while not values(await fetch(cluster, (1, offset)))[0]:
                pass

        begun = now()
        await asyncio.gather(*(consume(offset) for offset in range(100)))
        assert now() - begun < 5
        assert len(tier.reads) == 100
        assert tier.most_under_way <= 64

    scenario(test, records=100)


def test_many_readers_of_one_partition_do_not_keep_another_from_its_turn() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.read_time_s = 1
        many = [(1, offset) for offset in range(200)]
        await asyncio.gather(*(fetch(cluster, one, max_wait_ms=0) for one in many))
        await fetch(cluster, (2, 0), max_wait_ms=0)
        await asyncio.sleep(1.5)
        assert (2, 0) in tier.reads
        assert len(tier.reads) < 140

    scenario(test, cold=2, records=200)


def test_a_read_that_nobody_asks_for_any_more_does_not_begin() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        for offset in range(70):
            await fetch(cluster, (1, offset), max_wait_ms=0)
        await asyncio.sleep(31)
        await fetch(cluster, (1, 65), max_wait_ms=0)
        tier.hanging[1].set()
        await asyncio.sleep(1)
        assert [offset for _, offset in tier.reads] == [*range(32), 65]

    scenario(test, records=70)


def test_a_hanging_partition_leaves_slots_to_others_however_many_read_it() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1, 2)
        for partition in (1, 2):
            for offset in range(70):
                await fetch(cluster, (partition, offset), max_wait_ms=0)
        begun = now()
        assert values(await fetch(cluster, (3, 0))) == [["cold0"]]
        assert now() - begun < 0.1
        assert tier.most_under_way < 64

    scenario(test, cold=3, records=70)


def test_above_the_quota_a_cold_read_waits_without_an_error_and_local_data_is_served() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.throttle_s = 3.0
        begun = now()
        cold, hot = await fetch(cluster, (1, 0), (HOT, 0))
        assert (cold.error_code, cold.payload, values([hot])) == (0, b"", [["hot"]])
        assert now() == begun
        (cold,) = await fetch(cluster, (1, 0), max_wait_ms=60_000)
        assert (cold.error_code, cold.payload) == (0, b"")
        assert 0.5 <= now() - begun < 0.6  # remote.fetch.max.wait.ms
        assert tier.reads == []
        tier.throttle_s = 0.0
        await fetch(cluster, (1, 0), max_wait_ms=0)
        await asyncio.sleep(0.1)
        tier.throttle_s = 3.0
        assert values(await fetch(cluster, (1, 0))) == [["cold0"]]  # it was read before

    scenario(test)


def test_beyond_the_queue_a_fetch_is_throttled_and_its_retry_succeeds() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        cluster.nodes[1].reads.waiting_max = 4
        tier.hang(*range(1, 8))
        for partition, held in enumerate((32, 16, 8, 4, 2, 1, 1), 1):  # half of what is left
            for offset in range(held):
                await fetch(cluster, (partition, offset), max_wait_ms=0)
        await asyncio.sleep(0)
        assert tier.most_under_way == 64
        answers = [
            (await fetch(cluster, (1, offset), max_wait_ms=0))[0].error_code for offset in range(70)
        ]
        assert answers == [0] * 36 + [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 34
        (other,) = await fetch(cluster, (8, 0), max_wait_ms=0)
        assert other.error_code == 0  # takes the place of the newest of the others
        for hanging in tier.hanging.values():
            hanging.set()
        assert values(await fetch(cluster, (8, 0))) == [["cold0"]]
        assert values(await fetch(cluster, (1, 69))) == [["cold69"]]

    scenario(test, cold=8, records=70)


def test_what_is_read_for_another_leader_epoch_is_not_served() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        await fetch(cluster, (1, 0), max_wait_ms=0)
        record = records_pb.PartitionChangeRecord(
            partition_id=1, topic_id=cluster.topic_id.bytes, leader=1
        )
        cluster.publish(records_pb.MetadataRecord(partition_change=record))
        tier.hanging[1].set()
        assert values(await fetch(cluster, (1, 0))) == [["cold0"]]
        assert tier.reads == [(1, 0), (1, 0)]

    scenario(test)


def test_an_outcome_that_nobody_took_in_time_is_not_served_later() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        tier.hang(1)
        tier.errors[1] = CorruptMessageError("damaged")
        assert values(await fetch(cluster, (1, 0), max_wait_ms=200)) == [[]]
        tier.hanging[1].set()
        await asyncio.sleep(31)  # nobody fetched from this offset meanwhile
        del tier.errors[1]
        assert values(await fetch(cluster, (1, 0))) == [["cold0"]]

    scenario(test)


def test_a_finished_read_that_has_no_room_is_kept_for_the_next_fetch() -> None:
    async def test(cluster: Cluster, tier: Store) -> None:
        size = len(batch("hot"))
        await fetch(cluster, (1, 0), max_wait_ms=0)
        await asyncio.sleep(0.1)
        assert values(await fetch(cluster, (HOT, 0), (1, 0), max_bytes=size)) == [["hot"], []]
        assert values(await fetch(cluster, (1, 0), (HOT, 0), max_bytes=size)) == [["cold0"], []]
        assert tier.reads == [(1, 0)]

    scenario(test)
