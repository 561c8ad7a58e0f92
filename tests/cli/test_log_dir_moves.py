"""`tidemark log-dirs move` and the log_dirs of reassignment plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.fake_admin import FakeAdmin, topic
from tidemark.cli import log_dir_moves, reassign, session
from tidemark.cli.main import app
from tidemark.client import decoding, sync
from tidemark.client.models import LogDirDescription, TopicPartitionReplica
from tidemark.errors import ApiError, LogDirNotFoundError, ReplicaNotAvailableError
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2

A, B = "/disk-a", "/disk-b"
T0 = TopicPartition("t", 0)


class DiskAdmin(FakeAdmin):
    """An admin of brokers with the directories A and B; a move is done after `polls`
    descriptions.
    """

    def __init__(self, polls: int = 2) -> None:
        super().__init__()
        self.homes: dict[TopicPartitionReplica, str] = {}
        self.moving: dict[TopicPartitionReplica, tuple[str, int]] = {}
        self.refusals: list[dict[TopicPartitionReplica, ApiError]] = []
        self.polls = polls

    def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, ApiError | None]:
        self.calls.append(("log dirs", dict(moves)))
        refused = self.refusals.pop(0) if self.refusals else {}
        for replica, path in moves.items():
            if replica in refused:
                continue
            self.moving.pop(replica, None)
            path = path.rstrip("/")
            if self.homes.setdefault(replica, path) != path:
                self.moving[replica] = (path, self.polls)
        return {replica: refused.get(replica) for replica in moves}

    def describe_log_dirs(self, brokers: Any, topics: Any) -> dict[int, list[LogDirDescription]]:
        for replica, (path, left) in list(self.moving.items()):
            self.moving[replica] = (path, left - 1)
            if left == 0:
                del self.moving[replica]
                self.homes[replica] = path
        return {
            broker_id: [
                decoding.log_dir(broker_id, self._directory(broker_id, path)) for path in (A, B)
            ]
            for broker_id in brokers
        }

    def _directory(self, broker_id: int, path: str) -> admin_pb2.DescribeLogDirsResponse.LogDir:
        found = admin_pb2.DescribeLogDirsResponse.LogDir(log_dir=path)
        for replica, home in self.homes.items():
            if replica.broker_id == broker_id and home == path:
                found.partitions.add(topic=replica.topic_partition.topic, partition_size=100)
        for replica, (target, left) in self.moving.items():
            if replica.broker_id == broker_id and target == path:
                name = replica.topic_partition.topic
                found.partitions.add(
                    topic=name, partition_size=50, offset_lag=left * 10, is_future=True
                )
        return found


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> DiskAdmin:
    fake = DiskAdmin()
    monkeypatch.setattr(sync, "Admin", fake)
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    monkeypatch.setattr(log_dir_moves, "_POLL_S", 0)
    monkeypatch.setattr(reassign, "_POLL_S", 0)
    fake.homes[TopicPartitionReplica(T0, 4)] = A
    fake.add(topic("t", ([4], [4], 4)))
    return fake


def call(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == exit_code, result.output
    return result.stdout + (result.stderr if exit_code else "")


MOVE = ("log-dirs", "move", "--broker", "4", "--topic-partition", "t-0")


def test_a_move_is_waited_for(admin: DiskAdmin) -> None:
    shown = json.loads(call(*MOVE, "--to", B, "--json"))
    assert shown == {"t-0": {"broker": 4, "log_dir": B, "state": "complete"}}
    assert admin.homes == {TopicPartitionReplica(T0, 4): B}
    assert call(*MOVE, "--to", f"{B}/").splitlines()[1] == f"t-0\t4\t{B}/\tcomplete"


def test_a_move_is_begun_and_shown_without_waiting(admin: DiskAdmin) -> None:
    assert "in progress: 10 offsets left" in call(*MOVE, "--to", B, "--no-wait")
    assert "complete" in call(*MOVE, "--to", A, "--no-wait"), "naming where it is ends the move"
    assert admin.moving == {}


def test_a_move_that_is_given_up_is_told(admin: DiskAdmin) -> None:
    def give_up(brokers: Any, topics: Any) -> dict[int, list[LogDirDescription]]:
        admin.moving.clear()
        return DiskAdmin.describe_log_dirs(admin, brokers, topics)

    admin.describe_log_dirs = give_up  # type: ignore[method-assign]
    assert f"not as planned: it is in {A}" in call(*MOVE, "--to", B, exit_code=1)


def test_what_the_broker_refuses_fails_the_command(admin: DiskAdmin) -> None:
    admin.refusals = [{TopicPartitionReplica(T0, 4): LogDirNotFoundError("no /nowhere here")}]
    assert "no /nowhere here (LOG_DIR_NOT_FOUND)" in call(*MOVE, "--to", "/nowhere", exit_code=1)
    assert "(REQUEST_TIMED_OUT)" in call(*MOVE, "--to", B, "--timeout", "0", exit_code=1)


def plan(path: Path, replicas: list[int], log_dirs: list[str]) -> str:
    item = {"topic": "t", "partition": 0, "replicas": replicas, "log_dirs": log_dirs}
    path.write_text(json.dumps({"version": 1, "partitions": [item]}))
    return str(path)


def test_a_plan_s_log_dirs_are_asked_for_before_and_after_the_reassignment(
    admin: DiskAdmin, tmp_path: Path
) -> None:
    here, there = TopicPartitionReplica(T0, 4), TopicPartitionReplica(T0, 5)
    not_yet: dict[TopicPartitionReplica, ApiError] = {there: ReplicaNotAvailableError("not yet")}
    admin.refusals = [not_yet, not_yet]
    file = plan(tmp_path / "plan", [4, 5, 6], [B, A, "any"])
    call("reassign", "execute", "--plan", file)
    assert admin.calls == [
        ("log dirs", {here: B, there: A}),
        ("reassign", {T0: (4, 5, 6)}),
        ("log dirs", {there: A}),
        ("log dirs", {there: A}),
    ]


def test_a_plan_is_complete_when_its_log_dirs_are(admin: DiskAdmin, tmp_path: Path) -> None:
    file = plan(tmp_path / "plan", [4], [B])
    assert f"replica 4 not as planned: it is in {A}" in call(
        "reassign", "verify", "--plan", file, exit_code=1
    )
    call("reassign", "execute", "--plan", file, "--wait")
    assert "complete" in call("reassign", "verify", "--plan", file)


def test_log_dirs_must_be_as_many_as_replicas(admin: DiskAdmin, tmp_path: Path) -> None:
    file = plan(tmp_path / "plan", [4, 5], [B])
    assert "as many log_dirs as replicas" in call(
        "reassign", "execute", "--plan", file, exit_code=1
    )
