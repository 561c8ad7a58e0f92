"""The decisions of retention, over plain values: no log, no disk, no clock."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from commitlog.log.retention import Expired, Reason, expired, next_due_ms, reasons
from tests.commitlog.builders import config
from tidemark.config import TopicConfig

NOW = 10_000


@dataclass
class SegmentFacts:
    """A segment of 100 bytes by default."""

    next_offset: int
    retention_timestamp_ms: int = NOW
    size_bytes: int = 100


@dataclass
class LogFacts:
    """A log whose segments are all replicated by default."""

    segments: list[SegmentFacts]
    config: TopicConfig
    log_start_offset: int = 0
    high_watermark: int = 1000
    highest_remote_offset: int = -1


def log_of(*timestamps_ms: int, **settings: object) -> LogFacts:
    segments = [SegmentFacts(10 * (n + 1), ms) for n, ms in enumerate(timestamps_ms)]
    return LogFacts(segments, config(**settings))


OLD, YOUNG = NOW - 2000, NOW - 10


@pytest.mark.parametrize(
    ("timestamps_ms", "wanted"),
    [
        ((OLD, OLD, YOUNG), Expired(2, rolls=False)),
        ((OLD, YOUNG, OLD), Expired(1, rolls=False)),
        ((YOUNG, OLD, OLD), Expired(0, rolls=False)),
        ((OLD, OLD), Expired(1, rolls=True)),
        ((NOW - 1000, YOUNG), Expired(0, rolls=False)),
        ((NOW - 1001, YOUNG), Expired(1, rolls=False)),
    ],
)
def test_by_time_the_oldest_go_up_to_the_first_that_stays(
    timestamps_ms: tuple[int, ...], wanted: Expired
) -> None:
    assert expired(log_of(*timestamps_ms, retention_ms=1000), Reason.TIME, NOW) == wanted


@pytest.mark.parametrize(("limit", "count"), [(-1, 0), (400, 0), (301, 0), (300, 1), (100, 3)])
def test_by_size_whole_segments_go_while_the_rest_is_at_least_the_limit(
    limit: int, count: int
) -> None:
    log = log_of(NOW, NOW, NOW, NOW, retention_bytes=limit)
    assert expired(log, Reason.SIZE, NOW) == Expired(count, rolls=False)


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    log = log_of(OLD, OLD, OLD, retention_ms=1000)
    log.high_watermark = 19
    assert expired(log, Reason.TIME, NOW) == Expired(1, rolls=False)


def test_an_empty_active_segment_is_not_rolled() -> None:
    log = log_of(OLD, retention_ms=1000)
    assert expired(log, Reason.TIME, NOW).rolls
    log.segments[-1].size_bytes = 0
    assert not expired(log, Reason.TIME, NOW).rolls


def test_segments_below_the_log_start_go_and_the_active_one_stays_unrolled() -> None:
    log = log_of(NOW, NOW, NOW)
    for start, count in ((9, 0), (10, 1), (29, 2), (30, 2)):
        log.log_start_offset = start
        assert expired(log, Reason.LOG_START, NOW) == Expired(count, rolls=False)


def test_with_remote_storage_only_what_the_tier_has_goes() -> None:
    log = log_of(OLD, OLD, NOW, remote_storage_enable=True, local_retention_ms=1000)
    for highest, start, count in ((8, 0, 0), (9, 0, 1), (19, 0, 2), (-1, 20, 2)):
        log.highest_remote_offset, log.log_start_offset = highest, start
        assert expired(log, Reason.TIME, NOW) == Expired(count, rolls=False)


def test_only_logs_with_deletion_expire_by_size_and_time() -> None:
    assert reasons(config()) == (Reason.LOG_START, Reason.SIZE, Reason.TIME)
    assert reasons(config(cleanup_policy=("compact",))) == (Reason.LOG_START,)


@pytest.mark.parametrize("policy", [(), ("compact",)])  # compact: a changed default of the brokers
def test_without_deletion_only_segments_that_the_tier_has_leave_the_disk(
    policy: tuple[str, ...],
) -> None:
    tiered = {"cleanup_policy": policy, "remote_storage_enable": True, "local_retention_ms": 1000}
    log = log_of(OLD, OLD, NOW, **tiered)
    assert reasons(log.config) == reasons(config())
    for highest, count in ((-1, 0), (9, 1), (19, 2)):
        log.highest_remote_offset = highest
        assert expired(log, Reason.TIME, NOW) == Expired(count, rolls=False)
    assert next_due_ms(log_of(YOUNG, NOW, **tiered), NOW) == YOUNG + 1001

    stopped = log_of(OLD, NOW, **tiered, remote_log_copy_disable=True, retention_ms=1000)
    assert reasons(stopped.config) == (Reason.LOG_START,)
    assert next_due_ms(stopped, NOW) is None


def test_a_log_is_due_when_its_oldest_segment_expires() -> None:
    log = log_of(NOW - 400, NOW, retention_ms=1000)
    assert next_due_ms(log, NOW) == NOW + 601
    assert expired(log, Reason.TIME, NOW + 600).count == 0
    assert expired(log, Reason.TIME, NOW + 601).count == 1
    assert next_due_ms(log_of(NOW, retention_ms=-1), NOW) is None
    assert next_due_ms(log_of(OLD, NOW, retention_ms=1000), NOW) == NOW, "and something holds it"
