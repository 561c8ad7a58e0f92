"""The metadata image and the controller at scale: one voter over a real log, in this process.

There are 1,000 topics of 100 partitions, RF 3, on 100 brokers. CONTROLLER_BENCH_TOPICS=10000 makes
a million partitions, which takes a minute or two and a gigabyte. Times of the state machine are CPU
seconds of the process, which are stable on a busy machine. Delays of the event loop are wall time.

Measured are:

- loading and writing a checkpoint, beside parsing its records by protobuf and writing its bytes
- resident memory
- the time until a standby's first write is committed
- fencing one of 100 brokers, and its delta on a broker
- creating 10,000 partitions
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from commitlog.disk.os_files import OsDirectory
from node.server import GARBAGE_THRESHOLDS
from quorum.controller.core import ControllerCore
from quorum.controller.quorum_controller import QuorumController
from quorum.controller.result import ControllerResult
from quorum.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from quorum.image import records as r
from quorum.replica.loader import MetadataLoader, in_portions
from quorum.replica.server import RaftServer
from snapshot.names import SnapshotId
from snapshot.reader import FileSnapshotReader
from snapshot.writer import SnapshotWriter
from tidemark.config import parse_server_config
from tidemark.types import Listener
from tidemark.v1 import admin_pb2

TOPICS = int(os.environ.get("CONTROLLER_BENCH_TOPICS", "1000"))
PARTITIONS = 100
BROKERS = 100
NOW_MS = 1_000_000
MEMORY_LIMIT_BYTES = 300
TAKEOVER_LIMIT_MS = 1_000
LOG = "__cluster_metadata-0"

Rows = list[dict[str, Any]]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def values(topics: int) -> Iterator[bytes]:
    """A cluster's records; brokers in service, replicas at random."""
    rng = random.Random(1)
    yield r.encode_record(r.feature_record("metadata.version", 1))
    for broker_id in range(BROKERS):
        listener = Listener("PLAINTEXT", "127.0.0.1", 9092)
        incarnation = UUID(int=broker_id, version=4)
        broker = BrokerRegistration(broker_id, broker_id, incarnation, (listener,), fenced=False)
        yield r.encode_record(r.broker_record(broker))
    for number in range(topics):
        topic_id = UUID(int=rng.getrandbits(128), version=4)
        yield r.encode_record(r.topic_record(f"topic-{number}", topic_id))
        for index in range(PARTITIONS):
            replicas = tuple(rng.sample(range(BROKERS), 3))
            partition = PartitionRegistration(replicas, replicas, replicas[0])
            yield r.encode_record(r.partition_record(topic_id, index, partition))


def row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if ceiling is None else value / ceiling
    return {
        "name": f"controller/{name}",
        "value": value,
        "unit": unit,
        "ceiling": ceiling,
        "ratio": ratio,
    }


# --- a node over a checkpoint ---------------------------------------------------------------------


class Node:
    """A voter on its own: Raft over a directory, the loader, the controller."""

    def __init__(self, directory: str) -> None:
        self.config = parse_server_config(
            {
                "process.roles": "controller",
                "node.id": "1",
                "listeners": "CONTROLLER://127.0.0.1:0",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "controller.quorum.election.timeout.ms": "100",
                "broker.session.timeout.ms": "3600000",  # there are no heartbeats here
                "metadata.log.max.snapshot.interval.ms": "0",
                "log.dirs": directory,
            }
        )

        def now_ms() -> int:
            return int(time.time() * 1000)

        self.raft = RaftServer(
            self.config,
            cluster_id="bench",
            directory=OsDirectory(directory),
            directory_id=UUID(int=1),
            rng=random.Random(1),
            now_ms=now_ms,
        )
        self.loader = MetadataLoader(self.raft, self.config, now_ms)
        self.core = ControllerCore(self.config, "bench", random.Random(1))
        self.active = asyncio.Event()
        self.claimed_s = 0.0
        self.loader.add_leader_listener(self._before)
        self.controller = QuorumController(self.raft, self.loader, self.core, now_ms)
        self.loader.add_leader_listener(self._after)
        self.raft.register(self.loader)

    def _before(self, leader: Any) -> None:
        self.claimed_s = time.perf_counter()

    def _after(self, leader: Any) -> None:
        if self.controller.is_active:
            self.active.set()

    async def stop(self) -> None:
        self.controller.stop()
        await self.loader.close()
        await self.raft.shutdown()


