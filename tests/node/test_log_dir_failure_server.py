"""A whole node with two log directories, in this process, over real files.

One directory is removed while the node runs, is missing at a start, and returns; then the last one
fails.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.disk.log_directory import LogDirectory
from node.runtime.storage import format_storage
from node.server import Server
from quorum.image import PartitionRegistration
from tests.node.cluster import batch, values_of
from tests.node.fakes import CLUSTER_ID
from tests.node.test_server import Client, combined_config, serve
from tidemark.config import ServerConfig
from tidemark.errors import ErrorCode, FatalError
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2


def two_directories(tmp_path: Path) -> ServerConfig:
    config = combined_config(
        tmp_path,
        log_dirs=f"{tmp_path}/a,{tmp_path}/b",
        metadata_log_dir=f"{tmp_path}/m",
        broker_heartbeat_interval_ms="300",
        broker_session_timeout_ms="1500",
    )
    format_storage(config, CLUSTER_ID)
    return config


def directory_of(server: Server, topic: str) -> LogDirectory:
    assert server.broker is not None
    found = server.broker._logs.directory_of(TopicPartition(topic, 0))
    assert found is not None
    return found


def pull_out(directory: LogDirectory) -> None:
    """Fails the disk in some thread."""
    thread = threading.Thread(target=directory.state.fail, args=("pulled out",))
    thread.start()
    thread.join()


async def codes(client: Client, *topics: str) -> list[int]:
    answers = [await client.produce(topic, batch("more")) for topic in topics]
    return [answer.responses[0].error_code for answer in answers]


def partition_of(server: Server, topic: str) -> PartitionRegistration:
    assert server.loader is not None
    found = server.loader.image.topics.get(topic)
    assert found is not None
    return found.partitions[0]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it does not come about")


async def errors_of_directories(client: Client) -> dict[str, tuple[int, str]]:
    answer = await client.admin.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest())
    return {r.log_dir[-1]: (r.error_code, r.error_message) for r in answer.results}


def test_a_directory_is_pulled_out_stays_away_and_comes_back(tmp_path: Path) -> None:
    config = two_directories(tmp_path)
    away = tmp_path / "away"

    async def running(server: Server, client: Client) -> None:
        await client.create("x", flush_messages="1")
        await client.create("y", flush_messages="1")
        assert await codes(client, "x", "y") == [0, 0]
        await until(
            lambda: all(partition_of(server, topic).directory_of(1) is not None for topic in "xy")
        )
        assert directory_of(server, "y").path[-1] == "b"
        pull_out(directory_of(server, "y"))
        await until(lambda: partition_of(server, "y").leader is None)
        y = partition_of(server, "y")
        assert (y.isr, y.elr, y.last_known_elr) == ((), (), (1,)), "it leads again when it is back"
        assert await codes(client, "x", "y") == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        assert await errors_of_directories(client) == {
            "a": (0, ""),
            "b": (ErrorCode.KAFKA_STORAGE_ERROR, "pulled out"),
        }

    async def without(server: Server, client: Client) -> None:
        assert await codes(client, "x", "y") == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        assert not (tmp_path / "b").exists()
        assert not (tmp_path / "a" / "y-0").exists()
        code, message = (await errors_of_directories(client))["b"]
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "not a directory" in message

    async def back(server: Server, client: Client) -> None:
        answer = await client.log.Fetch(client.fetch_request("y"))
        assert values_of(answer.responses[0].records) == ["more"]
        assert await codes(client, "x", "y") == [0, 0]
        assert await errors_of_directories(client) == {"a": (0, ""), "b": (0, "")}

    serve(config, running)
    (tmp_path / "b").rename(away)
    serve(config, without)
    away.rename(tmp_path / "b")
    serve(config, back)


def test_without_any_directory_the_process_stops(tmp_path: Path) -> None:
    config = two_directories(tmp_path)

    async def main() -> None:
        server = Server(config)
        await server.start()
        await server.wait_until_ready()
        assert server.broker is not None
        first, second = server.broker._logs.directories
        pull_out(first)
        await asyncio.sleep(0)
        assert not server.fatal.done()
        pull_out(second)
        with pytest.raises(FatalError, match=r"b is offline: pulled out \(no other one is left\)"):
            await server.fatal
        await server.stop(orderly=False)

    asyncio.run(main())
