"""Upgrades that Kubernetes or the cluster could not follow are refused, and say what to do; brokers
that leave are drained.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.fake_api import api_server
from tests.helm.test_chart import CHART, manifests
from tests.tools import tool


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """The StatefulSets of the defaults, as a cluster has them."""
    sets = [one for one in manifests("defaults") if one["kind"] == "StatefulSet"]
    return {one["metadata"]["name"]: one for one in sets}


def upgrade(
    installed: dict[str, Any], values: dict[str, str], tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    with api_server("tide", installed) as address:
        config = tmp_path / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
        }
        config.write_text(yaml.safe_dump(document))
        arguments = [tool("helm"), "template", "blue", str(CHART), "--namespace", "tide"]
        arguments += ["--dry-run=server", "--is-upgrade", "--kubeconfig", str(config)]
        for key, value in values.items():
            arguments += ["--set", f"{key}={value}"]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"controller.replicas": "5"}, "controller.replicas is 3 in the cluster"),
        ({"broker.nodeIdOffset": "200"}, "Set broker.nodeIdOffset=100"),
        ({"broker.persistence.size": "200Gi"}, "patch pvc data-blue-tidemark-broker-0"),
        ({"controller.persistence.size": "1Gi"}, "controller.persistence.size is 10Gi"),
        ({"broker.persistence.storageClass": "fast"}, 'can not become "fast"'),
        ({"broker.persistence.volumes": "2"}, "delete statefulset blue-tidemark-broker"),
    ],
)
def test_what_can_not_change_is_refused_with_a_way(
    installed: dict[str, Any], tmp_path: Path, values: dict[str, str], said: str
) -> None:
    done = upgrade(installed, values, tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


def scripts(output: str) -> dict[str, str]:
    """Scripts of the jobs, by their place."""
    jobs = [one for one in yaml.safe_load_all(output) if one and one["kind"] == "Job"]
    return {
        one["metadata"]["name"].rsplit("-", 1)[1]: one["spec"]["template"]["spec"]["containers"][0][
            "args"
        ][0]
        for one in jobs
    }


def test_brokers_that_leave_are_emptied_before_and_unregistered_after(
    installed: dict[str, Any], tmp_path: Path
) -> None:
    installed = {name: yaml.safe_load(yaml.safe_dump(one)) for name, one in installed.items()}
    installed["blue-tidemark-broker"]["spec"]["replicas"] = 5
    done = upgrade(installed, {}, tmp_path)
    assert done.returncode == 0, done.stderr
    found = scripts(done.stdout)
    assert "tidemark brokers drain 103 104" in found["before"]
    assert [line for line in found["after"].splitlines() if "unregister" in line] == [
        "repeat tidemark brokers unregister 103",
        "repeat tidemark brokers unregister 104",
    ]
    by_hand = upgrade(installed, {"broker.drain.enabled": "false"}, tmp_path)
    assert "drain" not in scripts(by_hand.stdout)["before"]


def test_more_brokers_need_no_job(installed: dict[str, Any], tmp_path: Path) -> None:
    done = upgrade(installed, {"broker.replicas": "6"}, tmp_path)
    assert done.returncode == 0, done.stderr
    found = scripts(done.stdout)
    assert "drain" not in found["before"] and "after" not in found
