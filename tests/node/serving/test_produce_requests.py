"""Produce requests of one call: their order, their memory, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from node.serving.request_memory import RequestMemory
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tidemark import wire
from tidemark.errors import ErrorCode
from tidemark.v1 import log_pb2
from tidemark.wire.exchange import _END


class Call:
    """The server's side of one open call, as in gRPC; ends after the last request."""

    def __init__(self, *requests: bytes) -> None:
        self.requests = list(requests)
        self.answers: list[log_pb2.ProduceResponse] = []
        self.status: grpc.StatusCode | None = None

    async def read(self) -> Any:
        return self.requests.pop(0) if self.requests else _END

    async def write(self, answer: bytes) -> None:
        self.answers.append(log_pb2.ProduceResponse.FromString(answer))

    async def abort(self, status: grpc.StatusCode, text: str) -> None:
        self.status = status
        raise ConnectionAbortedError(text)


def request(*values: str, acks: int = 1, timeout_ms: int = 1000) -> bytes:
    data = wire.PartitionProduceData(TOPIC, 0, batch(*values))
    return wire.encode_produce_request(wire.ProduceRequest(acks, timeout_ms, [data]))


def with_leader(scenario: Callable[[Cluster, Node], Awaitable[None]], *others: int) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.start(1, *others)
        cluster.create_topic(replicas=(1, *others))
        await asyncio.sleep(1)
        await scenario(cluster, cluster.nodes[1])
        await cluster.stop()

    virtual_time.run(main())


def memory_of(node: Node, limit_bytes: int) -> RequestMemory:
    node.service._memory = RequestMemory(limit_bytes)
    return node.service._memory


@pytest.mark.parametrize("acks", [1, -1])
def test_requests_that_wait_for_memory_are_appended_in_their_order(acks: int) -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        large, small = request("large" * 100, acks=acks), request("small", acks=acks)
        memory = memory_of(leader, 3 * len(large))
        taken = await memory.acquire(3 * len(large) - len(small), 1000)  # a small one would fit
        call = Call(large, small, small, large)
        serving = asyncio.ensure_future(leader.service.produce_stream(None, call))
        await asyncio.sleep(0.5)
        assert leader.hosted().log.log_end_offset == 0
        memory.release(taken)
        await serving
        assert [answer.responses[0].base_offset for answer in call.answers] == [0, 1, 2, 3]
        assert await leader.read_all() == ["large" * 100, "small", "small", "large" * 100]
        assert (memory.used_bytes, memory.waiting_bytes) == (0, 0)

    with_leader(scenario)


def test_what_waits_for_memory_too_long_is_told_so_and_the_next_goes_on() -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        memory = memory_of(leader, 1000)
        taken = await memory.acquire(1000, 1000)
        call = Call(request("a"))
        await leader.service.produce_stream(None, call)
        assert call.answers[0].responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        memory.release(taken)
        call = Call(request("b"))
        await leader.service.produce_stream(None, call)
        assert await leader.read_all() == ["b"]

    with_leader(scenario)


def test_what_waits_for_a_silent_replica_takes_no_memory_from_others() -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        large = request("x" * 1_000, acks=-1, timeout_ms=20_000)
        memory = memory_of(leader, 2 * len(large))
        cluster.cut.add((2, 1))
        await asyncio.sleep(1)
        silent = Call(*[large] * 20)
        waiting = asyncio.ensure_future(leader.service.produce_stream(None, silent))
        await asyncio.sleep(0.1)
        assert leader.hosted().log.log_end_offset == 20
        assert (memory.used_bytes, silent.answers) == (0, [])
        other = Call(request("y"))
        await leader.service.produce_stream(None, other)
        assert [answer.responses[0].error_code for answer in other.answers] == [0]
        cluster.cut.clear()
        await waiting
        offsets = [answer.responses[0].base_offset for answer in silent.answers]
        assert offsets == list(range(20))

    with_leader(scenario, 2)


def test_a_unary_call_keeps_its_memory_until_its_end() -> None:
    """gRPC keeps the message so long."""

    async def scenario(cluster: Cluster, leader: Node) -> None:
        memory = memory_of(leader, 1 << 20)
        cluster.cut.add((2, 1))
        await asyncio.sleep(1)
        data = request("a", acks=-1, timeout_ms=200)
        calls = [asyncio.ensure_future(leader.service.produce(data, None)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert memory.used_bytes == 2 * len(data)
        calls[0].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
        assert memory.used_bytes == 0
        cluster.cut.clear()

    with_leader(scenario, 2)


def test_a_call_that_ends_while_replicas_are_waited_for_keeps_what_was_appended() -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        memory = memory_of(leader, 1 << 20)
        cluster.cut.add((2, 1))
        await asyncio.sleep(1)
        call = Call(request("a", acks=-1), request("b", acks=-1))
        serving = asyncio.ensure_future(leader.service.produce_stream(None, call))
        await asyncio.sleep(0.1)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await asyncio.sleep(0)
        assert (memory.used_bytes, call.answers) == (0, [])
        cluster.cut.clear()
        await asyncio.sleep(5)
        assert await leader.read_all() == ["a", "b"]

    with_leader(scenario, 2)


def test_replicas_that_are_too_slow_end_a_request_and_give_its_memory_back() -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        memory = memory_of(leader, 1 << 20)
        cluster.cut.add((2, 1))
        await asyncio.sleep(1)
        call = Call(request("a", acks=-1, timeout_ms=200), request("b", acks=1))
        await leader.service.produce_stream(None, call)
        late, at_once = (answer.responses[0] for answer in call.answers)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (late.base_offset, at_once.base_offset) == (-1, 1)
        await asyncio.sleep(0)
        assert memory.used_bytes == 0

    with_leader(scenario, 2)


def test_bytes_that_are_no_request_end_the_call_after_the_answers_before() -> None:
    async def scenario(cluster: Cluster, leader: Node) -> None:
        call = Call(request("a"), b"\xff\xff\xff", request("no answer"))
        with pytest.raises(ConnectionAbortedError):
            await leader.service.produce_stream(None, call)
        assert call.status is grpc.StatusCode.INVALID_ARGUMENT
        assert len(call.answers) == 1

    with_leader(scenario)
