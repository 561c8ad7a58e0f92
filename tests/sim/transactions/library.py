"""The client library's transactional producer, as the programs of a seed use it."""

from __future__ import annotations

import asyncio

from tests.sim.transactions.stranger import NotCommittedError
from tidemark.client import AsyncConsumer, AsyncProducer
from tidemark.client.errors import TransactionInDoubtError
from tidemark.errors import TransactionAbortableError
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

_CLOSE_MS = 3_000


class LibraryProducer:
    """An AsyncProducer with a transactional id."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._producer: AsyncProducer = cluster.asyncio.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            request_timeout_ms=2_000,
            delivery_timeout_ms=8_000,
            max_block_ms=10_000,
        )

    async def init(self) -> None:
        await self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    async def send(self, partition: TopicPartition, values: list[bytes]) -> None:
        topic, number = partition
        sends = [self._producer.send(topic, value, partition=number) for value in values]
        await asyncio.gather(*sends)

    async def send_offsets(self, offsets: dict[TopicPartition, int], of: AsyncConsumer) -> None:
        await self._producer.send_offsets_to_transaction(offsets, of.group_metadata())

    async def commit(self) -> None:
        """Raises NotCommittedError, and other errors if the outcome is not known."""
        try:
            try:
                await self._producer.commit_transaction()
            except TransactionInDoubtError:
                await self._producer.commit_transaction()
        except TransactionAbortableError as error:
            raise NotCommittedError(str(error)) from error

    async def abort(self) -> None:
        await self._producer.abort_transaction()

    async def close(self) -> None:
        await self._producer.close(_CLOSE_MS)
