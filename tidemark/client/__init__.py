"""Producer, Consumer and Admin, each as an asyncio class (`Async...`) and as a blocking class over
it.

Programs import the names of `__all__` from here, or the common ones from `tidemark`. Nodes import
`connections`; Spark and the command line import `sync`, `models` and `records`. The other modules
are private to the room.

    producer, sender, encoding, batch                records out
    producer_core, admission, accumulator            the pure core of that
    transactions                                     a producer's transactions; administration
    consumer, consuming, records, offsets            records in; `consuming.core` is the pure core
    groups                                           a consumer as a member of a group
    admin and admin_*, decoding                      administration
    connections, metadata, retry, coordinators       shared by all three
    sync, loop_thread                                the blocking classes
    forks                                            clients in a forked child
    models, delivery, errors                         values and errors that callers see

The room promises that order within a partition survives retries, and that a retriable error is
retried until the timeout of the call or delivery. Names resolve on first use (PEP 562): a program
that only administers a cluster loads neither Arrow nor the record kernels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.client.admin import AsyncAdmin
    from tidemark.client.connections import Connections
    from tidemark.client.consumer import AsyncConsumer
    from tidemark.client.errors import (
        BufferExhaustedError,
        ClientClosedError,
        ClientForkedError,
        CommitFailedError,
        CorruptBatchError,
        ErrorKind,
        IllegalStateError,
        LogTruncationError,
        NoOffsetForPartitionError,
        TopicRecreatedError,
        TransactionAbortedError,
        TransactionInDoubtError,
        kind_of,
    )
    from tidemark.client.metadata import MetadataCache
    from tidemark.client.models import (
        AlterConfigOp,
        BatchMetadata,
        ClusterDescription,
        ConfigEntry,
        ConfigResource,
        ConsumerGroupMetadata,
        ConsumerRecord,
        FeatureDescription,
        HangingTransaction,
        LogDirDescription,
        NewTopic,
        NodeFeatures,
        NodeState,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetSpec,
        PartitionReassignment,
        ProducerState,
        QuorumDescription,
        RecordMetadata,
        TierRebuild,
        TopicDescription,
        TopicPartitionReplica,
        TransactionDescription,
        TransactionListing,
    )
    from tidemark.client.producer import AsyncProducer
    from tidemark.client.records import RawBatches, Records
    from tidemark.client.retry import RetryPolicy
    from tidemark.client.sync import Admin, Consumer, Producer
    from tidemark.types import TopicPartition

_HOMES = {
    "Admin": "sync",
    "AlterConfigOp": "models",
    "ConfigEntry": "models",
    "ConfigResource": "models",
    "FeatureDescription": "models",
    "HangingTransaction": "models",
    "NodeFeatures": "models",
    "NodeState": "models",
    "PartitionReassignment": "models",
    "ProducerState": "models",
    "TopicPartitionReplica": "models",
    "TransactionDescription": "models",
    "TransactionListing": "models",
    "AsyncAdmin": "admin",
    "AsyncConsumer": "consumer",
    "AsyncProducer": "producer",
    "BatchMetadata": "models",
    "BufferExhaustedError": "errors",
    "ClientClosedError": "errors",
    "ClientForkedError": "errors",
    "ClusterDescription": "models",
    "CommitFailedError": "errors",
    "Connections": "connections",
    "Consumer": "sync",
    "ConsumerRecord": "models",
    "CorruptBatchError": "errors",
    "LogDirDescription": "models",
    "LogTruncationError": "errors",
    "MetadataCache": "metadata",
    "NewTopic": "models",
    "TierRebuild": "models",
    "NoOffsetForPartitionError": "errors",
    "OffsetAndMetadata": "models",
    "OffsetAndTimestamp": "models",
    "OffsetSpec": "models",
    "Producer": "sync",
    "QuorumDescription": "models",
    "RawBatches": "records",
    "RecordMetadata": "models",
    "Records": "records",
    "RetryPolicy": "retry",
    "TopicDescription": "models",
    "TopicRecreatedError": "errors",
    "ErrorKind": "errors",
    "IllegalStateError": "errors",
    "TransactionAbortedError": "errors",
    "TransactionInDoubtError": "errors",
    "kind_of": "errors",
    "ConsumerGroupMetadata": "models",
}

__all__ = [
    "Admin",
    "AlterConfigOp",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchMetadata",
    "BufferExhaustedError",
    "ClientClosedError",
    "ClientForkedError",
    "ClusterDescription",
    "CommitFailedError",
    "ConfigEntry",
    "ConfigResource",
    "Connections",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CorruptBatchError",
    "ErrorKind",
    "FeatureDescription",
    "HangingTransaction",
    "IllegalStateError",
    "LogDirDescription",
    "LogTruncationError",
    "MetadataCache",
    "NewTopic",
    "NoOffsetForPartitionError",
    "NodeFeatures",
    "NodeState",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PartitionReassignment",
    "Producer",
    "ProducerState",
    "QuorumDescription",
    "RawBatches",
    "RecordMetadata",
    "Records",
    "RetryPolicy",
    "TierRebuild",
    "TopicDescription",
    "TopicPartition",
    "TopicPartitionReplica",
    "TopicRecreatedError",
    "TransactionAbortedError",
    "TransactionDescription",
    "TransactionInDoubtError",
    "TransactionListing",
    "kind_of",
]


def __getattr__(name: str) -> Any:
    if name == "TopicPartition":
        return importlib.import_module("tidemark.types").TopicPartition
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidemark.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tidemark.client.{home}"), name)
    globals()[name] = value
    return value
