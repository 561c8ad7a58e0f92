"""README's Kubernetes block, run as printed: Helm renders where it would install. The chart's own
page is that of its values.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

from tests.readme import README, block
from tests.tools import tool
from tidemark.config.properties import parse_properties

_HELM = """#!/bin/sh
case "$1" in
install) shift; exec '{helm}' template "$@" --namespace tide ;;
test) echo "---" ;;
*) exit 1 ;;
esac
"""
_KUBECTL = '#!/bin/sh\nprintf "%s\\n" "$@" > "$0.arguments"\n'


def test_the_kubernetes_block_renders_as_printed(tmp_path: Path) -> None:
    for name, script in (("helm", _HELM.format(helm=tool("helm"))), ("kubectl", _KUBECTL)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("Kubernetes", "bash")],
        cwd=README.parent,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    manifests = [document for document in yaml.safe_load_all(done.stdout) if document]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.35", strict=True)
    (settings,) = (m["data"] for m in manifests if "start.sh" in m.get("data", ()))
    broker = parse_properties(settings["broker.properties"])
    assert broker["rsm.config.endpoint"] == "http://minio:9000"
    assert broker["rsm.config.bucket"] == "tide"
    (brokers,) = (
        m["spec"]["template"]["spec"]["containers"][0]
        for m in manifests
        if m["kind"] == "StatefulSet" and m["metadata"]["name"].endswith("broker")
    )
    assert brokers["image"].startswith("registry.example/tidemark:")

    # Brokers read the secret that kubectl creates.
    sources = [variable.get("valueFrom", {}) for variable in brokers["env"]]
    secrets = [source["secretKeyRef"] for source in sources if "secretKeyRef" in source]
    read = {secret["key"] for secret in secrets if secret["name"] == "tier"}
    made = (tmp_path / "kubectl.arguments").read_text().split()
    assert made[:4] == ["create", "secret", "generic", "tier"]
    assert {argument.split("=")[1] for argument in made[4:]} == read


def test_the_charts_page_is_made_of_its_values() -> None:
    command = [sys.executable, "scripts/chart_readme.py", "--check"]
    done = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_values_of_the_charts_page_render_as_printed(tmp_path: Path) -> None:
    page = (README.parent / "helm" / "tidemark" / "README.md").read_text()
    (printed,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "values.yaml").write_text(printed)
    values = str(tmp_path / "values.yaml")
    command = [tool("helm"), "template", "tide", "helm/tidemark", "-f", values]
    done = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "tidemark users set-password 'ann'" in done.stdout
    assert "super.users=User:tide-tidemark-node;User:admin" in done.stdout
