"""The standard gRPC health service and reflection of a listener.

Health says SERVING once the broker is registered and unfenced, with its logs recovered.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# The service that a liveness probe asks for. It is SERVING while the loop runs, whatever the state
# of the cluster: a fenced broker must not be restarted.
LIVENESS = "liveness"


class Health:
    """The health of some services, and of the node as a whole (the empty name)."""

    def __init__(self, services: Sequence[str]) -> None:
        self._names = ("", *services)
        self._servicer = HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds health and reflection; the services begin as NOT_SERVING."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        names = (*self._names[1:], "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def set(self, serving: bool) -> None:
        for name in self._names:
            await self._servicer.set(name, _SERVING if serving else _NOT_SERVING)
        await self._servicer.set(LIVENESS, _SERVING)