@contextlib.asynccontextmanager
async def watched(late_ms: list[float]) -> AsyncIterator[None]:
    """Collects the delays of the event loop, in ms, for a timer of one millisecond."""

    async def watch() -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.001)
            late_ms.append((time.perf_counter() - begin) * 1e3 - 1)

    task = asyncio.ensure_future(watch())
    yield
    task.cancel()
    late_ms.sort()


async def load_and_write(directory: str, rows: Rows) -> MetadataImage:
    """Loads, applies and writes a large image as a running node does. Returns the image."""
    gc.collect()
    before, late_ms = resident_bytes(), list[float]()
    node = Node(directory)
    begin, cpu = time.perf_counter(), time.process_time()
    async with watched(late_ms):
        await node.raft.start()
        await node.active.wait()
    loaded_s, loaded_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    request = admin_pb2.CreateTopicsRequest(timeout_ms=60_000)
    request.topics.add(name="first", num_partitions=1, replication_factor=3)
    await node.controller.handle(request)
    takeover_ms = (time.perf_counter() - node.claimed_s) * 1e3
    gc.collect()
    memory = (resident_bytes() - before) / node.loader.image.partition_count()
    pause_s = elapsed(gc.collect)
    rows += [
        row("checkpoint load, start to active", loaded_cpu_s, "CPU s", parse_s(directory)),
        row("checkpoint load, by the clock", loaded_s, "s"),
        row("checkpoint load, loop late p99", late_ms[int(len(late_ms) * 0.99)], "ms"),
        row("checkpoint load, loop late at most", late_ms[-1], "ms"),
        row("memory per partition", memory, "bytes", MEMORY_LIMIT_BYTES),
        row("full garbage collection", pause_s * 1e3, "ms"),
        row("standby: leader to first commit", takeover_ms, "ms", TAKEOVER_LIMIT_MS),
    ]
    await idle(node)
    await write(node, directory, rows)
    image = node.loader.image
    await node.stop()
    return image


