"""Answers that a node gives about itself, alone and over the wire."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from node.server import Server
from quorum.services import node_answers
from quorum.services.node_answers import describe_node, describe_node_log
from tests.node.test_server import combined_config
from tidemark import logs
from tidemark.client.models import AlterConfigOp, ConfigResource, NodeState
from tidemark.errors import NetworkError
from tidemark.testing import Cluster
from tidemark.v1 import admin_pb2

END = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
END_MS = int(END.timestamp() * 1000)


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logs._recent.clear()
    root.handlers[:] = handlers
    root.setLevel(level)


def with_tls(tmp_path: Path, end: datetime.datetime = END) -> Any:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", common_name="node", not_after=end)
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return combined_config(
        tmp_path,
        **{
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SSL",
            "ssl.keystore.location": str(tmp_path / "node.pem"),
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
            "ssl.client.auth": "required",
        },
    )


def test_the_end_of_each_listeners_certificate_is_told(tmp_path: Path) -> None:
    config = with_tls(tmp_path)
    answer = describe_node(config, [])
    (told,) = answer.certificates
    assert (answer.node_id, told.listener, told.not_after_ms) == (1, "PLAINTEXT", END_MS)
    assert "CN=node" in told.subject
    assert Server.certificates(SimpleNamespace(config=config)) == {"PLAINTEXT": END_MS}  # type: ignore[arg-type]
    (tmp_path / "node.pem").write_text("nothing")
    assert Server.certificates(SimpleNamespace(config=config)) == {}  # type: ignore[arg-type]
    (told,) = describe_node(config, []).certificates
    assert told.error_message.startswith("ssl.keystore.location has 0 private keys")
    assert told.not_after_ms == 0
    (tmp_path / "node.pem").unlink()
    (told,) = describe_node(config, []).certificates
    assert "No such file" in told.error_message


def test_the_newest_lines_are_told_as_far_as_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.setup(logging.INFO)
    for number in range(1_005):
        logging.getLogger("node.tale").info("line %d", number)
    logging.getLogger("node.tale").info("long %s \udcff", "x" * 3_000)
    lines = list(describe_node_log(admin_pb2.DescribeNodeLogRequest()).lines)
    assert len(lines) == 1_000
    assert lines[-2].endswith("line 1004")
    assert len(lines[-1]) == 2_000
    few = describe_node_log(admin_pb2.DescribeNodeLogRequest(max_lines=2)).lines
    assert list(few) == lines[-2:]
    monkeypatch.setattr(node_answers, "_LOG_BYTES_MAX", 2_010)
    assert list(describe_node_log(admin_pb2.DescribeNodeLogRequest()).lines) == lines[-2:]


def test_brokers_and_controllers_are_asked_each_for_itself() -> None:
    with Cluster(seed=3, controllers=1, brokers=2) as cluster, cluster.admin() as admin:
        broker = cluster.brokers[1].node_id
        found = admin.nodes.describe()
        assert set(found) == set(cluster.nodes)
        for node_id, state in found.items():
            assert isinstance(state, NodeState)
            assert (state.node_id, state.certificates, state.failed_tasks) == (node_id, (), ())
            assert state.version
        strange = admin.nodes.describe([77])[77]
        assert isinstance(strange, NetworkError)
        assert "node 77" in str(strange)
        assert set(admin.nodes.logs([broker])) == {broker}
        (controller,) = set(cluster.nodes) - {node.node_id for node in cluster.brokers}
        own = ConfigResource.broker(controller)
        assert admin.describe_configs([own])[own]["process.roles"].value == "controller"


def test_the_threshold_of_slow_requests_changes_on_running_brokers_and_controllers() -> None:
    with Cluster(seed=4, controllers=1, brokers=1) as cluster, cluster.admin() as admin:
        nodes = list(cluster.nodes.values())
        assert [node.server._meters.slow_s for node in nodes] == [float("inf")] * 2
        name, everywhere = "slow.request.threshold.ms", ConfigResource.broker(None)
        admin.incremental_alter_configs({everywhere: [AlterConfigOp(name, "250", "SET")]})
        cluster.advance(5)
        assert [node.server._meters.slow_s for node in nodes] == [0.25, 0.25]
        own = ConfigResource.broker(cluster.brokers[0].node_id)
        told = admin.describe_configs([own], [name])[own][name]
        assert (told.value, told.source) == ("250", "DYNAMIC_DEFAULT_BROKER_CONFIG")
        admin.incremental_alter_configs({everywhere: [AlterConfigOp(name, None, "DELETE")]})
        cluster.advance(5)
        assert [node.server._meters.slow_s for node in nodes] == [float("inf")] * 2
