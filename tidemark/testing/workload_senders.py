"""The producers of a workload: idempotent and plain, single records and Arrow tables, all acks.

Small batches and short pauses keep a tail of records that only the leader has. Now and then a
producer is closed, and another one begins under a name of its own. Order is promised to one
producer, not to two.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.client import AsyncProducer, BufferExhaustedError
from tidemark.errors import (
    InvalidPartitionsError,
    InvalidRecordError,
    MessageTooLargeError,
    TidemarkError,
    UnknownServerError,
)
from tidemark.testing.history import (
    ACKNOWLEDGED,
    ARROW,
    REFUSED,
    SINGLE,
    UNKNOWN,
    History,
    Misbehaved,
    Outcome,
    ProducerMade,
    Sent,
    identity_of,
    value_of,
)
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.testing.workload import Clients, WorkloadPace

# Refused before anything is written, at every attempt.
_DEFINITE = (BufferExhaustedError, InvalidPartitionsError, InvalidRecordError, MessageTooLargeError)
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_KEYS = ("", "a", "b", "c", "d")
_MAX_REQUEST_BYTES = 60_000
_MAX_UNDER_WAY = 40
_ROWS_MAX = 13


@dataclass(frozen=True, slots=True)
class SenderKind:
    """A kind of producer."""

    name: str
    acks: int
    idempotent: bool
    form: str


SENDERS = (
    SenderKind("idempotent", -1, True, SINGLE),
    SenderKind("tables", -1, True, ARROW),
    SenderKind("plain", -1, False, SINGLE),
    SenderKind("plaintables", -1, False, ARROW),
    SenderKind("one", 1, False, SINGLE),
    SenderKind("onetables", 1, False, ARROW),
    SenderKind("zero", 0, False, SINGLE),
)


class WorkloadSender:
    """One producer at a time of one kind. `count` is the number of its sends so far."""

    def __init__(
        self,
        kind: SenderKind,
        clients: Clients,
        history: History,
        rng: random.Random,
        partitions: Sequence[TopicPartition],
        pace: WorkloadPace,
    ) -> None:
        self.name = kind.name
        self.count = 0
        self._kind = kind
        self._clients = clients
        self._history = history
        self._rng = rng
        self._partitions = partitions
        self._pace = pace
        self._closes = True
        self._generation = 0
        self._sequence = 0
        self._producer: AsyncProducer | None = None
        self._under_way: dict[asyncio.Task[None], str] = {}

    @property
    def limit_ms(self) -> float:
        """Longest time from a send to its outcome."""
        return self._pace.max_block_ms + self._pace.delivery_timeout_ms + self._pace.slack_ms

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until `stop` is set."""
        while not stop.is_set():
            if self._producer is None or (self._closes and self._rng.random() < 0.004):
                await self.close()
                self._begin()
            if len(self._under_way) < _MAX_UNDER_WAY:
                for _ in range(self._rng.choice((1, 1, 1, 2, 8))):
                    self._send()
            await asyncio.sleep(self._rng.expovariate(1.0) * self._pace.send_ms / 1000)

    def calm(self) -> None:
        """Closes no producer from here on: one that is closed may give up what is under way."""
        self._closes = False

    async def settle(self) -> None:
        """Waits for all outcomes, at most for their limit; then the missing ones show in the
        history.
        """
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=self.limit_ms / 1000)

    async def close(self) -> None:
        """Closes the producer. Deliveries have their outcomes then."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        timeout_ms = self._rng.choice((None, 0, 200, 2_000))
        limit_ms = 1_000 + (
            self.limit_ms if timeout_ms is None else timeout_ms + self._pace.slack_ms
        )
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await producer.close(timeout_ms)
        except TimeoutError:
            self._complain(f"close({timeout_ms}) did not return in {limit_ms:.0f} ms")
        except Exception as error:
            self._complain(f"close({timeout_ms}) raised {error!r}")
        await self._drop()

    async def _drop(self) -> None:
        """Gives deliveries of a closed producer a moment for their outcomes, then leaves them."""
        left = list(self._under_way)
        if left:
            _, left_over = await asyncio.wait(left, timeout=1 + self._pace.slack_ms / 1000)
            for task in left_over:
                self._complain(f"{self._under_way[task]} has no outcome after close")
                task.cancel()

    def _begin(self) -> None:
        self._generation += 1
        self._sequence = 0
        self.name = f"{self._kind.name}.{self._generation}"
        settings: dict[str, Any] = {
            "acks": "all" if self._kind.acks == -1 else self._kind.acks,
            "enable_idempotence": self._kind.idempotent,
            "compression_type": self._rng.choice(_CODECS),
            "batch_size": self._rng.choice((300, 2_000, 30_000)),
            "linger_ms": self._rng.choice((0, 2, 20)),
            "max_request_size": _MAX_REQUEST_BYTES,
            "max_block_ms": self._pace.max_block_ms,
            "delivery_timeout_ms": self._pace.delivery_timeout_ms,
            "request_timeout_ms": self._pace.request_timeout_ms,
            "metadata_max_age_ms": self._pace.metadata_max_age_ms,
        }
        now_ms = self._history.now_ms()
        kind = self._kind
        self._history.add(
            ProducerMade(now_ms, self.name, kind.acks, kind.idempotent, kind.form, self.limit_ms)
        )
        self._producer = self._clients.producer(**settings)

    # One send.

    def _send(self) -> None:
        arrow = self._kind.form == ARROW
        topic, partition = self._rng.choice(self._partitions)
        stated: int | None = partition
        if not arrow and self._rng.random() < 0.4:
            stated = None  # by its key
        elif self._rng.random() < 0.005:
            stated = 1_000  # there is none
        size = self._rng.randrange(200)
        if self._rng.random() < 0.03:
            size = 5_000
        elif self._rng.random() < 0.005 and not arrow:
            size = 2 * _MAX_REQUEST_BYTES
        rows = self._rng.randint(1, _ROWS_MAX) if arrow else 1
        records = tuple((self._sequence + n + 1, self._rng.choice(_KEYS)) for n in range(rows))
        self._sequence += rows
        self.count += 1
        op = f"{self.name}/{records[0][0]}"
        sent = Sent(self._history.now_ms(), self.name, op, topic, stated, records)
        self._history.add(sent)
        values = [value_of(identity_of(self.name, *record), size) for record in records]
        keys = [key.encode() or None for _, key in records]
        call = self._arrow_call if arrow else self._single_call
        try:
            delivery = call(topic, stated, keys, values)
        except Exception as error:
            self._failed(op, error)
            return
        task = asyncio.create_task(self._await(op, delivery, rows))
        self._under_way[task] = op
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    def _single_call(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None],
        values: Sequence[bytes],
    ) -> Any:
        assert self._producer is not None
        return self._producer.send(topic, values[0], keys[0], partition=partition)

    def _arrow_call(
        self,
        topic: str,
        partition: int | None,
        keys: Sequence[bytes | None],
        values: Sequence[bytes],
    ) -> Any:
        import pyarrow as pa

        assert self._producer is not None
        table = pa.table(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
        return self._producer.send_arrow(topic, table, partition=partition)

    async def _await(self, op: str, delivery: Any, rows: int) -> None:
        try:
            found = await delivery
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._complain(f"{op} raised CancelledError into a task that nobody cancelled")
                self._failed(op, TidemarkError("cancelled"))
                return
            raise
        except Exception as error:
            self._failed(op, error)
            return
        places = _places(found) if self._kind.form == ARROW else ((found.partition, found.offset),)
        self._history.add(Outcome(self._history.now_ms(), op, ACKNOWLEDGED, places))

    def _failed(self, op: str, error: Exception) -> None:
        name = type(error).__name__
        if not isinstance(error, TidemarkError) or isinstance(error, UnknownServerError):
            self._complain(f"{op} failed with {error!r}")
        # A table is several batches, of which others may be written.
        whole = self._kind.form == SINGLE or not isinstance(error, MessageTooLargeError)
        state = REFUSED if isinstance(error, _DEFINITE) and whole else UNKNOWN
        text = f"{name}: {error}"[:200]
        self._history.add(Outcome(self._history.now_ms(), op, state, (), text))

    def _complain(self, what: str) -> None:
        self._history.add(Misbehaved(self._history.now_ms(), self.name, what))


def _places(batches: Any) -> tuple[tuple[int, int], ...]:
    """The place of each row of a table that was sent to one partition."""
    return tuple(
        (batch.partition, batch.base_offset + row if batch.base_offset >= 0 else -1)
        for batch in batches
        for row in range(batch.record_count)
    )
