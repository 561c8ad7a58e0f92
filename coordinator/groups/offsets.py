"""The committed offsets of all groups of a partition, and those of open transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from coordinator.records.groups import OffsetCommitKey, OffsetCommitValue
from tidemark.types import ZERO_UUID


class CommittedOffset(NamedTuple):
    """An offset; `record_offset` is that of its record. Times are in ms, -1 where there is none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: UUID
    record_offset: int

    @classmethod
    def of(cls, value: OffsetCommitValue, record_offset: int) -> CommittedOffset:
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id or ZERO_UUID,
            record_offset,
        )


class OffsetStore:
    """Offsets by group, topic and partition. Changed by replayed records and markers alone."""

    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.count = 0
        self._pending: dict[int, dict[str, dict[OffsetCommitKey, CommittedOffset]]] = {}
        self._open: dict[str, set[int]] = {}  # producers with pending offsets, by group

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.by_group.get(group, {}).get(topic, {}).get(partition)

    def all_of(self, group: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        """(topic, partition, offset) of all offsets of a group."""
        for topic, partitions in self.by_group.get(group, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction commits the offset of this partition."""
        key = OffsetCommitKey(group, topic, partition)
        producers = self._open.get(group, ())
        return any(key in self._pending[producer][group] for producer in producers)

    def has_open_transactions(self, group: str) -> bool:
        return group in self._open

    def keys_of(self, group: str) -> list[OffsetCommitKey]:
        """All offsets that are committed, or pending in a transaction."""
        keys = dict.fromkeys(OffsetCommitKey(group, t, p) for t, p, _ in self.all_of(group))
        for producer in sorted(self._open.get(group, ())):
            keys.update(dict.fromkeys(self._pending[producer][group]))
        return list(keys)

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        record_offset: int,
        producer_id: int = -1,
    ) -> None:
        """Applies a record; with a producer id it waits for the end of the transaction."""
        if value is None:
            self._remove(key)
            return
        committed = CommittedOffset.of(value, record_offset)
        if producer_id < 0:
            self._put(key, committed)
        else:
            groups = self._pending.setdefault(producer_id, {})
            groups.setdefault(key.group, {})[key] = committed
            self._open.setdefault(key.group, set()).add(producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Applies a marker: pending offsets count now, or never. An offset that was committed after
        that of the transaction stays."""
        for group, pending in self._pending.pop(producer_id, {}).items():
            self._open[group].discard(producer_id)
            if not self._open[group]:
                del self._open[group]
            for key, offset in pending.items() if committed else ():
                known = self.get(group, key.topic, key.partition)
                if known is None or known.record_offset < offset.record_offset:
                    self._put(key, offset)

    def _put(self, key: OffsetCommitKey, committed: CommittedOffset) -> None:
        topics = self.by_group.setdefault(key.group, {})
        partitions = topics.setdefault(key.topic, {})
        if key.partition not in partitions:
            self.count += 1
        partitions[key.partition] = committed

    def _remove(self, key: OffsetCommitKey) -> None:
        topics = self.by_group.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None:
            self.count -= 1
            if not partitions:
                del topics[key.topic]
            if not topics:
                del self.by_group[key.group]
        for producer in self._open.get(key.group, ()):
            self._pending[producer][key.group].pop(key, None)
