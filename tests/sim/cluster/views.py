"""Real nodes as the checks of the quorum and of images see them.

`WatchedServer` takes the place of RaftServer in `node.server` while a world runs. It finds its node
by the context, and reports to the world before and after it carries out effects.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from commitlog.disk.checkpoints import MetaProperties
from commitlog.disk.memory_files import MemoryDirectory
from quorum.image import MetadataDelta, MetadataImage
from quorum.raft.replica import Replica
from quorum.raft.voters import ReplicaKey
from quorum.replica.metadata_log import ReplicatedLog
from quorum.replica.server import RaftServer
from tests.sim.servers.node import WatchedRaftServer
from tidemark.config import ServerConfig
from tidemark.testing.loop import Process
from tidemark.testing.node import SimNode

if TYPE_CHECKING:
    from tests.sim.cluster.world import ClusterWorld

CURRENT: ContextVar[NodeView] = ContextVar("node view")


class NodeView:
    """One node for `tests.sim.checks.Checks`, over all its lives."""

    def __init__(self, world: ClusterWorld, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.node_id = node.node_id
        self.config = node.config
        self.raft: RaftServer | None = None
        self.incarnation = 0
        self.durable_when_down = 0
        self.writes_state = False
        self._key: ReplicaKey | None = None
        self.is_mere_broker = not node.config.is_controller

    @property
    def life(self) -> Process | None:
        return self.node.life

    @property
    def disk(self) -> MemoryDirectory:
        return self.node.disks.by_path[self.config.metadata_directory]

    @property
    def key(self) -> ReplicaKey:
        if self._key is None:
            found = MetaProperties.read(self.disk)
            assert found is not None
            self._key = ReplicaKey(self.node_id, found.directory_id)
        return self._key

    @property
    def replica(self) -> Replica:
        assert self.raft is not None
        return self.raft._replica

    @property
    def log(self) -> ReplicatedLog:
        assert self.raft is not None
        return self.raft._log

    @property
    def durable_offset(self) -> int:
        if self.node.life is None or self.raft is None:
            return self.durable_when_down
        latest = self.log.latest_snapshot
        return max(self.log.durable_offset, latest.end_offset if latest is not None else 0)

    @property
    def acknowledged_offset(self) -> int:
        return self.durable_offset

    @property
    def wrong_until(self) -> int:
        return 0  # these disks keep what they hold

    def started(self, raft: RaftServer) -> None:
        """Takes the server of a new life, before it runs."""
        self.raft = raft
        self.incarnation += 1
        self.writes_state = False
        with self.world.watch():
            self.world.checks.on_start(self)  # type: ignore[arg-type]

    def went_down(self) -> None:
        """Remembers what was durable; called before the process ends."""
        self.durable_when_down = self.durable_offset
        self.raft = None

    def lost_disk(self) -> None:
        """Forgets what was on the disks; called when they are replaced by empty ones."""
        self.durable_when_down = 0
        self._key = None
        self.world.checks.on_disk_lost(self)  # type: ignore[arg-type]

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes each image that this node publishes."""
        with self.world.watch():
            self.world.image_published(self, image)
            server = self.node.server
            if server is not None and server.controller is not None:
                server.controller.controller.core.validate()


class WatchedServer(WatchedRaftServer):
    """The RaftServer that production builds, watched."""

    def __init__(self, config: ServerConfig, **options: Any) -> None:
        view = CURRENT.get()
        super().__init__(view, **options)  # type: ignore[arg-type]
        view.started(self)
