"""The metadata quorum: three controllers as processes on one disk, gRPC between them.

Beside each rate stands what the same disk does in the same run: raw appends of the same bytes with
one fsync each (one writer), and with one fsync for as many appends as there are writers (the
ceiling of group commit). All three logs lie on the one disk here, so a commit's two fsyncs compete
for it. Failover is counted in fetch timeouts, from SIGKILL of the leader to the next committed
write.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

RECORD_BYTES = 100
WRITERS = 64
CHANGES_PER_BATCH = 500
PHASE_S = 4.0
FAILOVERS = 5
FETCH_TIMEOUT_MS = 1000
ELECTION_TIMEOUT_MS = 500


# --- one controller -------------------------------------------------------------------------------


class Committed:
    """Wakes who waits for the commit of an offset."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.leads = asyncio.Event()

    def handle_commit(self, batches: Any) -> None:
        end = batches[-1].last_offset
        done = [w for w in self.waiting if w[0] <= end]
        self.waiting = [w for w in self.waiting if w[0] > end]
        for _, future in done:
            if not future.done():
                future.set_result(None)

    def handle_load_snapshot(self, reader: Any) -> None:
        return None

    def handle_leader_change(self, leader: Any) -> None:
        if leader.is_leader(self.node_id):
            self.leads.set()
        else:
            self.leads.clear()
        for _, future in self.waiting:
            future.cancel()
        self.waiting = []

    async def wait(self, offset: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((offset, future))
        await future


async def controller(node_id: int, ports: list[int], directory: str) -> None:
    """Runs a Raft server; commands on stdin are carried out by whoever leads."""
    import grpc.aio

    from commitlog.files import OsDirectory
    from quorum.raft_server import RaftServer
    from tidemark.config import parse_server_config
    from tidemark.wire import CHANNEL_OPTIONS

    config = parse_server_config(
        {
            "process.roles": "controller",
            "node.id": str(node_id),
            "listeners": f"CONTROLLER://127.0.0.1:{ports[node_id - 1]}",
            "controller.quorum.voters": ",".join(
                f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, start=1)
            ),
            "controller.quorum.fetch.timeout.ms": str(FETCH_TIMEOUT_MS),
            "controller.quorum.election.timeout.ms": str(ELECTION_TIMEOUT_MS),
        }
    )
    raft = RaftServer(
        config,
        cluster_id="bench",
        directory=OsDirectory(directory),
        directory_id=UUID(int=node_id),
        rng=random.Random(),
        now_ms=lambda: int(time.time() * 1000),
    )
    committed = Committed(node_id)
    raft.register(committed)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    raft.add_to_server(server)
    server.add_insecure_port(f"127.0.0.1:{ports[node_id - 1]}")
    await server.start()
    await raft.start()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        if command["name"] == "probe":
            await committed.leads.wait()
        if committed.leads.is_set():
            answer = await load(raft, committed, command)
            sys.stdout.write(json.dumps(answer | {"node": node_id}) + "\n")
            sys.stdout.flush()


async def load(raft: Any, committed: Committed, command: dict[str, Any]) -> dict[str, Any]:
    writers, per_append = command["writers"], command["records"]
    end = time.perf_counter() + command["seconds"]
    latencies: list[float] = []
    values = [os.urandom(RECORD_BYTES)] * per_append

    async def writer() -> None:
        while True:
            begin = time.perf_counter()
            try:
                await committed.wait(raft.append(raft.epoch, values))
            except (asyncio.CancelledError, Exception):
                if command["name"] != "probe":
                    raise
                await asyncio.sleep(0.001)
                continue
            latencies.append(time.perf_counter() - begin)
            if time.perf_counter() >= end:
                return

    begin = time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(writers)))
    seconds = time.perf_counter() - begin
    latencies.sort()
    return {
        "rate": len(latencies) * per_append / seconds,
        "p50_ms": statistics.median(latencies) * 1000,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1000,
        "at": time.time(),
    }


# --- the bench ------------------------------------------------------------------------------------


