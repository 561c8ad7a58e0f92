"""Settings of the cleaner: shares of memory, the rate, the order of logs. Also the order of a
swap's steps on the disk.
"""

from __future__ import annotations

import pytest

from commitlog.cleaner.choice import Cleanable, qualifies
from commitlog.cleaner.io import Throttle
from commitlog.cleaner.manager import LogCleaner
from commitlog.cleaner.offset_map import ENTRY_BYTES
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.swap import finish_swaps
from tests.commitlog.builders import NOW, batch, config, records_of
from tests.commitlog.cleaner.test_cleaner import DAY_MS, World
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition


def test_a_log_is_cleaned_above_the_ratio_and_not_at_it() -> None:
    half = Cleanable(10, 20, clean_bytes=500, dirty_bytes=500, is_overdue=False)
    assert not qualifies(half, config(min_cleanable_dirty_ratio=0.5))
    assert qualifies(half, config(min_cleanable_dirty_ratio=0.499))
    nothing = Cleanable(10, 20, clean_bytes=500, dirty_bytes=0, is_overdue=True)
    assert not qualifies(nothing, config(min_cleanable_dirty_ratio=0.0))


@pytest.mark.parametrize("dirtier", [0, 1])
def test_the_dirtiest_log_is_first(dirtier: int) -> None:
    world = World()
    for partition in (0, 1):
        log = world.log(TopicPartition("events", partition))
        for number in range(20):
            data = encode_batch([Record(0, NOW, b"k", b"%d" % number)])
            log.append_as_leader(data, 1, NOW)
        log.update_high_watermark(20)
        log.roll(NOW)
        if partition != dirtier:
            world.cleaner._checkpoints[log.topic_partition] = log.segments[1].base_offset
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    assert cleaning.log.topic_partition == TopicPartition("events", dirtier)


def test_the_cleaners_share_the_memory_and_the_buffers() -> None:
    server = {
        "log.cleaner.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(4 * 1000 * ENTRY_BYTES),
        "log.cleaner.io.buffer.load.factor": "0.5",
        "log.cleaner.io.buffer.size": "8192",
    }
    world = World(server=server)
    assert world.cleaner.new_map().entries_max == 500
    world.put(("k", "1"), ("k", "2"))
    world.log().roll(world.now)
    cleaning = world.cleaner.choose()
    assert cleaning is not None
    assert cleaning.io.buffer_bytes == 2048


def test_every_byte_that_is_read_or_written_counts_towards_the_rate() -> None:
    world = World()
    spent: list[int] = []

    class Counting(Throttle):
        def spend(self, size_bytes: int) -> None:
            spent.append(size_bytes)

    cleaner = LogCleaner(world.logs, world.server, now_ms=lambda: NOW, throttle=Counting(1))
    for number in range(60):
        world.put((f"k{number % 7}", f"v{number}"))
    world.log().roll(world.now)
    cleaning = cleaner.clean_once()
    assert cleaning is not None
    stats = cleaning.stats
    assert min(stats.bytes_mapped, stats.bytes_read, stats.bytes_written) > 0
    assert sum(spent) == stats.bytes_mapped + stats.bytes_read + stats.bytes_written


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_tombstones_in_compressed_batches_go_in_two_passes_too(codec: str) -> None:
    world = World(delete_retention_ms=DAY_MS)
    world.put(("a", "1"), ("b", "2"), compression=codec)
    world.put(("a", None), ("c", "1"), compression=codec)
    world.clean()
    assert (2, "a", None) in world.found()
    world.now += DAY_MS
    world.put(("d", "1"), compression=codec)
    world.clean()
    assert [key for _, key, _ in world.found()] == ["b", "c", "d"]


class Recorder(MemoryDirectory):
    """Records renames between suffixes, and where names were made durable."""

    steps: list[str]

    def rename(self, old: str, new: str) -> None:
        step = f"{suffix(old)} -> {suffix(new)}"
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)
        super().rename(old, new)

    def fsync(self) -> None:
        self.steps.append("fsync")
        super().fsync()


def suffix(name: str) -> str:
    return next((kind for kind in (".cleaned", ".swap", ".deleted") if name.endswith(kind)), "")


def test_a_swap_makes_each_of_its_steps_durable_before_the_next_one() -> None:
    """A disk may keep later names without earlier ones, so the names that recovery relies on are
    synced first.
    """
    world = World()
    for number in range(12):
        world.put(("k", f"v{number}"))
    log = world.log()
    log.roll(world.now)
    directory = log.directory
    log._segments.directory = recorder = Recorder()
    recorder.steps = []
    for name in directory.list():
        recorder.write_atomic(name, directory.read(name))
    for segment in log.segments:
        segment.close()
        segment.directory = recorder
    recorder.steps.clear()
    cleaning = world.cleaner.clean_once()
    assert cleaning is not None
    decided = recorder.steps.index(".cleaned -> .swap")
    assert recorder.steps[decided : decided + 6] == [
        ".cleaned -> .swap",
        "fsync",
        " -> .deleted",
        "fsync",
        ".swap -> ",
        "fsync",
    ]
    assert [r.offset for r in records_of(log)] == [11]


def test_recovery_takes_back_what_was_not_decided_and_ends_what_was() -> None:
    """Two cleanings left files: the older one's swap was decided, the newer one's was not."""
    disk = MemoryDirectory()
    for base in (0, 10, 20):
        disk.write_atomic(f"{base:020d}.log", batch(10, base_offset=base))
    disk.write_atomic(f"{0:020d}.log.swap", batch(10, size=1))
    disk.write_atomic(f"{10:020d}.log.cleaned", batch(10, base_offset=10, size=1))
    disk.write_atomic(f"{20:020d}.log.swap", batch(10, base_offset=20, size=1))
    finish_swaps(disk)
    finish_swaps(disk)
    assert disk.list() == [f"{base:020d}.log" for base in (0, 10, 20)]
    sizes = [disk.size_of(name) for name in disk.list()]
    assert sizes == [len(batch(10, size=1)), len(batch(10)), len(batch(10))]
