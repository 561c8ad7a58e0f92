"""`tidemark tier` on a real cluster whose tier is a directory: what is there, what is damaged, and
what nobody needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tiering.test_cluster import TIERED, fill, local_start, settings
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import Consumer
from tidemark.types import TopicPartition, random_uuid, uuid_to_text

runner = CliRunner()
OLD_S = 1_000_000_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier-commands")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[LocalCluster]:
    """A cluster with most of a topic in the tier only."""
    storage = {
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(place / "tier"),
    }
    overrides = settings(storage)
    with LocalCluster(place / "data", controllers=1, brokers=1, overrides=overrides) as cluster:
        cluster.wait_ready()
        asyncio.run(fill(cluster.bootstrap_servers))
        asyncio.run(local_start(cluster.bootstrap_servers))
        yield cluster


@pytest.fixture
def config(place: Path) -> Path:
    path = place / "server.properties"
    path.write_text(
        "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=1@127.0.0.1:1\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={place}/unused\n"
        f"remote.log.storage.manager.class.name=directory\nrsm.config.dir={place}/tier\n"
    )
    return path


def call(cluster: LocalCluster, *arguments: str, exit_code: int = 0) -> str:
    options = ["--bootstrap-server", cluster.bootstrap_servers]
    result = runner.invoke(app, ["tier", *arguments, *options])
    assert result.exit_code == exit_code, (arguments, result.output)
    return result.stdout


def ask(cluster: LocalCluster, *arguments: str, exit_code: int = 0) -> Any:
    return json.loads(call(cluster, *arguments, "--json", exit_code=exit_code))


def test_partitions_and_segments_in_the_tier_are_shown(cluster: LocalCluster, place: Path) -> None:
    (row,) = ask(cluster, "ls")
    logs = sorted((place / "tier").rglob("*.log"))
    assert (row["topic"], row["partition"], row["state"]) == (TIERED.topic, 0, "live")
    assert row["segments"] == len(logs) > 3
    assert row["bytes"] == sum(path.stat().st_size for path in logs)
    assert (row["log_start_offset"], row["first_offset"], row["unfinished"]) == (0, 0, 0)
    assert ask(cluster, "ls", "--topic", "other") == []

    segments = ask(cluster, "describe", TIERED.topic)
    assert segments == ask(cluster, "describe", f"{TIERED.topic}:0")
    starts = [one["start_offset"] for one in segments]
    assert starts == [int(path.name[:20]) for path in logs]
    assert segments[-1]["end_offset"] == row["highest_remote_offset"]
    assert {one["state"] for one in segments} == {"COPY_SEGMENT_FINISHED"}
    assert [one["size_bytes"] for one in segments] == [path.stat().st_size for path in logs]
    assert all(one["segment_id"] in path.name for one, path in zip(segments, logs, strict=True))

    table = call(cluster, "describe", TIERED.topic).splitlines()
    assert table[0].startswith("PARTITION\tSEGMENT") and len(table) == 1 + len(logs)
    assert "COPY_SEGMENT_FINISHED" in table[1]
    assert call(cluster, "ls").splitlines()[1].startswith(f"{TIERED.topic}\t0\t")
    call(cluster, "describe", f"{TIERED.topic}:7", exit_code=1)
    call(cluster, "describe", f"{TIERED.topic}:x", exit_code=1)


def test_a_damaged_or_missing_object_fails_the_check(
    cluster: LocalCluster, config: Path, place: Path
) -> None:
    verify = ("verify", "-c", str(config))
    sound = ask(cluster, *verify)
    logs = sorted((place / "tier").rglob("*.log"))
    assert sound == {"segments": len(logs), "findings": 0, "complete": True, "found": []}

    content = logs[1].read_bytes()
    logs[1].write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    away = logs[2].with_suffix(".sidecar").rename(place / "away")
    try:
        found = ask(cluster, *verify, exit_code=1)["found"]
        told = call(cluster, *verify, "--topic", TIERED.topic, exit_code=1)
        assert ask(cluster, *verify, "--topic", "other")["segments"] == 0
    finally:
        logs[1].write_bytes(content)
        away.rename(logs[2].with_suffix(".sidecar"))
    damaged = {one["path"].rpartition("/")[2] for one in found}
    assert damaged == {logs[1].name, logs[2].with_suffix(".sidecar").name}
    assert "the checksum does not agree" in told and "the tier has no" in told
    assert call(cluster, *verify).endswith("0 findings\n")


def test_only_what_no_metadata_names_is_collected(
    cluster: LocalCluster, config: Path, place: Path
) -> None:
    gc = ("gc", "-c", str(config))
    assert ask(cluster, *gc) == []
    directory = next((place / "tier").rglob("*.log")).parent
    log = min(directory.glob("*.log"))
    unknown = directory / f"{0:020d}-{uuid_to_text(random_uuid())}.log"
    foreign = place / "tier" / f"other-0-{uuid_to_text(random_uuid())}" / unknown.name
    stale, fresh = log.with_name(log.name + ".tmp"), directory / (unknown.name + ".tmp")
    note = directory / "note.txt"
    foreign.parent.mkdir()
    for path in (unknown, foreign, stale, fresh, note):
        path.write_bytes(b"x")
    for path in (unknown, foreign, stale, note, *directory.glob("*.log")):
        os.utime(path, (OLD_S, OLD_S))

    listed = {row["key"]: (row["kind"], row["deleted"]) for row in ask(cluster, *gc)}
    assert listed == {
        f"{directory.name}/{unknown.name}": ("UNRECORDED", False),
        f"{foreign.parent.name}/{foreign.name}": ("FOREIGN", False),
        f"{directory.name}/{stale.name}": ("UNFINISHED", False),
    }
    assert stale.exists()
    deleted = [row["key"] for row in ask(cluster, *gc, "--delete") if row["deleted"]]
    assert deleted == [f"{directory.name}/{stale.name}"]
    assert not stale.exists() and unknown.exists() and foreign.exists()
    assert "yes" in call(cluster, *gc, "--delete", "--unrecorded")
    assert not unknown.exists()
    assert foreign.exists() and fresh.exists() and note.exists() and log.exists()
    assert [row["kind"] for row in ask(cluster, *gc)] == ["FOREIGN"]
    assert ask(cluster, "verify", "-c", str(config))["findings"] == 0


def test_a_topic_leaves_its_tier_only_when_told_to_delete_it(
    cluster: LocalCluster, place: Path
) -> None:
    def alter(*settings: str) -> Any:
        options = [option for one in settings for option in ("--set", one)]
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        return runner.invoke(app, ["configs", "alter", "--topic", TIERED.topic, *options, *servers])

    refused = alter("remote.storage.enable=false")
    assert refused.exit_code == 1
    assert "remote.log.delete.on.disable=true" in refused.output
    told = alter("remote.storage.enable=false", "remote.log.delete.on.disable=true")
    assert told.exit_code == 0, told.output
    parent = next(p for p in (place / "tier").iterdir() if p.name.startswith(TIERED.topic))
    deadline = time.monotonic() + 30
    while [*parent.glob("*.log"), *parent.glob("*.sidecar")]:
        assert time.monotonic() < deadline, list(parent.iterdir())
        time.sleep(0.05)
    assert [row["topic"] for row in ask(cluster, "ls") if row["segments"]] == []
    with Consumer(cluster.bootstrap_servers) as consumer:
        partition = TopicPartition(TIERED.topic, 0)
        (start,) = consumer.beginning_offsets([partition]).values()
        consumer.assign([partition])
        consumer.seek(partition, start)
        assert start > 0
        assert next(iter(consumer.poll(20_000))).offset == start
