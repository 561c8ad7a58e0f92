"""Transactions under one seed. Writers and copiers pause, die and come back as zombies. Brokers are
killed, cut off and split from each other, and topics are deleted.

Checked with each record that a reader gets, and at the end:

- no record of an aborted or fenced transaction is visible, and none of an open one;
- a transaction that is committed is visible; one that is in doubt is, or is not, as a whole;
- what readers passed never changes;
- copies have each record once and in order, and the offsets of their group never go back;
- a transaction has one outcome, in all markers and in all answers;
- every transaction ends within its timeout and a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from google.protobuf.message import Message

from node.coordination.peers import BrokerPeers
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.transactions import workers
from tests.sim.transactions.audit import Audit, led, unstable
from tests.sim.transactions.ledger import Ledger, TransactionViolation
from tests.sim.transactions.library import LibraryProducer
from tests.sim.transactions.stranger import Caller, Stranger
from tidemark.client import NewTopic
from tidemark.errors import ApiError, NetworkError, TidemarkError
from tidemark.testing import Cluster
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb
from tidemark.wire.rpcs import Rpc

SETTINGS = {
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "3000",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "3000",
    "transactional.id.expiration.ms": "60000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.05",
    "min.insync.replicas": "2",
}
_STABLE = [workers.SOURCE, workers.TARGET, workers.OTHER]
_TIMEOUTS_MS = (5_000, 10_000)
_END_S = 90
_QUIET_S = max(_TIMEOUTS_MS) / 1000 + 20
"""The longest time that a transaction stays open once all is well: its timeout, and a bound."""
FAULTS = (
    "kill",
    "power",
    "pause",
    "cut",
    "split",
    "stop",
    "late",
    "broken calls",
    "clock",
    "markers held up",
)


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(f"transactions {seed}")
        self.cluster = Cluster(seed=seed, brokers=3, settings=SETTINGS)
        self.ledger = Ledger(workers.VOLATILE, (workers.SOURCE, workers.TARGET))
        self.counts: Counter[str] = Counter()
        self.lives: set[asyncio.Future[None]] = set()
        self.repeats: set[asyncio.Future[None]] = set()
        self.slots = ["writer-0", "writer-1", "copier-0", "copier-1"]
        self.is_over = False
        """Whether faults are over, and writers stop."""
        self.are_readers_done = False
        self.passed: dict[TopicPartition, int] = defaultdict(int)
        """Positions of the reader that is furthest."""

    def run(self) -> Counter[str]:
        """Runs the seed; returns what happened. Raises TransactionViolation."""
        repeating = functools.partialmethod(_repeat, self)
        with patch.object(BrokerPeers, "call", repeating), self.cluster as cluster:
            for topic, partitions in workers.PARTITIONS.items():
                cluster.create_topic(topic, partitions, min_insync_replicas="2")
            cluster.run(self._main())
        return self.counts

    def make_producer(self, slot: str) -> workers.Producer:
        """A producer of a new life."""
        timeout_ms = self.draw.choice(_TIMEOUTS_MS)
        if self.draw.random() < 0.5:
            return Stranger(self.cluster, slot, timeout_ms)
        return LibraryProducer(self.cluster, slot, timeout_ms)

    # --- the run

    async def _main(self) -> None:
        programs = [
            workers.live(self, slot, workers.write if "writer" in slot else workers.copy)
            for slot in self.slots
        ]
        looks = [
            workers.read(self, _STABLE),
            workers.read(self, _STABLE),
            workers.read(self, [workers.VOLATILE]),
            workers.watch_offsets(self),
            workers.watch_outcomes(self),
        ]
        working = [asyncio.ensure_future(program) for program in programs]
        looking = [asyncio.ensure_future(look) for look in looks]
        story = asyncio.ensure_future(self._story(working))
        try:
            await asyncio.wait([story, *looking], return_when=asyncio.FIRST_EXCEPTION)
            self._raise_from(*looking, story)
        finally:
            tasks = [story, *working, *looking, *self.lives]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _story(self, working: Sequence[asyncio.Future[None]]) -> None:
        deleting = asyncio.ensure_future(self._delete_topics())
        try:
            faults = asyncio.ensure_future(self._faults())
            await asyncio.wait([faults, *working], return_when=asyncio.FIRST_COMPLETED)
            self._raise_from(*working, faults)
            await faults
        finally:
            self.is_over = True
            await asyncio.gather(deleting, return_exceptions=True)
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.wait(working)
                await asyncio.wait(self.lives)
        except TimeoutError:
            if self.are_copies_done():
                raise TransactionViolation("workers do not end") from None
            if open_ones := unstable(self.cluster):
                found = "; ".join(open_ones[:4])
                raise TransactionViolation(f"a transaction does not end: {found}") from None
            raise TransactionViolation(
                f"records are not copied at the end: {self.ledger.missing_copies()}"
            ) from None
        self._raise_from(*working, *self.lives)
        await self._until_quiet()
        await self._until_read()
        self.are_readers_done = True
        self.ledger.check()
        self._audit()

    def _raise_from(self, *tasks: asyncio.Future[None]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    def are_copies_done(self) -> bool:
        """Whether all records of the source are in the target, and no more will come."""
        if not self.is_over or any(self._is_behind(p) for p in (workers.SOURCE, workers.TARGET)):
            return False
        return self.ledger.missing_copies() <= 0  # more: a violation, found at the end

    def _is_behind(self, topic: str) -> bool:
        """Whether readers lack records of a topic."""
        for partition, hosted in led(self.cluster).items():
            if partition.topic == topic and hosted.log.log_end_offset > self.passed[partition]:
                return True
        return False

    async def _until_quiet(self) -> None:
        """Waits until no transaction is open."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _QUIET_S
        while found := [*unstable(self.cluster), *await self._open()]:
            if loop.time() > deadline:
                raise TransactionViolation(f"a transaction does not end: {'; '.join(found[:5])}")
            await asyncio.sleep(0.5)

    async def _open(self) -> list[str]:
        """Transactions that a coordinator has not ended."""
        found = []
        request = pb.ListTransactionsRequest(
            state_filters=["Ongoing", "PrepareCommit", "PrepareAbort"]
        )
        caller = Caller(self.cluster)
        for node in self.cluster.brokers:
            try:
                answer = await caller.call(node.node_id, request)
            except ApiError as error:
                found.append(f"node {node.node_id}: {error}")
                continue
            if answer.error_code:
                found.append(f"node {node.node_id}: {answer.error_message}")
            found += [f"{t.transactional_id} is {t.transaction_state}" for t in answer.transactions]
        await caller.close()
        return found

    async def _until_read(self) -> None:
        for _ in range(100):
            if not any(map(self._is_behind, _STABLE)):
                return
            await asyncio.sleep(0.2)
        raise TransactionViolation("readers do not reach the end")

    def _audit(self) -> None:
        audit = Audit()
        for partition, hosted in sorted(led(self.cluster).items()):
            is_read = partition.topic in _STABLE
            audit.check(hosted, self.ledger.views[partition] if is_read else None)
        self.counts["transactions"] = len(self.ledger.transactions)
        self.counts["records"] = sum(len(view.values) for view in self.ledger.views.values())

    # --- faults

    async def _faults(self) -> None:
        await asyncio.sleep(self.draw.uniform(1, 4))
        for _ in range(self.draw.randrange(3, 6)):
            await asyncio.sleep(self.draw.uniform(0.5, 4))
            some = self.draw.sample(self.cluster.brokers, k=self.draw.choice([1, 1, 1, 2]))
            for node in some:
                kind = self.draw.choice(FAULTS)
                self.counts[kind] += 1
                await self._break(node.node_id, kind)
            await asyncio.sleep(self.draw.uniform(1, 8))
            self.cluster.heal()
            for node in self.cluster.brokers:
                if node.server is None:
                    await node.start()
            await self._ready()

    async def _break(self, node_id: int, kind: str) -> None:
        cluster = self.cluster
        match kind:
            case "kill" | "power":
                cluster.kill(node_id, power=kind == "power")
            case "pause":
                cluster.pause(node_id)
            case "cut":
                cluster.isolate(node_id)
            case "split":
                self._split(node_id)
            case "markers held up":  # and then their coordinator is gone
                self._split(node_id)
                await asyncio.sleep(self.draw.uniform(0.2, 2))
                others = [other for other in cluster.nodes if other != node_id]
                cluster.kill(self.draw.choice(others))
            case "stop":
                await cluster.nodes[node_id].stop()
            case "late":
                cluster.network.late_rate = 0.05
            case "broken calls":
                cluster.network.break_rate = 0.05
            case "clock":
                cluster.nodes[node_id].skew_ms = self.draw.choice([-600_000, -5_000, 0, 600_000])

    def _split(self, node_id: int) -> None:
        """Cuts a broker from the others; its clients still reach it."""
        for other in self.cluster.nodes:
            if other != node_id:
                self.cluster.cut(node_id, other)

    async def _ready(self) -> None:
        for _ in range(1_200):
            if self.cluster.is_ready():
                return
            await asyncio.sleep(0.05)
        raise TransactionViolation(f"the brokers are not back: {self.cluster.describe()}")

    async def _delete_topics(self) -> None:
        """Deletes a topic amid transactions, and makes it anew."""
        while not self.is_over:
            await asyncio.sleep(self.draw.uniform(5, 15))
            admin = self.cluster.asyncio.admin(default_api_timeout_ms=10_000)
            topic = NewTopic(workers.VOLATILE, 1, 3, configs={"min.insync.replicas": "2"})
            try:
                await admin.delete_topics([workers.VOLATILE])
                self.counts["deletions"] += 1
                await asyncio.sleep(self.draw.choice([0, 0, 1, 5]))
                await admin.create_topics([topic])
            except TidemarkError:
                continue
            finally:
                await admin.close()


_call = BrokerPeers.call


async def _repeat(
    peers: BrokerPeers, world: World, broker_id: int, rpc: Rpc, request: Message, timeout_ms: int
) -> Any:
    """A call of a broker by another one. Some markers come again, and late."""

    async def again() -> None:
        await asyncio.sleep(late_s)
        with contextlib.suppress(NetworkError):
            await _call(peers, broker_id, rpc, request, timeout_ms)

    if rpc.name == "WriteTxnMarkers" and world.draw.random() < 0.1:
        world.counts["repeated markers"] += 1
        late_s = world.draw.choice([0.05, 0.5, 3, 8])
        task = asyncio.get_running_loop().create_task(again())
        world.repeats.add(task)
        task.add_done_callback(world.repeats.discard)
    return await _call(peers, broker_id, rpc, request, timeout_ms)


def run_transactions(seed: int, canary: ClusterCanary | None = None) -> Counter[str]:
    """Runs one seed, with a bug if there is one."""
    with (canary or ClusterCanary()).planted():
        return World(seed).run()


def run_seeds(seeds: Sequence[int]) -> Counter[str]:
    """Runs seeds one after another; returns what happened in all."""
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            total += run_transactions(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return total
