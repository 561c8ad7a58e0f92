"""`tidemark metadata`: text and JSON of trees and their differences; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quorum.inspect.source import load
from tests.quorum.inspect.metadata_logs import MetadataLog
from tidemark.cli.main import app
from tidemark.cli.metadata import parse_side
from tidemark.errors import ConfigError

runner = CliRunner()


@pytest.fixture
def log(tmp_path: Path) -> MetadataLog:
    return MetadataLog(tmp_path / "__cluster_metadata-0", seed=7, batches=30)


def call(*arguments: str) -> str:
    result = runner.invoke(app, ["metadata", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_reading_a_directory_changes_nothing_in_it(log: MetadataLog) -> None:
    log.checkpoint(50)
    log.write(start=51)
    (log.path / "00000000000000000000-0000000009.checkpoint.part").write_bytes(b"left")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in log.path.iterdir()}
    load(str(log.path))
    call("tree", "-s", str(log.path))
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in log.path.iterdir()}


def test_commands_print_text_and_json(log: MetadataLog) -> None:
    log.write()
    image = log.images[log.last]
    source = ["-s", str(log.path)]
    topic = next(t for t in image.topics.ordered() if t.partitions)
    assert call("ls", *source).splitlines()[:2] == ["acls/", "brokers/"]
    assert json.loads(call("ls", "/topics/byName", "--json", *source)) == {
        "/topics/byName": [f"{name}/" for name in image.topics.names()]
    }
    path = f"/topics/byName/{topic.name}/0"
    shown = json.loads(call("cat", path, *source))
    assert shown["leaderEpoch"] == topic.partitions[0].leader_epoch
    assert json.loads(call("cat", path, "--json", *source)) == {path: shown}
    both = call("cat", f"/topics/byName/{topic.name}/id", "/features", *source).splitlines()
    assert both[0] == f"/topics/byName/{topic.name}/id:"
    text = call("tree", "/topics/byName", "--depth", "1", *source).splitlines()
    assert text[0] == "/topics/byName/"
    assert f"  {topic.name}/" in text
    assert json.loads(call("tree", "/producerIds", "--json", *source)) == {
        "/producerIds/nextProducerId": image.next_producer_id
    }
    paths = call("find", "/topics/byName", "--name", "id", *source).splitlines()
    assert f"/topics/byName/{topic.name}/id" in paths
    hit = json.loads(call("find", "--contains", f'"{topic.name}"', "--json", *source) or "null")
    assert hit is None  # a string is compared without its quotes
    assert path.rsplit("/", 1)[0] + "/name" in call("find", "--contains", topic.name, *source)


def test_diff_of_offsets_and_sources(log: MetadataLog) -> None:
    checkpoint = log.checkpoint(50)
    log.write()
    same = call("diff", str(checkpoint), "50", "-s", str(log.path)).splitlines()
    assert same[-1] == "0 changes"
    assert (
        runner.invoke(app, ["metadata", "diff", str(checkpoint), f"{log.path}@60"]).exit_code == 0
    )
    arguments = ["diff", "50", str(log.path), "--exit-code", "-s", str(checkpoint), "--json"]
    result = runner.invoke(app, ["metadata", *arguments])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["before"]["offset"], told["after"]["offset"]) == (50, log.last)
    assert {change["kind"] for change in told["changes"]} >= {"added"}


def test_a_side_is_an_offset_a_source_or_both() -> None:
    assert parse_side("12", "here") == ("here", 12)
    assert parse_side("dir@12", "here") == ("dir", 12)
    assert parse_side("host:1", "here") == ("host:1", None)
    assert parse_side("@3", "here") == ("here", 3)
    with pytest.raises(ConfigError):
        parse_side("", "here")
