"""An API server of Kubernetes that knows StatefulSets alone, for what a chart looks up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_RESOURCE = {
    "name": "statefulsets",
    "singularName": "statefulset",
    "namespaced": True,
    "kind": "StatefulSet",
    "verbs": ["get", "list"],
}
_ANSWERS: dict[str, Any] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.2"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": "apps",
                "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
            }
        ],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [_RESOURCE],
    },
}


@contextmanager
def api_server(namespace: str, objects: Mapping[str, Any]) -> Iterator[str]:
    """Serves StatefulSets by their names; yields the address."""
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/"
    answers = _ANSWERS | {path + name: found for name, found in objects.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.split("?")[0])
            reason = {"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}
            body = json.dumps(reason if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
