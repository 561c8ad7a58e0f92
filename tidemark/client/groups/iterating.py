"""`async for record in consumer`: polls, and hands out one record after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Self

from tidemark.client.errors import ClientClosedError
from tidemark.client.models import ConsumerRecord
from tidemark.client.records import Records
from tidemark.types import TopicPartition

_POLL_MS = 60_000


class RecordIterator:
    """The records of a consumer, one at a time; ends when it is closed.

    A record counts as processed when the next one is asked for. `processed` has the offset behind
    the last such record of each partition that was polled. So a commit amid an iteration covers no
    record that was not processed.
    """

    def __init__(
        self,
        poll: Callable[[float], Awaitable[Records]],
        processed: MutableMapping[TopicPartition, int],
    ) -> None:
        self._poll = poll
        self._processed = processed
        self._waiting: deque[ConsumerRecord] = deque()
        self._last: ConsumerRecord | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        if self._last is not None:
            last, self._last = self._last, None
            self._processed[_partition_of(last)] = last.offset + 1
        while not self._waiting:
            self._processed.clear()
            try:
                records = await self._poll(_POLL_MS)
            except ClientClosedError:
                raise StopAsyncIteration from None
            for record in records:
                self._processed.setdefault(_partition_of(record), record.offset)
                self._waiting.append(record)
        self._last = self._waiting.popleft()
        return self._last

    def forget(self, partition: TopicPartition) -> None:
        """Drops the records of a partition that was sought."""
        left = [record for record in self._waiting if _partition_of(record) != partition]
        self._waiting = deque(left)
        self._processed.pop(partition, None)
        if self._last is not None and _partition_of(self._last) == partition:
            self._last = None

    def give_back(self) -> dict[TopicPartition, int]:
        """Ends the iteration. Returns the offset of the first record that was not handed out, for
        each partition that has one: it has to be polled again."""
        first: dict[TopicPartition, int] = {}
        for record in self._waiting:
            first.setdefault(_partition_of(record), record.offset)
        self._waiting.clear()
        self._processed.clear()
        self._last = None
        return first


def _partition_of(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
