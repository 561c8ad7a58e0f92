"""The bounds that outlive a restart: a log that lost its tail does not vote, and committed records
stay in the next life, too.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft import messages as m
from quorum.raft.config import ReplicaConfig
from quorum.raft.effects import (
    ElectionState,
    LeaderChange,
    LogAppended,
    LogFlushed,
    ResponseReceived,
    Tick,
)
from quorum.raft.log_view import KnownBounds
from quorum.raft.replica import Replica
from quorum.raft.roles import Candidate, Follower, Leader, Unattached
from quorum.raft.voters import Voter, VoterSet
from quorum.replica.log_bounds import LOG_BOUNDS_FILE, LogBoundsStore, format_bounds, parse_bounds
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.recovery import read_state, recover
from tests.quorum.raft.test_rules import ENDPOINTS, KEYS, FakeLog, ask, vote
from tests.transcripts.cluster import RaftCluster
from tidemark.errors import ErrorCode, FatalError

CONFIG = MetadataLogConfig(segment_bytes=300, retention_bytes=500)
LOG_FILE = "00000000000000000000.log"


def open_log(directory):
    return ReplicatedLog(directory, CONFIG, 0)


def fill(log, batches, epoch=1):
    for number in range(batches):
        log.append_values([b"value %d" % number], epoch, 1000)
    log.flush()


def filled(batches=8):
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, batches)
    log.update_high_watermark(log.end_offset - 2)
    log.close()
    return directory


# --- the file -------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_the_durable_end_and_the_high_watermark():
    log = open_log(filled(8))
    assert log.bounds.now == KnownBounds(8, 6)
    assert not log.bounds.lost


@pytest.mark.parametrize("bit", range(8 * len(format_bounds(KnownBounds(12, 7)))))
def test_a_flipped_bit_never_gives_other_bounds(bit):
    data = bytearray(format_bounds(KnownBounds(12, 7)))
    data[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(ValueError):
        assert parse_bounds(bytes(data)) == KnownBounds(12, 7)


def test_a_damaged_file_counts_as_missing():
    directory = filled(8)
    directory.write_atomic(LOG_BOUNDS_FILE, b'{"endOffset":99,"highWatermark":9}')
    log = open_log(directory)
    assert not log.bounds.lost
    assert log.bounds.now == KnownBounds(8, 0)


def test_bounds_are_written_only_when_they_changed():
    directory = filled(8)
    log = open_log(directory)
    directory.set_capacity(0)  # any write would fail
    log.bounds.save()
    log.bounds.note_committed(3)
    log.bounds.save()


def test_a_full_disk_keeps_the_older_bounds():
    directory = MemoryDirectory()
    bounds = LogBoundsStore(directory)
    bounds.note_durable(5)
    bounds.save()
    bounds.note_durable(9)
    directory.set_capacity(0)
    bounds.save()
    assert LogBoundsStore(directory).now.end_offset == 5
    directory.set_capacity(1 << 20)
    bounds.save()
    assert LogBoundsStore(directory).now.end_offset == 9


def test_a_failed_fsync_of_the_file_ends_the_process():
    directory = filled(8)
    log = open_log(directory)
    directory.fail_fsync("*log-bounds*")
    log.update_high_watermark(8)
    with pytest.raises(FatalError):
        log.bounds.save()


def test_while_the_tail_is_lost_the_durable_end_stays_and_a_leader_ends_the_loss():
    bounds = LogBoundsStore(filled(8))
    bounds.opened(5)
    bounds.lower_to(4)
    bounds.note_durable(9)
    assert (bounds.lost, bounds.now) == (True, KnownBounds(8, 6))
    bounds.found_again(5)
    assert (bounds.lost, bounds.now) == (False, KnownBounds(5, 5))


@pytest.mark.parametrize("crash", ["nothing", "everything"])
def test_a_truncation_lowers_the_bound_first_so_that_no_crash_looks_like_a_loss(crash):
    directory = filled(8)
    log = open_log(directory)
    log.truncate_to(7, 0)
    directory.crash(crash)
    again = open_log(directory)
    assert not again.bounds.lost
    assert again.bounds.now.end_offset <= again.end_offset


def test_the_bound_is_durable_before_anything_is_cut():
    directory = filled(8)
    log = open_log(directory)
    directory.fail_fsync("*log-bounds*")
    with pytest.raises(FatalError):
        log.truncate_to(7, 0)
    assert log.end_offset == 8


# --- a log that lost its tail ---------------------------------------------------------------------


def cut(directory):
    newest = max(n for n in directory.list() if n.endswith(".log"))
    data = directory.read(newest)
    directory.write_atomic(newest, data[:-1])


def remove_newest(directory):
    directory.remove(max(n for n in directory.list() if n.endswith(".log")))


def remove_all(directory):
    for name in [n for n in directory.list() if n.endswith(".log")]:
        directory.remove(name)


@pytest.mark.parametrize("damage", [cut, remove_newest, remove_all])
def test_a_log_that_ends_below_its_durable_end_is_known_to_have_lost_records(damage):
    directory = filled(8)
    damage(directory)
    log = open_log(directory)
    assert log.bounds.lost
    fill(log, 1)
    log.close()
    again = open_log(directory)  # it stays so, whatever is appended, until a leader's word
    assert again.bounds.lost == (again.end_offset < 8)
    again.bounds.found_again(again.durable_offset)
    again.bounds.save()
    again.close()
    assert not open_log(directory).bounds.lost


def test_a_recovery_gives_up_what_is_missing_and_leads():
    disk = MemoryDirectory()
    directory = disk.subdirectory("__cluster_metadata-0")
    log = open_log(directory)
    log.append_leader_change(LeaderChange(1, 1, (1,), (1,)), 0)
    fill(log, 7)
    log.update_high_watermark(8)
    log.close()
    cut(directory)
    voters = VoterSet([Voter(KEYS[1], ENDPOINTS[1])])
    recover(disk, CONFIG, read_state(disk), KEYS[1], voters, 1001, 0)
    again = open_log(directory)
    assert not again.bounds.lost
    assert again.bounds.now.high_watermark <= again.bounds.now.end_offset == again.end_offset
    config = ReplicaConfig("c", KEYS[1], VoterSet(()), ENDPOINTS[1])
    state = again.quorum_state.read()
    alone = Replica(config, again, state, random.Random(1), bounds=again.bounds.now)
    alone.start(0)
    assert isinstance(alone.role, Leader)


def replica_without_tail(end_offset=10, voters=(1, 2, 3), state=None):
    log = FakeLog([(1, 0), (4, 5)], end_offset)
    config = ReplicaConfig(
        "c", KEYS[1], VoterSet.static({n: ENDPOINTS[n] for n in voters}), ENDPOINTS[1]
    )
    bounds = KnownBounds(20, 15)
    made = Replica(config, log, state or ElectionState(5, 3), random.Random(1), bounds=bounds)
    return made, log, made.start(0).sends


def test_without_its_tail_a_voter_gives_no_vote_and_does_not_stand_for_election():
    voter, _, _ = replica_without_tail()
    assert not ask(voter, vote(2, 5, (4, 99), pre_vote=True))[0].vote_granted
    assert not ask(voter, vote(2, 6, (5, 99)))[0].vote_granted
    for now_ms in range(0, 90_000, 500):
        voter.step(Tick(), now_ms)
        assert isinstance(voter.role, Unattached | Follower)
    assert voter.epoch == 6


@pytest.mark.parametrize(
    "state",
    [
        ElectionState(5, 1, KEYS[1]),
        ElectionState(5, None, KEYS[1]),
        ElectionState(5, None, None),
    ],
    ids=["led", "was a candidate", "had no leader"],
)
def test_without_its_tail_a_restarted_leader_or_candidate_is_neither(state):
    for voters in ((1, 2, 3), (1,)):
        voter, _, _ = replica_without_tail(state=state, voters=voters)
        for now_ms in range(0, 10_000, 500):
            voter.step(Tick(), now_ms)
            voter.validate()
            assert not isinstance(voter.role, Leader | Candidate)


def test_a_vote_of_before_the_loss_stays_given():
    voter, _, _ = replica_without_tail(state=ElectionState(5, None, KEYS[2]))
    assert ask(voter, vote(2, 5, (4, 99)))[0].vote_granted
    assert not ask(voter, vote(3, 5, (4, 99)))[0].vote_granted


def test_a_voter_counts_again_when_it_has_what_the_leader_committed():
    voter, log, sends = replica_without_tail()

    def answer(high_watermark, records=b""):
        [send] = sends
        header = m.Header(ErrorCode.NONE, 3, 5, ENDPOINTS[3])
        response = m.FetchResponse(header, high_watermark, records=records)
        effects = voter.step(ResponseReceived(send.correlation_id, response), 10)
        if records:
            log.end_offset = 17
            effects = voter.step(LogAppended(), 10)
        return effects

    assert not answer(None, b"from 10 to 17").tail_found, "the leader has committed nothing yet"
    sends = voter.step(LogFlushed(17), 11).sends
    assert voter.state.lost_tail
    effects = answer(17)
    assert effects.tail_found, "17 is enough: beyond it nothing was committed"
    assert voter.high_watermark == 17
    voter.validate()
    assert ask(voter, vote(2, 6, (5, 99)), 12)[0].vote_granted


def test_what_is_not_synced_yet_does_not_count():
    voter, log, [send] = replica_without_tail()
    header = m.Header(ErrorCode.NONE, 3, 5, ENDPOINTS[3])
    voter.step(ResponseReceived(send.correlation_id, m.FetchResponse(header, 17, records=b"x")), 10)
    log.end_offset = 17
    assert not voter.step(LogAppended(), 10).tail_found
    assert voter.step(LogFlushed(17), 11).tail_found


# --- whole clusters -------------------------------------------------------------------------------


def metadata_of(cluster, node_id):
    return cluster.nodes[node_id].disk.subdirectory("__cluster_metadata-0")


def stopped_cluster():
    """Three voters with the same committed log, all stopped."""
    cluster = RaftCluster()
    leader = cluster.run_until_leader()
    for number in range(9):
        cluster.append(leader, b"key%d=value" % number)
        cluster.run_until_equal()
    for node in cluster.nodes.values():
        node.log.bounds.save()
        cluster.crash(node.node_id)
        node.durable_when_down = 0
    return cluster, leader


def test_a_voter_that_lost_its_tail_is_healed_by_the_others():
    for victim in (1, 2, 3):
        cluster, _ = stopped_cluster()
        committed = cluster.checks.committed_end
        remove_newest(metadata_of(cluster, victim))
        for node_id in cluster.nodes:
            cluster.start(node_id)
        state = cluster.nodes[victim].replica.state
        assert state.lost_tail
        leader = cluster.run_until_leader()
        assert leader != victim
        cluster.run_until_equal()
        assert not state.lost_tail
        assert cluster.nodes[victim].log.end_offset > committed
        assert not cluster.nodes[victim].log.bounds.lost


def test_where_a_majority_lost_its_tail_nobody_is_elected_and_nothing_is_cut():
    cluster, _ = stopped_cluster()
    whole = cluster.nodes[3].log.end_offset
    for victim in (1, 2):
        remove_newest(metadata_of(cluster, victim))
    for node_id in cluster.nodes:
        cluster.start(node_id)
    cluster.run_for(20_000)
    assert not cluster.leaders()
    assert cluster.nodes[3].log.end_offset == whole


def test_the_guard_of_what_is_committed_lasts_over_restarts():
    """Two of three come back with empty disks, which the quorum cannot bear, and lead an empty
    log. The third keeps what was acknowledged, in every life."""
    cluster, _ = stopped_cluster()
    keeper = cluster.nodes[3]
    whole, value = keeper.log.end_offset, keeper.image.values[b"key8"]
    for victim in (1, 2):
        cluster.nodes[victim].lose_disk()
        cluster.start(victim)
    cluster.checks = type(cluster.checks)()  # the quorum is not correct from here on
    cluster.isolate(3)
    cluster.run_until_leader()
    for _ in range(4):
        cluster.crash(cluster.run_until_leader())
        for victim in (1, 2):
            if not cluster.nodes[victim].alive:
                cluster.start(victim)
        leader = cluster.run_until_leader()
        cluster.append(leader, b"key0=other")
    cluster.heal()
    for _ in range(3):
        cluster.start(3)
        cluster.run_for(3_000)
        assert keeper.alive
        assert keeper.replica.remote_faults > 0
        assert keeper.log.end_offset == whole
        cluster.crash(3)
        keeper.durable_when_down = 0
    assert value == b"value"
