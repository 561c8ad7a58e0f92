"""`tidemark debug bundle`: all that can be had, and the name of what can not."""

from __future__ import annotations

import asyncio
import json
import logging
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from typer.testing import CliRunner

from node.runtime.storage import format_storage
from node.server import Server
from tests.cli.fake_admin import FakeAdmin, entry, topic
from tests.node.fakes import CLUSTER_ID
from tests.node.test_server import Client, combined_config, serve
from tidemark import logs
from tidemark.cli.bundle import Bundle, add_cluster
from tidemark.cli.cluster import app as cluster_app
from tidemark.cli.debug import app
from tidemark.client.models import ConfigResource, NodeState
from tidemark.errors import ClusterAuthorizationFailedError, ConfigError, NetworkError
from tidemark.types import TopicIdPartition

SECRET = "hunter2-planted"


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logs._recent.clear()
    root.handlers[:] = handlers
    root.setLevel(level)


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_what_can_not_be_had_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    admin = FakeAdmin()
    admin.add(topic("tale", ([4], [4], 4)))
    admin.nodes.states = {4: NodeState(4, "1.2", (), ()), 5: NetworkError("broker 5 is silent")}
    denied = ClusterAuthorizationFailedError("it needs an ACL")
    admin.nodes.lines = {4: ["first", "second"], 5: denied}
    admin.settings[ConfigResource.broker(4)] = [entry("log.dirs", "/d", "STATIC_BROKER_CONFIG")]

    def silent() -> None:
        raise NetworkError("no controller answers")

    admin.describe_quorum = silent  # type: ignore[assignment]
    bundle = Bundle()
    add_cluster(bundle, cast("Any", admin))
    with pytest.raises(ConfigError, match="can not write"):
        bundle.write(tmp_path / "no" / "b.tgz", {}, 7)
    bundle.write(tmp_path / "b.tgz", {"version": "1.2"}, 7)
    assert (tmp_path / "b.tgz").stat().st_mode & 0o777 == 0o600
    found = contents(tmp_path / "b.tgz")
    manifest = json.loads(found["manifest.json"])
    assert manifest["missing"] == {
        "quorum.json": "no controller answers (NETWORK_EXCEPTION)",
        "nodes/5/node.json": "broker 5 is silent (NETWORK_EXCEPTION)",
        "nodes/5/log.txt": "it needs an ACL (CLUSTER_AUTHORIZATION_FAILED)",
    }
    assert set(manifest["files"]) == set(found) - {"manifest.json"}
    assert found["nodes/4/log.txt"] == "first\nsecond\n"
    settings = json.loads(found["nodes/4/configs.json"])
    assert settings == {"log.dirs": {"value": "/d", "source": "STATIC_BROKER_CONFIG"}}
    assert json.loads(found["topics.json"])[0]["name"] == "tale"


def test_a_bundle_of_nothing_is_an_error_with_a_reason(tmp_path: Path) -> None:
    options = ["--at", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:1"]
    file = tmp_path / "b.tgz"
    done = CliRunner().invoke(app, ["bundle", str(file), *options])
    assert isinstance(done.exception, NetworkError)
    assert "metrics.txt: no answer at 127.0.0.1:1" in str(done.exception)
    assert not file.exists()


def test_a_real_node_gives_settings_quorum_and_log_and_no_secret(tmp_path: Path) -> None:
    tier = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "directory",
        "remote.log.metadata.topic.replication.factor": "1",
        "rsm.config.dir": f"{tmp_path}/{SECRET}",
    }
    settings = {"prometheus.listener": "127.0.0.1:0", "ssl.key.password": SECRET, **tier}
    config = combined_config(tmp_path, **settings)
    format_storage(config, CLUSTER_ID)
    logs.setup(logging.INFO)

    async def story(server: Server, _: Client) -> None:
        assert server.metrics_endpoint is not None
        at = server.metrics_endpoint.address
        bootstrap = next(iter(config.broker_listeners().values())).address
        options = ["--at", at, "--bootstrap-server", bootstrap, "--json"]
        file = tmp_path / "b.tgz"
        done = await asyncio.to_thread(CliRunner().invoke, app, ["bundle", str(file), *options])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["missing"] == {}
        found = contents(file)
        assert "tidemark_node_ready 1.0" in found["metrics.txt"]
        assert json.loads(found["quorum.json"])["leader_id"] == 1
        told = json.loads(found["nodes/1/configs.json"])
        assert told["ssl.key.password"] == {"value": "", "source": "STATIC_BROKER_CONFIG"}
        assert told["prometheus.listener"]["value"] == "127.0.0.1:0"
        assert "broker 1 is ready" in found["nodes/1/log.txt"]
        assert json.loads(found["nodes/1/node.json"])["node_id"] == 1
        assert json.loads(found["log-dirs.json"])["1"][0]["error"] is None
        assert [name for name, text in found.items() if SECRET in text] == []
        assert server.broker is not None
        assert server.broker._tier is not None
        for _ in range(3):
            tasks = server.broker._tier.metrics.failed_tasks
            tasks.fail("copy", TopicIdPartition(UUID(int=1), "tale", 0), OSError("AccessDenied"))
        asked = ["health", "--bootstrap-server", bootstrap, "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, cluster_app, asked)
        (problem,) = json.loads(done.stdout)["problems"]
        assert (problem["kind"], problem["where"]) == ("tier task fails", "broker 1: tale-0")
        assert problem["detail"].startswith("copy failed 3 times since ")
        assert problem["detail"].endswith(": AccessDenied")

    serve(config, story)
