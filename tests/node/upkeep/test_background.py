"""The periodic passes of a broker follow its settings: flushes, cleaning, expiry, and their
times.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.open_files import OPEN_FILES
from commitlog.log.log import Log
from commitlog.manager import opening
from commitlog.manager.manager import LogManager
from node.partition.registry import PartitionRegistry
from node.replication.isr import IsrKeeper
from node.runtime.clock import Clock
from node.upkeep.background import BackgroundWork
from tests.commitlog.builders import NOW, TP, batch, config
from tidemark.config import ServerConfig, TopicConfig, parse_server_config
from tidemark.types import TopicPartition

SETTINGS = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "9@localhost:1",
    "log.cleaner.dedupe.buffer.size": "65536",
}


def settings(**more: str) -> ServerConfig:
    return parse_server_config(SETTINGS | {key.replace("_", "."): v for key, v in more.items()})


class Broker:
    """Logs and the work on them, with a clock of its own."""

    def __init__(self, config: ServerConfig, directory: MemoryDirectory | None = None) -> None:
        self.now = NOW
        self.logs = LogManager([directory or MemoryDirectory()], config, now_ms=lambda: self.now)
        self.logs.open()
        hosted = SimpleNamespace(offline=False, deleted=False)
        partitions = SimpleNamespace(find=lambda _: hosted)
        isr = SimpleNamespace(run=lambda: asyncio.Event().wait())
        self.work = BackgroundWork(
            config,
            self.logs,
            cast(PartitionRegistry, partitions),
            cast(IsrKeeper, isr),
            Clock(lambda: self.now, lambda: self.now),
            lambda error: pytest.fail(str(error)),
        )

    def filled(self, **topic: Any) -> Log:
        log = self.logs.get_or_create(TP, None, config(**topic))
        for number in range(30):
            log.append_as_leader(batch(3, timestamp=self.now + number), 1, self.now)
        log.update_high_watermark(log.log_end_offset)
        return log


def running_tasks(config: ServerConfig) -> set[str]:
    """Names of the tasks that a broker with these settings runs after its start."""

    async def scenario() -> set[str]:
        broker = Broker(config)
        broker.work.start()
        names = {task.get_name() for task in asyncio.all_tasks()}
        await broker.work.stop()
        broker.logs.close()
        return names

    return asyncio.run(scenario())


def test_flushes_have_a_pass_of_their_own_only_where_it_is_wished() -> None:
    assert "flush" not in running_tasks(settings())
    assert "flush" in running_tasks(settings(log_flush_scheduler_interval_ms="1000"))


def test_there_are_as_many_cleaners_as_the_settings_say() -> None:
    def cleaners(config: ServerConfig) -> int:
        return sum(name.startswith("log cleaner") for name in running_tasks(config))

    assert cleaners(settings()) == 1
    assert cleaners(settings(log_cleaner_threads="3")) == 3
    assert cleaners(settings(log_cleaner_enable="false", log_cleaner_threads="3")) == 0


def test_altered_settings_reach_the_cleaner_and_the_logs() -> None:
    broker = Broker(settings())
    log = broker.filled()
    assert broker.work.cleaner.new_map().entries_max > 500
    waits: list[float] = []
    broker.work.cleaner._throttle._sleep_s = waits.append
    broker.work.reconfigure(
        settings(
            log_cleaner_dedupe_buffer_size="4800",
            log_cleaner_io_buffer_load_factor="0.5",
            log_cleaner_io_max_bytes_per_second="1000",
            producer_id_expiration_ms="777",
        )
    )
    assert broker.work.cleaner.new_map().entries_max == 100
    broker.work.cleaner._throttle.spend(2_000)
    assert waits == [pytest.approx(2.0, rel=0.01)]
    assert log.producers.expiration_ms == 777
    other = broker.logs.get_or_create(TopicPartition("later", 0), None, TopicConfig())
    assert other.producers.expiration_ms == 777


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_retention_passes_over_a_log_while_it_is_cleaned() -> None:
    broker = Broker(settings())
    log = broker.filled(cleanup_policy=("compact", "delete"), retention_ms=1)
    segments = len(log.segments)
    broker.now += 1_000_000
    broker.work.cleaner.states.begin(TP)
    run(broker.work.retention)
    assert len(log.segments) == segments > 2
    broker.work.cleaner.states.finish(TP)
    run(broker.work.retention)
    assert len(log.segments) < segments, "it was not forgotten meanwhile"


def test_a_setting_that_is_altered_is_looked_at_although_nothing_was_written() -> None:
    broker = Broker(settings())
    log = broker.filled()
    run(broker.work.retention)
    run(broker.work.retention)
    assert log.log_start_offset == 0
    log.config = config(retention_bytes=1000)
    run(broker.work.retention)
    assert 0 < log.log_start_offset < log.log_end_offset


def test_recovery_takes_as_many_logs_at_once_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDirectory()
    before = LogManager([disk], settings(), now_ms=lambda: NOW)
    before.open()
    for number in range(3):
        log = before.get_or_create(TopicPartition("events", number), None, config())
        log.append_as_leader(batch(1), 1, NOW)
    before.close(clean=False)
    together = threading.Barrier(3, timeout=20)
    open_log = opening.open_log

    def meet(*arguments: Any, **options: Any) -> Log:
        together.wait()
        return open_log(*arguments, **options)

    monkeypatch.setattr(opening, "open_log", meet)
    after = LogManager([disk], settings(num_recovery_threads_per_data_dir="3"), now_ms=lambda: NOW)
    after.open()
    assert sorted(str(log.topic_partition) for log in after.logs()) == [
        f"events-{number}" for number in range(3)
    ]
    after.close()


def test_open_files_are_bounded_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPEN_FILES, "_limit", OPEN_FILES.limit)
    Broker(settings(log_max_open_files="321"))
    assert OPEN_FILES.limit == 321
