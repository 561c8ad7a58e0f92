"""A node of a simulated cluster: the production server on simulated disks, clocks and network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.surroundings import Surroundings
from tidemark.testing.loop import Process, SimLoop
from tidemark.testing.network import ProcessNetwork, SimNetwork

if TYPE_CHECKING:
    from commitlog.disk.memory_files import Keep, MemoryDirectory
    from node.server import Server

EPOCH_MS = 1_767_225_600_000
"""Wall-clock time at which a simulation begins, in ms: the first of January 2026, UTC."""


class Disks:
    """The disks of one node, by path; they outlive its process."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.by_path: dict[str, MemoryDirectory] = {}

    def open(self, path: str, *, create: bool = True) -> MemoryDirectory:
        """`tidemark.surroundings.Surroundings.open_directory`."""
        from commitlog.disk.memory_files import MemoryDirectory
        from tidemark.errors import StorageError

        found = self.by_path.get(path)
        if found is None:
            if not create:
                raise StorageError(f"{path} is not a directory")
            seed = self._seed * 31 + len(self.by_path)
            found = self.by_path[path] = MemoryDirectory(path, seed=seed)
        return found

    def crash(self, keep: Any) -> None:
        """Ends the process that uses them; `keep` says what remains of unsynced changes."""
        for path, directory in self.by_path.items():
            self.by_path[path] = directory.after_crash(keep)


class SimProcess:
    """A process with a world of its own; `begin` starts another life of it."""

    def __init__(self, loop: SimLoop, network: SimNetwork, node_id: int, seed: int) -> None:
        self.loop = loop
        self.network = network
        self.node_id = node_id
        self.rng = random.Random(seed)
        self.job_ms_max = 1.0
        """Longest time of one job on a thread, such as an fsync, in ms."""
        self.store_ms_max = 1.0
        """Longest time of one call of the remote storage, in ms."""
        self.skew_ms = 0
        """How far its wall clock is ahead of the simulation's."""
        self.life: Process | None = None

    def begin(self, name: str, **world: Any) -> Process:
        rng = self.rng
        life = Process(self.loop, self.node_id, name, self._job_delay_s)
        life.enter(
            Surroundings(
                wall_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000) + self.skew_ms,
                mono_ms=lambda: int(self.loop.time() * 1000),
                random_bytes=rng.randbytes,
                make_rng=lambda: random.Random(rng.getrandbits(64)),
                network=ProcessNetwork(self.network, life),
                has_threads=False,
                **world,
            )
        )
        self.life = life
        return life

    def _job_delay_s(self, pool: Any) -> float:
        is_remote = getattr(pool, "_thread_name_prefix", "").startswith("remote-log")
        return (
            0.05 + self.rng.random() * max(self.job_ms_max, is_remote * self.store_ms_max)
        ) / 1000


class SimNode(SimProcess):
    """One node; it may be started and killed any number of times."""

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        settings: Mapping[str, str],
        seed: int,
    ) -> None:
        from tidemark.config import parse_server_config

        self.config = parse_server_config(settings)
        super().__init__(loop, network, self.config.node_id, seed)
        self.disks = Disks(seed)
        self.server: Server | None = None
        self.is_stopping = False
        self.ended: BaseException | None = None
        """The error that ended its process."""
        self.on_end: Callable[[SimNode, BaseException], None] = lambda node, error: None
        self.before_start: Callable[[SimNode], None] = lambda node: None
        self.before_kill: Callable[[SimNode], None] = lambda node: None

    def format(self, cluster_id: str) -> None:
        """Formats the directories that are not formatted yet."""
        from node.runtime.storage import format_storage

        process = self.begin("format", open_directory=self.disks.open)
        process.context.run(lambda: format_storage(self.config, cluster_id, ignore_formatted=True))
        self.life = None

    @property
    def is_running(self) -> bool:
        return self.life is not None

    async def start(self) -> None:
        """Starts the process; returns when the server runs, which is before the broker is in
        service. Raises StorageError or FatalError as the real process.
        """
        assert self.life is None, f"node {self.node_id} runs"
        life = self.begin(f"node {self.node_id}", open_directory=self.disks.open)
        self.ended = None
        self.is_stopping = False
        try:
            await life.spawn(self._start(life))
        except asyncio.CancelledError:
            if life.alive:
                raise
        except BaseException as error:
            if life.alive:
                self._end(error)
            raise

    async def _start(self, life: Process) -> None:
        from node.server import Server

        self.before_start(self)
        server = self.server = Server(self.config)
        life.spawn(self._watch(life, server))
        await server.start()

    async def _watch(self, life: Process, server: Server) -> None:
        """Ends the process when the server says so."""
        try:
            await server.fatal
        except Exception as error:
            if life.alive:
                self._end(error)

    def _end(self, error: BaseException) -> None:
        self.kill()
        self.ended = error
        self.on_end(self, error)

    async def stop(self) -> None:
        """Stops the process in order, as SIGTERM does."""
        life, server = self.life, self.server
        if life is None or server is None:
            return
        self.is_stopping = True
        stopping = life.spawn(server.stop())
        await asyncio.wait([stopping])
        error = None if stopping.cancelled() else stopping.exception()
        if self.life is not life:
            return
        if error is None:
            self.kill()
        else:
            self._end(error)

    def kill(self, *, power: bool = False, keep: Keep = "random") -> None:
        """Ends the process at once. With `power` its machine loses power: unsynced writes may be
        lost or torn, or all be lost ("nothing" is kept), and its peers notice nothing.
        """
        life = self.life
        if life is None:
            return
        self.before_kill(self)
        self.life = self.server = None
        self.disks.crash(keep if power else "everything")
        life.end()
        self.network.process_ended(life, silent=power)
