"""Adds partitions to transactions before their leader appends the first batch (KIP-890).

The coordinator decides whether the producer may still write, and from then on knows that the
partition needs a marker. So no transaction is left open that nobody would end. A partition whose
log has a transaction of the producer's epoch open was added before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from coordinator.runtime.batches import TransactionalProducer
from node.coordination.internal_topics import CoordinatorTopic
from node.coordination.peers import BrokerPeers
from node.partition.registry import PartitionRegistry
from node.runtime.tasks import cancel_all
from tidemark.errors import (
    CoordinatorNotAvailableError,
    InvalidTxnStateError,
    NetworkError,
    TransactionAbortableError,
    raise_for,
)
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb
from tidemark.wire.rpcs import rpcs_of

MARKERS = pb.DESCRIPTOR.services_by_name["TransactionMarkers"]
ADD_PARTITIONS, WRITE_MARKERS = rpcs_of(MARKERS)
_TIMEOUT_MS = 5_000

_Transaction = tuple[str, TransactionalProducer]


class TransactionVerifier:
    """One per broker. Who asks for the same again while it is under way waits for the same answer,
    and in the order of the questions."""

    def __init__(
        self, partitions: PartitionRegistry, topic: CoordinatorTopic, peers: BrokerPeers
    ) -> None:
        self._partitions = partitions
        self._topic = topic
        self._peers = peers
        self._pending: dict[_Transaction, dict[TopicPartition, asyncio.Future[None]]] = {}
        self._collecting: dict[_Transaction, list[TopicPartition]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_open(self, partition: TopicPartition, producer: TransactionalProducer) -> bool:
        """Whether the log has a transaction of this producer and epoch open."""
        hosted = self._partitions.find(partition)
        known = None if hosted is None else hosted.log.producers.producers.get(producer.producer_id)
        return (
            known is not None
            and known.current_txn_first_offset is not None
            and known.producer_epoch == producer.producer_epoch
        )

    def add(
        self, transactional_id: str, producer: TransactionalProducer, partition: TopicPartition
    ) -> asyncio.Future[None]:
        """Ends when the partition is in the producer's transaction. Its error may be retriable
        (ConcurrentTransactionsError, CoordinatorNotAvailableError, ...), TransactionAbortableError,
        or fatal for the producer (ProducerFencedError, InvalidProducerIdMappingError)."""
        asked = self._pending.setdefault((transactional_id, producer), {})
        found = asked.get(partition)
        if found is None:
            loop = asyncio.get_running_loop()
            found = asked[partition] = loop.create_future()
            self._begin(transactional_id, producer, partition)
        return found

    def _begin(
        self, transactional_id: str, producer: TransactionalProducer, partition: TopicPartition
    ) -> None:
        """Asks soon: for all partitions of one request at once."""
        key = transactional_id, producer
        collecting = self._collecting.get(key)
        if collecting is not None:
            collecting.append(partition)
            return
        self._collecting[key] = [partition]
        task = asyncio.get_running_loop().create_task(
            self._ask(*key), name=f"add partitions to the transaction of {transactional_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, transactional_id: str, producer: TransactionalProducer) -> None:
        key = transactional_id, producer
        partitions = self._collecting.pop(key)
        problem: Exception = _stopping()
        is_added = False
        try:
            await self._add(transactional_id, producer, partitions)
            is_added = True
        except Exception as error:
            problem = error
        finally:
            asked = self._pending[key]
            for partition in partitions:
                _end(asked[partition], None if is_added else problem)
            # Batches are appended in the next turn. Who comes before that gets in line behind them.
            asyncio.get_running_loop().call_soon(self._forget, key, partitions)

    def _forget(self, key: _Transaction, partitions: list[TopicPartition]) -> None:
        asked = self._pending.get(key, {})
        for partition in partitions:
            asked.pop(partition, None)
        if not asked:
            self._pending.pop(key, None)

    async def _add(
        self,
        transactional_id: str,
        producer: TransactionalProducer,
        partitions: Iterable[TopicPartition],
    ) -> None:
        coordinator = self._topic.coordinator_of(transactional_id)
        request = pb.AddPartitionsToTxnRequest()
        request.transactions.add(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=by_topic(partitions),
        )
        try:
            answer = await self._peers.call(
                coordinator.broker_id, ADD_PARTITIONS, request, _TIMEOUT_MS
            )
            result = answer.results[0]
            raise_for(result.error_code, result.error_message)
        except NetworkError as error:
            raise CoordinatorNotAvailableError(
                f"the coordinator of {transactional_id} can not be asked: {error}"
            ) from error
        except InvalidTxnStateError as error:
            raise TransactionAbortableError(str(error)) from error

    async def ensure(
        self, transactional_id: str, producer: TransactionalProducer, partition: TopicPartition
    ) -> None:
        """`add`, unless the transaction is open in the log."""
        if not self.is_open(partition, producer):
            # Others wait for the same future: who is cancelled must not cancel it.
            await asyncio.shield(self.add(transactional_id, producer, partition))

    async def stop(self) -> None:
        """Ends the questions under way; who waits is told that the coordinator is not available."""
        await cancel_all(*self._tasks)
        for asked in self._pending.values():  # of tasks that had not begun
            for found in asked.values():
                _end(found, _stopping())
        self._pending.clear()


def _stopping() -> CoordinatorNotAvailableError:
    return CoordinatorNotAvailableError("this broker is stopping")


def _end(found: asyncio.Future[None], error: Exception | None) -> None:
    if found.done():
        return
    if error is None:
        found.set_result(None)
    else:
        found.set_exception(error)
        found.exception()  # the request that asked may be gone


def by_topic(partitions: Iterable[TopicPartition]) -> list[pb.TxnTopic]:
    """Partitions as a message has them."""
    topics: dict[str, pb.TxnTopic] = {}
    for topic, number in partitions:
        if topic not in topics:
            topics[topic] = pb.TxnTopic(name=topic)
        topics[topic].partitions.append(number)
    return list(topics.values())


def partitions_in(topics: Iterable[pb.TxnTopic]) -> list[TopicPartition]:
    """The partitions of a message."""
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
