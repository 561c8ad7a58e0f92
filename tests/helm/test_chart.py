"""The chart, rendered by the real Helm.

Manifests are valid Kubernetes objects in a strict check, required properties hold in them, and
impossible values are refused with a reason.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.node.metrics.test_exposition import documented
from tests.tools import tool
from tidemark.config import parse_server_config
from tidemark.config.properties import parse_properties

CHART = Path(__file__).resolve().parents[2] / "helm" / "tidemark"
KUBERNETES_VERSIONS = ("1.31", "1.35")

S3 = {
    "remoteStorage.enabled": "true",
    "remoteStorage.endpoint": "https://s3.example:9000",
    "remoteStorage.bucket": "tide",
    "remoteStorage.existingSecret": "tide-credentials",
}
VALUE_SETS: dict[str, dict[str, str]] = {
    "defaults": {},
    "one-node-each": {
        "controller.replicas": "1",
        "broker.replicas": "1",
        r"config.default\.replication\.factor": "1",
        r"config.min\.insync\.replicas": "1",
        "scheduling.hostAntiAffinity": "none",
        "scheduling.zoneSpread.enabled": "false",
    },
    "five-voters-ten-brokers": {
        "controller.replicas": "5",
        "broker.replicas": "10",
        "broker.rack.mode": "ordinal",
        "broker.rack.names": "{a,b,c}",
        "scheduling.hostAntiAffinity": "preferred",
        "scheduling.zoneSpread.whenUnsatisfiable": "DoNotSchedule",
    },
    "tier": S3 | {"remoteStorage.region": "eu-1", "remoteStorage.keyPrefix": "blue"},
    "no-metrics": {"metrics.enabled": "false"},
    "network-policy-and-zone": {
        "networkPolicy.enabled": "true",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team": "watch",
        "networkPolicy.brokerFrom[0].namespaceSelector.matchLabels.team": "data",
        "broker.rack.mode": "zone",
        "image.pullSecrets[0].name": "pull",
        "controller.priorityClassName": "high",
        "broker.persistence.storageClass": "fast",
        "broker.tolerations[0].operator": "Exists",
        r"serviceAccount.annotations.example\.com/role": "tide",
    },
}


def run_helm(command: str, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs `helm COMMAND` over the chart, with --set for every value."""
    arguments = [tool("helm"), *command.split(), str(CHART), "--namespace", "tide"]
    for key, value in values.items():
        arguments += ["--set", f"{key}={value}"]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


@cache
def manifests(name: str) -> list[dict[str, Any]]:
    """The rendered objects of a value set."""
    done = run_helm("template blue", VALUE_SETS[name])
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def by_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in manifests(name) if m["kind"] == kind}


def container(name: str, role: str) -> dict[str, Any]:
    stateful_set = by_kind(name, "StatefulSet")[f"blue-tidemark-{role}"]
    found: dict[str, Any] = stateful_set["spec"]["template"]["spec"]["containers"][0]
    return found


def rendered_properties(name: str, role: str) -> dict[str, str]:
    data = by_kind(name, "ConfigMap")["blue-tidemark-config"]["data"]
    return parse_properties(data[f"{role}.properties"])


