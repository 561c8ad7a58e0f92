"""Plain records in both directions, for clients without a batch codec: a convenience, no hot
path.
"""

from __future__ import annotations

from tidemark.errors import InvalidRequestError, TidemarkError, set_error
from tidemark.records import Record, decode_batch, encode_batch, iter_batches
from tidemark.v1 import common_pb2
from tidemark.wire import FetchPartitionData, PartitionProduceData


def to_batch(data: PartitionProduceData, now_ms: int) -> bytes:
    """Encodes the plain records as one batch; a timestamp of 0 or below becomes `now_ms`.

    Raises InvalidRequestError for a part of the three numbers of an idempotent producer.
    """
    numbers = (data.producer_id, data.producer_epoch, data.base_sequence)
    if min(numbers) < 0 and numbers != (-1, -1, -1):
        raise InvalidRequestError(
            f"producer_id, producer_epoch and base_sequence are {numbers}: set all three, or none"
        )
    return encode_batch(
        [
            Record(
                offset=position,
                timestamp_ms=plain.timestamp_ms if plain.timestamp_ms > 0 else now_ms,
                key=plain.key if plain.HasField("key") else None,
                value=plain.value if plain.HasField("value") else None,
                headers=tuple(
                    (header.key, header.value if header.HasField("value") else None)
                    for header in plain.headers
                ),
            )
            for position, plain in enumerate(data.plain_records)
        ],
        producer_id=data.producer_id,
        producer_epoch=data.producer_epoch,
        base_sequence=data.base_sequence,
    )


def to_plain(answer: FetchPartitionData, fetch_offset: int) -> None:
    """Replaces the batches of an answer by their records from `fetch_offset` on, without control
    records and those of the aborted transactions that it names (KIP-98)."""
    payload = answer.payload
    plain: list[common_pb2.Record] = []
    waiting = sorted(answer.aborted_transactions, key=lambda one: -one[1])
    aborted: set[int] = set()  # producers whose transaction at this offset was aborted
    try:
        for position, header in iter_batches(payload):
            while waiting and waiting[-1][1] <= header.last_offset:
                aborted.add(waiting.pop()[0])
            if header.is_control:
                aborted.discard(header.producer_id)  # the end of its transaction
            elif not (header.is_transactional and header.producer_id in aborted):
                found = decode_batch(payload, position)
                plain.extend(_plain(r) for r in found if r.offset >= fetch_offset)
    except TidemarkError as error:
        set_error(answer, error)
        answer.next_offset = 0
        plain = []
    answer.records = answer.aborted_transactions = ()
    answer.plain_records = tuple(plain)


def _plain(record: Record) -> common_pb2.Record:
    message = common_pb2.Record(offset=record.offset, timestamp_ms=record.timestamp_ms)
    if record.key is not None:
        message.key = record.key
    if record.value is not None:
        message.value = record.value
    for key, value in record.headers:
        header = message.headers.add(key=key)
        if value is not None:
            header.value = value
    return message
