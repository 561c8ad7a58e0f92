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
        self._error = error
        if self._gates is not None:
            self._open_gates()

    def _open_gates(self) -> None:
        for gate in self._gates or ():
            if not gate.done():
                gate.set_result(None)
        self._gates = None


class ArrowDelivery:
    """Awaitable list[BatchMetadata] of one `send_arrow`, in order of partition."""

    __slots__ = ("_accepted", "_task")

    def __init__(self, task: asyncio.Task[list[Batch]], accepted: asyncio.Future[None]) -> None:
        self._task = task
        self._accepted = accepted

    async def accepted(self) -> None:
        """Returns when the records are in the producer's buffer and the next ones may be sent."""
        await asyncio.shield(self._accepted)

    def done(self) -> bool:
        """Whether every record is acknowledged or has failed."""
        if not self._task.done():
            return False
        if self._task.cancelled() or self._task.exception() is not None:
            return True
        return all(leaf.done for batch in self._task.result() for leaf in batch.leaves())

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        return self._wait().__await__()

    async def _wait(self) -> list[BatchMetadata]:
        found: list[BatchMetadata] = []
        for batch in await asyncio.shield(self._task):
            found += await metadata_of(batch)
        return found
