"""The aborted transactions of a range that is only in the tier, for read_committed (KIP-405).

A segment's transaction index is an object of its own, and there is none where nothing was aborted
(KIP-1058). The marker that ends a transaction may lie in a later remote segment, or in the local
log. So the search goes on to the first entry whose last stable offset is behind the range.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from uuid import UUID

from commitlog.log.log import Log
from commitlog.segment.indexes import parse_transactions
from commitlog.types import AbortedTransaction
from tidemark.types import TopicIdPartition
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import EpochEntry, RemoteLogSegmentMetadata
from tiering.store.manager import IndexType, RemoteStorageManager
from tiering.tasks import planner
from tiering.tasks.checking import check_transactions

_KEPT_ENTRIES_MAX = 1 << 16  # of all segments; an entry takes some 100 bytes

Run = Callable[[Callable[[], bytes], RemoteLogSegmentMetadata], Awaitable[bytes]]


class RemoteTransactions:
    """Transaction indexes of remote segments, those used last in memory; on one event loop.

    `run` runs a blocking call of the storage for the segment in a thread.
    """

    def __init__(
        self, storage: RemoteStorageManager, metadata: RemoteLogMetadataManager, run: Run
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._run = run
        self._kept: OrderedDict[UUID, list[AbortedTransaction]] = OrderedDict()
        self._kept_entries = 0

    async def aborted(
        self, partition: TopicIdPartition, log: Log, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Returns those with records in [start, end), oldest marker first. Raises
        CorruptIndexError, and RemoteResourceNotFoundError if an index is gone.
        """
        await check_transactions(log, start_offset, end_offset)  # now: below nothing waits for it
        epochs = tuple(EpochEntry(*entry) for entry in log.epochs.entries())
        found: dict[tuple[int, int], AbortedTransaction] = {}
        ends = [entry.start_offset for entry in epochs[1:]] + [log.log_end_offset]
        for (epoch, begin), end in zip(epochs, ends, strict=True):
            offset = max(begin, start_offset)
            while offset < min(end, log.local_log_start_offset):
                segment = self._metadata.next_segment_with_txn_index(partition, epoch, offset)
                if segment is None:
                    break
                readable = planner.coverage(segment, epochs, log.log_end_offset).stop
                for entry in await self._entries(segment):
                    if entry.last_offset >= readable:
                        break  # of another lineage
                    _add(found, entry, start_offset, end_offset)
                    if entry.last_stable_offset >= end_offset:
                        return list(found.values())
                offset = segment.next_offset
        for entry in log.aborted_transactions(start_offset, end_offset):
            _add(found, entry, start_offset, end_offset)
        return list(found.values())

    async def _entries(self, segment: RemoteLogSegmentMetadata) -> list[AbortedTransaction]:
        found = self._kept.get(segment.id)
        if found is not None:
            self._kept.move_to_end(segment.id)
            return found
        data = await self._run(
            lambda: self._storage.fetch_index(segment, IndexType.TRANSACTION), segment
        )
        name = f"the transaction index of {segment.remote_log_segment_id}"
        found = parse_transactions(data, name)
        self._kept_entries += len(found) - len(self._kept.get(segment.id, ()))
        self._kept[segment.id] = found
        while self._kept_entries > _KEPT_ENTRIES_MAX and len(self._kept) > 1:
            self._kept_entries -= len(self._kept.popitem(last=False)[1])
        return found


def _add(
    found: dict[tuple[int, int], AbortedTransaction],
    entry: AbortedTransaction,
    start: int,
    end: int,
) -> None:
    if entry.last_offset >= start and entry.first_offset < end:
        found[entry.producer_id, entry.last_offset] = entry
