"""Opens the logs of a node at its start, and recovers those that were not closed cleanly.

Directories are opened one after the other, the logs of one in num.recovery.threads.per.data.dir
threads. After a clean stop nothing is recovered, and one thread is enough. A directory that fails
meanwhile goes offline. A log that fails to open is registered as failed. The others are opened. A
full disk is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from uuid import UUID

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    PartitionMetadata,
)
from commitlog.disk.files import storage_error
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.names import DELETE_SUFFIX, STRAY_SUFFIX, parse_directory_name, unique_name
from commitlog.disk.threads import work_off
from commitlog.log.claims import StartsBehindEndError
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from commitlog.manager.full_disk import FullDiskWait
from commitlog.manager.offset_checkpoints import LogCheckpoints
from commitlog.manager.placement import Found, KnownReplica, current_of
from commitlog.manager.registry import LogRegistry
from tidemark.config import TopicConfig
from tidemark.errors import FatalError, StorageError, TidemarkError
from tidemark.types import METADATA_TOPIC, TopicPartition, random_uuid

logger = logging.getLogger(__name__)


class Noted(NamedTuple):
    """Checkpointed offsets of one log, and whether it was closed cleanly."""

    recovery_point: int | None
    log_start_offset: int
    high_watermark: int
    clean: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """One start of a node's logs; `open` is called once for each directory."""

    registry: LogRegistry
    checkpoints: LogCheckpoints
    now_ms: Callable[[], int]
    topic_config: Callable[[str], TopicConfig]
    known_replica: Callable[[TopicPartition], KnownReplica | None]
    set_aside: Callable[[TopicPartition], None]
    """Renames an open log to `-stray`."""
    full_disk: FullDiskWait
    recovery_threads: int
    producer_expiration_ms: int

    def open(self, directory: LogDirectory) -> int:
        """Opens the logs of a directory.

        Returns the broker epoch of the last clean stop, -1 after an unclean one. Raises
        LogDirectoryOfflineError if the directory is offline. Raises StorageError if two logs of one
        partition exist and the metadata does not determine which stays.
        """
        marker = CleanShutdown(directory)
        epoch = marker.broker_epoch()
        clean = marker.exists()
        marker.remove()
        self._open_logs(directory, clean)
        return epoch

    def _open_logs(self, directory: LogDirectory, clean: bool) -> None:
        recovery_points = self.checkpoints.read(directory, RECOVERY_POINT_CHECKPOINT)
        starts = self.checkpoints.read(directory, LOG_START_OFFSET_CHECKPOINT)
        watermarks = self.checkpoints.read(directory, HIGH_WATERMARK_CHECKPOINT)
        found = self._find(directory)
        config_of = cache(self.topic_config)  # the same for all partitions of a topic

        def open_one(item: tuple[TopicPartition, str]) -> None:
            topic_partition, name = item
            noted = Noted(
                recovery_points.get(topic_partition),
                starts.get(topic_partition, 0),
                watermarks.get(topic_partition, 0),
                clean,
            )
            config = config_of(topic_partition.topic)
            try:
                log = self.full_disk.run(
                    f"the opening of {topic_partition}",
                    lambda: self._open_log(directory, name, topic_partition, config, noted),
                )
            except LogDirectoryOfflineError:
                self.registry.add_lost(topic_partition, directory)
                return
            except FatalError:
                raise
            except Exception as error:
                self._failed(topic_partition, directory, error)
                return
            if (noted.recovery_point or 0) > log.log_end_offset:
                self.checkpoints.doubt(directory, RECOVERY_POINT_CHECKPOINT, topic_partition)
            log.update_high_watermark(noted.high_watermark)
            self.registry.add(log, directory)

        work_off([found], open_one, 1 if clean else self.recovery_threads, "log-recovery")
        self.checkpoints.prune(
            directory,
            {topic_partition for topic_partition, _ in found},
            lambda topic_partition: self.known_replica(topic_partition) is not None,
        )
        if not directory.is_online:
            return
        logger.info(
            "%s: %d logs opened after %s stop",
            directory.path,
            len(found),
            "a clean" if clean else "an unclean",
        )

    def _open_log(
        self,
        directory: LogDirectory,
        name: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        noted: Noted,
    ) -> Log:
        """Opens one log; begins it anew if it starts behind its last record."""

        def opened(topic_id: UUID | None) -> Log:
            return open_log(
                directory.subdirectory(name),
                topic_partition,
                config,
                now_ms=self.now_ms(),
                topic_id=topic_id,
                recovery_point=noted.recovery_point,
                log_start_offset=noted.log_start_offset,
                high_watermark=noted.high_watermark,
                clean=noted.clean,
                producer_expiration_ms=self.producer_expiration_ms,
                events=self.checkpoints,
            )

        try:
            return opened(None)
        except StartsBehindEndError as error:
            aside = unique_name(topic_partition, random_uuid().hex, STRAY_SUFFIX)
            logger.warning("%s; its files are set aside in %s", error, aside)
        metadata = PartitionMetadata.read(directory.subdirectory(name))
        directory.rename(name, aside)
        log = opened(None if metadata is None else metadata.topic_id)
        directory.fsync()
        return log

    def _failed(
        self, topic_partition: TopicPartition, directory: LogDirectory, error: Exception
    ) -> None:
        if not isinstance(error, TidemarkError):  # one log's damage keeps no other from serving
            logger.exception("can not open %s", topic_partition)
        else:
            logger.error("can not open %s: %s", topic_partition, error)
        if isinstance(error, OSError):
            error = storage_error("open", f"{directory.path}/{topic_partition}", error)
        elif not isinstance(error, StorageError):
            error = StorageError(f"{directory.path}/{topic_partition} can not be opened: {error!r}")
        self.registry.add_failed(topic_partition, directory, error)

    def _find(self, directory: LogDirectory) -> list[tuple[TopicPartition, str]]:
        """Returns the logs to open with their names; removes deleted ones."""
        found: list[tuple[TopicPartition, str]] = []
        for name in directory.list():
            if not directory.is_directory(name):
                continue
            if name.endswith(DELETE_SUFFIX):
                directory.remove_tree(name)
                continue
            topic_partition = parse_directory_name(name)
            if topic_partition is None or topic_partition.topic == METADATA_TOPIC:
                continue
            if self._is_current(topic_partition, directory):
                found.append((topic_partition, name))
        return found

    def _is_current(self, topic_partition: TopicPartition, directory: LogDirectory) -> bool:
        """Returns whether the log in `directory` is the one to open.

        If another directory has a log of the partition, the one that is not current is set aside.
        Its directory was away while the partition, or another of its name, was made elsewhere.
        """
        home = self.registry.directory_of(topic_partition)
        opened = self.registry.get(topic_partition)
        if home is None or opened is None or home is directory:
            return True
        name = str(topic_partition)
        metadata = PartitionMetadata.read(directory.subdirectory(name, create=False))
        current = current_of(
            Found(home, opened.topic_id),
            Found(directory, None if metadata is None else metadata.topic_id),
            self.known_replica(topic_partition),
        )
        if current is None:
            raise StorageError(
                f"{topic_partition} is in {home.path} and in {directory.path}; remove the older one"
            )
        if current is directory:
            logger.warning("%s in %s is not current: set aside", topic_partition, home.path)
            self.set_aside(topic_partition)
            return True
        logger.warning("%s in %s is not current: set aside", topic_partition, directory.path)
        directory.rename(name, unique_name(topic_partition, random_uuid().hex, STRAY_SUFFIX))
        directory.fsync()
        return False
