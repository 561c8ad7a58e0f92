"""Voters in the log (KIP-853), on whole servers: added, removed, moved, with a new disk."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from quorum.raft import messages as m
from quorum.raft.voters import ReplicaKey
from quorum.replica.transport import GrpcTransport
from snapshot import FileSnapshotReader
from tests.quorum.replica.servers import CLUSTER_ID, RaftNodes, free_port
from tidemark.errors import ErrorCode
from tidemark.types import Endpoint

WAIT_MS = 20_000
RETRIABLE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)


def add(nodes, node_id, *, timeout_ms=WAIT_MS, key=None):
    return m.AddVoterRequest(
        CLUSTER_ID, key or nodes.key(node_id), nodes.endpoints[node_id], timeout_ms
    )


def remove(nodes, node_id, *, key=None):
    return m.RemoveVoterRequest(CLUSTER_ID, key or nodes.key(node_id), WAIT_MS)


async def change(nodes, request):
    """Sends a request to the current leader. Repeats it as a client does, while the leadership
    changes or a voter looks silent.
    """
    while True:
        leader = await nodes.elected()
        response = await leader.handle(request)
        busy = response.header.error == ErrorCode.REQUEST_TIMED_OUT and "try again" in (
            response.message
        )
        if response.header.error not in RETRIABLE and not busy:
            return response.header.error
        await asyncio.sleep(0.01)


def voter_ids(nodes, node_id):
    return nodes.servers[node_id]._replica.voters.ids


def run(scenario, **options):
    async def whole():
        nodes = RaftNodes(**options)
        try:
            await scenario(nodes)
        finally:
            await nodes.stop_all()

    asyncio.run(whole())


def test_a_standalone_controller_grows_to_three_voters_one_after_the_other():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        assert await change(nodes, add(nodes, 2)) == ErrorCode.NONE
        assert await change(nodes, add(nodes, 3)) == ErrorCode.NONE
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"a"])
        await nodes.committed([b"a"])
        assert {voter_ids(nodes, n) for n in (1, 2, 3)} == {(1, 2, 3)}
        await nodes.kill(1)  # the first voter is not special any more
        await nodes.until(
            lambda: nodes.leader() is not None and nodes.leader().node_id != 1, "another leader"
        )
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"b"])
        await nodes.committed([b"a", b"b"], on=[2, 3])

    run(scenario, initial=[1])


def test_the_voters_survive_a_restart_and_an_observer_learns_them():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        assert await change(nodes, add(nodes, 2)) == ErrorCode.NONE
        for node_id in (1, 2):
            await nodes.kill(node_id)
        await nodes.start_all(1, 2, 7)
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"a"])
        await nodes.committed([b"a"])
        assert voter_ids(nodes, 7) == (1, 2)
        assert not nodes.servers[7]._replica.state.is_voter

    run(scenario, initial=[1])


def test_a_leader_that_is_removed_resigns_after_the_commit_and_follows_on():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        first = await nodes.elected()
        first.append(first.epoch, [b"a"])
        await nodes.committed([b"a"])  # all voters fetch: the two that stay are healthy
        assert await change(nodes, remove(nodes, first.node_id)) == ErrorCode.NONE
        await nodes.until(
            lambda: nodes.leader() is not None and nodes.leader().node_id in voter_ids(nodes, 1),
            "a leader among the voters left",
        )
        second = await nodes.elected()
        assert second.node_id != first.node_id
        second.append(second.epoch, [b"b"])
        await nodes.committed([b"a", b"b"])  # the removed voter is an observer now
        assert first.node_id not in first._replica.voters.ids

    run(scenario, initial=[1, 2, 3])


def test_two_of_three_can_be_removed_but_not_the_last():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        others = [n for n in (1, 2, 3) if n != leader.node_id]
        for node_id in others:
            assert await change(nodes, remove(nodes, node_id)) == ErrorCode.NONE
        assert await change(nodes, remove(nodes, leader.node_id)) == ErrorCode.INVALID_REQUEST
        leader.append(leader.epoch, [b"alone"])
        await nodes.committed([b"alone"])

    run(scenario, initial=[1, 2, 3])


def test_what_can_not_be_changed_is_refused_by_name():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        other_disk = ReplicaKey(1, UUID(int=77))
        assert await change(nodes, add(nodes, 1)) == ErrorCode.DUPLICATE_VOTER
        assert await change(nodes, add(nodes, 1, key=other_disk)) == ErrorCode.DUPLICATE_VOTER
        assert await change(nodes, remove(nodes, 2)) == ErrorCode.VOTER_NOT_FOUND
        assert await change(nodes, remove(nodes, 1, key=other_disk)) == ErrorCode.VOTER_NOT_FOUND
        without_id = ReplicaKey(2)
        assert await change(nodes, add(nodes, 2, key=without_id)) == ErrorCode.INVALID_REQUEST
        not_its_disk = ReplicaKey(2, UUID(int=78))
        assert await change(nodes, add(nodes, 2, key=not_its_disk)) == ErrorCode.INVALID_REQUEST
        nobody = add(nodes, 3, timeout_ms=30)  # no server is there
        assert await change(nodes, nobody) == ErrorCode.REQUEST_TIMED_OUT
        assert await change(nodes, add(nodes, 2)) == ErrorCode.NONE

    run(scenario, initial=[1])


def test_one_change_at_a_time():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        leader = await nodes.elected()
        waiting = asyncio.create_task(leader.handle(add(nodes, 3)))  # 3 is not up yet
        await nodes.until(lambda: leader._replica.role.change is not None, "a change under way")
        second = await leader.handle(add(nodes, 2))
        assert second.header.error == ErrorCode.REQUEST_TIMED_OUT
        assert "another change" in second.message
        await nodes.start(3)
        assert (await waiting).header.error == ErrorCode.NONE
        assert await change(nodes, add(nodes, 2)) == ErrorCode.NONE
        assert voter_ids(nodes, leader.node_id) == (1, 2, 3)

    run(scenario, initial=[1])


def test_static_voters_can_not_be_changed():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        assert await change(nodes, remove(nodes, 2)) == ErrorCode.UNSUPPORTED_VERSION

    run(scenario)


def test_a_voter_with_a_new_disk_is_no_voter_until_it_is_added_again():
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        lost = next(n for n in (1, 2, 3) if n != leader.node_id)
        old_key = nodes.key(lost)
        await nodes.kill(lost)
        del nodes.directories[lost]
        new_key = ReplicaKey(lost, UUID(int=5000))
        nodes.key = lambda n, known=nodes.key: new_key if n == lost else known(n)
        nodes.initial = []  # formatted with --no-initial-controllers
        nodes.settings["controller.quorum.bootstrap.servers"] = leader.leader_endpoint().address
        await nodes.start(lost)
        leader.append(leader.epoch, [b"a"])
        await nodes.committed([b"a"])
        assert not nodes.servers[lost]._replica.state.is_voter
        assert await change(nodes, add(nodes, lost)) == ErrorCode.DUPLICATE_VOTER
        assert await change(nodes, remove(nodes, lost, key=old_key)) == ErrorCode.NONE
        assert await change(nodes, add(nodes, lost)) == ErrorCode.NONE
        await nodes.until(lambda: nodes.servers[lost]._replica.state.is_voter, "a voter again")

    run(scenario, initial=[1, 2, 3])


@pytest.mark.parametrize("leads", [True, False])
def test_a_voter_that_moved_tells_where_it_answers_now(leads):
    async def scenario(nodes):
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        moved = leader.node_id if leads else leader.node_id % 3 + 1
        await nodes.kill(moved)
        nodes.endpoints[moved] = Endpoint("127.0.0.1", 9100 + moved)
        await nodes.start(moved)
        if leads:
            other = await nodes.elected()
            other.resign(other.epoch)

        def all_know():
            known = {s._replica.voters.endpoint(moved) for s in nodes.servers.values()}
            return known == {nodes.endpoints[moved]}

        await nodes.until(all_know, "the new endpoint in every log")

    run(scenario, initial=[1, 2, 3])


def test_a_controller_joins_by_itself_where_that_is_switched_on():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        await nodes.until(lambda: voter_ids(nodes, 1) == (1, 2), "two voters")

    run(scenario, initial=[1], settings={"controller.quorum.auto.join.enable": "true"})


def test_checkpoints_carry_the_voters_of_their_end_over_to_who_comes_later():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        leader = await nodes.elected()
        leader.append(leader.epoch, [b"a"])
        await nodes.committed([b"a"])
        assert await change(nodes, add(nodes, 2)) == ErrorCode.NONE
        leader = await nodes.elected()
        last = leader.append(leader.epoch, [b"b"])
        await nodes.committed([b"a", b"b"])
        await leader.create_snapshot(last + 1, [b"a", b"b"])
        reader = leader._log.open_snapshot(leader.latest_snapshot)
        assert isinstance(reader, FileSnapshotReader)
        assert [type(message).__name__ for message in reader.quorum] == ["KRaftVersion", "Voters"]
        assert [v.voter_id for v in reader.quorum[1].voters] == [1, 2]
        await nodes.start(3)
        await nodes.committed([b"a", b"b"])
        assert nodes.recorders[3].snapshots_loaded == 1
        assert voter_ids(nodes, 3) == (1, 2)

    run(scenario, initial=[1])


def test_the_requests_travel_over_grpc():
    async def scenario(nodes):
        await nodes.start_all(1, 2)
        leader = await nodes.elected()
        transport = GrpcTransport()
        try:
            endpoint = nodes.endpoints[leader.node_id]
            done = await transport.call(endpoint, add(nodes, 2), WAIT_MS)
            assert done.header.error == ErrorCode.NONE
            again = await transport.call(endpoint, add(nodes, 2), WAIT_MS)
            assert again.header.error == ErrorCode.DUPLICATE_VOTER
            assert again.header.leader_id == leader.node_id
            moved = m.UpdateVoterRequest(
                CLUSTER_ID, leader.epoch + 9, nodes.key(2), Endpoint("127.0.0.1", free_port())
            )
            refused = await transport.call(endpoint, moved, WAIT_MS)
            assert refused.header.error == ErrorCode.UNKNOWN_LEADER_EPOCH
            nowhere = m.UpdateVoterRequest(CLUSTER_ID, 1, nodes.key(2), Endpoint("", 0))
            refused = await transport.call(endpoint, nowhere, WAIT_MS)
            assert refused.header.error == ErrorCode.INVALID_REQUEST
            assert await change(nodes, remove(nodes, 2)) == ErrorCode.NONE
        finally:
            await transport.close()

    run(scenario, initial=[1], grpc=True)
