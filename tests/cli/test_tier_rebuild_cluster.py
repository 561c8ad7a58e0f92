"""`tidemark tier rebuild` with real processes: a cluster is formatted anew beside an old bucket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.tiering.test_cluster import TIERED, VALUES, fill, local_start, settings
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer
from tidemark.types import uuid_to_text

runner = CliRunner()


def test_all_disks_are_lost_and_the_topic_comes_back_from_the_bucket(tmp_path: Path) -> None:
    overrides = settings(
        {
            "remote.log.storage.manager.class.name": "directory",
            "rsm.config.dir": str(tmp_path / "tier"),
        }
    )
    with LocalCluster(tmp_path / "old", controllers=1, brokers=1, overrides=overrides) as old:
        old.wait_ready()
        asyncio.run(fill(old.bootstrap_servers))
        asyncio.run(local_start(old.bootstrap_servers))
        topic_id = asyncio.run(_topic_id(old.bootstrap_servers))
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=1@127.0.0.1:1\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={tmp_path}/unused\n"
        + "".join(f"{key}={value}\n" for key, value in overrides.items())
    )
    with LocalCluster(tmp_path / "new", controllers=1, brokers=1, overrides=overrides) as new:
        new.wait_ready()
        planned = call(new.bootstrap_servers, config, "--dry-run")
        assert planned["topics"][0]["state"] == "planned"
        assert asyncio.run(_topics(new.bootstrap_servers)) == []

        done = call(new.bootstrap_servers, config, "--topic-config", "segment.bytes=32768")
        (topic,) = done["topics"]
        (partition,) = topic["partitions"]
        end = partition["next_offset"]
        assert (topic["state"], partition["first_offset"]) == ("rebuilt", 0)
        assert topic["topic_id"] == uuid_to_text(topic_id)
        assert end > len(VALUES) // 2
        assert asyncio.run(_topic_id(new.bootstrap_servers)) == topic_id
        again = call(new.bootstrap_servers, config)
        assert again["topics"][0]["partitions"][0]["next_offset"] == end

        values = asyncio.run(_read_and_continue(new.bootstrap_servers, end))
        assert values == [*VALUES[:end], b"after"]


def call(bootstrap: str, config: Path, *arguments: str) -> Any:
    options = ["-c", str(config), "--bootstrap-server", bootstrap, "--json", "--timeout", "60"]
    result = runner.invoke(app, ["tier", "rebuild", *options, *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


async def _topics(bootstrap: str) -> list[str]:
    async with AsyncAdmin(bootstrap) as admin:
        return [topic.name for topic in await admin.list_topics()]


async def _topic_id(bootstrap: str) -> Any:
    async with AsyncAdmin(bootstrap) as admin:
        return (await admin.describe_topics([TIERED.topic]))[TIERED.topic].topic_id


async def _read_and_continue(bootstrap: str, end: int) -> list[bytes]:
    async with AsyncProducer(bootstrap) as producer:
        written = await producer.send(TIERED.topic, b"after", partition=0)
        assert written.offset == end
    found: list[bytes] = []
    async with AsyncConsumer(bootstrap) as consumer, asyncio.timeout(45):
        consumer.assign([TIERED])
        consumer.seek(TIERED, 0)
        while len(found) <= end:
            found += [bytes(record.value or b"") for record in await consumer.poll(1000)]
    return found
