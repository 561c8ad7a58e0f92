"""Transactions beside the same work without them, in the same run: three brokers, RF 3, acks=all.

A produce with a commit every so often has the plain produce as its ceiling. A commit waits until
all is acknowledged, and so does a flush. So a plain produce with as many flushes stands beside it.
A transaction costs at least three round trips that wait
for replicas: the record, the first partition with the coordinator, and the outcome. So its ceiling
is a third of the plain rate of one record at a time. That of a load is the decoding of its records.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benches.client_paths import chunk
from benches.idle import Usage

from coordinator.records.transactions import (
    TRANSACTION_RECORDS,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
)
from coordinator.runtime.batches import Replayed, decode, encode
from coordinator.transactions.shard import TransactionSettings, TransactionShard
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, AsyncConsumer, AsyncProducer, NewTopic, TopicPartition

SECONDS = float(os.environ.get("BENCH_TRANSACTIONS_SECONDS", "1"))
ROUNDS = int(os.environ.get("BENCH_TRANSACTIONS_ROUNDS", "2"))
IDS = int(os.environ.get("BENCH_TRANSACTIONS_IDS", "100000"))
INTERVALS_MS = (1_000, 100, 10)
PARTITIONS = 6
WIDE = 20
CROWD = 8
CHUNK_RECORDS = 2_500
RECORD_BYTES = 100
_READ_MOST = 1_500_000
Row = dict[str, Any]


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    ratio = None if not ceiling else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


class Bench:
    """The cluster as its clients see it."""

    def __init__(self, servers: str, pids: list[int]) -> None:
        self.servers = servers
        self._pids = pids

    @asynccontextmanager
    async def producer(self, transactional_id: str | None, **settings: Any) -> Any:
        """A producer; one with transactions is ready for the first."""
        made = AsyncProducer(self.servers, transactional_id=transactional_id, **settings)
        async with made:
            if transactional_id is not None:
                await made.init_transactions()
            yield made

    def cpu_s(self) -> tuple[float, float]:
        """CPU so far of this process, and of all brokers."""
        return time.process_time(), sum(Usage.of(pid).cpu_s for pid in self._pids)

    async def streamed(self, topic: str, interval_s: float, *, commits: bool) -> float:
        """Records/s of whole Arrow batches, committed every `interval_s`, or flushed without
        transactions."""
        data = chunk(RECORD_BYTES).slice(0, CHUNK_RECORDS)
        name = f"stream-{interval_s}" if commits else None
        async with self.producer(name) as producer:

            async def part(until_s: float) -> int:
                """Sends until then."""
                if commits:
                    producer.begin_transaction()
                count = 0
                while time.perf_counter() < until_s:
                    await producer.send_arrow(topic, data).accepted()
                    count += CHUNK_RECORDS
                await (producer.commit_transaction() if commits else producer.flush())
                return count

            await part(time.perf_counter() + 0.3)  # warm
            began, count = time.perf_counter(), 0
            while (now := time.perf_counter()) < began + SECONDS:
                count += await part(min(began + SECONDS, now + interval_s))
            return count / (time.perf_counter() - began)

    async def stepped(
        self, topic: str, partitions: int, transactional_id: str | None
    ) -> tuple[float, float, float]:
        """Rounds/s of one record to each partition, acknowledged or committed. The CPU of a round
        in us, of the client and of the brokers, follows."""
        async with self.producer(transactional_id, linger_ms=0) as producer:

            async def once() -> None:
                if transactional_id is not None:
                    producer.begin_transaction()
                sent = [producer.send(topic, b"x" * 100, partition=n) for n in range(partitions)]
                if transactional_id is not None:
                    await producer.commit_transaction()
                else:
                    await asyncio.gather(*sent)

            await _rate(once, 0.3)  # warm
            begin = self.cpu_s()
            rate = await _rate(once, SECONDS)
            cpu_us = [
                (e - b) / (rate * SECONDS) * 1e6 for e, b in zip(self.cpu_s(), begin, strict=True)
            ]
            return rate, cpu_us[0], cpu_us[1]

    async def read(self, topic: str, isolation_level: str) -> float:
        """Records/s of whole Arrow batches."""
        consumer = AsyncConsumer(self.servers, isolation_level=isolation_level)
        async with consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
            consumer.seek_to_beginning()
            count = sum(len(rows) for rows in (await consumer.poll_arrow(10_000)).values())
            began, count = time.perf_counter(), 0
            while count < _READ_MOST:
                polled = await consumer.poll_arrow(500)
                if not polled:
                    break
                ended = time.perf_counter()
                count += sum(len(rows) for rows in polled.values())
            return count / (ended - began)


async def _rate(once: Callable[[], Awaitable[None]], seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        await once()
        count += 1
    return count / (time.perf_counter() - began)


async def _streams(bench: Bench) -> list[Row]:
    """Medians of rounds, each with all of them: the machine's speed moves by a fourth meanwhile."""
    plain: list[float] = []
    flushed: dict[int, list[float]] = {ms: [] for ms in INTERVALS_MS}
    committed: dict[int, list[float]] = {ms: [] for ms in INTERVALS_MS}
    for _ in range(ROUNDS):
        for ms in INTERVALS_MS:
            topic, interval_s = f"every-{ms}", ms / 1_000
            plain.append(await bench.streamed("plain", SECONDS, commits=False))
            flushed[ms].append(await bench.streamed(topic, interval_s, commits=False))
            committed[ms].append(await bench.streamed(topic, interval_s, commits=True))
    ceiling = median(plain)
    rows = [_row("produce without transactions", ceiling, "records/s")]
    for ms in INTERVALS_MS:
        rows.append(_row(f"with a flush every {ms} ms", median(flushed[ms]), "records/s", ceiling))
        rows.append(
            _row(f"with a commit every {ms} ms", median(committed[ms]), "records/s", ceiling)
        )
    levels: dict[str, list[float]] = {"read_uncommitted": [], "read_committed": []}
    for _ in range(2):
        for level, rates in levels.items():
            rates.append(await bench.read("every-100", level))
    best = {level: max(rates) for level, rates in levels.items()}
    rows.append(
        _row(
            "consume at read_committed",
            best["read_committed"],
            "records/s",
            best["read_uncommitted"],
        )
    )
    return rows


