"""A start of a log that is damaged below its newest whole checkpoint: no record behind the
checkpoint is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.segment.names import log_name
from quorum.raft.effects import ElectionState, LeaderChange
from quorum.replica.damaged_start import segment_bases
from quorum.replica.metadata_log import MetadataLogConfig, ReplicatedLog
from quorum.replica.recovery import read_state
from snapshot.cleaning import DAMAGED_SUFFIX
from snapshot.names import SnapshotId
from tests.quorum.replica.servers import RaftNodes, Recorder
from tests.quorum.replica.test_log_bounds import LOG_FILE
from tests.quorum.replica.test_own_damage import batch_positions, values
from tests.sim.disk_faults import copy_disk
from tidemark.errors import CorruptMessageError, FatalError

ONE_SEGMENT = MetadataLogConfig(segment_bytes=16_000)
MANY_SEGMENTS = MetadataLogConfig(segment_bytes=300)
CHECKPOINT, END = 5, 9


def begin_epoch(log, epoch):
    log.append_leader_change(LeaderChange(1, epoch, (1, 2, 3), (1, 2)), 1000)


def log_with_checkpoint(config, end=END, at=CHECKPOINT, epoch=6):
    """A log of epochs 1 and 6 in `inner`, all committed and durable, and its checkpoint."""
    outer = MemoryDirectory()
    directory = outer.subdirectory("__cluster_metadata-0")
    log = ReplicatedLog(directory, config, 0)
    log.quorum_state.write(ElectionState(7, 2))
    begin_epoch(log, 1)
    for number in range(1, end):
        if number == 3:
            begin_epoch(log, 6)
        else:
            log.append_values([b"value %d" % number], log.last_epoch, 1000)
    log.flush()
    log.update_high_watermark(log.end_offset)
    snapshot_id = SnapshotId(at, epoch)
    writer = log.snapshot_writer(snapshot_id, 1000)
    writer.append([b"state"])
    writer.freeze()
    log.snapshot_frozen(snapshot_id)
    log.close()
    return outer, snapshot_id


def inner(outer):
    return outer.subdirectory("__cluster_metadata-0")


def contents(log, begin):
    return b"".join(log.read(offset, 1) for offset in range(begin, log.end_offset))


@pytest.fixture
def quiet_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("config", [ONE_SEGMENT, MANY_SEGMENTS], ids=["one segment", "many"])
def test_no_flipped_bit_below_the_checkpoint_loses_a_record_behind_it(config, quiet_logs):
    source, snapshot_id = log_with_checkpoint(config)
    whole = ReplicatedLog(inner(copy_disk(source, 1)), config, 0)
    kept = contents(whole, CHECKPOINT)
    assert whole.start_offset == 0, "a whole log keeps what is before the checkpoint"
    lost = []
    for offset in range(CHECKPOINT):
        size = len(whole.read(offset, 1))
        base = max(base for base in segment_bases(inner(source)) if base <= offset)
        position = sum(len(whole.read(n, 1)) for n in range(base, offset))
        for bit in range(8 * size):
            outer = copy_disk(source, 1)
            inner(outer).flip_bit(log_name(base), position + bit // 8, bit % 8)
            state = read_state(outer)
            log = ReplicatedLog(inner(outer), config, 0)
            found = (log.start_offset, log.end_offset, log.bounds.lost, log.last_epoch)
            if found != (CHECKPOINT, END, False, 6) or contents(log, CHECKPOINT) != kept:
                lost.append((offset, bit, found))
            elif state.position != (6, END):
                lost.append((offset, bit, state))
    assert not lost
    assert log.latest_snapshot == snapshot_id
    log.append_values([b"more"], 6, 1000)
    log.close()
    assert ReplicatedLog(inner(outer), config, 0).end_offset == END + 1


def damaged(config=ONE_SEGMENT, **checkpoint):
    outer, _ = log_with_checkpoint(config, **checkpoint)
    inner(outer).flip_bit(LOG_FILE, 60, 2)
    return outer


def test_the_damaged_segments_are_kept():
    outer = damaged()
    before = inner(outer).read(LOG_FILE)
    ReplicatedLog(inner(outer), ONE_SEGMENT, 0)
    assert inner(outer).read(f"{LOG_FILE}{DAMAGED_SUFFIX}") == before
    assert not inner(outer).exists(LOG_FILE)


def test_a_start_that_crashed_after_the_copy_is_repeated():
    outer = damaged()
    copied = copy_disk(outer, 1)
    ReplicatedLog(inner(copied), ONE_SEGMENT, 0)
    name = f"{CHECKPOINT:020d}.log"
    inner(outer).write_atomic(name, inner(copied).read(name))
    log = ReplicatedLog(inner(outer), ONE_SEGMENT, 0)
    assert (log.start_offset, log.end_offset, log.bounds.lost) == (CHECKPOINT, END, False)
    assert not inner(outer).exists(LOG_FILE)


class Crash(Exception):
    pass


class CrashingDirectory(MemoryDirectory):
    """Fails the call of this number that changes a name, and all that follow."""

    left = 0

    def _count(self):
        if self.left <= 0:
            raise Crash
        self.left -= 1

    def remove(self, name):
        self._count()
        super().remove(name)

    def rename(self, old, new):
        self._count()
        super().rename(old, new)

    def fsync(self):
        self._count()
        super().fsync()


def with_indexes(outer):
    """Recovery makes the indexes anew, so their content is of no account."""
    directory = inner(outer)
    for base in segment_bases(directory):
        for suffix in (".index", ".timeindex", ".txnindex"):
            name = f"{base:020d}{suffix}"
            if not directory.exists(name):
                directory.open(name, create=True).close()
    directory.fsync()
    return outer


def test_a_start_behind_damage_takes_the_indexes_along():
    """An index without its log tells that a segment is gone: the log would not open."""
    outer = with_indexes(damaged())
    log = ReplicatedLog(inner(outer), ONE_SEGMENT, 0)
    assert (log.start_offset, log.end_offset, log.bounds.lost) == (CHECKPOINT, END, False)
    zeros = [name for name in inner(outer).list() if name.startswith("0" * 20)]
    assert [name for name in zeros if "checkpoint" not in name] == [LOG_FILE + DAMAGED_SUFFIX]


@pytest.mark.parametrize("config", [ONE_SEGMENT, MANY_SEGMENTS], ids=["one segment", "many"])
def test_a_start_behind_damage_may_crash_between_any_two_changes_of_names(config, quiet_logs):
    lost = []
    for left in range(40):
        for seed in range(8):
            outer = with_indexes(copy_disk(damaged(config), seed))
            directory = inner(outer)
            directory.__class__ = CrashingDirectory
            directory.left = left
            with contextlib.suppress(Crash):
                ReplicatedLog(directory, config, 0)
            log = ReplicatedLog(inner(outer.after_crash()), config, 0)
            found = (log.start_offset, log.end_offset, log.bounds.lost)
            if found != (CHECKPOINT, END, False):
                lost.append((left, seed, found))
    assert not lost


def test_where_nothing_follows_the_checkpoint_the_log_restarts_there():
    log = ReplicatedLog(inner(damaged(at=END)), ONE_SEGMENT, 0)
    assert (log.start_offset, log.end_offset, log.bounds.lost) == (END, END, False)


@pytest.mark.parametrize("config", [ONE_SEGMENT, MANY_SEGMENTS], ids=["within", "at its start"])
def test_records_of_an_older_lineage_are_not_kept_behind_a_checkpoint(config):
    """A fetched checkpoint may be frozen while the log still holds other records there."""
    outer, _ = log_with_checkpoint(config, at=6, epoch=7)
    directory = inner(outer)
    assert (6 in segment_bases(directory)) == (config is MANY_SEGMENTS)
    directory.flip_bit(LOG_FILE, 60, 2)
    log = ReplicatedLog(directory, config, 0)
    assert (log.start_offset, log.end_offset) == (6, 6)


def test_damage_behind_the_checkpoint_still_ends_the_log_and_is_a_lost_tail():
    outer, _ = log_with_checkpoint(ONE_SEGMENT)
    log = ReplicatedLog(inner(copy_disk(outer, 1)), ONE_SEGMENT, 0)
    inner(outer).flip_bit(LOG_FILE, batch_positions(log)[CHECKPOINT + 2] + 60, 2)
    log = ReplicatedLog(inner(outer), ONE_SEGMENT, 0)
    assert (log.start_offset, log.end_offset, log.bounds.lost) == (0, CHECKPOINT + 2, True)


# --- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize("voters", [1, 3])
def test_a_voter_whose_damage_was_healed_starts_again_with_everything(voters, end):
    async def scenario():
        nodes = RaftNodes(voters=voters)
        await nodes.start_all(*range(1, voters + 1))
        leader = await nodes.elected()
        hurt = leader.node_id
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        directory = nodes.directories[hurt].subdirectory("__cluster_metadata-0")
        position = batch_positions(leader._log)[leader.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + 60, 2)
        await nodes.start(11)  # fetches it, and doubts it
        await nodes.until(lambda: leader.metrics()["own-log-damages-total"] == 1, "damage")
        await nodes.until(lambda: leader.metrics()["own-damage"] == "NONE", "a healed log")
        for number in range(5, 8):
            other = await nodes.elected()
            other.append(other.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        assert leader.log_start_offset > 0
        await (nodes.stop(hurt) if end == "clean" else nodes.kill(hurt))
        again = await nodes.start(hurt)
        assert not again._log.bounds.lost
        await nodes.committed(values(0, 8))
        other = await nodes.elected()
        other.append(other.epoch, values(8, 1))
        await nodes.committed(values(0, 9))
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_follower_that_can_not_apply_a_damaged_batch_stops_and_its_next_start_fetches_it_anew():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        for number in range(5):
            leader.append(leader.epoch, values(number, 1))
            await nodes.committed(values(0, number + 1))
        hurt = next(n for n in (1, 2, 3) if n != leader.node_id)
        server = nodes.servers[hurt]
        directory = nodes.directories[hurt].subdirectory("__cluster_metadata-0")
        position = batch_positions(server._log)[server.log_end_offset - 3]
        directory.flip_bit(LOG_FILE, position + 60, 2)
        late = Recorder()
        server.register(late)
        with pytest.raises(FatalError) as caught:
            await server.fatal
        assert isinstance(caught.value.__cause__, CorruptMessageError)
        assert late.values == []
        await nodes.kill(hurt)
        again = await nodes.start(hurt)
        again.register(late := Recorder())
        await nodes.committed(values(0, 5))
        await nodes.until(lambda: late.values == values(0, 5), "all batches of the healed log")
        await nodes.stop_all()

    asyncio.run(scenario())
