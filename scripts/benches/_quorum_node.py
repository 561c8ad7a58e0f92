"""The processes that the quorum bench starts: `_quorum_node.py ROLE JSON`.

`raft` runs a Raft server alone; while it leads, it executes append commands from stdin.
`controller` runs a node with that role. `echo` returns gRPC messages unchanged. JSON has the role's
arguments: `settings` of a node and its `cluster_id`, or a `port`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID


class Committed:
    """Wakes the waiters for the commit of an offset."""

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

    def handle_caught_up(self) -> None:
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


async def raft_alone(settings: dict[str, str], cluster_id: str) -> None:
    """Runs a Raft server; the leader executes the commands on stdin."""
    import grpc.aio

    from commitlog.disk.os_files import OsDirectory
    from node.server import GARBAGE_THRESHOLDS
    from quorum.replica.server import RaftServer
    from tidemark.config import parse_server_config
    from tidemark.errors import NotControllerError
    from tidemark.wire import CHANNEL_OPTIONS

    gc.set_threshold(*GARBAGE_THRESHOLDS)
    config = parse_server_config(settings)
    node_id = config.node_id
    raft = RaftServer(
        config,
        cluster_id=cluster_id,
        directory=OsDirectory(settings["log.dirs"]),
        directory_id=UUID(int=node_id),
        rng=random.Random(),
        now_ms=lambda: int(time.time() * 1000),
    )
    committed = Committed(node_id)
    raft.register(committed)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    raft.add_to_server(server)
    server.add_insecure_port(settings["listeners"].removeprefix("CONTROLLER://"))
    await server.start()
    await raft.start()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: asyncio.ensure_future(raft.shutdown())
    )
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        if command["name"] == "probe":
            await committed.leads.wait()
        if committed.leads.is_set():
            try:
                answer = await load(raft, committed, command)
            except (NotControllerError, asyncio.CancelledError):
                continue  # it no longer leads: the command is repeated
            sys.stdout.write(json.dumps(answer | {"node": node_id}) + "\n")
            sys.stdout.flush()


async def load(raft: Any, committed: Committed, command: dict[str, Any]) -> dict[str, Any]:
    writers, per_append = command["writers"], command["records"]
    end = time.perf_counter() + command["seconds"]
    latencies: list[float] = []
    values = [os.urandom(command["bytes"])] * per_append

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
    return {"latencies": latencies, "seconds": time.perf_counter() - begin, "at": time.time()}


def whole_controller(settings: dict[str, str], cluster_id: str) -> int:
    """Runs a node until it is killed."""
    from node.runtime.storage import format_storage
    from node.server import run
    from tidemark.config import parse_server_config

    config = parse_server_config(settings)
    format_storage(config, cluster_id)
    return run(config)


async def echo(port: int) -> None:
    """Returns requests unchanged, over unary calls and over open ones."""
    import grpc.aio

    from tidemark.wire import CHANNEL_OPTIONS
    from tidemark.wire.exchange import answer_each

    async def same(request: bytes, context: Any = None) -> bytes:
        return request

    async def stream(_: Any, context: Any) -> None:
        await answer_each(context, same)

    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(same),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(role: str, what: dict[str, Any]) -> int:
    import uvloop  # as a node does

    if role == "controller":
        return whole_controller(what["settings"], what["cluster_id"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if role == "echo":
            runner.run(echo(what["port"]))
        else:
            runner.run(raft_alone(what["settings"], what["cluster_id"]))
    return 0


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # benches are named after packages
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
