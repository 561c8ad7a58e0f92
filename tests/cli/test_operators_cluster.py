"""An operator's walk through a real cluster.

Settings, more partitions, moved replicas, elected leaders, a broker lost and unregistered; and all
of it visible in the metadata.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app

runner = CliRunner()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    fast = {"broker.session.timeout.ms": "3000"}
    with LocalCluster(directory, controllers=1, brokers=3, controller_overrides=fast) as cluster:
        cluster.wait_ready(60)
        yield cluster


def call(cluster: LocalCluster, *arguments: str, exit_code: int = 0) -> str:
    options = ["--bootstrap-server", cluster.bootstrap_servers]
    result = runner.invoke(app, [*arguments, *options])
    assert result.exit_code == exit_code, (arguments, result.output)
    return result.output


def ask(cluster: LocalCluster, *arguments: str, exit_code: int = 0) -> Any:
    return json.loads(call(cluster, *arguments, "--json", exit_code=exit_code))


def cat(cluster: LocalCluster, path: str) -> Any:
    return ask(cluster, "metadata", "cat", path)[path]


def until(condition: Callable[[], bool]) -> None:
    """Waits for the cluster; the test's timeout ends it."""
    while not condition():
        time.sleep(0.1)


def test_settings_partitions_replicas_leaders_and_the_metadata_of_it_all(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    call(cluster, "topics", "create", "t", "--partitions", "2", "--replication-factor", "2")
    offset = cat(cluster, "/quorum")["offset"]

    # Settings.
    call(cluster, "configs", "alter", "--topic", "t", "--set", "retention.ms=3600000")
    call(cluster, "configs", "alter", "--topic", "t", "--append", "cleanup.policy=compact")
    call(cluster, "configs", "alter", "--broker-defaults", "--set", "log.segment.bytes=2000000")
    refused = call(
        *(cluster, "configs", "alter", "--topic", "t", "--set", "retention.ms=x"), exit_code=1
    )
    assert "(INVALID_CONFIG)" in refused
    (shown,) = ask(cluster, "configs", "describe", "--topic", "t")
    values = {c["name"]: (c["value"], c["source"]) for c in shown["configs"]}
    assert values == {
        "cleanup.policy": ("delete,compact", "TOPIC_CONFIG"),
        "retention.ms": ("3600000", "TOPIC_CONFIG"),
    }
    (seen,) = ask(cluster, "configs", "describe", "segment.bytes", "--topic", "t")
    assert seen["configs"][0]["value"] == "2000000"
    call(cluster, "configs", "alter", "--topic", "t", "--delete", "cleanup.policy")
    assert cat(cluster, "/configs/topic/t") == {"retention.ms": "3600000"}

    # More partitions.
    call(cluster, "topics", "alter", "t", "--partitions", "4")
    assert "(INVALID_PARTITIONS)" in call(
        *(cluster, "topics", "alter", "t", "--partitions", "3"), exit_code=1
    )
    assert len(cat(cluster, "/topics/byName/t")) == 2 + 4

    # Replicas: everything off broker 4, and back by the rollback plan.
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    plan.write_text(call(cluster, "reassign", "generate", "--topic", "t", "--drain", "4"))
    before = ask(cluster, "reassign", "generate", "--topic", "t", "--current")
    execute = ("reassign", "execute", "--plan", str(plan), "--rollback", str(back))
    call(cluster, *execute, "--wait", "--timeout", "60")
    call(cluster, "reassign", "verify", "--plan", str(plan))
    assert ask(cluster, "reassign", "list") == {}
    held = {b["broker"]: b["replicas"] for b in ask(cluster, "brokers", "list")}
    assert held == {2: 4, 3: 4, 4: 0}
    moved = len(json.loads(plan.read_text())["partitions"])
    told = ask(cluster, "metadata", "diff", str(offset), cluster.bootstrap_servers)
    paths = {change["path"] for change in told["changes"]}
    assert {"/configs/topic/t/retention.ms", "/topics/byName/t/3"} <= paths
    call(cluster, "reassign", "execute", "--plan", str(back), "--wait", "--timeout", "60")
    after = ask(cluster, "reassign", "generate", "--topic", "t", "--current")
    assert after == before
    assert moved > 0

    # Leaders: the preferred ones lead again.
    call(cluster, "reassign", "execute", "t-0=3,2", "--wait", "--timeout", "60")
    call(cluster, "reassign", "execute", "t-0=2,3", "--wait", "--timeout", "60")
    call(cluster, "elect-leaders", "t-0")
    assert cat(cluster, "/topics/byName/t/0")["leader"] == 2
    assert ask(cluster, "elect-leaders", "t-0")[0]["result"] == "not needed"

    # The controller's disk has the same metadata.
    live = cat(cluster, "/topics")
    found = ask(cluster, "metadata", "cat", "/topics", "-s", str(cluster.node(1).data_directory))
    assert found["/topics"] == live


def test_features_are_described_and_a_level_nobody_supports_is_refused(
    cluster: LocalCluster,
) -> None:
    features = {f["name"]: f for f in ask(cluster, "features", "describe")}
    version = features["metadata.version"]
    assert version["level"] == cat(cluster, "/features/metadata.version")
    beyond = f"metadata.version={version['supported_max'] + 1}"
    call(cluster, "features", "upgrade", beyond, exit_code=1)
    call(cluster, "features", "upgrade", "metadata.version=latest")
    assert cat(cluster, "/features/metadata.version") == version["supported_max"]


def test_levels_go_down_and_up_and_the_voters_into_the_log(cluster: LocalCluster) -> None:
    def level(name: str) -> int:
        found: dict[str, int] = {
            f["name"]: f["level"] for f in ask(cluster, "features", "describe")
        }
        return found[name]

    def controllers() -> list[int]:
        nodes = ask(cluster, "features", "describe", "--nodes")
        return [node["node_id"] for node in nodes if node["role"] == "controller"]

    until(lambda: controllers() == [1])
    kept = call(cluster, "features", "downgrade", "metadata.version=1", exit_code=1)
    assert "registrations of controllers 1" in kept
    call(cluster, "features", "downgrade", "metadata.version=1", "--unsafe")
    assert (level("metadata.version"), controllers()) == (1, [])
    call(cluster, "features", "upgrade", "--release-version", "0.1")
    until(lambda: controllers() == [1])
    assert "is a voter" in call(cluster, "brokers", "unregister", "1", exit_code=1)

    assert level("kraft.version") == 0
    remove = ("quorum", "remove-controller", "--controller-id", "1")
    assert "kraft.version=1" in call(cluster, *remove, exit_code=1)
    call(cluster, "features", "upgrade", "kraft.version=1")
    assert level("kraft.version") == 1
    (voter,) = ask(cluster, "quorum", "describe", "--status")["CurrentVoters"]
    assert voter["endpoints"] == [f"CONTROLLER://{cluster.node(1).address}"]
    assert cat(cluster, "/quorum/kraftVersion") == 1
    assert "only voter" in call(cluster, *remove, exit_code=1)
    call(cluster, "features", "disable", "kraft.version", exit_code=1)


def test_health_follows_a_broker_that_dies_and_is_forgotten(cluster: LocalCluster) -> None:
    call(cluster, "topics", "create", "u", "--partitions", "1", "--replication-factor", "3")
    assert ask(cluster, "cluster", "health")["status"] == "healthy"
    cluster.kill(4)
    until(lambda: "fenced broker" in runner_output(cluster, "cluster", "health"))
    problems = ask(cluster, "cluster", "health", exit_code=1)["problems"]
    assert {"under-replicated", "fenced broker"} <= {p["kind"] for p in problems}
    assert "still holds" in call(cluster, "brokers", "unregister", "4", exit_code=1)
    call(cluster, "reassign", "execute", "u-0=2,3", "--wait", "--timeout", "60")
    rest = json.loads(call(cluster, "reassign", "generate", "--drain", "4"))["partitions"]
    if rest:
        moves = [f"{p['topic']}-{p['partition']}={_ids(p)}" for p in rest]
        call(cluster, "reassign", "execute", *moves, "--wait", "--timeout", "60")
    call(cluster, "brokers", "unregister", "4")
    assert [b["broker"] for b in ask(cluster, "brokers", "list")] == [2, 3]
    assert ask(cluster, "cluster", "health")["status"] == "healthy"


def runner_output(cluster: LocalCluster, *arguments: str) -> str:
    options = ["--bootstrap-server", cluster.bootstrap_servers]
    return runner.invoke(app, [*arguments, *options]).output


def _ids(partition: dict[str, Any]) -> str:
    return ",".join(map(str, partition["replicas"]))
