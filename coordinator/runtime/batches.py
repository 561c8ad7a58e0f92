"""Coordinator records as record batches of an internal topic, and back."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.records.types import RecordTypes, UnknownRecordError
from coordinator.runtime.result import CoordinatorRecord
from tidemark.errors import InvalidRequestError
from tidemark.records import iter_batches
from tidemark.records.control import end_transaction
from tidemark.records.header import BytesLike
from tidemark.records.plain import Record, encode_batch, iter_records

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """The producer in whose transaction records are appended."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record of the log; `producer_id` is -1 outside of transactions."""

    offset: int
    producer_id: int
    key: Any
    value: Any | None


@dataclass(frozen=True, slots=True)
class ReplayedEnd:
    """A transaction marker of the log."""

    offset: int
    producer_id: int
    committed: bool


def encode(
    types: RecordTypes,
    records: Sequence[CoordinatorRecord],
    now_ms: int,
    producer: TransactionalProducer | None = None,
) -> bytes:
    """One batch of all records. Raises InvalidRequestError for a text that is too long for one."""
    try:
        encoded = [Record(0, now_ms, *types.encode(key, value)) for key, value in records]
    except struct.error as error:
        raise InvalidRequestError(
            f"a name or a number does not fit into a record: {error}; names have at most"
            " 32,767 bytes"
        ) from error
    if producer is None:
        return encode_batch(encoded)
    return encode_batch(
        encoded,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,  # always, as Kafka's: a coordinator repeats no batch
        transactional=True,
    )


def decode(types: RecordTypes, batches: BytesLike) -> Iterator[Replayed | ReplayedEnd]:
    """The records and markers in whole batches. Those of a newer release are left out. Raises
    CorruptMessageError."""
    for position, header in iter_batches(batches):
        if header.is_control:
            ended = end_transaction(batches, position)
            if ended is not None:
                yield ReplayedEnd(header.base_offset, header.producer_id, ended.committed)
            continue
        producer_id = header.producer_id if header.is_transactional else -1
        for record in iter_records(batches, position):
            if record.key is None:
                continue
            try:
                key, value = types.decode(record.key, record.value)
            except UnknownRecordError as error:
                logger.warning("offset %d is left out: %s", record.offset, error)
                continue
            yield Replayed(record.offset, producer_id, key, value)
