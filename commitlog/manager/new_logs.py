"""Makes new logs, many at a time, in any thread: their owner plans them, and adds those made.

A log that is made is durable: its files, its directory, and its entry in the log directory. No
checkpoint has an entry of an earlier log of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from commitlog.disk.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from commitlog.disk.files import storage_error
from commitlog.disk.homes import Homes
from commitlog.disk.log_directory import LogDirectory, LogDirectoryOfflineError
from commitlog.disk.threads import work_off
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from commitlog.manager.offset_checkpoints import LogCheckpoints
from commitlog.manager.registry import LogRegistry
from tidemark.config import TopicConfig
from tidemark.errors import FatalError, StorageError
from tidemark.types import TopicPartition


@dataclass(slots=True, eq=False)
class NewLog:
    """A log that is to be made in `home`; then `made` is the log, or why there is none."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    config: TopicConfig
    home: LogDirectory
    made: Log | StorageError | None = None


class Moves(Protocol):
    """Moves of logs between directories."""

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drops the marks of an earlier log."""


class NewLogs:
    """New logs of one node, and which logs there are; `make` in any thread, the rest by the
    owner.
    """

    def __init__(
        self,
        registry: LogRegistry,
        checkpoints: LogCheckpoints,
        moves: Moves,
        now_ms: Callable[[], int],
        threads: int,
    ) -> None:
        """Makes logs of each directory in `threads` threads."""
        self._registry = registry
        self._checkpoints = checkpoints
        self._moves = moves
        self._now_ms = now_ms
        self._threads = threads
        self.producer_expiration_ms = 0
        self.homes = Homes()  # of planned logs
        self._changed = set(registry.directories)  # they got or lost logs, or may have

    def plan(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: TopicConfig,
        home: LogDirectory,
    ) -> NewLog:
        """Plans a log: it counts for its directory from now on."""
        self.homes[topic_partition] = home
        return NewLog(topic_partition, topic_id, config, home)

    def make(self, plans: Sequence[NewLog]) -> None:
        """Does the work of `making`."""
        self.making(plans)()

    def making(self, plans: Sequence[NewLog]) -> Callable[[], None]:
        """Returns work that makes planned logs durably, for any thread; it raises FatalError.

        An earlier log of one of their names has durably left its directory before. Else a crash
        could bring it back beside the new one.
        """
        return partial(self._make_all, plans, tuple(self._changed))

    def _make_all(self, plans: Sequence[NewLog], left: Iterable[LogDirectory]) -> None:
        _sync(left)
        of_home: dict[LogDirectory, list[NewLog]] = {}
        for plan in plans:
            of_home.setdefault(plan.home, []).append(plan)
        for home, its in of_home.items():
            names = [plan.topic_partition for plan in its]
            _settle(its, partial(self._checkpoints.forget, home, names))
        work_off(
            list(of_home.values()),
            lambda plan: _settle((plan,), partial(self._make, plan)),
            self._threads,
            "new-logs",
        )
        for home, its in of_home.items():
            _settle(its, home.fsync)

    def add(self, new: NewLog) -> Log:
        """Adds a log that was made. It takes no record before `save`. Raises the StorageError with
        which it was not made.
        """
        home = self.homes.pop(new.topic_partition)
        log = new.made
        if isinstance(log, Log) and not home.is_online:
            log.close(clean=False)
            log = home.state.offline()
        if not isinstance(log, Log):
            raise log or StorageError(f"{new.topic_partition} was planned, and not made")
        self._registry.add(log, home)
        self.existence_changed(home)
        self._moves.forget(new.topic_partition)
        return log

    def existence_changed(self, directory: LogDirectory) -> None:
        """Notes that a log was made, deleted or set aside."""
        self._changed.add(directory)

    def has_unsaved(self) -> bool:
        """Whether `unsaved` has work."""
        return bool(self._changed)

    def unsaved(self) -> Callable[[], None] | None:
        """Returns work that makes durable which logs were made, deleted or set aside since the
        last call, for any thread; None if there is none. New logs are used once it is done.
        """
        directories, self._changed = self._changed, set()
        return partial(self._save, directories) if directories else None

    def save(self) -> None:
        """Does the work of `unsaved`."""
        work = self.unsaved()
        if work is not None:
            work()

    def _save(self, directories: Iterable[LogDirectory]) -> None:
        _sync(directories)  # else a deleted log would come back under its name
        for name in (HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
            self._checkpoints.write(name, directories)
        self._registry.save()

    def _make(self, plan: NewLog) -> None:
        plan.made = open_log(
            plan.home.subdirectory(str(plan.topic_partition)),
            plan.topic_partition,
            plan.config,
            topic_id=plan.topic_id,
            now_ms=self._now_ms(),
            producer_expiration_ms=self.producer_expiration_ms,
            events=self._checkpoints,
        )


def _sync(directories: Iterable[LogDirectory]) -> None:
    for directory in directories:
        with suppress(LogDirectoryOfflineError):
            directory.fsync()


def _settle(plans: Iterable[NewLog], step: Callable[[], None]) -> None:
    """Takes one step of making these logs; none of them is made if it fails."""
    waiting = [plan for plan in plans if not isinstance(plan.made, StorageError)]
    if not waiting:
        return
    try:
        step()
    except FatalError:
        raise
    except (StorageError, OSError) as error:
        for plan in waiting:
            if isinstance(plan.made, Log):
                plan.made.close(clean=False)
            plan.made = (
                error
                if isinstance(error, StorageError)
                else storage_error("make", f"{plan.home.path}/{plan.topic_partition}", error)
            )
