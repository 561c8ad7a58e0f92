"""A leader whose own log rots while it leads: it resigns, and another voter serves the records. A
checkpoint that rots is not served.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.effects import ReadRecords, ReadSnapshot
from quorum.replica.own_damage import OwnLogDamagedError, read_records
from quorum.replica.served_checkpoints import ServedCheckpoints
from quorum.replica.service import describe_to_proto
from tests.quorum.replica.servers import RaftNodes, Recorder
from tests.quorum.replica.test_log_bounds import LOG_FILE, fill, open_log
from tidemark.client.decoding import quorum as decode
from tidemark.types import OwnDamage


def values(begin, count):
    return [b"value %d" % number for number in range(begin, begin + count)]


def batch_positions(log):
    """Byte positions of the batches, by offset."""
    positions, position = {}, 0
    for offset in range(log.end_offset):
        positions[offset] = position
        position += len(log.read(offset, 1))
    return positions


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [3, 7, 10, 11, 16, 17, 20, 60])
def test_the_damaged_batch_is_named(byte):
    """Base offset, length, epoch, magic, CRC and what it covers."""
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 4)
    position = batch_positions(log)[2]
    before = directory.read(LOG_FILE)[:position]
    directory.flip_bit(LOG_FILE, position + byte, 2)
    with contextlib.suppress(OwnLogDamagedError):  # or what comes before it is served
        assert before.startswith(read_records(log, ReadRecords(0, 1 << 20, doubted=True)))
    with pytest.raises(OwnLogDamagedError, match="offset 2 is damaged") as caught:
        read_records(log, ReadRecords(2, 1 << 20, doubted=True))
    assert caught.value.offset == 2


def test_checksums_are_compared_only_in_doubt():
    directory = MemoryDirectory()
    log = open_log(directory)
    fill(log, 4)
    directory.flip_bit(LOG_FILE, batch_positions(log)[2] + 60, 2)
    data = directory.read(LOG_FILE)
    assert read_records(log, ReadRecords(0, 1 << 20)) == data


# --- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [3, 60], ids=["base offset", "a value"])
def test_a_leader_whose_log_rots_resigns_and_another_voter_serves_the_records(byte):
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        behind = next(n for n in (1, 2, 3) if n != leader.node_id)
        await nodes.stop(behind)
        epoch = leader.epoch
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        directory = nodes.directories[leader.node_id].subdirectory("__cluster_metadata-0")
        position = batch_positions(leader._log)[leader.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + byte, 2)
        await nodes.start(behind)
        await nodes.until(lambda: leader.metrics()["own-log-damages-total"] > 0, "damage")
        await nodes.committed(values(0, 5))
        other = await nodes.elected()
        assert other.epoch > epoch, "the leader has resigned"
        other.append(other.epoch, values(5, 1))
        await nodes.committed(values(0, 6))
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_lone_voter_leads_again_when_a_checkpoint_has_replaced_the_damaged_batch():
    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        leader = await nodes.elected()
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        directory = nodes.directories[1].subdirectory("__cluster_metadata-0")
        position = batch_positions(leader._log)[leader.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + 60, 2)
        await nodes.start(11)
        await nodes.committed(values(0, 5))
        await nodes.until(lambda: leader.metrics()["own-damage"] == "NONE", "a healed log")
        assert leader.metrics()["own-log-damages-total"] == 1
        assert (await nodes.elected()) is leader
        leader.append(leader.epoch, values(5, 1))
        await nodes.committed(values(0, 6))
        assert nodes.recorders[11].snapshots_loaded == 1
        await nodes.stop_all()

    asyncio.run(scenario())


@pytest.mark.parametrize("grpc", [False, True], ids=["in memory", "over gRPC"])
def test_the_next_leader_names_the_damaged_replica_until_a_checkpoint_heals_it(grpc, monkeypatch):
    wanted = []
    monkeypatch.setattr(Recorder, "handle_snapshot_wanted", lambda self: wanted.append(self))

    async def scenario():
        nodes = RaftNodes(grpc=grpc)
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        behind = next(n for n in (1, 2, 3) if n != leader.node_id)
        await nodes.stop(behind)
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        directory = nodes.directories[leader.node_id].subdirectory("__cluster_metadata-0")
        position = batch_positions(leader._log)[leader.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + 60, 2)
        await nodes.start(behind)
        await nodes.until(lambda: wanted == [nodes.recorders[leader.node_id]], "damage")

        def told():
            other = nodes.leader()
            if other is None:
                return {}
            found = decode(describe_to_proto(other.describe())).voters
            return {voter.replica_id: voter.own_damage for voter in found if voter.own_damage}

        assert leader.describe().voters[leader.node_id - 1].own_damage is OwnDamage.LOG
        await nodes.until(lambda: told() == {leader.node_id: OwnDamage.LOG}, "its name")
        await nodes.committed(values(0, 5))
        healed, recorder = nodes.servers[leader.node_id], nodes.recorders[leader.node_id]
        await healed.create_snapshot(recorder.next_offset, list(recorder.values))
        await nodes.until(lambda: nodes.leader() is not None and told() == {}, "a healed log")
        await nodes.stop_all()

    asyncio.run(scenario())


# --- checkpoints ----------------------------------------------------------------------------------


async def checkpoint_of(server, recorder):
    await server.create_snapshot(recorder.next_offset, list(recorder.values))
    return server.latest_snapshot


@pytest.mark.parametrize("cleaned", [False, True], ids=["one before", "a new one"])
def test_a_checkpoint_that_rots_at_the_leader_is_not_served(cleaned, caplog):
    async def scenario():
        settings = {"metadata.max.retention.bytes": "100"} if cleaned else {}
        nodes = RaftNodes(voters=1, settings=settings)
        await nodes.start(1)
        leader = await nodes.elected()
        directory = nodes.directories[1].subdirectory("__cluster_metadata-0")
        for number in range(2):
            leader.append(leader.epoch, values(10 * number, 10))
            await nodes.committed(values(0, 10 * number + 10))
            bad = await checkpoint_of(leader, nodes.recorders[1])
        if cleaned:
            await nodes.until(lambda: leader.log_start_offset == bad.end_offset, "a cleaned log")
        directory.flip_bit(bad.name, directory.size_of(bad.name) // 2, 3)
        await nodes.start(11)
        await nodes.committed(values(0, 20))
        assert nodes.recorders[11].snapshots_loaded == 1
        assert directory.exists(f"{bad.name}.damaged")
        assert directory.exists(bad.name) == cleaned, "made again from the image"
        assert leader.metrics()["checkpoints-damaged-total"] == 1
        assert leader.epoch == leader.leader_and_epoch.epoch and not leader.fatal.done()
        assert sum("set aside" in record.message for record in caplog.records) == 1
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_leader_names_itself_while_the_checkpoint_where_its_log_begins_is_damaged(monkeypatch):
    wanted = []
    monkeypatch.setattr(Recorder, "handle_snapshot_wanted", lambda self: wanted.append(self))

    async def scenario():
        nodes = RaftNodes(voters=1, settings={"metadata.max.retention.bytes": "100"})
        await nodes.start(1)
        leader = await nodes.elected()
        directory = nodes.directories[1].subdirectory("__cluster_metadata-0")
        for number in range(2):
            leader.append(leader.epoch, values(10 * number, 10))
            await nodes.committed(values(0, 10 * number + 10))
            bad = await checkpoint_of(leader, nodes.recorders[1])
        await nodes.until(lambda: leader.log_start_offset == bad.end_offset, "a cleaned log")
        assert [v.own_damage for v in leader.describe().voters] == [OwnDamage.NONE]
        directory.flip_bit(bad.name, directory.size_of(bad.name) // 2, 3)
        await nodes.start(11)
        await nodes.until(lambda: wanted == [nodes.recorders[1]], "damage")

        def told():
            return [voter.own_damage for voter in leader.describe().voters]

        await nodes.until(lambda: told() == [OwnDamage.CHECKPOINT], "its name")
        await checkpoint_of(leader, nodes.recorders[1])
        await nodes.until(lambda: told() == [OwnDamage.NONE], "a new checkpoint")
        await nodes.committed(values(0, 20))
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_checkpoint_is_verified_once_and_when_a_follower_begins_anew():
    async def scenario():
        directory = MemoryDirectory()
        log = open_log(directory)
        fill(log, 4)
        log.update_high_watermark(4)
        snapshot_id = log.snapshot_id_for(4, 4)
        writer = log.snapshot_writer(snapshot_id, 1000)
        writer.append([b"state"])
        writer.freeze()
        log.snapshot_frozen(snapshot_id)
        served = ServedCheckpoints(log)
        first, later = ReadSnapshot(snapshot_id, 0, 10), ReadSnapshot(snapshot_id, 10, 10)
        assert served.must_verify(first) and not served.must_verify(later)
        assert await served.damage(snapshot_id) is None
        assert not served.must_verify(first)
        assert served.must_verify(ReadSnapshot(snapshot_id, 0, 10, doubted=True))
        directory.flip_bit(snapshot_id.name, 100, 1)
        assert snapshot_id.name in await served.damage(snapshot_id)
        assert served.must_verify(first)

    asyncio.run(scenario())
