"""Aborted transactions below the local log: what the tier and the local log name together is what
the whole log named."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from commitlog.log.expiration import delete_expired
from commitlog.log.opening import open_log
from commitlog.segment import txn_recovery
from commitlog.types import AppendOrigin
from tests.tiering.builders import PARTITION
from tests.tiering.world import World
from tidemark.records import EndTransactionMarker, Record, encode_batch, encode_control_batch
from tiering.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from tiering.store.manager import IndexType

PRODUCERS = (5, 6, 7)


class Transactions:
    """Random transactions over several segments of a tiered log."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(path, local_retention_bytes=1)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.open: set[int] = set()

    def write(self, producer: int) -> None:
        log, now = self.world.log, self.world.now_ms
        data = encode_batch(
            [Record(0, now, b"k", b"v")],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=self.sequences[producer],
            transactional=True,
        )
        log.append_as_leader(data, 0, now, verified=True)
        self.sequences[producer] += 1
        self.open.add(producer)

    def end(self, producer: int) -> None:
        log, now = self.world.log, self.world.now_ms
        marker = encode_control_batch(
            [EndTransactionMarker(self.rng.random() < 0.3, 0)],
            base_offset=0,
            timestamp_ms=now,
            partition_leader_epoch=-1,
            producer_id=producer,
            producer_epoch=0,
        )
        log.append_as_leader(marker, 0, now, origin=AppendOrigin.COORDINATOR)
        self.open.discard(producer)

    def fill(self, steps: int) -> None:
        for _ in range(steps):
            producer = self.rng.choice(PRODUCERS)
            if producer in self.open and self.rng.random() < 0.4:
                self.end(producer)
            else:
                self.write(producer)
            if self.rng.random() < 0.15:
                self.world.log.roll(self.world.now_ms)
        for producer in list(self.open):
            self.end(producer)
        self.world.log.update_high_watermark(self.world.log.log_end_offset)


@pytest.mark.parametrize("seed", range(8))
def test_tier_and_local_log_name_the_aborted_transactions_that_the_whole_log_named(
    tmp_path: Path, seed: int
) -> None:
    async def main() -> None:
        history = Transactions(tmp_path, seed)
        world, log = history.world, history.world.log
        world.lead()
        await world.manager.start()
        history.fill(60)
        middle = log.log_end_offset
        log.roll(world.now_ms)
        history.write(5)  # its marker stays in the local log
        log.roll(world.now_ms)
        history.end(5)
        log.update_high_watermark(log.log_end_offset)
        end = log.log_end_offset
        wanted = {
            (start, stop): log.aborted_transactions(start, stop)
            for start in range(middle + 1)
            for stop in range(start + 1, end + 1, 3)
        }
        await world.once()
        delete_expired(log, world.now_ms)
        assert log.local_log_start_offset > middle
        for (start, stop), aborted in wanted.items():
            found = await world.manager.aborted_transactions(PARTITION, log, start, stop)
            assert found == aborted, (start, stop)
        await world.manager.stop()

    asyncio.run(main())


def test_an_index_that_is_gone_is_an_error_and_not_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        history = Transactions(tmp_path, 1)
        world, log = history.world, history.world.log
        world.lead()
        await world.manager.start()
        history.fill(40)
        log.roll(world.now_ms)
        world.produce()
        await world.once()
        delete_expired(log, world.now_ms)
        fetch_index = world.storage.fetch_index

        def without(segment: object, kind: IndexType) -> bytes:
            if kind is IndexType.TRANSACTION:
                raise RemoteResourceNotFoundError("gone")
            return fetch_index(segment, kind)  # type: ignore[arg-type]

        world.storage.fetch_index = without  # type: ignore[method-assign]
        with pytest.raises(RetriableRemoteStorageError):
            await world.manager.aborted_transactions(PARTITION, log, 0, 30)
        await world.manager.stop()

    asyncio.run(main())


def test_an_index_of_before_the_restart_is_checked_before_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_recovery, "_CHUNK_BYTES", 200)

    async def main() -> None:
        history = Transactions(tmp_path, 1)
        world, log = history.world, history.world.log
        history.fill(40)
        log.roll(world.now_ms)
        world.produce()
        end = log.active_segment.base_offset
        wanted = log.aborted_transactions(0, end)
        names = [each.txn_index.name for each in log.segments if each.txn_index.has_entries]
        assert names
        log.close()
        for name in names:
            data = bytearray(world.directory.read(name))
            data[9] ^= 1  # of a producer id, which no CRC covers
            world.directory.write_atomic(name, bytes(data))
        log = world.log = open_log(
            world.directory,
            PARTITION.topic_partition,
            world.topic_config,
            topic_id=PARTITION.topic_id,
            now_ms=world.now_ms,
            clean=True,
        )
        log.update_high_watermark(log.log_end_offset)
        world.lead()
        await world.manager.start()
        await world.once()
        delete_expired(log, world.now_ms)
        assert log.local_log_start_offset == end
        assert await world.manager.aborted_transactions(PARTITION, log, 0, end) == wanted
        await world.manager.stop()

    asyncio.run(main())
