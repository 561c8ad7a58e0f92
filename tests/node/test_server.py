"""A real node in one process: real sockets on loopback, real files, controller and broker
together.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.runtime.storage import format_storage
from node.server import Server, run
from tests.node.cluster import batch, values_of
from tests.node.fakes import CLUSTER_ID
from tidemark import wire
from tidemark.config import ServerConfig, parse_server_config
from tidemark.errors import ErrorCode, StorageError
from tidemark.types import Endpoint, TopicPartition
from tidemark.v1 import admin_pb2, admin_pb2_grpc, common_pb2, log_pb2, log_pb2_grpc


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def combined_config(tmp_path: Path, **settings: str) -> ServerConfig:
    broker, controller = free_port(), free_port()
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": str(tmp_path / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    return parse_server_config(
        values | {key.replace("_", "."): value for key, value in settings.items()}
    )


class Client:
    """Raw calls to a node."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.log = log_pb2_grpc.LogStub(channel)
        self.admin = admin_pb2_grpc.AdminStub(channel)
        self._produce = channel.unary_unary(
            wire.PRODUCE,
            request_serializer=wire.encode_produce_request,
            response_deserializer=log_pb2.ProduceResponse.FromString,
        )

    async def create(self, topic: str, **configs: str) -> None:
        request = admin_pb2.CreateTopicsRequest(timeout_ms=10_000)
        topics = request.topics.add(name=topic, num_partitions=1, replication_factor=1)
        topics.configs.update({key.replace("_", "."): value for key, value in configs.items()})
        answer = await self.admin.CreateTopics(request)
        assert answer.topics[0].error_code == ErrorCode.NONE, answer
        await self.until_led(topic)

    async def until_led(self, topic: str) -> None:
        """Waits as clients do, until the node leads the topic's partition."""
        while True:
            (found,) = (await self.log.Metadata(log_pb2.MetadataRequest(topics=[topic]))).topics
            if not found.error_code and not any(p.error_code for p in found.partitions):
                return
            await asyncio.sleep(0.01)

    async def produce(self, topic: str, raw: bytes, acks: int = -1) -> log_pb2.ProduceResponse:
        data = wire.PartitionProduceData(topic, 0, raw)
        answer = await self._produce(wire.ProduceRequest(acks, 5_000, [data]))
        assert isinstance(answer, log_pb2.ProduceResponse)
        return answer

    def fetch_request(self, topic: str, **fields: object) -> log_pb2.FetchRequest:
        request = log_pb2.FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=1 << 20, **fields)
        request.partitions.add(
            topic=topic,
            partition=0,
            current_leader_epoch=-1,
            last_fetched_epoch=-1,
            partition_max_bytes=1 << 20,
        )
        return request


def serve(config: ServerConfig, test: Callable[[Server, Client], Awaitable[None]]) -> None:
    """Runs `test` against a started and ready server, and stops it in order."""

    async def main() -> None:
        server = Server(config)
        await server.start()
        try:
            await server.wait_until_ready()
            address = next(iter(config.broker_listeners().values())).address
            async with grpc.aio.insecure_channel(address, wire.CHANNEL_OPTIONS) as channel:
                await test(server, Client(channel))
        finally:
            await server.stop()

    asyncio.run(main())


def test_a_combined_node_takes_and_gives_records_and_survives_a_restart(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def first(server: Server, client: Client) -> None:
        await client.create("flights")
        answer = (await client.produce("flights", batch("a", "b"))).responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)

    async def second(server: Server, client: Client) -> None:
        answer = await client.log.Fetch(client.fetch_request("flights"))
        assert values_of(answer.responses[0].records) == ["a", "b"]
        again = (await client.produce("flights", batch("c"), acks=1)).responses[0]
        assert again.base_offset == 2

    serve(config, first)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    serve(config, second)


def test_altered_broker_settings_reach_a_running_and_a_restarted_node(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)
    altered = {
        "log.cleaner.threads": "3",
        "replica.alter.log.dirs.io.max.bytes.per.second": "123456",
        "log.retention.ms": "77777",
    }

    async def reached(server: Server) -> None:
        broker = server.broker
        assert broker is not None
        for _ in range(1_000):
            if broker._mover._pace.bytes_per_second == 123_456:
                break
            await asyncio.sleep(0.01)
        assert broker._background._cleaners.running == 3
        hosted = broker.partitions.find(TopicPartition("flights", 0))
        assert hosted is not None
        assert (hosted.config.retention_ms, hosted.config.segment_ms) == (77_777, 55_555)

    async def first(server: Server, client: Client) -> None:
        await client.create("flights", segment_ms="55555")
        request = admin_pb2.IncrementalAlterConfigsRequest(timeout_ms=10_000)
        resource = request.resources.add()
        resource.resource.resource_type = 4
        for name, value in altered.items():
            resource.ops.add(name=name, value=value)
        answer = await client.admin.IncrementalAlterConfigs(request)
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        await reached(server)

    async def second(server: Server, client: Client) -> None:
        await reached(server)

    serve(config, first)
    serve(config, second)


