"""Short builders for the tests of the tier: segments, partitions, and settings."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tidemark.config import ServerConfig, parse_server_config
from tidemark.types import TopicIdPartition
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

PARTITION = TopicIdPartition(UUID(int=0x1234567890ABCDEF1234567890ABCDEF), "flights", 3)


def epochs(**starts: int) -> tuple[EpochEntry, ...]:
    """`epochs(e0=0, e1=3)`: the notation "LE-0, 0; LE-1, 3" of KIP-405."""
    return tuple(EpochEntry(int(name[1:]), start) for name, start in starts.items())


def segment(
    start: int,
    end: int,
    number: int = 1,
    *,
    state: RemoteLogSegmentState = FINISHED,
    size_bytes: int = 100,
    max_timestamp_ms: int = 1_000,
    event_timestamp_ms: int = 5_000,
    broker_id: int = 1,
    partition: TopicIdPartition = PARTITION,
    **starts: int,
) -> RemoteLogSegmentMetadata:
    """`segment(0, 3, 2, e0=0, e1=2)`: "seg-0-3, uuid-2, segment epochs LE-0, 0; LE-1, 2"."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(partition, UUID(int=number)),
        start,
        end,
        max_timestamp_ms,
        broker_id,
        event_timestamp_ms,
        size_bytes,
        epochs(**(starts or {"e0": start})),
        state,
    )


def tier_of(segments: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogMetadataCache:
    """Returns the fold that has these segments, in any state."""
    tier = RemoteLogMetadataCache()
    for one in segments:
        tier.restore(one)
    tier.validate()
    return tier


def server_config(directory: str = "unused", **overrides: object) -> ServerConfig:
    """Returns a broker's settings; `overrides` by attribute name."""
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory,
        "remote.log.storage.system.enable": "true",
    }
    values.update({key.replace("_", "."): str(value) for key, value in overrides.items()})
    return parse_server_config(values)
