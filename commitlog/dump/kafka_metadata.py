"""Records of Kafka's own `__cluster_metadata`, as its --cluster-metadata-decoder prints them.

They are found in a directory that Apache Kafka wrote. Tidemark's own records are protobuf, and
never begin with Kafka's frame version. The schemas are those of
metadata/src/main/resources/common/metadata; all versions are flexible.
"""

from __future__ import annotations

import json
from typing import Any

from tidemark.errors import CorruptMessageError
from tidemark.records.kafka_schema import Field, Schema, SchemaReader, read_all

FRAME_VERSION = 1

_END_POINTS = Field(
    "endPoints",
    [
        (
            Field("name", "str"),
            Field("host", "str"),
            Field("port", "u16"),
            Field("securityProtocol", "i16"),
        )
    ],
)
_FEATURES = Field(
    "features",
    [
        (
            Field("name", "str"),
            Field("minSupportedVersion", "i16"),
            Field("maxSupportedVersion", "i16"),
        )
    ],
)
_BROKER = (Field("brokerId", "i32"), Field("brokerEpoch", "i64"))

RECORDS: dict[int, tuple[str, Schema]] = {
    0: (
        "REGISTER_BROKER_RECORD",
        (
            Field("brokerId", "i32"),
            Field("isMigratingZkBroker", "bool", since=2),
            Field("incarnationId", "uuid"),
            Field("brokerEpoch", "i64"),
            _END_POINTS,
            _FEATURES,
            Field("rack", "str"),
            Field("fenced", "bool"),
            Field("inControlledShutdown", "bool", since=1),
            Field("logDirs", ["uuid"], since=3, tag=0),
            Field("cordonedLogDirs", ["uuid"], since=4, tag=1),
        ),
    ),
    1: ("UNREGISTER_BROKER_RECORD", _BROKER),
    2: ("TOPIC_RECORD", (Field("name", "str"), Field("topicId", "uuid"))),
    3: (
        "PARTITION_RECORD",
        (
            Field("partitionId", "i32"),
            Field("topicId", "uuid"),
            Field("replicas", ["i32"]),
            Field("isr", ["i32"]),
            Field("removingReplicas", ["i32"]),
            Field("addingReplicas", ["i32"]),
            Field("leader", "i32"),
            Field("leaderRecoveryState", "i8", tag=0),
            Field("leaderEpoch", "i32"),
            Field("partitionEpoch", "i32"),
            Field("directories", ["uuid"], since=1),
            Field("eligibleLeaderReplicas", ["i32"], since=2, tag=1),
            Field("lastKnownElr", ["i32"], since=2, tag=2),
        ),
    ),
    4: (
        "CONFIG_RECORD",
        (
            Field("resourceType", "i8"),
            Field("resourceName", "str"),
            Field("name", "str"),
            Field("value", "str"),
        ),
    ),
    5: (
        "PARTITION_CHANGE_RECORD",
        (
            Field("partitionId", "i32"),
            Field("topicId", "uuid"),
            Field("isr", ["i32"], tag=0),
            Field("leader", "i32", tag=1),
            Field("replicas", ["i32"], tag=2),
            Field("removingReplicas", ["i32"], tag=3),
            Field("addingReplicas", ["i32"], tag=4),
            Field("leaderRecoveryState", "i8", tag=5),
            Field("directories", ["uuid"], since=1, tag=8),
            Field("eligibleLeaderReplicas", ["i32"], since=2, tag=6),
            Field("lastKnownElr", ["i32"], since=2, tag=7),
        ),
    ),
    7: ("FENCE_BROKER_RECORD", (Field("id", "i32"), Field("epoch", "i64"))),
    8: ("UNFENCE_BROKER_RECORD", (Field("id", "i32"), Field("epoch", "i64"))),
    9: ("REMOVE_TOPIC_RECORD", (Field("topicId", "uuid"),)),
    12: ("FEATURE_LEVEL_RECORD", (Field("name", "str"), Field("featureLevel", "i16"))),
    15: ("PRODUCER_IDS_RECORD", (*_BROKER, Field("nextProducerId", "i64"))),
    17: (
        "BROKER_REGISTRATION_CHANGE_RECORD",
        (
            *_BROKER,
            Field("fenced", "i8", tag=0),
            Field("inControlledShutdown", "i8", tag=1),
            Field("logDirs", ["uuid"], since=2, tag=2),
            Field("cordonedLogDirs", ["uuid"], since=3, tag=3),
        ),
    ),
    20: ("NO_OP_RECORD", ()),
    21: ("ZK_MIGRATION_STATE_RECORD", (Field("zkMigrationState", "i8"),)),
    23: ("BEGIN_TRANSACTION_RECORD", (Field("name", "str", tag=0),)),
    24: ("END_TRANSACTION_RECORD", ()),
    25: ("ABORT_TRANSACTION_RECORD", (Field("reason", "str", tag=0),)),
    27: (
        "REGISTER_CONTROLLER_RECORD",
        (
            Field("controllerId", "i32"),
            Field("incarnationId", "uuid"),
            Field("zkMigrationReady", "bool"),
            _END_POINTS,
            _FEATURES,
        ),
    ),
    28: ("CLEAR_ELR_RECORD", (Field("topicName", "str"),)),
    29: ("UNREGISTER_CONTROLLER_RECORD", (Field("controllerId", "i32"),)),
}


def is_kafkas(value: bytes) -> bool:
    """Returns whether Kafka wrote this value: no protobuf message begins with a field of number
    0.
    """
    return value[:1] == bytes([FRAME_VERSION])


def metadata_text(value: bytes) -> str:
    """Returns a record of Kafka's as JSON. Raises CorruptMessageError, for an unknown type too."""

    def read(reader: SchemaReader) -> dict[str, Any]:
        reader.varint()  # the frame's version, which `is_kafkas` checks
        kind, version = reader.varint(), reader.varint()
        if kind not in RECORDS:
            raise CorruptMessageError(f"Kafka's metadata record of type {kind} is not known here")
        name, schema = RECORDS[kind]
        fields = reader.struct(schema, version, flexible=True)
        return {"type": name, "version": version, "data": fields}

    return json.dumps(read_all(value, read), separators=(",", ":"), ensure_ascii=False)
