"""A virtual cluster with coordinators, and with leaders that keep the rules of transactions.

Calls of coordinators can be scripted to fail.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from coordinator.transactions.transaction import ProducerIdAndEpoch
from tests.client.fake_cluster import FakePartition
from tests.client.virtual_cluster import Make, VirtualCluster, scenario
from tests.coordinator.transactions.driver import Driver
from tidemark import records
from tidemark.client import AsyncProducer
from tidemark.client.transactions.core import TransactionState
from tidemark.errors import ApiError, ConcurrentTransactionsError, ErrorCode, code_of
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb

LOSE = "lose"  # the answer
HANG = "hang"
Fate = ErrorCode | str


class TransactionalPartition(FakePartition):
    """A leader that asks the coordinator before the first append of a transaction."""

    def __init__(self, leader: int, cluster: TransactionalCluster, name: TopicPartition) -> None:
        super().__init__(leader)
        self.cluster = cluster
        self.name = name
        self.open: dict[int, int] = {}
        self.waiting: dict[int, list[bytes | None]] = defaultdict(list)
        self.committed: list[bytes | None] = []
        self.stamps: list[tuple[int, int, int]] = []

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = records.read_header(batch)
        assert header.is_transactional
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        if self.open.get(producer.producer_id) != producer.producer_epoch:
            try:
                self.cluster.driver.add(
                    producer, self.name, transactional_id=self.cluster.transactional_id
                )
            except ApiError as error:
                return code_of(error), -1
        before = len(self.log)
        code, base = super().append(batch)
        if code == ErrorCode.NONE:
            self.open[producer.producer_id] = producer.producer_epoch
        if len(self.log) > before:
            self.stamps.append((header.producer_id, header.producer_epoch, header.base_sequence))
            values = [record.value for record in records.decode_batch(batch)]
            self.waiting[producer.producer_id] += values
        return code, base

    def end(self, producer_id: int, epoch: int, *, committed: bool) -> None:
        """Takes a marker."""
        if committed:
            self.committed += self.waiting[producer_id]
        self.waiting[producer_id] = []
        self.open.pop(producer_id, None)
        self.producers[producer_id] = (epoch, {})


class TransactionalCluster(VirtualCluster):
    """Node 1 coordinates, unless `coordinator` names another one. Markers are there at once, unless
    `keeps_markers`."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.driver = Driver()
        self.transactional_id = "x"
        self.coordinator = 1
        self.keeps_markers = False
        self.fates: dict[str, deque[Fate]] = defaultdict(deque)
        self.ends: list[pb.EndTxnRequest] = []
        self.offsets: list[group_pb2.TxnOffsetCommitRequest] = []
        self.services = {
            "FindCoordinator": self._find,
            "EndTxn": self._end,
            "InitProducerId": self._init,
            "TxnOffsetCommit": self._commit_offsets,
        }

    def create_topic(self, name: str, partitions: int = 1) -> list[TopicPartition]:
        made = super().create_topic(name, partitions)
        for partition in made:
            leader = self.partitions[partition].leader
            self.partitions[partition] = TransactionalPartition(leader, self, partition)
        return made

    def committed(self) -> list[bytes | None]:
        """Values that read_committed shows, by partition."""
        return [v for _, p in sorted(self.partitions.items()) for v in p.committed]  # type: ignore[attr-defined]

    def stamps(self) -> list[tuple[int, int, int]]:
        return [s for _, p in sorted(self.partitions.items()) for s in p.stamps]  # type: ignore[attr-defined]

    def tell(self) -> None:
        """Writes the markers that are pending."""
        for markers in self.driver.shard.pending_markers():
            for partition in markers.partitions:
                state: Any = self.partitions[partition]
                state.end(markers.producer_id, markers.producer_epoch, committed=markers.committed)
            now = self.driver.now
            self.driver.apply(self.driver.shard.markers_written(markers, markers.partitions, now))

    async def _find(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = group_pb2.FindCoordinatorRequest.FromString(request)
        answer = group_pb2.FindCoordinatorResponse()
        for key in asked.coordinator_keys:
            is_transaction = asked.key_type == group_pb2.TRANSACTION
            assert is_transaction == (key == self.transactional_id)
            at = self.coordinator
            answer.coordinators.add(key=key, node_id=at, host="127.0.0.1", port=self.ports[at])
        return answer.SerializeToString()

    async def _answered(
        self, name: str, node_id: int, answer: Any, decide: Callable[[], None]
    ) -> bytes:
        """Fills the answer as the script says, or as `decide` does."""
        fate: Fate = self.fates[name].popleft() if self.fates[name] else ErrorCode.NONE
        if fate == HANG:
            await asyncio.sleep(10_000)
        if node_id != self.coordinator:
            fate = ErrorCode.NOT_COORDINATOR
        if isinstance(fate, ErrorCode) and fate != ErrorCode.NONE:
            answer.error_code, message = fate, "scripted"
            if hasattr(answer, "error_message"):
                answer.error_message = message
            return bytes(answer.SerializeToString())
        try:
            decide()
        except ApiError as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        if not self.keeps_markers:
            self.tell()
        if fate == LOSE:
            await asyncio.sleep(10_000)
        return bytes(answer.SerializeToString())

    async def _init(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = log_pb2.InitProducerIdRequest.FromString(request)
        assert asked.transactional_id == self.transactional_id
        answer = log_pb2.InitProducerIdResponse()

        def decide() -> None:
            shard, now = self.driver.shard, self.driver.now
            found = self.driver.apply(
                shard.init_producer_id(
                    asked.transactional_id,
                    asked.transaction_timeout_ms,
                    None,
                    self.driver.new_producer_id,
                    now,
                )
            )
            if found is None:
                raise ConcurrentTransactionsError
            answer.producer_id, answer.producer_epoch = found.producer_id, found.producer_epoch

        return await self._answered("InitProducerId", node_id, answer, decide)

    async def _end(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = pb.EndTxnRequest.FromString(request)
        self.ends.append(asked)
        answer = pb.EndTxnResponse()

        def decide() -> None:
            producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
            found = self.driver.end(
                producer, asked.committed, transactional_id=asked.transactional_id
            )
            answer.producer_id, answer.producer_epoch = found.producer_id, found.producer_epoch

        return await self._answered("EndTxn", node_id, answer, decide)

    async def _commit_offsets(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = group_pb2.TxnOffsetCommitRequest.FromString(request)
        answer = group_pb2.OffsetCommitResponse()

        def decide() -> None:
            producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
            self.driver.add(
                producer, TopicPartition("offsets", 0), transactional_id=asked.transactional_id
            )
            self.partitions.setdefault(
                TopicPartition("offsets", 0),
                TransactionalPartition(1, self, TopicPartition("offsets", 0)),
            )
            self.offsets.append(asked)

        return await self._answered("TxnOffsetCommit", node_id, answer, decide)


Play = Callable[[TransactionalCluster, AsyncProducer], Any]


def play(story: Play, *, partitions: int = 2, nodes: int = 1, **settings: Any) -> None:
    """Plays with a topic `t` and a transactional producer that is ready, in virtual time."""

    async def with_producer(cluster: TransactionalCluster, make: Make) -> None:
        chosen: dict[str, Any] = {
            "transactional_id": "x", "max_block_ms": 8_000, "request_timeout_ms": 1_000,
            "delivery_timeout_ms": 20_000,
        }  # fmt: skip
        producer = make(**(chosen | settings))
        await producer.init_transactions()
        await story(cluster, producer)
        producer._core.validate()
        await producer.close()

    scenario(with_producer, partitions=partitions, nodes=nodes, cluster_type=TransactionalCluster)


def state_of(producer: AsyncProducer) -> TransactionState:
    return producer.required_transactions().core.state


async def works(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
    """The producer can commit another transaction."""
    before = cluster.committed().count(b"works")
    async with producer.transaction():
        producer.send("t", b"works", partition=0)
    assert cluster.committed().count(b"works") == before + 1
