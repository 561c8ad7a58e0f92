"""A real MinIO that is killed, stopped or made slow under a cluster with a load on a tiered topic.

The load notes the times of its produces, of its hot reads and of the topics that it makes.
`scripts/benches/tier.py` compares them; the tests judge the records alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.minio_fixture import MinioServer
from tidemark.cli.local_cluster import LocalCluster, free_ports
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from tidemark.types import TopicPartition

TOPIC = "tiered"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(2)]
_VALUE_HEAD = struct.Struct("<Qd")  # number of the record, time of its send
_PADDING = bytes(2000)
_ROUND = 5  # records to each partition
_PIECE_BYTES = 1 << 14
_POLL_MS = 200


class SlowLink:
    """A TCP proxy before the store; `bytes_per_s` limits each direction of each connection."""

    def __init__(self, endpoint: str) -> None:
        url = urlsplit(endpoint)
        self._target = (url.hostname, url.port)
        (self.port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.bytes_per_s: float | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SlowLink:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        inner: asyncio.StreamWriter | None = None
        try:
            answers, inner = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, inner))
                pumps.create_task(self._pump(answers, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, inner):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes bytes on. Raises ConnectionError at their end, so that the other way ends, too."""
        while piece := await reader.read(_PIECE_BYTES):
            if self.bytes_per_s is not None:
                await asyncio.sleep(len(piece) / self.bytes_per_s)
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError


