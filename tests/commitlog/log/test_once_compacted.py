"""A topic that was compacted once and is `delete` now: its gaps stay, and followers copy them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.log.opening import open_log
from tests.commitlog.builders import NOW, TP, config, records_of
from tests.commitlog.cleaner.test_cleaner import World


def copied(leader: Log, follower: Log) -> Iterator[int]:
    """Fetches until the follower has everything; returns the bytes of each fetch."""
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.read(follower.log_end_offset, 300)
        follower.append_as_follower(fetched.records, NOW, gaps_allowed=True)
        yield len(fetched.records)


@pytest.mark.parametrize("synced", [False, True])
def test_a_follower_takes_the_gaps_that_compaction_left(synced: bool) -> None:
    """The topic is `delete` before the follower has any record: over segments, and over a crash."""
    world = World()
    for number in range(80):
        world.put((f"k{number % 9}", f"v{number}" * 5))
    world.clean()
    leader, deleting = world.log(), config(cleanup_policy=("delete",), segment_bytes=700)
    disk = MemoryDirectory(seed=5)
    follower = open_log(disk.subdirectory("f-0"), TP, deleting, now_ms=NOW)
    assert all(copied(leader, follower))
    assert len(follower.segments) > 1
    follower.validate()
    if synced:
        follower.flush()
    disk.fsync()
    disk.crash()
    again = open_log(disk.subdirectory("f-0"), TP, deleting, now_ms=NOW)
    kept = records_of(again)
    assert kept == records_of(leader)[: len(kept)]
    if synced:
        assert kept == records_of(leader), "what was synced survives, gaps and all"
    assert all(copied(leader, again))
    assert records_of(again) == records_of(leader)
    again.validate()


def test_a_segment_that_is_cleaned_into_several_leaves_no_gap_between_them() -> None:
    """One segment was larger than segment.bytes is now, and the record behind each new end is
    obsolete. A gap there would count as a loss once the topic is `delete`, before the next
    checkpoint.
    """
    world = World(segment_bytes=6000)
    for number in range(70):
        world.put((f"k{number}" if number % 2 else "other", "v" * 5))
    world.topic = replace(world.topic, segment_bytes=600)
    log = world.log()
    world.clean()
    assert len(log.segments) > 4
    for one, following in pairwise(log.segments):
        assert one.next_offset == following.base_offset
    wanted = records_of(log)
    assert len(wanted) < 50
    again = open_log(
        log.directory, TP, config(cleanup_policy=("delete",)), now_ms=NOW, recovery_point=0
    )
    assert records_of(again) == wanted
