"""A controller as a server: the services Raft, Controller, Admin and health on its listener.

The Raft client and the metadata loader belong to the node, because a broker in the same process
shares them. The node registers the loader with Raft, starts this server, then Raft, and stops them
in the opposite order. A controller that is not active answers NOT_CONTROLLER to brokers, and
forwards requests of administrators to the active one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from quorum.access.listeners import AccessControl
from quorum.controller.core import ControllerCore
from quorum.controller.quorum_controller import QuorumController
from quorum.image.features import FIRST_LEVELS
from quorum.replica.client import RaftClient
from quorum.replica.loader import MetadataLoader
from quorum.replica.settings import controller_channels
from quorum.services.admin_service import AdminNode, add_admin_service
from quorum.services.controller_client import ControllerClient
from quorum.services.controller_registration import ControllerRegistrar
from quorum.services.listening import bind, keys_of
from quorum.services.serving import Context, add_service, answered
from tidemark.config import ServerConfig
from tidemark.surroundings import surroundings
from tidemark.v1 import controller_pb2
from tidemark.wire.metering import RequestMeters, metered
from tidemark.wire.network import make_server
from tidemark.wire.rpcs import CONTROLLER, Rpc

logger = logging.getLogger(__name__)

# Time for calls in progress when the server stops.
_STOP_GRACE_S = 1.0


class ServedRaftClient(RaftClient, Protocol):
    """A Raft client that also answers other replicas on a gRPC server: `RaftServer`."""

    def add_to_server(self, server: grpc.aio.Server) -> None: ...


class ControllerServer:
    """One controller.

    `rng` makes topic ids and placement, `now_ms` is any monotonic clock, `first_levels` are the
    feature levels of an empty log, `meters` count requests.
    """

    def __init__(
        self,
        config: ServerConfig,
        raft: ServedRaftClient,
        loader: MetadataLoader,
        *,
        cluster_id: str,
        now_ms: Callable[[], int] | None = None,
        rng: random.Random | None = None,
        first_levels: Mapping[str, int] = FIRST_LEVELS,
        meters: RequestMeters | None = None,
    ) -> None:
        self._meters = meters or RequestMeters()
        self._config = config
        self._raft = raft
        self._loader = loader
        self._cluster_id = cluster_id
        core = ControllerCore(
            config,
            cluster_id,
            rng or surroundings().make_rng(),
            first_levels=first_levels,
            voters=lambda: [voter.replica_id for voter in raft.describe().voters],
        )
        # Monotonic: sessions must not end because the wall clock is set.
        self.controller = QuorumController(raft, loader, core, now_ms or surroundings().mono_ms)
        self._client = ControllerClient(raft.leader_endpoint, controller_channels(config))
        self.registrar = ControllerRegistrar(config, cluster_id, self._register)
        self._servers: list[grpc.aio.Server] = []
        self._health: Any = None
        self._port = 0

    @property
    def port(self) -> int:
        """Port that the first controller listener is bound to; 0 before `start`."""
        return self._port

    @property
    def is_active(self) -> bool:
        return self.controller.is_active

    def metrics(self, wall_ms: int) -> dict[str, int | float]:
        """See `QuorumController.metrics`."""
        return self.controller.metrics(wall_ms)

    async def start(self) -> None:
        """Binds the listener and serves; raises FatalError if the address is not available."""
        listeners = self._config.listener_endpoints()
        names = [name for name in self._config.controller_listener_names if name in listeners]
        access = AccessControl(self._config, self._loader)
        node = AdminNode(
            config=self._config,
            cluster_id=self._cluster_id,
            images=self._loader,
            quorum=self._raft,
            client=self._client,
            controller=self.controller,
        )
        self._health = HealthServicer()
        bound = []
        for name in names:
            server = make_server(interceptors=[access.guard_of(name)])
            counted = metered(server, self._meters)
            self._raft.add_to_server(counted)
            add_service(counted, CONTROLLER, self._serve_controller)
            add_admin_service(counted, node)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            bound.append(bind(server, name, listeners[name], keys_of(self._config, name)))
            self._servers.append(server)
        self._port = bound[0].port
        for server in self._servers:
            await server.start()
        self._loader.add_publisher(self.registrar)
        # "liveness" does not depend on the cluster: its probe asks whether the event loop runs.
        for service in ("", "liveness"):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        for name, endpoint in zip(names, bound, strict=True):
            logger.info("listener %s answers on %s", name, endpoint.address)

    async def stop(self) -> None:
        """Stops serving; waiting calls get NotControllerError and retry at the next controller."""
        await self.registrar.stop()
        self.controller.stop()
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(_STOP_GRACE_S) for server in servers))
        await self._client.close()

    async def _serve_controller(self, rpc: Rpc, request: Message, context: Context) -> Message:
        """Serves the Controller service; errors go into the answer."""
        return await answered(rpc.response, self.controller.handle(request))

    async def _register(
        self, request: controller_pb2.RegisterControllerRequest, timeout_ms: int
    ) -> controller_pb2.RegisterControllerResponse:
        """Registers at the active controller, which may be this one."""
        if self.controller.is_active:
            work = self.controller.handle(request)
        else:
            work = self._client.call("RegisterController", request, timeout_ms)
        answer: controller_pb2.RegisterControllerResponse = await work
        return answer
