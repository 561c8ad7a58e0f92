"""Metrics and probes of a real node, and the page that lists them."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.metrics.harms import restart_harms
from node.runtime.storage import format_storage
from node.server import Server
from tests.node.cluster import batch
from tests.node.fakes import CLUSTER_ID
from tests.node.test_server import Client, combined_config, serve
from tests.readme import README
from tidemark.testing import Cluster

TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "directory",
    "remote.log.metadata.topic.replication.factor": "1",
}


def get(server: Server, path: str) -> tuple[int, str]:
    """The status and the body."""
    assert server.metrics_endpoint is not None
    try:
        found: HTTPResponse = urllib.request.urlopen(
            f"http://{server.metrics_endpoint.address}{path}", timeout=30
        )
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    with found:
        return found.status, found.read().decode()


def values_of(text: str) -> dict[str, float]:
    """Samples by name and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def documented() -> dict[str, str]:
    """The types by name, of METRICS.md."""
    text = (README.parent / "METRICS.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## ")[1:]:
        prefix = re.search(r": `(\w+)`$", section.splitlines()[0])
        assert prefix is not None, section
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
        found |= {prefix[1] + name: kind for name, kind in rows}
    return found


def test_a_node_tells_what_passes_through_it_and_how_it_is(tmp_path: Path) -> None:
    import asyncio

    config = combined_config(
        tmp_path,
        **{"prometheus.listener": "127.0.0.1:0", "rsm.config.dir": f"{tmp_path}/tier"},
        **TIER,
    )
    format_storage(config, CLUSTER_ID)

    async def story(server: Server, client: Client) -> None:
        sent = batch("a", "b")
        await client.create("flights")
        await client.produce("flights", sent)
        await client.log.Fetch(client.fetch_request("flights"))
        status, text = await asyncio.to_thread(get, server, "/metrics")
        assert status == 200
        values = values_of(text)
        flights = "{topic=flights}"
        assert values[f"tidemark_topic_bytes_in_total{flights}"] == len(sent)
        assert values[f"tidemark_topic_bytes_out_total{flights}"] == len(sent)
        assert values[f"tidemark_topic_records_in_total{flights}"] == 2
        assert values[f"tidemark_topic_replication_bytes_in_total{flights}"] == 0
        assert values[f"tidemark_topic_log_size_bytes{flights}"] == len(sent)
        assert values["tidemark_node_ready"] == 1
        assert values["tidemark_broker_under_replicated_partitions"] == 0
        assert values["tidemark_controller_active_controller_count"] == 1
        assert values["tidemark_raft_current_state{value=leader}"] == 1
        assert values[f"tidemark_log_directory_online{{path={tmp_path}/data}}"] == 1
        assert values[f"tidemark_log_directory_free_bytes{{path={tmp_path}/data}}"] > 0
        api = "{api=Produce}"
        assert values[f"tidemark_request_duration_seconds_count{api}"] >= 1
        assert 0 < values[f"tidemark_request_duration_seconds_sum{api}"] < 30
        assert values["tidemark_request_duration_seconds_count{api=FetchConsumer}"] >= 1
        assert values["tidemark_request_duration_seconds_count{api=CreateTopics}"] >= 1
        assert values["tidemark_request_duration_seconds_count{api=BrokerHeartbeat}"] > 0
        missing = "{api=Produce,error=UNKNOWN_TOPIC_OR_PARTITION}"
        assert f"tidemark_request_errors_total{missing}" not in values
        assert values["tidemark_fsync_duration_seconds_count"] > 0
        await client.produce("strange", sent)
        _, text = await asyncio.to_thread(get, server, "/metrics")
        assert values_of(text)[f"tidemark_request_errors_total{missing}"] == 1
        told = {f.name: f.type for f in text_string_to_metric_families(text)}
        own = {name: kind for name, kind in told.items() if name.startswith("tidemark_")}
        lag = {"tidemark_event_loop_lag_seconds": "histogram"}  # of a process
        assert own | lag == documented()
        for path in ("/livez", "/startupz", "/readyz", "/restartz"):
            assert (await asyncio.to_thread(get, server, path))[0] == 200, path
        assert (await asyncio.to_thread(get, server, "/other"))[0] == 404

    serve(config, story)


def test_the_client_of_prometheus_costs_nothing_unless_it_is_configured() -> None:
    told = "import sys, node.server; print('prometheus_client' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_no_port_is_opened_unless_it_is_configured(tmp_path: Path) -> None:
    config = combined_config(tmp_path)
    format_storage(config, CLUSTER_ID)

    async def story(server: Server, _: Client) -> None:
        assert server.metrics_endpoint is None

    serve(config, story)


def test_a_restart_harms_partitions_that_have_no_replica_to_spare() -> None:
    with Cluster(seed=1, brokers=3) as cluster:
        cluster.create_topic("spare", 1, min_insync_replicas="2")
        cluster.create_topic("short", 1, min_insync_replicas="3")
        nodes = [node.node_id for node in cluster.brokers]
        image = cluster.brokers[0].server.loader.image
        least = {"spare": 2, "short": 3}
        for node_id in nodes:
            assert restart_harms(image, node_id, lambda t: least.get(t, 1)) == ["short-0"]
        cluster.kill(nodes[2])
        cluster.advance(30)
        image = cluster.brokers[0].server.loader.image
        for node_id in nodes[:2]:
            harmed = restart_harms(image, node_id, lambda t: least.get(t, 1))
            assert harmed == ["short-0", "spare-0"]


@pytest.mark.parametrize("name", ["listener", "127.0.0.1"])
def test_a_listener_without_a_port_is_refused(tmp_path: Path, name: str) -> None:
    from tidemark.errors import ConfigError

    with pytest.raises(ConfigError, match=r"prometheus\.listener"):
        combined_config(tmp_path, **{"prometheus.listener": name})


def test_stacks_and_samples_are_for_the_nodes_own_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio
    import tarfile

    from typer.testing import CliRunner

    from node.metrics import debugging, endpoint
    from tidemark.cli.debug import app

    monkeypatch.setattr(debugging.top, "__defaults__", (0.1,))
    config = combined_config(tmp_path, **{"prometheus.listener": "127.0.0.1:0"})
    format_storage(config, CLUSTER_ID)

    async def story(server: Server, _: Client) -> None:
        assert server.metrics_endpoint is not None
        at = server.metrics_endpoint.address

        async def call(*arguments: str) -> str:
            done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--at", at])
            assert done.exit_code == 0, done.output
            return done.output

        stacks = await call("stacks")
        assert "task lifecycle: " in stacks
        assert "thread MainThread: " in stacks
        assert "samples in 0.1 s" in await call("top")
        file = tmp_path / "bundle.tar.gz"
        await call("bundle", str(file))
        with tarfile.open(file) as archive:
            assert {"metrics.txt", "debug-stacks.txt", "restartz.txt"} <= set(archive.getnames())
        monkeypatch.setattr(endpoint, "_is_local", lambda _: False)
        status, text = await asyncio.to_thread(get, server, "/debug/stacks")
        assert (status, text) == (403, "ask on the node's own host\n")
        assert (await asyncio.to_thread(get, server, "/readyz"))[0] == 200

    serve(config, story)
