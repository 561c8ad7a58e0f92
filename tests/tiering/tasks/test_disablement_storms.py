"""Tiering is switched off and on at any call of the store (KIP-950).

Meanwhile leaders change, brokers restart, the store fails and records are deleted. No other record
of the leader's log is lost. Once tiering stays off, nothing stays in the tier.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiering.builders import FINISHED, PARTITION
from tests.tiering.tasks.test_remover import Inline
from tests.tiering.world import World
from tidemark.errors import ApiError
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.metadata.memory import MemoryHistory
from tiering.tasks.expirer import DANGLING_GRACE_MS

STEPS = 10


class Storm:
    """Two replicas of one log over one tier, with events at each call of its store."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        history = MemoryHistory()
        self.brokers = {
            number: World(path, broker_id=number, history=history, local_retention_bytes=2_000)
            for number in (1, 2)
        }
        self.is_on, self.leads, self.epoch, self.failing = True, 1, 0, 0.0
        self.calm = False
        self.given_up = 0
        """Offset below which records were deleted on purpose, in any replica."""
        for world in self.brokers.values():
            store: Any = world.storage
            store.delete_log_segment_data = self._stormy(store.delete_log_segment_data)
            store.copy_log_segment_data = self._stormy(store.copy_log_segment_data)
            self._inline(world)
        self.lead(1)

    @property
    def leader(self) -> World:
        return self.brokers[self.leads]

    def _inline(self, world: World) -> None:
        manager: Any = world.manager
        manager._deleter._pool = manager._uploads._pool = Inline()
        manager._reader.segments._calls._pool = Inline()

    def _stormy(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stormy(*arguments: Any) -> Any:
            self.maybe()
            if self.rng.random() < self.failing:
                raise self.rng.choice((RemoteStorageError, RetriableRemoteStorageError))("away")
            result = call(*arguments)
            self.maybe()
            return result

        return stormy

    def maybe(self) -> None:
        if not self.calm and self.rng.random() < 0.2:
            self.event()

    def event(self) -> None:
        chance = self.rng.random()
        if chance < 0.2:
            self.switch(not self.is_on)
        elif chance < 0.55:
            self.lead(self.rng.choice((1, 2)))
        elif chance < 0.65:
            log = self.leader.log
            log.increment_log_start_offset(
                self.rng.randint(log.log_start_offset, log.high_watermark)
            )
            self.given_up = max(self.given_up, log.log_start_offset)
        elif chance < 0.8:
            self.failing = self.rng.choice((0, 0, 0.3, 1.0))
        else:
            self.restart(self.rng.choice((1, 2)))

    def switch(self, on: bool) -> None:
        """Applies the setting to each replica as the node does."""
        self.is_on = on
        for world in self.brokers.values():
            log = world.log
            log.config = replace(
                log.config,
                remote_storage_enable=on,
                remote_log_delete_on_disable=True,
                local_retention_bytes=1 if self.calm else 2_000,
            )
            log.highest_remote_offset = -1
            if not on:
                log.increment_log_start_offset(min(log.local_log_start_offset, log.high_watermark))
            self.given_up = max(self.given_up, log.log_start_offset)
            world.manager.tiering_switched(PARTITION)

    def lead(self, number: int) -> None:
        self.leads, self.epoch = number, self.epoch + 1
        for each, world in self.brokers.items():
            if each == number:
                world.lead(self.epoch)
            else:
                world.follow()

    def restart(self, number: int) -> None:
        world = self.brokers[number]
        world.manager = world.new_manager()
        self._inline(world)
        if number == self.leads:
            world.lead(self.epoch)
        else:
            world.follow()

    def produce(self, segments: int) -> None:
        for world in self.brokers.values():
            world.epoch = self.epoch
            for _ in range(segments):
                world.produce_segment(batches=1)
            world.produce(1)

    def passes(self, waited_ms: int) -> None:
        async def one(world: World) -> None:
            world.now_ms += waited_ms
            try:
                await world.once()
            except ApiError:
                assert not self.calm

        for world in self.brokers.values():  # as each answer to a follower tells it
            world.log.increment_log_start_offset(
                min(self.leader.log.log_start_offset, world.log.high_watermark)
            )

        async def both() -> None:
            await asyncio.gather(*map(one, self.brokers.values()))

        asyncio.run(both())

    def settle(self) -> None:
        self.calm, self.failing = True, 0.0
        self.switch(self.is_on)
        for _ in range(4):
            self.passes(DANGLING_GRACE_MS + 1)


@pytest.mark.parametrize("seed", range(10))
def test_whenever_it_is_switched_no_record_is_lost_and_at_last_nothing_stays(
    tmp_path: Path, seed: int
) -> None:
    storm = Storm(tmp_path, seed)
    rng = storm.rng
    for _ in range(STEPS):
        for _ in range(rng.randrange(3)):
            storm.event()
        storm.produce(rng.randrange(4))
        storm.passes(rng.choice((1_000, 60_000, DANGLING_GRACE_MS + 1)))
    storm.is_on = True
    storm.produce(2)
    allowed = storm.given_up
    storm.settle()
    log, world = storm.leader.log, storm.leader
    assert log.log_start_offset <= allowed
    assert log.log_start_offset < log.local_log_start_offset
    asyncio.run(world.read_all(log.log_start_offset, log.local_log_start_offset))
    assert {state for *_, state in world.states()} == {FINISHED}
    assert len(world.tier_logs()) == len(world.states())
    storm.is_on = False
    storm.settle()
    assert (world.states(), world.tier_logs()) == ([], [])
