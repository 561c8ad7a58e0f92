"""Producers and consumers of all kinds at work, which write a history.

They use the public asyncio clients alone. Clients are made by an injected factory, time is that of
the running loop, and every choice comes from one seeded generator. The same workload therefore runs
in a simulation, where it repeats exactly, and on real processes.

    async with Workload(clients, history, rng, {"orders": 3}) as workload:
        ...                      # faults
        await workload.finish()  # when they are over and all replicas are in sync

`judge(history.entries)` of `tidemark.testing.checker` then tells which promises were kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tidemark.client import AsyncConsumer, AsyncProducer
from tidemark.errors import TidemarkError
from tidemark.testing.history import FINAL, Calmed, History, LogEnded, Misbehaved, ReadDone
from tidemark.testing.workload_readers import READERS, WorkloadReader, identities_of
from tidemark.testing.workload_senders import SENDERS, WorkloadSender
from tidemark.types import TopicPartition


class Clients(Protocol):
    """Makes the clients of a cluster; keyword arguments are their settings."""

    def producer(self, **settings: Any) -> AsyncProducer:
        """A new producer on the running loop."""

    def consumer(self, **settings: Any) -> AsyncConsumer:
        """A new consumer on the running loop."""


@dataclass(frozen=True, slots=True)
class WorkloadPace:
    """Speed and limits of a workload. `send_ms` and `read_ms` are mean pauses between two calls of
    one client.

    `slack_ms` is the lateness that a busy machine may add to a limit; 0 in virtual time.
    `finish_ms` limits each step after the faults. With `answers_rot` a consumer may be told of a
    damaged batch, and fetches it again. With `tier_rots` a broker may tell a consumer of a damaged
    object of the tier, but not in the final read. Consumers name one of `racks`.
    """

    send_ms: float = 50
    read_ms: float = 50
    delivery_timeout_ms: int = 20_000
    request_timeout_ms: int = 3_000
    max_block_ms: int = 5_000
    slack_ms: float = 5_000
    finish_ms: float = 60_000
    sends_after: int = 5
    metadata_max_age_ms: int = 2_000
    answers_rot: bool = False
    tier_rots: bool = False
    racks: tuple[str, ...] = ()


class Workload:
    """One sender and one reader of each kind on the partitions of `topics` (name -> count)."""

    def __init__(
        self,
        clients: Clients,
        history: History,
        rng: Random,
        topics: Mapping[str, int],
        pace: WorkloadPace = WorkloadPace(),
    ) -> None:
        self._clients = clients
        self._history = history
        self._pace = pace
        self.partitions = [
            TopicPartition(topic, partition)
            for topic, count in topics.items()
            for partition in range(count)
        ]
        # Each client has its own generator: its choices do not depend on the others' timing.
        self.senders = [
            WorkloadSender(kind, clients, history, Random(rng.random()), self.partitions, pace)
            for kind in SENDERS
        ]
        self.readers = [
            WorkloadReader(kind, clients, history, Random(rng.random()), self.partitions, pace)
            for kind in READERS
        ]
        self._stop_sending = asyncio.Event()
        self._stop_reading = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Workload:
        for sender in self.senders:
            self._start(sender.name, sender.run(self._stop_sending))
        for reader in self.readers:
            self._start(reader.name, reader.run(self._stop_reading))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sender in self.senders:
            await sender.close()
        for reader in self.readers:
            await reader.close()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._complain(name, f"raised {error!r}")

        self._tasks.append(asyncio.create_task(guarded()))

    def _complain(self, name: str, what: str) -> None:
        self._history.add(Misbehaved(self._history.now_ms(), name, what))

    async def finish(self) -> None:
        """Sends a little more, waits for all outcomes, and reads every log to its end.

        Returns after `finish_ms` for each step at the latest; the history then shows the lack.
        """
        for sender in self.senders:
            sender.calm()
        self._history.add(Calmed(self._history.now_ms()))
        wanted = [sender.count + self._pace.sends_after for sender in self.senders]
        await self._until(
            lambda: all(s.count >= n for s, n in zip(self.senders, wanted, strict=True))
        )
        self._stop_sending.set()
        for sender in self.senders:
            await sender.settle()
        self._stop_reading.set()
        await self._until(lambda: all(task.done() for task in self._tasks))
        for reader in self.readers:  # one that did not poll for long had an answer of before
            reader.calm()
        try:
            async with asyncio.timeout(self._pace.finish_ms / 1000):
                await self._read_to_the_end()
        except (TimeoutError, TidemarkError) as error:
            self._complain("final", f"the logs were not read to their ends: {error!r}")

    async def _until(self, holds: Any) -> None:
        deadline_ms = self._history.now_ms() + self._pace.finish_ms
        while not holds() and self._history.now_ms() < deadline_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _read_to_the_end(self) -> None:
        """Reads all logs from their starts, and has each reader do so from its position.

        A send without an outcome may be written late, so it goes on until nobody reads more.
        """
        consumer = self._clients.consumer(auto_offset_reset="none")
        try:
            consumer.assign(self.partitions)
            starts = await consumer.beginning_offsets(self.partitions)
            ends = dict(starts)
            for partition, start in starts.items():
                consumer.seek(partition, start)
            while True:
                found = await consumer.end_offsets(self.partitions)
                for reader in self.readers:
                    for partition, position in reader.positions.items():
                        found[partition] = max(found[partition], position)
                for partition, offset in found.items():
                    await self._read_on(consumer, partition, ends, offset)
                for reader in self.readers:
                    await reader.read_to(ends)
                if not any(reader.is_beyond(ends) for reader in self.readers):
                    break
            for partition in self.partitions:
                now_ms = self._history.now_ms()
                self._history.add(LogEnded(now_ms, *partition, starts[partition], ends[partition]))
        finally:
            await consumer.close()

    async def _read_on(
        self,
        consumer: AsyncConsumer,
        partition: TopicPartition,
        ends: dict[TopicPartition, int],
        offset: int,
    ) -> None:
        """Reads one partition up to an offset at least; `ends` follows."""
        consumer.pause(*(other for other in self.partitions if other != partition))
        consumer.resume(partition)
        while ends[partition] < offset:
            records = await consumer.poll(timeout_ms=1_000, max_records=500)
            ends[partition] = await consumer.position(partition)
            if not records:
                continue
            self._history.add(
                ReadDone(
                    self._history.now_ms(),
                    "final",
                    FINAL,
                    *partition,
                    identities_of(records.records(partition)),
                    ends[partition],
                )
            )
