"""The process of a node: controller, broker, or both, on one event loop.

`Server.start` checks and locks the directories, builds Raft (one RaftServer, shared by both roles)
and the metadata loader. Then it starts the controller, Raft and the broker. `run_until_stopped`
waits for SIGTERM or SIGINT, which cause a controlled shutdown, or for a fatal error. `run(config)`
is the blocking entry of the command line; it returns the exit code.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory
from commitlog.disk.reserve import Reserve
from commitlog.disk.sync_times import SYNC_TIMES
from node.broker import BrokerServer
from node.runtime.clock import Clock
from node.runtime.loop_lag import LoopLag, LoopWatch
from node.runtime.settings import FollowedSettings
from node.runtime.storage import NodeStorage, open_storage
from node.runtime.tasks import cancel_all, every, spawn
from quorum.replica.loader import MetadataLoader
from quorum.replica.server import RaftServer
from quorum.services.controller_server import ControllerServer
from quorum.services.node_answers import certificates_of
from tidemark.config import ServerConfig
from tidemark.config.console import console_access
from tidemark.errors import FatalError, TidemarkError
from tidemark.surroundings import surroundings
from tidemark.types import Endpoint
from tidemark.wire.metering import RequestMeters

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from node.metrics.exposition import Exposition
    from tidemark.console.server import ConsoleServer
    from tidemark.console.timeline import QuorumSight

logger = logging.getLogger(__name__)

_RESERVE_INTERVAL_MS = 5_000

GARBAGE_THRESHOLDS = (50_000, 20, 50)
"""A request for many partitions allocates thousands of objects and hardly any cycle. With Python's
default thresholds (700, 10, 10) a busy controller spends a sixth of its time collecting garbage."""


class Server:
    """One node. Call `start`, then `run_until_stopped` or `stop`."""

    def __init__(
        self, config: ServerConfig, *, clock: Clock | None = None, lag: LoopLag | None = None
    ) -> None:
        """`lag` is that of the event loop, for the metrics."""
        self.config = config
        self._lag = lag
        self._exposition: Exposition | None = None
        self._meters = RequestMeters(config.observation.slow_request_threshold_ms)
        self.metrics_endpoint: Endpoint | None = None
        self._console: ConsoleServer | None = None
        self.console_endpoint: Endpoint | None = None
        self._clock = clock or Clock()
        self._storage: NodeStorage | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.raft: RaftServer | None = None
        self.loader: MetadataLoader | None = None
        self.controller: ControllerServer | None = None
        self.broker: BrokerServer | None = None

    def on_fatal(self, error: FatalError) -> None:
        """Records that the process must stop; the first error counts."""
        if not self.fatal.done():
            self.fatal.set_exception(error)

    async def start(self) -> None:
        """Starts the node; if that fails, nothing is left running.

        Raises StorageError, ConfigError or FatalError with the action to take.
        """
        storage = self._storage = open_storage(self.config)
        storage.lock(self.config)
        try:
            await self._start(storage)
        except BaseException:
            await self._shut_down()
            raise

    async def _start(self, storage: NodeStorage) -> None:
        config = self.config
        listener = config.observation.prometheus_listener
        if listener:
            from node.metrics.exposition import Exposition  # it costs 0.1 s of CPU

            self._exposition = Exposition(self)
            self.metrics_endpoint = await self._exposition.start(listener)
            logger.info("metrics and probes are at http://%s", self.metrics_endpoint.address)
        directory, directory_id = storage.metadata(config)
        reserve = await self._reserve(directory)
        self.raft = RaftServer(
            config,
            cluster_id=storage.cluster_id,
            directory=reserve.guard(),
            directory_id=directory_id,
            rng=surroundings().make_rng(),
            now_ms=self._clock.wall_ms,
        )
        self.raft.fatal.add_done_callback(self._raft_failed)
        self.loader = MetadataLoader(self.raft, config, self._clock.wall_ms)
        if config.is_broker:
            self.broker = BrokerServer(
                config, storage, self.raft, self.loader, self._clock, self.on_fatal, self._meters
            )
        else:
            self.loader.add_publisher(FollowedSettings(config, self._meters.reconfigure))
        self.raft.register(self.loader)
        if config.is_controller:
            self.controller = ControllerServer(
                config,
                raft=self.raft,
                loader=self.loader,
                cluster_id=storage.cluster_id,
                first_levels=storage.first_levels(config),
                meters=self._meters,
            )
            await self.controller.start()
        await self.raft.start()
        if self.broker is not None:
            await self.broker.start(reserve)
        await self._start_console()

    async def _start_console(self) -> None:
        access = console_access(self.config)
        if access is None:
            return
        from tidemark.console.server import ConsoleServer  # it brings the client along

        address = access.bootstrap.address
        self._console = ConsoleServer(address, login=access.login, look=self._look_at_quorum)
        self.console_endpoint = await self._console.start(self.config.console.endpoint)
        logger.info("the console is at http://%s", self.console_endpoint.address)

    async def _look_at_quorum(self) -> QuorumSight | None:
        from tidemark.console.timeline import QuorumSight

        if self.raft is None:
            return None
        found = self.raft.describe()
        voters = tuple(voter.replica_id for voter in found.voters)
        return QuorumSight(found.leader_id, found.leader_epoch, self.raft.high_watermark, voters)

    async def _reserve(self, directory: Directory) -> Reserve:
        """Keeps room for the metadata log, and takes it again after it was given back."""
        reserve = Reserve(directory)
        if not await asyncio.to_thread(reserve.take):
            logger.warning("there is no room to keep for the metadata log in %s", directory.path)

        async def take() -> None:
            if not reserve.is_taken:
                await asyncio.to_thread(reserve.take)

        self._keeper = spawn("reserve", every(_RESERVE_INTERVAL_MS, take), self.on_fatal)
        return reserve

    def _raft_failed(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and outcome.exception() is not None:
            error = outcome.exception()
            fatal = error if isinstance(error, FatalError) else FatalError(str(error))
            self.on_fatal(fatal)

    @property
    def is_ready(self) -> bool:
        """Whether the node serves its roles; a broker must be registered and unfenced."""
        return self.broker is None or self.broker.is_ready

    @property
    def is_started(self) -> bool:
        """Whether the metadata log is open, and those of a broker."""
        if self.config.is_broker:
            return self.broker is not None and self.broker.is_started
        return self.raft is not None

    def families(self) -> Iterator[Metric]:
        """All metrics of the parts that run."""
        from node.metrics.families import gauge, of_kafka
        from node.metrics.requests import of_requests, of_syncs
        from node.metrics.sources import of_loop, of_node

        yield of_node(self.config)
        yield gauge("node_ready", "1: the node serves its roles", self.is_ready)
        if self._lag is not None:
            yield from of_loop(self._lag)
        yield from of_requests(self._meters)
        yield from of_syncs(SYNC_TIMES)
        if self.raft is not None:
            yield from of_kafka("raft", "kafka.server:type=raft-metrics", self.raft.metrics())
        if self.controller is not None:
            bean = "kafka.controller:type=KafkaController and ControllerEventManager"
            metrics = self.controller.metrics(self._clock.wall_ms())
            yield from of_kafka("controller", bean, metrics)
        if self.broker is not None:
            yield from self.broker.families(self._clock.wall_ms())

    def directories(self) -> Mapping[str, bool]:
        """Whether a log directory serves, by path."""
        if self.broker is not None:
            return self.broker.directories()
        return {self.config.metadata_directory: self.raft is not None}

    def certificates(self) -> Mapping[str, int]:
        """Ends of certificates by listener, in ms since 1970, of those that can be read."""
        found = certificates_of(self.config)
        return {one.listener: one.not_after_ms for one in found if not one.error_message}

    def restart_harms(self) -> list[str]:
        """The partitions that could not be written to while this node is down."""
        return [] if self.broker is None else self.broker.restart_harms()

    async def wait_until_ready(self) -> None:
        """Returns when the broker is unfenced; on a node without a broker, at once. Raises the
        fatal error if one comes first."""
        if self.broker is None:
            return
        ready = asyncio.ensure_future(self.broker.lifecycle.unfenced.wait())
        try:
            await asyncio.wait((ready, self.fatal), return_when=asyncio.FIRST_COMPLETED)
            if self.fatal.done():
                self.fatal.result()
        finally:
            ready.cancel()

    def ask_to_stop(self) -> None:
        """Ends `run_until_stopped`, as SIGTERM and SIGINT do."""
        self._stop_asked.set()

    async def run_until_stopped(self) -> None:
        """Runs until a signal, then stops in order. Raises FatalError, after stopping, if one ended
        the run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait((asked, self.fatal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            await self.stop(orderly=not self.fatal.done())
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        if self.fatal.done():
            self.fatal.result()

    async def stop(self, orderly: bool = True) -> None:
        """Stops everything; `orderly` first moves leaderships away and marks the logs as cleanly
        closed."""
        if self.broker is not None and orderly and self.config.controlled_shutdown_enable:
            await self.broker.controlled_shutdown()
        await self._shut_down(clean=orderly)

    async def _shut_down(self, clean: bool = False) -> None:
        await cancel_all(self._keeper)
        if self._console is not None:
            await self._console.stop()
            self._console = None
        if self._exposition is not None:
            await self._exposition.stop()
            self._exposition = None
        if self.broker is not None:
            await self.broker.stop(clean=clean)
            self.broker = None
        if self.controller is not None:
            await self.controller.stop()
            self.controller = None
        if self.loader is not None:
            await self.loader.close()
            self.loader = None
        if self.raft is not None:
            await self.raft.shutdown()
            self.raft = None
        if self._storage is not None:
            self._storage.release()


async def _serve(config: ServerConfig) -> None:
    watch = LoopWatch(config.observation.event_loop_stall_ms)
    server = Server(config, lag=watch.lag)
    watch.start()
    try:
        await server.start()
        logger.info("node %d is up (%s)", config.node_id, ",".join(config.process_roles))
        await server.run_until_stopped()
    finally:
        watch.stop()
        logger.info("turns of the event loop: %s", watch.lag)


def run(config: ServerConfig) -> int:
    """Runs a node until it is stopped. Returns 0 after an orderly stop, else 1 with a message on
    stderr."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        runner = asyncio.Runner()
    else:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with runner:
            runner.run(_serve(config))
    except TidemarkError as error:
        sys.stderr.write(f"tidemark: node {config.node_id} stops: {error}\n")
        return 1
    return 0
