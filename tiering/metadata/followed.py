"""A followed partition of the metadata topic: the folds of its user partitions, kept in flat files.

The fold in memory answers. The files are written behind it, each minute or after some thousands of
records. They are read only when the partition is first followed. A failure of the files is never
one of the metadata: the topic has all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from commitlog.disk.files import Directory
from tidemark.errors import CorruptMessageError, StorageError, TidemarkError
from tidemark.types import TopicIdPartition
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.codec import decode
from tiering.metadata.flat_file import Entry, FlatFileReader, encode_entry
from tiering.metadata.flat_store import FlatFileChange, FlatFileStore
from tiering.metadata.segments import RemotePartitionDeleteMetadata
from tiering.metadata.topic import SLICE_RECORDS, MetadataRecord

logger = logging.getLogger(__name__)

SAVE_MS, SAVE_RECORDS = 60_000, 5_000
"""Time and number of changed segments after which the files are written."""
_BEHIND_FACTOR = 4


@dataclass(slots=True)
class FollowedPartition:
    """A metadata partition with its records and the position of the reader."""

    number: int = 0
    position: int = 0
    epoch: int = -1
    """Leader epoch of the record before the position; -1: unknown."""
    is_confirmed: bool = True
    """Whether the topic has that record. It is read again after a start from the files."""
    ready_at: int | None = None
    """End of the partition when it was assigned."""
    caches: dict[TopicIdPartition, RemoteLogMetadataCache] = field(default_factory=dict)
    changed: dict[TopicIdPartition, set[UUID]] = field(default_factory=dict)
    """Segments whose entries in the files are outdated."""
    saved_position: int = 0

    @property
    def is_ready(self) -> bool:
        return self.is_confirmed and self.ready_at is not None and self.position >= self.ready_at

    @property
    def reads_from(self) -> int:
        """The offset to read from next."""
        return self.position if self.is_confirmed else self.position - 1

    def confirms(self, record: MetadataRecord) -> bool:
        """Whether a record from before the position is the last one that was applied. Then all
        before it are those of before, too.
        """
        self.is_confirmed = record.offset == self.position - 1 and record.epoch == self.epoch
        return self.is_confirmed

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Returns the fold of a user partition, empty at first."""
        return self.caches.setdefault(partition, RemoteLogMetadataCache())

    def apply(self, record: MetadataRecord) -> TidemarkError | None:
        """Applies a record; returns the error if it is refused (every node refuses it alike)."""
        try:
            metadata = decode(record.value)
            partition = metadata.topic_id_partition
            self.cache(partition).apply(metadata)
        except TidemarkError as error:
            logger.warning(
                "record %d of metadata partition %d: %s", record.offset, record.partition, error
            )
            return error
        changed = self.changed.setdefault(partition, set())
        if not isinstance(metadata, RemotePartitionDeleteMetadata):
            changed.add(metadata.remote_log_segment_id.id)
        return None


class FlatFiles:
    """The files of all followed partitions, written behind the reading task."""

    def __init__(self, root: Directory | None) -> None:
        self._root = root
        self._store: FlatFileStore | None = None
        self._saving: asyncio.Task[None] | None = None
        self._saved_at_s = 0.0

    async def open(self, topic_id: UUID) -> None:
        """Opens the files that belong to the metadata topic with this id."""
        if self._root is not None and self._store is None:
            try:
                store = FlatFileStore(self._root)
                await asyncio.to_thread(store.open, topic_id)
            except StorageError as error:
                logger.warning("remote log metadata is not kept in files: %s", error)
            else:
                self._store = store
        self._saved_at_s = asyncio.get_running_loop().time()

    async def load(self, number: int) -> FollowedPartition:
        """Returns a metadata partition as its files have it; empty if one is damaged."""
        await self._saved()
        followed, store = FollowedPartition(number), self._store
        if store is None:
            return followed
        try:
            for partition, content in await asyncio.to_thread(store.read, number):
                await self._load_file(followed, partition, content)
        except (CorruptMessageError, StorageError, ValueError) as error:
            logger.warning("metadata partition %d is read from its topic: %s", number, error)
            store.drop(number)
            return FollowedPartition(number)
        followed.position = followed.saved_position = store.position(number)
        followed.epoch = store.epoch(number)
        followed.is_confirmed = followed.epoch < 0
        return followed

    async def _load_file(self, followed: FollowedPartition, partition: int, content: bytes) -> None:
        reader = FlatFileReader(content, partition)
        cache = followed.cache(reader.partition)
        for count, entry in enumerate(reader.entries(), 1):
            cache.restore(entry)
            if not count % SLICE_RECORDS:
                await asyncio.sleep(0)

    async def drop(self, number: int) -> None:
        """Forgets the files of a metadata partition that the topic contradicts."""
        await self._saved()  # the store is used by one thread at a time
        if self._store is not None:
            self._store.drop(number)

    async def maybe_save(self, followed: Collection[FollowedPartition]) -> None:
        """Starts to write what changed if it is due; waits only if much more than that changed."""
        changed = sum(len(ids) for each in followed for ids in each.changed.values())
        if self._store is None:
            for each in followed:
                each.changed.clear()
            return
        if self._saving is not None and not self._saving.done():
            if changed < _BEHIND_FACTOR * SAVE_RECORDS:
                return
            await self._saved()
        waited_ms = (asyncio.get_running_loop().time() - self._saved_at_s) * 1000
        if changed >= SAVE_RECORDS or waited_ms >= SAVE_MS:
            await self.save(followed)

    async def save(self, followed: Collection[FollowedPartition]) -> None:
        """Encodes what changed, and starts to write it. No record may be applied meanwhile."""
        await self._saved()
        store = self._store
        if store is None:
            return
        commits = []
        for each in followed:
            if each.changed or each.position != each.saved_position:
                changes = await _changes(each, store)
                commits.append((each.number, each.position, changes, each.epoch))
        for each in followed:
            each.changed, each.saved_position = {}, each.position
        self._saved_at_s = asyncio.get_running_loop().time()

        def commit_all() -> None:
            for commit in commits:
                store.commit(*commit)

        if commits:
            self._saving = asyncio.ensure_future(asyncio.to_thread(commit_all))

    async def close(self, followed: Collection[FollowedPartition]) -> None:
        """Writes what changed, and waits for it."""
        await self.save(followed)
        await self._saved()

    async def _saved(self) -> None:
        """Waits for the writing under way. After a failure the files stay as of the last commit,
        and the next start reads the rest from the topic.
        """
        saving = self._saving
        if saving is None:
            return
        try:
            await asyncio.shield(saving)
        except Exception as error:
            logger.warning("remote log metadata is not kept in files any more: %r", error)
            self._store = None
        self._saving = None


async def _changes(followed: FollowedPartition, store: FlatFileStore) -> list[FlatFileChange]:
    """Encodes the changed segments of each user partition, or all of a file that is outdated."""
    changes, turns = [], 0
    for partition, ids in followed.changed.items():
        cache = followed.cache(partition)
        anew = store.is_outdated(followed.number, partition, len(cache), len(ids) + 1)
        entries: list[Entry] = [] if cache.partition_delete is None else [cache.partition_delete]
        content = bytearray(b"".join(map(encode_entry, entries)))
        count = len(entries)
        for identity in cache.ids() if anew else ids:
            content += encode_entry(cache.get(identity) or identity)
            count += 1
            turns += 1
            if not turns % SLICE_RECORDS:
                await asyncio.sleep(0)
        changes.append(FlatFileChange(partition, bytes(content), count, anew))
    return changes
