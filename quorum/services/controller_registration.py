"""Keeps a controller registered with its endpoints and supported feature levels (KIP-919).

A metadata publisher. While the image has metadata.version 2 or more and lacks this process's
registration, it requests the registration with growing pauses, as brokers do. If another process
registers with this node's id afterwards, two nodes share an id: that is logged, and the
registration is not taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from quorum.image import MetadataDelta, MetadataImage
from quorum.image.features import ranges_to_wire
from quorum.image.image import CONTROLLERS_REGISTER_LEVEL, METADATA_VERSION
from tidemark.config import ServerConfig
from tidemark.errors import ApiError, error_for
from tidemark.types import random_uuid
from tidemark.v1 import controller_pb2 as pb

logger = logging.getLogger(__name__)

Register = Callable[[pb.RegisterControllerRequest, int], Awaitable[pb.RegisterControllerResponse]]
"""Sends a request to the active controller with a timeout in ms; raises ApiError."""

_TIMEOUT_MS = 5_000
_BACKOFF_MS_MIN = 100
_BACKOFF_MS_MAX = 30_000


class ControllerRegistrar:
    """Registers one controller process; must be stopped.

    `incarnation_id` distinguishes processes of one id.
    """

    def __init__(self, config: ServerConfig, cluster_id: str, register: Register) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._register = register
        self._task: asyncio.Task[None] | None = None
        self._image: MetadataImage | None = None
        self._was_registered = False
        self._twin: UUID | None = None
        self._stopped = False
        self.incarnation_id: UUID = random_uuid()

    @property
    def is_registered(self) -> bool:
        """Whether the committed image has this process's registration."""
        found = None if self._image is None else self._image.controllers.get(self._config.node_id)
        return found is not None and found.incarnation_id == self.incarnation_id

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Starts registering if the image requires it."""
        self._image = image
        if self.is_registered:
            self._was_registered = True
        elif image.features.get(METADATA_VERSION, 0) < CONTROLLERS_REGISTER_LEVEL:
            self._was_registered = False  # removed with the level, not replaced by another process
        elif self._is_wanted() and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._keep_asking())

    async def stop(self) -> None:
        """Stops registering."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _is_wanted(self) -> bool:
        image = self._image
        if self._stopped or image is None or self.is_registered:
            return False
        if image.features.get(METADATA_VERSION, 0) < CONTROLLERS_REGISTER_LEVEL:
            return False
        other = image.controllers.get(self._config.node_id)
        if other is None:
            return True
        if self._was_registered and self._twin != other.incarnation_id:
            self._twin = other.incarnation_id
            logger.error(
                "another process registered as controller %d: two nodes have the same node.id",
                self._config.node_id,
            )
        return not self._was_registered

    async def _keep_asking(self) -> None:
        pause_ms = _BACKOFF_MS_MIN
        while self._is_wanted():
            try:
                answer = await self._register(self._request(), _TIMEOUT_MS)
                if answer.error_code:
                    raise error_for(answer.error_code, answer.error_message)
            except ApiError as error:
                logger.info(
                    "controller %d is not registered yet (%s), trying again in %d ms",
                    self._config.node_id,
                    error,
                    pause_ms,
                )
            # Only the image decides whether it is registered; the log may be behind the answer.
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _BACKOFF_MS_MAX)

    def _request(self) -> pb.RegisterControllerRequest:
        config = self._config
        request = pb.RegisterControllerRequest(
            controller_id=config.node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self.incarnation_id.bytes,
            features=ranges_to_wire(),
        )
        advertised = config.advertised_endpoints()
        for name in config.controller_listener_names:
            endpoint = advertised[name]
            request.listeners.add(name=name, host=endpoint.host or "localhost", port=endpoint.port)
        return request
