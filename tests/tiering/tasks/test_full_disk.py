"""A disk that fills while the store is away: appends stop, nothing is lost, the lag tells why."""

from __future__ import annotations

import pytest

from commitlog.log.expiration import delete_expired
from tests.node.cluster import batch
from tests.tiering.scenarios.table import A, Row, Table, row, scenario
from tidemark.errors import ErrorCode
from tiering.errors import RetriableRemoteStorageError
from tiering.metrics import NO_LAG, CopyLag


class Store:
    """Makes the store of a table be away, and come back."""

    def __init__(self, table: Table) -> None:
        self._store = table.store
        self._copy = table.store.copy_log_segment_data

    def go_away(self) -> None:
        def away(*_: object) -> None:
            raise RetriableRemoteStorageError("the store is away")

        self._store.copy_log_segment_data = away  # type: ignore[method-assign]

    def come_back(self) -> None:
        self._store.copy_log_segment_data = self._copy  # type: ignore[method-assign]


async def read_all(table: Table) -> list[Row]:
    found: list[Row] = []
    while rows := await table.consume(A, len(found), found[-1][2] if found else -1):
        found += rows
    return found


def test_a_disk_that_fills_while_the_store_is_away_refuses_appends_and_loses_nothing() -> None:
    async def test(table: Table) -> None:
        table.begin(A, local_retention_bytes="1")
        table.lead(A)
        log, disk, store = table.log(A), table.disks[A], Store(table)
        tier = table.nodes[A].tier
        await table.append(A, 0)
        disk.set_capacity(disk.disk.used_bytes + 60_000)
        store.go_away()
        written, error = 1, 0
        while not error:
            data = batch(f"msg {written}", *["x" * 100] * 9)
            answer = await table.nodes[A].produce(raw=data, acks=1)
            error = answer.error_code
            written += 0 if error else 10
            if written % 100 == 1:
                table.roll(A)
                with pytest.raises(RetriableRemoteStorageError):
                    await table.copy(A)
                delete_expired(log, table.nodes[A].clock.wall_ms())
        assert ErrorCode(error) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "the disk is full; nothing of this write was kept" in answer.error_message
        assert log.local_log_start_offset == 0, "what is not copied stays on the disk"
        before = await read_all(table)
        assert before[0] == row(0, 1)
        assert len(before) == log.log_end_offset == written
        lag = tier.copy_lag(table.identity)
        rolled = log.segments[:-1]
        assert lag == CopyLag(sum(one.size_bytes for one in rolled), len(rolled))

        store.come_back()
        await table.copy(A)
        delete_expired(log, table.nodes[A].clock.wall_ms())
        assert log.local_log_start_offset == log.active_segment.base_offset
        assert tier.copy_lag(table.identity) == NO_LAG
        await table.append(A, written)
        assert (await read_all(table))[:-1] == before

    scenario(test)
