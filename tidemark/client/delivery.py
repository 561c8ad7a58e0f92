"""The result of a send: the promise of a RecordMetadata, resolved with its whole batch.

A Delivery is no asyncio.Future: a producer makes hundreds of thousands of them in a second, and
most are never awaited one by one. `await delivery` works on the producer's event loop, and
`SyncDelivery.result()` in any other thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from tidemark.client.batch import Batch
from tidemark.client.models import BatchMetadata, RecordMetadata


async def until_notified(batch: Batch) -> None:
    """Returns when the batch is done or was cut; cancelling one waiter does not affect the
    others.
    """
    if batch.done:
        return
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    batch.callbacks.append(wake)
    await future


async def metadata_of(batch: Batch) -> list[BatchMetadata]:
    """Waits for a batch of `send_arrow`. Raises its error if it failed."""
    while True:
        open_leaves = [leaf for leaf in batch.leaves() if not leaf.done]
        if not open_leaves:
            break
        await until_notified(open_leaves[0])
    found = []
    for leaf in batch.leaves():
        if leaf.error is not None:
            raise leaf.error
        topic, partition = leaf.topic_partition
        found.append(BatchMetadata(topic, partition, leaf.base_offset, leaf.count))
    return found


class Delivery:
    """Awaitable RecordMetadata of one record; `await` raises the record's error if it failed."""

    __slots__ = ("_batch", "_error", "_gates", "_row", "_timestamp_ms")

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._row = 0
        self._timestamp_ms = -1
        self._error: BaseException | None = None
        self._gates: list[asyncio.Future[None]] | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the record is in a batch, or was."""
        return self._batch is not None

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        if self._batch is None:
            return self._error is not None
        return self._batch.child_of(self._row)[0].done

    def exception(self) -> BaseException | None:
        """The record's error; None while it has not failed."""
        if self._batch is None:
            return self._error
        return self._batch.child_of(self._row)[0].error

    def metadata(self) -> RecordMetadata:
        """The outcome of a delivery that is done. Raises the record's error if it failed."""
        if self._batch is None:
            assert self._error is not None, "the delivery is not done"
            raise self._error
        batch, row = self._batch.child_of(self._row)
        assert batch.done, "the delivery is not done"
        if batch.error is not None:
            raise batch.error
        topic, partition = batch.topic_partition
        offset = batch.base_offset + row if batch.base_offset >= 0 else -1
        stamped = batch.log_append_time_ms
        return RecordMetadata(
            topic, partition, offset, stamped if stamped >= 0 else self._timestamp_ms
        )

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        while not self.done():
            if self._batch is not None:
                await until_notified(self._batch.child_of(self._row)[0])
                continue
            gate = asyncio.get_running_loop().create_future()
            self._gates = [*(self._gates or ()), gate]
            await gate
        return self.metadata()

    def resolve_to(self, batch: Batch, row: int, timestamp_ms: int) -> None:
        """Binds the delivery to a row of a batch."""
        self._batch, self._row, self._timestamp_ms = batch, row, timestamp_ms
        if self._gates is not None:
            self._open_gates()

    def fail(self, error: BaseException) -> None:
        """Fails a record that never reached a batch."""
        if self._batch is not None or self._error is not None:
            return
        self._error = error
        if self._gates is not None:
            self._open_gates()

    def _open_gates(self) -> None:
        for gate in self._gates or ():
            if not gate.done():
                gate.set_result(None)
        self._gates = None


class ArrowSend:
    """The state of one `send_arrow`: the batches of its tables so far, and its error."""

    __slots__ = ("_gates", "_tables_left", "batches", "error")

    def __init__(self, table_count: int) -> None:
        self._tables_left = table_count
        self._gates: list[asyncio.Future[None]] = []
        self.batches: list[Batch] = []
        self.error: BaseException | None = None

    def add(self, batches: list[Batch]) -> None:
        """Takes the batches of the next table."""
        self.batches += batches
        self._tables_left -= 1
        if self._tables_left == 0:
            self._open_gates()

    def fail(self, error: BaseException) -> None:
        """Fails the tables that are left; the first error stays."""
        if self.error is None and self._tables_left:
            self.error = error
            self._open_gates()

    @property
    def is_accepted(self) -> bool:
        """Whether each table is in the buffer, or has failed."""
        return self._tables_left == 0 or self.error is not None

    async def until_accepted(self) -> None:
        """Waits for that; raises the error."""
        while not self.is_accepted:
            gate = asyncio.get_running_loop().create_future()
            self._gates.append(gate)
            await gate
        if self.error is not None:
            raise self.error

    def _open_gates(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            if not gate.done():
                gate.set_result(None)


class ArrowDelivery:
    """Awaitable list[BatchMetadata] of one `send_arrow`, in order of partition."""

    __slots__ = ("_send",)

    def __init__(self, send: ArrowSend) -> None:
        self._send = send

    async def accepted(self) -> None:
        """Returns when the records are in the producer's buffer and the next ones may be sent."""
        await self._send.until_accepted()

    def done(self) -> bool:
        """Whether every record is acknowledged or has failed."""
        return self._send.is_accepted and all(
            leaf.done for batch in self._send.batches for leaf in batch.leaves()
        )

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        return self._wait().__await__()

    async def _wait(self) -> list[BatchMetadata]:
        await self._send.until_accepted()
        found: list[BatchMetadata] = []
        for batch in self._send.batches:
            found += await metadata_of(batch)
        return found
