"""Answers that clients do not take hold a bounded part of a broker's memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import grpc
import grpc.aio

from node.serving.answer_memory import AnswerMemory
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tests.node.fakes import FakeContext
from tests.node.replication.test_replication import scenario
from tidemark.v1 import log_pb2 as pb
from tidemark.wire import decode_fetch_response
from tidemark.wire.network import make_server

BATCH = batch("x" * 1_000)
LARGE = 30 << 20  # more than the buffers of a connection


async def fetch(node: Node, context: FakeContext, offset: int = 0, **fields: int) -> int:
    """Returns the bytes of records in the answer, which its client does not take."""
    request = pb.FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, **fields})
    request.partitions.add(
        topic=TOPIC,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        partition_max_bytes=1 << 20,
    )
    (answer,) = decode_fetch_response(await node.service.fetch(request, context)).responses
    return len(answer.payload)


async def bounded(cluster: Cluster, batches: int, limit: int) -> tuple[Node, AnswerMemory]:
    cluster.create_topic((1,))
    node = cluster.nodes[1]
    for _ in range(batches):
        await node.produce(raw=BATCH)
    node.service._answers = memory = AnswerMemory(limit)
    return node, memory


def test_clients_that_take_no_answer_hold_the_limit_and_a_batch_each_at_most() -> None:
    async def test(cluster: Cluster) -> None:
        node, memory = await bounded(cluster, 200, limit=100 * len(BATCH))
        silent = [FakeContext() for _ in range(12)]
        sizes = [await fetch(node, context) for context in silent]
        assert sizes[0] > 40 * len(BATCH)
        assert min(sizes) >= len(BATCH), "each gets on"
        assert sum(sizes) <= (100 + 12) * len(BATCH)
        assert memory.used_bytes >= sum(sizes)
        for context in silent:
            context.end()
        assert memory.used_bytes == 0
        assert await fetch(node, FakeContext()) == sizes[0]

    scenario(test, nodes=(1,))


def test_of_many_that_wait_for_the_same_records_few_take_all_the_room() -> None:
    async def test(cluster: Cluster) -> None:
        node, _ = await bounded(cluster, 0, limit=10 * len(BATCH))
        waiting = [asyncio.ensure_future(fetch(node, FakeContext())) for _ in range(30)]
        await asyncio.sleep(0.1)
        log = node.hosted().log
        for _ in range(8):
            log.append_as_leader(BATCH, 0, node.clock.wall_ms())
        node.hosted().appended(0)
        sizes = [size // len(BATCH) for size in await asyncio.gather(*waiting)]
        assert sizes == [5, 2] + [1] * 28

    scenario(test, nodes=(1,))


def test_a_fetch_that_there_is_little_room_for_does_not_wait_for_its_min_bytes() -> None:
    async def test(cluster: Cluster) -> None:
        node, _ = await bounded(cluster, 20, limit=8 * len(BATCH))
        begun = asyncio.get_running_loop().time()
        got = await fetch(node, FakeContext(), max_wait_ms=10_000, min_bytes=10 * len(BATCH))
        assert got == 4 * len(BATCH)
        assert asyncio.get_running_loop().time() == begun

    scenario(test, nodes=(1,))


CLIENT = """
import asyncio, sys, grpc.aio
async def main():
    await grpc.aio.insecure_channel(sys.argv[1]).unary_unary("/test/Get", None, None)(b"")
asyncio.run(main())
"""


def test_grpc_ends_a_call_when_its_client_has_the_answer_and_not_before() -> None:
    """A client that is stopped has not: what the count relies on."""

    async def main() -> None:
        memory = AnswerMemory(1 << 30)
        asked, stopped, answered, ended = (asyncio.Event() for _ in range(4))

        async def get(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            asked.set()
            await stopped.wait()
            answer = bytes(LARGE)
            memory.hold(len(answer), context)
            context.add_done_callback(lambda _: ended.set())
            answered.set()
            return answer

        server = make_server()
        method = grpc.unary_unary_rpc_method_handler(get)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test", {"Get": method}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        command = [sys.executable, "-c", CLIENT, f"127.0.0.1:{port}"]
        client = await asyncio.create_subprocess_exec(*command)
        try:
            await asyncio.wait_for(asked.wait(), 30)
            os.kill(client.pid, signal.SIGSTOP)
            stopped.set()
            await answered.wait()
            await asyncio.sleep(0.3)
            assert memory.used_bytes == LARGE
            client.kill()
            await asyncio.wait_for(ended.wait(), 30)
            assert memory.used_bytes == 0
        finally:
            with suppress(ProcessLookupError):
                client.kill()
            await client.wait()
            await server.stop(0)

    asyncio.run(main())
