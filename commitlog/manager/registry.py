"""Registry of a node's logs: which are open and where, which are lost, which failed to open.

The rest of the room works on it. It notifies its listeners of what happens to a log. It opens,
renames and deletes no file.

    open      in `by_partition`, with a directory
    lost      in a directory that failed; never touched again, never recreated elsewhere
    failed    its files could not be opened, or are not its topic's; the error is kept
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from commitlog.disk.files import DiskError
from commitlog.disk.homes import Homes
from commitlog.disk.log_directory import LogDirectory
from commitlog.log.log import Log
from commitlog.manager import placement
from commitlog.manager.changes import Changes
from tidemark.errors import StorageError
from tidemark.types import TopicPartition


class LogListener(Protocol):
    """Receiver of events of a node's logs; called in the thread that owns the logs."""

    def log_cut(self, log: Log) -> None:
        """The log is about to be truncated to its recovery point, which is checkpointed."""

    def log_removed(self, topic_partition: TopicPartition) -> None:
        """The log is about to be deleted, set aside, or lost with its directory."""

    def log_moved(self, topic_partition: TopicPartition, left: LogDirectory) -> None:
        """The log continues in another directory than `left`."""

    def save(self) -> None:
        """Makes durable which logs were removed, before others of their names are used; any
        thread.
        """


class LogRegistry:
    """Logs of a node; changed by their owner, and by several threads while logs are opened."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self.directories = tuple(directories)
        self.changes = Changes()
        self._logs: dict[TopicPartition, Log] = {}
        self.homes = Homes()
        self._lost: dict[TopicPartition, LogDirectory] = {}
        self._failed: dict[TopicPartition, tuple[LogDirectory, StorageError]] = {}
        self._listeners: list[LogListener] = []

    def listen(self, listener: LogListener) -> None:
        """Notifies `listener` of events from now on."""
        self._listeners.append(listener)

    # --- queries

    @property
    def by_partition(self) -> Mapping[TopicPartition, Log]:
        """All open logs by partition; not to be changed."""
        return self._logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Returns the open log of a partition."""
        return self._logs.get(topic_partition)

    def is_open(self, log: Log) -> bool:
        """Returns whether this object is the open log of its partition."""
        return self._logs.get(log.topic_partition) is log

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the log directory of an open log."""
        return self.homes.get(topic_partition)

    def lost_in(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the failed directory that holds a partition's log."""
        return self._lost.get(topic_partition)

    def is_gone(self, topic_partition: TopicPartition) -> bool:
        """Returns whether certainly no directory of this node has a log of the partition."""
        known = (self._logs, self._failed, self._lost)
        online = len(placement.online(self.directories)) == len(self.directories)
        return online and not any(topic_partition in logs for logs in known)

    def has_unopened(self, directory: LogDirectory) -> bool:
        """Returns whether a log in the directory could not be opened."""
        return any(home is directory for home, _ in self._failed.values())

    def damaged_in(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Returns the online directory of a log that failed to open by its contents, not because
        the operating system refused a call.
        """
        home, error = self._failed.get(topic_partition, (None, None))
        is_damaged = home is not None and home.is_online and not isinstance(error, DiskError)
        return home if is_damaged else None

    def check(self, topic_partition: TopicPartition) -> None:
        """Raises the StorageError with which the partition's log failed to open, or
        LogDirectoryOfflineError if the log is lost.
        """
        if topic_partition in self._failed:
            raise self._failed[topic_partition][1]
        if topic_partition in self._lost:
            raise self._lost[topic_partition].state.offline()

    # --- changes

    def add(self, log: Log, directory: LogDirectory) -> None:
        """Adds a log that was opened in `directory`."""
        self._logs[log.topic_partition] = log
        self.homes[log.topic_partition] = directory
        self.changes.note((log,))

    def add_lost(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Adds a log whose directory failed before the log was open."""
        self._lost[topic_partition] = directory

    def add_failed(
        self, topic_partition: TopicPartition, directory: LogDirectory, error: StorageError
    ) -> None:
        """Adds a log whose files could not be opened."""
        self._failed[topic_partition] = directory, error

    def forget_failed(self, topic_partition: TopicPartition) -> None:
        """Drops a log that failed to open and was set aside."""
        self._failed.pop(topic_partition, None)

    def refuse(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """Closes an open log; from now on it counts as one that failed to open."""
        self.add_failed(topic_partition, self.remove(topic_partition), error)

    def forget_lost(self, topic_partition: TopicPartition) -> None:
        """Drops a lost log whose replica left this node."""
        self._lost.pop(topic_partition, None)

    def remove(self, topic_partition: TopicPartition) -> LogDirectory:
        """Closes an open log and drops it; returns its directory. The files stay."""
        self._notify_removed(topic_partition)  # while its home is known
        log, home = self._logs.pop(topic_partition), self.homes.pop(topic_partition)
        log.close(clean=False)
        self.changes.note((log,))
        return home

    def drop_offline(self) -> list[TopicPartition]:
        """Drops the logs of failed directories without touching a file; returns which."""
        dropped = [tp for tp, home in self.homes.items() if not home.is_online]
        for topic_partition in dropped:
            self._lost[topic_partition] = self.homes.pop(topic_partition)
            self._notify_removed(topic_partition)
            log = self._logs.pop(topic_partition)
            log.close(clean=False)
            self.changes.note((log,))
        return dropped

    def moved(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Registers another directory of an open log."""
        left, self.homes[topic_partition] = self.homes[topic_partition], directory
        self.changes.note((self._logs[topic_partition],))
        for listener in self._listeners:
            listener.log_moved(topic_partition, left)

    def cut(self, log: Log) -> None:
        """Notifies the listeners that a log is about to be truncated."""
        for listener in self._listeners:
            listener.log_cut(log)

    def save(self) -> None:
        """Has the listeners make durable which logs were removed; any thread."""
        for listener in self._listeners:
            listener.save()

    def _notify_removed(self, topic_partition: TopicPartition) -> None:
        for listener in self._listeners:
            listener.log_removed(topic_partition)
