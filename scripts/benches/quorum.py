"""The metadata quorum: three controllers as processes on one disk, with gRPC between them.

First comes Raft alone, under the appends of one writer, of many, and of batches; then whole
controllers, with the requests of brokers and administrators. Ceilings of the same run:

- the linger-batched rate: commits with a wait of `controller.quorum.append.linger.ms` and one fsync
  for each group
- for a lone writer also one fsync and one round trip of an open gRPC call
- for changes of partitions, the batched commits of Raft alone

The raw figures (fsyncs, gRPC calls) are rows of their own. All three logs are on one disk, so the
fsyncs of a commit compete for it. Failover is counted in fetch timeouts, from SIGKILL (or an
orderly stop) of the leader to the next committed write.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

RECORD_BYTES = 100
WRITERS = 64
BATCH_WRITERS, CHANGES_PER_BATCH = 4, 500
PHASE_S = 4.0
FAILOVERS = 5
FETCH_TIMEOUT_MS = 1000
ELECTION_TIMEOUT_MS = 500
BROKERS = (101, 102, 103)
PARTITIONS = 10_000
CLUSTER_ID = "benchmarked-cluster-id"
NODE = Path(__file__).with_name("_quorum_node.py")


# --- the processes --------------------------------------------------------------------------------


def settings(node_id: int, ports: list[int], directory: str) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "listeners": f"CONTROLLER://127.0.0.1:{ports[node_id - 1]}",
        "controller.quorum.voters": ",".join(
            f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, start=1)
        ),
        "controller.quorum.fetch.timeout.ms": str(FETCH_TIMEOUT_MS),
        "controller.quorum.election.timeout.ms": str(ELECTION_TIMEOUT_MS),
        "log.dirs": directory,
    }


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Controllers:
    """Three processes, and requests to their leader."""

    def __init__(self, directory: Path, role: str) -> None:
        self.ports = free_ports(3)
        self.directory = directory / role
        self.role = role
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for node_id in (1, 2, 3):
            self.start(node_id)

    def start(self, node_id: int) -> None:
        path = self.directory / str(node_id)
        path.mkdir(exist_ok=True, parents=True)
        what = {"settings": settings(node_id, self.ports, str(path)), "cluster_id": CLUSTER_ID}
        self.processes[node_id] = child(self.role, what)

    def tell(self, line: dict[str, Any]) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()

    def ask(self, name: str, writers: int, records: int, seconds: float) -> dict[str, Any]:
        """The first answer, with the CPU time of all; repeated while there is no leader."""
        line = command(name, writers, records, seconds)
        deadline = time.monotonic() + seconds + 30
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            self.tell(line)
            found = self.answer(seconds + 2)
            if found is not None:
                cpu_s = self.cpu_seconds() - before
                return found | summary(found["latencies"], records, found["seconds"], cpu_s)
        raise RuntimeError("no controller leads")

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        pipes = [process.stdout for process in self.processes.values()]
        ready, _, _ = select.select(pipes, [], [], timeout_s)
        for pipe in ready:
            assert pipe is not None
            line = pipe.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
        return None

    def cpu_seconds(self) -> float:
        """CPU seconds of all processes so far."""
        ticks = 0
        for process in self.processes.values():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def child(role: str, what: dict[str, Any]) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, str(NODE), role, json.dumps(what)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def command(name: str, writers: int, records: int, seconds: float) -> dict[str, Any]:
    """The command for the leader to append records."""
    return {
        "name": name,
        "writers": writers,
        "records": records,
        "seconds": seconds,
        "bytes": RECORD_BYTES,
    }


def summary(latencies: list[float], per_call: int, seconds: float, cpu_s: float) -> dict[str, Any]:
    latencies.sort()
    count = len(latencies) * per_call
    return {
        "rate": count / seconds,
        "p50_ms": statistics.median(latencies) * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        "cpu_us": cpu_s / count * 1e6,
    }


# --- ceilings -------------------------------------------------------------------------------------


def raw_appends(directory: Path, appends: int, record_bytes: int, seconds: float = 0.5) -> float:
    """Appends per second of one file, `appends` of them before each fsync."""
    data = os.urandom(record_bytes + 70)
    descriptor = os.open(directory / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(appends):
            os.write(descriptor, data)
        os.fsync(descriptor)
        done += appends
    seconds = time.perf_counter() - begin
    os.close(descriptor)
    return done / seconds


def linger_batched(group: int, appends: float, linger_ms: int) -> float:
    """Commits per second with one fsync each linger time, for groups that a raw disk takes at this
    rate.
    """
    return group / (linger_ms / 1000 + group / appends)


async def raw_calls(seconds: float = 1.0) -> tuple[float, float]:
    """gRPC calls of 100 bytes per second, one after another: unary ones, and over an open call."""
    import grpc.aio

    from tidemark.wire import CHANNEL_OPTIONS
    from tidemark.wire.exchange import Exchange

    [port] = free_ports(1)
    process = child("echo", {"port": port})
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
    data = os.urandom(RECORD_BYTES)
    try:
        await asyncio.wait_for(channel.channel_ready(), 30)
        single = channel.unary_unary("/bench/Call")
        exchange = Exchange(channel, "/bench/Stream")

        async def per_second(ask: Callable[[], Awaitable[Any]]) -> float:
            done, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < seconds:
                await ask()
                done += 1
            return done / (time.perf_counter() - begin)

        rates = (
            await per_second(lambda: single(data)),
            await per_second(lambda: exchange.ask(data, 30)),
        )
        exchange.close()
        return rates
    finally:
        await channel.close()
        process.kill()
        process.wait()


# --- asking controllers ---------------------------------------------------------------------------


class Administrator:
    """Brokers and an administrator in one; sends requests to the active controller over gRPC."""

    def __init__(self, controllers: Controllers) -> None:
        from quorum.services.controller_client import ControllerClient
        from tidemark.types import Endpoint
        from tidemark.v1 import admin_pb2, controller_pb2

        self._controllers, self.admin, self.controller = controllers, admin_pb2, controller_pb2
        endpoints = itertools.cycle([Endpoint("127.0.0.1", port) for port in controllers.ports])
        self._endpoint = next(endpoints)
        self._endpoints = endpoints
        self._client = ControllerClient(lambda: self._endpoint)
        self._epochs: dict[int, int] = {}
        self._heartbeats: asyncio.Task[None] | None = None

    async def ask(self, method: str, request: Any) -> Any:
        return await self._client.call(method, request, 60_000)

    async def begin(self) -> None:
        """Finds the active controller and registers the brokers."""
        from tidemark.errors import RequestTimedOutError

        for broker_id in BROKERS:
            request = self.controller.RegisterBrokerRequest(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=UUID(int=broker_id, version=4).bytes,
                log_dirs=[UUID(int=broker_id, version=4).bytes],
                previous_broker_epoch=-1,
            )
            request.listeners.add(name="PLAINTEXT", host="127.0.0.1", port=9092)
            request.features.add(name="metadata.version", min_level=1, max_level=2)
            while broker_id not in self._epochs:
                try:
                    answer = await self._client.call("RegisterBroker", request, 1000)
                except RequestTimedOutError:
                    self._endpoint = next(self._endpoints)
                    continue
                if answer.error_code:
                    raise RuntimeError(f"not registered: {answer}")
                self._epochs[broker_id] = answer.broker_epoch
        await self._heartbeat()
        self._heartbeats = asyncio.ensure_future(self._heartbeat_for_ever())

    async def _heartbeat(self) -> None:
        for broker_id, epoch in self._epochs.items():
            request = self.controller.BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=1 << 40
            )
            await self.ask("BrokerHeartbeat", request)

    async def _heartbeat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._heartbeat()

    async def end(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self._client.close()

    async def create(self, topics: int, partitions: int, prefix: str) -> tuple[float, list[bytes]]:
        """Creates topics that the first broker leads, 1,000 partitions a request. Returns seconds
        and ids.
        """
        per_request = max(1, 1000 // partitions)
        ids: list[bytes] = []
        begin = time.perf_counter()
        for first in range(0, topics, per_request):
            request = self.admin.CreateTopicsRequest(timeout_ms=60_000)
            for number in range(first, min(topics, first + per_request)):
                topic = request.topics.add(
                    name=f"{prefix}{number}", num_partitions=-1, replication_factor=-1
                )
                for index in range(partitions):
                    topic.assignments.add(partition_index=index, broker_ids=BROKERS)
            answer = await self.ask("CreateTopics", request)
            if answer.error_code or any(topic.error_code for topic in answer.topics):
                raise RuntimeError(f"not created: {answer.error_message} {answer.topics[:1]}")
            ids += [topic.topic_id for topic in answer.topics]
        return time.perf_counter() - begin, ids

    async def add_partitions(self, prefix: str, topics: int, count: int) -> float:
        """Brings each topic to `count` partitions in one request. Returns seconds."""
        request = self.admin.CreatePartitionsRequest(timeout_ms=60_000)
        for number in range(topics):
            request.topics.add(name=f"{prefix}{number}", count=count)
        begin = time.perf_counter()
        answer = await self.ask("CreatePartitions", request)
        if answer.error_code or any(result.error_code for result in answer.results):
            raise RuntimeError(f"no partitions added: {answer}")
        return time.perf_counter() - begin

    async def alter_partitions(
        self, topic_ids: list[bytes], partitions: int, seconds: float
    ) -> dict[str, Any]:
        """Shrinks and expands ISRs in batches, several under way at once, as brokers do."""
        before = self._controllers.cpu_seconds()
        every = [(topic_id, index) for topic_id in topic_ids for index in range(partitions)]
        size = min(CHANGES_PER_BATCH, len(every) // BATCH_WRITERS)
        end = time.perf_counter() + seconds
        latencies: list[float] = []

        async def broker(mine: list[tuple[bytes, int]]) -> None:
            for epoch in itertools.count():
                request = self.controller.AlterPartitionRequest(
                    broker_id=BROKERS[0], broker_epoch=self._epochs[BROKERS[0]]
                )
                isr = BROKERS if epoch % 2 else BROKERS[:2]
                for topic_id, index in mine:
                    asked = request.partitions.add(
                        topic_id=topic_id, partition_index=index, partition_epoch=epoch
                    )
                    for member in isr:
                        asked.new_isr.add(broker_id=member, broker_epoch=self._epochs[member])
                begin = time.perf_counter()
                answer = await self.ask("AlterPartition", request)
                latencies.append(time.perf_counter() - begin)
                failed = [p.error_code for p in answer.partitions if p.error_code]
                if answer.error_code or failed:
                    raise RuntimeError(f"not altered: {answer.error_code} {failed[:3]}")
                if time.perf_counter() >= end:
                    return

        begin = time.perf_counter()
        shares = [every[i * size : (i + 1) * size] for i in range(BATCH_WRITERS)]
        await asyncio.gather(*map(broker, shares))
        seconds = time.perf_counter() - begin
        return summary(latencies, size, seconds, self._controllers.cpu_seconds() - before)


# --- the bench ------------------------------------------------------------------------------------


def row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if ceiling is None else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def rows_of(label: str, found: dict[str, Any], unit: str, ceiling: float) -> list[dict[str, Any]]:
    return [
        row(label, found["rate"], f"{unit}s/s", ceiling),
        row(f"{label}: p50", found["p50_ms"], "ms"),
        row(f"{label}: p99", found["p99_ms"], "ms"),
        row(f"{label}: CPU of all three", found["cpu_us"], f"us/{unit}"),
    ]


def run_raft(directory: Path) -> tuple[list[dict[str, Any]], float]:
    """The rows of Raft alone, and its records per second in batches."""
    from tidemark.config import parse_server_config

    linger_ms = parse_server_config(
        settings(1, [1, 2, 3], str(directory))
    ).controller_quorum_append_linger_ms
    group = BATCH_WRITERS * CHANGES_PER_BATCH
    controllers = Controllers(directory, "raft")

    def phase(name: str, writers: int, records: int) -> tuple[dict[str, Any], float]:
        """The commits of Raft, and raw appends of such groups per second before and after."""
        raw = [raw_appends(directory, writers * records, RECORD_BYTES)]
        found = controllers.ask(name, writers, records, PHASE_S)
        raw.append(raw_appends(directory, writers * records, RECORD_BYTES))
        return found, statistics.mean(raw)

    try:
        controllers.ask("warm", 1, 1, 1.0)
        call, streamed = asyncio.run(raw_calls())
        single, one = phase("one", 1, 1)
        shared, many = phase("many", WRITERS, 1)
        bulk, batched = phase("bulk", BATCH_WRITERS, CHANGES_PER_BATCH)
    finally:
        controllers.stop()
    rows = [
        row("raw: fsyncs, one append each", one, "appends/s"),
        row(f"raw: fsyncs, {WRITERS} appends each", many, "appends/s"),
        row(f"raw: fsyncs, {group} appends each", batched, "appends/s"),
        row("raw: gRPC calls, one after another", call, "calls/s"),
        row("raw: messages of an open gRPC call", streamed, "round trips/s"),
        row(
            "commit: 1 writer (ceiling: a fsync and a round trip)",
            single["rate"],
            "commits/s",
            1 / (1 / one + 1 / streamed),
        ),
        *rows_of(
            "commit: 1 writer (ceiling: linger-batched)",
            single,
            "commit",
            linger_batched(1, one, linger_ms),
        ),
        *rows_of(
            f"commit: {WRITERS} writers (ceiling: linger-batched)",
            shared,
            "commit",
            linger_batched(WRITERS, many, linger_ms),
        ),
        *rows_of(
            f"commit: {BATCH_WRITERS} writers of {CHANGES_PER_BATCH} (ceiling: linger-batched)",
            bulk,
            "record",
            linger_batched(group, batched, linger_ms),
        ),
    ]
    return rows, bulk["rate"]


async def run_controllers(directory: Path, raft_rate: float) -> list[dict[str, Any]]:
    controllers = Controllers(directory, "controller")
    asker = Administrator(controllers)
    try:
        await asker.begin()
        many_s, _ = await asker.create(PARTITIONS // 10, 10, "many")
        large_s, ids = await asker.create(PARTITIONS // 100, 100, "large")
        added_s = await asker.add_partitions("many", 500, 20)
        changed = await asker.alter_partitions(ids, 100, PHASE_S)
    finally:
        await asker.end()
        controllers.stop()
    return [
        *rows_of("controller: AlterPartition (ceiling: Raft)", changed, "change", raft_rate),
        row(f"controller: create {PARTITIONS} partitions, 10 a topic", many_s, "s"),
        row(f"controller: create {PARTITIONS} partitions, 100 a topic", large_s, "s"),
        row("controller: 5000 partitions more, 500 topics", added_s, "s"),
    ]


def failovers(controllers: Controllers, end: int) -> list[float]:
    """Seconds from the end of the leader to the next committed write, several times."""
    found = []
    for _ in range(FAILOVERS):
        leader = controllers.ask("warm", 1, 1, 0.5)["node"]
        process = controllers.processes.pop(leader)
        ended = time.time()
        process.send_signal(end)
        controllers.tell(command("probe", 1, 1, 0))
        answer = controllers.answer(30)
        assert answer is not None, "nobody took over"
        found.append(answer["at"] - ended)
        process.kill()
        process.wait()
        # Nodes that still wait to lead for the probe are restarted, with the one that was ended.
        for node_id in [n for n in controllers.processes if n != answer["node"]]:
            stale = controllers.processes.pop(node_id)
            stale.kill()
            stale.wait()
            controllers.start(node_id)
        controllers.start(leader)
        time.sleep(1.5)
    return found


def run_failovers(directory: Path) -> list[dict[str, Any]]:
    rows = []
    for label, end in (("SIGKILL", signal.SIGKILL), ("an orderly stop", signal.SIGTERM)):
        controllers = Controllers(directory / label, "raft")
        try:
            controllers.ask("warm", 1, 1, 1.0)
            times = failovers(controllers, end)
        finally:
            controllers.stop()
        for which, seconds in (("median", statistics.median(times)), ("worst", max(times))):
            timeouts = seconds * 1000 / FETCH_TIMEOUT_MS
            name = f"failover after {label}, {which} of {FAILOVERS}"
            rows.append(row(name, timeouts, "x fetch timeout"))
    return rows


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows, raft_rate = run_raft(directory)
        rows += asyncio.run(run_controllers(directory, raft_rate))
        rows += run_failovers(directory)
    return rows
