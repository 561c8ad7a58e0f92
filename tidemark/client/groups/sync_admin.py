"""The blocking form of `AsyncGroupAdmin`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from tidemark.client.groups.admin import AsyncGroupAdmin
from tidemark.client.models import GroupDescription, GroupListing, OffsetAndMetadata
from tidemark.errors import ApiError
from tidemark.types import TopicPartition


class GroupAdmin:
    """The groups of a cluster; `Admin.groups`. See AsyncGroupAdmin for meanings and errors."""

    def __init__(
        self, core: AsyncGroupAdmin, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._core = core
        self._run = run

    def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """The groups of all brokers, by id."""
        found: list[GroupListing] = self._run(self._core.list(states=states, types=types))
        return found

    def describe(self, group_ids: Sequence[str]) -> dict[str, GroupDescription]:
        """Groups with their members."""
        found: dict[str, GroupDescription] = self._run(self._core.describe(group_ids))
        return found

    def offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group."""
        found: dict[TopicPartition, OffsetAndMetadata] = self._run(self._core.offsets(group_id))
        return found

    def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commits offsets for a group without members."""
        self._run(self._core.alter_offsets(group_id, offsets))

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ApiError | None]:
        """Deletes offsets; the outcome of each."""
        found: dict[TopicPartition, ApiError | None] = self._run(
            self._core.delete_offsets(group_id, partitions)
        )
        return found

    def delete(self, group_ids: Sequence[str]) -> dict[str, ApiError | None]:
        """Deletes groups without members; the outcome of each."""
        found: dict[str, ApiError | None] = self._run(self._core.delete(group_ids))
        return found
