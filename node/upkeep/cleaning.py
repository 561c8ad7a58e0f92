"""The cleaner threads of a broker: compaction (`commitlog.cleaner.manager`) in a bounded pool.

Each of log.cleaner.threads workers takes the dirtiest log and cleans it group by group in a thread.
The event loop, which owns the logs, puts every group in place. An idle worker looks again after
log.cleaner.backoff.ms. Nothing is loaded while no topic is compacted. All log.cleaner.* settings of
a broker apply while it runs (KIP-226): a surplus worker ends after its cleaning.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from commitlog.cleaner.manager import LogCleaner
from node.runtime.tasks import OnFatal, cancel_all, spawn
from tidemark.config import ServerConfig
from tidemark.errors import TidemarkError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_THREADS_MAX = 64
"""Upper limit of cleaners, whatever log.cleaner.threads is."""


class CleanerWorkers:
    """Started when the logs are open, stopped before they are closed."""

    def __init__(self, config: ServerConfig, cleaner: LogCleaner, on_fatal: OnFatal) -> None:
        self._config = config
        self._cleaner = cleaner
        self._on_fatal = on_fatal
        self._pool = ThreadPoolExecutor(
            _THREADS_MAX, "log-cleaner"
        )  # threads start when first needed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._started = False

    @property
    def running(self) -> int:
        """Number of workers that take logs."""
        return len(self._tasks)

    def start(self) -> None:
        self._cleaner.start()
        self._started = True
        self._hire()

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies altered log.cleaner.* settings. Called on the event loop."""
        self._config = config
        self._cleaner.reconfigure(config)
        if self._started:
            self._hire()

    def _hire(self) -> None:
        if self._config.log_cleaner_enable:
            for number in range(min(self._config.log_cleaner_threads, _THREADS_MAX)):
                if number not in self._tasks:
                    work = self._work(number)
                    self._tasks[number] = spawn(f"log cleaner {number}", work, self._on_fatal)

    async def stop(self) -> None:
        """Cancels cleanings; groups that are written but not in place are removed at the next
        start."""
        self._cleaner.stop()
        await cancel_all(*self._tasks.values())
        await self._in_pool(self._cleaner.save)
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    async def _work(self, number: int) -> None:
        while number < self._config.log_cleaner_threads:
            if not await self.clean_one():
                await asyncio.sleep(self._config.log_cleaner_backoff_ms / 1000)
        del self._tasks[number]

    async def clean_one(self) -> bool:
        """Cleans the dirtiest log; False if none qualifies or the cleaning failed."""
        cleaner = self._cleaner
        await self._in_pool(cleaner.save)
        if not cleaner.has_work:
            return False
        # Loads the kernels in a thread: the first time takes long.
        await self._in_pool(lambda: importlib.import_module("commitlog.cleaner.cleaning"))
        cleaning = cleaner.choose()
        if cleaning is None:
            return False
        error: BaseException | None = None
        try:
            await self._in_pool(lambda: cleaning.build_map(cleaner.new_map()))
            while (group := await self._in_pool(cleaning.next_group)) is not None:
                cleaner.swap(cleaning, group)
        except (TidemarkError, OSError, asyncio.CancelledError) as caught:
            error = caught
        cleaner.finish(cleaning, error)
        if isinstance(error, asyncio.CancelledError):
            raise error
        return error is None

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
