"""Three real controllers on loopback: forwarding, takeover, restart, retries of the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from quorum.services.controller_client import FORWARDED, ControllerClient
from tests.quorum.controller.cluster import (
    RealNode,
    active,
    broker_in_service,
    eventually,
    free_ports,
    leader_of,
    miss_the_leader,
    real_controllers,
)
from tidemark.errors import BrokerNotAvailableError, InvalidRequestError, RequestTimedOutError
from tidemark.types import Endpoint
from tidemark.v1 import admin_pb2, admin_pb2_grpc, controller_pb2, controller_pb2_grpc, raft_pb2


def creation(name: str, partitions: int = 6) -> admin_pb2.CreateTopicsRequest:
    request = admin_pb2.CreateTopicsRequest(timeout_ms=20_000)
    request.topics.add(name=name, num_partitions=partitions, replication_factor=3)
    return request


async def admin_call(node: RealNode, method: str, request: Any, **options: Any) -> Any:
    """Calls this very node, as an administrator would."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        return await getattr(stub, method)(request, timeout=25, **options)


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_a_topic_made_through_a_follower_survives_the_active_controller(
    tmp_path: Path, end: str
) -> None:
    async def main() -> None:
        async with real_controllers(tmp_path) as nodes:
            first = await active(nodes)
            client = ControllerClient(leader_of(nodes))
            for broker_id in (11, 12, 13):
                await broker_in_service(client, broker_id)
            follower = next(n for n in nodes.values() if n is not first)
            answer = await admin_call(follower, "CreateTopics", creation("flights"))
            assert [t.error_code for t in answer.topics] == [0]

            await getattr(nodes.pop(first.node_id), end)()
            miss_the_leader(nodes)
            second = await active(nodes)
            assert second is not first
            other = next(n for n in nodes.values() if n is not second)
            answer = await admin_call(other, "CreateTopics", creation("more"))
            assert [t.error_code for t in answer.topics] == [0]
            again = await admin_call(other, "CreateTopics", creation("flights"))
            assert [t.error_code for t in again.topics] == [36]

            nodes[first.node_id] = first
            await first.start()
            await eventually(
                lambda: first.loader.image.topics.names() == ["flights", "more"],
                "the restarted controller catches up",
            )
            topic = first.loader.image.topics.get("flights")
            assert topic is not None and len(topic.partitions) == 6
            described = await admin_call(first, "DescribeTopics", admin_pb2.DescribeTopicsRequest())
            assert [t.name for t in described.topics] == ["flights", "more"]
            cluster = await admin_call(other, "DescribeCluster", admin_pb2.DescribeClusterRequest())
            assert [b.node_id for b in cluster.brokers] == [11, 12, 13]
            assert cluster.controller_id == second.node_id
            quorum = await admin_call(
                first, "DescribeMetadataQuorum", raft_pb2.DescribeQuorumRequest()
            )
            assert quorum.leader_id == second.node_id
            assert len(quorum.current_voters) == 3
            await client.close()

    asyncio.run(main())


def test_all_controllers_hold_the_same_bytes_and_a_snapshot_brings_them_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with real_controllers(tmp_path) as nodes:
            client = ControllerClient(leader_of(nodes))
            await active(nodes)
            for broker_id in (11, 12, 13):
                await broker_in_service(client, broker_id)
            for number in range(10):
                answer = await client.call("CreateTopics", creation(f"t{number}", 20), 20_000)
                assert answer.topics[0].error_code == 0
            await client.close()
            offset = max(node.loader.image.offset for node in nodes.values())
            for node in nodes.values():
                await node.loader.wait_for_offset(offset)
            images = [list(node.loader.image.values()) for node in nodes.values()]
            assert images[0] == images[1] == images[2]
            await eventually(
                lambda: all(node.loader.snapshots_written for node in nodes.values()),
                "every controller writes its own snapshots",
            )
            one = next(n for n in nodes.values() if not n.server.is_active)
            await one.stop()
            await one.start()
            assert list(one.path.rglob("*.checkpoint"))
            await one.loader.wait_for_offset(offset)
            assert list(one.loader.image.values()) == images[0]

    asyncio.run(main())


def test_a_controller_that_is_not_active_says_so_and_forwards_only_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with real_controllers(tmp_path) as nodes:
            first = await active(nodes)
            follower = next(n for n in nodes.values() if n is not first)
            request = controller_pb2.BrokerHeartbeatRequest(broker_id=1)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{follower.server.port}") as channel:
                call = channel.unary_unary(
                    "/tidemark.v1.Controller/BrokerHeartbeat",
                    request_serializer=controller_pb2.BrokerHeartbeatRequest.SerializeToString,
                    response_deserializer=controller_pb2.BrokerHeartbeatResponse.FromString,
                )
                assert (await call(request)).error_code == 41
            once_more = await admin_call(
                follower, "CreateTopics", creation("t"), metadata=(FORWARDED,)
            )
            assert once_more.error_code == 41
            dirs = await admin_call(first, "DescribeLogDirs", admin_pb2.DescribeLogDirsRequest())
            assert dirs.error_code == 35

    asyncio.run(main())


def test_the_client_gives_up_in_time_and_says_why() -> None:
    async def main() -> None:
        nobody = Endpoint("127.0.0.1", free_ports(1)[0])
        request = controller_pb2.BrokerHeartbeatRequest(broker_id=1)
        loop: Any = asyncio.get_running_loop()
        clock, ahead_s = loop.time, 0.0
        loop.time = lambda: clock() + ahead_s
        for known, reason in ((None, "no leader"), (nobody, "UNAVAILABLE")):
            asked: list[Endpoint | None] = []

            def leader(known: Endpoint | None = known, asked: Any = asked) -> Endpoint | None:
                nonlocal ahead_s
                asked.append(known)
                if len(asked) == 20:  # the time is up after some attempts, however fast they are
                    ahead_s += 60
                return known

            client = ControllerClient(leader, backoff_ms=1)
            with pytest.raises(RequestTimedOutError, match=reason):
                await client.call("BrokerHeartbeat", request, 60_000)
            assert len(asked) >= 20
            with pytest.raises(InvalidRequestError):
                await client.call("Nonsense", request, 300)
            await client.close()
            with pytest.raises(BrokerNotAvailableError):
                await client.call("BrokerHeartbeat", request, 300)

    asyncio.run(main())


def test_the_client_leaves_a_leader_that_is_silent_for_the_next() -> None:
    async def main() -> None:
        asked: list[str] = []
        moved = asyncio.Event()

        class Silent(controller_pb2_grpc.ControllerServicer):
            async def BrokerHeartbeat(self, request: Any, context: Any) -> Any:
                asked.append("silent")
                moved.set()
                await asyncio.Event().wait()

        class Next(controller_pb2_grpc.ControllerServicer):
            async def BrokerHeartbeat(self, request: Any, context: Any) -> Any:
                asked.append("next")
                return controller_pb2.BrokerHeartbeatResponse(is_caught_up=True)

        servers, endpoints = [], []
        for servicer in (Silent(), Next()):
            server = grpc.aio.server()
            controller_pb2_grpc.add_ControllerServicer_to_server(servicer, server)
            endpoints.append(Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0")))
            await server.start()
            servers.append(server)
        client = ControllerClient(lambda: endpoints[1 if moved.is_set() else 0])
        request = controller_pb2.BrokerHeartbeatRequest(broker_id=1)
        answer = await client.call("BrokerHeartbeat", request, 60_000)
        assert answer.is_caught_up
        assert asked == ["silent", "next"]
        await client.close()
        for server in servers:
            await server.stop(0)

    asyncio.run(main())
