"""Certificates, users and ACLs in the chart: its objects, its settings and its scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from quorum.access.listeners import AccessControl
from tests.helm.fake_api import api_server
from tests.helm.test_chart import (
    CERT_MANAGER,
    CHART,
    TLS,
    USERS,
    VALUE_SETS,
    by_kind,
    container,
    environment,
    manifests,
    rendered_properties,
    run_helm,
    start_script,
)
from tests.tools import tool
from tidemark.config import ServerConfig, parse_server_config
from tidemark.config.properties import parse_properties
from tidemark.config.security import client_security
from tidemark.wire.credentials import read_pems

SECURED = [name for name in VALUE_SETS if name.startswith(("tls-", "users-and"))]
_NODES = "/etc/tidemark-tls"


def job(name: str, which: str = "after") -> dict[str, Any]:
    found: dict[str, Any] = by_kind(name, "Job")[f"blue-tidemark-{which}"]
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def test_nodes_meet_by_certificates_and_clients_have_listeners_of_their_own() -> None:
    broker = rendered_properties("users-and-acls", "broker")
    assert broker["listeners"] == "CLIENTS://:9092,INTERNAL://:9091"
    assert broker["inter.broker.listener.name"] == "INTERNAL"
    protocols = "CONTROLLER:SSL,INTERNAL:SSL,CLIENTS:SASL_SSL"
    assert broker["listener.security.protocol.map"] == protocols
    for role, listener in (("broker", "INTERNAL"), ("controller", "CONTROLLER")):
        config = of_role("users-and-acls", role)
        assert config.security_of(listener).ssl_client_auth == "required"
        assert config.security.super_principals == {"User:blue-tidemark-node", "User:admin"}
    external = rendered_properties("tls-of-a-secret", "broker")
    assert external["listener.security.protocol.map"].endswith("CLIENTS:SSL,EXTERNAL:SSL")
    own = of_role("tls-by-an-issuer-of-the-company", "broker").security_of("CLIENTS")
    assert own.ssl_client_auth == "required"
    files = "/etc/tidemark-tls-clients/tls.crt", "/etc/tidemark-tls-clients/tls.key"
    assert own.ssl.ssl_keystore_location == files
    assert own.ssl.ssl_truststore_location == ("/etc/tidemark-tls-clients/ca.crt",)


def of_role(name: str, role: str) -> ServerConfig:
    return parse_server_config(rendered_properties(name, role) | {"node.id": "0"})


@pytest.mark.parametrize("role", ["controller", "broker"])
@pytest.mark.parametrize("name", SECURED)
def test_settings_name_files_of_secrets_that_are_mounted(name: str, role: str) -> None:
    config = of_role(name, role)
    spec = by_kind(name, "StatefulSet")[f"blue-tidemark-{role}"]["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    secrets = {v["name"]: v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    for listener in (*config.listener_endpoints(), "CONTROLLER"):
        ssl = config.security_of(listener).ssl
        for path in (*ssl.ssl_keystore_location, *ssl.ssl_truststore_location):
            directory, _, file = path.rpartition("/")
            assert secrets[mounts[directory]]
            assert file in ("tls.crt", "tls.key", "ca.crt")


@pytest.mark.parametrize("name", ["tls-of-a-secret", "users-and-acls"])
def test_a_node_takes_its_rights_from_the_certificate_of_the_secret(
    name: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    issued = authority.issue_cert("x.example", common_name="blue-tidemark-node")
    issued.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(tmp_path / "tls.crt"), append=True)
    text = {
        k: v.replace(_NODES, str(tmp_path)) for k, v in rendered_properties(name, "broker").items()
    }
    config = parse_server_config(text | {"node.id": "0"})
    nodes = AccessControl(config, None)._nodes  # type: ignore[arg-type]  # asks for no image here
    assert "User:blue-tidemark-node" in nodes
    properties = by_kind(name, "ConfigMap")["blue-tidemark-config"]["data"]["client.properties"]
    security = client_security(parse_properties(properties.replace(_NODES, str(tmp_path))))
    assert read_pems(security.ssl).key


def test_a_pod_tells_addresses_of_both_listeners(tmp_path: Path) -> None:
    environ = {
        name: environment("tls-of-a-secret", "broker")[name]["value"]
        for name in ("LISTENER", "INTERNAL_PORT")
    }
    outside = {"EXTERNAL_HOST": "10.0.0.7", "EXTERNAL_PORT": "9094"}
    lines = start_script(tmp_path, "broker", "blue-broker-1", environ | outside)
    at = "blue-broker-1.blue.svc"
    advertised = f"CLIENTS://{at}:9092,INTERNAL://{at}:9091,EXTERNAL://10.0.0.7:9094"
    assert lines[2] == f"advertised.listeners={advertised}"


def test_probes_ask_where_kubelet_can(tmp_path: Path) -> None:
    for role in ("controller", "broker"):
        plain, secured = container("defaults", role), container("tls-of-a-secret", role)
        assert plain["readinessProbe"]["grpc"] == {"port": 9092 if role == "broker" else 9093}
        assert plain["livenessProbe"]["grpc"]["service"] == "liveness"
        for probe, path in (
            ("startup", "startupz"),
            ("liveness", "livez"),
            ("readiness", "readyz"),
        ):
            assert secured[f"{probe}Probe"]["httpGet"] == {"path": f"/{path}", "port": "metrics"}
            assert "grpc" not in secured[f"{probe}Probe"]


def test_the_command_line_in_a_pod_connects_as_a_node_and_the_server_does_not_see_it(
    tmp_path: Path,
) -> None:
    for role in ("controller", "broker"):
        found = environment("tls-of-a-secret", role)
        server = found["TIDEMARK_BOOTSTRAP_SERVER"]["value"]
        assert server == "blue-tidemark-bootstrap.tide.svc.cluster.local:9091"
        assert found["TIDEMARK_COMMAND_CONFIG"]["value"] == "/etc/tidemark/client.properties"
    plain = environment("defaults", "broker")
    assert plain["TIDEMARK_BOOTSTRAP_SERVER"]["value"].endswith(":9092")
    assert "TIDEMARK_COMMAND_CONFIG" not in plain
    spec = by_kind("tls-of-a-secret", "StatefulSet")["blue-tidemark-broker"]["spec"]
    (config,) = (v for v in spec["template"]["spec"]["volumes"] if v["name"] == "config")
    assert {"key": "client.properties", "path": "client.properties"} in config["configMap"]["items"]
    script = (CHART / "files" / "start.sh").read_text()
    assert "unset TIDEMARK_BOOTSTRAP_SERVER TIDEMARK_COMMAND_CONFIG" in script


def test_the_internal_listener_is_for_pods_of_the_release() -> None:
    ports = by_kind("tls-by-cert-manager", "Service")["blue-tidemark-bootstrap"]["spec"]["ports"]
    assert {port["name"]: port["port"] for port in ports} == {"grpc": 9092, "internal": 9091}
    policy = by_kind("tls-by-cert-manager", "NetworkPolicy")["blue-tidemark-broker"]["spec"]
    (inside,) = (one for one in policy["ingress"] if one["ports"][0]["port"] == 9091)
    (peer,) = inside["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "blue"


def certificates(name: str) -> dict[str, dict[str, Any]]:
    return {k: one["spec"] for k, one in by_kind(name, "Certificate").items()}


def test_cert_manager_makes_an_authority_and_a_certificate_of_all_names() -> None:
    found = certificates("tls-by-cert-manager")
    issuers = by_kind("tls-by-cert-manager", "Issuer")
    assert issuers["blue-tidemark-selfsigned"]["spec"] == {"selfSigned": {}}
    secret = issuers["blue-tidemark-ca"]["spec"]["ca"]["secretName"]
    assert found["blue-tidemark-ca"]["isCA"] and found["blue-tidemark-ca"]["secretName"] == secret
    node = found["blue-tidemark-tls"]
    assert node["issuerRef"]["name"] == "blue-tidemark-ca"
    assert node["commonName"] == "blue-tidemark-node"
    assert node["ipAddresses"] == ["10.0.0.7"]
    names = set(node["dnsNames"])
    domain = "tide.svc.cluster.local"
    assert {f"*.blue-tidemark-{role}.{domain}" for role in ("controller", "broker")} <= names
    assert {f"broker-{ordinal}.example.com" for ordinal in range(3)} <= names
    assert {"tide.example.com", f"blue-tidemark-bootstrap.{domain}"} <= names
    pod = by_kind("tls-by-cert-manager", "StatefulSet")["blue-tidemark-broker"]["spec"]
    (volume,) = (v for v in pod["template"]["spec"]["volumes"] if v["name"] == "tls")
    assert volume["secret"]["secretName"] == node["secretName"]


def test_an_issuer_that_there_is_signs_alone() -> None:
    assert not by_kind("tls-by-an-issuer-of-the-company", "Issuer")
    (node,) = certificates("tls-by-an-issuer-of-the-company").values()
    assert node["issuerRef"] == {
        "name": "company",
        "kind": "ClusterIssuer",
        "group": "cert-manager.io",
    }
    assert node["commonName"] == "a-node"
    config = of_role("tls-by-an-issuer-of-the-company", "controller")
    assert config.security.super_principals == {"User:a-node"}


def test_more_names_restart_no_pod() -> None:
    def pods(values: dict[str, str]) -> list[Any]:
        found = yaml.safe_load_all(run_helm("template blue", values).stdout)
        return [m["spec"]["template"] for m in found if m and m["kind"] == "StatefulSet"]

    more = {"tls.certManager.dnsNames[0]": "tide.example.com"}
    assert pods(CERT_MANAGER) == pods(CERT_MANAGER | more)
    assert pods(USERS) == pods(USERS | {"acls.prune": "false"})
    assert pods(USERS) != pods(USERS | {"acls.superUsers[0]": "ann"})


FAKE = """#!{python}
import sys
from pathlib import Path
here = Path(__file__).parent
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1:3] == ["acls", "add"]:
    from tidemark.cli.main import run
    run()
