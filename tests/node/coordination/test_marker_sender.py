"""Outcomes are told until every partition has one, whatever its leader answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.records.transactions import TRANSACTION_RECORDS
from coordinator.runtime.now import Now
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.transactions.shard import TransactionSettings, TransactionShard
from coordinator.transactions.transaction import ProducerIdAndEpoch
from node.coordination import marker_sender
from node.coordination.marker_sender import MarkerSender
from node.coordination.verification import partitions_in
from tests import virtual_time
from tests.coordinator.runtime.test_runtime import FakeLog
from tidemark.errors import ConcurrentTransactionsError, ErrorCode, NetworkError
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
GONE = TopicPartition("gone", 0)
Answer = Callable[[TopicPartition], ErrorCode]


class Brokers:
    """Broker 1 leads t-0, broker 2 leads t-1."""

    def __init__(self) -> None:
        self.told: list[tuple[int, TopicPartition]] = []
        self.requests: list[pb.WriteTxnMarkersRequest] = []
        self.answer: Answer = lambda _: ErrorCode.NONE
        self.silent: set[int] = set()
        self.leaders: dict[int, int | None] = {0: 1, 1: 2}

    @property
    def image(self) -> Any:
        partitions = {n: SimpleNamespace(leader=leader) for n, leader in self.leaders.items()}
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions=partitions)})

    async def call(self, broker_id: int, rpc: Any, request: Any, timeout_ms: int) -> Any:
        self.requests.append(request)
        await asyncio.sleep(0.01)
        if broker_id in self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise NetworkError("silent")
        response = pb.WriteTxnMarkersResponse()
        for marker in request.markers:
            answered = response.markers.add()
            for partition in partitions_in(marker.topics):
                self.told.append((broker_id, partition))
                answered.topics.add(name=partition.topic).partitions.add(
                    partition_index=partition.partition, error_code=self.answer(partition)
                )
        return response


class Coordinator:
    """The runtime of one partition, with its sender."""

    def __init__(self, brokers: Brokers) -> None:
        self.fatal: list[BaseException] = []
        self.sender = MarkerSender(
            lambda: self.runtime, cast(Any, brokers), cast(Any, brokers), now, self.fatal.append
        )
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            "__transaction_state",
            TRANSACTION_RECORDS,
            lambda: TransactionShard(TransactionSettings()),
            now,
            5_000,
            self.sender.changed,
        )
        self.log = FakeLog()

    async def lead(self) -> None:
        self.runtime.leading(0, self.log)
        await asyncio.sleep(0.01)
        assert not self.runtime.is_loading

    async def write(self, decide: Callable[[TransactionShard], Any]) -> Any:
        return await self.runtime.write(0, decide)

    async def decided(self, transactional_id: str, *partitions: TopicPartition) -> None:
        """A transaction over the partitions that is committed."""
        producer = await self.write(
            lambda shard: shard.init_producer_id(transactional_id, 60_000, None, lambda: 7, now())
        )
        assert isinstance(producer, ProducerIdAndEpoch)
        await self.write(
            lambda shard: shard.add_partitions(transactional_id, producer, partitions, now())
        )
        await self.write(
            lambda shard: shard.end_txn(transactional_id, producer, True, lambda: 8, now())
        )

    def is_over(self, transactional_id: str) -> bool:
        return self.runtime.shard_of(0).pending_of(transactional_id) is None

    async def until_over(self, transactional_id: str) -> float:
        """Waits for the end; returns how long it took, in seconds."""
        begun = asyncio.get_running_loop().time()
        assert await self.sender.until_ended(transactional_id, 60)
        return asyncio.get_running_loop().time() - begun

    async def stop(self) -> None:
        self.runtime.stop()
        await self.sender.stop()
        assert not self.fatal


def now() -> Now:
    ms = round(asyncio.get_running_loop().time() * 1000)
    return Now(1_000_000 + ms, ms)


def told(scenario: Callable[[Coordinator, Brokers], Awaitable[None]]) -> None:
    async def main() -> None:
        brokers = Brokers()
        coordinator = Coordinator(brokers)
        await coordinator.lead()
        await scenario(coordinator, brokers)
        await coordinator.stop()

    virtual_time.run(main())


def test_each_leader_is_told_once_and_what_is_deleted_is_left_out() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        await coordinator.decided("one", A, B, GONE)
        await coordinator.until_over("one")
        await asyncio.sleep(5)
        assert sorted(brokers.told) == [(1, A), (2, B)]

    told(scenario)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_partition_that_refuses_is_told_again_and_no_other(code: ErrorCode) -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.answer = lambda partition: code if partition == B else ErrorCode.NONE
        await coordinator.decided("one", A, B)
        await asyncio.sleep(10)
        assert not coordinator.is_over("one")
        assert brokers.told.count((1, A)) == 1
        assert 10 < brokers.told.count((2, B)) < 20, "with pauses"
        brokers.answer = lambda _: ErrorCode.NONE
        assert await coordinator.until_over("one") < 1.5

    told(scenario)


def test_what_holds_up_an_end_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.answer = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        await coordinator.decided("one", A, B)
        await asyncio.sleep(60)
        brokers.answer = lambda _: ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(60)

    caplog.set_level(logging.INFO, "node.coordination.marker_sender")
    told(scenario)
    assert len(caplog.messages) == 4


def test_a_log_that_is_past_the_marker_needs_it_no_more() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.answer = lambda _: ErrorCode.INVALID_PRODUCER_EPOCH
        await coordinator.decided("one", A)
        await coordinator.until_over("one")

    told(scenario)


def test_the_next_leader_is_told_and_a_partition_without_one_waits() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.leaders[1] = None
        await coordinator.decided("one", A, B)
        await asyncio.sleep(5)
        assert brokers.told == [(1, A)]
        brokers.leaders[1] = 3
        assert await coordinator.until_over("one") < 1.5
        assert brokers.told == [(1, A), (3, B)]

    told(scenario)


def test_a_silent_broker_holds_up_its_own_transactions_alone() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.silent = {2}
        for number in range(20):
            await coordinator.decided(f"stuck {number}", B)
        await coordinator.decided("free", A)
        assert await coordinator.until_over("free") < 0.1
        brokers.silent.clear()
        for number in range(20):
            if not coordinator.is_over(f"stuck {number}"):
                await coordinator.until_over(f"stuck {number}")

    told(scenario)


def test_a_silent_broker_has_a_bounded_number_of_requests() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.silent = {2}
        for number in range(20):
            await coordinator.decided(f"stuck {number}", B)
            await asyncio.sleep(0.1)
        assert len(brokers.requests) == 5

    told(scenario)


def test_a_topic_made_anew_with_fewer_partitions_holds_up_nothing() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        del brokers.leaders[1]
        await coordinator.decided("one", A, B)
        await coordinator.until_over("one")
        assert brokers.told == [(1, A)]

    told(scenario)


def test_markers_that_come_together_go_in_few_requests() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        names = [f"t{number}" for number in range(200)]
        await asyncio.gather(*(coordinator.decided(name, A) for name in names))
        await asyncio.sleep(1)
        assert all(map(coordinator.is_over, names))
        assert len(brokers.told) == 200
        assert len(brokers.requests) <= 12

    told(scenario)


def test_a_request_has_as_many_markers_as_its_receiver_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by partition, as the receiver does: what is refused once is refused forever."""
    monkeypatch.setattr(marker_sender, "_MARKERS_MAX", 10)

    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.leaders = dict.fromkeys(range(12), 1)
        sizes = [3, 3, 3, 3, 12, 1, 9, 10, 1] * 3
        for number, size in enumerate(sizes):
            some = [TopicPartition("t", partition) for partition in range(size)]
            await coordinator.decided(f"t{number}", *some)
        await asyncio.sleep(5)
        assert len(brokers.told) == sum(sizes)
        asked = [
            [len(partitions_in(marker.topics)) for marker in request.markers]
            for request in brokers.requests
        ]
        assert all(sum(request) <= 10 or len(request) == 1 for request in asked)
        assert max(map(len, asked)) > 1

    told(scenario)


