"""Requests and output of the operators' commands, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from tests.cli.fake_admin import NOW_MS, FakeAdmin, broker, entry, is_refusal, quorum, topic, voter
from tidemark.cli import session
from tidemark.cli.cluster import broker_problems, partition_problems, quorum_problems, status_of
from tidemark.cli.main import app
from tidemark.cli.quorum import age_text
from tidemark.client import sync
from tidemark.client.models import (
    AlterConfigOp,
    ConfigResource,
    OwnDamage,
    PartitionReassignment,
)
from tidemark.errors import (
    ElectionNotNeededError,
    PreferredLeaderNotAvailableError,
)
from tidemark.types import Endpoint, TopicPartition, uuid_to_text

runner = CliRunner()


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(sync, "Admin", fake)
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    return fake


def call(*arguments: str, exit_code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 or result.stdout else result.stderr


# --- configs ------------------------------------------------------------------------------------


def test_configs_show_what_was_set_and_with_all_where_the_rest_is_from(admin: FakeAdmin) -> None:
    admin.settings[ConfigResource.topic("t")] = [
        entry("retention.ms", "5", "TOPIC_CONFIG", ("9", "STATIC_BROKER_CONFIG")),
        entry("segment.bytes", "7", "DEFAULT_CONFIG"),
        entry("flush.ms", "8", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    ]
    lines = call("configs", "describe", "--topic", "t").splitlines()
    assert lines[0] == "topic t:"
    assert lines[2] == "retention.ms\t5\ttopic\tno\t9 (static broker)"
    assert len(lines) == 3
    assert "segment.bytes\t7\tdefault" in call("configs", "describe", "--topic", "t", "--all")
    named = call("configs", "describe", "segment.bytes", "--topic", "t", "--documentation")
    assert named.splitlines()[2].endswith("what it means")
    assert "nothing is set" in call("configs", "describe", "--broker-defaults")
    (shown,) = json.loads(call("configs", "describe", "--topic", "t", "--json"))
    assert (shown["type"], shown["configs"][0]["value"]) == ("topic", "5")


def test_configs_change_one_by_one_on_every_resource_named(admin: FakeAdmin) -> None:
    told = call(
        *("configs", "alter", "--broker", "4", "--broker-defaults", "--set", "a=1=2"),
        *("--append", "b=x,y", "--subtract", "c=z", "--delete", "d", "--dry-run"),
    )
    ops = [
        AlterConfigOp("a", "1=2", "SET"),
        AlterConfigOp("b", "x,y", "APPEND"),
        AlterConfigOp("c", "z", "SUBTRACT"),
        AlterConfigOp("d", None, "DELETE"),
    ]
    resources = [ConfigResource.broker(4), ConfigResource.broker(None)]
    assert admin.calls == [("alter_configs", dict.fromkeys(resources, ops), True)]
    assert told.splitlines()[1] == "would alter all brokers: a=1=2, b+=x,y, c-=z, d removed"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--set", "a=1"],
        ["--topic", "t"],
        ["--topic", "t", "--set", "a"],
        ["--topic", "t", "--delete", "a=1"],
        ["--topic", "t", "--set", "a=1", "--delete", "a"],
    ],
)
def test_a_change_of_configs_that_says_too_little_is_refused(
    admin: FakeAdmin, wrong: list[str]
) -> None:
    assert is_refusal(call("configs", "alter", *wrong, exit_code=1))
    assert not admin.calls


# --- partitions, replicas, leaders --------------------------------------------------------------


def test_topics_grow(admin: FakeAdmin) -> None:
    call("topics", "alter", "t", "--partitions", "6", "--assignment", "4,5", "--dry-run")
    assert admin.calls == [
        ("create_partitions", {"t": 6}, {"assignments": {"t": [(4, 5)]}, "validate_only": True})
    ]


def test_a_broker_is_drained_until_nothing_is_left_on_it(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.add(topic("t", ([4, 5], [4, 5], 4), ([5, 6], [5, 6], 5)))
    told = call("brokers", "drain", "4", "--dry-run")
    assert told == "1 partitions would be moved away from brokers 4\n" and not admin.calls

    def moved(_: Any, plan: Any, *__: Any) -> None:
        """One topic more by the time that the first is moved."""
        admin.add(topic("t", ([5, 6], [5, 6], 5), ([5, 6], [5, 6], 5)))
        late = [5, 6] if TopicPartition("later", 0) in plan else [4, 5]
        admin.add(topic("later", (late, late, 5)))

    monkeypatch.setattr("tidemark.cli.reassign.wait_until_moved", moved)
    assert json.loads(call("brokers", "drain", "4", "--json"))["partitions"] == 2
    plans = [made[1] for made in admin.calls if made[0] == "reassign"]
    assert plans == [{TopicPartition("t", 0): (5, 6)}, {TopicPartition("later", 0): (5, 6)}]
    assert "2 replicas need 2 brokers" in call("brokers", "drain", "5", "6", exit_code=1)


def test_a_plan_goes_from_generate_to_execute_to_verify(admin: FakeAdmin, tmp_path: Path) -> None:
    admin.add(topic("t", ([4, 5], [4, 5], 4), ([5, 4], [5, 4], 5)), topic("__i", ([4], [4], 4)))
    plan = tmp_path / "plan.json"
    plan.write_text(call("reassign", "generate", "--topic", "t", "--drain", "4"))
    assert json.loads(plan.read_text())["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "replicas": [5, 6],
        "log_dirs": ["any", "any"],
    }
    back = tmp_path / "rollback.json"
    shown = call("reassign", "execute", "--plan", str(plan), "--rollback", str(back), "--dry-run")
    assert "t-0\t4,5\t5,6" in shown
    assert not admin.calls
    assert json.loads(back.read_text())["partitions"][0]["replicas"] == [4, 5]
    moves = json.loads(call("reassign", "execute", "--plan", str(plan), "--wait", "--json"))
    assert moves["moves"][1] == {"partition": "t-1", "before": [5, 4], "after": [5, 6]}
    wanted = {TopicPartition("t", 0): (5, 6), TopicPartition("t", 1): (5, 6)}
    assert admin.calls[0] == ("reassign", wanted)
    assert admin.calls[1][:2] == ("wait", wanted)
    assert 3_500_000 < admin.calls[1][2] <= 3_600_000
    first = TopicPartition("t", 0)
    del admin.calls[1:]
    admin.under_way[first] = PartitionReassignment((5, 6, 4), (6,), (4,))
    too_long = ("reassign", "verify", "--plan", str(plan), "--wait", "--timeout", "0")
    assert "1 of 2 partitions are still on the move" in call(*too_long, exit_code=1)
    states = call("reassign", "verify", "--plan", str(plan), exit_code=1)
    assert "t-0\tin progress: adding [6], not in sync [6]" in states
    assert "t-1\tnot as planned: replicas are [5, 4]" in states
    assert call("reassign", "list").splitlines()[1] == "t-0\t5,6,4\t6\t4"
    admin.under_way.clear()
    admin.finish_moves()
    assert json.loads(call("reassign", "verify", "--plan", str(plan), "--json")) == {
        "t-0": "complete",
        "t-1": "complete",
    }


def test_moves_by_hand_and_their_mistakes(admin: FakeAdmin) -> None:
    admin.add(topic("t", ([4], [4], 4)))
    call("reassign", "execute", "t-0=5,6")
    assert admin.calls == [("reassign", {TopicPartition("t", 0): (5, 6)})]
    for wrong in (
        ["t-0"],
        ["t=4"],
        ["t-0=4,4"],
        ["t-0=x"],
        ["t-9=4"],
        [],
        ["t-0=4", "--plan", "p"],
    ):
        assert is_refusal(call("reassign", "execute", *wrong, exit_code=1))
    assert len(admin.calls) == 1
    assert "brokers [9] are not alive" in call(
        "reassign", "generate", "--brokers", "9", exit_code=1
    )
    assert json.loads(call("reassign", "generate", "--current"))["partitions"][0]["replicas"] == [4]


def test_cancel_stops_what_is_under_way_and_nothing_else(admin: FakeAdmin) -> None:
    moving = PartitionReassignment((4, 5), (5,), ())
    admin.under_way = {TopicPartition("t", n): moving for n in (0, 1)}
    assert "cancelled the reassignment of t-1" in call(
        "reassign", "cancel", "t-1", "t-7", "--preserve-throttles"
    )
    assert admin.calls == [("reassign", {TopicPartition("t", 1): None})]
    assert json.loads(call("reassign", "cancel", "--all", "--json", "--preserve-throttles")) == {
        "cancelled": ["t-0", "t-1"]
    }
    admin.under_way = {}
    assert "no reassignment" in call("reassign", "cancel", "--all")
    assert len(admin.calls) == 2
    assert is_refusal(call("reassign", "cancel", exit_code=1))


def test_elections_tell_each_partition_and_fail_where_a_needed_one_did(
    admin: FakeAdmin, tmp_path: Path
) -> None:
    admin.add(topic("t", ([4], [4], 4), ([5], [5], 5)))
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    admin.elections = {one: None, two: ElectionNotNeededError()}
    assert call("elect-leaders", "--topic", "t").splitlines()[1:] == [
        "t-0\telected",
        "t-1\tnot needed",
    ]
    admin.elections = {one: PreferredLeaderNotAvailableError("4 is fenced")}
    file = tmp_path / "partitions.json"
    file.write_text('{"partitions": [{"topic": "t", "partition": 0}]}')
    unclean = ["--election-type", "unclean", "--file", str(file), "--json"]
    (row,) = json.loads(call("elect-leaders", *unclean, exit_code=1))
    assert row["result"] == "4 is fenced (PREFERRED_LEADER_NOT_AVAILABLE)"
    admin.elections = {}
    call("elect-leaders", "--all")
    kinds = ("PREFERRED", [one, two]), ("UNCLEAN", [one]), ("PREFERRED", None)
    assert admin.calls == [("elect", *kind) for kind in kinds]
    for wrong in ([], ["--all", "t-0"], ["t-0", "--election-type", "any"]):
        assert is_refusal(call("elect-leaders", *wrong, exit_code=1))


# --- features, brokers, controllers -------------------------------------------------------------


def test_features_go_up_and_down(admin: FakeAdmin) -> None:
    assert "metadata.version\t1\t1 to 3\t0.1-IV0" in call("features", "describe")
    assert "from 1 to 3" in call("features", "upgrade", "metadata.version=latest")
    call("features", "downgrade", "metadata.version=0", "--dry-run", "--json")
    call("features", "downgrade", "--feature", "metadata.version=1", "--unsafe")
    assert "is 1 already" in call("features", "upgrade", "--release-version", "0.1-IV0")
    call("features", "disable", "metadata.version")
    assert [(levels, o["downgrade"], o["validate_only"]) for _, levels, o in admin.calls] == [
        ({"metadata.version": 3}, None, False),
        ({"metadata.version": 0}, "SAFE", True),
        ({"metadata.version": 1}, "UNSAFE", False),
        ({"metadata.version": 1, "eligible.leader.replicas.version": 0}, None, False),
        ({"metadata.version": 0}, "SAFE", False),
    ]
    for wrong in ("metadata.version", "metadata.version=x", "other=latest", "=1", "=latest"):
        assert is_refusal(call("features", "upgrade", wrong, exit_code=1))
    for args in ([], ["-r", "9.9"], ["metadata.version=1", "-f", "metadata.version=2"]):
        assert is_refusal(call("features", "upgrade", *args, exit_code=1))


def test_what_nodes_support_is_told_by_node(admin: FakeAdmin) -> None:
    assert "4\tcontroller\tmetadata.version\t1 to 2" in call("features", "describe", "--nodes")
    (told,) = json.loads(call("features", "describe", "--nodes", "--json"))
    assert told["listeners"] == {"CONTROLLER": {"host": "h", "port": 1}}


def test_a_node_is_formatted_for_a_cluster_of_an_older_level(tmp_path: Path) -> None:
    from node.runtime.storage import open_storage
    from tidemark.config import load_server_config

    properties = tmp_path / "controller.properties"
    properties.write_text(
        "process.roles=controller\nnode.id=3\nlisteners=CONTROLLER://127.0.0.1:9193\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:9191\nlog.dirs={tmp_path}/data\n"
    )
    (tmp_path / "data").mkdir()
    cluster_id = call("storage", "random-uuid").strip()
    format_ = ["storage", "format", "-c", str(properties), "-t", cluster_id]
    for wrong in (["-r", "9.9"], ["-f", "metadata.version=9"], ["-f", "metadata.version"]):
        assert is_refusal(call(*format_, *wrong, exit_code=1))
    told = call(*format_, "-r", "0.1-IV0", "-f", "eligible.leader.replicas.version=1")
    assert "begins with eligible.leader.replicas.version 1, metadata.version 1" in told
    settings = load_server_config(properties)
    assert open_storage(settings).first_levels(settings) == {
        "metadata.version": 1,
        "eligible.leader.replicas.version": 1,
    }
    mapping = call("storage", "version-mapping")
    assert "0.1-IV1\tmetadata.version\t2" in mapping
    assert "0.1-IV0\teligible.leader.replicas.version\t0" in mapping
    assert "0.1-IV1\teligible.leader.replicas.version\t1" in mapping


def test_a_broker_is_only_forgotten_when_it_is_dead_and_empty(admin: FakeAdmin) -> None:
    admin.brokers = [broker(4, "a"), broker(5, fenced=True), broker(6, fenced=True)]
    admin.add(topic("t", ([4, 5], [4], 4)))
    rows = json.loads(call("brokers", "list", "--json"))
    assert [(r["broker"], r["state"], r["leads"], r["replicas"], r["in_sync"]) for r in rows] == [
        (4, "active", 1, 1, 1),
        (5, "fenced", 0, 1, 0),
        (6, "fenced", 0, 0, 0),
    ]
    assert "4\th:9004\ta\tactive" in call("brokers", "list")
    assert "is alive" in call("brokers", "unregister", "4", exit_code=1)
    assert "holds 1 replicas" in call("brokers", "unregister", "5", exit_code=1)
    call("brokers", "unregister", "6")
    call("brokers", "unregister", "5", "--force", "--json")
    assert admin.calls == [("unregister", 6), ("unregister", 5)]


def test_controllers_are_added_by_their_own_properties_or_by_hand(
    admin: FakeAdmin, tmp_path: Path
) -> None:
    from node.runtime.storage import format_storage
    from tidemark.config import load_server_config

    properties = tmp_path / "controller.properties"
    properties.write_text(
        "process.roles=controller\nnode.id=3\nlisteners=CONTROLLER://127.0.0.1:9193\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:9191\nlog.dirs={tmp_path}/data\n"
    )
    (tmp_path / "data").mkdir()
    options = ["quorum", "add-controller", "--config", str(properties)]
    assert "is not formatted" in call(*options, exit_code=1)
    format_storage(load_server_config(properties), "AAAAAAAAQACAAAAAAAAAAQ")
    assert "would add controller 3" in call(*options, "--dry-run")
    assert not admin.calls
    told = json.loads(call(*options, "--json"))
    kind, number, directory, endpoint = admin.calls.pop()
    where = {"CONTROLLER": Endpoint("127.0.0.1", 9193)}
    assert (kind, number, endpoint) == ("add_voter", 3, where)
    assert told["endpoints"] == ["CONTROLLER://127.0.0.1:9193"]
    assert told["directory_id"] == uuid_to_text(directory)
    by_hand = ["--controller-id", "7", "--directory-id", uuid_to_text(UUID(int=7 << 64))]
    call("quorum", "add-controller", *by_hand, "--endpoint", "h:1", "--endpoint", "OUTER://o:2")
    both = {"CONTROLLER": Endpoint("h", 1), "OUTER": Endpoint("o", 2)}
    assert admin.calls.pop() == ("add_voter", 7, UUID(int=7 << 64), both)
    twice = [*by_hand, "--endpoint", "h:1", "--endpoint", "h:2"]
    for wrong in (by_hand, [*by_hand, "--endpoint", "h"], ["-c", str(properties), *by_hand], twice):
        assert is_refusal(call("quorum", "add-controller", *wrong, exit_code=1))


def test_a_voter_is_removed_by_id_where_that_is_unambiguous(admin: FakeAdmin) -> None:
    call("quorum", "remove-controller", "--controller-id", "2", "--dry-run")
    assert not admin.calls
    call("quorum", "remove-controller", "--controller-id", "2")
    assert admin.calls.pop() == ("remove_voter", 2, UUID(int=2))
    assert "is no voter" in call("quorum", "remove-controller", "--controller-id", "9", exit_code=1)
    admin.quorum = quorum(1, voter(1, 9), voter(2, 9), voter(2, 9, directory=77))
    remove = ["quorum", "remove-controller", "--controller-id", "2"]
    assert "--directory-id" in call(*remove, exit_code=1)
    call(*remove, "--directory-id", uuid_to_text(UUID(int=77)))
    assert admin.calls == [("remove_voter", 2, UUID(int=77))]
    assert is_refusal(call("quorum", "remove-controller", exit_code=1))


def test_the_quorum_for_people(admin: FakeAdmin) -> None:
    admin.quorum = quorum(1, voter(1, 100), voter(2, 90, NOW_MS - 12_500), voter(3, None, None))
    rows = call("quorum", "describe", "--replication", "--human-readable").splitlines()
    assert rows[2].split("\t")[2:] == ["90", "10", "12.5 s ago", "12.5 s ago", "Voter", "none"]
    assert rows[3].split("\t")[2:] == ["none", "none", "never", "never", "Voter", "none"]
    status = call("quorum", "describe", "--status").splitlines()
    assert "MaxFollowerLag:         10" in status
    assert "MaxFollowerLagTimeMs:   unknown" in status
    assert f"CurrentVoters:          1 {uuid_to_text(UUID(int=1))} c:1" in status
    told = json.loads(call("quorum", "describe", "--status", "--json"))
    assert told["CurrentVoters"][1]["endpoints"] == ["c:2"]
    ages = [age_text(ms) for ms in (999, 1000, 60_000, 7_200_000)]
    assert ages == ["999 ms ago", "1.0 s ago", "1 min ago", "2 h ago"]


# --- health -------------------------------------------------------------------------------------


def test_a_healthy_cluster_is_exit_status_0(admin: FakeAdmin) -> None:
    admin.add(topic("t", ([4, 5], [4, 5], 4)))
    assert json.loads(call("cluster", "health", "--json")) == {
        "status": "healthy",
        "cluster_id": "fake",
        "controller": 1,
        "controllers": 2,
        "brokers": 3,
        "brokers_active": 3,
        "topics": 1,
        "partitions": 1,
        "problems": [],
    }


def test_what_is_wrong_is_told_and_exit_status_1(admin: FakeAdmin) -> None:
    admin.brokers[1] = broker(5, fenced=True)
    admin.add(topic("t", ([4, 5], [4], 4)))
    lines = call("cluster", "health", exit_code=1).splitlines()
    assert lines[0] == "status:         degraded"
    assert lines[-1] == "warning\tunder-replicated\tt-0\treplicas [4, 5], in sync [4]"
    live = ConfigResource.broker(4)
    admin.settings[live] = [entry("min.insync.replicas", "2", "STATIC_BROKER_CONFIG")]
    told = json.loads(call("cluster", "health", "--json", exit_code=1))
    assert told["status"] == "critical"
    assert [p["kind"] for p in told["problems"]] == ["fenced broker", "under min ISR"]


def test_partitions_by_their_worst_problem() -> None:
    states = [
        topic("fine", ([4, 5], [4, 5], 4)),
        topic("offline", ([4, 5], [4], None)),
        topic("thin", ([4, 5, 6], [4], 4), configs={"min.insync.replicas": "2"}),
        topic("behind", ([4, 5, 6], [4, 5], 4), configs={"min.insync.replicas": "2"}),
        topic("small", ([4], [4], 4), configs={"min.insync.replicas": "2"}),
    ]
    found = partition_problems(states, default_min_isr=1, active=(4, 5, 6))
    assert [(p.severity, p.kind, p.where) for p in found] == [
        ("critical", "no leader", "offline-0"),
        ("critical", "under min ISR", "thin-0"),
        ("warning", "under-replicated", "behind-0"),
    ]
    assert status_of(found) == "critical"
    assert status_of([]) == "healthy"


@pytest.mark.parametrize(
    ("change", "way"),
    [
        ({}, ""),
        (
            {"offline_replicas": (4, 6)},
            "give broker 4 the log directory with its records back (the broker's own log tells "
            "more), or only if it is lost for good: tidemark elect-leaders --election-type unclean",
        ),
        ({"isr": (), "elr": (6, 5), "offline_replicas": (5, 6)}, "start broker 5 or broker 6"),
        ({"isr": (), "elr": (5,), "last_known_elr": (4,)}, "start broker 5"),
        (
            {"isr": (), "last_known_elr": (4, 6), "offline_replicas": (4, 6)},
            "give broker 4 the log directory with its records back (the broker's own log tells "
            "more), or only if it is lost for good: tidemark elect-leaders --election-type unclean"
            ", or start broker 6",
        ),
    ],
    ids=["elected soon", "replaced disk", "eligible", "eligible before last known", "both"],
)
def test_a_partition_without_a_leader_tells_what_brings_one_back(
    admin: FakeAdmin, change: dict[str, tuple[int, ...]], way: str
) -> None:
    admin.brokers = [broker(4), broker(5, fenced=True)]
    described = topic("t", ([4, 5, 6], [4], None))
    (partition,) = described.partitions
    described = replace(described, partitions=(replace(partition, **change),))  # type: ignore[arg-type]
    admin.add(described)
    lines = call("topics", "describe", "t").splitlines()
    told = [line for line in lines if "has no leader" in line]
    assert told == ([f"t-0 has no leader: {way}"] if way else [])
    found = json.loads(call("cluster", "health", "--json", exit_code=1))["problems"]
    (detail,) = [p["detail"] for p in found if p["kind"] == "no leader"]
    assert detail.partition("]: ")[2] == way


@pytest.mark.parametrize("leader", [1, None])
@pytest.mark.parametrize("damage", [d for d in OwnDamage if d])
def test_a_damaged_metadata_log_is_named_by_health_and_describe(
    leader: int | None, damage: OwnDamage, admin: FakeAdmin
) -> None:
    hurt = replace(voter(2, 90), own_damage=damage)
    described = quorum(leader, voter(1, 100), hurt)
    admin.quorum = replace(described, observers=(replace(voter(4, 80), own_damage=damage),))
    found = json.loads(call("cluster", "health", "--json", exit_code=1))["problems"]
    told = [p for p in found if p["kind"] == "metadata log damaged"]
    assert [(p["severity"], p["where"]) for p in told] == [
        ("warning", "controller 2"),
        ("warning", "node 4"),
    ]
    assert "disk" in told[0]["detail"]
    rows = json.loads(call("quorum", "describe", "--replication", "--json"))
    assert {row["NodeId"]: row["OwnDamage"] for row in rows} == {
        1: None,
        2: damage.name,
        4: damage.name,
    }
    assert call("quorum", "describe", "--replication").count(f"\t{damage.name}\n") == 2
    status = json.loads(call("quorum", "describe", "--status", "--json"))
    assert [m["ownDamage"] for m in status["CurrentVoters"]] == [None, damage.name]
    lines = call("quorum", "describe", "--status").splitlines()
    assert sum(f"own damage: {damage.name}" in line for line in lines) == 2


def test_controllers_and_brokers_that_are_missing() -> None:
    late = quorum(1, voter(1, 9), voter(2, 9, NOW_MS - 10_001), voter(3, 9, NOW_MS - 9_999))
    assert [p.where for p in quorum_problems(late, 10_000)] == ["controller 2"]
    never = quorum(1, voter(1, 9), voter(2, None, None))
    assert quorum_problems(never, 10_000)[0].detail == "it has never caught up"
    assert quorum_problems(quorum(None, voter(1, 9)), 1)[0].severity == "critical"
    unheard = quorum(1, voter(1, None, None), voter(2, None, None))
    assert [(p.severity, p.kind) for p in quorum_problems(unheard, 1)] == [
        ("critical", "active controller is silent")
    ]
    fake = FakeAdmin()
    fake.brokers = [broker(4, fenced=True)]
    kinds = [p.kind for p in broker_problems(fake.describe_cluster())]
    assert kinds == ["fenced broker", "no active broker"]


def test_a_quorum_whose_leader_is_silent_is_told_as_hearsay(admin: FakeAdmin) -> None:
    for leader, text in ((1, "the leader does not answer"), (None, "nobody leads")):
        admin.quorum = quorum(leader, voter(1, None, None), voter(2, None, None))
        result = runner.invoke(app, ["quorum", "describe", "--status"])
        assert result.exit_code == 0
        assert text in result.stderr


# --- completion ---------------------------------------------------------------------------------


def test_shells_complete_commands() -> None:
    assert "_TIDEMARK_COMPLETE=complete_bash" in call("completion", "bash")
    assert is_refusal(call("completion", "tcsh", exit_code=1))
    asked = {"COMP_WORDS": "tidemark reassign ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.cli.main"],
        env=os.environ | asked | {"_TIDEMARK_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["generate", "execute", "verify", "cancel", "list"]
