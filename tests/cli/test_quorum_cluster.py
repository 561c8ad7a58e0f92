"""Controllers added to and removed from a quorum of real processes, by the command line alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tidemark.cli.local_cluster import LocalCluster, LocalNode, free_ports
from tidemark.cli.main import app
from tidemark.config.properties import format_properties

runner = CliRunner()


def call(*arguments: str, exit_code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == exit_code, (arguments, result.output)
    return result.output


def format_node(node: LocalNode, cluster_id: str, *options: str) -> None:
    node.data_directory.mkdir(parents=True)
    node.properties_file.parent.mkdir(parents=True, exist_ok=True)
    node.properties_file.write_text(format_properties(node.settings), encoding="utf-8")
    call("storage", "format", "-c", str(node.properties_file), "-t", cluster_id, *options)


def test_a_quorum_grows_by_a_controller_and_shrinks_by_the_first(tmp_path: Path) -> None:
    ports = free_ports(3)
    dynamic = {
        "controller.quorum.voters": "",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}",
    }
    cluster = LocalCluster(tmp_path, controllers=2, brokers=1, ports=ports, overrides=dynamic)
    format_node(cluster.node(1), cluster.cluster_id, "--standalone")
    for node_id in (2, 3):
        format_node(cluster.node(node_id), cluster.cluster_id, "--no-initial-controllers")
    with cluster:
        cluster.wait_ready(60)
        at = ("--bootstrap-server", cluster.bootstrap_servers)

        def quorum() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(
                call("quorum", "describe", "--status", "--json", *at)
            )
            return found

        def voters() -> list[int]:
            return [voter["id"] for voter in quorum()["CurrentVoters"]]

        assert voters() == [1]
        second = ("--config", str(cluster.node(2).properties_file))
        assert "would add" in call("quorum", "add-controller", *second, "--dry-run", *at)
        assert voters() == [1]
        assert "added controller 2" in call("quorum", "add-controller", *second, *at)
        assert voters() == [1, 2]
        shown = json.loads(call("metadata", "cat", "/quorum", "--json", *at))["/quorum"]
        assert [voter["id"] for voter in shown["voters"]] == [1, 2]
        call("quorum", "remove-controller", "--controller-id", "1", *at)
        cluster.kill(1)
        call("topics", "create", "later", *at)
        assert (voters(), quorum()["LeaderId"]) == ([2], 2)
        on_disk = str(cluster.node(2).data_directory)
        assert json.loads(call("metadata", "cat", "/quorum/leaderId", "-s", on_disk)) == 2