def test_the_next_coordinator_tells_what_the_log_has() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.leaders[1] = None
        await coordinator.decided("one", A, B)
        await asyncio.sleep(1)
        coordinator.runtime.resigned(0)
        await asyncio.sleep(5)
        assert not coordinator.sender._tasks, "the task of the earlier one has ended"
        brokers.told.clear()
        brokers.leaders[1] = 2
        await coordinator.lead()
        await coordinator.until_over("one")
        assert sorted(brokers.told) == [(1, A), (2, B)], "it does not know what was told before"

    told(scenario)


def test_an_error_that_nobody_foresaw_ends_no_transaction_and_no_broker() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        def broken(partition: TopicPartition) -> ErrorCode:
            raise RuntimeError("planted")

        brokers.answer = broken
        await coordinator.decided("one", A)
        await asyncio.sleep(3)
        brokers.answer = lambda _: ErrorCode.NONE
        await coordinator.until_over("one")

    told(scenario)


def test_a_wait_for_an_end_that_takes_too_long_leaves_nothing_behind() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.leaders[0] = None
        await coordinator.decided("one", A)
        with pytest.raises(ConcurrentTransactionsError):
            await coordinator.write(
                lambda shard: shard.init_producer_id("one", 60_000, None, lambda: 9, now())
            )
        assert not await coordinator.sender.until_ended("one", 1)
        assert not coordinator.sender._waiting

    told(scenario)


def test_what_hangs_for_minutes_costs_little() -> None:
    async def scenario(coordinator: Coordinator, brokers: Brokers) -> None:
        brokers.answer = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        await coordinator.decided("one", A)
        await asyncio.sleep(60)
        before = len(brokers.told)
        await asyncio.sleep(100)
        assert len(brokers.told) - before <= 20
        brokers.answer = lambda _: ErrorCode.NONE
        assert await coordinator.until_over("one") < 6

    told(scenario)
