"""RaftServer as a whole: real tasks, threads and, in some tests, real gRPC; memory disks that lose
unsynced data.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

import pytest

from commitlog.disk.files import storage_error
from quorum.raft import messages as m
from snapshot import SnapshotId
from tests.quorum.replica.servers import CLUSTER_ID, RaftNodes
from tidemark.errors import ErrorCode, FatalError, NotControllerError, RecordListTooLargeError


def values(first: int, count: int) -> list[bytes]:
    return [b"value-%d" % n for n in range(first, first + count)]


@pytest.mark.parametrize("grpc", [False, True], ids=["memory", "grpc"])
def test_three_voters_and_an_observer_elect_replicate_lose_the_leader_and_go_on(grpc):
    async def scenario():
        nodes = RaftNodes(grpc=grpc)
        await nodes.start_all(1, 2, 3, 10)
        leader = await nodes.elected()
        assert leader.append(leader.epoch, values(0, 10)) == leader.log_end_offset - 1
        await nodes.committed(values(0, 10))
        info = leader.describe()
        assert info.leader_id == leader.node_id
        assert [replica.replica_id for replica in info.voters] == [1, 2, 3]
        assert [replica.replica_id for replica in info.observers] == [10]
        epoch, lost = leader.epoch, leader.node_id
        await nodes.kill(lost)
        with pytest.raises(NotControllerError):
            leader.append(epoch, [b"too late"])
        successor = await nodes.elected()
        assert successor.epoch > epoch
        successor.append(successor.epoch, values(10, 5))
        await nodes.committed(values(0, 15))
        assert nodes.servers[10].leader_endpoint() == nodes.endpoints[successor.node_id]
        await nodes.start(lost)
        await nodes.committed(values(0, 15))
        await nodes.stop_all()

    asyncio.run(scenario())


@pytest.mark.parametrize("grpc", [False, True], ids=["memory", "grpc"])
def test_a_lagging_voter_and_a_new_observer_fetch_a_snapshot(grpc):
    async def scenario():
        nodes = RaftNodes(
            grpc=grpc,
            settings={
                "metadata.log.segment.bytes": "1024",
                "metadata.max.retention.bytes": "1",
                "controller.quorum.fetch.snapshot.max.bytes": "500",
            },
        )
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        lagging = next(n for n in (1, 2, 3) if n != leader.node_id)
        await nodes.kill(lagging)
        written = []
        for round_number in range(2):
            batch = values(100 * round_number, 100)
            leader.append(leader.epoch, batch)
            written += batch
            await nodes.committed(written)
            for node_id, server in nodes.servers.items():
                state = list(nodes.recorders[node_id].values)
                await server.create_snapshot(nodes.recorders[node_id].next_offset, state)
        await nodes.until(lambda: leader.log_start_offset > 0, "a cleaned log")
        await nodes.start(lagging)
        await nodes.start(11)
        leader.append(leader.epoch, [b"after"])
        await nodes.committed([*written, b"after"])
        for node_id in (lagging, 11):
            assert nodes.recorders[node_id].snapshots_loaded == 1
            assert nodes.servers[node_id].log_start_offset == leader.log_start_offset
        await nodes.stop_all()

    asyncio.run(scenario())


def test_all_restart_and_nothing_acknowledged_is_missing():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        epoch = leader.epoch
        leader.append(epoch, values(0, 20))
        await nodes.committed(values(0, 20), on=[leader.node_id])
        for node_id in (1, 2, 3):
            await nodes.kill(node_id)
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        assert leader.epoch > epoch
        await nodes.committed(values(0, 20))
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_leader_that_shuts_down_tells_the_others():
    async def scenario():
        # With a fetch timeout of a minute only EndQuorumEpoch can cause an election in time.
        nodes = RaftNodes(settings={"controller.quorum.fetch.timeout.ms": "60000"})
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        leader.append(leader.epoch, values(0, 3))
        await nodes.committed(values(0, 3))
        await nodes.stop(leader.node_id)
        successor = await nodes.elected()
        assert successor is not leader
        await nodes.stop_all()

    asyncio.run(scenario())


def test_resign_gives_the_leadership_up():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        epoch = leader.epoch
        leader.resign(epoch)
        await nodes.until(lambda: not leader.leader_and_epoch.is_leader(leader.node_id), "resigned")
        with pytest.raises(NotControllerError):
            leader.append(epoch, [b"x"])
        assert (await nodes.elected()).epoch > epoch
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_sole_voter_leads_and_commits_alone():
    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        leader = await nodes.elected()
        leader.append(leader.epoch, values(0, 3))
        await nodes.committed(values(0, 3))
        await nodes.stop(1)
        await nodes.start(1)
        again = await nodes.elected()
        assert again.epoch > leader.epoch
        await nodes.committed(values(0, 3))
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_failed_fsync_stops_the_replica_for_good():
    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        leader = await nodes.elected()
        nodes.directories[1].disk.failing_fsyncs.append("*.log")
        leader.append(leader.epoch, [b"never durable"])
        with pytest.raises(FatalError, match="fsync"):
            async with asyncio.timeout(10):
                await leader.fatal
        assert nodes.recorders[1].values == []
        with pytest.raises(NotControllerError):
            leader.append(leader.epoch, [b"no more"])
        await leader._stop()

    asyncio.run(scenario())


def test_a_node_of_another_cluster_is_told_so_and_changes_nothing():
    async def scenario():
        nodes = RaftNodes(grpc=True)
        await nodes.start_all(1, 2)
        await nodes.start(3, cluster_id="another-cluster")
        leader = await nodes.elected()
        assert leader.node_id in (1, 2)
        stranger = nodes.servers[3]
        answer = await leader.handle(
            m.FetchRequest("another-cluster", stranger._replica.key, 0, 0, 0, None, 0, 1)
        )
        assert answer.header.error == ErrorCode.INCONSISTENT_CLUSTER_ID
        leader.append(leader.epoch, values(0, 3))
        await nodes.committed(values(0, 3), on=[1, 2])
        assert nodes.recorders[3].values == []
        assert CLUSTER_ID != "another-cluster"
        await nodes.stop_all()

    asyncio.run(scenario())


def test_a_batch_over_8_mib_is_refused_and_leaves_no_trace():
    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        leader = await nodes.elected()
        end_offset = leader.log_end_offset
        with pytest.raises(RecordListTooLargeError):
            leader.append(leader.epoch, [b"x" * (9 << 20)])
        assert leader.log_end_offset == end_offset
        leader.append(leader.epoch, [b"small"])
        await nodes.committed([b"small"])
        await nodes.stop_all()

    asyncio.run(scenario())


def failed_cleaning(number: int) -> Callable[[int, SnapshotId | None], bool]:
    def clean(now_ms: int, begin_at: SnapshotId | None) -> bool:
        raise storage_error("remove", "a checkpoint", OSError(number, os.strerror(number)))

    return clean


def test_a_full_disk_ends_a_cleaning_and_not_the_node_any_other_failure_does():
    async def scenario():
        nodes = RaftNodes(voters=1)
        await nodes.start(1)
        server = await nodes.elected()
        server.append(server.epoch, values(0, 5))
        await nodes.committed(values(0, 5))
        server._log.clean = failed_cleaning(errno.ENOSPC)  # type: ignore[method-assign]
        await server.create_snapshot(nodes.recorders[1].next_offset, values(0, 5))
        server.append(server.epoch, values(5, 5))
        await nodes.committed(values(0, 10))
        assert not server.fatal.done()
        server._log.clean = failed_cleaning(errno.EIO)  # type: ignore[method-assign]
        await server.create_snapshot(nodes.recorders[1].next_offset, values(0, 10))
        with pytest.raises(FatalError, match="can not remove a checkpoint"):
            await server.fatal
        await nodes.kill(1)

    asyncio.run(scenario())


def test_a_fetched_checkpoint_that_can_not_be_kept_stops_the_node():
    async def scenario():
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        server = next(s for s in nodes.servers.values() if s is not leader)

        def refuse(snapshot_id):
            raise storage_error("rename", snapshot_id.name, OSError(errno.EROFS, "read-only"))

        server._log.freeze_fetched_snapshot = refuse  # type: ignore[method-assign]
        await server._install(SnapshotId(99, 1))
        with pytest.raises(FatalError, match="can not rename"):
            await server.fatal
        await nodes.kill(server.node_id)
        await nodes.stop_all()

    asyncio.run(scenario())
