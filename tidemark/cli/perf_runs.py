"""The loops of `tidemark perf`: they send and read, and count into a meter.

Records travel in Arrow tables, as fast programs send them. All records of a table are handed over
at one moment, so its acknowledgement gives each of them its exact latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.cli.perf_measure import Meter, Throttler
from tidemark.errors import CorruptMessageError, RequestTimedOutError, TidemarkError

if TYPE_CHECKING:
    from tidemark.client import AsyncConsumer, AsyncProducer

Report = Callable[[str], None]

_TABLE_ROWS_MAX = 10_000
_TABLE_BYTES = 1 << 20
_TABLES_IN_FLIGHT = 10_000  # bounds the tasks that wait; bytes are bounded by buffer.memory
_POLL_MS = 200
_SEED = 0
_LETTERS = bytes(65 + byte % 26 for byte in range(256))


def payloads(record_size: int, count: int) -> Iterator[bytes]:
    """Values of random capital letters, as Kafka's tool sends them; the same in each run."""
    rng = random.Random(_SEED)
    for _ in range(count):
        yield rng.randbytes(record_size).translate(_LETTERS)


class Transactions:
    """Begins a transaction with the first record after the last one, and commits it when its time
    is over, as Kafka's tool does."""

    def __init__(self, producer: AsyncProducer, duration_s: float) -> None:
        self._producer = producer
        self._duration_s = duration_s
        self._ends_s: float | None = None

    def sending(self, now_s: float) -> None:
        if self._ends_s is None:
            self._producer.begin_transaction()
            self._ends_s = now_s + self._duration_s

    async def sent(self, now_s: float) -> None:
        if self._ends_s is not None and now_s >= self._ends_s:
            await self.commit()

    async def commit(self) -> None:
        """Commits the open transaction, if there is one."""
        if self._ends_s is not None:
            await self._producer.commit_transaction()
            self._ends_s = None


async def produce(
    producer: AsyncProducer,
    topic: str,
    num_records: int,
    record_size: int,
    throughput: float,
    meter: Meter,
    report: Report,
    transactions: Transactions | None = None,
) -> TidemarkError | None:
    """Sends records until all have an outcome. Returns the first error of those that failed.

    What is not sent because a transaction failed counts as failed.
    """
    import pyarrow as pa

    rows = max(1, min(_TABLE_ROWS_MAX, _TABLE_BYTES // max(1, record_size), num_records))
    table = pa.RecordBatch.from_arrays(
        [pa.array(list(payloads(record_size, rows)), pa.binary())], names=["value"]
    )
    room = asyncio.Semaphore(_TABLES_IN_FLIGHT)
    errors: list[TidemarkError] = []

    async def outcome(delivery: Any, count: int, begin_s: float) -> None:
        try:
            acknowledged = sum(batch.record_count for batch in await delivery)
            meter.add(acknowledged, acknowledged * record_size)
            meter.failed += count - acknowledged
            meter.add_latency(time.perf_counter() - begin_s, acknowledged)
        except TidemarkError as error:
            meter.failed += count
            errors[:] = errors or [error]
        finally:
            room.release()

    async with _reporting(meter, report), asyncio.TaskGroup() as tasks:
        throttler = Throttler(time.perf_counter(), throughput)
        sent = 0
        while sent < num_records:
            now_s = time.perf_counter()
            count = throttler.due(now_s, sent, min(rows, num_records - sent))
            if count == 0:
                await asyncio.sleep(throttler.wait_s(now_s, sent))
                continue
            await room.acquire()
            begin_s = time.perf_counter()
            try:
                if transactions is not None:
                    transactions.sending(begin_s)
                delivery = producer.send_arrow(topic, table.slice(0, count))
                tasks.create_task(outcome(delivery, count, begin_s))
                sent += count
                with contextlib.suppress(TidemarkError):  # an outcome as well, counted there
                    await delivery.accepted()
                await asyncio.sleep(0)  # with room, `accepted` gives nobody else a turn
                if transactions is not None:
                    is_last = sent == num_records
                    await (transactions.commit() if is_last else transactions.sent(begin_s))
            except TidemarkError as error:
                if transactions is None:
                    raise
                errors[:] = errors or [error]
                meter.failed += num_records - sent
                break
    return errors[0] if errors else None


async def consume(
    consumer: AsyncConsumer, num_records: int, timeout_s: float, meter: Meter, report: Report
) -> None:
    """Reads until there are enough, or nothing came for `timeout_s`."""
    import pyarrow.compute as pc

    last_s = time.perf_counter()
    async with _reporting(meter, report):
        while meter.records < num_records:
            begin_s = time.perf_counter()
            found = await consumer.poll_arrow(min(_POLL_MS, timeout_s * 1000))
            now_s = time.perf_counter()
            if not found and now_s - last_s >= timeout_s:
                break
            if not found:
                continue
            last_s = now_s
            meter.add_latency(now_s - begin_s)
            for batch in found.values():
                columns = (batch.column("key"), batch.column("value"))
                sizes = (pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)
                meter.add(batch.num_rows, sum(sizes))
    meter.failed = max(0, num_records - meter.records)


async def end_to_end(
    producer: AsyncProducer,
    consumer: AsyncConsumer,
    topic: str,
    num_records: int,
    record_size: int,
    timeout_s: float,
    meter: Meter,
    report: Report,
) -> None:
    """Sends a record, waits until it is read, and sends the next.

    Raises RequestTimedOutError for a record that is not read in time, and CorruptMessageError for
    one that nobody sent.
    """
    async with _reporting(meter, report):
        for value in payloads(record_size, num_records):
            begin_s = time.perf_counter()
            await producer.send(topic, value)
            read = await _next(consumer, begin_s + timeout_s)
            meter.add_latency(time.perf_counter() - begin_s)
            meter.add(1, record_size)
            if read != [value]:
                raise CorruptMessageError(
                    f"{len(read)} records were read after one was sent, or another one: does "
                    f"someone else write to {topic}?"
                )


async def _next(consumer: AsyncConsumer, deadline_s: float) -> list[bytes | None]:
    while time.perf_counter() < deadline_s:
        records = await consumer.poll(_POLL_MS)
        if len(records):
            return [record.value for record in records]
    raise RequestTimedOutError("a record that was acknowledged was not read in time")


class _reporting:
    """Times the block, and prints progress lines while it runs."""

    def __init__(self, meter: Meter, report: Report) -> None:
        self._meter, self._report = meter, report
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._meter.begin(time.perf_counter())
        self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "the block was entered"
        self._meter.end(time.perf_counter())
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            line = self._meter.progress(time.perf_counter())
            if line is not None:
                self._report(line)
