"""A whole cluster of real processes on this machine, for `tidemark dev`, the quickstart and the
end-to-end tests.

Controllers have ids 1..n, brokers n+1..n+m. Each is `tidemark server` on a loopback port of its
own, with its data in `<directory>/<role>-<id>`, its settings in `<directory>/config` and its output
in `<directory>/output`.

Every process dies with this one, however it ends (PR_SET_PDEATHSIG). The signal comes when the
thread that spawned a process ends, so a thread of its own spawns them all.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tidemark.config import load_server_config
from tidemark.config.properties import format_properties
from tidemark.errors import ApiError, TidemarkError
from tidemark.types import random_uuid, uuid_to_text

# Below the kernel's ephemeral ports, so that a killed node finds its port free again.
_PORTS = range(20_000, 32_000)
_LOG_TAIL_LINES = 15
_POLL_S = 0.1


class LocalClusterError(TidemarkError):
    """A process of the cluster failed; the message has the end of its output."""


@dataclass(slots=True)
class LocalNode:
    """One process: its settings and files, and the process if it was started."""

    node_id: int
    role: str
    port: int
    data_directory: Path
    properties_file: Path
    output_file: Path
    settings: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    launcher: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """None while its process runs; -N after signal N."""
        return None if self.process is None else self.process.poll()

    def output_tail(self) -> str:
        """The last lines of its output."""
        with contextlib.suppress(OSError):
            lines = self.output_file.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-_LOG_TAIL_LINES:])
        return ""


class LocalCluster:
    """Controllers and brokers as processes; a context manager that starts and stops them.

    `overrides` are settings of all nodes, `controller_overrides` and `broker_overrides` of a role,
    `node_overrides` of one node, by Kafka's names; the later ones win. `racks` are assigned to
    brokers in turn. `ports` are those of the nodes in order of their ids; free ones by default.
    `hosts` are addresses of nodes other than loopback. `launchers` stand before a node's command:
    they run it elsewhere, and replace themselves by it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        controllers: int = 3,
        brokers: int = 3,
        racks: Sequence[str] = ("a", "b", "c"),
        overrides: Mapping[str, str] | None = None,
        controller_overrides: Mapping[str, str] | None = None,
        broker_overrides: Mapping[str, str] | None = None,
        node_overrides: Mapping[int, Mapping[str, str]] | None = None,
        ports: Sequence[int] | None = None,
        cluster_id: str | None = None,
        hosts: Mapping[int, str] | None = None,
        launchers: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        if controllers < 1 or brokers < 0:
            raise ValueError("a cluster has at least one controller, and no negative brokers")
        self.directory = Path(directory)
        self.cluster_id = cluster_id or uuid_to_text(random_uuid())
        self._spawner = ThreadPoolExecutor(1, "tidemark-spawner")
        self._is_stopped = False
        count = controllers + brokers
        chosen = list(ports) if ports is not None else free_ports(count)
        if len(chosen) != count:
            raise ValueError(f"{count} nodes need {count} ports")
        self._nodes: dict[int, LocalNode] = {}
        for node_id, port in enumerate(chosen, start=1):
            role = "controller" if node_id <= controllers else "broker"
            self._nodes[node_id] = LocalNode(
                node_id,
                role,
                port,
                self.directory / f"{role}-{node_id}",
                self.directory / "config" / f"{role}-{node_id}.properties",
                self.directory / "output" / f"{role}-{node_id}.log",
                host=(hosts or {}).get(node_id, "127.0.0.1"),
                launcher=tuple((launchers or {}).get(node_id, ())),
            )
        for number, node_id in enumerate(self.broker_ids):
            rack = racks[number % len(racks)] if racks else ""
            self._nodes[node_id].settings["broker.rack"] = rack
        of_role = {"controller": controller_overrides or {}, "broker": broker_overrides or {}}
        for node in self._nodes.values():
            node.settings = (
                self._base_settings(node, brokers)
                | node.settings
                | dict(overrides or {})
                | dict(of_role[node.role])
                | dict((node_overrides or {}).get(node.node_id, {}))
            )

    def _base_settings(self, node: LocalNode, brokers: int) -> dict[str, str]:
        listener = "CONTROLLER" if node.role == "controller" else "PLAINTEXT"
        voters = [self._nodes[n] for n in self.controller_ids]
        return {
            "process.roles": node.role,
            "node.id": str(node.node_id),
            "listeners": f"{listener}://{node.address}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{v.node_id}@{v.address}" for v in voters),
            "log.dirs": str(node.data_directory),
            "broker.heartbeat.interval.ms": "500",
            "default.replication.factor": str(max(1, min(3, brokers))),
            "remote.log.metadata.topic.replication.factor": str(max(1, min(3, brokers))),
            "offsets.topic.replication.factor": str(max(1, min(3, brokers))),
            "transaction.state.log.replication.factor": str(max(1, min(3, brokers))),
            "transaction.state.log.min.isr": str(max(1, min(2, brokers))),
            "remote.log.metadata.topic.min.isr": str(max(1, min(2, brokers))),
        }

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Members.

    @property
    def controller_ids(self) -> list[int]:
        return [n.node_id for n in self._nodes.values() if n.role == "controller"]

    @property
    def broker_ids(self) -> list[int]:
        return [n.node_id for n in self._nodes.values() if n.role == "broker"]

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, comma-separated."""
        return ",".join(self._nodes[n].address for n in self.broker_ids)

    @property
    def controller_servers(self) -> str:
        """host:port of every controller, comma-separated."""
        return ",".join(self._nodes[n].address for n in self.controller_ids)

    @property
    def nodes(self) -> list[LocalNode]:
        """Controllers, then brokers."""
        return list(self._nodes.values())

    def node(self, node_id: int) -> LocalNode:
        """A node by id. Raises ValueError for an id that is not of this cluster."""
        if node_id not in self._nodes:
            raise ValueError(f"node {node_id} is none of {sorted(self._nodes)}")
        return self._nodes[node_id]

    # Processes.

    def start(self) -> None:
        """Formats new directories and spawns every process; returns before they serve."""
        try:
            for node in self._nodes.values():
                self._prepare(node)
            for node in self._nodes.values():
                self._spawn(node)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 15) -> None:
        """Sends SIGTERM to brokers, then to controllers; SIGKILL to those alive after
        `timeout_s`.
        """
        if not self._is_stopped:  # nodes that are being started come first
            self._spawner.submit(lambda: None).result()
        self._is_stopped = True
        deadline = time.monotonic() + timeout_s
        for ids in (self.broker_ids, self.controller_ids):
            for node_id in ids:
                self._terminate(self._nodes[node_id])
            for node_id in ids:
                self._reap(self._nodes[node_id], deadline)
        self._spawner.shutdown()  # at last: the end of the thread that started them kills them

    def kill(self, node_id: int) -> None:
        """Sends SIGKILL, and waits for the end of the process."""
        node = self.node(node_id)
        if node.process is not None:
            node.process.kill()
            node.process.wait()
        node.paused = False

    def pause(self, node_id: int) -> None:
        """Sends SIGSTOP: the process hangs, its connections stay."""
        node = self._running(node_id)
        node.send_signal(signal.SIGSTOP)
        self._nodes[node_id].paused = True

    def resume(self, node_id: int) -> None:
        """Sends SIGCONT after `pause`."""
        node = self._running(node_id)
        node.send_signal(signal.SIGCONT)
        self._nodes[node_id].paused = False

    def restart(self, node_id: int, timeout_s: float = 15) -> None:
        """Stops the node if it runs and starts it on the same directory and port."""
        node = self.node(node_id)
        self._terminate(node)
        self._reap(node, time.monotonic() + timeout_s)
        self._spawn(node)

    def wait_ready(self, timeout_s: float = 60) -> None:
        """Returns when every running broker serves and all others know it.

        A broker reports SERVING itself, so it is this very process that is registered and unfenced,
        not one that died under its id. Raises LocalClusterError if a process ended meanwhile, with
        its output, or after `timeout_s`.
        """
        from tidemark.client.sync import Admin

        deadline = time.monotonic() + timeout_s
        problem = "no broker has answered yet"
        servers = self.bootstrap_servers or self.controller_servers
        settings = {"request_timeout_ms": 2_000, "default_api_timeout_ms": 2_000}
        with Admin(servers, **settings) as admin:
            while time.monotonic() < deadline:
                self._raise_for_dead()
                try:
                    missing = self._not_serving()
                    missing = missing or self._not_ready(admin.describe_cluster_everywhere())
                except ApiError as error:
                    problem = str(error)
                else:
                    if not missing:
                        return
                    problem = missing
                time.sleep(_POLL_S)
        raise LocalClusterError(f"the cluster is not ready after {timeout_s:.0f} s: {problem}")

    def _expected(self) -> list[int]:
        nodes = (self._nodes[broker_id] for broker_id in self.broker_ids)
        return [node.node_id for node in nodes if node.is_running and not node.paused]

    def _not_serving(self) -> str:
        """The first broker whose health is not SERVING, in a sentence.

        The controller's view is not enough: it counts a killed broker as alive until its session
        ends. That holds while the next process under that id is still starting, too.
        """
        for node_id in self._expected():
            state = health_of(self._nodes[node_id].address)
            if state != "SERVING":
                return f"broker {node_id} is {state}"
        return ""

    def _not_ready(self, views: Mapping[int, frozenset[int]]) -> str:
        """The first missing broker, in a sentence; empty if all are known everywhere."""
        running = set(self._expected())
        for node_id in sorted(running):
            if node_id not in views:
                return f"broker {node_id} is not registered and unfenced yet"
            unknown = running - views[node_id]
            if unknown:
                return f"broker {node_id} does not know {sorted(unknown)} yet"
        return ""

    def _raise_for_dead(self) -> None:
        for node in self._nodes.values():
            process = node.process
            if process is not None and process.poll() not in (None, -signal.SIGKILL):
                raise LocalClusterError(
                    f"{node.role} {node.node_id} ended with {process.returncode}; "
                    f"{node.output_file} ends with:\n{node.output_tail()}"
                )

    def _running(self, node_id: int) -> subprocess.Popen[bytes]:
        process = self.node(node_id).process
        if process is None or process.poll() is not None:
            raise LocalClusterError(f"node {node_id} does not run")
        return process

    def _prepare(self, node: LocalNode) -> None:
        from node.runtime.storage import format_storage

        for path in (node.data_directory, node.properties_file.parent, node.output_file.parent):
            path.mkdir(parents=True, exist_ok=True)
        node.properties_file.write_text(format_properties(node.settings), encoding="utf-8")
        if not (node.data_directory / "meta.properties").exists():
            format_storage(load_server_config(node.properties_file, {}), self.cluster_id)

    def _spawn(self, node: LocalNode) -> None:
        # -P: a node.py in the current directory must not be imported.
        command = [
            *node.launcher,
            sys.executable,
            "-P",
            "-m",
            "tidemark.cli.main",
            "server",
            "--die-with-parent",
        ]
        command += ["-c", str(node.properties_file)]

        def spawn() -> None:
            # Set here: a signal may end the wait for it, and `stop` has to know the process.
            with node.output_file.open("ab") as output:
                node.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches only this process; it stops them
                )

        self._spawner.submit(spawn).result()
        node.paused = False

    def _terminate(self, node: LocalNode) -> None:
        if node.process is not None and node.process.poll() is None:
            node.process.terminate()
            if node.paused:
                node.process.send_signal(signal.SIGCONT)
                node.paused = False

    def _reap(self, node: LocalNode, deadline: float) -> None:
        if node.process is None:
            return
        try:
            node.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()


def health_of(address: str, timeout_s: float = 2) -> str:
    """The status of the gRPC health service at host:port: SERVING, NOT_SERVING, or UNREACHABLE."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return "UNREACHABLE"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def free_ports(count: int) -> list[int]:
    """Loopback ports without a listener at the moment."""
    found: list[int] = []
    rng = random.SystemRandom()
    while len(found) < count:
        port = rng.choice(_PORTS)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
