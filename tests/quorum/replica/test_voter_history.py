"""The voters of a log stay known when its beginning is cleaned away (KIP-853)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.effects import LeaderChange
from quorum.raft.voter_history import VoterHistory
from quorum.replica.metadata_log import ReplicatedLog
from tests.quorum.replica.test_recovery import CONFIG, voters_of

SMALL = replace(CONFIG, segment_bytes=1 << 14, retention_bytes=1)
FIRST, SECOND, THIRD = voters_of(1), voters_of(1, 2), voters_of(1, 2, 3)


def log_with(directory, *, second_at):
    """A log of 20 data records: FIRST from offset 2 on, SECOND from `second_at` on."""
    log = ReplicatedLog(directory, SMALL, 1)
    log.append_leader_change(LeaderChange(1, 1, (1,), (1,)), 1)
    log.append_voters(FIRST, 1, 1)
    while log.end_offset < 23:
        if log.end_offset == second_at:
            log.append_voters(SECOND, 1, 1)
        else:
            log.append_values([b"x" * 4000], 1, 1)
    return log


def checkpoint(log, end_offset):
    snapshot_id = log.snapshot_id_for(end_offset, log.end_offset)
    log.update_high_watermark(log.end_offset)
    log.snapshot_writer(snapshot_id, 1).freeze()
    log.snapshot_frozen(snapshot_id)


@pytest.mark.parametrize("second_at", [6, 12, 15])
def test_a_log_that_is_cleaned_keeps_the_voters_in_force_where_it_begins(second_at):
    directory = MemoryDirectory()
    log = log_with(directory, second_at=second_at)
    checkpoint(log, 8)
    checkpoint(log, 12)
    assert log.clean(2)
    assert log.start_offset == 12
    at_start = SECOND if second_at < 12 else FIRST
    assert log.history.at(12) == (1, at_start)
    assert (log.voters, log.kraft_version) == (SECOND, 1)
    assert log.was_voter_since(at_start.key(max(at_start.ids)), 12)
    kept = [offset for offset, _ in log.history._voters.newest_first()]
    assert kept == ([second_at, 2] if second_at >= 12 else [second_at])

    log.append_voters(THIRD, 1, 1)
    log.truncate_to(23, 1)
    assert log.voters == SECOND, "taken back to the set before"
    log.truncate_to(second_at + 1 if second_at >= 12 else 13, 1)
    assert log.voters == SECOND
    if second_at >= 12:
        log.truncate_to(second_at, 1)
        assert log.voters == FIRST, "a set from before the log start"
    log.flush()
    before = log.voters
    log.close()
    again = ReplicatedLog(directory, SMALL, 1)
    assert (again.start_offset, again.voters, again.kraft_version) == (12, before, 1)


@pytest.mark.parametrize(
    ("start_offset", "kept"),
    [(0, [0, 5, 9]), (5, [0, 5, 9]), (6, [5, 9]), (9, [5, 9]), (10, [9]), (99, [9])],
)
def test_what_is_dropped_is_no_longer_in_force_at_the_log_start(start_offset, kept):
    history = VoterHistory()
    sets = dict(zip((0, 5, 9), (FIRST, SECOND, THIRD), strict=True))
    for offset, voters in sets.items():
        history.add_voters(offset, voters)
        history.add_version(offset, 1)
    history.drop_before(start_offset)
    assert list(history._voters.newest_first()) == [(o, sets[o]) for o in reversed(kept)]
    assert (
        history.at(max(start_offset, 1))[1]
        == sets[[o for o in sets if o < max(start_offset, 1)][-1]]
    )
    assert list(history._versions.newest_first()) == [(offset, 1) for offset in reversed(kept)]
