"""A cluster of the real servers under one seed: faults for a while, clients all the time, then
healing and the final requirements.

RULES.md I1-I9 hold as in `tests.sim.checks`, after every event of every replica. In addition:

- an acknowledged change is in every image in the end;
- one order of their changes explains the answers of all clients;
- the image at an offset is the same on every node;
- in every image a partition's leader is in its ISR and in service with its directory, and the
  ISR is within its replicas;
- a clean election takes a replica of ISR or ELR (`tests.sim.servers.elections`);
- a broker that may stop leads nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from quorum.image import MetadataImage, PartitionRegistration
from quorum.raft import messages as m
from quorum.raft.roles import Leader
from tests.quorum.linearizability import Operation, explain, set_if
from tests.sim.checks import Checks, Violation
from tests.sim.disk_faults import break_disk, kind_of_disk_fault
from tests.sim.servers.canaries import Servers
from tests.sim.servers.clients import Clients
from tests.sim.servers.elections import Elections
from tests.sim.servers.loop import ServerLoop
from tests.sim.servers.network import CLIENT, FaultyNetwork
from tests.sim.servers.node import CLUSTER_ID, FIRST_BROKER, ServerNode, endpoint_of
from tidemark.errors import FatalError, NetworkError, StorageError
from tidemark.v1 import controller_pb2

FAULT_TIME_MS = 6_000
HEAL_TIME_MS = 15_000


@dataclass
class ServerOutcome:
    """The result of one seed."""

    seed: int
    trace_hash: str
    events: int
    elections: int
    committed: int
    answers: Counter[str]
    seen: Counter[str]


class ServerWorld:
    """Nodes, network and clients of one seed."""

    def __init__(
        self, seed: int, loop: ServerLoop, servers: Servers, *, verbose: bool = False
    ) -> None:
        self.seed = seed
        self.servers = servers
        self.rng = rng = random.Random(seed)
        self._loop = loop
        self._verbose = verbose
        self.seen: Counter[str] = Counter()
        self.checks = Checks()
        self.network = FaultyNetwork(self)
        self.network.drop_rate = rng.choice([0.0, 0.01, 0.05])
        self.network.duplicate_rate = rng.choice([0.0, 0.02, 0.1])
        self.network.delay_max_ms = rng.choice([3, 10, 60])
        self.faulty = True
        self.events = 0
        self._hash = hashlib.sha256()
        self._digests: dict[int, str] = {}
        self._elections = Elections(self.seen)
        self._failure: BaseException | None = None
        self._faults: set[asyncio.Task[None]] = set()
        voters = list(range(1, rng.choice([3, 3, 3, 5, 1]) + 1))
        self.dynamic = rng.random() < 0.5
        spares = [6] if self.dynamic else []
        brokers = [FIRST_BROKER + n for n in range(3)]
        self.nodes = {
            n: ServerNode(self, n, voters, dynamic=self.dynamic)
            for n in (*voters, *spares, *brokers)
        }
        self.clients = Clients(self)

    def now_ms(self) -> int:
        return round(self._loop.time() * 1000)

    # --- observations -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Records any exception raised inside as the finding of the seed, even if the caller
        catches it.
        """
        try:
            yield
        except Exception as error:
            self._failure = self._failure or error
            raise

    def trace(self, node: ServerNode) -> None:
        self.events += 1
        replica, log = node.replica, node.log
        line = (
            f"{self.now_ms():6} n{node.node_id} {type(replica.role).__name__:11} e{replica.epoch}"
            f" [{log.start_offset},{log.end_offset}) hw={replica.high_watermark}"
        )
        self._hash.update(line.encode())
        if self._verbose:
            print(line)

    def vote_was_granted(self, voter_id: int, request: m.Request) -> None:
        if isinstance(request, m.VoteRequest) and not request.pre_vote:
            with self.watch():
                self.checks.on_vote_granted(self.nodes[voter_id], request.epoch, request.candidate)

    def image_published(self, node: ServerNode, image: MetadataImage) -> None:
        """Checks RULES.md I8, and the rules of every image (I9)."""
        digest = hashlib.sha256(b"\n".join(image.values())).hexdigest()
        known = self._digests.setdefault(image.offset, digest)
        if known != digest:
            raise Violation(f"I8 the image at {image.offset} differs on node {node.node_id}")
        for topic in image.topics:
            for index, partition in topic.partitions.items():
                broken = broken_rule(image, partition)
                if broken is not None:
                    raise Violation(f"I9 {topic.name}-{index}: {broken}: {partition}")
        self._elections.see(image)

    def broker_may_go(
        self, controller: ServerNode, request: controller_pb2.BrokerHeartbeatRequest
    ) -> None:
        """Checks that a broker which the controller allows to stop leads nothing."""
        self.seen["broker let go"] += 1
        broker = controller.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return
        for topic in controller.image.topics:
            for index, partition in topic.partitions.items():
                if partition.leader == request.broker_id:
                    with self.watch():
                        raise Violation(f"I9 {topic.name}-{index} is led by {partition.leader}")

    def process_ended(self, node: ServerNode, error: Exception) -> None:
        """Handles a server whose process must stop: a planned disk fault, or a bug."""
        cause = error.__cause__ or error
        kind = kind_of_disk_fault(node, cause)
        if kind is None:
            self._failure = self._failure or cause
            return
        self.seen[kind] += 1
        node.crash()
        self._restart_later(self.rng.randrange(1, 1500), node)

    # --- faults -----------------------------------------------------------------------------------

    def _restart_later(self, delay_ms: int, node: ServerNode) -> None:
        if node.life is None and node.is_mere_broker and self.faulty and self.rng.random() < 0.1:
            self.seen["broker's disks lost"] += 1
            node.lose_disk()
        elif node.life is None and node.is_mere_broker and self.faulty and self.rng.random() < 0.2:
            self.seen["broker's directory replaced"] += 1
            node.replace_directory()

        async def run() -> None:
            await asyncio.sleep(delay_ms / 1000)
            with self.watch():
                await self._restart(node)

        task = self._loop.create_task(run())
        self._faults.add(task)
        task.add_done_callback(self._faults.discard)

    async def _restart(self, node: ServerNode) -> None:
        if node.life is not None:
            return
        if not (node.writes_fail and self.faulty and self.rng.random() < 0.3):
            node.make_room()
        try:
            await node.start()
        except (StorageError, FatalError) as error:
            if kind_of_disk_fault(node, error) is None:
                raise
            self.seen["start refused"] += 1
            node.crash()
            node.make_room()
            self._restart_later(300, node)

    def _running(self) -> list[ServerNode]:
        return [n for n in self.nodes.values() if n.life is not None]

    def leaders(self) -> list[ServerNode]:
        return [n for n in self._running() if isinstance(n.replica.role, Leader)]

    async def _crash_some(self) -> None:
        everybody = self.rng.random() < 0.08
        self.seen["all crash at once"] += everybody
        leaders = self.leaders()
        one = self.rng.choice(leaders if leaders and self.rng.random() < 0.4 else self._all())
        for node in self._all() if everybody else [one]:
            node.crash()
            self._restart_later(self.rng.randrange(1, 1500), node)

    def _all(self) -> list[ServerNode]:
        return list(self.nodes.values())

    async def _cut_some(self) -> None:
        ids = [CLIENT, *self.nodes]
        side = set(self.rng.sample(ids, self.rng.randrange(1, len(ids))))
        ways = {(a, b) for a in side for b in ids if b not in side}
        if self.rng.random() < 0.5:
            ways |= {(b, a) for a, b in ways}
        self.network.cut |= ways
        await asyncio.sleep(self.rng.randrange(1, 1500) / 1000)
        self.network.cut -= ways

    async def _break_a_disk(self) -> None:
        running = self._running()
        if running:
            node = self.rng.choice(running)
            break_disk(node, self.rng)
            await asyncio.sleep(1.5)
            node.make_room()

    async def _trouble_leader(self) -> None:
        for leader in self.leaders():
            life = leader.life
            if life is None or life.held is not None:
                continue
            if self.rng.random() < 0.4:
                self.seen["leader resigns"] += 1
                leader.raft.resign(leader.replica.epoch)
                continue
            self.seen["leader shut down in order"] += 1
            await asyncio.wait({leader.shut_down()})
            if leader.life is life:
                leader.crash()
                self._restart_later(200, leader)

    async def _pause_one(self) -> None:
        """Stops a process (SIGSTOP), within the timeouts or beyond them. A resumed leader is a
        zombie for a moment.
        """
        leaders = self.leaders()
        running = leaders if leaders and self.rng.random() < 0.5 else self._running()
        if running:
            life = self.rng.choice(running).life
            assert life is not None
            self.seen["paused"] += 1
            life.pause()
            await asyncio.sleep(self.rng.randrange(1, 3000) / 1000)
            life.resume()

    async def _trouble_broker(self) -> None:
        """Restarts one broker in order, or fails one of its directories."""
        brokers = [n for n in self._running() if n.is_mere_broker and n.lifecycle.unfenced.is_set()]
        if not brokers:
            return
        broker = self.rng.choice(brokers)
        if self.rng.random() < 0.4:
            broker.fail_directory()
            return
        life = broker.life
        self.seen["broker shut down in order"] += 1
        await asyncio.wait({broker.shut_down()})
        if broker.life is life:
            broker.crash()
            self._restart_later(200, broker)

    async def _change_voters(self) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        leader = leaders[0]
        voters = leader.replica.voters
        spare = [n for n in self._all() if not n.is_mere_broker and not voters.is_voter(n.key)]
        request: m.Request
        if spare and (len(voters) == 1 or self.rng.random() < 0.6):
            node = self.rng.choice(spare)
            endpoint = endpoint_of(node.node_id)
            request = m.AddVoterRequest(CLUSTER_ID, node.key, endpoint, 1000)
        elif len(voters) > 1:
            request = m.RemoveVoterRequest(
                CLUSTER_ID, voters.key(self.rng.choice(voters.ids)), 1000
            )
        else:
            return
        with contextlib.suppress(NetworkError):
            await self.network.call(
                CLIENT, leader.node_id, lambda node: node.raft.handle(request), 1500
            )

    async def _storm(self, mean_ms: int, fault) -> None:
        while True:
            await asyncio.sleep(self.rng.randrange(1, 2 * mean_ms) / 1000)
            with self.watch():
                await fault()

    # --- the run ----------------------------------------------------------------------------------

    async def run(self) -> ServerOutcome:
        rng = self.rng
        for node in self._all():
            self._restart_later(rng.randrange(1, 100), node)
        storms = [
            (rng.choice([500, 1500, 4000]), self._crash_some),
            (rng.choice([800, 3000]), self._cut_some),
            (rng.choice([1500, 4000]), self._break_a_disk),
            (rng.choice([1500, 6000]), self._trouble_leader),
            (rng.choice([1500, 6000]), self._pause_one),
            (rng.choice([1000, 3000]), self._trouble_broker),
        ]
        if self.dynamic:
            storms.append((rng.choice([500, 2000]), self._change_voters))
        tasks = [asyncio.create_task(self._storm(*storm)) for storm in storms]
        asking = [asyncio.create_task(self.clients.run(n)) for n in range(3)]
        await self._until_ms(FAULT_TIME_MS)
        for task in tasks:
            task.cancel()
        self._heal()
        deadline_ms = FAULT_TIME_MS + HEAL_TIME_MS
        while not await self._is_well():
            await self._until_ms(self.now_ms() + 50)
            if self.now_ms() > deadline_ms:
                raise Violation(f"liveness: {HEAL_TIME_MS} ms after healing: {self._states()}")
        self.clients.stopped = True
        await asyncio.gather(*asking)
        # by now every request has taken effect, or never will
        await self._until_ms(self.now_ms() + 3_000)
        await self._agree()
        self._require_history()
        for node in self._all():
            node.crash()
        await asyncio.sleep(0)
        return ServerOutcome(
            self.seed,
            self._hash.hexdigest(),
            self.events,
            self.checks.elections,
            self.checks.committed_end,
            self.clients.answers,
            self.seen,
        )

    async def _until_ms(self, moment_ms: int) -> None:
        while self.now_ms() < moment_ms:
            await asyncio.sleep(0.02)
            if self._failure is not None:
                raise self._failure

    def _heal(self) -> None:
        self.faulty = False
        self.network.heal()
        for node in self._all():
            if node.life is not None:
                node.life.resume()
                if node.is_shutting_down:
                    node.crash()
            node.make_room()
            node.disk.disk.failing_fsyncs.clear()
            node.disk_max_ms = 4
            self._restart_later(1, node)

    async def _is_well(self) -> bool:
        """Whether one controller is active, every image has every broker in service, and a change
        succeeds.
        """
        active = [n for n in self._running() if n.controller is not None and n.controller.is_active]
        if len(active) != 1 or len(self._running()) < len(self.nodes):
            return False
        brokers = [n for n in self._all() if n.is_mere_broker]
        if not all(n.image.is_active(b.node_id) for n in self._all() for b in brokers):
            return False
        return await self.clients.probe()

    def _states(self) -> dict[int, tuple[object, ...]]:
        return {
            n.node_id: (
                type(n.replica.role).__name__,
                n.replica.epoch,
                n.log.end_offset,
                n.replica.high_watermark,
                n.image.offset,
                sorted(b for b in n.image.brokers if n.image.is_active(b)),
            )
            for n in self._running()
        }

    async def _agree(self) -> None:
        deadline_ms = self.now_ms() + 5_000
        while len({n.image.offset for n in self._all()}) != 1:
            await self._until_ms(self.now_ms() + 7)
            if self.now_ms() > deadline_ms:
                raise Violation(f"liveness: the images never meet: {self._states()}")
        image = self._all()[0].image
        for topic in image.topics:
            for index, partition in topic.partitions.items():
                heirs = [
                    b
                    for b in (*partition.isr, *partition.elr)
                    if image.is_active(b) and image.replica_is_online(partition, b)
                ]
                if partition.leader is None and heirs:
                    raise Violation(f"liveness: nobody leads {topic.name}-{index}: {partition}")

    def _require_history(self) -> None:
        image = self._all()[0].image
        now_s = self._loop.time()
        for name, history in self.clients.topics.items():
            there = "read present" if image.topics.get(name) is not None else "read absent"
            whole = [*history, Operation("read", there, now_s, now_s + 1)]
            if explain(whole, "absent", set_if) is None:
                raise Violation(f"clients: no order explains topic {name}: {whole}")
        self.clients.require_settings(image)