async def _steps(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for topic, partitions in (("narrow", 1), ("wide", WIDE)):
        plain, *plain_us = await bench.stepped(topic, partitions, None)
        rate, *cpu_us = await bench.stepped(topic, partitions, f"{topic}-one")
        what = f"{partitions} partition{'s' * (partitions > 1)}"
        rows.append(_row(f"acks=all, one record to each of {what}", plain, "/s"))
        rows.append(_row(f"transactions of one record to each of {what}", rate, "/s", plain / 3))
        for who, one, ceiling in zip(("client", "brokers"), cpu_us, plain_us, strict=True):
            rows.append(_row(f"  CPU of one, {who}", one, "us", 3 * ceiling))
    crowd = [bench.stepped("narrow", 1, f"crowd-{number}") for number in range(CROWD)]
    rates = [rate for rate, *_ in await asyncio.gather(*crowd)]
    rows.append(_row(f"transactions of one record, by {CROWD} producers", sum(rates), "/s"))
    return rows


def _load() -> list[Row]:
    """Replays the last record of each of many transactional ids."""
    parts = (TransactionPartitions("events", (0, 1, 2)),)
    now_ms = 1_700_000_000_000
    batches = []
    for begin in range(0, IDS, 100):
        records = [
            (
                TransactionLogKey(f"producer-{number}"),
                TransactionLogValue(
                    number, 7, 60_000, TransactionState.ONGOING, parts, now_ms, now_ms, number
                ),
            )
            for number in range(begin, min(IDS, begin + 100))
        ]
        batches.append(encode(TRANSACTION_RECORDS, records, now_ms))

    def replayed(some: list[bytes]) -> tuple[TransactionShard, float]:
        shard = TransactionShard(TransactionSettings())
        began = time.perf_counter()
        for batch in some:
            for found in decode(TRANSACTION_RECORDS, batch):
                assert isinstance(found, Replayed)
                shard.replay(found.key, found.value, found.offset, -1)
        return shard, time.perf_counter() - began

    began = time.perf_counter()
    for batch in batches:
        for _ in decode(TRANSACTION_RECORDS, batch):
            pass
    decoding_s = time.perf_counter() - began
    shard, load_s = replayed(batches)
    assert len(shard.transactions) == IDS
    del shard
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    shard, _ = replayed(batches[::10])  # to trace them all takes long
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return [
        _row(f"load of {IDS} transactional ids", IDS / load_s, "ids/s", IDS / decoding_s),
        _row("  time", load_s, "s"),
        _row(
            "memory of a transactional id with an open transaction",
            held / len(shard.transactions),
            "B",
        ),
    ]


def run() -> list[Row]:
    """Clients of three brokers, then a load in this process."""
    from tidemark.records.arrow import warm_up

    warm_up()
    with (
        tempfile.TemporaryDirectory(prefix="bench-transactions-") as path,
        LocalCluster(Path(path), controllers=1, brokers=3) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        cluster.wait_ready(60)
        sizes = {"plain": PARTITIONS, "narrow": 1, "wide": WIDE}
        sizes |= {f"every-{ms}": PARTITIONS for ms in INTERVALS_MS}
        admin.create_topics([NewTopic(topic, size, 3) for topic, size in sizes.items()])
        admin.wait_until_topics_known(list(sizes))
        pids = [p.pid for n in cluster.broker_ids if (p := cluster.node(n).process) is not None]
        bench = Bench(cluster.bootstrap_servers, pids)
        rows = asyncio.run(_streams(bench)) + asyncio.run(_steps(bench))
    return rows + _load()
