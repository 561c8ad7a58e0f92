"""The paths of a node: its metrics, and probes for whoever runs it.

- `/metrics`: all metrics, in the text format of Prometheus
- `/livez`: 200 while the event loop runs, whatever the state of the cluster
- `/startupz`: 200 once logs are open and recovered
- `/readyz`: 200 while the node serves its roles
- `/restartz`: 200 while no partition would lose its minimum of in-sync replicas by a restart
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric

from node.metrics import debugging
from node.metrics.endpoint import Answer, HttpEndpoint
from node.metrics.sources import of_certificates, of_directories
from tidemark.types import Endpoint

_SHOWN_MAX = 20


class ToldNode(Protocol):
    """A node, as far as it is told of."""

    @property
    def is_started(self) -> bool: ...

    @property
    def is_ready(self) -> bool: ...

    def families(self) -> Iterator[Metric]: ...

    def directories(self) -> Mapping[str, bool]:
        """Whether a log directory serves, by path."""

    def certificates(self) -> Mapping[str, int]:
        """Ends of certificates by listener, in ms since 1970. It reads files, in a thread."""

    def restart_harms(self) -> list[str]:
        """The partitions that a restart makes unavailable for writes."""


class Exposition:
    """Answers for one node, on the event loop."""

    def __init__(self, node: ToldNode) -> None:
        self._node = node
        self._free_bytes: Mapping[str, int] = {}
        self._certificates: Mapping[str, int] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._endpoint = HttpEndpoint(self.answer, self.debug)

    async def start(self, listener: str) -> Endpoint:
        """Listens at host:port, without a host on every interface; returns the endpoint with its
        port. Raises FatalError.
        """
        host, _, port = listener.rpartition(":")
        return await self._endpoint.start(Endpoint(host.strip("[]"), int(port)))

    async def stop(self) -> None:
        await self._endpoint.stop()

    def describe(self) -> list[Metric]:
        """Nothing: what there is depends on the state of the node."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._node.families()
        yield from of_directories(self._node.directories(), self._free_bytes)
        yield of_certificates(self._certificates)

    async def debug(self, path: str) -> Answer | None:
        """The answer to a GET from this host below `/debug/`."""
        if path == "/debug/stacks":
            return Answer(HTTPStatus.OK, debugging.stacks().encode())
        if path == "/debug/top":
            told = await asyncio.to_thread(debugging.top, threading.get_ident())
            return Answer(HTTPStatus.OK, told.encode())
        return None

    async def answer(self, path: str) -> Answer | None:
        """The answer to a GET; None for an unknown path."""
        node = self._node
        if path == "/metrics":
            # A disk that hangs holds up a thread, and not the loop.
            online = [path for path, is_online in node.directories().items() if is_online]
            self._free_bytes = await asyncio.to_thread(_free_bytes, online)
            self._certificates = await asyncio.to_thread(node.certificates)
            text = generate_latest(self._registry)
            return Answer(HTTPStatus.OK, text, CONTENT_TYPE_PLAIN_0_0_4)
        if path == "/livez":
            return _probe(True, "alive")
        if path == "/startupz":
            return _probe(node.is_started, "started", "logs are opened and recovered")
        if path == "/readyz":
            return _probe(node.is_ready, "ready", "not registered and unfenced")
        if path == "/restartz":
            harmed = node.restart_harms()
            more = f" and {len(harmed) - _SHOWN_MAX} more" if len(harmed) > _SHOWN_MAX else ""
            shown = ", ".join(harmed[:_SHOWN_MAX]) + more
            return _probe(not harmed, "no partition needs this node", f"needed by {shown}")
        return None


def _probe(is_well: bool, well: str, ill: str = "") -> Answer:
    status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(status, f"{well if is_well else ill}\n".encode())


def _free_bytes(paths: list[str]) -> dict[str, int]:
    found = {}
    for path in paths:
        try:
            found[path] = shutil.disk_usage(path).free
        except OSError:
            continue
    return found
