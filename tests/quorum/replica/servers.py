"""Raft servers in one process, over real gRPC on loopback or the in-memory network, with helpers
for tests.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from uuid import UUID

import grpc.aio

from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from quorum.raft.voters import ReplicaKey, Voter, VoterSet
from quorum.replica.bootstrap import write_bootstrap_checkpoint
from quorum.replica.client import CommittedBatch, LeaderAndEpoch
from quorum.replica.server import RaftServer
from quorum.replica.transport import MemoryNetwork
from tidemark.config import ServerConfig, parse_server_config
from tidemark.types import Endpoint
from tidemark.wire import CHANNEL_OPTIONS

CLUSTER_ID = "tidemark-test-cluster-"
DEADLINE_S = 30


class Recorder:
    """A state machine that keeps all values it gets, in order."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.next_offset = 0
        self.leader = LeaderAndEpoch(None, -1)
        self.snapshots_loaded = 0
        self.leaders: list[LeaderAndEpoch] = []
        self.caught_up_at: int | None = None
        self.server: RaftServer | None = None
        self.work: list[asyncio.Task[None]] = []

    def handle_commit(self, batches: list[CommittedBatch]) -> None:
        for batch in batches:
            assert batch.base_offset >= self.next_offset
            assert batch.last_offset == batch.base_offset + len(batch.values) - 1
            self.values.extend(batch.values)
            self.next_offset = batch.last_offset + 1

    def handle_load_snapshot(self, reader) -> None:
        self.values = [value for batch in reader.batches() for value in batch]
        self.next_offset = reader.id.end_offset
        self.snapshots_loaded += 1

    def handle_caught_up(self) -> None:
        assert self.caught_up_at is None
        self.caught_up_at = self.next_offset

    def handle_snapshot_wanted(self) -> None:
        assert self.server is not None
        checkpoint = self.server.create_snapshot(self.next_offset, list(self.values))
        self.work.append(asyncio.ensure_future(checkpoint))

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self.leader = leader
        self.leaders.append(leader)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class RaftNodes:
    """Three voters (1, 2, 3) and observers; `grpc=False` runs them on the in-memory network."""

    def __init__(
        self,
        *,
        voters: int = 3,
        grpc: bool = False,
        settings: dict[str, str] | None = None,
        initial: list[int] | None = None,
    ):
        """`initial` are the first voters in the log (KIP-853), the others are controllers that can
        become voters. If None, all are static voters."""
        self.initial = initial
        self.grpc = grpc
        self.network = MemoryNetwork()
        ports = {n: free_port() if grpc else 9000 + n for n in range(1, voters + 1)}
        self.endpoints = {n: Endpoint("127.0.0.1", port) for n, port in ports.items()}
        self.settings = settings or {}
        self.directories: dict[int, Directory] = {}
        self.servers: dict[int, RaftServer] = {}
        self.recorders: dict[int, Recorder] = {}
        self.grpc_servers: dict[int, grpc.aio.Server] = {}

    def config(self, node_id: int) -> ServerConfig:
        voter = node_id in self.endpoints
        listener = (
            f"CONTROLLER://{self.endpoints[node_id].address}"
            if voter
            else "PLAINTEXT://127.0.0.1:0"
        )
        values = {
            "process.roles": "controller" if voter else "broker",
            "node.id": str(node_id),
            "listeners": listener,
            **self.quorum_settings(),
            "controller.quorum.election.timeout.ms": "150",
            "controller.quorum.fetch.timeout.ms": "400",
            "controller.quorum.request.timeout.ms": "1000",
        }
        return parse_server_config(values | self.settings)

    def quorum_settings(self) -> dict[str, str]:
        if self.initial is not None:
            addresses = ",".join(self.endpoints[n].address for n in self.initial)
            return {"controller.quorum.bootstrap.servers": addresses}
        voters = ",".join(f"{n}@{e.address}" for n, e in self.endpoints.items())
        return {"controller.quorum.voters": voters}

    def key(self, node_id: int) -> ReplicaKey:
        return ReplicaKey(node_id, UUID(int=1000 + node_id))

    def _format(self, node_id: int, directory: Directory) -> None:
        if self.initial is not None and node_id in self.initial:
            voters = (Voter(self.key(n), self.endpoints[n]) for n in self.initial)
            write_bootstrap_checkpoint(directory, VoterSet(voters))

    async def start(self, node_id: int, *, cluster_id: str = CLUSTER_ID) -> RaftServer:
        if node_id not in self.directories:
            self.directories[node_id] = MemoryDirectory(seed=node_id)
            self._format(node_id, self.directories[node_id])
        directory = self.directories[node_id]
        endpoint = self.endpoints.get(node_id)
        server = RaftServer(
            self.config(node_id),
            cluster_id=cluster_id,
            directory=directory,
            directory_id=self.key(node_id).directory_id,
            rng=random.Random(node_id),
            now_ms=lambda: int(time.time() * 1000),
            transport=None if self.grpc else self.network.transport(endpoint),
        )
        recorder = Recorder()
        recorder.server = server
        server.register(recorder)
        self.servers[node_id], self.recorders[node_id] = server, recorder
        if endpoint is not None and self.grpc:
            grpc_server = grpc.aio.server(options=CHANNEL_OPTIONS)
            server.add_to_server(grpc_server)
            assert grpc_server.add_insecure_port(endpoint.address) == endpoint.port
            await grpc_server.start()
            self.grpc_servers[node_id] = grpc_server
        elif endpoint is not None:
            self.network.serve(endpoint, server.handle)
        await server.start()
        return server

    async def start_all(self, *node_ids: int) -> None:
        for node_id in node_ids:
            await self.start(node_id)

    async def stop(self, node_id: int) -> None:
        """Shuts a server down gracefully."""
        await self.servers.pop(node_id).shutdown()
        await self._stop_serving(node_id)

    async def kill(self, node_id: int) -> None:
        """Stops a server without notice to the others; unsynced data is lost."""
        server = self.servers.pop(node_id)
        await server._stop()
        await self._stop_serving(node_id)
        directory = self.directories[node_id]
        assert isinstance(directory, MemoryDirectory)
        directory.crash()

    async def _stop_serving(self, node_id: int) -> None:
        if node_id in self.grpc_servers:
            await self.grpc_servers.pop(node_id).stop(None)
        elif node_id in self.endpoints:
            self.network.stop(self.endpoints[node_id])

    async def stop_all(self) -> None:
        await asyncio.gather(*(self.stop(node_id) for node_id in list(self.servers)))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Polls until the condition holds. The timeout is a bound, not a measurement."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    for server in self.servers.values():
                        if server.fatal.done():
                            server.fatal.result()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            roles = {n: repr(s._replica.role)[:200] for n, s in self.servers.items()}
            raise AssertionError(f"never: {what}\n{roles}") from None

    def leader(self) -> RaftServer | None:
        for node_id, server in self.servers.items():
            told = self.recorders[node_id].leader
            if told.is_leader(node_id) and server.leader_and_epoch == told:
                return server
        return None

    async def elected(self) -> RaftServer:
        await self.until(lambda: self.leader() is not None, "a leader")
        leader = self.leader()
        assert leader is not None
        return leader

    async def committed(self, values: list[bytes], *, on: list[int] | None = None) -> None:
        """Waits until these nodes (default: all) have applied exactly these values."""
        nodes = on if on is not None else list(self.servers)
        await self.until(
            lambda: all(self.recorders[n].values == values for n in nodes), f"{len(values)} values"
        )
