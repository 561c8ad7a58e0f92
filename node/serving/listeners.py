"""The gRPC servers of a broker, one per listener, with the services that each of them offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import grpc

from node.runtime.health import Health
from node.serving.answer_memory import AnswerMemory
from node.serving.log_service import LogService, RequestHandlers
from node.serving.request_memory import RequestMemory
from quorum.access.listeners import AccessControl
from quorum.services.admin_service import AdminNode, add_admin_service
from quorum.services.listening import bind, keys_of
from tidemark.config import ServerConfig
from tidemark.wire.metering import RequestMeters, metered
from tidemark.wire.network import make_server

logger = logging.getLogger(__name__)

_SERVICES = (
    "tidemark.v1.Log",
    "tidemark.v1.Replication",
    "tidemark.v1.Admin",
    "tidemark.v1.Groups",
    "tidemark.v1.Transactions",
    "tidemark.v1.TransactionMarkers",
)
_STOP_GRACE_S = 1.0
_UNLIMITED = 2**31 - 1
_CALLS_MAX = 1_000  # of one connection; gRPC has further ones wait at the client


def _limits(config: ServerConfig, listener: str) -> dict[str, int]:
    """gRPC's own limits of a listener: they hold before a request is in memory.

    max.connections does not hold on a listener that brokers have to themselves.
    """
    is_for_clients = listener != config.inter_broker_listener or len(config.broker_listeners()) == 1
    limits = {
        "grpc.max_receive_message_length": config.socket_request_max_bytes,
        "grpc.max_connection_idle_ms": config.connections_max_idle_ms,
        "grpc.max_concurrent_streams": _CALLS_MAX,
    }
    if is_for_clients and config.max_connections < _UNLIMITED:  # which gRPC aborts at
        limits["grpc.max_allowed_incoming_connections"] = config.max_connections
    return limits


class FurtherService(Protocol):
    """A service that is not of this room."""

    def add_to(self, server: grpc.aio.Server, listener: str) -> None: ...

    async def stop(self) -> None: ...

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Numbers for the metrics, by subject and kind."""


class BrokerListeners:
    """One per broker. The Admin service of each listener answers from `admin`."""

    def __init__(
        self,
        handlers: RequestHandlers,
        admin: AdminNode,
        others: Sequence[FurtherService] = (),
    ) -> None:
        """`others` are served on each listener, too."""
        self._others = others
        self._handlers = handlers
        self._admin = admin
        self._health = Health(_SERVICES)
        self._services: list[LogService] = []
        self.requests: list[RequestMemory] = []  # of each listener
        self.answers: list[AnswerMemory] = []
        self._servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        """Serves on every listener; health says NOT_SERVING until `set_serving`."""
        config = self._admin.config
        access = AccessControl(config, self._admin.images)
        for name, endpoint in config.broker_listeners().items():
            server = make_server(_limits(config, name), [access.guard_of(name)])
            access.add_login_to(server, name)
            service = self._log_service(name)
            self._services.append(service)
            serves_nodes = name == config.inter_broker_listener
            counted = metered(server, self._handlers.meters)
            counted.add_generic_rpc_handlers(service.handlers(serves_nodes))
            add_admin_service(counted, replace(self._admin, listener=name))
            for other in self._others:
                other.add_to(counted, name)
            self._health.add_to(server)
            bound = bind(server, name, endpoint, keys_of(config, name))
            await self._health.set(False)
            await server.start()
            self._servers.append(server)
            logger.info("listener %s answers on %s", name, bound.address)

    def _log_service(self, listener: str) -> LogService:
        admin, config = self._admin, self._admin.config
        self.requests.append(RequestMemory(config.queued_max_request_bytes))
        self.answers.append(AnswerMemory(config.queued_max_response_bytes))
        return LogService(
            self._handlers,
            admin.images,
            self.requests[-1],
            self.answers[-1],
            admin.cluster_id,
            lambda: admin.quorum.leader_and_epoch.leader_id,
            listener,
            config.request_timeout_ms,
            config.fetch_max_bytes,
        )

    @property
    def meters(self) -> RequestMeters:
        """The requests of all listeners."""
        return self._handlers.meters

    def counts(self) -> dict[str, Mapping[str, int]]:
        """The numbers of the further services, by subject and kind."""
        found: dict[str, Mapping[str, int]] = {}
        for other in self._others:
            found |= other.counts()
        return found

    async def set_serving(self, serving: bool) -> None:
        """Sets the health of all listeners."""
        await self._health.set(serving)

    async def stop(self) -> None:
        """Ends calls that stay open, then each server after a second of grace, then reads."""
        for service in self._services:
            service.end_open_calls()
        for server in self._servers:
            await server.stop(_STOP_GRACE_S)
        for other in self._others:
            await other.stop()
        await self._handlers.fetch.stop()
        await self._handlers.produce.stop()
