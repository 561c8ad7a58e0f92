"""Three controllers as servers on loopback, over the real Raft or over the fake quorum."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from uuid import UUID

from commitlog.disk.os_files import OsDirectory
from quorum.image.features import FIRST_LEVELS, ranges_to_wire
from quorum.raft.effects import Tick
from quorum.raft.roles import Follower
from quorum.replica.loader import MetadataLoader
from quorum.replica.server import RaftServer
from quorum.services.controller_client import ControllerClient
from quorum.services.controller_server import ControllerServer
from tests.quorum.controller.scenario import CLUSTER_ID
from tidemark.config import parse_server_config
from tidemark.types import Endpoint
from tidemark.v1 import controller_pb2


def free_ports(count: int) -> list[int]:
    """Ports that are free now; held at the same time, so they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Polls until `condition` holds; there is no event to wait for across servers."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition belongs to other servers
            await asyncio.sleep(0.01)
    assert condition(), what


class RealNode:
    """A controller: RaftServer, MetadataLoader and ControllerServer in this process."""

    def __init__(
        self,
        node_id: int,
        ports: dict[int, int],
        path: Path,
        first_levels: Mapping[str, int] = FIRST_LEVELS,
    ) -> None:
        voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in ports.items())
        self.config = parse_server_config(
            {
                "process.roles": "controller",
                "node.id": str(node_id),
                "listeners": f"CONTROLLER://127.0.0.1:{ports[node_id]}",
                "controller.quorum.voters": voters,
                "controller.quorum.election.timeout.ms": "300",
                # no follower misses its leader because the machine is busy: see `miss_the_leader`
                "controller.quorum.fetch.timeout.ms": "60000",
                "controller.quorum.append.linger.ms": "0",
                "log.dirs": str(path),
                "metadata.log.max.record.bytes.between.snapshots": "2000",
            }
        )
        self.node_id = node_id
        self.path = path
        self.first_levels = first_levels

    async def start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.raft = RaftServer(
            self.config,
            cluster_id=CLUSTER_ID,
            directory=OsDirectory(self.path),
            directory_id=UUID(int=self.node_id, version=4),
            rng=random.Random(self.node_id),
            now_ms=lambda: int(time.time() * 1000),
        )
        self.loader = MetadataLoader(self.raft, self.config, lambda: int(time.time() * 1000))
        self.server = ControllerServer(
            self.config,
            self.raft,
            self.loader,
            cluster_id=CLUSTER_ID,
            rng=random.Random(self.node_id),
            first_levels=self.first_levels,
        )
        self.raft.register(self.loader)
        await self.server.start()
        await self.raft.start()

    async def crash(self) -> None:
        """Stops without a message to the other voters, as a killed process does."""
        await self.raft._stop()
        self.raft._log.close()
        await self.server.stop()
        await self.loader.close()

    async def stop(self) -> None:
        await self.server.stop()
        await self.loader.close()
        await self.raft.shutdown()


@contextlib.asynccontextmanager
async def real_controllers(
    path: Path, count: int = 3, first_levels: Mapping[str, int] = FIRST_LEVELS
) -> AsyncIterator[dict[int, RealNode]]:
    """Running controllers by id; those still in the dict are stopped at the end."""
    ports = dict(enumerate(free_ports(count), start=1))
    nodes = {i: RealNode(i, ports, path / str(i), first_levels) for i in ports}
    for node in nodes.values():
        await node.start()
    try:
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


def miss_the_leader(nodes: dict[int, RealNode]) -> None:
    """Has these followers stand for election at once, as after their fetch timeout."""
    for node in nodes.values():
        role = node.raft._replica.role
        if isinstance(role, Follower):
            role.fetch_deadline_ms = 0
        node.raft._post(Tick())


async def active(nodes: dict[int, RealNode]) -> RealNode:
    """The active controller, once all others follow it."""

    def agreed() -> bool:
        leaders = {node.raft.leader_and_epoch.leader_id for node in nodes.values()}
        return len(leaders) == 1 and any(node.server.is_active for node in nodes.values())

    await eventually(agreed, "one controller is active")
    return next(node for node in nodes.values() if node.server.is_active)


async def broker_in_service(client: ControllerClient, broker_id: int) -> int:
    """Registers and unfences a broker; returns its epoch."""
    request = controller_pb2.RegisterBrokerRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=broker_id).bytes,
        rack="abc"[broker_id % 3],
        features=ranges_to_wire(),
    )
    request.listeners.add(name="PLAINTEXT", host="127.0.0.1", port=9_000 + broker_id)
    answer = await client.call("RegisterBroker", request, 20_000)
    assert answer.error_code == 0, answer.error_message
    heartbeat = controller_pb2.BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=answer.broker_epoch,
        current_metadata_offset=answer.broker_epoch,
    )
    answered = await client.call("BrokerHeartbeat", heartbeat, 20_000)
    assert (answered.error_code, answered.is_fenced) == (0, False)
    return int(answer.broker_epoch)


def leader_of(nodes: dict[int, RealNode]) -> Callable[[], Endpoint | None]:
    """The leader according to any running node, for a client that is no node itself."""

    def found() -> Endpoint | None:
        known = (node.raft.leader_endpoint() for node in nodes.values())
        return next((endpoint for endpoint in known if endpoint is not None), None)

    return found
