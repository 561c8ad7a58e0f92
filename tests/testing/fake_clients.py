"""Clients of a cluster that is a list in memory, with bugs to switch on.

Records are acknowledged some time after their append, and readers see them then.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidemark.client import ClientClosedError, ConsumerRecord, LogTruncationError, Records
from tidemark.client.models import BatchMetadata, RecordMetadata
from tidemark.client.records import RawBatches
from tidemark.errors import InvalidPartitionsError, MessageTooLargeError, RequestTimedOutError
from tidemark.records import Record, encode_batch, patch_header
from tidemark.records.arrow import RECORDS_SCHEMA
from tidemark.types import TopicPartition

COUNT = 2


@dataclass
class FakeLog:
    """Keys and values by offset; readers see those below `high_watermark`."""

    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    high_watermark: int = 0


class FakeClients:
    """The factory; `bugs` names what is wrong with the clients."""

    def __init__(self, seed: int, bugs: set[str] | None = None) -> None:
        self.rng = random.Random(seed)
        self.bugs = bugs or set()
        self.logs: dict[TopicPartition, FakeLog] = defaultdict(FakeLog)
        self.calm = False  # then no answer is lost
        self.settings: list[dict[str, Any]] = []

    def producer(self, **settings: Any) -> Any:
        self.settings.append(settings)
        return FakeProducer(self, settings)

    def consumer(self, **settings: Any) -> Any:
        self.settings.append(settings)
        return FakeConsumer(self)


class FakeProducer:
    def __init__(self, clients: FakeClients, settings: dict[str, Any]) -> None:
        self.clients, self.settings = clients, settings
        self.turns: dict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.tables = asyncio.Lock()
        self.under_way: set[asyncio.Task[Any]] = set()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        async def until_closed() -> Any:
            try:
                return await work
            except asyncio.CancelledError:
                raise ClientClosedError() from None

        task = asyncio.ensure_future(until_closed())
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    def send(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int | None = None
    ) -> Any:
        place = TopicPartition(topic, len(key or b"") % COUNT if partition is None else partition)
        return self._start(self._one(place, key, value))

    async def _one(self, place: TopicPartition, key: bytes | None, value: bytes) -> RecordMetadata:
        if len(value) > self.settings["max_request_size"]:
            raise MessageTooLargeError()
        offset = await self._append(place, [(key, value)])
        return RecordMetadata(*place, offset, 0)

    def send_arrow(self, topic: str, table: Any, *, partition: int) -> Any:
        rows = list(zip(*(table.column(n).to_pylist() for n in ("key", "value")), strict=True))
        return self._start(self._table(TopicPartition(topic, partition), rows))

    async def _table(self, place: TopicPartition, rows: list[Any]) -> list[BatchMetadata]:
        half = len(rows) // 2
        parts = [part for part in (rows[:half], rows[half:]) if part]
        async with self.tables:
            return [BatchMetadata(*place, await self._append(place, p), len(p)) for p in parts]

    async def _append(self, place: TopicPartition, rows: list[Any]) -> int:
        clients = self.clients
        if place.partition >= COUNT:
            raise InvalidPartitionsError()
        async with self.turns[place]:
            await asyncio.sleep(clients.rng.random() * 0.02)
            log = clients.logs[place]
            luck = clients.rng.random()
            if luck < 0.02 and "hangs" in clients.bugs:
                await asyncio.sleep(1_000_000)
            if luck < 0.02 and "raises" in clients.bugs:
                raise AssertionError("nobody foresaw it")
            if luck < 0.02 and "acknowledges nothing" in clients.bugs:
                return len(log.records)
            offset = len(log.records)
            log.records += rows
            if luck < 0.02 and "writes twice" in clients.bugs:
                log.records += rows
            if luck < 0.05 and not clients.calm:
                raise RequestTimedOutError()
        await asyncio.sleep(clients.rng.random() * 0.02)
        log.high_watermark = max(log.high_watermark, offset + len(rows))
        return offset if self.settings["acks"] != 0 else -1

    async def close(self, timeout_ms: float | None = None) -> None:
        if self.under_way:
            seconds = None if timeout_ms is None else timeout_ms / 1000
            await asyncio.wait(list(self.under_way), timeout=seconds)
        for task in self.under_way:
            task.cancel()


class FakeConsumer:
    def __init__(self, clients: FakeClients) -> None:
        self.clients = clients
        self.positions: dict[TopicPartition, int | None] = {}
        self.stopped: set[TopicPartition] = set()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.positions = dict.fromkeys(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset

    def seek_to_end(self, partition: TopicPartition) -> None:
        self.positions[partition] = None

    def pause(self, *partitions: TopicPartition) -> None:
        self.stopped |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.stopped -= set(partitions)

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        position = self.positions[partition]
        if position is None:
            raise RequestTimedOutError()
        return position

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[Any, int]:
        logs = self.clients.logs
        if "tells the log end" in self.clients.bugs:
            return {p: len(logs[p].records) + 1 for p in partitions}
        return {p: logs[p].high_watermark for p in partitions}

    async def _take(self, timeout_ms: float, limit: int) -> dict[TopicPartition, tuple[int, int]]:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            found = {}
            for place, position in self.positions.items():
                end = self.clients.logs[place].high_watermark
                if position is None:
                    self.positions[place] = end
                elif position < end and place not in self.stopped:
                    found[place] = (position, min(end, position + limit))
            if "reports a truncation" in self.clients.bugs and found:
                place, (begin, _) = found.popitem()
                raise LogTruncationError(place, begin, (0, 0))
            moved = "moves when cancelled" in self.clients.bugs
            if found and moved:
                self.positions |= {place: end for place, (_, end) in found.items()}
            await asyncio.sleep(0.005)
            if found or asyncio.get_running_loop().time() >= deadline:
                self.positions |= {place: end for place, (_, end) in found.items()}
                return found

    def _rows(self, place: TopicPartition, begin: int, end: int) -> list[ConsumerRecord]:
        records = self.clients.logs[place].records
        return [
            ConsumerRecord(*place, offset, 0, *records[offset], ()) for offset in range(begin, end)
        ]

    async def poll(self, timeout_ms: float = 0, max_records: int = 500) -> Records:
        found = await self._take(timeout_ms, max_records)
        return Records([(p, self._batch(p, *span)) for p, span in found.items()])

    async def poll_arrow(self, timeout_ms: float = 0) -> dict[TopicPartition, Any]:
        found = await self._take(timeout_ms, 500)
        return {place: self._batch(place, *span) for place, span in found.items()}

    def _batch(self, place: TopicPartition, begin: int, end: int) -> Any:
        rows = self._rows(place, begin, end)
        columns = {
            "offset": [row.offset for row in rows],
            "timestamp": [row.timestamp_ms for row in rows],
            "key": [row.key for row in rows],
            "value": [row.value for row in rows],
            "headers": [[] for _ in rows],
        }
        return pa.RecordBatch.from_pydict(columns, schema=RECORDS_SCHEMA)

    async def fetch_batches(self, timeout_ms: float = 0) -> list[RawBatches]:
        found = []
        for place, (begin, end) in (await self._take(timeout_ms, 500)).items():
            records = [
                Record(offset=row.offset, timestamp_ms=0, key=row.key, value=row.value)
                for row in self._rows(place, begin, end)
            ]
            batch = encode_batch(records)
            head = patch_header(batch[:61], begin, 0)
            buffer = memoryview(head + batch[len(head) :])
            watermark = self.clients.logs[place].high_watermark
            found.append(RawBatches(place, buffer, begin, end, watermark, 0))
        return found

    async def close(self) -> None:
        pass
