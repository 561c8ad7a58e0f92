"""A log that changes while it is checked is no damage; a flipped bit in it still is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.verify import Finding, verify_directory
from tests.commitlog.builders import batch
from tests.commitlog.cleaner.test_cleaner import World


class Changing(World):
    """A compacted log that does one more thing, chosen by a seed, at each step of a check."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(
            cleanup_policy=("compact", "delete"), segment_bytes=700, retention_bytes=4000
        )
        self.epoch = 1
        actions = (self.append, self.append, self.append, self.append)
        self.actions: tuple[Callable[[], None], ...] = (
            *actions,
            self.clean_some,
            self.truncate,
            self.flush,
            self.delete_records,
        )
        for _ in range(30):
            self.act()

    def act(self) -> None:
        self.rng.choice(self.actions)()

    def append(self) -> None:
        log = self.log()
        for _ in range(4):
            log.append_as_leader(batch(self.rng.randrange(1, 4), size=40), self.epoch, self.now)
        log.update_high_watermark(log.log_end_offset)

    def clean_some(self) -> None:
        self.log().roll(self.now)
        self.cleaner.clean_once()

    def truncate(self) -> None:
        log = self.log()
        end = log.log_end_offset - self.rng.randrange(1, 12)
        log.truncate_to(max(log.local_log_start_offset, end), self.now)
        self.epoch += 1

    def flush(self) -> None:
        self.log().flush()
        self.logs.checkpoint_recovery_points()

    def delete_records(self) -> None:
        log = self.log()
        log.increment_log_start_offset(
            self.rng.randrange(log.log_start_offset, log.high_watermark + 1)
        )
        delete_expired(log, self.now)

    def damage_while_it_changes(self, act: Callable[[], object]) -> list[Finding]:
        found = verify_directory(self.directory, lambda _: act() and None)
        return [finding for finding in found if finding.is_damage]


@pytest.mark.parametrize("seed", range(25))
def test_a_log_that_is_appended_to_cut_compacted_and_expired_meanwhile_is_sound(seed: int) -> None:
    world = Changing(seed)
    assert world.damage_while_it_changes(lambda: None) == []
    assert world.damage_while_it_changes(world.act) == []


def test_damage_in_a_log_that_changes_is_found() -> None:
    world = Changing(1)
    for _ in range(10):
        world.append()
    world.flush()
    log: Log = world.log()
    name = log.segments[1].log_file
    data = bytearray(log.directory.read(name))
    data[80] ^= 1
    file = log.directory.open(name)
    file.pwrite(bytes(data), 0)
    file.close()
    (found,) = world.damage_while_it_changes(world.append)
    assert found.path.endswith(name)
    assert found.position == 0
