"""Segments in the store that the metadata does not name: its records were lost (RULES.md rule 12).

A metadata partition loses records with the disks of its replicas, or by an unclean election. Then
nothing names the segments any more, and a leader would take the offsets that it does not have
itself for deleted. So it looks into the store before it gives them up. The look costs requests, and
is rare: a log start moves with the leader's own plan otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidemark.types import TopicIdPartition
from tiering.errors import RemoteStorageError, plugin_errors_typed
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.store.manager import RemoteStorageManager, SegmentListing, StoredSegment


class UnrecordedSegmentsError(RemoteStorageError):
    """The store has segments of a partition that no metadata names. A person runs `tidemark tier
    rebuild`, or `tidemark tier gc` if they are of no use.
    """


class UnrecordedSegments:
    """Compares one partition's segments in the store with the metadata. `run` runs a blocking call
    in a pool of the caller.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        run: Callable[[Callable[[], StoredSegment | None]], Awaitable[StoredSegment | None]],
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._run = run

    async def check(self, partition: TopicIdPartition, end_offset: int | None = None) -> None:
        """Raises UnrecordedSegmentsError if the store has a segment of the partition that begins
        below `end_offset` and that the metadata does not know in any state. With an end the tier
        had segments, so an empty one is an outage. Raises the errors of the store. A store that
        offers no list is trusted.
        """
        storage = self._storage
        if not isinstance(storage, SegmentListing):
            return
        if end_offset is not None:
            storage.expect_segments()
        known = {segment.id for segment in self._metadata.list_remote_log_segments(partition)}

        def first_unrecorded() -> StoredSegment | None:
            with plugin_errors_typed():
                for segment in storage.list_segments(partition):
                    is_below = end_offset is None or segment.start_offset < end_offset
                    if is_below and segment.id not in known:
                        return segment
            return None

        found = await self._run(first_unrecorded)
        if found is not None:
            raise UnrecordedSegmentsError(
                f"the store has a segment of {partition} from offset {found.start_offset} on"
                f" ({found.id}) that __remote_log_metadata does not name, so its records were"
                " lost: nothing is given up. Run `tidemark tier rebuild`, or `tidemark tier gc` if"
                " the segment is of no use"
            )
