"""`Cluster`: brokers, controllers and clients of production in one process, under one seed.

Time is virtual, disks and network are in memory, and all chance comes from the seed. So a test of
minutes of cluster time takes a second or less, and repeats exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.testing.loop import SimLoop
from tidemark.testing.network import SimNetwork
from tidemark.testing.node import SimNode, SimProcess

if TYPE_CHECKING:
    from tidemark.client import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer

T = TypeVar("T")

_CANCELLED = 10
"""Times that a task is cancelled which outlives its process: its clean-up may wait for time."""

CLIENTS = 0
"""Node id of the clients' process in `cut`."""
CLUSTER_ID = "simulated-cluster-ids-"
FIRST_CONTROLLER = 101
_SETTINGS = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.request.timeout.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "num.partitions": "1",
}


class NotReadyError(AssertionError):
    """The cluster did not reach a state within a time."""


class Cluster:
    """A cluster as a context manager.

    `brokers` nodes have the ids 1, 2, ...; the first three are controllers, too. With `controllers`
    there are that many nodes besides, from id 101, which are controllers only. Each broker has
    `log_dirs` disks. `settings` are server properties of all nodes; `racks` are assigned to brokers
    in turn. Methods block; `run` runs coroutines over the clients that `asyncio` makes.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        brokers: int = 3,
        controllers: int = 0,
        log_dirs: int = 1,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, random.Random(self.rng.getrandbits(64)))
        broker_ids = list(range(1, brokers + 1))
        voters = [FIRST_CONTROLLER + n for n in range(controllers)] or broker_ids[:3]
        self.nodes: dict[int, SimNode] = {}
        for node_id in dict.fromkeys((*voters, *broker_ids)):
            properties = _properties(node_id, voters, node_id in broker_ids, log_dirs)
            if racks and node_id in broker_ids:
                properties["broker.rack"] = racks[broker_ids.index(node_id) % len(racks)]
            properties |= {
                "offsets.topic.replication.factor": str(min(3, brokers)),
                "transaction.state.log.replication.factor": str(min(3, brokers)),
                "transaction.state.log.min.isr": str(min(2, brokers)),
            }
            properties |= settings or {}
            seed_of_node = self.rng.getrandbits(64)
            self.nodes[node_id] = SimNode(self.loop, self.network, properties, seed_of_node)
        self.brokers = [self.nodes[n] for n in broker_ids]
        self.clients = SimProcess(self.loop, self.network, CLIENTS, self.rng.getrandbits(64))
        self.clients.begin("clients", loop_thread=_Driver(self))
        self.asyncio = AsyncClients(self)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers."""
        return ",".join(f"node-{node.node_id}:9092" for node in self.brokers)

    # Running.

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Formats and starts all nodes; returns when every broker is in service."""
        for node in self.nodes.values():
            node.format(CLUSTER_ID)
            self._do(node.start())
        self.wait_until_ready()

    def close(self) -> None:
        """Ends all processes."""
        if self.loop.is_closed():
            return
        for node in self.nodes.values():
            node.kill()
        if self.clients.life is not None:
            self.clients.life.end()
        self.loop.run_until_idle()
        for _ in range(_CANCELLED):
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_idle()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine as a client's program until it returns; virtual time passes."""
        assert self.clients.life is not None
        return self.loop.run_until_complete(self.clients.life.spawn(work))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine outside of all processes."""
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self._do(asyncio.sleep(seconds))

    @property
    def now_ms(self) -> int:
        """Virtual time since the cluster was made, in ms."""
        return int(self.loop.time() * 1000)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Lets time pass until `condition()`. Raises NotReadyError after `timeout_s`."""
        end_s = self.loop.time() + timeout_s
        while not condition():
            if self.loop.time() >= end_s:
                raise NotReadyError(f"not within {timeout_s} s of virtual time; {self.describe()}")
            self.advance(0.05)

    def wait_until_ready(self, timeout_s: float = 60) -> None:
        """Waits until every running broker is in service."""
        self.wait_until(self.is_ready, timeout_s)

    def is_ready(self) -> bool:
        """Whether every running broker is in service."""
        return all(n.server is None or n.server.is_ready for n in self.brokers)

    def describe(self) -> dict[int, str]:
        """State of each node, for messages."""
        return {node_id: _state(node) for node_id, node in self.nodes.items()}

    # Clients.

    def producer(self, **settings: Any) -> Producer:
        """A blocking producer of this cluster."""
        from tidemark.client import Producer

        return self._make(Producer, settings)

    def consumer(self, **settings: Any) -> Consumer:
        """A blocking consumer of this cluster."""
        from tidemark.client import Consumer

        return self._make(Consumer, settings)

    def admin(self, **settings: Any) -> Admin:
        """A blocking administrator of this cluster."""
        from tidemark.client import Admin

        return self._make(Admin, settings)

    def _make(self, kind: Callable[..., T], settings: dict[str, Any]) -> T:
        assert self.clients.life is not None
        settings.setdefault("random_seed", self.rng.getrandbits(32))
        return self.clients.life.context.run(
            lambda: kind(settings.pop("bootstrap_servers", self.bootstrap_servers), **settings)
        )

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        **configs: str,
    ) -> None:
        """Creates a topic, and returns when every live broker knows it. `configs` have "_" for
        ".": min_insync_replicas="2".
        """
        from tidemark.client import NewTopic

        factor = min(3, len(self.brokers)) if replication_factor is None else replication_factor
        settings = {key.replace("_", "."): value for key, value in configs.items()}

        async def create() -> None:
            async with self.asyncio.admin() as admin:
                await admin.create_topics([NewTopic(name, partitions, factor, configs=settings)])

        self.run(create())

    # Faults.

    def kill(self, node_id: int, *, power: bool = False) -> None:
        """Ends a process as SIGKILL does; with `power` as a loss of power, which loses unsynced
        writes.
        """
        self.nodes[node_id].kill(power=power)

    def start_node(self, node_id: int) -> None:
        """Starts a node that was killed or stopped; returns before its broker is in service."""
        self._do(self.nodes[node_id].start())

    def stop_node(self, node_id: int) -> None:
        """Stops a node in order, as SIGTERM does."""
        self._do(self.nodes[node_id].stop())

    def restart(self, node_id: int) -> None:
        """Stops a node in order if it runs, and starts it."""
        self.stop_node(node_id)
        self.start_node(node_id)

    def pause(self, node_id: int) -> None:
        """Stops a process as SIGSTOP does: it comes back with what it knew."""
        life = self.nodes[node_id].life
        if life is not None:
            life.pause()

    def resume(self, node_id: int) -> None:
        """Ends `pause`."""
        life = self.nodes[node_id].life
        if life is not None:
            life.resume()

    def cut(self, source: int, target: int, *, both: bool = True) -> None:
        """Cuts the link between two nodes, or one way of it; 0 stands for the clients."""
        self.network.cut([(source, target), (target, source)] if both else [(source, target)])

    def isolate(self, node_id: int) -> None:
        """Cuts all links of a node."""
        for other in (CLIENTS, *self.nodes):
            if other != node_id:
                self.cut(node_id, other)

    def heal(self) -> None:
        """Heals the network, and resumes paused nodes."""
        self.network.heal()
        for node_id in self.nodes:
            self.resume(node_id)

    # Looking.

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Node id of a partition's leader as the newest metadata has it; None: it has none."""
        servers = [node.server for node in self.nodes.values() if node.server is not None]
        images = [server.loader.image for server in servers if server.loader is not None]
        newest = max(images, key=lambda image: image.offset, default=None)
        known = None if newest is None else newest.topics.get(topic)
        found = None if known is None else known.partitions.get(partition)
        return None if found is None else found.leader

    def active_controller(self) -> int | None:
        """Node id of the active controller."""
        for node in self.nodes.values():
            controller = node.server and node.server.controller
            if controller and controller.is_active:
                return node.node_id
        return None


