"""A topic that was compacted once and is `delete` now: its gaps stay, and followers copy them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commitlog.log import Log
from commitlog.memory_files import MemoryDirectory
from tests.commitlog.builders import NOW, TP, config, records_of
from tests.commitlog.test_cleaner import World


def copied(leader: Log, follower: Log) -> Iterator[int]:
    """Fetches until the follower has everything; gives the bytes of each fetch."""
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.read(follower.log_end_offset, 300)
        follower.append_as_follower(fetched.records, NOW, gaps_allowed=True)
        yield len(fetched.records)


@pytest.mark.parametrize("synced", [False, True])
def test_a_follower_takes_the_gaps_that_compaction_left(synced: bool) -> None:
    """The topic is `delete` before the follower has anything: over segments, and over a crash."""
    world = World()
    for number in range(80):
        world.put((f"k{number % 9}", f"v{number}" * 5))
    world.clean()
    leader, deleting = world.log(), config(cleanup_policy=("delete",), segment_bytes=700)
    disk = MemoryDirectory(seed=5)
    follower = Log.open(disk.subdirectory("f-0"), TP, deleting, now_ms=NOW)
    assert all(copied(leader, follower))
    assert len(follower.segments) > 1
    follower.validate()
    if synced:
        follower.flush()
    disk.fsync()
    disk.crash()
    again = Log.open(disk.subdirectory("f-0"), TP, deleting, now_ms=NOW)
    kept = records_of(again)
    assert kept == records_of(leader)[: len(kept)]
    if synced:
        assert kept == records_of(leader), "what was synced survives, gaps and all"
    assert all(copied(leader, again))
    assert records_of(again) == records_of(leader)
    again.validate()