@dataclass
class Times:
    """When something was done, and how long it took; in s of the loop's clock."""

    taken: list[tuple[float, float]] = field(default_factory=list)

    def note(self, began_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self.taken.append((now_s, now_s - began_s))

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Times of what was done in this while."""
        return [took_s for at_s, took_s in self.taken if begin_s <= at_s < end_s]


class TierLoad:
    """Produces, reads what is new, and makes topics, until it is left. Any error of it is raised.

    `delivered` has the numbers of acknowledged records by partition and offset, `seen` those that
    the reader got.
    """

    def __init__(self, servers: str, pause_s: float = 0.02, topic_pause_s: float = 0.5) -> None:
        self._servers = servers
        self._pause_s = pause_s
        self._topic_pause_s = topic_pause_s
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self.delivered: dict[tuple[int, int], int] = {}
        self.seen: dict[tuple[int, int], int] = {}
        self.produce, self.consume, self.create = Times(), Times(), Times()

    async def __aenter__(self) -> TierLoad:
        works = (self._produce(), self._consume(), self._create())
        self._tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._stopped = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in done:
            if isinstance(error, Exception) and kind is None:
                raise error

    async def progress(self, records: int, topics: int, timeout_s: float = 60) -> None:
        """Returns when so many more records are acknowledged and read, and topics are made."""
        wanted = [len(self.delivered) + records, len(self.seen) + records]
        wanted.append(len(self.create.taken) + topics)

        def reached() -> bool:
            self._raise()
            now = [len(self.delivered), len(self.seen), len(self.create.taken)]
            return all(is_ >= least for is_, least in zip(now, wanted, strict=True))

        await until(reached, timeout_s)

    def _raise(self) -> None:
        for task in self._tasks:
            if task.done() and (error := task.exception()) is not None:
                raise error

    async def _produce(self) -> None:
        numbers = itertools.count()
        loop = asyncio.get_running_loop()
        async with AsyncProducer(self._servers, acks="all") as producer:
            while not self._stopped:
                began_s, sent = loop.time(), []
                for partition in [tp.partition for tp in PARTITIONS] * _ROUND:
                    number = next(numbers)
                    value = _VALUE_HEAD.pack(number, began_s) + _PADDING
                    sent.append((number, producer.send(TOPIC, value, partition=partition)))
                for number, delivery in sent:
                    stored = await delivery
                    self.delivered[stored.partition, stored.offset] = number
                self.produce.note(began_s)
                await asyncio.sleep(self._pause_s)

    async def _consume(self) -> None:
        async with AsyncConsumer(self._servers) as consumer:
            consumer.assign(PARTITIONS)
            consumer.seek_to_beginning()
            while not self._stopped:
                for record in await consumer.poll(_POLL_MS):
                    assert record.value is not None
                    number, sent_s = _VALUE_HEAD.unpack_from(record.value)
                    self.seen[record.partition, record.offset] = number
                    self.consume.note(sent_s)

    async def _create(self) -> None:
        loop = asyncio.get_running_loop()
        async with AsyncAdmin(self._servers) as admin:
            for number in itertools.count():
                if self._stopped:
                    return
                began_s = loop.time()
                await admin.create_topics([NewTopic(f"made-{number}", 1, 1)])
                self.create.note(began_s)
                await asyncio.sleep(self._topic_pause_s)


class TieredCluster:
    """One controller and two brokers over a MinIO behind a `SlowLink`; a context manager."""

    def __init__(self, path: Path, segment_bytes: int, settings: dict[str, str]) -> None:
        self._minio = MinioServer()
        self.link = SlowLink(self._minio.store.endpoint)
        store = self._minio.store.rsm_config("outages/") | {"endpoint": self.link.endpoint}
        self._configs = {
            "remote.storage.enable": "true",
            "segment.bytes": str(segment_bytes),
            "local.retention.bytes": str(2 * segment_bytes),
            "retention.ms": "-1",
        }
        tier = {
            "remote.log.storage.system.enable": "true",
            "remote.log.metadata.topic.num.partitions": "2",
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "1000",
            **{f"rsm.config.{name}": value for name, value in store.items()},
        }
        self.cluster = LocalCluster(path, controllers=1, brokers=2, overrides=tier | settings)

    @property
    def servers(self) -> str:
        return self.cluster.bootstrap_servers

    async def __aenter__(self) -> TieredCluster:
        await asyncio.to_thread(self._minio.start)
        try:
            await self.link.__aenter__()
            await asyncio.to_thread(self.cluster.start)
            await asyncio.to_thread(self.cluster.wait_ready)
            async with AsyncAdmin(self.servers) as admin:
                topic = NewTopic(TOPIC, len(PARTITIONS), 2, self._configs)
                await admin.create_topics([topic])
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.cluster.stop)
        await self.link.__aexit__()
        await asyncio.to_thread(self._minio.close)

    async def copy_lag(self) -> int:
        """Rolled segments that the tier lacks, as the leaders tell it."""
        async with AsyncAdmin(self.servers) as admin:
            described = await admin.describe_log_dirs(topics=[TOPIC])
        return sum(
            replica.remote_copy_lag_segments
            for directories in described.values()
            for directory in directories
            for replica in directory.replicas
            if replica.is_leader
        )

    async def lags(self, segments: int, timeout_s: float = 60) -> None:
        """Returns when at least so many segments wait for the tier."""
        async with asyncio.timeout(timeout_s):
            while await self.copy_lag() < segments:  # noqa: ASYNC110 - only brokers know it
                await asyncio.sleep(0.1)

    async def caught_up(self, timeout_s: float = 120) -> None:
        """Returns when the tier has all that was rolled."""
        async with asyncio.timeout(timeout_s):
            while await self.copy_lag():  # noqa: ASYNC110 - only brokers know it
                await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """The store is gone by SIGKILL; it is started afterwards."""
        await asyncio.to_thread(self._minio.kill)
        yield
        await asyncio.to_thread(self._minio.start)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """The store takes connections and answers nothing."""
        self._minio.pause()
        try:
            yield
        finally:
            self._minio.resume()

    @contextlib.asynccontextmanager
    async def slow(self, bytes_per_s: float = 20_000) -> AsyncIterator[None]:
        """The store's connections trickle."""
        self.link.bytes_per_s = bytes_per_s
        try:
            yield
        finally:
            self.link.bytes_per_s = None


async def read_all(servers: str) -> dict[tuple[int, int], int]:
    """Returns the numbers of all records by partition and offset, those in the tier included."""
    found: dict[tuple[int, int], int] = {}
    async with AsyncConsumer(servers) as consumer:
        ends = await consumer.end_offsets(PARTITIONS)
        consumer.assign(PARTITIONS)
        for partition in PARTITIONS:
            consumer.seek(partition, 0)
        at = dict.fromkeys(PARTITIONS, 0)
        while any(at[partition] < ends[partition] for partition in PARTITIONS):
            polled = await consumer.poll(60_000)
            assert polled, f"nothing came for a minute: {at} of {ends}"
            for record in polled:
                assert record.value is not None
                found[record.partition, record.offset] = _VALUE_HEAD.unpack_from(record.value)[0]
                at[TopicPartition(TOPIC, record.partition)] = record.offset + 1
    return found


async def until(holds: Callable[[], bool], timeout_s: float) -> None:
    """Polls until `holds`."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - tasks of a load, in many places
            await asyncio.sleep(0.05)
