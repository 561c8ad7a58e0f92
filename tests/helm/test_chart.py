"""The chart, rendered by the real Helm.

Manifests are valid Kubernetes objects in a strict check, required properties hold in them, and
impossible values are refused with a reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

TLS = {"tls.enabled": "true", "tls.existingSecret": "tide-tls"}
CERT_MANAGER = {"tls.enabled": "true", "tls.certManager.enabled": "true"}
USERS = TLS | {
    "tls.clients.protocol": "SASL_SSL",
    "users[0].name": "ann",
    "users[0].secret": "tide-users",
    "users[0].key": "ann",
    "users[1].name": "admin",
    "users[1].secret": "tide-admin",
    "acls.enabled": "true",
    "acls.superUsers[0]": "admin",
    "acls.prune": "true",
    "acls.entries[0].principal": "ann",
    "acls.entries[0].topics": "{flights,flights-2}",
    "acls.entries[0].groups[0]": "g",
    "acls.entries[0].consumer": "true",
    "acls.entries[1].principal": "*",
    "acls.entries[1].cluster": "true",
    "acls.entries[1].operations": "{describe,alter}",
    "acls.entries[1].hosts[0]": "10.0.0.7",
    "acls.entries[1].deny": "true",
}
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
    "outside-by-node-ports": {"broker.external.enabled": "true", "networkPolicy.enabled": "true"},
    "outside-by-load-balancers": {
        "broker.external.enabled": "true",
        "broker.external.type": "LoadBalancer",
        "broker.external.host": "broker-{ordinal}.example.com",
        r"broker.external.annotations.external-dns/hostname": "broker-{ordinal}.example.com",
    },
    "users-of-the-platform": {
        "podSecurityContext.runAsUser": "null",
        "podSecurityContext.runAsGroup": "null",
        "podSecurityContext.fsGroup": "null",
    },
    "extras": {
        "broker.extraEnv[0].name": "HTTPS_PROXY",
        "broker.extraEnv[0].value": "http://proxy:3128",
        "broker.extraVolumes[0].name": "more",
        "broker.extraVolumes[0].emptyDir.sizeLimit": "1Mi",
        "broker.extraVolumeMounts[0].name": "more",
        "broker.extraVolumeMounts[0].mountPath": "/more",
        "broker.initContainers[0].name": "first",
        "broker.initContainers[0].image": "busybox:1",
        "broker.sidecars[0].name": "beside",
        "broker.sidecars[0].image": "busybox:1",
        "broker.podLabels.team": "data",
        "broker.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].key": "disk",
        "broker.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].operator": "Exists",
    },
    "role-and-authorities": S3
    | {"remoteStorage.existingSecret": "", "remoteStorage.caConfigMap": "authorities"},
    "several-disks": {"broker.persistence.volumes": "3"},
    "topics": {
        "topics[0].name": "events",
        "topics[0].partitions": "12",
        "topics[0].replicationFactor": "3",
        r"topics[0].config.retention\.ms": "604800000",
        "topics[1].name": "plain",
    },
    "tls-of-a-secret": TLS | {"broker.external.enabled": "true"},
    "tls-by-cert-manager": CERT_MANAGER
    | {
        "networkPolicy.enabled": "true",
        "broker.external.enabled": "true",
        "broker.external.host": "broker-{ordinal}.example.com",
        "broker.external.type": "LoadBalancer",
        "tls.certManager.ipAddresses[0]": "10.0.0.7",
        "tls.certManager.dnsNames[0]": "tide.example.com",
    },
    "tls-by-an-issuer-of-the-company": CERT_MANAGER
    | {
        "tls.certManager.issuer.name": "company",
        "tls.certManager.issuer.kind": "ClusterIssuer",
        "tls.nodeName": "a-node",
        "tls.clients.clientAuth": "required",
        "tls.clients.existingSecret": "public-tls",
        "acls.enabled": "true",
    },
    "users-and-acls": USERS,
    "dashboards": {"metrics.dashboards.enabled": "true"},
    "without-checks": {"checkSettings": "false", "broker.stopGateSeconds": "0"},
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


def environment(name: str, role: str) -> dict[str, Any]:
    return {each["name"]: each for each in container(name, role)["env"]}


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
        if manifest["apiVersion"].startswith("cert-manager.io/"):
            continue  # tests/helm/test_security.py reads it
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
        security = pod["containers"][0]["securityContext"]
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
    names = set(documented())
    for rule in group["rules"]:
        found_names = re.findall(r"tidemark_\w+", rule["expr"])
        used = {n.removesuffix("_total").removesuffix("_bucket") for n in found_names}
        assert used and used <= names, rule["alert"]


def test_each_broker_has_a_service_and_an_address_for_clients_outside(tmp_path: Path) -> None:
    services = by_kind("outside-by-node-ports", "Service")
    for ordinal in range(3):
        spec = services[f"blue-tidemark-external-{ordinal}"]["spec"]
        pod = f"blue-tidemark-broker-{ordinal}"
        assert spec["selector"]["statefulset.kubernetes.io/pod-name"] == pod
        assert spec["ports"][0]["nodePort"] == 32100 + ordinal
    listeners = rendered_properties("outside-by-node-ports", "broker")["listeners"]
    assert listeners == "PLAINTEXT://:9092,EXTERNAL://:9094"
    environ = environment("outside-by-node-ports", "broker")
    assert environ["EXTERNAL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    given = {"EXTERNAL_HOST": "10.0.0.7", "EXTERNAL_PORT": "9094", "EXTERNAL_NODE_PORT": "32100"}
    advertised = start_script(tmp_path, "broker", "blue-broker-2", given)[2]
    assert advertised.endswith(":9092,EXTERNAL://10.0.0.7:32102")

    first = by_kind("outside-by-load-balancers", "Service")["blue-tidemark-external-0"]
    assert first["metadata"]["annotations"]["external-dns/hostname"] == "broker-0.example.com"
    environ = environment("outside-by-load-balancers", "broker")
    assert "EXTERNAL_NODE_PORT" not in environ
    given = {"EXTERNAL_HOST": environ["EXTERNAL_HOST"]["value"], "EXTERNAL_PORT": "9094"}
    advertised = start_script(tmp_path, "broker", "blue-broker-11", given)[2]
    assert advertised.endswith(",EXTERNAL://broker-11.example.com:9094")


def test_a_platform_may_choose_the_users() -> None:
    for one in manifests("users-of-the-platform"):
        if one["kind"] in ("StatefulSet", "Job"):
            security = one["spec"]["template"]["spec"]["securityContext"]
            assert not security.keys() & {"runAsUser", "runAsGroup", "fsGroup"}
            assert security["runAsNonRoot"] is True


def test_a_pod_takes_what_is_added_to_it() -> None:
    pod = by_kind("extras", "StatefulSet")["blue-tidemark-broker"]["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "data"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["tidemark", "beside"]
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["first"]
    assert environment("extras", "broker")["HTTPS_PROXY"]["value"] == "http://proxy:3128"
    assert {"name": "more", "mountPath": "/more"} in pod["spec"]["containers"][0]["volumeMounts"]
    assert set(pod["spec"]["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    assert "HTTPS_PROXY" not in environment("extras", "controller")


def test_a_role_and_own_authorities_need_no_secret() -> None:
    environ = environment("role-and-authorities", "broker")
    assert "AWS_ACCESS_KEY_ID" not in environ
    assert environ["SSL_CERT_FILE"]["value"] == "/etc/tidemark-ca/ca.crt"
    mounts = container("role-and-authorities", "broker")["volumeMounts"]
    assert {"name": "ca", "mountPath": "/etc/tidemark-ca", "readOnly": True} in mounts


def test_each_log_directory_is_on_a_volume_of_its_own() -> None:
    spec = by_kind("several-disks", "StatefulSet")["blue-tidemark-broker"]["spec"]
    assert [c["metadata"]["name"] for c in spec["volumeClaimTemplates"]] == [
        "data",
        "data-1",
        "data-2",
    ]
    mounts = {
        m["name"]: m["mountPath"] for m in container("several-disks", "broker")["volumeMounts"]
    }
    directories = rendered_properties("several-disks", "broker")["log.dirs"].split(",")
    assert directories == [f"{mounts[name]}/data" for name in ("data", "data-1", "data-2")]
    assert "data-1" not in {
        m["name"] for m in container("several-disks", "controller")["volumeMounts"]
    }


def test_topics_of_values_are_made_and_keep_their_settings() -> None:
    job = by_kind("topics", "Job")["blue-tidemark-after"]
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0].splitlines()[1:]
    assert [line.strip() for line in script] == [
        "repeat tidemark topics create events --if-not-exists --partitions 12"
        " --replication-factor 3",
        "repeat tidemark configs alter --topic events --set 'retention.ms=604800000'",
        "repeat tidemark topics create plain --if-not-exists",
    ]
    assert list(by_kind("defaults", "Job")) == ["blue-tidemark-before"]
    assert not by_kind("without-checks", "Job")


def test_a_wrong_setting_stops_an_upgrade_before_any_pod(tmp_path: Path) -> None:
    """The script of the job, over the settings that it is given."""
    values = {r"broker.config.log\.segment\.bytes": "7"}
    found = {
        (m["kind"], m["metadata"]["name"]): m
        for m in yaml.safe_load_all(run_helm("template blue", values).stdout)
        if m
    }
    for name, text in found["ConfigMap", "blue-tidemark-before"]["data"].items():
        (tmp_path / name).write_text(text)
    job = found["Job", "blue-tidemark-before"]["spec"]["template"]["spec"]["containers"][0]
    script = job["args"][0].replace("/tmp/", f"{tmp_path}/made-")
    script = script.replace("/etc/tidemark", str(tmp_path))
    bin_directory = Path(sys.executable).parent
    done = subprocess.run(
        ["/bin/sh", "-euc", script],
        env={"PATH": f"{bin_directory}:/usr/bin:/bin", "TIDEMARK_BOOTSTRAP_SERVER": "x:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "log.segment.bytes" in done.stderr


def gate(port: int, seconds: str) -> float:
    began = time.monotonic()
    command = [sys.executable, str(CHART / "files" / "stop.py"), str(port), seconds]
    subprocess.run(command, check=True, timeout=30)
    return time.monotonic() - began


def test_a_pod_that_is_asked_to_stop_waits_until_no_partition_needs_it() -> None:
    command = container("defaults", "broker")["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "/etc/tidemark/stop.py", "9404", "60"]
    assert "lifecycle" not in container("without-checks", "broker")
    assert "lifecycle" not in container("no-metrics", "broker")
    asked: list[str] = []

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503 if len(asked) < 3 else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        gate(server.server_address[1], "30")
        assert asked == ["/restartz"] * 3
        asked[:] = []
        gate(server.server_address[1], "0")
        assert len(asked) == 1, "the time is over"
        server.shutdown()
        thread.join()
    assert gate(server.server_address[1], "30") < 10, "the node has ended"


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
    found = by_kind(name, "ConfigMap")["blue-tidemark-config"]
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
        (S3 | {"remoteStorage.bucket": ""}, "needs remoteStorage.endpoint"),
        ({"brokr.replicas": "3"}, "brokr"),
        ({"topics[0].name": "a b"}, "name"),
        ({"topics[0].name": "a", "topics[0].replicationFactor": "4"}, "a has replicationFactor 4"),
        ({"topics[0].name": "a", "topics[0].config.x": "'"}, "config"),
        ({"broker.stopGateSeconds": "100"}, "a stop takes up to 30 s after"),
        (
            {"broker.external.enabled": "true", "broker.external.type": "LoadBalancer"},
            "needs broker.external.host",
        ),
        (
            {
                "broker.external.enabled": "true",
                "broker.external.type": "LoadBalancer",
                "broker.external.host": "one.example.com",
            },
            "needs {ordinal}",
        ),
        ({"broker.external.enabled": "true", "broker.external.port": "9092"}, "in use by another"),
        ({"broker.persistence.size": "plenty"}, "size"),
        ({"clusterId": "short"}, "clusterId"),
        ({"metrics.port": "9092"}, "in use by the nodes' own listeners"),
        (
            {"metrics.enabled": "false", "metrics.podMonitor.enabled": "true"},
            "need metrics.enabled",
        ),
        (
            {"metrics.enabled": "false", "metrics.dashboards.enabled": "true"},
            "need metrics.enabled",
        ),
        ({r"config.prometheus\.listener": "x:1"}, "set by the chart"),
    ],
)
def test_impossible_values_are_refused_with_a_reason(values: dict[str, str], said: str) -> None:
    done = run_helm("template blue", values)
    assert done.returncode != 0
    assert said in done.stderr
