"""Moves of logs between the log directories of a node (KIP-113): begin, swap, cancel, and resume at
a start.

A move copies a log into a future log (`commitlog.moves.future_log`). Then it swaps the two, on the
event loop without a pause:

    1  the future log gets all that is left                                      current in A
    2  the target's checkpoints name the partition; A's log is marked as left    current in A
    3  rename `-future` to the partition's name, sync the target                 in A and in B: B
    4  the `Log` continues in the target
    5  rename the old directory to `-delete`, sync the source                    current in B

A stop between 3 and 5 leaves two logs of one partition, of one lineage. The one that moved more
often is the current one, even if the other comes back on a disk that was away for years. The count
is in the file `moves`; a future log begins with its source's count plus one.

If step 3 fails, it is unknown whether B's name is durable. So A's log, which stays, gets a higher
count first. If step 5 fails, A's disk failed. Should A come back without B, A's mark shows that its
log may lack records. Then it serves only a replica that counts as behind.

A future log without its current log is deleted, unless the current one may come back. If the
source's directory is offline, the copy stays for the next start. No log is created in its place as
long as the metadata counts on this replica: it may name the target already (KIP-858).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol
from uuid import UUID

from commitlog.disk.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from commitlog.disk.files import Directory
from commitlog.disk.homes import Homes
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.names import DELETE_SUFFIX, parse_directory_name, parse_future_name, unique_name
from commitlog.log.log import Log
from commitlog.moves.future_log import MOVES_FILE, FutureLog, Lineage
from commitlog.segment.segment import Segment
from tidemark.errors import StorageError, TidemarkError
from tidemark.types import METADATA_TOPIC, TopicPartition, random_uuid

logger = logging.getLogger(__name__)


class Logs(Protocol):
    """Open logs of the node, as far as moves need them."""

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """All log directories, online or not."""

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the open log of a partition."""

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the directory of an open log."""

    def is_gone(self, topic_partition: TopicPartition) -> bool:
        """Returns whether certainly no directory of this node has a log of the partition."""

    def moved(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Registers another directory of an open log."""


class Checkpoints(Protocol):
    """Checkpoint files of the log directories."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Excludes other writers of the checkpoints."""

    def note(
        self, directory: LogDirectory, topic_partition: TopicPartition, offsets: Mapping[str, int]
    ) -> None:
        """Durably sets one log's entries, given by file."""


