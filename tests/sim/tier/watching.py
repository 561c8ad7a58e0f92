"""Calls of production that the tier's world watches: reads, deletions of copies, bootstraps.

The functions take the place of production's own while a world runs, call them, and judge what they
do. A violation becomes the finding of the seed, even where production catches exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from commitlog.log.log import Log
from node.replication.tier_bootstrap import TierBootstrap
from node.replication.tier_restore import TierRestore
from tests.sim.checks import Violation
from tests.sim.cluster.views import CURRENT
from tidemark.errors import OffsetOutOfRangeError, TidemarkError
from tidemark.records import iter_batches
from tidemark.records.header import crc_is_valid
from tidemark.types import TopicIdPartition
from tiering.manager import RemoteLogManager
from tiering.metadata.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tiering.metadata.topic_based import TopicBasedRemoteLogMetadataManager as Metadata

if TYPE_CHECKING:
    from tests.sim.tier.world import TierWorld


class Watch:
    """The watched calls of one world."""

    def __init__(self, world: TierWorld, grace_ms: int) -> None:
        self._world = world
        self._grace_ms = grace_ms
        self._begun: dict[Any, float] = {}
        """When copies were begun, by segment id."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watches while the context lasts."""
        with contextlib.ExitStack() as stack:
            for owner, name in (
                (RemoteLogManager, "_pass"),
                (RemoteLogManager, "read"),
                (Metadata, "add_remote_log_segment_metadata"),
                (Metadata, "update_remote_log_segment_metadata"),
                (TierBootstrap, "run"),
                (TierRestore, "_run"),
            ):
                watched = getattr(self, f"_{owner.__name__}_{name}".replace("__", "_"))
                stack.enter_context(patch.object(owner, name, watched(getattr(owner, name))))
            yield

    # --- passes -----------------------------------------------------------------------------------

    def _RemoteLogManager_pass(self, call: Any) -> Any:
        """A pass that ends by an error which nobody foresaw is a finding, though it is repeated."""

        async def run(manager: Any, hosted: Any) -> None:
            try:
                await call(manager, hosted)
            except (TidemarkError, OSError):
                raise
            except Exception:
                with self._world.watch():
                    raise

        return run

    # --- reads ------------------------------------------------------------------------------------

    def _RemoteLogManager_read(self, call: Any) -> Any:
        async def read(
            manager: Any, partition: TopicIdPartition, log: Log, offset: int, max_bytes: int
        ) -> bytes:
            try:
                records: bytes = await call(manager, partition, log, offset, max_bytes)
            except OffsetOutOfRangeError as error:
                with self._world.watch():
                    self._judge_missing(partition, log, offset, error)
                raise
            with self._world.watch():
                self._judge(partition, log, offset, records)
            return records

        return read

    def _judge_missing(
        self, partition: TopicIdPartition, log: Log, offset: int, error: OffsetOutOfRangeError
    ) -> None:
        """Raises Violation for a topic without retention: none of its offsets is out of range."""
        if partition.topic in self._world.unlimited:
            raise Violation(
                f"I10 what no retention deletes is in range: {partition.topic_partition} at "
                f"{offset}, lineage {log.epochs.entries()}: {error}"
            )

    def _judge(self, partition: TopicIdPartition, log: Log, offset: int, records: bytes) -> None:
        """A read returns what was committed, and of the log's own lineage."""
        self._world.seen["reads of the tier"] += 1
        committed = self._world.partitions.committed.get((partition.topic_id, partition.partition))
        where = f"{partition.topic_partition} from offset {offset}"
        for index, (position, header) in enumerate(iter_batches(records)):
            found = header.base_offset, header.next_offset
            if not crc_is_valid(records, position, header):
                raise Violation(f"I10 a read of the tier has sound batches: {where}: {found}")
            if index == 0 and not header.base_offset <= offset < header.next_offset:
                raise Violation(f"I10 a read of the tier has the offset: {where}: {found}")
            if log.epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch:
                raise Violation(
                    f"I10 a read of the tier is of the log's lineage: {where}: {found} of epoch "
                    f"{header.partition_leader_epoch}"
                )
            if committed:
                at = bisect_left(committed, header.base_offset, key=lambda one: one.base_offset)
                wanted = committed[at] if at < len(committed) else None
                own = (*found, header.partition_leader_epoch, header.crc)
                if wanted != own:
                    raise Violation(
                        f"I10 a read of the tier is what was committed: {where}: {own}, "
                        f"committed is {wanted}"
                    )

    # --- metadata ---------------------------------------------------------------------------------

    def _TopicBasedRemoteLogMetadataManager_add_remote_log_segment_metadata(self, call: Any) -> Any:
        async def add(manager: Any, metadata: RemoteLogSegmentMetadata) -> None:
            self._begun.setdefault(metadata.id, self._world.loop.time())
            await call(manager, metadata)

        return add

    def _TopicBasedRemoteLogMetadataManager_update_remote_log_segment_metadata(
        self, call: Any
    ) -> Any:
        async def update(manager: Any, change: RemoteLogSegmentMetadataUpdate) -> None:
            with self._world.watch():
                self._judge_update(manager, change)
            await call(manager, change)

        return update

    def _judge_update(self, manager: Any, change: RemoteLogSegmentMetadataUpdate) -> None:
        """Another broker's copy is left alone for its grace: its upload may be under way."""
        if change.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return
        segments = manager.list_remote_log_segments(change.topic_id_partition)
        identity = change.remote_log_segment_id.id
        known = next((segment for segment in segments if segment.id == identity), None)
        if known is None or known.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return
        age_ms = (self._world.loop.time() - self._begun[identity]) * 1000
        if known.broker_id != change.broker_id and age_ms < self._grace_ms:
            raise Violation(
                f"I10 a copy is left alone for its grace: broker {change.broker_id} deletes one "
                f"of broker {known.broker_id}, begun {age_ms:.0f} ms ago: {stem(known)}"
            )

    # --- logs that begin in the tier --------------------------------------------------------------

    def _TierBootstrap_run(self, call: Any) -> Any:
        return self._counted("bootstrap", call)

    def _TierRestore_run(self, call: Any) -> Any:
        return self._counted("restore", call)

    def _counted(self, what: str, call: Any) -> Any:
        async def run(*arguments: Any, **options: Any) -> None:
            world, node = self._world, CURRENT.get().node
            world.seen[f"{what} begun"] += 1
            world.tier_faults.on_work(node, what)
            try:
                await call(*arguments, **options)
            except asyncio.CancelledError:
                world.seen[f"{what} cut short"] += 1
                raise
            world.seen[f"{what} done"] += 1

        return run


def stem(segment: RemoteLogSegmentMetadata) -> str:
    """A segment, for a message."""
    return f"{segment.topic_id_partition} [{segment.start_offset}, {segment.end_offset}]"
