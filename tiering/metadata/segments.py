"""The metadata of remote segments, and their states.

    nothing -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED
    COPY_SEGMENT_STARTED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED
    nothing -> DELETE_PARTITION_MARKED -> DELETE_PARTITION_STARTED -> DELETE_PARTITION_FINISHED

Every change is a record of its own: an update names the segment and its new state. The history of a
segment is the fold of its records in the order of the metadata topic. A state may be repeated:
records are written at least once. Source: KIP-405, "Remote Log Metadata State transitions";
org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from tidemark.types import TopicIdPartition, random_uuid, uuid_to_text
from tiering.errors import RemoteStorageError


class RemoteLogSegmentState(IntEnum):
    """States of a remote segment; the numbers are Kafka's."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """States of a partition's deletion; the numbers are Kafka's."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_S = RemoteLogSegmentState
_LEGAL: dict[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_STARTED: frozenset(
        {_S.COPY_SEGMENT_STARTED, _S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}
    ),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.DELETE_SEGMENT_STARTED, _S.DELETE_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_FINISHED}),
}


def is_legal_transition(
    source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> bool:
    """Returns whether a segment in state `source` (None: unknown) may enter `target`."""
    return target in _LEGAL[source]


def is_legal_deletion(
    source: RemotePartitionDeleteState | None, target: RemotePartitionDeleteState
) -> bool:
    """Returns whether the deletion of a partition in state `source` (None: no deletion) may enter
    `target`: the next state, or the same one again.
    """
    return target == 0 if source is None else target in (source, source + 1)


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """The identity of one copy of a segment; a second copy of the same offsets has another `id`."""

    topic_id_partition: TopicIdPartition
    id: UUID

    @classmethod
    def generate(cls, topic_id_partition: TopicIdPartition) -> RemoteLogSegmentId:
        return cls(topic_id_partition, random_uuid())

    def __str__(self) -> str:
        return f"{self.topic_id_partition}/{uuid_to_text(self.id)}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """A remote segment: offsets (`end_offset` is inclusive), epochs, size in bytes, times in ms,
    state.

    `segment_leader_epochs` are the epochs that have records in the segment, each with its first
    offset there. Raises ValueError for values that contradict each other.
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start_offset <= self.end_offset:
            raise ValueError(f"offsets {self.start_offset}..{self.end_offset} are no segment")
        if not self.segment_leader_epochs:
            raise ValueError("a remote segment has at least one leader epoch")

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    @property
    def id(self) -> UUID:
        return self.remote_log_segment_id.id

    @property
    def next_offset(self) -> int:
        return self.end_offset + 1

    def epoch_range(self, epoch: int) -> tuple[int, int] | None:
        """Returns first and last offset (inclusive) of `epoch` in this segment, or None."""
        for position, entry in enumerate(self.segment_leader_epochs):
            if entry.epoch == epoch:
                later = self.segment_leader_epochs[position + 1 :]
                last = later[0].start_offset - 1 if later else self.end_offset
                return max(entry.start_offset, self.start_offset), last
        return None

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Returns this segment after `update`. Raises RemoteStorageError for an illegal
        transition.
        """
        if not is_legal_transition(self.state, update.state):
            raise RemoteStorageError(
                f"{self.remote_log_segment_id} is {self.state.name}: "
                f"it can not become {update.state.name}"
            )
        return dataclasses.replace(
            self,
            state=update.state,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
            custom_metadata=self.custom_metadata
            if update.custom_metadata is None
            else update.custom_metadata,
        )

    def update(
        self,
        state: RemoteLogSegmentState,
        event_timestamp_ms: int,
        broker_id: int,
        custom_metadata: bytes | None = None,
    ) -> RemoteLogSegmentMetadataUpdate:
        """Returns the record that moves this segment to `state`."""
        return RemoteLogSegmentMetadataUpdate(
            self.remote_log_segment_id, event_timestamp_ms, state, broker_id, custom_metadata
        )


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A segment's new state."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A step of the deletion of all remote segments of a partition."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int


RemoteLogMetadata = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)
