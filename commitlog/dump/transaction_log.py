"""Keys and values of Kafka's `__transaction_state`, as its --transaction-log-decoder prints them.

The schemas are TransactionLogKey and TransactionLogValue, versions 0 and 1.
"""

from __future__ import annotations

import json
from typing import Any

from commitlog.dump.kafka_schema import Field, Schema, SchemaReader, read_all

_KEY: Schema = (Field("transactionalId", "str"),)
_VALUE: Schema = (
    Field("producerId", "i64"),
    Field("previousProducerId", "i64", since=1, tag=0),
    Field("nextProducerId", "i64", since=1, tag=1),
    Field("producerEpoch", "i16"),
    Field("nextProducerEpoch", "i16", since=1, tag=3),
    Field("transactionTimeoutMs", "i32"),
    Field("transactionStatus", "i8"),
    Field("transactionPartitions", [(Field("topic", "str"), Field("partitionIds", ["i32"]))]),
    Field("transactionLastUpdateTimestampMs", "i64"),
    Field("transactionStartTimestampMs", "i64"),
    Field("clientTransactionVersion", "i16", since=1, tag=2),
)
NULL_VALUE = "<DELETE>"
_FLEXIBLE_SINCE = 1
_VERSION_MAX = 1


def key_text(data: bytes) -> str:
    """Returns the key of a record as Kafka's JSON. Raises CorruptMessageError."""

    def read(reader: SchemaReader) -> dict[str, Any]:
        kind = reader.number(">h")
        known = kind == 0
        fields = reader.struct(_KEY, 0, flexible=False) if known else reader.take(reader.left)
        return {"type": str(kind), "data": fields if known else "unknown"}

    return _json(read_all(data, read))


def value_text(data: bytes) -> str:
    """Returns the value of a record as Kafka's JSON. Raises CorruptMessageError."""

    def read(reader: SchemaReader) -> dict[str, Any]:
        version = reader.number(">h")
        if not 0 <= version <= _VERSION_MAX:
            reader.take(reader.left)
            return {"version": str(version), "data": "unknown"}
        fields = reader.struct(_VALUE, version, flexible=version >= _FLEXIBLE_SINCE)
        return {"version": str(version), "data": fields}

    return _json(read_all(data, read))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
