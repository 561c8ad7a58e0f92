"""The process of a node: controller, broker, or both, on one event loop.

`Server.start` brings everything up in order: directories checked, Raft started (one RaftServer,
shared by both roles), metadata loader, controller, broker. `run_until_stopped` waits for SIGTERM or
SIGINT (controlled shutdown) or for a fatal error (the process must not go on). `run(config)` is the
blocking entry of the command line; its value is the exit code.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import sys

from node.broker import BrokerServer
from node.runtime.clock import Clock
from node.runtime.storage import NodeStorage, open_storage
from quorum.replica.loader import MetadataLoader
from quorum.replica.server import RaftServer
from quorum.services.controller_server import ControllerServer
from tidemark.config import ServerConfig
from tidemark.errors import FatalError, TidemarkError

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLDS = (50_000, 20, 50)
"""One request for many partitions makes thousands of objects and hardly a cycle: with Python's own
thresholds (700, 10, 10) a busy controller spends a sixth of its time looking for cycles."""


class Server:
    """One node. `start`, then `run_until_stopped` or `stop`."""

    def __init__(self, config: ServerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or Clock()
        self._storage: NodeStorage | None = None
        self._stop_asked = asyncio.Event()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.raft: RaftServer | None = None
        self.loader: MetadataLoader | None = None
        self.controller: ControllerServer | None = None
        self.broker: BrokerServer | None = None

    def on_fatal(self, error: FatalError) -> None:
        """The process must stop; the first reason counts."""
        if not self.fatal.done():
            self.fatal.set_exception(error)

    async def start(self) -> None:
        """Raises StorageError, ConfigError or FatalError that says what to do; then nothing is left
        running."""
        storage = self._storage = open_storage(self.config)
        storage.lock(self.config)
        try:
            await self._start(storage)
        except BaseException:
            await self._shut_down()
            raise

    async def _start(self, storage: NodeStorage) -> None:
        config = self.config
        directory, directory_id = storage.metadata(config)
        self.raft = RaftServer(
            config,
            cluster_id=storage.cluster_id,
            directory=directory,
            directory_id=directory_id,
            rng=random.Random(),
            now_ms=self._clock.wall_ms,
        )
        self.raft.fatal.add_done_callback(self._raft_failed)
        self.loader = MetadataLoader(self.raft, config, self._clock.wall_ms)
        if config.is_broker:
            self.broker = BrokerServer(
                config, storage, self.raft, self.loader, self._clock, self.on_fatal
            )
        self.raft.register(self.loader)
        if config.is_controller:
            self.controller = ControllerServer(
                config,
                raft=self.raft,
                loader=self.loader,
                cluster_id=storage.cluster_id,
                first_levels=storage.first_levels(config),
            )
            await self.controller.start()
        await self.raft.start()
        if self.broker is not None:
            await self.broker.start()

    def _raft_failed(self, outcome: asyncio.Future[None]) -> None:
        if not outcome.cancelled() and outcome.exception() is not None:
            error = outcome.exception()
            fatal = error if isinstance(error, FatalError) else FatalError(str(error))
            self.on_fatal(fatal)

    @property
    def is_ready(self) -> bool:
        """Serves what its roles are for: a broker is registered and unfenced."""
        return self.broker is None or self.broker.is_ready

    async def wait_until_ready(self) -> None:
        """Returns when the broker is unfenced (a controller: at once); raises the fatal error if
        one comes first."""
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
        """What SIGTERM and SIGINT do."""
        self._stop_asked.set()

    async def run_until_stopped(self) -> None:
        """Until a signal asks to stop: then in order. Raises FatalError, after stopping, when the
        process must not go on."""
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
        """Stops everything; `orderly` moves leaderships away first and marks the logs as cleanly
        closed."""
        if self.broker is not None and orderly and self.config.controlled_shutdown_enable:
            await self.broker.controlled_shutdown()
        await self._shut_down(clean=orderly)

    async def _shut_down(self, clean: bool = False) -> None:
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
    server = Server(config)
    await server.start()
    logger.info("node %d is up (%s)", config.node_id, ",".join(config.process_roles))
    await server.run_until_stopped()


def run(config: ServerConfig) -> int:
    """Runs a node until it is stopped. 0 after an orderly stop, 1 with a message on stderr
    otherwise."""
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