if sys.argv[1:3] == ["users", "set-password"]:
    user, file = sys.argv[3], sys.argv[5]
    (here / f"password-{{user}}").write_text(Path(file).read_text())
"""


def run_job(tmp_path: Path, name: str) -> list[str]:
    """Runs the script of the job over a command line that has no cluster; returns its calls."""
    (tmp_path / "tidemark").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "tidemark").chmod(0o755)
    pod = job(name)
    (one,) = pod["containers"]
    secrets = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
    script = re.sub("/(tmp|etc/tidemark-users)/", rf"{tmp_path}/\1/", one["args"][0])
    for mount in one["volumeMounts"]:
        place = tmp_path / mount["mountPath"].strip("/")
        place.mkdir(parents=True, exist_ok=True)
        for item in secrets.get(mount["name"], {}).get("items", ()):
            text = f"{secrets[mount['name']]['secretName']}/{item['key']}"
            (place / item["path"]).write_text(text)
    done = subprocess.run(
        ["/bin/sh", "-euc", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return (tmp_path / "calls").read_text().splitlines()


def test_the_job_sets_passwords_of_secrets_and_the_acls_of_values(tmp_path: Path) -> None:
    calls = run_job(tmp_path, "users-and-acls")
    assert (tmp_path / "password-ann").read_text() == "tide-users/ann"
    assert (tmp_path / "password-admin").read_text() == "tide-admin/password"
    assert calls[-1].startswith("acls apply ") and calls[-1].endswith(" --prune")
    files = calls[-1].split()[2:-1]
    entries = [entry for file in files for entry in json.loads(Path(file).read_text())]
    told = {
        (e["permission"], e["principal"], e["host"], e["operation"], e["resource_name"])
        for e in entries
    }
    ann = {("allow", "User:ann", "*", "read", each) for each in ("flights", "flights-2", "g")}
    ann |= {("allow", "User:ann", "*", "describe", each) for each in ("flights", "flights-2")}
    deny = {("deny", "User:*", "10.0.0.7", each, "kafka-cluster") for each in ("describe", "alter")}
    assert told == ann | deny
    assert "prune" not in run_helm("template blue", USERS | {"acls.prune": "false"}).stdout


def test_jobs_and_the_test_connect_as_nodes(tmp_path: Path) -> None:
    one = job("users-and-acls")["containers"][0]
    environ = {each["name"]: each["value"] for each in one["env"]}
    assert environ["TIDEMARK_COMMAND_CONFIG"] == "/tmp/client.properties"
    assert environ["TIDEMARK_BOOTSTRAP_SERVER"].endswith(":9091")
    line = one["args"][0].splitlines()[0].replace("/tmp/", f"{tmp_path}/")
    subprocess.run(["/bin/sh", "-euc", line], check=True, timeout=20)
    text = (tmp_path / "client.properties").read_text()
    assert client_security(parse_properties(text)).uses_ssl
    test = by_kind("users-and-acls", "Pod")["blue-tidemark-test"]["spec"]
    assert test["containers"][0]["args"][0].splitlines()[0] == one["args"][0].splitlines()[0]
    mounts = {m["mountPath"] for m in test["containers"][0]["volumeMounts"]}
    assert _NODES in mounts
    # The Secret of cert-manager is made after this job.
    before = job("tls-by-cert-manager", "before")
    assert not any("secret" in volume for volume in before["volumes"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls.enabled": "true"}, "needs tls.existingSecret, a Secret with tls.crt"),
        ({"tls.enabled": "true"}, "of common name blue-tidemark-node, or"),
        (TLS | CERT_MANAGER, "exclude each other"),
        (TLS | {"metrics.enabled": "false"}, "needs metrics.enabled"),
        (TLS | {"tls.interBrokerPort": "9092"}, "in use by another listener"),
        ({"acls.enabled": "true"}, "acls.enabled needs tls.enabled"),
        (TLS | {"acls.enabled": "true"}, "would all be User:ANONYMOUS"),
        ({"users[0].name": "ann", "users[0].secret": "s"}, "users need tls.enabled"),
        (TLS | {"users[0].name": "ann", "users[0].secret": "s"}, "users need tls.clients.protocol"),
        (USERS | {"users[0].secret": ""}, "secret"),
        (USERS | {"users[1].name": "ann"}, "ann is named twice"),
        (USERS | {"users[1].name": "blue-tidemark-node"}, "is the name of nodes"),
        (USERS | {"users[0].password": "x"}, "password"),
        (USERS | {"acls.enabled": "false"}, "need acls.enabled"),
        (USERS | {"acls.entries[0].consumer": "false"}, "that of ann allows nothing"),
        (USERS | {"acls.entries[1].cluster": "false"}, "that of * names no resource"),
        (USERS | {"acls.entries[0].topics[0]": "it's"}, "topics"),
        (USERS | {"tls.clients.clientAuth": "required"}, "with SASL_SSL users log in"),
        (TLS | {r"broker.config.super\.users": "User:x"}, "super.users is set by the chart"),
        (CERT_MANAGER | {"broker.external.enabled": "true"}, "needs tls.certManager.ipAddresses"),
        (CERT_MANAGER | {"tls.certManager.duration": "long"}, "duration"),
    ],
)
def test_values_that_would_not_be_secure_or_not_work_are_refused(
    values: dict[str, str], said: str
) -> None:
    done = run_helm("template blue", values)
    assert done.returncode != 0
    assert said in done.stderr


def test_an_upgrade_does_not_switch_tls(tmp_path: Path) -> None:
    for name, values, said in (
        ("defaults", TLS, "tls.enabled is false in the cluster and can not become true"),
        ("tls-of-a-secret", {}, "tls.enabled is true in the cluster and can not become false"),
        ("tls-of-a-secret", TLS, ""),
    ):
        done = upgrade(name, values, tmp_path)
        assert (done.returncode != 0) == bool(said), done.stderr
        assert said in done.stderr


def upgrade(name: str, values: dict[str, str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    sets = {m["metadata"]["name"]: m for m in manifests(name) if m["kind"] == "StatefulSet"}
    with api_server("tide", sets) as address:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        arguments = [tool("helm"), "template", "blue", str(CHART), "--namespace", "tide"]
        arguments += ["--dry-run=server", "--is-upgrade", "--kubeconfig"]
        arguments += [str(tmp_path / "kubeconfig")]
        for key, value in values.items():
            arguments += ["--set", f"{key}={value}"]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


def test_the_dashboard_is_in_a_config_map_that_grafanas_sidecar_finds() -> None:
    (found,) = (
        one for name, one in by_kind("dashboards", "ConfigMap").items() if "dashboards" in name
    )
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = found["data"].values()
    assert json.loads(text) == json.loads((CHART / "files" / "dashboard.json").read_text())
    assert not [name for name in by_kind("defaults", "ConfigMap") if "dashboards" in name]