class Controllers:
    """Three processes, and a way to ask whoever leads."""

    def __init__(self, directory: Path) -> None:
        sockets = [socket.socket() for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        self.ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        self.directory = directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for node_id in (1, 2, 3):
            self.start(node_id)

    def start(self, node_id: int) -> None:
        path = self.directory / str(node_id)
        path.mkdir(exist_ok=True)
        ports = ",".join(map(str, self.ports))
        command = [sys.executable, __file__, str(node_id), ports, str(path)]
        self.processes[node_id] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, name: str, writers: int, records: int, seconds: float) -> dict[str, Any]:
        """The first answer; while nobody leads the question is put again."""
        line = json.dumps(
            {"name": name, "writers": writers, "records": records, "seconds": seconds}
        ).encode()
        deadline = time.monotonic() + seconds + 30
        while time.monotonic() < deadline:
            for process in self.processes.values():
                assert process.stdin is not None
                process.stdin.write(line + b"\n")
                process.stdin.flush()
            found = self._answer(seconds + 2)
            if found is not None:
                return found
        raise RuntimeError("no controller leads")

    def _answer(self, timeout_s: float) -> dict[str, Any] | None:
        import select

        pipes = {p.stdout: node for node, p in self.processes.items()}
        ready, _, _ = select.select(list(pipes), [], [], timeout_s)
        for pipe in ready:
            assert pipe is not None
            line = pipe.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
        return None

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def raw_fsyncs(directory: Path, appends: int, record_bytes: int, seconds: float = 2.0) -> float:
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


def failovers(controllers: Controllers) -> list[float]:
    """Seconds from SIGKILL of the leader to the next committed write, several times."""
    found = []
    for _ in range(FAILOVERS):
        leader = controllers.ask("warm", 1, 1, 0.5)["node"]
        process = controllers.processes.pop(leader)
        line = json.dumps({"name": "probe", "writers": 1, "records": 1, "seconds": 0}).encode()
        killed = time.time()
        process.kill()
        process.wait()
        for other in controllers.processes.values():
            assert other.stdin is not None
            other.stdin.write(line + b"\n")
            other.stdin.flush()
        answer = controllers._answer(30)
        assert answer is not None, "nobody took over"
        found.append(answer["at"] - killed)
        # Who still waits to lead for the probe is started anew, with the one that was killed.
        for node_id in [n for n in controllers.processes if n != answer["node"]]:
            stale = controllers.processes.pop(node_id)
            stale.kill()
            stale.wait()
            controllers.start(node_id)
        controllers.start(leader)
        time.sleep(1.5)
    return found


def row(name: str, value: float, unit: str, ceiling: float | None = None) -> dict[str, Any]:
    ratio = None if ceiling is None else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        one = raw_fsyncs(directory, 1, RECORD_BYTES)
        many = raw_fsyncs(directory, WRITERS, RECORD_BYTES)
        batches = raw_fsyncs(directory, 1, CHANGES_PER_BATCH * (RECORD_BYTES + 8))
        controllers = Controllers(directory)
        try:
            controllers.ask("warm", 1, 1, 1.0)
            single = controllers.ask("one", 1, 1, PHASE_S)
            group = controllers.ask("many", WRITERS, 1, PHASE_S)
            bulk = controllers.ask("bulk", 4, CHANGES_PER_BATCH, PHASE_S)
            times = failovers(controllers)
        finally:
            controllers.stop()
    rows = []
    for label, found, ceiling in (
        ("1 writer", single, one),
        (f"{WRITERS} writers, grouped", group, many),
        (f"4 writers, {CHANGES_PER_BATCH} changes each", bulk, batches * CHANGES_PER_BATCH),
    ):
        rows.append(row(f"commit: {label}", found["rate"], "records/s", ceiling))
        rows.append(row(f"commit p50: {label}", found["p50_ms"], "ms"))
        rows.append(row(f"commit p99: {label}", found["p99_ms"], "ms"))
    for label, seconds in (("median", statistics.median(times)), ("worst", max(times))):
        timeouts = seconds * 1000 / FETCH_TIMEOUT_MS
        rows.append(row(f"failover after SIGKILL, {label} of {FAILOVERS}", timeouts, "x timeout"))
    return rows


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # benches are named after packages
    import uvloop  # as a node does

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ports = [int(port) for port in sys.argv[2].split(",")]
        runner.run(controller(int(sys.argv[1]), ports, sys.argv[3]))
