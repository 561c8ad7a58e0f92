"""Passes over changed logs do what passes over all logs would, whatever happens to the logs in
whatever order. They do nothing while nothing happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from commitlog.cleaner.choice import Cleanable, cleanable
from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.checkpoints import OffsetCheckpoint
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.manager.changes import Changes
from commitlog.manager.manager import LogManager
from commitlog.manager.retention_schedule import RetentionSchedule
from tests.commitlog.builders import NOW, batch, config
from tests.commitlog.manager.test_manager import manager as manager_of
from tidemark.config import TopicConfig
from tidemark.types import TopicPartition

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
PASS_MS = 5 * MINUTE_MS


@dataclass
class World:
    """A manager whose passes use changes (`lazy`), beside one whose passes use all logs."""

    settings: TopicConfig
    count: int = 6
    now_ms: int = NOW
    lazy: LogManager = field(init=False)
    thorough: LogManager = field(init=False)
    schedule: RetentionSchedule = field(init=False)

    def __post_init__(self) -> None:
        self.disk = MemoryDirectory()
        self.lazy, self.thorough = manager_of(self.disk), manager_of(MemoryDirectory())
        self.schedule = RetentionSchedule(self.lazy.changes.reader())
        for logs in (self.lazy, self.thorough):
            logs.open()
            for number in range(self.count):
                logs.get_or_create(self.name(number), None, self.settings)

    @staticmethod
    def name(number: int) -> TopicPartition:
        return TopicPartition("idle", number)

    def both(self, number: int, act: Callable[[Log], object]) -> None:
        for logs in (self.lazy, self.thorough):
            log = logs.get(self.name(number))
            assert log is not None
            act(log)

    def append(self, number: int, age_ms: int = 0, *, commit: bool = True) -> None:
        def act(log: Log) -> None:
            log.append_as_leader(batch(3, timestamp=self.now_ms - age_ms), 1, self.now_ms)
            if commit:
                log.update_high_watermark(log.log_end_offset)

        self.both(number, act)

    def retention(self) -> int:
        """Runs one pass of each; returns how many logs the lazy one processed."""
        due = self.schedule.take(self.now_ms, self.lazy.by_partition)
        for log in due:
            delete_expired(log, self.now_ms)
            self.schedule.looked_at(log, self.now_ms)
        for log in self.thorough.logs():
            delete_expired(log, self.now_ms)
        return len(due)

    def segments(self, logs: LogManager) -> list[tuple[int, list[int]]]:
        return [
            (log.log_start_offset, [segment.base_offset for segment in log.segments])
            for log in logs.logs()
        ]

    def check_retention(self) -> None:
        assert self.segments(self.lazy) == self.segments(self.thorough)

    def checkpoints(self) -> None:
        """Writes all three checkpoints and compares the files with the logs, entry by entry."""
        self.lazy.checkpoint_recovery_points()
        self.lazy.checkpoint_log_start_offsets()
        self.lazy.checkpoint_high_watermarks()
        logs = self.lazy.logs()
        for name, wanted in (
            ("recovery-point-offset", {log: log.recovery_point for log in logs}),
            ("replication-offset", {log: log.high_watermark for log in logs}),
            (
                "log-start-offset",
                {
                    log: log.log_start_offset
                    for log in logs
                    if log.log_start_offset != log.segments[0].base_offset
                },
            ),
        ):
            found = OffsetCheckpoint(self.disk, f"{name}-checkpoint").read()
            known = {log.topic_partition: offset for log, offset in wanted.items()}
            if name == "log-start-offset":  # more entries are harmless while names are not durable
                found = {tp: offset for tp, offset in found.items() if tp in known}
            assert found == known, name


def copied(log: Log) -> int:
    return min(log.active_segment.base_offset, log.high_watermark) - 1


@pytest.mark.parametrize("seed", range(30))
def test_passes_over_changes_do_what_passes_over_everything_do(seed: int) -> None:
    rng = random.Random(seed)
    settings = config(
        retention_ms=rng.choice([-1, DAY_MS, 3 * DAY_MS]),
        retention_bytes=rng.choice([-1, 2_000]),
        flush_ms=rng.choice([2**63 - 1, 10 * MINUTE_MS]),
        remote_storage_enable=seed % 3 == 0,
    )
    world = World(settings)
    for _ in range(80):
        number = rng.randrange(world.count)
        act = rng.choice(
            ["append", "append", "uncommitted", "old", "roll", "commit", "start", "tier"]
        )
        if act == "append":
            world.append(number)
        elif act == "uncommitted":
            world.append(number, commit=False)
        elif act == "old":
            world.append(number, rng.choice([DAY_MS, 5 * DAY_MS]))
        elif act == "roll":
            world.both(number, lambda log: log.roll(world.now_ms))
        elif act == "tier":  # the schedule notices it with the next pass only
            world.both(number, lambda log: setattr(log, "highest_remote_offset", copied(log)))
        elif act == "commit":
            world.both(number, lambda log: log.update_high_watermark(log.log_end_offset))
        else:
            world.both(number, lambda log: log.increment_log_start_offset(log.high_watermark))
        if rng.random() < 0.1:
            lowered = replace(settings, retention_ms=rng.choice([-1, MINUTE_MS, DAY_MS]))
            world.both(number, lambda log, new=lowered: setattr(log, "config", new))
        if rng.random() < 0.1:
            world.both(number, lambda log: log.truncate_to(log.high_watermark, world.now_ms))
        if rng.random() < 0.5:
            world.now_ms += rng.choice([PASS_MS, 8 * 60 * MINUTE_MS])
            world.retention()
            world.check_retention()
        if rng.random() < 0.3:
            world.checkpoints()


def test_an_idle_hour_looks_at_no_log_and_writes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(config(retention_ms=7 * DAY_MS))
    for number in range(0, world.count, 2):
        world.append(number)
    for _ in range(3):
        world.retention()
        world.checkpoints()
        world.lazy.purge_deleted(world.now_ms)
    written: list[str] = []
    monkeypatch.setattr(OffsetCheckpoint, "write", lambda self, _: written.append(self._name))
    looked_at = 0
    for _ in range(12):
        world.now_ms += PASS_MS
        looked_at += world.retention()
        world.lazy.checkpoint_recovery_points()
        world.lazy.checkpoint_log_start_offsets()
        world.lazy.checkpoint_high_watermarks()
        world.lazy.purge_deleted(world.now_ms)
    assert (looked_at, written) == (0, [])
    world.append(1)
    assert world.retention() == 1
    world.lazy.checkpoint_high_watermarks()
    assert written == ["replication-offset-checkpoint"]


def test_a_log_that_nobody_touched_for_a_week_expires_with_the_pass_that_is_due() -> None:
    world = World(config(retention_ms=7 * DAY_MS))
    world.append(2)
    world.append(4, DAY_MS)
    world.retention()
    expired, looked_at = [], 0
    for _ in range(8 * DAY_MS // PASS_MS):
        world.now_ms += PASS_MS
        before = world.segments(world.lazy)
        looked_at += world.retention()
        world.check_retention()
        if world.segments(world.lazy) != before:
            expired.append((world.now_ms - NOW) // PASS_MS)
    day = DAY_MS // PASS_MS
    assert expired == [6 * day + 1, 6 * day + 2, 7 * day + 1, 7 * day + 2]  # rolled, then deleted
    assert looked_at == 6, "once when it is due, and after each change that retention itself made"


def test_a_lowered_retention_is_seen_with_the_next_pass() -> None:
    world = World(config(retention_ms=7 * DAY_MS))
    world.append(3)
    world.both(3, lambda log: log.roll(world.now_ms))
    world.retention()
    world.now_ms += 2 * PASS_MS
    assert world.retention() == 0
    world.both(3, lambda log: setattr(log, "config", replace(log.config, retention_ms=PASS_MS)))
    assert world.retention() == 1
    world.check_retention()
    assert world.lazy.logs()[3].log_start_offset == 3


def test_a_busy_log_has_one_entry_in_the_schedule_and_a_deleted_one_none() -> None:
    world = World(config(retention_ms=7 * DAY_MS))
    for _ in range(200):
        world.now_ms += PASS_MS
        world.append(0)
        world.retention()
    assert len(world.schedule) == 1
    assert len(world.schedule._heap) <= 2
    world.lazy.delete(world.name(0))
    world.thorough.delete(world.name(0))
    world.retention()
    assert len(world.schedule) == 0
    world.checkpoints()


def test_a_flush_that_is_not_due_yet_waits_for_flush_ms_and_not_for_another_record() -> None:
    now = [NOW]
    logs = manager_of(MemoryDirectory())
    logs._now_ms = lambda: now[0]
    logs.open()
    log = logs.get_or_create(TopicPartition("t", 0), None, config(flush_ms=10 * MINUTE_MS))
    log.durability.last_flush_ms = NOW
    log.append_as_leader(batch(3), 1, NOW)
    for minutes, durable in ((1, 0), (9, 0), (10, 3), (30, 3)):
        now[0] = NOW + minutes * MINUTE_MS
        logs.checkpoint_recovery_points()
        assert log.recovery_point == durable, minutes


def test_each_reader_hears_of_each_change_until_it_is_settled() -> None:
    world = World(config(), count=2)
    changes = Changes()
    one, other = changes.reader(), changes.reader()
    first, second = world.lazy.logs()
    changes.note((first, second))
    assert list(one.take()) == [first, second]  # the same order in every run
    one.put_back((second,))
    assert list(one.take()) == [second]
    assert list(one.take()) == []
    assert list(other.take()) == [first, second]
    changes.unread.add(first)
    assert (list(one.take()), list(other.take())) == ([first], [first])


def test_what_the_tier_holds_up_goes_with_the_pass_after_it_was_copied() -> None:
    for limit in ({"local_retention_bytes": 0}, {"local_retention_ms": MINUTE_MS}):
        world = World(config(remote_storage_enable=True, **limit))
        world.append(1, DAY_MS)
        world.both(1, lambda log: log.roll(NOW))
        for copied_to, left in ((-1, [0, 3]), (-1, [0, 3]), (2, [3])):
            world.both(1, lambda log, end=copied_to: setattr(log, "highest_remote_offset", end))
            assert world.retention() >= 1
            world.check_retention()
            assert world.segments(world.lazy)[1] == (0, left), limit
            world.now_ms += PASS_MS


def test_clean_logs_are_chosen_among_only_when_they_change_or_their_time_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, looked_at = [NOW], []
    logs = manager_of(MemoryDirectory())
    cleaner = LogCleaner(logs, logs._config, now_ms=lambda: now[0])
    logs.open()
    lags: tuple[dict[str, int], ...] = (
        {},
        {},
        {"min_compaction_lag_ms": DAY_MS},
        {"max_compaction_lag_ms": DAY_MS},
    )
    for number, lag in enumerate(lags):
        settings = config(cleanup_policy=("compact",), **lag)
        logs.get_or_create(TopicPartition("compacted", number), None, settings)

    def fill(number: int) -> None:
        log = logs.get(TopicPartition("compacted", number))
        assert log is not None
        for _ in range(4):
            log.append_as_leader(batch(8, timestamp=now[0]), 1, now[0])
            log.roll(now[0])
        log.update_high_watermark(log.log_end_offset)

    def cleaned() -> list[int]:
        found = []
        while (cleaning := cleaner.clean_once()) is not None:
            found.append(cleaning.log.topic_partition.partition)
        return found

    def counting(log: Log, *rest: int | None) -> Cleanable:
        looked_at.append(log.topic_partition.partition)
        return cleanable(log, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("commitlog.cleaner.manager.cleanable", counting)
    for number in range(1, 4):
        fill(number)
    assert cleaned() == [1, 3]
    assert cleaned() == []
    looked_at.clear()
    assert cleaned() == []
    assert looked_at == [2], "its records wait for min.compaction.lag.ms"
    now[0] += DAY_MS + 1_000
    assert cleaned() == [2]
    assert cleaned() == []
    looked_at.clear()
    for _ in range(240):
        now[0] += 15_000
        assert not cleaner.has_work
        assert cleaned() == []
    assert looked_at == []
    fill(0)
    assert cleaned() == [0]