@pytest.mark.parametrize("name", VALUE_SETS)
def test_lint_is_strictly_clean(name: str) -> None:
    done = run_helm("lint --strict", VALUE_SETS[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_manifest_is_a_valid_object(name: str, version: str) -> None:
    for manifest in manifests(name):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("role", ["controller", "broker"])
@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_server_accepts_its_settings(name: str, role: str) -> None:
    config = parse_server_config(rendered_properties(name, role) | {"node.id": "0"})
    assert config.process_roles == (role,)
    assert len(config.voters()) == int(VALUE_SETS[name].get("controller.replicas", "3"))


def test_no_number_is_written_in_scientific_notation() -> None:
    values = {r"broker.config.log\.segment\.bytes": "1073741824"}
    done = run_helm("template blue", values)
    assert "log.segment.bytes=1073741824\n" in done.stdout


@pytest.mark.parametrize("name", VALUE_SETS)
def test_pods_are_not_root_and_can_write_only_their_volumes(name: str) -> None:
    for stateful_set in by_kind(name, "StatefulSet").values():
        pod = stateful_set["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for of_pod in pod["containers"]:
            security = of_pod["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_metrics_are_served_and_scraped_at_one_port() -> None:
    for role in ("controller", "broker"):
        assert rendered_properties("defaults", role)["prometheus.listener"] == ":9404"
        ports = {
            port["name"]: port["containerPort"] for port in container("defaults", role)["ports"]
        }
        assert ports["metrics"] == 9404
        assert "prometheus.listener" not in rendered_properties("no-metrics", role)
        assert [port["name"] for port in container("no-metrics", role)["ports"]] == ["grpc"]
    for policy in by_kind("network-policy-and-zone", "NetworkPolicy").values():
        (scrapes,) = (one for one in policy["spec"]["ingress"] if one["ports"][0]["port"] == 9404)
        assert scrapes["from"] == [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]


def test_the_prometheus_operator_gets_a_monitor_and_rules_where_asked() -> None:
    values = {
        "metrics.podMonitor.enabled": "true",
        "metrics.podMonitor.labels.release": "watch",
        "metrics.prometheusRule.enabled": "true",
    }
    done = run_helm("template blue", values)
    assert done.returncode == 0, done.stderr
    found = {m["kind"]: m for m in yaml.safe_load_all(done.stdout) if m}
    monitor, rules = found["PodMonitor"], found["PrometheusRule"]
    assert monitor["metadata"]["labels"]["release"] == "watch"
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    for stateful_set in (m for m in yaml.safe_load_all(done.stdout) if m["kind"] == "StatefulSet"):
        assert selected <= stateful_set["spec"]["template"]["metadata"]["labels"].items()
    (group,) = rules["spec"]["groups"]
    names = set(documented()) | {"tidemark_event_loop_lag_seconds_bucket"}
    for rule in group["rules"]:
        used = {n.removesuffix("_total") for n in re.findall(r"tidemark_\w+", rule["expr"])}
        assert used and used <= names, rule["alert"]


@pytest.mark.parametrize(("replicas", "away"), [("3", 1), ("5", 2), ("7", 3)])
def test_the_controllers_budget_leaves_a_majority(replicas: str, away: int) -> None:
    done = run_helm("template blue", {"controller.replicas": replicas})
    budgets = [m for m in yaml.safe_load_all(done.stdout) if m["kind"] == "PodDisruptionBudget"]
    controllers = [b for b in budgets if b["metadata"]["name"].endswith("-controller")]
    assert [b["spec"]["maxUnavailable"] for b in controllers] == [away]


def test_scaling_brokers_does_not_restart_a_pod() -> None:
    def pods(replicas: str) -> list[Any]:
        done = run_helm("template blue", {"broker.replicas": replicas})
        sets = [m for m in yaml.safe_load_all(done.stdout) if m["kind"] == "StatefulSet"]
        return [s["spec"]["template"] for s in sets]

    assert pods("3") == pods("9")


def test_the_cluster_id_stays_over_upgrades_and_can_be_given() -> None:
    given = "abcdefghijklmnopqrstuA"
    assert manifests("defaults") == manifests.__wrapped__("defaults")
    assert f'cluster-id: "{given}"' in run_helm("template blue", {"clusterId": given}).stdout


def test_credentials_come_from_the_secret_and_reach_brokers_only() -> None:
    names = {e["name"]: e for e in container("tier", "broker")["env"]}
    secret = names["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "tide-credentials", "key": "secret-key"}
    assert "AWS_SECRET_ACCESS_KEY" not in {
        e["name"] for e in container("tier", "controller")["env"]
    }
    assert rendered_properties("tier", "broker")["rsm.config.bucket"] == "tide"


def test_headless_services_publish_pods_that_are_not_ready() -> None:
    services = by_kind("defaults", "Service")
    for role in ("controller", "broker"):
        spec = services[f"blue-tidemark-{role}"]["spec"]
        assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] is True


def start_script(tmp_path: Path, role: str, pod: str, environment: dict[str, str]) -> list[str]:
    """Runs files/start.sh over a `tidemark` that only prints its arguments. Returns the resulting
    lines.
    """
    (tmp_path / "tidemark").write_text('#!/bin/sh\necho "RUN $*"\n')
    (tmp_path / "tidemark").chmod(0o755)
    (tmp_path / f"{role}.properties").write_text(f"process.roles={role}\n")
    (tmp_path / "cluster-id").write_text("abcdefghijklmnopqrstuA")
    script = (CHART / "files" / "start.sh").read_text()
    script = script.replace("/etc/tidemark", str(tmp_path)).replace("/run/tidemark", str(tmp_path))
    known = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "ROLE": role,
        "POD_NAME": pod,
        "DOMAIN": "blue.svc",
        "PORT": "9092",
        "NODE_ID_OFFSET": "0",
        "LOG_LEVEL": "info",
    }
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    return (tmp_path / "server.properties").read_text().splitlines() + done.stdout.splitlines()


def test_a_pod_makes_its_id_rack_and_address_from_its_ordinal(tmp_path: Path) -> None:
    environment = {"NODE_ID_OFFSET": "100", "RACK_NAMES": "a b c"}
    lines = start_script(tmp_path, "broker", "blue-broker-14", environment)
    assert lines[:4] == [
        "process.roles=broker",
        "node.id=114",
        "advertised.listeners=PLAINTEXT://blue-broker-14.blue.svc:9092",
        "broker.rack=c",
    ]
    assert lines[4].startswith("RUN storage format ") and lines[4].endswith("--ignore-formatted")
    assert lines[5].startswith("RUN server ")


def test_a_pod_without_a_zone_has_no_rack(tmp_path: Path) -> None:
    lines = start_script(tmp_path, "broker", "blue-broker-0", {"RACK_ZONE": ""})
    assert not any(line.startswith("broker.rack") for line in lines)


@pytest.mark.parametrize(("name", "factor", "least"), [("one-node-each", 1, 1), ("defaults", 3, 2)])
def test_internal_topics_have_as_many_replicas_as_there_are_brokers(
    name: str, factor: int, least: int
) -> None:
    (found,) = by_kind(name, "ConfigMap").values()
    lines = found["data"]["broker.properties"].splitlines()
    assert f"offsets.topic.replication.factor={factor}" in lines
    assert f"transaction.state.log.replication.factor={factor}" in lines
    assert f"transaction.state.log.min.isr={least}" in lines


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"controller.replicas": "4"}, "an even number of voters"),
        ({"controller.podDisruptionBudget.maxUnavailable": "2"}, "breaks the quorum"),
        ({"broker.podDisruptionBudget.maxUnavailable": "2"}, "bears 1 away"),
        ({"broker.replicas": "2"}, "needs as many brokers"),
        ({r"config.min\.insync\.replicas": "4"}, "nothing could be produced"),
        ({r"broker.config.node\.id": "1"}, "set by the chart"),
        ({"broker.rack.mode": "ordinal"}, "needs broker.rack.names"),
        ({"broker.nodeIdOffset": "2"}, "would meet those of 3 controllers"),
        (S3 | {"remoteStorage.existingSecret": ""}, "needs remoteStorage.existingSecret"),
        (S3 | {"remoteStorage.bucket": ""}, "needs remoteStorage.endpoint"),
        ({"brokr.replicas": "3"}, "brokr"),
        ({"broker.persistence.size": "plenty"}, "size"),
        ({"clusterId": "short"}, "clusterId"),
        ({"metrics.port": "9092"}, "in use by the nodes' own listeners"),
        (
            {"metrics.enabled": "false", "metrics.podMonitor.enabled": "true"},
            "need metrics.enabled",
        ),
        ({r"config.prometheus\.listener": "x:1"}, "set by the chart"),
    ],
)
def test_impossible_values_are_refused_with_a_reason(values: dict[str, str], said: str) -> None:
    done = run_helm("template blue", values)
    assert done.returncode != 0
    assert said in done.stderr
