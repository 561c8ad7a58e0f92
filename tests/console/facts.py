"""Descriptions of a small cluster, and an admin client and a consumer that tell them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.cli.fake_admin import broker, topic
from tidemark.client.models import (
    ClusterDescription,
    ConsumerRecord,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NodeDescription,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    QuorumDescription,
    QuorumReplica,
    ReplicaDescription,
    TopicDescription,
    TopicListing,
)
from tidemark.errors import ApiError, GroupIdNotFoundError, UnknownTopicOrPartitionError
from tidemark.types import Endpoint, TopicPartition

CLUSTER = ClusterDescription("c1", 1, (broker(4, "a"), broker(5, fenced=True)))
TOPICS = (
    topic("__consumer_offsets", ([4], [4], 4)),
    topic(
        "events", ([4, 5], [4], 4), ([5, 4], [], None), configs={"remote.storage.enable": "true"}
    ),
)


def replica(name: str, number: int, **more: Any) -> ReplicaDescription:
    fields: dict[str, Any] = {
        "size_bytes": 1_000,
        "offset_lag": 0,
        "is_leader": True,
        "log_start_offset": 10,
        "local_log_start_offset": 50,
        "highest_remote_offset": 49,
        "high_watermark": 90,
        "log_end_offset": 95,
        "remote_log_size_bytes": 400,
        "remote_copy_lag_bytes": 7,
        "remote_copy_lag_segments": 1,
    }
    return ReplicaDescription(TopicPartition(name, number), **fields | more)


LOG_DIRS: Mapping[int, Sequence[LogDirDescription]] = {
    4: [
        LogDirDescription(
            4,
            "/d1",
            None,
            100,
            40,
            (replica("events", 0), replica("events", 0, is_future=True, log_end_offset=1)),
        ),
        LogDirDescription(4, "/d2", "KAFKA_STORAGE_ERROR", 0, 0, (), "EIO"),
    ],
    5: [LogDirDescription(5, "/d", None, 0, 0, (replica("events", 1, size_bytes=3),))],
}

QUORUM = QuorumDescription(
    1,
    7,
    100,
    (
        QuorumReplica(1, None, 100, 1_000, 1_000),
        QuorumReplica(2, UUID(int=2), 90, 400, None),
        QuorumReplica(3, None, None, None, None),
    ),
    (QuorumReplica(4, None, 100, 990, 990),),
    (NodeDescription(1, Endpoint("h", 1)),),
)


class ToldGroups:
    """The groups of `ToldAdmin`."""

    def __init__(self, admin: ToldAdmin) -> None:
        self._admin = admin

    async def list(self) -> list[GroupListing]:
        self._admin.check("groups")
        return [GroupListing(name, "Stable", "consumer") for name in sorted(self._admin.committed)]

    async def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self._admin.check(f"offsets of {group_id}")
        return self._admin.committed.get(group_id, {})

    async def describe(self, group_ids: Sequence[str]) -> dict[str, GroupDescription]:
        raise GroupIdNotFoundError(f"no group {group_ids[0]!r}")


@dataclass
class ToldAdmin:
    """Answers with the values above; `errors` are raised by the call of their name."""

    topics: Sequence[TopicDescription] = TOPICS
    committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    errors: dict[str, ApiError] = field(default_factory=dict)
    hangs: str = ""
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.groups = ToldGroups(self)

    def check(self, call: str) -> None:
        if call in self.errors:
            raise self.errors[call]

    async def close(self) -> None:
        self.is_closed = True

    async def describe_cluster(self) -> ClusterDescription:
        self.check("cluster")
        if self.hangs == "cluster":
            await asyncio.get_running_loop().create_future()
        return CLUSTER

    async def list_topics(self, *, include_internal: bool) -> list[TopicListing]:
        return [TopicListing(t.name, t.topic_id, len(t.partitions), 1) for t in self.topics]

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        known = {each.name: each for each in self.topics}
        for name in names:
            if name not in known:
                raise UnknownTopicOrPartitionError(f"topic {name!r} is unknown")
        return {name: known[name] for name in names}

    async def describe_log_dirs(
        self, topics: Sequence[str]
    ) -> Mapping[int, Sequence[LogDirDescription]]:
        self.check("log dirs")
        return LOG_DIRS

    async def describe_quorum(self) -> QuorumDescription:
        self.check("quorum")
        return QUORUM

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self.check("offsets")
        known = {each.name: len(each.partitions) for each in self.topics}
        for partition in wanted:
            if partition.partition >= known.get(partition.topic, 0):
                raise UnknownTopicOrPartitionError(f"{partition} is unknown")
        return {partition: OffsetAndTimestamp(95, -1, 0) for partition in wanted}


class ToldConsumer:
    """A log of records by offset, with holes, of which each poll returns at most `step`."""

    def __init__(self, records: Sequence[ConsumerRecord], start: int, end: int, step: int = 3):
        self._records = records
        self._bounds = (start, end)
        self._step = step
        self._at = -1
        self.polls = 0
        self.is_stuck = False

    async def beginning_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._bounds[0])

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._bounds[1])

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        ((partition, timestamp_ms),) = timestamps.items()
        for record in self._records:
            if record.timestamp_ms >= timestamp_ms:
                return {partition: OffsetAndTimestamp(record.offset, record.timestamp_ms, 0)}
        return {partition: None}

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert self._bounds[0] <= offset <= self._bounds[1]
        self._at = offset

    async def position(self, partition: TopicPartition, timeout_ms: float) -> int:
        return self._at

    async def poll(self, timeout_ms: float, max_records: int) -> list[ConsumerRecord]:
        self.polls += 1
        if self.is_stuck:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        found = [r for r in self._records if r.offset >= self._at][: min(max_records, self._step)]
        self._at = found[-1].offset + 1 if found else self._bounds[1]
        return found
