"""Look-ups by time while the store of one partition hangs: others, and reads, have their places."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.log.expiration import delete_expired
from tests.tiering.builders import PARTITION
from tests.tiering.reading.test_many_readers import Cold
from tests.tiering.world import NOW_MS
from tiering.errors import RemoteReadBusyError
from tiering.reading.places import FairPlaces

OTHER = PARTITION._replace(partition=7)


class HangingStorage:
    """A storage whose calls for one partition wait for a gate."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.gate = threading.Event()

    def fetch_sidecar(self, metadata: Any, start: int, end: int | None = None) -> bytes:
        if metadata.topic_id_partition.partition == 0:
            self.gate.wait(60)
        content: bytes = self.inner.fetch_sidecar(metadata, start, end)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("flood", [4, 40])
def test_look_ups_of_a_partition_that_hangs_leave_places_to_others_and_to_reads(
    tmp_path: Path, flood: int
) -> None:
    cold = Cold(tmp_path, 2, 3)
    config = replace(cold.world.config, remote_log_reader_max_pending_tasks=4)
    cold.world.config = config
    storage = cold.world.storage = HangingStorage(cold.storage)
    manager = cold.world.new_manager()
    (hanging, one), (partition, log) = cold.logs.items()
    for each in (one, log):
        each.config = replace(each.config, local_retention_bytes=1)
        assert delete_expired(each, NOW_MS)

    async def scenario() -> None:
        stuck = [
            asyncio.ensure_future(manager.offset_for_timestamp(hanging, one, NOW_MS))
            for _ in range(flood)
        ]
        await asyncio.sleep(0)
        for _ in range(3):
            found = await manager.offset_for_timestamp(partition, log, NOW_MS)
            assert found is not None and found.offset == 0
            assert await manager.read(partition, log, 0, 1)
        storage.gate.set()
        outcomes = await asyncio.gather(*stuck, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, RemoteReadBusyError)]
        assert len(outcomes) - len(refused) == min(flood, 5)  # one under way, and four wait
        assert manager.metrics.remote_fetch_busy == len(refused)
        assert manager.metrics.reader_pending_tasks == 0
        await manager.stop()

    try:
        asyncio.run(scenario())
    finally:
        storage.gate.set()


def test_where_too_many_wait_the_newest_of_the_partition_with_most_is_refused() -> None:
    async def scenario() -> None:
        places = FairPlaces(2, waiting_max=3)
        await places.take(PARTITION)
        waiting = [asyncio.ensure_future(places.take(PARTITION)) for _ in range(4)]
        await asyncio.sleep(0)
        assert [one.done() for one in waiting] == [False, False, False, True]
        await places.take(OTHER)
        other = asyncio.ensure_future(places.take(OTHER))
        await asyncio.sleep(0)
        for refused in (waiting[3], waiting[2]):
            with pytest.raises(RemoteReadBusyError):
                await refused
        waiting[0].cancel()
        await asyncio.sleep(0)
        places.free(OTHER)
        await other
        places.free(PARTITION)
        places.free(OTHER)
        await waiting[1]  # the one that left before holds no place
        places.close()

    asyncio.run(scenario())
