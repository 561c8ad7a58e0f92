"""Programs of clients on topics of their own, beside the workload: what a history can not judge.

- `Recreation` deletes a topic and makes it anew, again and again. Every life of it holds the
  records that were sent to that life, and no others.
- `TruncatedLog` reads a log that an unclean election truncates. Its consumer is told (KIP-320)
  before it reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.sim.checks import Violation
from tidemark.client import (
    AsyncConsumer,
    AsyncProducer,
    CorruptBatchError,
    LogTruncationError,
    NewTopic,
    TopicRecreatedError,
)
from tidemark.errors import (
    TidemarkError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidemark.testing.cluster import AsyncClients
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

_AGAIN = TopicPartition("again", 0)
_PATIENCE: dict[str, Any] = {"request_timeout_ms": 3_000}


class Recreation:
    """One topic after the other of the same name, with three replicas."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._clients: AsyncClients = world.cluster.asyncio
        self._lives = 0
        self._reads_life: str | None = None
        """The life of which the lasting reader has read records since it was told."""

    async def run(self, calm: asyncio.Event) -> None:
        """Goes on until one life has passed since the calm."""
        ends = False
        reader = self._clients.consumer(auto_offset_reset="none", **_PATIENCE)
        partition = _AGAIN
        reader.assign([partition])
        reader.seek(partition, 0)
        try:
            while not ends:
                ends = calm.is_set()
                self._lives += 1
                await self._live(partition, reader)
                self._world.seen["topic made anew"] += 1
        finally:
            await reader.close()

    async def _live(self, partition: TopicPartition, reader: AsyncConsumer) -> None:
        async with self._clients.admin() as admin:
            wanted = [NewTopic("again", 1, 3, configs={"min.insync.replicas": "2"})]
            await self._again(lambda: admin.create_topics(wanted), TopicAlreadyExistsError)
            sent = [f"{self._lives}:{n}" for n in range(5)]
            await self._send(sent)
            await self._read(partition, sent)
            await self._look_on(reader, partition)
            await self._again(lambda: admin.delete_topics(["again"]), UnknownTopicOrPartitionError)

    async def _again(self, call: Callable[[], Awaitable[Any]], done: type[TidemarkError]) -> None:
        """Repeats a call until it succeeds, or fails because an earlier attempt succeeded."""
        for _ in range(60):
            try:
                async with asyncio.timeout(5):
                    await call()
                return
            except done:
                return
            except (TidemarkError, TimeoutError):
                await asyncio.sleep(0.2)
        raise Violation("liveness: a topic can not be created or deleted")

    async def _send(self, values: list[str]) -> None:
        """Sends each value until it is acknowledged."""
        producer: AsyncProducer = self._clients.producer(delivery_timeout_ms=60_000, **_PATIENCE)
        try:
            for value in values:
                await producer.send("again", value.encode(), partition=0)
        finally:
            await producer.close()

    async def _read(self, partition: TopicPartition, sent: list[str]) -> None:
        """Reads the topic from its start: it has what was sent to this life of it, in order."""
        consumer = self._clients.consumer(auto_offset_reset="none", **_PATIENCE)
        found: list[str] = []
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            for _ in range(300):
                try:
                    records = await consumer.poll(200)
                except CorruptBatchError as error:  # damaged on its way
                    consumer.seek(partition, error.offset)
                    continue
                except TidemarkError:
                    continue
                found += [bytes(r.value or b"").decode() for r in records.records(partition)]
                if len(found) >= len(sent):
                    break
        finally:
            await consumer.close()
        if found != sent:
            raise Violation(f"clients: a topic made anew has {found}, {sent} were sent")

    async def _look_on(self, reader: AsyncConsumer, partition: TopicPartition) -> None:
        """A consumer of an earlier life is told of the new one before it reads any record of it."""
        position = await reader.position(partition)
        for _ in range(10):
            try:
                records = await reader.poll(100)
            except TopicRecreatedError:
                reader.seek(partition, 0)
                position, self._reads_life = 0, None
                self._world.seen["topic made anew: told"] += 1
                continue
            except TidemarkError:
                continue
            for record in records.records(partition):
                value = bytes(record.value or b"").decode()
                life, _, index = value.partition(":")  # an earlier life's may have been on its way
                if index != str(position) or self._reads_life not in (None, life):
                    raise Violation(
                        f"clients: a reader that was not told of a new topic got {value} at "
                        f"{record.offset}; its position was {position}"
                    )
                position, self._reads_life = position + 1, life


class TruncatedLog:
    """A reader at the end of a log that loses it."""

    def __init__(self, clients: AsyncClients, partition: TopicPartition) -> None:
        self._clients = clients
        self._partition = partition
        self._consumer: AsyncConsumer | None = None

    async def send(self, count: int) -> None:
        """Appends records, one batch each; the leader alone acknowledges."""
        producer = self._clients.producer(acks=1, enable_idempotence=False, linger_ms=0)
        try:
            for _ in range(count):
                topic, number = self._partition
                await producer.send(topic, b"x", partition=number)
        finally:
            await producer.close()

    async def read_to(self, end: int) -> None:
        """Reads up to an offset."""
        consumer = self._consumer = self._clients.consumer(auto_offset_reset="none")
        consumer.assign([self._partition])
        consumer.seek(self._partition, max(0, end - 5))
        while await consumer.position(self._partition) < end:
            await consumer.poll(200)

    async def is_told(self) -> None:
        """Reads until the consumer is told of the truncation. Raises Violation if it reads on."""
        consumer = self._consumer
        assert consumer is not None
        position = await consumer.position(self._partition)
        for _ in range(50):
            try:
                records = await consumer.poll(100)
            except LogTruncationError:
                return
            except TidemarkError:
                continue
            if records.records(self._partition):
                raise Violation(
                    f"clients: a reader at {position} reads on in a log that was truncated below"
                )
        raise Violation(f"clients: a reader at {position} is not told of a truncation")

    async def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            await self._consumer.close()