def broken_rule(image: MetadataImage, partition: PartitionRegistration) -> str | None:
    """Returns the rule of an image that a partition breaks, whatever came before it; None if it
    breaks none.
    """
    isr, leader = partition.isr, partition.leader
    if not set(isr) <= set(partition.replicas):
        return "the ISR is not within the replicas"
    if not {*partition.adding, *partition.removing} <= set(partition.replicas):
        return "what moves is not within the replicas"
    if set(partition.elr) & set(isr):
        return "a member of the ISR is eligible besides"
    if len(isr) > 1 and not all(image.is_active(b) for b in isr):
        return "somebody out of service is in the ISR"
    if leader is None:
        return None
    if leader not in isr or not image.is_active(leader):
        return "the leader is not in the ISR or out of service"
    if not image.replica_is_online(partition, leader):
        return "the leader's directory is gone"
    return None


def run_servers(
    seed: int, servers: Servers | None = None, *, verbose: bool = False
) -> ServerOutcome:
    """Runs one seed to its end. Any exception is its finding."""
    loop, bug = ServerLoop(), servers or Servers()
    try:
        with contextlib.ExitStack() as planted:
            for patch in bug.patches:
                planted.enter_context(mock.patch.object(*patch))
            world = ServerWorld(seed, loop, bug, verbose=verbose)
            return loop.run_until_complete(world.run())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
