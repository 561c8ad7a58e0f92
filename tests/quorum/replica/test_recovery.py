"""A quorum that lost its majority: recovered from the files of the controller that is left."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT
from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.config import RECOVERY_EPOCHS
from quorum.raft.effects import ElectionState, LeaderChange
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.metadata_log import METADATA_PARTITION, ReplicatedLog
from quorum.replica.quorum_state import QuorumStateStore
from quorum.replica.recovery import (
    LogState,
    check_most_recent,
    epoch_after,
    read_state,
    recover,
)
from quorum.replica.settings import metadata_log_config
from snapshot.cleaning import DAMAGED_SUFFIX
from tests.quorum.replica.servers import RaftNodes
from tests.quorum.replica.test_voter_changes import add, change, run, voter_ids
from tidemark.errors import ConfigError, ErrorCode, StorageError


def recovered(nodes, node_id, *, others=()):
    """Makes a stopped node the only voter of its log; returns what was read of it."""
    config = metadata_log_config(nodes.config(node_id))
    state = read_state(nodes.directories[node_id])
    key = nodes.key(node_id)
    voters = VoterSet([Voter(key, nodes.endpoints[node_id])])
    recover(nodes.directories[node_id], config, state, key, voters, epoch_after([state]), 1)
    return state


async def grown(nodes, *values):
    """All three voters start and commit the values."""
    await nodes.start_all(1, 2, 3)
    leader = await nodes.elected()
    for value in values:
        leader.append(leader.epoch, [value])
    await nodes.committed(list(values))


def lose_disk(nodes, node_id, serial):
    """The node gets an empty disk, formatted without initial controllers."""
    nodes.directories.pop(node_id)
    nodes.initial = []
    before, new = nodes.key, ReplicaKey(node_id, UUID(int=serial))
    nodes.key = lambda n: new if n == node_id else before(n)
    nodes.settings["controller.quorum.bootstrap.servers"] = nodes.endpoints[1].address


@pytest.mark.parametrize("initial", [[1, 2, 3], None], ids=["voters of the log", "static voters"])
def test_one_of_three_is_recovered_goes_on_and_gets_new_voters(initial):
    async def scenario(nodes):
        await grown(nodes, b"a", b"b")
        for node_id in (2, 3, 1):
            await nodes.kill(node_id)
        before = recovered(nodes, 1)
        for serial, lost in ((5000, 2), (6000, 3)):
            lose_disk(nodes, lost, serial)
        await nodes.start(1)
        leader = await nodes.elected()
        assert leader.epoch > before.election.epoch + RECOVERY_EPOCHS
        leader.append(leader.epoch, [b"c"])
        await nodes.committed([b"a", b"b", b"c"])

        for node_id in (2, 3):
            await nodes.start(node_id)
            assert await change(nodes, add(nodes, node_id)) == ErrorCode.NONE
        await nodes.kill(1)
        await nodes.until(
            lambda: nodes.leader() is not None and nodes.leader().node_id != 1, "another leader"
        )
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"d"])
        await nodes.committed([b"a", b"b", b"c", b"d"], on=[2, 3])
        assert voter_ids(nodes, 2) == (1, 2, 3)

    run(scenario, initial=initial)


def test_lost_voters_that_return_with_their_old_disks_can_not_overrule_the_recovered_log():
    async def scenario(nodes):
        await grown(nodes, b"a")
        await nodes.kill(1)
        other = await elected_of(nodes, 2, 3)
        other.append(other.epoch, [b"lost with them"])
        await nodes.until(lambda: other.high_watermark == other.log_end_offset, "a commit by two")
        for node_id in (2, 3):  # they held many elections meanwhile
            await nodes.kill(node_id)
            inner = nodes.directories[node_id].subdirectory(str(METADATA_PARTITION))
            QuorumStateStore(inner).write(ElectionState(other.epoch + 50))

        recovered(nodes, 1)
        first = await nodes.start(1)
        await nodes.elected()
        first.append(first.epoch, [b"b"])
        await nodes.committed([b"a", b"b"])
        epoch = first.epoch
        await nodes.start_all(2, 3)  # a majority of the voters that they know
        await nodes.until(
            lambda: all(nodes.servers[n].log_end_offset == first.log_end_offset for n in (2, 3)),
            "they follow",
        )
        assert (nodes.leader().node_id, first.epoch) == (1, epoch)
        assert voter_ids(nodes, 2) == voter_ids(nodes, 3) == (1,)
        assert nodes.recorders[1].values == [b"a", b"b"]

    run(scenario, initial=[1, 2, 3])


def test_lost_voters_that_refuse_the_recovered_log_leave_its_leader_alone():
    """They know that acknowledged records are missing. Together they could elect one of them for
    ever, and depose the recovered leader each time."""

    async def scenario(nodes):
        await grown(nodes, b"a")
        await nodes.kill(1)
        other = await elected_of(nodes, 2, 3)
        other.append(other.epoch, [b"lost with them"])
        lost = [nodes.servers[n] for n in (2, 3)]
        await nodes.until(
            lambda: all(s.high_watermark == other.log_end_offset for s in lost), "both know it"
        )
        for server in lost:
            server._log.bounds.save()
            await nodes.kill(server.node_id)
        recovered(nodes, 1)
        first = await nodes.start(1)
        await nodes.elected()
        first.append(first.epoch, [b"b"])
        await nodes.committed([b"a", b"b"])
        epoch = first.epoch
        for _ in range(2):  # also after a restart
            await nodes.start_all(2, 3)
            lost = [nodes.servers[n] for n in (2, 3)]
            await nodes.until(
                lambda lost=lost: all(s._replica.remote_faults > 5 for s in lost), "they refuse"
            )
            assert (nodes.leader().node_id, first.epoch) == (1, epoch)
            assert not any(s._replica.state.may_elect for s in lost)
            assert all(s._log.end_offset == 5 for s in lost), "what they have stays"
            for server in lost:
                await nodes.kill(server.node_id)

    run(scenario, initial=[1, 2, 3])


async def elected_of(nodes, *node_ids):
    await nodes.until(
        lambda: nodes.leader() is not None and nodes.leader().node_id in node_ids, "another leader"
    )
    return nodes.leader()


# --- what is read, and refused --------------------------------------------------------------------

KEYS = {n: ReplicaKey(n, UUID(int=1000 + n)) for n in (1, 2, 3)}
CONFIG = metadata_log_config(RaftNodes(initial=[1]).config(1))


def voters_of(*ids):
    nodes = RaftNodes()
    return VoterSet(Voter(KEYS[n], nodes.endpoints[n]) for n in ids)


def directory_with(*values, epoch=1, voters=(1, 2, 3), checkpoint=False):
    """A directory whose log holds a LeaderChange, the voters, and a batch for each value."""
    root = MemoryDirectory(seed=1)
    log = ReplicatedLog(root.subdirectory(str(METADATA_PARTITION)), CONFIG, 1)
    log.append_leader_change(LeaderChange(1, epoch, voters, voters), 1)
    log.append_voters(voters_of(*voters), epoch, 1)
    for value in values:
        end = log.append_values([value], epoch, 1) + 1
    if checkpoint:
        writer = log.snapshot_writer(log.snapshot_id_for(end, end), 1)
        writer.append(list(values))
        writer.freeze()
    log.flush()
    log.close()
    return root


def test_reading_a_log_writes_nothing_and_finds_what_its_replica_finds():
    root = directory_with(b"a", b"b", checkpoint=True)
    inner = root.subdirectory(str(METADATA_PARTITION))
    before = {name: inner.read(name) for name in inner.list()}
    state = read_state(root)
    assert {name: inner.read(name) for name in inner.list()} == before
    assert (state.position, state.kraft_version) == ((1, 5), 1)
    assert state.voters == voters_of(1, 2, 3)
    assert not state.damage
    with pytest.raises(StorageError, match="no metadata log was ever here"):
        read_state(MemoryDirectory())


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_log_is_read_up_to_its_damage(checkpoint):
    root = directory_with(b"a", b"b", checkpoint=checkpoint)
    inner = root.subdirectory(str(METADATA_PARTITION))
    (name,) = (n for n in inner.list() if n.endswith(".log"))
    whole = inner.read(name)
    inner.write_atomic(name, whole[:-1])
    state = read_state(root)
    assert state.position == ((1, 5) if checkpoint else (1, 4))
    assert "torn" in state.damage
    inner.write_atomic(name, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert read_state(root).end_offset == (5 if checkpoint else 4)
    inner.write_atomic(name, whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    assert read_state(root).end_offset == (5 if checkpoint else 0)


def state_of(path, epoch, end_offset):
    return replace(read_state(directory_with()), path=path, last_epoch=epoch, end_offset=end_offset)


def test_a_log_is_not_recovered_while_a_more_recent_one_is_known():
    longer, later = state_of("longer", 1, 9), state_of("later", 2, 3)
    check_most_recent(later, [longer, state_of("equal", 2, 3)])
    with pytest.raises(ConfigError, match=r"later has a more recent log \(epoch 2, end offset 3\)"):
        check_most_recent(longer, [state_of("short", 1, 8), later])
    with pytest.raises(ConfigError, match="longer has a more recent log"):
        check_most_recent(state_of("short", 1, 8), [longer])


def test_the_epoch_of_a_recovery_is_beyond_every_vote_and_record_that_is_known():
    one, two = state_of("one", 7, 1), state_of("two", 3, 1)
    assert epoch_after([two]) == 3 + RECOVERY_EPOCHS
    assert epoch_after([two, one]) == 7 + RECOVERY_EPOCHS
    voted = replace(two, election=replace(two.election, epoch=12))
    assert epoch_after([one, voted]) == 12 + RECOVERY_EPOCHS


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_the_log_of_another_node_is_recovered_beside_an_older_quorum_state(with_checkpoint):
    root = directory_with(b"a")
    inner = root.subdirectory(str(METADATA_PARTITION))
    log = ReplicatedLog(inner, CONFIG, 1)
    log.append_leader_change(LeaderChange(2, 7, (1, 2, 3), (2, 3)), 1)
    log.append_values([b"b"], 7, 1)
    log.close()
    QuorumStateStore(inner).write(ElectionState(5, 2))  # of this controller
    if not with_checkpoint:
        inner.remove(LEADER_EPOCH_CHECKPOINT)
    state = read_state(root)
    assert state.position == (7, 6)
    recover(root, CONFIG, state, KEYS[1], voters_of(1), epoch_after([state]), 1)
    assert read_state(root).position == (7 + RECOVERY_EPOCHS, 8)
    assert not [name for name in inner.list() if name.endswith(DAMAGED_SUFFIX)]


def test_a_log_that_opens_with_another_end_is_left_as_it_is():
    root = directory_with(b"a")
    state = read_state(root)
    assert isinstance(state, LogState)
    more = replace(state, end_offset=state.end_offset + 1)
    with pytest.raises(StorageError, match="opens with"):
        recover(root, CONFIG, more, KEYS[1], voters_of(1), 1001, 1)
    with pytest.raises(ConfigError, match="none of the new voters"):
        recover(root, CONFIG, state, KEYS[1], voters_of(2, 3), 1001, 1)
    assert read_state(root) == state
    recover(root, CONFIG, state, KEYS[1], voters_of(1, 2), 1001, 1)
    after = read_state(root)
    assert (after.voters, after.position) == (voters_of(1, 2), (1001, state.end_offset + 2))
    assert (after.election.epoch, after.election.leader_id) == (1001, 1)
