"""One transactional id: its state, and the records that take it to the next one.

An epoch belongs to one transaction. Its end has the next epoch, which the markers carry too. The
last epoch, 32767, is kept for a fence, so every producer can be fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from coordinator.records.transactions import (
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
)
from tidemark.types import TopicPartition

VERSION = 2
"""The transactions of KIP-890; older ones do not bump the epoch."""
LAST_EPOCH = 2**15 - 2
"""The highest epoch that a producer is given."""

NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction that waits for a decision made elsewhere (KIP-939)."""

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETED = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """The header of a producer's records has both."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class PendingMarkers:
    """An outcome that the leaders of `partitions` have not been told, or have not acknowledged.

    Without partitions nothing is left but to note that the transaction has ended.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]


def new(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """The first state of a transactional id."""
    return TransactionLogValue(
        producer_id,
        0,
        timeout_ms,
        TransactionState.EMPTY,
        None,
        now_ms,
        client_transaction_version=VERSION,
    )


def producer_of(state: TransactionLogValue) -> ProducerIdAndEpoch:
    """The producer of the next transaction: while one ends by exhausting its epochs, a new one."""
    if state.next_producer_id >= 0:
        return ProducerIdAndEpoch(state.next_producer_id, 0)
    return ProducerIdAndEpoch(state.producer_id, state.producer_epoch)


def partitions_of(state: TransactionLogValue) -> frozenset[TopicPartition]:
    """The partitions that the transaction has written to."""
    return frozenset(
        TopicPartition(found.topic, number)
        for found in state.transaction_partitions or ()
        for number in found.partition_ids
    )


def initialized(
    state: TransactionLogValue, producer: ProducerIdAndEpoch, timeout_ms: int, now_ms: int
) -> TransactionLogValue:
    """No transaction; a producer that has just come."""
    return replace(
        _moved(state, TransactionState.EMPTY, now_ms),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_timeout_ms=timeout_ms,
        transaction_partitions=None,
        transaction_start_timestamp_ms=-1,
    )


def with_partitions(
    state: TransactionLogValue, partitions: Iterable[TopicPartition], now_ms: int
) -> TransactionLogValue:
    """An open transaction with these partitions too; it begins with the first ones."""
    is_open = state.transaction_status == TransactionState.ONGOING
    moved = _moved(state, TransactionState.ONGOING, now_ms)
    start_ms = state.transaction_start_timestamp_ms
    return replace(
        moved,
        transaction_partitions=_by_topic({*partitions_of(state), *partitions}),
        transaction_start_timestamp_ms=start_ms if is_open else now_ms,
    )


def without_timeout(state: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """The open transaction waits for its end without a limit."""
    moved = _moved(state, TransactionState.ONGOING, now_ms)
    return replace(moved, transaction_timeout_ms=NO_TIMEOUT_MS)


def prepared(
    state: TransactionLogValue, committed: bool, next_producer_id: int, now_ms: int
) -> TransactionLogValue:
    """The outcome is decided. `next_producer_id` is -1 unless the epochs are exhausted."""
    outcome = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    return replace(
        _moved(state, outcome, now_ms),
        producer_epoch=state.producer_epoch + 1,
        next_producer_id=next_producer_id,
    )


def completed(state: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """All markers are written."""
    is_commit = state.transaction_status == TransactionState.PREPARE_COMMIT
    outcome = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    producer = producer_of(state)
    return replace(
        _moved(state, outcome, now_ms),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        next_producer_id=-1,
        transaction_partitions=(),
    )


def _moved(
    state: TransactionLogValue, status: TransactionState, now_ms: int
) -> TransactionLogValue:
    return replace(
        state,
        transaction_status=status,
        previous_producer_id=state.producer_id,
        transaction_last_update_timestamp_ms=max(
            now_ms, state.transaction_last_update_timestamp_ms
        ),
        client_transaction_version=VERSION,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[TransactionPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return tuple(TransactionPartitions(topic, tuple(found)) for topic, found in topics.items())
