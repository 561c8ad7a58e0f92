"""ListOffsets at the node: special values, and that nothing above what a reader may see is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    OffsetFinder,
)
from node.registry import PartitionRegistry
from tests.commitlog.builders import NOW, batch, config, open_log


def finder(*, visible: int = 3, tiered: bool = False) -> OffsetFinder:
    """Of a log with records of NOW, NOW + 10, NOW + 5 and NOW + 99; `visible` are replicated."""
    log = open_log(settings=config(remote_storage_enable=tiered, retention_ms=-1))
    for late in (0, 10, 5, 99):
        log.append_as_leader(batch(1, timestamp=NOW + late), 1, NOW)
        log.roll()
    log.update_high_watermark(visible)
    core = SimpleNamespace(
        check_leader_epoch=lambda _: None,
        check_leader=lambda: None,
        high_watermark=visible,
        leader_epoch=1,
        leader_epoch_start_offset=0,
        identity=None,
    )
    if tiered:
        log.highest_remote_offset = 1
        log.config = config(remote_storage_enable=True, local_retention_ms=1, retention_ms=-1)
        log.delete_expired(NOW + 1000)
    hosted = SimpleNamespace(log=log, core=core, config=log.config, topic_partition="t-0")
    return OffsetFinder(cast(PartitionRegistry, SimpleNamespace(get=lambda *_: hosted)), None)


def ask(offsets: OffsetFinder, timestamp: int, **options: Any) -> tuple[int | None, int | None]:
    found = asyncio.run(offsets.list_offset("t", 0, timestamp, **options))
    return found.offset, found.timestamp_ms


@pytest.mark.parametrize(
    ("timestamp", "consumer", "replica"),
    [
        (EARLIEST, (0, None), (0, None)),
        (EARLIEST_LOCAL, (0, None), (0, None)),
        (LATEST, (3, None), (4, None)),
        (LATEST_TIERED, (None, None), (None, None)),
        (EARLIEST_PENDING_UPLOAD, (None, None), (None, None)),
        (MAX_TIMESTAMP, (None, None), (3, NOW + 99)),
        (0, (0, NOW), (0, NOW)),
        (NOW + 1, (1, NOW + 10), (1, NOW + 10)),
        (NOW + 10, (1, NOW + 10), (1, NOW + 10)),
        (NOW + 11, (None, None), (3, NOW + 99)),
        (NOW + 100, (None, None), (None, None)),
    ],
)
def test_a_consumer_is_told_nothing_above_the_high_watermark(
    timestamp: int, consumer: tuple[int | None, int | None], replica: tuple[int | None, int | None]
) -> None:
    assert ask(finder(), timestamp) == consumer
    assert ask(finder(), timestamp, from_replica=True) == replica


def test_a_tiered_log_begins_earlier_than_what_is_on_this_disk() -> None:
    offsets = finder(visible=4, tiered=True)
    asked = (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, MAX_TIMESTAMP, EARLIEST_PENDING_UPLOAD)
    assert [ask(offsets, timestamp)[0] for timestamp in asked] == [0, 2, 1, 3, 2]
