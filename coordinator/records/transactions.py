"""Records of `__transaction_state` (KIP-98, KIP-890): TransactionLogKey and TransactionLogValue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from coordinator.records.transaction_codec import TransactionCodec
from coordinator.records.types import RecordType, RecordTypes
from tidemark.records.kafka_schema import Field, Struct


class TransactionState(IntEnum):
    """The states of a transaction, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionLogKey:
    """The transactional id that a record is about."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class TransactionPartitions:
    """Partitions of a topic that a transaction has written to."""

    topic: str
    partition_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransactionLogValue:
    """A transaction; times in ms, -1 where there is none.

    `transaction_partitions` is None while there is no transaction. The next producer id and epoch
    are those of a producer whose epochs are exhausted.
    """

    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: tuple[TransactionPartitions, ...] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_transaction_version: int = 0
    next_producer_epoch: int = -1


_PARTITIONS = Struct(TransactionPartitions, (Field("topic", "str"), Field("partitionIds", ["i32"])))

TRANSACTION_LOG = RecordType(
    0,
    Struct(TransactionLogKey, (Field("transactionalId", "str"),)),
    Struct(
        TransactionLogValue,
        (
            Field("producerId", "i64"),
            Field("previousProducerId", "i64", since=1, tag=0, default=-1),
            Field("nextProducerId", "i64", since=1, tag=1, default=-1),
            Field("producerEpoch", "i16"),
            Field("nextProducerEpoch", "i16", since=1, tag=3, default=-1),
            Field("transactionTimeoutMs", "i32"),
            Field("transactionStatus", "i8"),
            Field("transactionPartitions", [_PARTITIONS]),
            Field("transactionLastUpdateTimestampMs", "i64"),
            Field("transactionStartTimestampMs", "i64"),
            Field("clientTransactionVersion", "i16", since=1, tag=2),
        ),
    ),
    highest=1,
    written=1,
    flexible_since=1,
)
TRANSACTION_RECORDS = RecordTypes(
    (TRANSACTION_LOG,),
    TransactionCodec(TransactionLogKey, TransactionLogValue, TransactionPartitions),
)
