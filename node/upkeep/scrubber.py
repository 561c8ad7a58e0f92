"""Reads the rolled segments of all logs for damage, slowly, again and again.

Nobody reads cold segments, so a bit that flips in one is found when the other replicas may be gone.
A pass goes over all logs in random order, at log.scrubber.io.max.bytes.per.second. It compares
CRCs, offsets, leader epochs and indexes (`commitlog.verify`). What the log tells again is written
anew: indexes, producer snapshots, leader-epoch-checkpoint, partition.metadata. A damaged segment,
or one of other leader epochs than the log's lineage, is reported: the replica is copied anew from
its leader.

Files are read in a thread by handles of the scrubber's own. A segment that was deleted, cut or
compacted meanwhile is passed over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from commitlog.disk.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    PartitionMetadata,
)
from commitlog.disk.files import Directory, DiskError
from commitlog.log.continuity import check_end
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.segment.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from commitlog.segment.segment import Segment
from commitlog.types import CorruptLogError
from commitlog.verify import BatchRun, Finding, check_batches, verify_index
from node.partition.registry import PartitionRegistry
from tidemark.config import ServerConfig
from tidemark.errors import StorageError
from tidemark.surroundings import surroundings

logger = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PASS_MS = 600_000
_ASLEEP_MS = 60_000  # between looks at the settings while passes are switched off


class _Part(NamedTuple):
    """A rolled segment when its check began, its truncations and its size then, and the segment
    behind it.
    """

    segment: Segment
    cuts: int
    size_bytes: int
    following: Segment


class Scrubber:
    """The check of one broker's logs; counts what it reads and finds.

    `on_damage` receives a log and the damage found in it, on the event loop.
    """

    def __init__(
        self,
        config: ServerConfig,
        logs: LogManager,
        on_damage: Callable[[Log, CorruptLogError], None],
        executor: Executor,
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._logs = logs
        self._on_damage = on_damage
        self._executor = executor
        self._rng = rng or surroundings().make_rng()
        self.passes = 0
        self.scrubbed_bytes = 0
        self.damaged_segments = 0
        self.rebuilt_indexes = 0
        self.repaired_files = 0  # producer snapshots, leader epochs and partition.metadata

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies altered log.scrubber.* settings, from the next chunk on."""
        self._config = config

    async def run(self) -> None:
        """Makes passes until it is cancelled."""
        wait_ms = FIRST_PASS_MS
        while True:
            interval_ms = self._config.log_scrubber_interval_ms
            if interval_ms < 0:
                await asyncio.sleep(_ASLEEP_MS / 1000)
                continue
            await asyncio.sleep(min(wait_ms, interval_ms) / 1000)
            await self.scrub_all()
            wait_ms = interval_ms

    async def scrub_all(self) -> None:
        """Makes one pass over the logs of this moment."""
        partitions = sorted(self._logs.by_partition)
        self._rng.shuffle(partitions)
        for partition in partitions:
            log = self._logs.by_partition.get(partition)
            if log is not None:
                await self.scrub(log)
        self.passes += 1

    async def scrub(self, log: Log) -> None:
        """Checks one log: its small files, and its rolled segments up to the first damaged one."""
        try:
            self._repair_files(log)
        except StorageError as error:
            logger.error("can not check %s: %s", log.topic_partition, error)
            return
        for part in _parts(log):
            try:
                run = await self._read(log.directory, part)
                if not _is_current(log, part):
                    continue
                damage = _damage(log, part, run)
                if damage is not None:
                    self.damaged_segments += 1
                    logger.error("%s: %s", log.topic_partition, damage)
                    self._on_damage(log, damage)
                    return
                await self._check_indexes(log, part)
            except StorageError as error:
                if _is_current(log, part):
                    logger.error("can not check %s: %s", log.topic_partition, error)
                    return

    def _repair_files(self, log: Log) -> None:
        removed = log.producers.remove_damaged()
        if removed:
            logger.warning("%s: removed %d damaged snapshots", log.topic_partition, removed)
        self.repaired_files += removed
        if log.epochs.repair():
            logger.warning("%s: %s is written anew", log.topic_partition, LEADER_EPOCH_CHECKPOINT)
            self.repaired_files += 1
        if log.topic_id is None:
            return
        try:
            known = PartitionMetadata.read(log.directory)
        except DiskError:
            raise
        except StorageError as error:
            logger.warning("%s", error)
            known = None
        if known is None or known.topic_id != log.topic_id:
            logger.warning("%s: %s is written anew", log.topic_partition, PARTITION_METADATA)
            PartitionMetadata(log.topic_id).write(log.directory)
            self.repaired_files += 1

    async def _read(self, directory: Directory, part: _Part) -> BatchRun | None:
        """Reads a segment at the rate allowed; None if it was removed meanwhile."""
        name = part.segment.log_file
        if not directory.exists(name):
            return None
        run = BatchRun(part.segment.base_offset)
        file = await self._in_thread(lambda: directory.open_read_only(name))
        try:
            chunks = check_batches(file, part.size_bytes, run)
            while (count := await self._in_thread(lambda: next(chunks, 0))) > 0:
                self.scrubbed_bytes += count
                await asyncio.sleep(count / self._config.log_scrubber_io_max_bytes_per_second)
        finally:
            file.close()
        return run

    async def _check_indexes(self, log: Log, part: _Part) -> None:
        stem = f"{part.segment.base_offset:020d}"
        for name in (stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX):
            if not log.directory.exists(name):
                continue
            found = await self._in_thread(partial(_first_fault, log.directory, name))
            if found is not None and _is_current(log, part):
                logger.warning("%s; rebuilding the indexes", found)
                twin = await self._in_thread(partial(_indexed, part))
                if _is_current(log, part):
                    part.segment.offset_index = twin.offset_index
                    part.segment.time_index = twin.time_index
                    twin.finish_indexes()
                    Segment.rebuilds += 1
                    self.rebuilt_indexes += 1
                twin.close()
                return

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _parts(log: Log) -> list[_Part]:
    return [
        _Part(one, one.cuts, one.size_bytes, following) for one, following in pairwise(log.segments)
    ]


