"""The metadata image and the controller at scale: no network and no Raft, only what the state
machine itself costs.

1,000 topics of 100 partitions, RF 3, 100 brokers; with CONTROLLER_BENCH_TOPICS=10000 a million
partitions, which takes a minute or two and a gigabyte. Measured: the snapshot's
records written and loaded (values in memory), resident memory per partition, creating 10,000
partitions, and fencing one broker of 100 twice: the first time tells its partitions anew.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from quorum.controller.core import ControllerCore
from quorum.image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    Listener,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from quorum.image import records as r
from tidemark.config import parse_server_config
from tidemark.v1 import admin_pb2

TOPICS = int(os.environ.get("CONTROLLER_BENCH_TOPICS", "1000"))
PARTITIONS = 100
BROKERS = 100
NOW_MS = 1_000_000
MEMORY_LIMIT_BYTES = 300


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _values(topics: int) -> list[bytes]:
    rng = random.Random(1)
    found = [r.encode_record(r.feature_record("metadata.version", 1))]
    for broker_id in range(BROKERS):
        listener = Listener("PLAINTEXT", "127.0.0.1", 9092)
        incarnation = UUID(int=broker_id, version=4)
        broker = BrokerRegistration(broker_id, broker_id, incarnation, (listener,), fenced=False)
        found.append(r.encode_record(r.broker_record(broker)))
    for number in range(topics):
        topic_id = UUID(int=rng.getrandbits(128), version=4)
        found.append(r.encode_record(r.topic_record(f"topic-{number}", topic_id)))
        for index in range(PARTITIONS):
            replicas = tuple(rng.sample(range(BROKERS), 3))
            partition = PartitionRegistration(replicas, replicas, replicas[0])
            found.append(r.encode_record(r.partition_record(topic_id, index, partition)))
    return found


def _core(image: MetadataImage) -> ControllerCore:
    config = parse_server_config(
        {
            "process.roles": "controller",
            "node.id": "1",
            "listeners": "CONTROLLER://127.0.0.1:0",
            "controller.quorum.voters": "1@127.0.0.1:9093",
        }
    )
    core = ControllerCore(config, "bench", random.Random(1))
    core.activate(image, 1, NOW_MS)
    return core


def _fence_one(core: ControllerCore, image: MetadataImage) -> tuple[int, float, float]:
    """Partition changes, seconds to generate them, seconds to replay them."""
    silent_ms = NOW_MS + 10_000_000
    begin = time.perf_counter()
    result = core.tick(silent_ms)
    generated = time.perf_counter()
    delta = MetadataDelta(image)
    for record in result.records:
        delta.replay(record)
    delta.apply(image.offset + len(result.records), 1)
    return len(result.records), generated - begin, time.perf_counter() - generated


def _creation(core: ControllerCore) -> float:
    request = admin_pb2.CreateTopicsRequest()
    for number in range(100):
        request.topics.add(name=f"new{number}", num_partitions=100, replication_factor=3)
    begin = time.perf_counter()
    result = core.create_topics(request)
    offset = core.image.offset
    for batch in result.batches():
        offset += len(batch)
        core.replay(batch, offset, NOW_MS)
    return time.perf_counter() - begin


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if ceiling is None else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def run() -> list[dict[str, Any]]:
    """Rows of name, value, unit, ceiling (the aim, where there is one), ratio to it."""
    values = _values(TOPICS)
    count = TOPICS * PARTITIONS
    gc.collect()
    before = _resident_bytes()
    begin = time.perf_counter()
    delta = MetadataDelta(EMPTY_IMAGE)
    for value in values:
        delta.replay_value(value)
    image = delta.apply(len(values), 1)
    load_s = time.perf_counter() - begin
    del delta
    gc.collect()
    memory = (_resident_bytes() - before) / count
    begin = time.perf_counter()
    size = sum(len(value) for value in image.values())
    write_s = time.perf_counter() - begin
    core = _core(image)
    changes, first_s, replay_s = _fence_one(core, image)
    _, again_s, _ = _fence_one(_core(image), image)
    return [
        _row("controller/partitions", count, "partitions"),
        _row("controller/snapshot load", load_s, "s"),
        _row("controller/snapshot write", write_s, "s"),
        _row("controller/snapshot size", size / 1e6, "MB"),
        _row("controller/memory per partition", memory, "bytes", MEMORY_LIMIT_BYTES),
        _row("controller/fence one of 100 brokers", changes, "records"),
        _row("controller/fence, first time, generate", first_s, "s"),
        _row("controller/fence, again, generate", again_s, "s"),
        _row("controller/fence, replay", replay_s, "s"),
        _row("controller/create 10,000 partitions", _creation(core), "s"),
        _row(
            "controller/peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "MB"
        ),
    ]
