"""Programs of clients on tiered topics of their own, which the workload's promises do not fit.

- `Expiring`: a topic with retention.bytes, whose records are deleted by DeleteRecords as well. What
  is left is contiguous and readable from `earliest` on.
- `Lossy`: topics whose leaders are elected uncleanly, by `Operator`. One has three replicas. One
  has a single replica, which is restored from the tier when its disks are replaced. They lose
  records, and nothing else: what is left is contiguous from offset 0 on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from node.partition.hosted import HostedPartition
from tests.sim.checks import Violation
from tidemark.client import AsyncConsumer, NewTopic
from tidemark.errors import OffsetOutOfRangeError, TidemarkError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.tier.world import TierWorld

_SEGMENT_BYTES = 4_096
_RETENTION_BYTES = 16_000
_VALUE_BYTES = 600
_BATCH_BYTES_MAX = 720
_SLACK_RECORDS = 2 * _SEGMENT_BYTES // _VALUE_BYTES
_PATIENCE: dict[str, Any] = {"request_timeout_ms": 3_000}
_FINAL_MS = 90_000
_TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(_SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
EXPIRING = NewTopic(
    "expiring",
    1,
    3,
    configs={
        **_TIERED,
        "min.insync.replicas": "2",
        "retention.bytes": str(_RETENTION_BYTES),
    },
)
LOSSY = NewTopic("lossy", 1, 3, configs={**_TIERED, "min.insync.replicas": "1"})
SINGLE = NewTopic("single", 1, 1, configs={**_TIERED, "min.insync.replicas": "1"})


class _Numbered:
    """A partition to which numbers are written, one batch each."""

    def __init__(self, world: TierWorld, topic: str, rng: random.Random, acks: str | int) -> None:
        self._world = world
        self._clients = world.cluster.asyncio
        self._rng = rng
        self._acks = acks
        self.partition = TopicPartition(topic, 0)
        self.count = 0
        self.acknowledged: dict[int, int] = {}

    async def write(self, stop: asyncio.Event, pause_ms: int) -> None:
        """Writes until `stop` is set."""
        idempotent = self._acks == "all"
        producer = self._clients.producer(
            acks=self._acks, enable_idempotence=idempotent, linger_ms=0, **_PATIENCE
        )
        topic, number = self.partition
        try:
            while not stop.is_set():
                self.count += 1
                value = str(self.count).ljust(_VALUE_BYTES).encode()
                with contextlib.suppress(TidemarkError):
                    found = await producer.send(topic, value, partition=number)
                    self.acknowledged[found.offset] = self.count
                await asyncio.sleep(self._rng.expovariate(1.0) * pause_ms / 1000)
        finally:
            await producer.close(1_000)

    def consumer(self) -> AsyncConsumer:
        consumer = self._clients.consumer(auto_offset_reset="none", **_PATIENCE)
        consumer.assign([self.partition])
        return consumer

    async def read_whole(self) -> tuple[int, list[int]]:
        """Reads what is left when all is quiet: the first offset, and the numbers from there on.

        Raises Violation if it can not be read in time, or has a hole.
        """
        consumer, why = self.consumer(), "nothing came"
        end_ms = self._world.now_ms() + _FINAL_MS
        try:
            while self._world.now_ms() < end_ms:
                try:
                    found = await self._read_once(consumer)
                except TidemarkError as error:
                    why = repr(error)
                    await asyncio.sleep(0.2)
                else:
                    return found
        finally:
            await consumer.close()
        raise Violation(f"what is left can be read from its start: {self.partition}: {why}")

    async def _read_once(self, consumer: AsyncConsumer) -> tuple[int, list[int]]:
        start = (await consumer.beginning_offsets([self.partition]))[self.partition]
        end = (await consumer.end_offsets([self.partition]))[self.partition]
        consumer.seek(self.partition, start)
        position, numbers = start, list[int]()
        while position < end:
            records = (await consumer.poll(1_000)).records(self.partition)
            for record in records:
                if record.offset != position:
                    raise Violation(
                        f"what is left has no hole: {self.partition} from {start}: {record.offset} "
                        f"comes for {position}"
                    )
                numbers.append(int(record.value or b"0"))
                position += 1
        return start, numbers


class Expiring(_Numbered):
    """A topic that expires."""

    def __init__(self, world: TierWorld, rng: random.Random) -> None:
        super().__init__(world, EXPIRING.name, rng, "all")
        self._asked = 0

    def allowed_start(self, hosted: HostedPartition) -> int:
        """How far the log start may be: DeleteRecords asked for it, or retention.bytes is left."""
        left = _RETENTION_BYTES // _BATCH_BYTES_MAX - _SLACK_RECORDS
        return max(self._asked, hosted.log.log_end_offset - left)

    async def run(self, calm: asyncio.Event) -> None:
        """Writes, deletes and reads until the calm, then judges what is left."""
        done = asyncio.Event()
        tasks = [
            asyncio.ensure_future(work)
            for work in (self.write(done, 30), self._delete(done), self._read(done))
        ]
        await calm.wait()
        done.set()
        await asyncio.gather(*tasks)
        start, numbers = await self.read_whole()
        for offset, number in sorted(self.acknowledged.items()):
            if offset >= start and numbers[offset - start : offset - start + 1] != [number]:
                raise Violation(
                    f"an acknowledged record is at its offset: {self.partition} at {offset}: "
                    f"{number}, starts at {start}, has {len(numbers)}"
                )
        self._world.seen["records expired"] += start

    async def _delete(self, done: asyncio.Event) -> None:
        async with self._clients.admin() as admin:
            while not done.is_set():
                await asyncio.sleep(self._rng.randrange(500, 5_000) / 1000)
                if not self.acknowledged:
                    continue
                offset = self._rng.randrange(max(self.acknowledged) + 1)
                self._asked = max(self._asked, offset)
                with contextlib.suppress(TidemarkError, TimeoutError):
                    async with asyncio.timeout(3):
                        await admin.delete_records({self.partition: offset})
                        self._world.seen["DeleteRecords"] += 1

    async def _read(self, done: asyncio.Event) -> None:
        consumer = self.consumer()
        try:
            while not done.is_set():
                try:
                    async with asyncio.timeout(6):
                        await self._read_a_little(consumer)
                except OffsetOutOfRangeError:
                    self._world.seen["earliest had expired"] += 1
                except (TidemarkError, TimeoutError):
                    pass
                await asyncio.sleep(self._rng.random())
        finally:
            await consumer.close()

    async def _read_a_little(self, consumer: AsyncConsumer) -> None:
        start = (await consumer.beginning_offsets([self.partition]))[self.partition]
        consumer.seek(self.partition, start)
        for _ in range(3):
            for record in (await consumer.poll(500)).records(self.partition):
                number = self.acknowledged.get(record.offset)
                if number is not None and number != int(record.value or b"0"):
                    raise Violation(
                        f"an offset has one record: {self.partition} at {record.offset}: "
                        f"{number} and {record.value!r}"
                    )


class Lossy(_Numbered):
    """A topic that loses records by unclean elections."""

    def __init__(self, world: TierWorld, topic: NewTopic, rng: random.Random) -> None:
        super().__init__(world, topic.name, rng, 1)

    async def run(self, calm: asyncio.Event) -> None:
        """Writes until the calm, then judges what is left."""
        await self.write(calm, 40)
        start, numbers = await self.read_whole()
        if start != 0:
            raise Violation(f"an unclean election moves no log start: {self.partition}: {start}")
        strange = [number for number in numbers if not 1 <= number <= self.count]
        if strange:
            raise Violation(f"only what was written is read: {self.partition}: {strange}")


class Operator:
    """Elects a leader uncleanly wherever one of these topics has none."""

    def __init__(self, world: TierWorld, topics: list[str]) -> None:
        self._world = world
        self._topics = topics

    async def run(self) -> None:
        """Looks at the metadata until it is cancelled."""
        while True:
            await asyncio.sleep(0.3)
            without = [
                TopicPartition(name, 0)
                for name in self._topics
                if self._world.cluster.leader(name) is None
            ]
            if without:
                with contextlib.suppress(TidemarkError, TimeoutError):
                    async with asyncio.timeout(3):
                        await self._elect(without)

    async def _elect(self, partitions: list[TopicPartition]) -> None:
        async with self._world.cluster.asyncio.admin() as admin:
            outcomes = await admin.elect_leaders("UNCLEAN", partitions)
        for partition, error in outcomes.items():
            if error is None:
                self._world.seen[f"elected uncleanly: {partition.topic}"] += 1
                self._world.note(f"{partition} has a leader that was elected uncleanly")