class AsyncClients:
    """Makes asyncio clients of a cluster, for coroutines that `Cluster.run` runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def producer(self, **settings: Any) -> AsyncProducer:
        """A producer of the cluster."""
        from tidemark.client import AsyncProducer

        return self._make(AsyncProducer, settings)

    def consumer(self, **settings: Any) -> AsyncConsumer:
        """A consumer of the cluster."""
        from tidemark.client import AsyncConsumer

        return self._make(AsyncConsumer, settings)

    def admin(self, **settings: Any) -> AsyncAdmin:
        """An administrator of the cluster."""
        from tidemark.client import AsyncAdmin

        return self._make(AsyncAdmin, settings)

    def _make(self, kind: Callable[..., T], settings: dict[str, Any]) -> T:
        cluster = self._cluster
        settings.setdefault("random_seed", cluster.rng.getrandbits(32))
        return kind(settings.pop("bootstrap_servers", cluster.bootstrap_servers), **settings)


class _Driver:
    """The loop of the blocking clients (`tidemark.client.sync`): it runs while they wait."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def loop(self) -> _Driver:
        return self

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Calls back in the clients' process, when the loop runs again."""
        life = self._cluster.clients.life
        assert life is not None
        self._cluster.loop.call_soon(callback, *arguments, context=life.context)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        life = self._cluster.clients.life
        assert life is not None
        return life.spawn(work)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self._cluster.run(asyncio.wait_for(work, timeout_s))


def _properties(node_id: int, voters: list[int], is_broker: bool, log_dirs: int) -> dict[str, str]:
    """The server properties of one node."""
    host, is_voter = f"node-{node_id}", node_id in voters
    listeners = [f"PLAINTEXT://{host}:9092"] * is_broker + [f"CONTROLLER://{host}:9093"] * is_voter
    return {
        **_SETTINGS,
        "node.id": str(node_id),
        "process.roles": ",".join(["broker"] * is_broker + ["controller"] * is_voter),
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{v}@node-{v}:9093" for v in voters),
        "log.dirs": ",".join(f"/{host}/data{number}" for number in range(log_dirs)),
        "metadata.log.dir": f"/{host}/metadata" if log_dirs > 1 else f"/{host}/data0",
    }


def _state(node: SimNode) -> str:
    if node.server is None:
        return "down" if node.ended is None else f"ended: {node.ended}"
    return "ready" if node.server.is_ready else "starting"
