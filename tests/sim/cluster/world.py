"""One seed of the whole cluster: production's nodes, a workload, faults for a while, healing, and
the judgement.

After every event of the quorum RULES.md I1-I9 hold as in `tests.sim.checks`. After every instant
data partitions hold I3-I6 (`tests.sim.cluster.checks`). The history of the clients is judged by
`tidemark.testing.checker`: no acknowledged record is lost, no phantom and no duplicate is read.
Once the faults stop, all replicas come into sync and every send succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import node.server
from quorum.image import MetadataImage
from tests.sim.checks import Checks, Violation
from tests.sim.cluster.checks import PartitionChecks
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.cluster.programs import Recreation
from tests.sim.cluster.views import CURRENT, NodeView, WatchedServer
from tests.sim.servers.node import ServerNode
from tests.sim.servers.world import broken_rule
from tidemark.client import NewTopic
from tidemark.testing.checker import broken, judge, report
from tidemark.testing.cluster import CLUSTER_ID, Cluster
from tidemark.testing.history import History, to_line
from tidemark.testing.node import SimNode
from tidemark.testing.workload import Workload, WorkloadPace

HEAL_TIME_MS = 60_000
_PACE = WorkloadPace(send_ms=300, read_ms=250, slack_ms=1_000, finish_ms=60_000, answers_rot=True)
LOSSY = "lossy"
"""The topic whose leaders plans elect uncleanly."""
_SETTINGS = {
    "controller.quorum.election.timeout.ms": "400",
    "controller.quorum.fetch.timeout.ms": "800",
    "controller.quorum.request.timeout.ms": "600",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "300",
    "request.timeout.ms": "3000",
    "metadata.log.max.record.bytes.between.snapshots": "8000",
    "auto.leader.rebalance.enable": "false",
    "log.segment.bytes": "16384",
    "log.dir.failure.timeout.ms": "5000",
}


@dataclass
class ClusterOutcome:
    """The result of one seed."""

    seed: int
    trace_hash: str
    events: int
    elections: int
    committed: int
    sends: int
    virtual_ms: int
    steps: int
    seen: Counter[str]


class ClusterWorld:
    """Cluster, faults and observations of one seed. `tests.sim.tier.world` adds a tier to it."""

    settings: ClassVar[Mapping[str, str]] = _SETTINGS
    pace: ClassVar[WorkloadPace] = _PACE
    topics: ClassVar[tuple[NewTopic, ...]] = (
        NewTopic("orders", 2, 3, configs={"min.insync.replicas": "2"}),
        NewTopic("plain", 1, 3, configs={"min.insync.replicas": "1"}),
    )
    controllers: ClassVar[tuple[int, ...]] = (0, 0, 1, 3)
    """Numbers of mere controllers to choose from; 0: the brokers are controllers, too."""

    topics_change: ClassVar[bool] = True
    """Whether topics are moved, deleted and made anew, and batches are damaged on their way."""

    def __init__(
        self, seed: int, *, verbose: bool = False, fault_ms: int = ClusterCanary.fault_ms
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.verbose = verbose
        self.fault_ms = fault_ms
        self.is_aimed = seed % 3 == 2  # plans instead of storms
        self.cluster_id = CLUSTER_ID
        self.seen: Counter[str] = Counter()
        self.events = 0
        self.failure: BaseException | None = None
        self.checks = Checks()
        self.partitions = PartitionChecks(self.seen, self.newest_image)
        self._hash = hashlib.sha256()
        self._digests: dict[int, str] = {}
        controllers = rng.choice(self.controllers)
        self.cluster = Cluster(
            rng.getrandbits(64),
            brokers=3,
            controllers=controllers,
            log_dirs=rng.choice([1, 2]),
            settings=self.settings,
            racks=self.pace.racks,
        )
        self.loop = self.cluster.loop
        self.nodes = {n: NodeView(self, each) for n, each in self.cluster.nodes.items()}
        for each in self.cluster.nodes.values():
            each.before_start = self._starts
            each.before_kill = self._dies
            each.on_end = self._ended
        self.faults = self.make_faults()
        self.history = History(self.loop_ms)
        self.loop.after_instant = self._look
        self.loop.set_exception_handler(self._complain)
        self.cluster.network.on_handler_error = self._failed
        self.partitions.lossy_topics.add(LOSSY)
        self.recreates = self.topics_change and seed % 3 == 1

    def make_faults(self) -> Faults:
        return Faults(self)

    def loop_ms(self) -> float:
        return round(self.loop.time() * 1000, 3)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    # --- observations -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Records any exception raised inside as the finding of the seed, even if the caller
        catches it.
        """
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise

    def line(self, text: str) -> None:
        """Writes a line of the trace."""
        line = f"{self.now_ms():6} {text}"
        self._hash.update(line.encode())
        if self.verbose:
            print(line, flush=True)

    def trace(self, view: ServerNode) -> None:
        """Takes an event of the quorum (`tests.sim.servers.node.WatchedRaftServer`)."""
        self.events += 1
        replica, log = view.replica, view.log
        self._hash.update(
            f"{self.now_ms()} n{view.node_id} {type(replica.role).__name__} e{replica.epoch} "
            f"{log.start_offset} {log.end_offset} {replica.high_watermark}".encode()
        )

    def note(self, text: str) -> None:
        """Writes a fault into the trace and the history."""
        self.line(text)
        self.history.note_fault(text)

    def image_published(self, view: NodeView, image: MetadataImage) -> None:
        """Checks RULES.md I8, and the rules of every image (I9)."""
        digest = hashlib.sha256(b"\n".join(image.values())).hexdigest()
        known = self._digests.setdefault(image.offset, digest)
        if known != digest:
            raise Violation(f"I8 the image at {image.offset} differs on node {view.node_id}")
        for topic in image.topics:
            for index, partition in topic.partitions.items():
                rule = broken_rule(image, partition)
                if rule is not None:
                    raise Violation(f"I9 {topic.name}-{index}: {rule}: {partition}")

    def _look(self) -> None:
        if self.failure is not None:
            return
        try:
            self.look()
        except Exception as error:
            self.failure = error
        for text in self.partitions.transitions:
            self.line(text)
        self.partitions.transitions.clear()
        self.faults.plans.look()

    def look(self) -> None:
        """Checks what must hold at every instant."""
        self.partitions.look(self.cluster.brokers)

    def _complain(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.line(f"exception without a handler: {context.get('message')}: {error!r}")
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Takes an exception that nobody handles for the finding of the seed."""
        self.failure = self.failure or error

    def _starts(self, sim: SimNode) -> None:
        view = self.nodes[sim.node_id]
        assert sim.life is not None
        CURRENT.set(view)

    def _dies(self, sim: SimNode) -> None:
        self.nodes[sim.node_id].went_down()
        self.partitions.forget(sim.node_id)

    def _ended(self, sim: SimNode, error: BaseException) -> None:
        self.line(f"n{sim.node_id} ends: {error}")
        if not self.faults.explains(sim, error):
            self.failure = self.failure or error

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> ClusterOutcome:
        with patch.object(node.server, "RaftServer", WatchedServer):
            try:
                return self._run()
            except Exception as error:
                raise self.failure or error from None
            finally:
                self._end()

    def _end(self) -> None:
        """Ends the storm too, which a finding leaves in the middle of something."""
        self.faults.is_over = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.cluster.close()

    def _run(self) -> ClusterOutcome:
        cluster = self.cluster
        cluster.start()
        life = cluster.clients.life
        assert life is not None
        self.loop.run_until_complete(self._until(life.spawn(self._make_topics())))
        self.loop.run_until_complete(self._storm())
        verdicts = judge(self.history.entries)
        for entry in self.history.entries:
            self._hash.update(to_line(entry).encode())
        if broken(verdicts):
            text = report(self.history.entries, verdicts)
            raise Violation(f"clients: {broken(verdicts)}\n{text}")
        return ClusterOutcome(
            self.seed,
            self._hash.hexdigest(),
            self.events,
            self.checks.elections,
            self.seen["records committed"],
            sum(1 for entry in self.history.entries if type(entry).__name__ == "Sent"),
            self.now_ms(),
            self.loop.steps,
            self.seen,
        )

    async def _until(self, task: asyncio.Task[Any], limit_ms: int = 120_000) -> None:
        """Waits for a task, or for the first finding."""
        end_ms = self.now_ms() + limit_ms
        while not task.done():
            await asyncio.wait((task,), timeout=0.05)
            if self.failure is not None:
                task.cancel()
                raise self.failure
            if self.now_ms() > end_ms:
                raise Violation(f"liveness: not within {limit_ms} ms: {task}")
        task.result()

    async def _make_topics(self) -> None:
        async with self.cluster.asyncio.admin() as admin:
            lossy = NewTopic(LOSSY, 1, 3, configs={"min.insync.replicas": "1"})
            has_lossy = self.is_aimed and self.topics_change
            await admin.create_topics([*self.topics, *([lossy] if has_lossy else [])])

    async def _storm(self) -> None:
        life = self.cluster.clients.life
        assert life is not None
        begin, calm = asyncio.Event(), asyncio.Event()
        work = life.spawn(self._work(begin, calm))
        beside = life.spawn(Recreation(self).run(calm)) if self.recreates else None
        faults = self.loop.create_task(self._faults(begin, calm))
        await self._until(faults, self.fault_ms + HEAL_TIME_MS + 60_000)
        await self._until(work, 400_000)
        if beside is not None:
            await self._until(beside, 120_000)
        await self._until(self.loop.create_task(self.settle()))

    async def settle(self) -> None:
        """Returns when all is quiet, after the clients are done."""
        await asyncio.sleep(0)

    async def _work(self, begin: asyncio.Event, calm: asyncio.Event) -> None:
        rng = random.Random(self.rng.getrandbits(64))
        topics = {topic.name: topic.num_partitions for topic in self.topics}
        async with Workload(self.cluster.asyncio, self.history, rng, topics, self.pace) as workload:
            begin.set()
            await calm.wait()
            await workload.finish()

    async def _faults(self, begin: asyncio.Event, calm: asyncio.Event) -> None:
        await begin.wait()
        storms = [asyncio.create_task(storm) for storm in self.faults.storms()]
        await asyncio.sleep(self.fault_ms / 1000)
        for storm in storms:
            storm.cancel()
        self.note("healing")
        self.faults.heal()
        end_ms = self.now_ms() + HEAL_TIME_MS
        while not self.is_well():
            await asyncio.sleep(0.05)
            if self.now_ms() > end_ms:
                raise Violation(f"liveness: {HEAL_TIME_MS} ms after healing: {self.states()}")
        self.note("well")
        calm.set()

    # --- healing ----------------------------------------------------------------------------------

    def newest_image(self) -> MetadataImage | None:
        """The newest image of any running node."""
        servers = [n.server for n in self.cluster.nodes.values() if n.server is not None]
        images = [s.loader.image for s in servers if s.loader is not None]
        return max(images, key=lambda image: image.offset, default=None)

    def is_in_sync(self) -> bool:
        """Whether every broker is in the ISR of every partition, as the controllers have it."""
        image = self.newest_image()
        if image is None or not image.topics:
            return False
        return all(
            set(partition.isr) == set(partition.replicas) and partition.leader is not None
            for topic in image.topics
            for partition in topic.partitions.values()
        )

    def is_well(self) -> bool:
        """Whether the faults have left nothing behind."""
        nodes = self.cluster.nodes.values()
        return (
            all(node.server is not None and node.server.is_ready for node in nodes)
            and self.cluster.active_controller() is not None
            and self.is_in_sync()
        )

    def states(self) -> dict[str, Any]:
        """State of nodes and partitions, for the message of a failing seed."""
        image = self.newest_image()
        partitions = {
            f"{topic.name}-{index}": (p.leader, p.leader_epoch, p.isr, p.elr)
            for topic in (image.topics if image is not None else ())
            for index, p in topic.partitions.items()
        }
        return {"nodes": self.cluster.describe(), "partitions": partitions}


def run_cluster(
    seed: int, canary: ClusterCanary | None = None, *, verbose: bool = False
) -> ClusterOutcome:
    """Runs one seed to its end. Any exception is its finding."""
    planted = canary or ClusterCanary()
    with planted.planted():
        return ClusterWorld(seed, verbose=verbose, fault_ms=planted.fault_ms).run()