def test_plain_records_go_in_and_come_out(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        await client.create("flights")
        request = log_pb2.ProduceRequest(acks=-1, timeout_ms=5_000)
        data = request.partition_data.add(topic="flights", index=0)
        data.plain_records.add(key=b"N1", value=b"x", timestamp_ms=1_000).headers.add(key="h")
        data.plain_records.add(value=b"")
        data.plain_records.add(key=b"N2", timestamp_ms=1_000)
        produced = await client.log.Produce(request)
        assert produced.responses[0].error_code == ErrorCode.NONE
        fetched = await client.log.Fetch(client.fetch_request("flights", plain_records=True))
        one, two, three = fetched.responses[0].plain_records
        header = common_pb2.Header(key="h")
        assert one == common_pb2.Record(
            offset=0, timestamp_ms=1_000, key=b"N1", value=b"x", headers=[header]
        )
        assert two.HasField("value") and not two.HasField("key") and two.timestamp_ms > 1_000
        assert three.key == b"N2" and not three.HasField("value")
        assert not fetched.responses[0].records

    serve(config, test)


def test_metadata_health_and_producer_ids_are_answered(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        await client.create("flights", segment_bytes="1048576")
        metadata = await client.log.Metadata(log_pb2.MetadataRequest(topics=["flights", "nobody"]))
        assert [b.node_id for b in metadata.brokers] == [1]
        assert metadata.cluster_id == CLUSTER_ID
        assert metadata.controller_id == 1
        codes = [topic.error_code for topic in metadata.topics]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        ids = [await client.log.InitProducerId(log_pb2.InitProducerIdRequest()) for _ in "ab"]
        assert len({answer.producer_id for answer in ids}) == 2
        refused = await client.log.InitProducerId(
            log_pb2.InitProducerIdRequest(transactional_id="t")
        )
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "it has 3 replicas"
        health = await health_pb2_grpc.HealthStub(client.channel).Check(
            health_pb2.HealthCheckRequest(service="tidemark.v1.Log")
        )
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        dirs = await client.admin.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest())
        assert [p.topic for p in dirs.results[0].partitions] == ["flights"]

    serve(config, test)


def test_a_malformed_produce_is_an_invalid_argument(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        call = client.channel.unary_unary(wire.PRODUCE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    serve(config, test)


def test_a_large_request_is_refused_unread_and_an_idle_connection_is_closed(tmp_path: Path) -> None:
    config = combined_config(
        tmp_path, socket_request_max_bytes="1048576", connections_max_idle_ms="1000"
    )
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        call = client.channel.unary_unary(wire.PRODUCE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes((1 << 20) + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max (1048577 vs. 1048576)" in (caught.value.details() or "")
        ready = grpc.ChannelConnectivity.READY
        assert client.channel.get_state() is ready
        await asyncio.wait_for(client.channel.wait_for_state_change(ready), 30)
        await client.create("flights")  # connects anew

    serve(config, test)


def test_a_connection_too_many_is_closed_and_one_that_ends_makes_room(tmp_path: Path) -> None:
    config = combined_config(tmp_path, max_connections="1")
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        await client.create("flights")
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = next(iter(config.broker_listeners().values())).address
        other = grpc.aio.insecure_channel(address, options=options)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await other.unary_unary(wire.PRODUCE)(b"")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await client.channel.close()
        await other.unary_unary(wire.PRODUCE)(b"", wait_for_ready=True, timeout=30)
        await other.close()

    serve(config, test)


def test_a_second_process_on_the_directory_is_refused(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def test(server: Server, client: Client) -> None:
        with pytest.raises(StorageError):
            await Server(config).start()

    serve(config, test)


def test_the_console_is_served_until_the_node_stops(tmp_path: Path) -> None:
    config = combined_config(tmp_path, console_listener="127.0.0.1:0")
    format_storage(config, CLUSTER_ID)
    bound: list[Endpoint] = []

    async def ask(path: str) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(*bound[0])
        writer.write(f"GET /api/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return found

    async def test(server: Server, client: Client) -> None:
        assert server.console_endpoint is not None
        bound.append(server.console_endpoint)
        await client.create("flights")
        await client.produce("flights", batch("a", "b"))
        found = await ask("records?topic=flights&limit=1")
        assert [r["value"]["text"] for r in found["records"]] == ["b"]
        (seen,) = [c for c in (await ask("quorum"))["timeline"]["changes"] if c["leader"]]
        assert (seen["leader"], seen["voters"]) == (1, [1])

    serve(config, test)
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(ask("overview"))


def test_a_port_of_the_console_in_use_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        config = combined_config(tmp_path, console_listener=f"127.0.0.1:{holder.getsockname()[1]}")
        format_storage(config, CLUSTER_ID)
        assert run(config) == 1
    assert "console.listener: can not listen on 127.0.0.1:" in capsys.readouterr().err


def test_a_node_that_can_not_start_exits_with_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = combined_config(tmp_path)
    assert run(config) == 1
    assert "tidemark storage format" in capsys.readouterr().err


def test_a_port_in_use_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)
    endpoint: Endpoint = next(iter(config.broker_listeners().values()))
    with socket.socket() as holder:
        holder.bind((endpoint.host, endpoint.port))
        holder.listen()
        assert run(config) == 1
    assert f"can not listen on {endpoint.address}" in capsys.readouterr().err
