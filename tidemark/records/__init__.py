"""The record batch v2: encoding, decoding, validation and compression.

The room holds all that clients and nodes need of the format. It promises Kafka's bytes: golden
files of Apache Kafka and an independent codec test it.

Outsiders may import this package, and these modules of it:
- `header`: the one home of the batch header: sizes, positions, flags, readers and writers.
- `extent`: whether the batches of a buffer follow one another, and how far they reach.
- `plain`: batches of Python records, without Arrow or numba.
- `arrow`: columns to a batch, batches to an Arrow batch, at memory speed.
- `control`: control batches, of transactions and of Raft.
- `facts`: the checks that need records but no record objects.
- `compression`, `kafka_codec`, `murmur2`: codecs, primitive types, the partitioner's hash.
- `kafka_schema`: messages that Kafka describes by schemas, as of its internal topics.
- `kernels`: the compiled loops, for the log and its cleaner.

Headers, plain records and control batches load neither Arrow nor numba. `encode_arrow`,
`decode_arrow`, `RECORDS_SCHEMA` and `partitions_for_keys` are loaded on first use (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidemark.records.control import (
    ControlMessage,
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    VoterId,
    Voters,
    decode_control_records,
    encode_control_batch,
)
from tidemark.records.header import (
    HEADER_BYTES,
    BatchHeader,
    iter_batches,
    patch_header,
    read_header,
    validate_batches,
    verify_crc,
)
from tidemark.records.murmur2 import murmur2, partition_for_key
from tidemark.records.plain import Header, Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from tidemark.records.arrow import RECORDS_SCHEMA, decode_arrow, encode_arrow
    from tidemark.records.murmur2_arrow import partitions_for_keys

__all__ = [
    "HEADER_BYTES",
    "RECORDS_SCHEMA",
    "BatchHeader",
    "ControlMessage",
    "ControlRecord",
    "ControlType",
    "EndTransactionMarker",
    "Header",
    "KRaftVersion",
    "LeaderChange",
    "Record",
    "SnapshotFooter",
    "SnapshotHeader",
    "Voter",
    "VoterEndpoint",
    "VoterId",
    "Voters",
    "decode_arrow",
    "decode_batch",
    "decode_control_records",
    "encode_arrow",
    "encode_batch",
    "encode_control_batch",
    "iter_batches",
    "murmur2",
    "partition_for_key",
    "partitions_for_keys",
    "patch_header",
    "read_header",
    "validate_batches",
    "verify_crc",
]

_HOMES = {
    "RECORDS_SCHEMA": "tidemark.records.arrow",
    "decode_arrow": "tidemark.records.arrow",
    "encode_arrow": "tidemark.records.arrow",
    "partitions_for_keys": "tidemark.records.murmur2_arrow",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidemark.records' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
