"""Writes helm/tidemark/README.md: an introduction, and each value with its default and its comment
in values.yaml. `--check` only compares.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

CHART = Path(__file__).resolve().parents[1] / "helm" / "tidemark"
_INDENT = 2
_WIDTH = 100

INTRODUCTION = """# The chart of Tidemark

Controllers and brokers as two StatefulSets, for Kubernetes 1.27 and later. This page is made by
`scripts/chart_readme.py` out of `values.yaml`.

```bash
helm install tide helm/tidemark --set image.repository=registry.example/tidemark
helm test tide
```

- Before pods change, a job checks the settings of nodes as their start would. A wrong one fails the
  upgrade, and every pod goes on. `kubectl logs job/tide-tidemark-before` tells which it is.
- A rollout waits at each broker until no partition needs it (`broker.stopGateSeconds`). So do
  drained machines and evictions.
- Fewer brokers: `helm upgrade --set broker.replicas=N --timeout 1h` first moves the replicas of
  those that leave, then stops and unregisters them. Their volumes stay. `kubectl scale` does none
  of this: never scale brokers in with it.
- `broker.nodeIdOffset`, sizes, classes and numbers of volumes, and the number of controllers can
  not change by an upgrade. It is refused, and tells what to do by hand.
- After `helm uninstall` the volumes stay. The same release in the same namespace takes them again.
- Where the platform assigns users (OpenShift), set `podSecurityContext.runAsUser`, `runAsGroup` and
  `fsGroup` to null.
- Without `remoteStorage.existingSecret` the store's credentials are those of the pod's IAM role:
  put its annotation into `serviceAccount.annotations`.
- `scripts/test-kubernetes` proves all this on a real cluster, under load.

## Certificates

```yaml
tls:
  enabled: true
  existingSecret: tide-tls # or certManager: {enabled: true}
  clients: {protocol: SASL_SSL}
users:
  - {name: admin, secret: tide-users, key: admin}
  - {name: ann, secret: tide-users, key: ann}
acls:
  enabled: true
  superUsers: [admin]
  entries:
    - {principal: ann, topics: [flights], groups: [g], consumer: true}
```

- `tide-tls` has `tls.crt`, `tls.key` and `ca.crt`. The certificate is for servers and clients. Its
  common name is `tls.nodeName`. Its names, each followed by `.NAMESPACE.svc.DOMAIN`, are
  `*.tide-tidemark-broker`, `*.tide-tidemark-controller` and `tide-tidemark-bootstrap`. For clients
  outside it has the addresses of `broker.external`, or `tls.clients.existingSecret` has them.
- Whoever has a certificate of that common name by that authority is a node. Do not let the
  authority sign it for others.
- Brokers meet at `tls.interBrokerPort`. Clients use `broker.port` and `broker.external`.
- `kubectl exec` into a pod gives a `tidemark` that connects as a node, with all rights.
- The port of metrics has neither TLS nor a login: `networkPolicy.metricsFrom`.
- A running cluster is not switched to TLS by an upgrade: `helm uninstall`, then `helm install`. The
  volumes stay.
"""


def entries() -> list[tuple[str, str, str]]:
    """Path, default and comment of each value."""
    found: list[tuple[str, str, str]] = []
    path: list[str] = []
    said: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines()[1:]:
        if comment := re.fullmatch(r" *# ?(.*)", line):
            said.append(comment[1])
        elif not line.strip():
            said = []
        elif field := re.fullmatch(r"( *)([A-Za-z.]+):(?: (.*?))??(?: +# (.*))?", line):
            indent, name, default, beside = field.groups()
            del path[len(indent) // _INDENT :]
            path.append(name)
            if beside:
                said.append(beside)
            found.append((".".join(path), default or "", " ".join(said)))
            said = []
        else:
            sys.exit(f"values.yaml: {line!r} is no value")
    return found


def page() -> str:
    lines = [INTRODUCTION, "## Values", ""]
    for path, default, comment in entries():
        text = f"- `{path}`" + (f", `{default}`" if default else "")
        text += f": {comment}" if comment else ""
        if default or comment:
            lines += textwrap.wrap(
                text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    target = CHART / "README.md"
    if sys.argv[1:] == ["--check"]:
        if not target.exists() or target.read_text() != page():
            sys.exit(f"{target} is not that of values.yaml: run scripts/chart_readme.py")
    else:
        target.write_text(page())


if __name__ == "__main__":
    main()
