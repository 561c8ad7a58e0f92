"""`tidemark quorum recover` on the files of real controllers, two of three of which are lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.test_quorum_cluster import call, format_node
from tidemark.cli.local_cluster import LocalCluster, free_ports
from tidemark.cli.main import app

runner = CliRunner()


def refusal(*arguments: str) -> str:
    result = runner.invoke(app, ["quorum", "recover", *arguments])
    assert result.exit_code == 1, result.output
    return result.output


@pytest.mark.timeout(120)
def test_two_of_three_controllers_are_lost_and_the_third_goes_on_alone(tmp_path: Path) -> None:
    ports = free_ports(4)
    fast = {
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "broker.session.timeout.ms": "3000",
    }
    cluster = LocalCluster(tmp_path, controllers=3, brokers=1, ports=ports, overrides=fast)
    with cluster:
        cluster.wait_ready(60)
        at = ("--bootstrap-server", cluster.bootstrap_servers)
        call("topics", "create", "before", *at)

        def voters() -> list[int]:
            status = call("quorum", "describe", "--status", "--json", *at)
            return [voter["id"] for voter in json.loads(status)["CurrentVoters"]]

        assert voters() == [1, 2, 3]
        first, second, third, broker = (cluster.node(n) for n in (1, 2, 3, 4))
        for node in (second, third):
            cluster.kill(node.node_id)
        config = ("--config", str(first.properties_file))
        assert "is locked by another process" in refusal(*config, "--accept-data-loss")
        cluster.kill(1)
        shutil.rmtree(third.data_directory)

        plan = call("quorum", "recover", *config, "--dry-run")
        assert "would make 1 the voters" in plan
        assert "Never start a lost controller" in plan
        assert "nothing is changed yet" in refusal(*config)
        assert "own directory" in refusal(*config, "--compare", str(first.data_directory))
        assert "locked" in refusal(*config, "--compare", str(broker.data_directory))

        def facts(*more: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(call("quorum", "recover", *config, *more, "--json"))
            return found

        done = facts("--compare", str(second.data_directory), "--accept-data-loss")
        assert (done["done"], done["voters"]) == (True, [1])
        assert [log["voters"] for log in done["logs"]] == [None, None], "they were static before"
        assert facts("--dry-run")["logs"][0]["voters"] == [1]

        shutil.rmtree(second.data_directory)
        second.settings["controller.quorum.voters"] = ""
        second.settings["controller.quorum.bootstrap.servers"] = first.address
        format_node(second, cluster.cluster_id, "--no-initial-controllers")
        cluster.restart(1)
        call("topics", "create", "after", *at)
        assert voters() == [1]
        cluster.restart(2)
        call("quorum", "add-controller", "--config", str(second.properties_file), *at)
        assert voters() == [1, 2]
        assert {"before", "after"} <= set(call("topics", "list", *at).split())
