"""No message of a peer ends a process or poisons the epoch: every call of Raft, forged."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc.aio
import pytest

from quorum.raft.bounds import EPOCHS_AHEAD_MAX
from quorum.raft.roles import Leader
from tests.quorum.replica.hostile import REQUESTS, Forger, HostileCluster
from tests.quorum.replica.servers import CLUSTER_ID, RaftNodes
from tidemark.errors import NotControllerError
from tidemark.v1 import raft_pb2

ASK_NOTHING_OF_THE_REPLICA = {"DescribeQuorum"}


def run(seed: int, *, forged: int, damaged: float = 0.0) -> HostileCluster:
    """Runs a quorum among forged messages, and then without any until it commits a record."""
    cluster = HostileCluster(seed)
    cluster.append(cluster.run_until_leader(), b"k=1")
    cluster.run_until_equal()
    first = cluster.epoch
    cluster.damaged = damaged
    for number in range(forged):
        cluster.forge_request()
        cluster.run_for(cluster.forger.rng.randrange(10))
        for node in cluster.nodes.values():
            node.propose([b"k=%d" % number])
    cluster.damaged = 0.0
    assert all(node.alive for node in cluster.nodes.values())
    assert cluster.epoch - first < EPOCHS_AHEAD_MAX, "no message has carried the epoch away"

    def committed() -> bool:
        for node in cluster.nodes.values():
            role, watermark = node.replica.role, node.replica.high_watermark
            if isinstance(role, Leader) and (watermark or 0) > role.epoch_start_offset:
                return True
        return False

    cluster.run_until(committed, limit_ms=60_000)
    return cluster


def test_every_call_that_reaches_the_replica_is_forged():
    calls = {method.name for method in raft_pb2.DESCRIPTOR.services_by_name["Raft"].methods}
    assert set(REQUESTS) == calls - ASK_NOTHING_OF_THE_REPLICA


@pytest.mark.parametrize("seed", range(12))
def test_no_forged_request_ends_a_process_or_carries_the_epoch_away(seed):
    cluster = run(seed, forged=400)
    assert cluster.refusals["INVALID_REQUEST"] > 50


@pytest.mark.parametrize("seed", range(12))
def test_no_damaged_answer_ends_a_process_or_carries_the_epoch_away(seed):
    cluster = run(seed, forged=200, damaged=0.3)
    assert sum(n.replica.remote_faults for n in cluster.nodes.values()) > 10


async def send(channel: grpc.aio.Channel, name: str, payload: bytes) -> str:
    """Sends bytes to a call of the service Raft; returns the status of the call."""
    path = f"/tidemark.v1.Raft/{name}"
    try:
        if name == "FetchStream":
            stream = channel.stream_stream(path, None, None)(timeout=30)
            await stream.write(payload)
            answer = await stream.read()
            stream.cancel()
        else:
            answer = await channel.unary_unary(path, None, None)(payload, timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK" if isinstance(answer, bytes) else "ended"


def test_a_listener_answers_forged_bytes_and_the_quorum_commits_afterwards():
    statuses: Counter[str] = Counter()

    async def main() -> None:
        forger = Forger(11, CLUSTER_ID)
        nodes = RaftNodes(grpc=True)
        await nodes.start_all(1, 2, 3)
        first = (await nodes.elected()).epoch
        for node_id, endpoint in nodes.endpoints.items():
            async with grpc.aio.insecure_channel(endpoint.address) as channel:
                for _ in range(80):
                    name, message = forger.request(nodes.servers[node_id].epoch)
                    payload = message.SerializeToString()
                    if forger.rng.random() < 0.2:
                        payload = forger.rng.randbytes(forger.rng.randrange(40))
                    statuses[await send(channel, name, payload)] += 1
        for server in nodes.servers.values():
            assert not server.fatal.done()
            assert server.epoch - first < EPOCHS_AHEAD_MAX

        async def committed() -> bool:
            leader = await nodes.elected()
            try:
                leader.append(leader.epoch, [b"after"])
            except NotControllerError:
                return False
            await nodes.until(
                lambda: (
                    b"after" in nodes.recorders[leader.node_id].values
                    or nodes.leader() is not leader
                ),
                "the record is committed, or the leadership lost",
            )
            return b"after" in nodes.recorders[leader.node_id].values

        while not await committed():  # noqa: ASYNC110 - the leader may have lost its epoch
            await asyncio.sleep(0.05)
        await nodes.stop_all()

    asyncio.run(main())
    assert statuses["OK"] > 150
    assert set(statuses) <= {"OK", "UNKNOWN", "INTERNAL"}, "bytes that are no message"
