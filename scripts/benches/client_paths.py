"""Produce and consume through a real cluster, beside raw gRPC of the same sizes in the same run.

The ceiling of a produce is a raw put to a bare gRPC server in a process of its own. It uses one
open call, like the producer. The ceiling of a consume is a raw unary get. Both have the same
message size and as many requests under way, but no log behind them. Client, nodes and raw server
share the machine. Records have 100 and 1,000 bytes, in whole Arrow batches unless the name says
"per record".
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncConsumer, AsyncProducer, NewTopic, TopicPartition

PARTITIONS = 6
MESSAGE_BYTES = 2 << 20  # size of a produce request or fetch answer here
UNDER_WAY = 3
TOTAL_BYTES = 192 << 20
PER_RECORD_COUNT = 200_000
CHUNK_BYTES = 6 << 20

Row = dict[str, Any]


# The ceiling.


def _serve(port_out: Any) -> None:
    import grpc
    import uvloop

    from tidemark import wire
    from tidemark.wire.exchange import answer_each

    blob = b"x" * MESSAGE_BYTES

    async def put(requests: Any, context: Any) -> None:
        async def answer(request: bytes) -> bytes:
            return b""

        await answer_each(context, answer)

    async def get(request: bytes, context: Any) -> bytes:
        return blob

    async def main() -> None:
        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        handlers = {
            "Put": grpc.stream_stream_rpc_method_handler(put),
            "Get": grpc.unary_unary_rpc_method_handler(get),
        }
        generic = grpc.method_handlers_generic_handler("raw.Bench", handlers)
        server.add_generic_rpc_handlers((generic,))
        port_out.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    uvloop.run(main())


async def _raw(port: int, method: str, request: bytes) -> float:
    """MB/s of calls, UNDER_WAY at once."""
    import grpc.aio

    from tidemark import wire

    count = TOTAL_BYTES // MESSAGE_BYTES
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=wire.CHANNEL_OPTIONS
    ) as channel:
        call = raw_put(channel) if method == "Put" else channel.unary_unary("/raw.Bench/Get")
        for _ in range(4):
            await call(request)
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await call(request)

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(UNDER_WAY)))
        return count * MESSAGE_BYTES / 1e6 / (time.perf_counter() - began)


def raw_put(channel: Any) -> Callable[[bytes], Awaitable[bytes]]:
    """A put over one call that stays open."""
    from tidemark.wire.exchange import Exchange

    exchange = Exchange(channel, "/raw.Bench/Put")
    return lambda request: exchange.ask(request, 60)


@contextmanager
def raw_server() -> Iterator[tuple[int, int]]:
    """(port, process id) of a bare gRPC server: /raw.Bench/Put takes bytes, Get returns them."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(send,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield receive.recv(), process.pid
    finally:
        process.terminate()
        process.join()


def raw_ceilings() -> tuple[float, float]:
    """(put, get) in MB/s."""
    with raw_server() as (port, _):
        put = asyncio.run(_raw(port, "Put", b"x" * MESSAGE_BYTES))
        get = asyncio.run(_raw(port, "Get", b""))
        return put, get


# The paths.


def chunk(record_bytes: int) -> pa.RecordBatch:
    """Records of random bytes without keys."""
    count = CHUNK_BYTES // record_bytes
    body = np.random.default_rng(1).integers(0, 256, count * record_bytes, np.uint8)
    offsets = np.arange(0, (count + 1) * record_bytes, record_bytes, np.int32)
    value = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    return pa.RecordBatch.from_arrays([value], names=["value"])


async def produce_arrow(servers: str, topic: str, acks: str, record_bytes: int) -> float:
    """MB/s of values, acknowledged."""
    data = chunk(record_bytes)
    rounds = TOTAL_BYTES // data.nbytes
    async with AsyncProducer(servers, acks=acks) as producer:
        await producer.send_arrow(topic, data)  # warms connections, kernels, metadata
        began = time.perf_counter()
        deliveries = []
        for _ in range(rounds):
            delivery = producer.send_arrow(topic, data)
            await delivery.accepted()
            deliveries.append(delivery)
        for delivery in deliveries:
            await delivery
        return rounds * data.num_rows * record_bytes / 1e6 / (time.perf_counter() - began)


