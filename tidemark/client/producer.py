"""AsyncProducer: records in, acknowledgements out, in Kafka's terms and with Kafka's guarantees.

`send` is a plain call that puts a record into a batch and returns an awaitable. A program can send
thousands without a context switch. `send_arrow` takes whole Arrow tables and touches no record in
Python. With the default idempotence, every acknowledged record is in the log exactly once, in
order. RULES.md I17 and I18 state the promises. With a transactional id, records of several
partitions and offsets of a group are committed together (KIP-98).

Decisions are made by `producer_core.ProducerCore`, which is pure; `sender.Sender` is its edge.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

from tidemark.client import forks
from tidemark.client.admission import Limits, ParkedRecord, check_record
from tidemark.client.batch import Batch
from tidemark.client.closing import AsyncCloses
from tidemark.client.connections import Connections, Security, parse_bootstrap_servers
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.delivery import ArrowDelivery, ArrowSend, Delivery
from tidemark.client.errors import ClientClosedError, IllegalStateError
from tidemark.client.groups.requests import offsets_of
from tidemark.client.metadata import MetadataCache
from tidemark.client.models import ConsumerGroupMetadata, Header, OffsetAndMetadata
from tidemark.client.producer_core import ProducerCore
from tidemark.client.retry import RetryPolicy
from tidemark.client.sender import Sender
from tidemark.client.transactions.core import Identity, TransactionCore
from tidemark.client.transactions.producing import ProducerTransactions
from tidemark.errors import ConfigError
from tidemark.surroundings import make_rng, surroundings
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2

logger = logging.getLogger(__name__)

_ACKS = {"all": -1, "-1": -1, -1: -1, "0": 0, 0: 0, "1": 1, 1: 1}
_DELIVERY_TIMEOUT_MS = 120_000
_LONGEST_MS = 2**31 - 1
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class AsyncProducer(AsyncCloses):
    """Sends records; made and used on one running event loop.

    Names and meanings of the settings are Kafka's. `acks` is "all" (default), 1 or 0.
    `enable_idempotence` of None means on if acks is all. `batch_size` limits the bytes of a batch.
    `linger_ms` is the longest wait for more records if no batch of the partition is under way.
    `buffer_memory` limits the bytes not yet acknowledged; beyond it, sends wait up to
    `max_block_ms`. `delivery_timeout_ms` limits the time of a record from send to acknowledgement,
    retries included. It is at least `linger_ms` + `request_timeout_ms`; None means 120,000, or that
    sum if it is larger. Quotas of the cluster may be set for `client_id`. Raises ConfigError for
    settings that contradict each other.

    With a `transactional_id` it sends in transactions only, and fences earlier producers that have
    the same one. A transaction that is open for longer than `transaction_timeout_ms` is aborted by
    its coordinator. `tidemark.client.errors.kind_of` says what an error asks of the caller.

    - Every record handed over is given out, failed, or still owned.
    - Every delivery has an outcome, within delivery.timeout.ms or close(timeout).
    - No error that nobody foresaw stops the producer: it fails what it concerns, and is logged.

    Requests name the topic's id. The leader of a topic made anew under its name refuses them
    (INCONSISTENT_TOPIC_ID). Then the metadata is refreshed, and waiting records go to the new
    topic, as Kafka's do.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        acks: str | int = "all",
        enable_idempotence: bool | None = None,
        compression_type: str = "none",
        batch_size: int = 1_000_000,
        linger_ms: float = 5,
        max_request_size: int = 4 << 20,
        max_in_flight_requests_per_connection: int = 5,
        buffer_memory: int = 64 << 20,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: int | None = None,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "",
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        security: Security = None,
        random_seed: int | None = None,
        connect: Callable[..., Connections] = Connections,
    ) -> None:
        _check_settings(acks, enable_idempotence, compression_type)
        transaction = _transaction_of(
            transactional_id, transaction_timeout_ms, acks, enable_idempotence, self._let_in
        )
        self._wall_ms = surroundings().wall_ms
        self._loop_time = asyncio.get_running_loop().time
        self._linger_ms = linger_ms
        max_in_flight = max_in_flight_requests_per_connection
        self._limits = _checked_limits(
            batch_size, max_request_size, buffer_memory, max_block_ms, max_in_flight, _ACKS[acks]
        )
        delivery_ms = _delivery_timeout_ms(delivery_timeout_ms, linger_ms, request_timeout_ms)
        rng = make_rng(random_seed)
        least_ms = min(retry_backoff_ms, retry_backoff_max_ms)
        retry = RetryPolicy(delivery_ms, least_ms, retry_backoff_max_ms)
        self._connections = connect(
            request_timeout_ms=request_timeout_ms, client_id=client_id, security=security
        )
        self._metadata = MetadataCache(
            self._connections,
            parse_bootstrap_servers(bootstrap_servers),
            retry=retry,
            rng=rng,
            metadata_max_age_ms=metadata_max_age_ms,
            on_update=self._on_metadata,
            in_use=lambda: self._core.admission.topics,
        )
        self._core = ProducerCore(
            self._metadata,
            self._limits,
            linger_ms=linger_ms,
            retry=retry,
            idempotent=_ACKS[acks] == -1 if enable_idempotence is None else enable_idempotence,
            request_timeout_ms=request_timeout_ms,
            rng=rng,
            transaction=transaction,
        )
        forks.watch(self)
        # A record's way is short: it is taken most often.
        self._admit: Callable[..., Batch | ParkedRecord | None] = self._core.admission.send
        connected = (self._core, self._connections, self._metadata, self._limits)
        self._sender = Sender(*connected, compression_type, transactional_id or "")
        self.transactions = self._with_calls(transaction, retry, rng)

    def _with_calls(
        self, transaction: TransactionCore | None, retry: RetryPolicy, rng: Random
    ) -> ProducerTransactions | None:
        def calls(key: str, key_type: group_pb2.CoordinatorType.ValueType) -> CoordinatorCalls:
            return CoordinatorCalls(key, key_type, self._connections, self._metadata, retry, rng)

        if transaction is None:
            return None
        self._let_in(False)
        return ProducerTransactions(transaction, self._sender, calls, self.max_block_ms)

    def forked(self) -> None:
        """Makes each send raise ClientForkedError; for `forks`."""
        self._admit = forks.refuse

    def _let_in(self, is_open: bool) -> None:
        """Begins or ends to take records, so that no send looks at the transaction's state."""
        self._admit = self._core.admission.send if is_open else self._refuse
        self._sender.schedule()

    def _refuse(self, *_: Any) -> None:
        self.required_transactions().core.refuse()

    # Sending.

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Delivery:
        """Queues a record; `await` the result for its RecordMetadata.

        `timestamp_ms` is the current time by default.

        The delivery fails with the leader's error (MessageTooLargeError, InvalidTimestampError,
        ...), RequestTimedOutError after delivery.timeout.ms, or UnknownTopicOrPartitionError or
        BufferExhaustedError after max.block.ms.

        Raises ClientClosedError, and TypeError for a key or value that is not bytes. A producer
        with a transactional id raises IllegalStateError outside of a transaction, and
        TransactionAbortableError after a failed delivery. Raises BufferExhaustedError if twice
        buffer.memory is taken: `await drain()` from time to time.
        """
        delivery = Delivery()
        self.enqueue(delivery, topic, value, key, partition, timestamp_ms, headers)
        return delivery

    def enqueue(
        self,
        delivery: Delivery,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header],
    ) -> None:
        """`send` for a delivery that the blocking class made in another thread."""
        checked: tuple[Header, ...] = ()
        if (
            partition is not None
            or timestamp_ms is not None
            or headers
            or type(value) is not bytes
            or (key is not None and type(key) is not bytes)
        ):
            checked = check_record(topic, value, key, partition, timestamp_ms, headers)
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        now_ms = self._loop_time() * 1000
        found = self._admit(delivery, topic, value, key, partition, timestamp_ms, checked, now_ms)
        if found is None:
            return
        if isinstance(found, ParkedRecord):
            self._sender.schedule()
            return
        if found is not self._core.accumulator.queue(found.topic_partition).batches[0]:
            self._sender.schedule()  # the batch before it is full
        self._sender.linger(now_ms + self._linger_ms)

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None) -> ArrowDelivery:
        """Queues the rows of a pyarrow RecordBatch or Table; `await` the result for
        list[BatchMetadata].

        The columns are:

        - value, and optionally key: binary or string
        - timestamp, optional: int64 ms or a timestamp; the current time by default
        - headers, optional: list of struct<key, value>
        - partition, optional: int; null means by key

        Order holds per partition within each call and among calls of `send_arrow`; records of
        `send` may overtake them. To be slowed down while the buffer is full, await `.accepted()`
        before the next call.

        Errors are those of `send`, and InvalidRecordError for columns of other names or types.
        """
        if not (hasattr(data, "nbytes") and hasattr(data, "schema")):
            raise TypeError(f"data is a RecordBatch or Table, not {type(data).__name__}")
        tables = _batches_of(data) if hasattr(data, "to_batches") else [data]
        self._connections.check_fork()
        if self.transactions is not None:
            self.transactions.core.check_send()
        send = ArrowSend(len(tables))
        self._core.send_tables(send, topic, tables, partition, self._sender.now_ms())
        self._sender.schedule()
        return ArrowDelivery(send)

    async def flush(self) -> None:
        """Returns when all records sent before are acknowledged or have failed; raises none of
        their errors.
        """
        self._connections.check_fork()
        await self._sender.flush()

    async def drain(self) -> None:
        """Returns when the buffer has room and no send waits for it."""
        self._connections.check_fork()
        await self._sender.until(lambda: self._core.has_room)

    # Transactions.

    async def init_transactions(
        self, timeout_ms: float | None = None, *, keep_open: bool = False
    ) -> None:
        """Fences earlier producers of the transactional id, whose open transaction is aborted, and
        makes this one ready. Does nothing if it is.

        `timeout_ms` is max.block.ms by default. Raises InvalidTransactionTimeoutError, and after
        the timeout the last retriable error; it may be called again then. With `keep_open` no
        transaction is aborted (KIP-939). Raises InvalidTxnStateError while one is open, and
        UnsupportedVersionError of brokers that are too old.
        """
        self._connections.check_fork()
        await self.required_transactions().init(timeout_ms, keep_open=keep_open)

    def begin_transaction(self) -> None:
        """Opens a transaction, to which all sends belong until it is committed or aborted.

        Raises IllegalStateError if there is one, or before `init_transactions`.
        """
        self._connections.check_fork()
        self.required_transactions().begin()

    async def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Flushes, and commits the transaction.

        `timeout_ms`, max.block.ms by default, limits the wait for the coordinator. Raises:

        - TransactionAbortableError if a record or offsets were lost: abort the transaction
        - TransactionInDoubtError if no answer came: only this may be called again, and `close`
          does it once
        - ProducerFencedError and others that `kind_of` calls RECOVERABLE: every later call does

        Cancelled while it flushes, it leaves the transaction open; later, in doubt.
        """
        self._connections.check_fork()
        await self.required_transactions().commit(timeout_ms)

    async def hand_over_transaction(self) -> Identity | None:
        """Flushes, and leaves the transaction open for another process to end (KIP-939).

        Returns the id and epoch that `AsyncAdmin.transactions` takes in `prepare` and `end`; None
        if nothing was sent. Only `close` may be called then, which aborts nothing. Until the end
        transaction.timeout.ms goes on, unless it is prepared. Raises as `commit_transaction` if a
        record was lost.
        """
        self._connections.check_fork()
        return await self.required_transactions().hand_over()

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Drops records that are not acknowledged, and aborts the transaction.

        Their deliveries fail with TransactionAbortedError. After an error or a cancellation only
        this may be called again. Otherwise as `commit_transaction`.
        """
        self._connections.check_fork()
        await self.required_transactions().abort(timeout_ms)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits offsets of a group with the transaction (KIP-447), such as
        `consumer.positions()` and `consumer.group_metadata()`. Get the records by a poll: within
        `async for` the positions do not cover the present record.

        Raises CommitFailedError if the consumer is not the group's member any more, and
        TransactionAbortableError if no answer came in time. After any failure at the coordinator
        the transaction has to be aborted. Raises ValueError for a negative offset, and TypeError.
        """
        self._connections.check_fork()
        if not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(f"group is what consumer.group_metadata() gives, not {group!r}")
        await self.required_transactions().send_offsets(offsets_of(offsets), group, timeout_ms)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """`async with producer.transaction():` begins a transaction and commits it at the end.

        The first one calls `init_transactions`. An error in the block, a failed delivery and a
        cancellation abort it, and are raised. A commit whose answer did not come is not aborted:
        TransactionInDoubtError is raised, see `commit_transaction`.
        """
        self._connections.check_fork()
        return self.required_transactions().scope()

    def required_transactions(self) -> ProducerTransactions:
        """The producer's transactions. Raises IllegalStateError without a transactional id."""
        if self.transactions is None:
            raise IllegalStateError("this producer has no transactions: give it a transactional_id")
        return self.transactions

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms` (None: until every delivery has an outcome), then
        closes. An open transaction is aborted, within the same time.

        Deliveries without an outcome then fail with ClientClosedError, also if the call is
        cancelled. Idempotent; a later call with a shorter time shortens the first one.
        """
        self._connections.check_fork()
        self._core.close()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                if self.transactions is not None:
                    await self.transactions.close()
                await self._sender.flush()
        except TimeoutError:
            pass
        finally:
            error = ClientClosedError("the producer was closed before this was acknowledged")
            await self._sender.close(error)
            await self._metadata.close()
            await self._connections.close()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are not acknowledged yet, those waiting for room included."""
        return self._core.buffered_bytes

    @property
    def buffer_memory(self) -> int:
        """The limit of `buffered_bytes` beyond which sends wait."""
        return self._limits.buffer_memory

    @property
    def max_block_ms(self) -> float:
        """The longest wait of a send for room or for its topic's metadata."""
        return self._limits.max_block_ms

    def metrics(self) -> dict[str, float]:
        """Rates, sizes in bytes and times in ms of this producer, by Kafka's names.

        README lists them.
        """
        return self._core.metrics(self._sender.now_ms())

    async def partitions_for(
        self, topic: str, timeout_ms: float | None = None
    ) -> list[TopicPartition]:
        """The partitions of a topic, by number.

        Raises UnknownTopicOrPartitionError after `timeout_ms`, or else max.block.ms.
        """
        self._connections.check_fork()
        limit_ms = self.max_block_ms if timeout_ms is None else timeout_ms
        found = await self._metadata.topic(topic, limit_ms)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def _on_metadata(self) -> None:
        self._core.admission.update_topics()
        self._sender.schedule()


def _check_settings(acks: str | int, idempotence: bool | None, compression_type: str) -> None:
    if acks not in _ACKS:
        raise ConfigError(f"acks={acks!r} is none of all, 1, 0")
    if compression_type not in _CODECS:
        raise ConfigError(f"compression.type={compression_type!r} is none of {_CODECS}")
    if idempotence and _ACKS[acks] != -1:
        raise ConfigError("enable.idempotence needs acks=all")


def _transaction_of(
    transactional_id: str | None,
    timeout_ms: int,
    acks: str | int,
    idempotence: bool | None,
    on_open: Callable[[bool], None],
) -> TransactionCore | None:
    if not 0 < timeout_ms <= _LONGEST_MS:
        raise ConfigError(f"transaction.timeout.ms={timeout_ms} is not in 1..2**31-1")
    if transactional_id is None:
        return None
    if not isinstance(transactional_id, str) or not transactional_id:
        raise ConfigError(f"transactional.id={transactional_id!r}: it is a text, and not empty")
    if _ACKS[acks] != -1 or idempotence is False:
        raise ConfigError("transactional.id needs acks=all and enable.idempotence=true")
    return TransactionCore(transactional_id, timeout_ms, on_open)


def _checked_limits(
    batch_size: int,
    max_request_size: int,
    buffer_memory: int,
    max_block_ms: float,
    max_in_flight: int,
    acks: int,
) -> Limits:
    _check_times(max_block_ms=max_block_ms)
    if min(batch_size, max_request_size, buffer_memory) < 1:
        raise ConfigError("batch.size, max.request.size and buffer.memory are above zero")
    if max_in_flight < 1:
        raise ConfigError("max.in.flight.requests.per.connection is above zero")
    return Limits(batch_size, max_request_size, buffer_memory, max_block_ms, max_in_flight, acks)


def _check_times(**settings: float) -> None:
    for name, milliseconds in settings.items():
        if not milliseconds >= 0:  # NaN is not, either
            raise ConfigError(f"{name.replace('_', '.')}={milliseconds} is below zero")


def _delivery_timeout_ms(wanted: int | None, linger_ms: float, request_timeout_ms: int) -> int:
    """Returns delivery.timeout.ms. A shorter one than linger.ms + request.timeout.ms would end
    records before the answer to their first request: the default is raised to it (Kafka's rule).
    """
    _check_times(linger_ms=linger_ms, request_timeout_ms=request_timeout_ms)
    least = math.ceil(linger_ms + request_timeout_ms) if math.isfinite(linger_ms) else _LONGEST_MS
    least = min(least, _LONGEST_MS)
    if wanted is None:
        if least > _DELIVERY_TIMEOUT_MS:
            logger.warning(
                "delivery.timeout.ms should be equal to or larger than linger.ms +"
                " request.timeout.ms. Setting it to %d.",
                least,
            )
        return max(least, _DELIVERY_TIMEOUT_MS)
    if not wanted >= least:  # NaN is not, either
        raise ConfigError(
            f"delivery.timeout.ms={wanted} should be equal to or larger than"
            f" linger.ms + request.timeout.ms={least}"
        )
    return wanted


def _batches_of(table: Any) -> list[Any]:
    """A Table as few RecordBatches as possible, because each call of the kernels has a fixed
    cost.
    """
    return list(table.combine_chunks().to_batches()) if table.num_rows else []
