"""ListOffsets at the node: special values, and no offset above the end visible to the reader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.log.expiration import delete_expired
from node.partition.registry import PartitionRegistry
from node.serving.offsets import OffsetFinder
from tests.commitlog.builders import NOW, batch, config, open_log
from tidemark.errors import RequestTimedOutError
from tidemark.types import OffsetSpec


def finder(*, visible: int = 3, tiered: bool = False, remote: Any = None) -> OffsetFinder:
    """A finder over a log with records of NOW, NOW + 10, NOW + 5 and NOW + 99; `visible` are
    replicated."""
    log = open_log(settings=config(remote_storage_enable=tiered, retention_ms=-1))
    for late in (0, 10, 5, 99):
        log.append_as_leader(batch(1, timestamp=NOW + late), 1, NOW)
        log.roll(NOW)
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
        delete_expired(log, NOW + 1000)
    hosted = SimpleNamespace(log=log, core=core, config=log.config, topic_partition="t-0")
    registry = SimpleNamespace(get=lambda *_: hosted)
    return OffsetFinder(cast(PartitionRegistry, registry), remote, remote_timeout_ms=1)


def ask(offsets: OffsetFinder, timestamp: int, **options: Any) -> tuple[int | None, int | None]:
    found = asyncio.run(offsets.list_offset("t", 0, timestamp, **options))
    return found.offset, found.timestamp_ms


@pytest.mark.parametrize(
    ("timestamp", "consumer", "replica"),
    [
        (OffsetSpec.EARLIEST, (0, None), (0, None)),
        (OffsetSpec.EARLIEST_LOCAL, (0, None), (0, None)),
        (OffsetSpec.LATEST, (3, None), (4, None)),
        (OffsetSpec.LATEST_TIERED, (None, None), (None, None)),
        (OffsetSpec.EARLIEST_PENDING_UPLOAD, (None, None), (None, None)),
        (OffsetSpec.MAX_TIMESTAMP, (None, None), (3, NOW + 99)),
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


def test_read_committed_sees_no_further_than_the_first_open_transaction() -> None:
    offsets = finder(visible=4)
    log = offsets._partitions.get("t", 0).log
    options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    begun = batch(1, timestamp=NOW + 200, transactional=True, **options)
    log.append_as_leader(begun, 1, NOW, verified=True)
    log.append_as_leader(batch(1, timestamp=NOW + 300), 1, NOW)
    log.update_high_watermark(6)
    hosted: Any = offsets._partitions.get("t", 0)
    hosted.core.high_watermark = 6
    for asked, plain, committed in (
        (OffsetSpec.LATEST, 6, 4),
        (NOW + 99, 3, 3),
        (NOW + 200, 4, None),
        (NOW + 201, 5, None),
        (OffsetSpec.MAX_TIMESTAMP, 5, None),
    ):
        assert ask(offsets, asked)[0] == plain
        assert ask(offsets, asked, read_committed=True)[0] == committed


def test_a_tiered_log_begins_earlier_than_what_is_on_this_disk() -> None:
    offsets = finder(visible=4, tiered=True)
    asked = (
        OffsetSpec.EARLIEST,
        OffsetSpec.EARLIEST_LOCAL,
        OffsetSpec.LATEST_TIERED,
        OffsetSpec.MAX_TIMESTAMP,
        OffsetSpec.EARLIEST_PENDING_UPLOAD,
    )
    assert [ask(offsets, timestamp)[0] for timestamp in asked] == [0, 2, 1, 3, 2]


def test_a_tier_that_does_not_answer_is_waited_for_no_longer_than_the_setting_says() -> None:
    class Silent:
        async def offset_for_timestamp(self, *_: Any) -> None:
            await asyncio.Event().wait()

    offsets = finder(visible=4, tiered=True, remote=Silent())
    with pytest.raises(RequestTimedOutError, match=r"remote\.list\.offsets\.request\.timeout\.ms"):
        ask(offsets, NOW)
    assert ask(offsets, OffsetSpec.LATEST)[0] == 4
