"""The view that an assignor has of members and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member as an assignor sees it; `assigned` is its present target assignment."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    topic_ids: frozenset[UUID] = frozenset()
    assigned: Partitions = field(default_factory=dict)


class TopicView(Protocol):
    """The topics that exist."""

    def partition_count(self, topic_id: UUID) -> int:
        """The number of partitions; -1 for a topic that is not known."""
        ...

    def racks(self, topic_id: UUID, partition: int) -> frozenset[str]:
        """The racks that have a replica."""
        ...