class DirectoryMoves:
    """Future logs of one node; belongs to the owner of its logs."""

    def __init__(
        self,
        logs: Logs,
        checkpoints: Checkpoints,
        known_replica: Callable[[TopicPartition], tuple[UUID, UUID | None] | None],
        remove_later: Callable[[LogDirectory, str], None],
    ) -> None:
        """`known_replica` returns the topic id and the directory id in the metadata for a partition
        of this node. `remove_later` removes a tree of a directory in the background.
        """
        self._logs = logs
        self._checkpoints = checkpoints
        self._known_replica = known_replica
        self._remove_later = remove_later
        self._futures: dict[TopicPartition, FutureLog] = {}
        self.homes = Homes()  # the destinations
        self._found: dict[TopicPartition, tuple[LogDirectory, str]] = {}
        self._orphans: dict[TopicPartition, tuple[LogDirectory, str]] = {}
        self._left: dict[TopicPartition, Directory] = {}
        self.preferred: dict[TopicPartition, LogDirectory] = {}
        """Directories requested for logs of partitions that this node does not have yet."""

    # --- at start

    def settle(self) -> None:
        """Decides between several logs of one partition, and collects the future logs; runs before
        any log is opened. Only the current log keeps its name.
        """
        logs: dict[TopicPartition, list[LogDirectory]] = {}
        for directory in self._logs.directories:
            with suppress(LogDirectoryOfflineError):
                for name in directory.list():
                    future = parse_future_name(name)
                    topic_partition = parse_directory_name(name)
                    if future is not None and future in self._found:
                        _rename_away(directory, name, future, DELETE_SUFFIX)
                    elif future is not None:
                        self._found[future] = (directory, name)
                    elif topic_partition is not None and topic_partition.topic != METADATA_TOPIC:
                        logs.setdefault(topic_partition, []).append(directory)
        for topic_partition, homes in logs.items():
            with suppress(LogDirectoryOfflineError):  # the other log is the only one left
                if len(homes) > 1:
                    self._settle(topic_partition, homes)
                elif len(self._logs.directories) > 1:
                    self._note_left(topic_partition, homes[0])

    def _settle(self, topic_partition: TopicPartition, homes: list[LogDirectory]) -> None:
        """Renames the logs that moved less often than another of their lineage. Logs of other
        lineages stay: the metadata decides when they are opened.
        """
        name = str(topic_partition)
        of_log: dict[str, list[tuple[int, LogDirectory]]] = {}
        for home in homes:
            try:
                lineage = Lineage.read(home.subdirectory(name, create=False))
            except StorageError as error:
                logger.error("%s", error)
                continue
            if lineage is not None:
                of_log.setdefault(lineage.log_id, []).append((lineage.count, home))
        for found in of_log.values():
            newest = max(count for count, _ in found)
            for count, home in found:
                if count < newest:
                    logger.warning(
                        "%s moved away from %s: the log left there goes", topic_partition, home.path
                    )
                    with suppress(StorageError):
                        _rename_away(home, name, topic_partition, DELETE_SUFFIX)

    def _note_left(self, topic_partition: TopicPartition, home: LogDirectory) -> None:
        """Registers the only log of its partition as left if it is marked so.

        If the copy still has its `-future` name, it never took over: then the mark is removed.
        """
        directory = home.subdirectory(str(topic_partition), create=False)
        try:
            lineage = Lineage.read(directory)
        except LogDirectoryOfflineError:
            raise
        except StorageError as error:
            logger.error("%s", error)
            return
        if lineage is not None and lineage.is_left:
            if topic_partition in self._found:
                lineage.after(0).write(directory)
            else:
                self._left[topic_partition] = directory

    def resume(self) -> None:
        """Resumes the moves of an earlier process; runs after the logs are opened."""
        found, self._found = self._found, {}
        for topic_partition, (home, name) in found.items():
            if not home.is_online:
                continue
            current = self._logs.get(topic_partition)
            try:
                if current is None:
                    self._without_source(topic_partition, home, name)
                elif self._logs.directory_of(topic_partition) is home:
                    self._remove(topic_partition, home, name)
                else:
                    self._add(FutureLog.resume(current, home, name), home)
                    logger.info("%s: its move to %s goes on", topic_partition, home.path)
            except StorageError as error:
                logger.error(
                    "%s: its move to %s is given up: %s", topic_partition, home.path, error
                )
                with suppress(StorageError):
                    self._remove(topic_partition, home, name)

    def _without_source(
        self, topic_partition: TopicPartition, home: LogDirectory, name: str
    ) -> None:
        """Removes a future log whose current log is not open. Keeps it if the current log may come
        back, or if the metadata counts the future log as the current one.
        """
        known = self._known_replica(topic_partition)
        is_known = known is not None and known[1] is not None and known[1] == home.directory_id
        if self._logs.is_gone(topic_partition) and not is_known:
            self._remove(topic_partition, home, name)
            return
        logger.error("%s was being moved to %s: its log is missing", topic_partition, home.path)
        self._orphans[topic_partition] = (home, name)

    def check_source(self, topic_partition: TopicPartition) -> None:
        """Raises LogDirectoryOfflineError if the log was being moved and its directory is missing:
        an empty log must not take its place.
        """
        orphan = self._orphans.get(topic_partition)
        if orphan is not None:
            home, name = orphan
            raise LogDirectoryOfflineError(
                f"{topic_partition} is not made anew: it was being moved to {home.path} from a log"
                " directory that is missing. Give that back; or, to go on without its last"
                f" records, remove {home.path}/{name}, and restart the node"
            )

    def check_current(self, topic_partition: TopicPartition, *, may_hold_data: bool) -> None:
        """Makes a log that a move left behind the current one.

        Raises LogDirectoryOfflineError if it is needed for its records (`may_hold_data`), of which
        it may lack some.
        """
        directory = self._left.get(topic_partition)
        if directory is None:
            return
        if may_hold_data:
            raise LogDirectoryOfflineError(
                f"{topic_partition} is not taken from {directory.path}: it went on in a log"
                " directory that is missing. Give that back; or, to go on without its last"
                f" records, remove {directory.path}/{MOVES_FILE}, and restart the node"
            )
        lineage = Lineage.read(directory)
        if lineage is not None:
            lineage.after(2).write(directory)
        del self._left[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drops the marks of a log that left this node or was recreated, and removes a copy without
        its source.
        """
        self._left.pop(topic_partition, None)
        orphan = self._orphans.pop(topic_partition, None)
        if orphan is not None:
            with suppress(StorageError):
                self._remove(topic_partition, *orphan)

    # --- moves

    def get(self, topic_partition: TopicPartition) -> FutureLog | None:
        """Returns the future log of a partition that is being moved."""
        return self._futures.get(topic_partition)

    def all(self) -> list[FutureLog]:
        """Returns all future logs, oldest move first."""
        return list(self._futures.values())

    def destination_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the directory to which a partition is being moved."""
        return self.homes.get(topic_partition)

    def begin(self, current: Log, destination: LogDirectory) -> FutureLog:
        """Begins to move a log that is neither being moved nor in `destination`; returns its future
        log.

        Raises StorageError if the future log cannot be made.
        """
        topic_partition = current.topic_partition
        assert topic_partition not in self._futures, "one move of a partition at a time"
        assert self._logs.directory_of(topic_partition) is not destination, "it is there"
        future = FutureLog.begin(current, destination)
        self._add(future, destination)
        return future

    def _add(self, future: FutureLog, home: LogDirectory) -> None:
        self._futures[future.topic_partition] = future
        self.homes[future.topic_partition] = home

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Cancels the move of a partition, if there is one, and removes the copy.

        A disk that fails meanwhile is no error: the next start removes the rest.
        """
        future = self._futures.pop(topic_partition, None)
        if future is None:
            return
        home = self.homes.pop(topic_partition)
        try:
            self._remove(topic_partition, home, future.name)
        except StorageError as error:
            logger.warning("%s: %s is left behind: %s", topic_partition, future.name, error)

    def drop_offline(self) -> None:
        """Cancels moves into failed directories, and keeps the copies of moves out of them for the
        next start.
        """
        for topic_partition, future in list(self._futures.items()):
            home = self.homes[topic_partition]
            if not home.is_online:
                self.cancel(topic_partition)
            elif self._logs.get(topic_partition) is not future.current:
                del self._futures[topic_partition], self.homes[topic_partition]
                self._orphans[topic_partition] = (home, future.name)

    def swap(self, topic_partition: TopicPartition) -> None:
        """Puts the future log in place of the current one: steps 1 to 5, without a pause.

        Raises StorageError or CorruptMessageError if the log stays where it is; the move is
        cancelled then.
        """
        future = self._futures[topic_partition]
        target, source = self.homes[topic_partition], self._logs.directory_of(topic_partition)
        assert source is not None, "a log that is moved has a directory"

        def place() -> tuple[Directory, list[Segment]]:
            future.complete()
            with self._checkpoints.lock:
                self._note(target, future.current)
                directory = self._rename(future, target)
                self._logs.moved(topic_partition, target)
            return directory, future.segments_in(directory)

        left = future.current.segments
        try:
            future.current.move_to(place)
        except (TidemarkError, OSError):
            self.cancel(topic_partition)
            raise
        future.is_promised = False  # the promise is kept
        for segment in left:
            segment.close()
        del self._futures[topic_partition], self.homes[topic_partition]
        logger.info("%s moved from %s to %s", topic_partition, source.path, target.path)
        try:
            self._remove(topic_partition, source, str(topic_partition))
        except StorageError as error:
            logger.warning("%s is left in %s: %s", topic_partition, source.path, error)

    def _rename(self, future: FutureLog, target: LogDirectory) -> Directory:
        """Does step 3, after marking the source. If it fails, the current log gets a count above
        that of the copy in the target.
        """
        name = str(future.topic_partition)
        lineage = Lineage.read(future.current.directory)
        assert lineage is not None, "a future log's source has its lineage"
        lineage.after(0, is_left=True).write(future.current.directory)
        try:
            target.rename(future.name, name)
            target.fsync()
            return target.subdirectory(name, create=False)
        except StorageError:
            lineage.after(2).write(future.current.directory)
            raise

    def _note(self, target: LogDirectory, current: Log) -> None:
        """Does step 2: older entries would mislead a start."""
        self._checkpoints.note(
            target,
            current.topic_partition,
            {
                RECOVERY_POINT_CHECKPOINT: current.log_end_offset,
                LOG_START_OFFSET_CHECKPOINT: current.log_start_offset,
                HIGH_WATERMARK_CHECKPOINT: current.high_watermark,
            },
        )

    def _remove(self, topic_partition: TopicPartition, home: LogDirectory, name: str) -> None:
        """Renames a directory to `-delete` at once; its files are removed in the background."""
        renamed = _rename_away(home, name, topic_partition, DELETE_SUFFIX)
        self._remove_later(home, renamed)


def _rename_away(
    home: LogDirectory, name: str, topic_partition: TopicPartition, suffix: str
) -> str:
    """Durably gives a directory a name that no log has; returns the name."""
    renamed = unique_name(topic_partition, random_uuid().hex, suffix)
    home.rename(name, renamed)
    home.fsync()
    return renamed
