"""The first batch of a transaction waits for its coordinator, and for nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.runtime.batches import TransactionalProducer
from node.serving.request_memory import RequestMemory
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tidemark import wire
from tidemark.errors import CoordinatorNotAvailableError, ErrorCode, ProducerFencedError
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2


class FakeVerifier:
    """Answers when the test says so."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[asyncio.Future[None]] = []

    def is_open(self, partition: TopicPartition, producer: TransactionalProducer) -> bool:
        known = self.node.hosted().log.producers.producers.get(producer.producer_id)
        return known is not None and known.current_txn_first_offset is not None

    def add(
        self, transactional_id: str, producer: TransactionalProducer, partition: TopicPartition
    ) -> asyncio.Future[None]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


Scenario = Callable[[Node, FakeVerifier], Awaitable[None]]


def told(scenario: Scenario, replicas: tuple[int, ...] = (1,)) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.start(1)
        cluster.create_topic(replicas=replicas)
        await asyncio.sleep(1)
        node = cluster.nodes[1]
        verifier = FakeVerifier(node)
        node.handlers.produce._verifier = verifier
        await scenario(node, verifier)
        await cluster.stop()

    virtual_time.run(main())


def request(*values: str, sequence: int = 0, timeout_ms: int = 5_000) -> bytes:
    records = batch(
        *values, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    return wire.encode_produce_request(
        wire.ProduceRequest(-1, timeout_ms, [wire.PartitionProduceData(TOPIC, 0, records)], "t")
    )


class Context:
    """A call without quotas and metadata."""

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()


def produce(node: Node, payload: bytes) -> asyncio.Task[bytes]:
    return asyncio.ensure_future(node.service.produce(payload, Context()))


def outcome(answer: bytes) -> tuple[int, int]:
    (part,) = log_pb2.ProduceResponse.FromString(answer).responses
    return part.error_code, part.base_offset


def test_the_first_batch_waits_and_the_next_ones_do_not() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        first = produce(node, request("a", "b"))
        await asyncio.sleep(1)
        assert node.hosted().log.log_end_offset == 0
        assert not first.done()
        other = await node.produce("of somebody else")
        assert other.base_offset == 0
        verifier.asked[0].set_result(None)
        assert outcome(await first) == (0, 1)
        assert outcome(await produce(node, request("c", sequence=2))) == (0, 3)
        assert len(verifier.asked) == 1

    told(scenario)


def test_batches_that_wait_together_are_appended_in_their_order() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        first, second = produce(node, request("a")), produce(node, request("b", sequence=1))
        await asyncio.sleep(1)
        for asked in verifier.asked:
            asked.set_result(None)
        assert outcome(await first) == (0, 0)
        assert outcome(await second) == (0, 1)

    told(scenario)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProducerFencedError("over"), ErrorCode.PRODUCER_FENCED),
        (CoordinatorNotAvailableError("moves"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (RuntimeError("nobody foresaw"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_not_added_is_not_appended(error: Exception, code: ErrorCode) -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        answer = produce(node, request("a"))
        await asyncio.sleep(0.1)
        verifier.asked[0].set_exception(error)
        assert outcome(await answer) == (code, -1)
        assert node.hosted().log.log_end_offset == 0

    told(scenario)


def test_a_batch_whose_request_timed_out_is_not_appended_later() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        answer = await produce(node, request("a", timeout_ms=500))
        assert outcome(answer) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        (part,) = log_pb2.ProduceResponse.FromString(answer).responses
        assert "nothing was appended" in part.error_message
        verifier.asked[0].set_result(None)
        await asyncio.sleep(1)
        assert node.hosted().log.log_end_offset == 0

    told(scenario)


def test_a_batch_that_was_added_still_waits_for_its_replicas() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        answer = produce(node, request("a", timeout_ms=5_000))
        await asyncio.sleep(0.1)
        verifier.asked[0].set_result(None)
        await asyncio.sleep(1)
        assert node.hosted().log.log_end_offset == 1
        assert not answer.done(), "broker 2 does not have it"
        assert outcome(await answer) == (ErrorCode.REQUEST_TIMED_OUT, -1)

    told(scenario, replicas=(1, 2))


def test_a_batch_that_waits_for_a_coordinator_counts_as_memory() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        payload = request("a" * 100)
        memory = node.service._memory = RequestMemory(10 * len(payload))
        answer = node.service._begin_produce(payload, Context(), kept=False)
        assert isinstance(answer, asyncio.Future)
        await asyncio.sleep(0.1)
        assert memory.used_bytes == len(payload)
        verifier.asked[0].set_result(None)
        assert outcome(await answer) == (0, 0)
        await asyncio.sleep(0)
        assert memory.used_bytes == 0

    told(scenario)


def test_a_leader_that_resigned_meanwhile_appends_nothing() -> None:
    async def scenario(node: Node, verifier: FakeVerifier) -> None:
        answer = produce(node, request("a"))
        await asyncio.sleep(0.1)
        log = node.hosted().log
        node.partitions.remove(TopicPartition(TOPIC, 0))
        verifier.asked[0].set_result(None)
        assert outcome(await answer)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert log.log_end_offset == 0

    told(scenario)
