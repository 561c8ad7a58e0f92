"""The lifecycle of a broker at the controller (KIP-631).

    from          to                           when
    ------------  ---------------------------  ----------------------------------------------
    NOT_RUNNING   STARTING                     `run` begins; it registers until
                                               initial.broker.registration.timeout.ms
    STARTING      RECOVERY                     registered, fenced; heartbeats report the
                                               metadata offset
    RECOVERY      RUNNING                      logs are recovered and the controller unfences
    RUNNING       PENDING_CONTROLLED_SHUTDOWN  `begin_controlled_shutdown`; the controller moves
                                               leaderships away
    PENDING_...   SHUTTING_DOWN                the controller agrees, or a timeout

The heartbeat is a task of its own and waits for nothing but its own answer. If the controller
reports the broker epoch as stale or the broker as unknown, the broker registers again with the same
incarnation id.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from uuid import UUID

from node.membership.controller_calls import ControllerCaller
from node.membership.identity import BrokerIdentity
from quorum.image.features import ranges_to_wire
from quorum.services.admin_service import ImageSource
from tidemark.config import ServerConfig
from tidemark.errors import (
    ApiError,
    DuplicateBrokerRegistrationError,
    ErrorCode,
    FatalError,
    InconsistentClusterIdError,
    error_for,
    raise_for,
)
from tidemark.types import random_uuid
from tidemark.v1 import controller_pb2 as pb

logger = logging.getLogger(__name__)

_RETRY_MS = 200
_REGISTER_TIMEOUT_MS = 5_000
_SHUTDOWN_HEARTBEAT_MS = 100
_CATCH_UP_HEARTBEAT_MS = 100


class LifecycleState(enum.IntEnum):
    """The states, with Kafka's numbers."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerLifecycle:
    """One per broker. `run` is its task; others wait for the events `unfenced` and `may_stop`."""

    def __init__(
        self,
        config: ServerConfig,
        identity: BrokerIdentity,
        cluster_id: str,
        directory_ids: list[UUID],
        previous_broker_epoch: int,
        client: ControllerCaller,
        images: ImageSource,
    ) -> None:
        self._config = config
        self._identity = identity
        self._cluster_id = cluster_id
        self._directory_ids = directory_ids
        self.previous_broker_epoch = previous_broker_epoch
        self._client = client
        self._images = images
        self._ready = False
        self._wake = asyncio.Event()
        self.incarnation_id = random_uuid()
        self.state = LifecycleState.NOT_RUNNING
        self.offline_directories: set[UUID] = set()
        self.failures_reported = asyncio.Event()
        self.registered = asyncio.Event()
        self.caught_up = asyncio.Event()
        self.unfenced = asyncio.Event()
        self.fenced = asyncio.Event()
        self.fenced.set()
        self.may_stop = asyncio.Event()

    def set_ready(self) -> None:
        """Asks to be unfenced: logs are recovered and the image is applied."""
        self._ready = True
        self._wake.set()

    def directory_failed(self, directory_id: UUID) -> None:
        """Reports a failed log directory with the next heartbeat, sent at once, and with every
        later one.

        `failures_reported` is set when the controller has received all of them.
        """
        self.offline_directories.add(directory_id)
        self.failures_reported.clear()
        self._wake.set()

    async def wait_until_reported(self) -> None:
        """Waits until the controller has received all failed directories.

        Raises FatalError after log.dir.failure.timeout.ms: the controller would leave this broker
        leaderships that it cannot serve.
        """
        timeout_ms = self._config.log_dir_failure_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.failures_reported.wait()
        except TimeoutError as error:
            raise FatalError(
                "the controller could not be told of a failed log directory in "
                f"log.dir.failure.timeout.ms ({timeout_ms})"
            ) from error

    async def run(self) -> None:
        """Registers, then sends heartbeats forever. Raises FatalError if it cannot register at
        all."""
        self.state = LifecycleState.STARTING
        await self._register(self._config.initial_broker_registration_timeout_ms)
        self.state = LifecycleState.RECOVERY
        while True:
            self._wake.clear()
            interval_ms = await self._heartbeat()
            await self._pause(interval_ms)

    async def begin_controlled_shutdown(self) -> None:
        """Asks for a controlled shutdown, if the broker is running.

        Returns when the controller agrees, or after two session timeouts.
        """
        if self.state is not LifecycleState.RUNNING:
            return
        self.state = LifecycleState.PENDING_CONTROLLED_SHUTDOWN
        self._wake.set()
        timeout_s = 2 * self._config.broker_session_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self.may_stop.wait()
        except TimeoutError:
            logger.warning("the controller did not let us go in %.0f s: going anyway", timeout_s)
        self.state = LifecycleState.SHUTTING_DOWN

    def _set_fenced(self, fenced: bool) -> None:
        entered, left = (self.fenced, self.unfenced) if fenced else (self.unfenced, self.fenced)
        left.clear()
        entered.set()

    async def _pause(self, interval_ms: int) -> None:
        try:
            async with asyncio.timeout(interval_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _register(self, timeout_ms: int | None) -> None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        logged = ""
        while True:
            try:
                response = await self._client.call(
                    "RegisterBroker", self._registration(), _REGISTER_TIMEOUT_MS
                )
                raise_for(response.error_code, response.error_message)
            except InconsistentClusterIdError as error:
                raise FatalError(
                    f"the controllers belong to another cluster than this node "
                    f"({self._cluster_id}): {error}"
                ) from error
            except ApiError as error:
                # DUPLICATE_BROKER_REGISTRATION: the previous process' session must expire first.
                if not (error.retriable or isinstance(error, DuplicateBrokerRegistrationError)):
                    raise FatalError(f"the controller refused this broker: {error}") from error
                if deadline is not None and loop.time() >= deadline:
                    raise FatalError(
                        f"could not register with the controllers in {timeout_ms} ms: {error}; "
                        "check controller.quorum.voters and that they run"
                    ) from error
                if str(error) != logged:  # tried five times a second
                    logged = str(error)
                    logger.info("registration failed (%s), trying again", error)
                await asyncio.sleep(_RETRY_MS / 1000)
                continue
            self._took_epoch(response.broker_epoch)
            return

    def _took_epoch(self, broker_epoch: int) -> None:
        logger.info("registered with broker epoch %d", broker_epoch)
        self._identity.epoch = broker_epoch
        self.registered.set()

    def _registration(self) -> pb.RegisterBrokerRequest:
        config = self._config
        request = pb.RegisterBrokerRequest(
            broker_id=self._identity.id,
            cluster_id=self._cluster_id,
            incarnation_id=self.incarnation_id.bytes,
            rack=config.broker_rack,
            log_dirs=[
                directory.bytes
                for directory in self._directory_ids
                if directory not in self.offline_directories
            ],
            previous_broker_epoch=self.previous_broker_epoch,
            features=ranges_to_wire(),
            locked_log_dirs=not self.registered.is_set(),
        )
        advertised = config.advertised_endpoints()
        for name in config.broker_listeners():
            endpoint = advertised[name]
            host = endpoint.host or "localhost"
            request.listeners.add(name=name, host=host, port=endpoint.port)
        return request

    async def _heartbeat(self) -> int:
        """Sends one heartbeat; returns the time to the next one in ms."""
        request = pb.BrokerHeartbeatRequest(
            broker_id=self._identity.id,
            broker_epoch=self._identity.epoch,
            current_metadata_offset=self._images.image.offset,
            want_fence=not self._ready,
            want_shut_down=self.state >= LifecycleState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=sorted(directory.bytes for directory in self.offline_directories),
        )
        try:
            response = await self._client.call(
                "BrokerHeartbeat", request, self._config.broker_session_timeout_ms // 2 + 1
            )
            if response.error_code != ErrorCode.NONE:
                raise error_for(response.error_code, response.error_message)
        except ApiError as error:
            return await self._heartbeat_failed(error)
        if len(request.offline_log_dirs) == len(self.offline_directories):
            self.failures_reported.set()
        return self._took_answer(response)

    async def _heartbeat_failed(self, error: ApiError) -> int:
        if error.code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            logger.warning("%s: registering again", error)
            self._set_fenced(True)
            await self._register(None)
        else:
            logger.info("heartbeat failed: %s", error)
        return _RETRY_MS

    def _took_answer(self, response: pb.BrokerHeartbeatResponse) -> int:
        if response.is_caught_up:
            self.caught_up.set()
        if response.should_shut_down:
            self.may_stop.set()
        if response.is_fenced:
            if self.unfenced.is_set():
                if self.state is LifecycleState.RUNNING:
                    logger.warning("the controller fenced this broker")
                self._set_fenced(True)
        elif self._ready and not self.unfenced.is_set():
            if self.state is LifecycleState.RECOVERY:
                self.state = LifecycleState.RUNNING
            self._set_fenced(False)
        if self.state is LifecycleState.PENDING_CONTROLLED_SHUTDOWN:
            return _SHUTDOWN_HEARTBEAT_MS
        if not self.unfenced.is_set():
            return _CATCH_UP_HEARTBEAT_MS
        return self._config.broker_heartbeat_interval_ms
