"""`tidemark log-dirs describe`: its requests, and the output for online and offline directories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.cli import session
from tidemark.cli.main import app
from tidemark.client import decoding, sync
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2

runner = CliRunner()


class FakeAdmin:
    """An admin of one broker with two directories: one is online, one offline."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def __call__(self, bootstrap_servers: str) -> FakeAdmin:
        return self

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def describe_log_dirs(self, brokers: Any, topics: Any) -> Any:
        self.asked.append((brokers, list(topics)))
        good = admin_pb2.DescribeLogDirsResponse.LogDir(log_dir="/a", total_bytes=9, usable_bytes=4)
        good.partitions.add(
            topic="t", partition_size=70, offset_lag=3, high_watermark=8, log_end_offset=5
        )
        good.partitions[0].uncleanable_reason = "damaged"
        good.partitions.add(topic="t", partition_index=1, partition_size=20, is_future=True)
        bad = admin_pb2.DescribeLogDirsResponse.LogDir(
            log_dir="/b",
            error_code=int(ErrorCode.KAFKA_STORAGE_ERROR),  # type: ignore[arg-type]
            error_message="not mounted",
        )
        return {4: [decoding.log_dir(4, good), decoding.log_dir(4, bad)]}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(sync, "Admin", fake)
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    return fake


def test_directories_are_shown_with_their_state_and_replicas(admin: FakeAdmin) -> None:
    lines = runner.invoke(app, ["log-dirs", "describe"]).stdout.splitlines()
    assert lines[0] == "broker 4  /a  ok"
    assert lines[1].split("\t")[:4] == ["PARTITION", "BYTES", "LAG", "FUTURE"]
    assert lines[2].split("\t")[:4] == ["t-0", "70", "3", ""]
    assert lines[3].split("\t")[:4] == ["t-1", "20", "0", "yes"]
    assert lines[4] == "t-0 is not compacted any more: damaged"
    assert lines[5] == "broker 4  /b  KAFKA_STORAGE_ERROR: not mounted"
    shown = json.loads(runner.invoke(app, ["log-dirs", "describe", "--json"]).stdout)
    assert [d["error"] for d in shown["4"]] == [None, "KAFKA_STORAGE_ERROR"]
    assert shown["4"][0]["replicas"][0]["offset_lag"] == 3
    assert admin.asked == [(None, [])] * 2


def test_brokers_and_topics_are_listed_as_kafkas_tool_takes_them(admin: FakeAdmin) -> None:
    runner.invoke(app, ["log-dirs", "describe", "--broker-list", "4, 5", "--topic-list", "t,u"])
    runner.invoke(app, ["log-dirs", "describe", "--broker", "4", "--broker", "5", "--topic", "t"])
    assert admin.asked == [([4, 5], ["t", "u"]), ([4, 5], ["t"])]
    refused = runner.invoke(app, ["log-dirs", "describe", "--broker-list", "x"])
    assert refused.exit_code == 1
    assert "no broker id" in refused.stderr
