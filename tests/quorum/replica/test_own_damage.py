"""A leader whose own log rots while it leads: it resigns, and another voter serves the records."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.effects import ReadRecords
from quorum.replica.own_damage import OwnLogDamagedError, read_records
from tests.quorum.replica.servers import RaftNodes
from tests.quorum.replica.test_log_bounds import LOG_FILE, fill, open_log


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
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        directory = nodes.directories[leader.node_id].subdirectory("__cluster_metadata-0")
        position = batch_positions(leader._log)[leader.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + byte, 2)
        await nodes.start(behind)
        await nodes.until(lambda: leader.metrics()["own-log-damages-total"] > 0, "damage")
        assert leader.metrics()["own-log-damaged"] == 1
        await nodes.committed(values(0, 5))
        other = await nodes.elected()
        assert other is not leader
        other.append(other.epoch, values(5, 1))
        await nodes.committed(values(0, 6))
        await nodes.stop_all()

    asyncio.run(scenario())