def _indexed(part: _Part) -> Segment:
    """Returns a twin of the segment with indexes built from its batches, not written yet."""
    known = part.segment
    twin = Segment(known.directory, known.base_offset, known.config, size_bytes=part.size_bytes)
    twin.rebuild_indexes()
    return twin


def _is_current(log: Log, part: _Part) -> bool:
    """Whether the segment is still the log's, with the bytes that were read."""
    return part in _parts(log)


def _damage(log: Log, part: _Part, run: BatchRun | None) -> CorruptLogError | None:
    """Returns the first contradiction in a segment (None: its file is gone), with the segment
    behind it, or with the lineage.
    """
    file = f"{log.directory.path}/{part.segment.log_file}"
    if run is None:
        return CorruptLogError(file, 0, "the file is gone")
    if run.faults:
        return CorruptLogError(file, *run.faults[0])
    if run.position < part.size_bytes:
        return CorruptLogError(file, run.position, f"it had {part.size_bytes} bytes and was cut")
    next_base = part.following.base_offset
    if run.next_offset > next_base:
        problem = f"it reaches to offset {run.next_offset - 1}; the next begins at {next_base}"
        return CorruptLogError(file, 0, problem)
    try:
        check_end(part.segment, part.following)
    except CorruptLogError as error:
        return error
    return _foreign_epoch(log, file, run)


def _foreign_epoch(log: Log, file: str, run: BatchRun) -> CorruptLogError | None:
    """Returns the first contradiction between the batches and the lineage. A wrong lineage cuts a
    follower at a wrong offset, or misleads those that ask it.
    """
    ends = [*run.ends[1:], run.next_offset]
    for (epoch, base), end in zip(run.starts, ends, strict=True):
        for offset in (base, end - 1):
            known = log.epochs.epoch_for_offset(offset)
            if known not in (None, epoch):
                problem = f"offset {offset} is of leader epoch {epoch}, not {known} as its lineage"
                return CorruptLogError(file, 0, problem)
    return None


def damage_reporter(partitions: PartitionRegistry) -> Callable[[Log, CorruptLogError], None]:
    """Returns the function that reports damage of a log to its partition, if it still has it."""

    def report(damaged: Log, error: CorruptLogError) -> None:
        hosted = partitions.find(damaged.topic_partition)
        if hosted is not None and hosted.log is damaged:
            hosted.found_damage(error)

    return report


def _first_fault(directory: Directory, name: str) -> Finding | None:
    return next(verify_index(directory, name), None)