async def idle(node: Node) -> None:
    """Waits until the controller has built its tables."""
    while (due_ms := node.core.next_deadline_ms()) is not None and due_ms < time.time() * 1000:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def write(node: Node, directory: str, rows: Rows) -> None:
    image, late_ms = node.loader.image, list[float]()
    begin, cpu = time.perf_counter(), time.process_time()
    async with watched(late_ms):
        await node.raft.create_snapshot(image.end_offset, in_portions(image.values(), time.sleep))
    written_s, written_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    log = OsDirectory(directory).subdirectory(LOG)
    data = log.read(SnapshotId(image.end_offset, image.epoch).name)
    rows += [
        row("checkpoint size", len(data) / 1e6, "MB"),
        row("checkpoint write", written_cpu_s, "CPU s"),
        row("checkpoint write, by the clock", written_s, "s", write_s(directory, data)),
        row("checkpoint write, loop late p50", late_ms[len(late_ms) // 2], "ms"),
        row("checkpoint write, loop late p99", late_ms[int(len(late_ms) * 0.99)], "ms"),
    ]


def elapsed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def parse_s(directory: str) -> float:
    """CPU seconds of protobuf for parsing the checkpoint's records, and nothing else."""
    log = OsDirectory(directory).subdirectory(LOG)
    reader = FileSnapshotReader(log, SnapshotId(1_000, 1))
    parse, total = r.pb.MetadataRecord.FromString, 0.0
    for batch in reader.batches():
        begin = time.process_time()
        for value in batch:
            parse(value)
        total += time.process_time() - begin
    return total


def write_s(directory: str, data: bytes) -> float:
    """Seconds for writing as many bytes, with an fsync."""
    path = Path(directory, "bytes")
    begin = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    took_s = time.perf_counter() - begin
    path.unlink()
    return took_s


# --- the pure controller --------------------------------------------------------------------------


class Pure:
    """A core whose records are committed at once; CPU seconds of each event, by its kind."""

    def __init__(self, image: MetadataImage) -> None:
        config = parse_server_config(
            {
                "process.roles": "controller",
                "node.id": "1",
                "listeners": "CONTROLLER://127.0.0.1:0",
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "metadata.max.idle.interval.ms": "0",
                "auto.leader.rebalance.enable": "false",
            }
        )
        self.core = ControllerCore(config, "bench", random.Random(1))
        self.core.activate(image, 1, NOW_MS)
        self.batches: list[list[bytes]] = []

    def event(self, generate: Callable[[], ControllerResult[Any]]) -> float:
        """Generates, encodes and replays. Returns CPU seconds."""
        begin = time.process_time()
        result, offset = generate(), self.core.image.offset
        for batch in result.batches():
            self.batches.append([r.encode_record(record) for record in batch])
            offset += len(batch)
            self.core.replay(batch, offset, NOW_MS)
        if result.groups and result.after_append is not None:
            result.after_append(offset)
        return time.process_time() - begin

    def ticks(self, now_ms: int) -> list[float]:
        """Runs all timed work that is due."""
        steps = []
        while (due_ms := self.core.next_deadline_ms()) is not None and due_ms <= now_ms:
            steps.append(self.event(lambda: self.core.tick(now_ms)))
        return steps


def fence(image: MetadataImage, rows: Rows) -> None:
    """Measures the fencing of one silent broker of 100."""
    pure = Pure(image)
    tables = pure.ticks(NOW_MS)
    silent = NOW_MS + 9_500
    for broker_id in range(1, BROKERS):
        pure.core._sessions.touch(broker_id, silent)
    pure.batches.clear()
    steps = pure.ticks(silent)
    changes = sum(map(len, pure.batches))
    applied = []
    for batch in pure.batches:
        begin = time.process_time()
        delta = MetadataDelta(image)
        for value in batch:
            delta.replay_value(value)
        image = delta.apply(image.offset + len(batch), 1)
        applied.append(time.process_time() - begin)
    assert image.brokers[0].fenced
    rows += [
        row("a new controller's tables", sum(tables), "CPU s"),
        row("a new controller's tables, longest step", max(tables) * 1e3, "CPU ms"),
        row("fence one of 100 brokers", changes, "records"),
        row("fence, generated and replayed", sum(steps), "CPU s"),
        row("fence, longest step", max(steps) * 1e3, "CPU ms"),
        row("fence, the delta on a broker", sum(applied), "CPU s"),
        row("fence, the delta, longest batch", max(applied) * 1e3, "CPU ms"),
    ]


def create(image: MetadataImage, rows: Rows) -> None:
    """Measures the creation of 100 topics of 100 partitions."""
    pure = Pure(image)
    request = admin_pb2.CreateTopicsRequest()
    for number in range(100):
        request.topics.add(name=f"new{number}", num_partitions=100, replication_factor=3)
    took_s = pure.event(lambda: pure.core.handle(request, 0, NOW_MS))
    rows.append(row("create 10,000 partitions", took_s, "CPU s"))


def run() -> Rows:
    """Rows of name, value, unit, ceiling (or the aim, if there is one), and the ratio to it."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)  # as a node does
    rows = [row("partitions", TOPICS * PARTITIONS, "partitions")]
    with tempfile.TemporaryDirectory() as directory:
        log = OsDirectory(directory).subdirectory(LOG)
        writer = SnapshotWriter(log, SnapshotId(1_000, 1), NOW_MS)
        writer.append(values(TOPICS))
        writer.freeze()
        image = asyncio.run(load_and_write(directory, rows))
    fence(image, rows)
    create(image, rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [*rows, row("peak memory", peak, "MB")]
