"""Brings changed replicas to the state of the newest image, some of them in each turn of the loop.

A change is only noted here; what a replica has to become is read from the image when its turn
comes. So replicas that change faster than they are looked at cost one look. New logs are made in a
thread, many at a time, while their partitions have no role here: requests for them are retried.
Logs that were deleted meanwhile are synced with the same calls.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from itertools import islice

from commitlog.manager.new_logs import NewLog, NewLogs
from node.runtime.tasks import OnFatal, cancel_all, spawn
from tidemark.errors import FatalError, StorageError
from tidemark.types import OrderedSet, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

SLICE = 50
"""Replicas that one turn of the loop looks at."""

_MADE_AT_ONCE = 250
"""New logs of one call of the thread. The first of many partitions do not wait for the last."""


class Changed(enum.Flag):
    """Parts of a replica that may have changed."""

    STATE = enum.auto()
    FIRST = enum.auto()
    """It is in the first image of this start."""
    SETTINGS = enum.auto()
    PEERS = enum.auto()
    """Its leader may have another endpoint."""


class Reconciler:
    """Changed replicas and new logs of one broker; belongs to the event loop."""

    def __init__(
        self,
        logs: NewLogs,
        apply: Callable[[Mapping[TopicIdPartition, Changed]], None],
        at_rest: Callable[[], None],
        pool: Executor | None,
        on_fatal: OnFatal,
    ) -> None:
        """Calls `apply` with some changed replicas at a time, and `at_rest` when none is left.
        Without a `pool` all of it is done before `run` returns.
        """
        self._new = logs
        self._apply = apply
        self._at_rest = at_rest
        self._pool = pool
        self._on_fatal = on_fatal
        self._changed: dict[TopicIdPartition, Changed] = {}
        self._planned: list[NewLog] = []
        self._in_thread: tuple[asyncio.Future[None], list[NewLog]] | None = None
        self._waiting: dict[TopicPartition, OrderedSet[TopicIdPartition]] = {}
        self._failures: dict[TopicPartition, StorageError] = {}
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    def note(self, identity: TopicIdPartition, change: Changed) -> None:
        """Has the replica looked at again."""
        self._changed[identity] = self._changed.get(identity, Changed(0)) | change

    def is_opening(self, identity: TopicIdPartition) -> bool:
        """Whether a log of the partition's name is being made; it is looked at again then."""
        waiting = self._waiting.get(identity.topic_partition)
        if waiting is None:
            return False
        waiting.add(identity)
        return True

    def make(self, identity: TopicIdPartition, log: NewLog) -> None:
        """Has a planned log made; the replica is looked at again then."""
        self._waiting[log.topic_partition] = OrderedSet({identity: None})
        self._planned.append(log)

    def take_failure(self, topic_partition: TopicPartition) -> StorageError | None:
        """Returns why the planned log was not made, once."""
        return self._failures.pop(topic_partition, None)

    def run(self) -> None:
        """Looks at the first changed replicas now, and at the others in later turns."""
        self._look()
        if self._pool is None:
            while not self._is_done():
                self._take_turn_now()
        elif (self._task is None or self._task.done()) and not self._is_done():
            self._settled.clear()
            self._task = spawn("reconcile replicas", self._run(self._pool), self._on_fatal)

    async def settled(self) -> None:
        """Waits until no replica is left to be looked at."""
        await self._settled.wait()

    def _is_done(self) -> bool:
        if not self._is_waiting():
            self._at_rest()
        if self._is_waiting():
            return False
        self._settled.set()
        return True

    def _is_waiting(self) -> bool:
        return bool(self._changed or self._planned or self._new.has_unsaved())

    def _look(self) -> None:
        taken = {each: self._changed.pop(each) for each in list(islice(self._changed, SLICE))}
        if taken:
            self._apply(taken)

    def _take_turn_now(self) -> None:
        self._look()
        plans, self._planned = self._planned, []
        self._new.make(plans)
        self._add(plans)
        self._save(self._new.save)
        self._made(plans)

    async def _run(self, pool: Executor) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_done():
            while self._changed:
                await asyncio.sleep(0)
                self._look()
            plans = self._planned[:_MADE_AT_ONCE]
            del self._planned[:_MADE_AT_ONCE]
            if plans:
                self._in_thread = loop.run_in_executor(pool, self._new.making(plans)), plans
                await asyncio.shield(self._in_thread[0])
                self._in_thread = None
                self._add(plans)
            if (work := self._new.unsaved()) is not None:
                await loop.run_in_executor(pool, self._save, work)
            self._made(plans)

    def _add(self, plans: list[NewLog]) -> None:
        for plan in plans:
            try:
                self._new.add(plan)
            except StorageError as error:
                self._failures[plan.topic_partition] = error

    def _save(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FatalError:
            raise
        except (StorageError, OSError) as error:
            logger.error("new logs are in a checkpoint only with its next write: %s", error)

    def _made(self, plans: list[NewLog]) -> None:
        for plan in plans:
            for identity in self._waiting.pop(plan.topic_partition):
                self.note(identity, Changed.STATE)

    async def stop(self) -> None:
        """Leaves the other replicas as they are; waits for logs that are being made."""
        await cancel_all(self._task)
        if self._in_thread is not None:
            await asyncio.wait((self._in_thread[0],))
            self._add(self._in_thread[1])  # they are closed with the others
