"""Three real brokers and a real controller on loopback gRPC, in one process.

Covers replication, a controlled shutdown, a hard stop, and the return of both brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc.aio

from node.runtime.storage import format_storage
from node.server import Server
from tests.node.cluster import batch, values_of
from tests.node.fakes import CLUSTER_ID
from tests.node.test_server import Client, free_port
from tidemark import wire
from tidemark.config import ServerConfig, parse_server_config
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2


class Brokers:
    """Node 1 is controller and broker, 2 and 3 are brokers. They reach each other on the listener
    INTERNAL; `advertised` is what clients are told."""

    def __init__(self, tmp_path: Path, advertised: str = "") -> None:
        ports = {number: free_port() for number in range(7)}
        self.configs: dict[int, ServerConfig] = {}
        self.servers: dict[int, Server] = {}
        self.channels: dict[int, grpc.aio.Channel] = {}
        for node_id in (1, 2, 3):
            listeners = (
                f"PLAINTEXT://127.0.0.1:{ports[node_id]},INTERNAL://127.0.0.1:{ports[node_id + 3]}"
            )
            if node_id == 1:
                listeners += f",CONTROLLER://127.0.0.1:{ports[0]}"
            self.configs[node_id] = parse_server_config(
                {
                    "process.roles": "broker,controller" if node_id == 1 else "broker",
                    "node.id": str(node_id),
                    "log.dirs": str(tmp_path / str(node_id)),
                    "listeners": listeners,
                    "advertised.listeners": advertised,
                    "inter.broker.listener.name": "INTERNAL",
                    "controller.quorum.voters": f"1@127.0.0.1:{ports[0]}",
                    "broker.heartbeat.interval.ms": "100",
                    "broker.session.timeout.ms": "1000",
                    "replica.fetch.backoff.ms": "50",
                }
            )
            format_storage(self.configs[node_id], CLUSTER_ID)

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            server = self.servers[node_id] = Server(self.configs[node_id])
            await server.start()
        await asyncio.gather(*(self.servers[n].wait_until_ready() for n in node_ids))

    async def stop(self, *node_ids: int, orderly: bool = True) -> None:
        for node_id in node_ids:
            await self.servers.pop(node_id).stop(orderly=orderly)

    def client(self, node_id: int) -> Client:
        if node_id not in self.channels:
            address = next(iter(self.configs[node_id].broker_listeners().values())).address
            self.channels[node_id] = grpc.aio.insecure_channel(address, wire.CHANNEL_OPTIONS)
        return Client(self.channels[node_id])

    async def partition(self) -> admin_pb2.DescribeTopicsResponse.Partition:
        request = admin_pb2.DescribeTopicsRequest(topic_names=["flights"])
        answer = await self.client(1).admin.DescribeTopics(request)
        return answer.topics[0].partitions[0]

    async def until_isr_is(self, *members: int) -> int:
        """Waits for this ISR; returns the leader."""
        async with asyncio.timeout(30):
            while True:
                found = await self.partition()
                if set(found.isr) == set(members) and found.leader_id in members:
                    return found.leader_id
                await asyncio.sleep(0.02)

    async def produce(self, value: str) -> int:
        """Produces with acks=all to the current leader until it succeeds; returns the offset."""
        async with asyncio.timeout(30):
            while True:
                leader = (await self.partition()).leader_id
                if leader > 0:
                    # A broker that was stopped hard leads until its session expires.
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        response = await self.client(leader).produce("flights", batch(value))
                        if response.responses[0].error_code == ErrorCode.NONE:
                            return response.responses[0].base_offset
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close(None)
        await self.stop(*sorted(self.servers, reverse=True), orderly=False)


def test_three_brokers_replicate_and_survive_leaves_and_stops(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path, advertised="PLAINTEXT://127.0.0.1:1")  # nobody answers there
        try:
            await brokers.start(1, 2, 3)
            request = admin_pb2.CreateTopicsRequest(timeout_ms=10_000)
            topic = request.topics.add(name="flights", num_partitions=-1, replication_factor=-1)
            topic.assignments.add(partition_index=0, broker_ids=[2, 3, 1])
            topic.configs["min.insync.replicas"] = "2"
            created = await brokers.client(3).admin.CreateTopics(request)
            assert created.topics[0].error_code == ErrorCode.NONE, created

            assert await brokers.produce("all three") == 0
            assert await brokers.until_isr_is(1, 2, 3) == 2

            await brokers.stop(2)  # controlled: the leadership moves before it stops
            assert (await brokers.partition()).leader_id in (1, 3)
            assert await brokers.produce("without 2") == 1
            await brokers.start(2)
            await brokers.until_isr_is(1, 2, 3)

            leader = (await brokers.partition()).leader_id
            victim = leader if leader != 1 else 3
            await brokers.stop(victim, orderly=False)
            assert await brokers.produce("without another") == 2
            await brokers.start(victim)
            leader = await brokers.until_isr_is(1, 2, 3)
            fetched = await brokers.client(leader).log.Fetch(
                brokers.client(leader).fetch_request("flights")
            )
            expected = ["all three", "without 2", "without another"]
            assert values_of(fetched.responses[0].records) == expected
        finally:
            await brokers.close()

    asyncio.run(main())
