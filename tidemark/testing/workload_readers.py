"""The consumers of a workload: `poll`, `poll_arrow` and `fetch_batches`, both isolation levels.

They stay right at the high watermark, where a wrong one shows. They ask for end offsets, seek there
and back, cancel polls at any moment, and begin anew with other clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.client import (
    AsyncConsumer,
    CorruptBatchError,
    LogTruncationError,
    TopicRecreatedError,
)
from tidemark.client.records import decode
from tidemark.errors import (
    CorruptMessageError,
    OffsetOutOfRangeError,
    TidemarkError,
    UnknownServerError,
)
from tidemark.testing.history import (
    ConsumerMade,
    EndSeen,
    History,
    Misbehaved,
    PollCancelled,
    PollFailed,
    ReadDone,
    Sought,
    identify,
)
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.testing.workload import Clients, WorkloadPace

# A position is always that of a committed record, and topics are not made anew.
_NEVER = (UnknownServerError, CorruptMessageError, LogTruncationError, TopicRecreatedError)
_WRONG_EPOCH = "leader epoch"
_OF_TIER = "remote segment"
_POLL_MS = 300.0
POLL, POLL_ARROW, FETCH_BATCHES = "poll", "poll_arrow", "fetch_batches"


@dataclass(frozen=True, slots=True)
class ReaderKind:
    """A kind of consumer: the call it reads by, and how restless it is.

    `seeks` and `cancels` are probabilities per call.
    """

    name: str
    call: str
    isolation: str
    seeks: float
    cancels: float


READERS = (
    ReaderKind("tail", POLL, "read_uncommitted", 0.0, 0.0),
    ReaderKind("restless", POLL, "read_uncommitted", 0.05, 0.3),
    ReaderKind("committed", POLL, "read_committed", 0.02, 0.1),
    ReaderKind("arrow", POLL_ARROW, "read_uncommitted", 0.02, 0.2),
    ReaderKind("batches", FETCH_BATCHES, "read_uncommitted", 0.02, 0.2),
)


def identities_of(records: Iterable[Any]) -> tuple[tuple[int, str], ...]:
    """(offset, identity) of ConsumerRecords."""
    return tuple((record.offset, identify(record.key, record.value)) for record in records)


def _rows_of(batch: Any) -> tuple[tuple[int, str], ...]:
    """(offset, identity) of the rows of an Arrow batch."""
    names = ("offset", "key", "value")
    columns = (batch.column(name).to_pylist() for name in names)
    return tuple(
        (offset, identify(key, value)) for offset, key, value in zip(*columns, strict=True)
    )


class WorkloadReader:
    """One consumer at a time of one kind; `positions` are those it was told last."""

    def __init__(
        self,
        kind: ReaderKind,
        clients: Clients,
        history: History,
        rng: random.Random,
        partitions: Sequence[TopicPartition],
        pace: WorkloadPace,
    ) -> None:
        self.name = kind.name
        self.positions: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        self._kind = kind
        self._clients = clients
        self._history = history
        self._rng = rng
        self._pace = pace
        self._tier_rots = pace.tier_rots
        self._consumer: AsyncConsumer | None = None
        assigned = tuple((topic, number) for topic, number in partitions)
        history.add(ConsumerMade(history.now_ms(), self.name, kind.isolation, assigned))

    async def run(self, stop: asyncio.Event) -> None:
        """Reads until `stop` is set."""
        while not stop.is_set():
            consumer = self._consumer
            if consumer is None or self._rng.random() < 0.003:
                await self.close()
                consumer = self._begin()
            luck = self._rng.random()
            if luck < self._kind.seeks:
                self._seek(consumer, self._rng.choice(sorted(self.positions)))
            elif luck < self._kind.seeks + 0.1:
                await self._look_at_end(consumer)
            elif self._rng.random() < self._kind.cancels:
                await self._cancelled_read(consumer)
            else:
                await self._read(consumer, self._rng.choice((0.0, _POLL_MS / 10, _POLL_MS)))
            await asyncio.sleep(self._rng.expovariate(1.0) * self._pace.read_ms / 1000)

    def calm(self) -> None:
        """Takes objects of the tier for sound from here on."""
        self._tier_rots = False

    async def close(self) -> None:
        """Closes the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            async with asyncio.timeout(1 + self._pace.slack_ms / 1000):
                await consumer.close()
        except TimeoutError:
            self._complain("close did not return")
        except Exception as error:
            self._complain(f"close raised {error!r}")

    def _begin(self) -> AsyncConsumer:
        """A new consumer at the positions of the one before."""
        self._consumer = consumer = self._clients.consumer(
            auto_offset_reset="none",
            isolation_level=self._kind.isolation,
            fetch_max_wait_ms=self._rng.choice((20, 200)),
            max_partition_fetch_bytes=self._rng.choice((400, 20_000, 2 << 20)),
            request_timeout_ms=self._pace.request_timeout_ms,
            default_api_timeout_ms=self._pace.delivery_timeout_ms,
            metadata_max_age_ms=self._pace.metadata_max_age_ms,
            client_rack=self._rng.choice(self._pace.racks) if self._pace.racks else "",
        )
        consumer.assign(list(self.positions))
        for partition, offset in self.positions.items():
            self._seek_to(consumer, partition, offset)
        return consumer

    # Positions.

    def _seek_to(self, consumer: AsyncConsumer, partition: TopicPartition, offset: int) -> None:
        self._history.add(Sought(self._history.now_ms(), self.name, *partition, offset))
        consumer.seek(partition, offset)
        self.positions[partition] = offset

    def _seek(self, consumer: AsyncConsumer, partition: TopicPartition) -> None:
        """Goes back, or to the end as the leader tells it."""
        position = self.positions[partition]
        match self._rng.randrange(4):
            case 0:
                self._seek_to(consumer, partition, 0)
            case 1:
                self._history.add(Sought(self._history.now_ms(), self.name, *partition, None))
                consumer.seek_to_end(partition)
            case _:
                back = self._rng.randint(0, min(position, 30))
                self._seek_to(consumer, partition, position - back)

    async def _look_at_end(self, consumer: AsyncConsumer) -> None:
        """Asks for the high watermark, and sometimes goes right before it."""
        partition = self._rng.choice(sorted(self.positions))
        found = await self._guarded("end_offsets", consumer.end_offsets([partition]), 0)
        if found is None:
            return
        end = found[partition]
        self._history.add(EndSeen(self._history.now_ms(), self.name, *partition, end))
        if self._rng.random() < self._kind.seeks * 4:
            self._seek_to(consumer, partition, max(0, end - self._rng.randint(0, 2)))

    async def _tell_positions(self, consumer: AsyncConsumer, *, all_of_them: bool = False) -> None:
        """Notes the positions that the consumer itself reports, if they are other than before."""
        for partition, known in self.positions.items():
            try:
                position = await consumer.position(partition, timeout_ms=0)
            except TidemarkError:
                continue  # it is looked up
            if all_of_them or position != known:
                self._note("position", partition, (), position)

    # Reading.

    async def _cancelled_read(self, consumer: AsyncConsumer) -> None:
        """Cancels a call at a random moment; positions must not move."""
        patience_ms = self._rng.choice((0.0, 1.0, 10.0, 50.0)) * self._rng.random()
        task = asyncio.create_task(self._call(consumer, _POLL_MS))
        try:
            await asyncio.wait([task], timeout=patience_ms / 1000)
        finally:
            task.cancel()
        await asyncio.wait([task], timeout=1 + self._pace.slack_ms / 1000)
        call = self._kind.call
        if not task.done():
            self._complain(f"{call} goes on after it was cancelled")
        elif task.cancelled():
            self._history.add(PollCancelled(self._history.now_ms(), self.name, call))
        elif isinstance(error := task.exception(), Exception):
            self._failed(consumer, call, error)
        else:
            await self._take(consumer, task.result())
        await self._tell_positions(consumer)

    async def _read(self, consumer: AsyncConsumer, timeout_ms: float) -> None:
        found = await self._guarded(self._kind.call, self._call(consumer, timeout_ms), timeout_ms)
        if found is not None:
            await self._take(consumer, found)

    def _call(self, consumer: AsyncConsumer, timeout_ms: float) -> Any:
        if self._kind.call == POLL_ARROW:
            return consumer.poll_arrow(timeout_ms)
        if self._kind.call == FETCH_BATCHES:
            return consumer.fetch_batches(timeout_ms)
        return consumer.poll(timeout_ms, max_records=self._rng.choice((1, 7, 500)))

    async def _guarded(self, how: str, call: Awaitable[Any], timeout_ms: float) -> Any:
        """The result of a call; None if it failed, which the history tells."""
        limit_ms = timeout_ms + self._pace.slack_ms + self._pace.delivery_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await call
        except TimeoutError:
            self._complain(f"{how} did not return in {limit_ms:.0f} ms")
        except Exception as error:
            assert self._consumer is not None
            self._failed(self._consumer, how, error)
        return None

    def _failed(self, consumer: AsyncConsumer, how: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:200]
        self._history.add(PollFailed(self._history.now_ms(), self.name, how, text))
        if (
            self._pace.answers_rot
            and isinstance(error, CorruptBatchError)
            and _WRONG_EPOCH not in str(error)
        ):
            # Nothing is skipped: the batch is fetched again from the position that was told last.
            # The answers' rot leaves what is before the CRC, so a leader sent a wrong epoch.
            partition = error.topic_partition
            self._seek_to(consumer, partition, self.positions[partition])
        elif self._tier_rots and isinstance(error, CorruptMessageError) and _OF_TIER in str(error):
            pass  # no broker serves it, and the position stays
        elif not isinstance(error, TidemarkError) or isinstance(error, _NEVER):
            self._complain(f"{how} raised {error!r}")
        if isinstance(error, OffsetOutOfRangeError):
            for partition, offset in self.positions.items():
                self._seek_to(consumer, partition, offset)

    async def _take(self, consumer: AsyncConsumer, found: Any) -> None:
        """Notes the records that a call returned."""
        if self._kind.call == POLL:
            for partition in found.partitions():
                records = identities_of(found.records(partition))
                self._note(POLL, partition, records, await consumer.position(partition))
        elif self._kind.call == POLL_ARROW:
            for partition, batch in found.items():
                position = await consumer.position(partition)
                self._note(POLL_ARROW, partition, _rows_of(batch), position)
        else:
            for raw in found:
                rows = _rows_of(decode(raw))
                self._note(
                    FETCH_BATCHES,
                    raw.topic_partition,
                    rows,
                    raw.next_offset,
                    raw.high_watermark,
                )

    def _note(
        self,
        how: str,
        partition: TopicPartition,
        records: tuple[tuple[int, str], ...],
        position: int,
        high_watermark: int = -1,
    ) -> None:
        now_ms = self._history.now_ms()
        self._history.add(
            ReadDone(now_ms, self.name, how, *partition, records, position, high_watermark)
        )
        self.positions[partition] = position

    # The end.

    def is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has records to read below these ends."""
        return any(self.positions[partition] < end for partition, end in ends.items())

    def is_beyond(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has read beyond one of these ends."""
        return any(self.positions[partition] > end for partition, end in ends.items())

    async def read_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Reads until its positions are at these ends, and notes them all."""
        consumer = self._consumer or self._begin()
        while self.is_behind(ends):
            await self._read(consumer, _POLL_MS)
            await self._tell_positions(consumer)
        await self._tell_positions(consumer, all_of_them=True)

    def _complain(self, what: str) -> None:
        self._history.add(Misbehaved(self._history.now_ms(), self.name, what))