async def produce_records(servers: str, topic: str, record_bytes: int) -> float:
    """Records/s of plain sends, acknowledged."""
    value = b"x" * record_bytes
    async with AsyncProducer(servers) as producer:
        await producer.send(topic, value)
        began = time.perf_counter()
        for number in range(PER_RECORD_COUNT):
            producer.send(topic, value)
            if number % 500 == 0:
                await producer.drain()
                await asyncio.sleep(0)
        await producer.flush()
        return PER_RECORD_COUNT / (time.perf_counter() - began)


async def _consumer(servers: str, topic: str) -> tuple[AsyncConsumer, int]:
    consumer = AsyncConsumer(servers)
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    total = sum((await consumer.end_offsets(partitions)).values())
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    return consumer, total


async def consume_arrow(servers: str, topic: str, record_bytes: int) -> float:
    """MB/s of values, as Arrow batches."""
    consumer, total = await _consumer(servers, topic)
    async with consumer:
        read = 0
        began = time.perf_counter()
        while read < total:
            polled = await consumer.poll_arrow(10_000)
            read += sum(batch.num_rows for batch in polled.values())
        return total * record_bytes / 1e6 / (time.perf_counter() - began)


async def consume_records(servers: str, topic: str) -> float:
    """Records/s as Python objects."""
    consumer, total = await _consumer(servers, topic)
    total = min(total, PER_RECORD_COUNT)
    async with consumer:
        read = 0
        began = time.perf_counter()
        while read < total:
            for record in await consumer.poll(10_000, max_records=5000):
                read += record.value is not None
        return read / (time.perf_counter() - began)


def _row(name: str, value: float, unit: str, ceiling: float | None) -> Row:
    ratio = None if ceiling is None else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def _wait_replicated(admin: Admin, topic: str) -> None:
    """Waits until every replica has all of the topic, so that a row does not pay for the row
    before.
    """
    while True:
        dirs = [d for found in admin.describe_log_dirs(topics=[topic]).values() for d in found]
        ends: dict[TopicPartition, set[int]] = {}
        for replica in (replica for found in dirs for replica in found.replicas):
            ends.setdefault(replica.topic_partition, set()).add(replica.log_end_offset)
        if all(len(found) == 1 for found in ends.values()):
            return
        time.sleep(0.1)


def _paths(servers: str, replicas: int, put: float, get: float) -> list[Row]:
    rows: list[Row] = []
    suffix = f"RF {replicas}"
    with Admin(servers) as admin:
        for size in (100, 1000):
            for acks in ("1", "all") if replicas > 1 else ("1",):
                topic = f"bench-{size}-{acks}"
                admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])
                rate = asyncio.run(produce_arrow(servers, topic, acks, size))
                name = f"produce acks={acks} {suffix}, {size} B"
                rows.append(_row(name, rate, "MB/s", put))
                rows.append(_row(name, rate * 1e6 / size, "records/s", put * 1e6 / size))
                _wait_replicated(admin, topic)
            rate = asyncio.run(consume_arrow(servers, topic, size))
            name = f"consume {suffix}, {size} B"
            rows.append(_row(name, rate, "MB/s", get))
            rows.append(_row(name, rate * 1e6 / size, "records/s", get * 1e6 / size))
        admin.create_topics([NewTopic("bench-plain", PARTITIONS, replicas)])
    rate = asyncio.run(produce_records(servers, "bench-plain", 100))
    rows.append(_row(f"produce per record {suffix}, 100 B", rate, "records/s", None))
    rate = asyncio.run(consume_records(servers, "bench-plain"))
    rows.append(_row(f"consume per record {suffix}, 100 B", rate, "records/s", None))
    return rows


def run() -> list[Row]:
    """All rows: one broker without replication, then three with RF 3."""
    from tidemark.records.arrow import warm_up

    warm_up()
    put, get = raw_ceilings()
    rows = [_row("raw gRPC put", put, "MB/s", None), _row("raw gRPC get", get, "MB/s", None)]
    for brokers in (1, 3):
        with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory:
            cluster = LocalCluster(Path(directory), controllers=1, brokers=brokers)
            with cluster:
                cluster.wait_ready(60)
                rows += _paths(cluster.bootstrap_servers, brokers, put, get)
    return rows
