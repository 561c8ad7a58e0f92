"""A leader whose log is empty after an unclean election is restored from the tier (KIP-405).

All replicas lost their disks, and the tier has what was copied before. The leader begins where the
tier ends, with its log start, leader epochs and producers. Until then it answers no client and
stays RECOVERING (KIP-704), so no replica joins it. A log that is empty after a clean election is
not asked about: a replica in sync has everything that was committed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from commitlog.log.from_tier import rebuild_from_remote
from node.partition.hosted import HostedPartition
from node.runtime.clock import Clock
from node.runtime.tasks import cancel_all, spawn
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, TidemarkError
from tidemark.surroundings import surroundings
from tidemark.types import TopicIdPartition
from tiering.manager import RemoteHistory

logger = logging.getLogger(__name__)


class Histories(Protocol):
    """The call of the remote log manager that is used here."""

    async def latest_history(self, partition: TopicIdPartition) -> RemoteHistory | None: ...


class TierRestore:
    """Restores the leaders of a node."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        on_fatal: Callable[[FatalError], None],
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_fatal = on_fatal
        self._random = rng or surroundings().make_rng()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, tier: Histories, hosted: HostedPartition, restored: Callable[[], None]) -> bool:
        """Begins to restore a new leader, and calls `restored` at the end; false if it needs
        nothing of the tier."""
        log, core = hosted.log, hosted.core
        if not (core.recovering and hosted.config.remote_storage_enable and not log.log_end_offset):
            return False
        core.restoring = "nothing of it is read yet"
        task = spawn(
            f"restore {hosted.topic_partition}", self._run(tier, hosted, restored), self._on_fatal
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def stop(self) -> None:
        await cancel_all(*self._tasks)

    async def _run(
        self, tier: Histories, hosted: HostedPartition, restored: Callable[[], None]
    ) -> None:
        epoch, config = hosted.core.leader_epoch, self._config
        backoff_ms = config.remote_log_manager_task_retry_backoff_ms
        while True:
            try:
                history = await tier.latest_history(hosted.core.identity)
                if self._is_current(hosted, epoch):
                    self._apply(hosted, history)
                    restored()
                return
            except FatalError:
                raise
            except (TidemarkError, OSError) as error:
                logger.warning("%s: not restored yet: %s", hosted.topic_partition, error)
                if self._is_current(hosted, epoch):
                    hosted.core.restoring = str(error) or type(error).__name__
            jitter = config.remote_log_manager_task_retry_jitter
            await asyncio.sleep(backoff_ms / 1000 * self._random.uniform(1 - jitter, 1 + jitter))
            if not self._is_current(hosted, epoch):
                return
            backoff_ms = min(2 * backoff_ms, config.remote_log_manager_task_retry_backoff_max_ms)

    def _is_current(self, hosted: HostedPartition, epoch: int) -> bool:
        core = hosted.core
        still = hosted.is_leader and core.leader_epoch == epoch and bool(core.restoring)
        return still and not hosted.offline and not hosted.deleted

    def _apply(self, hosted: HostedPartition, history: RemoteHistory | None) -> None:
        if history is not None:
            rebuild_from_remote(
                hosted.log,
                history.epochs,
                history.producer_snapshot,
                history.next_offset,
                self._clock.wall_ms(),
                log_start_offset=history.log_start_offset,
            )
            logger.error(
                "%s: no replica had records; restored from the tier, offsets %d to %d. Records"
                " acknowledged above that are lost with their disks, and their offsets are used"
                " again in leader epoch %d",
                hosted.topic_partition,
                history.log_start_offset,
                history.next_offset - 1,
                hosted.core.leader_epoch,
            )
        hosted.core.on_restored(hosted.log.log_end_offset)
        hosted.log.update_high_watermark(hosted.core.high_watermark)
